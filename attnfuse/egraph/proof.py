"""Why two e-nodes are equal: a forest whose edges are the unions that were made.

Nieuwenhuis and Oliveras, "Proof-producing congruence closure" (2005): each
union adds one edge between the two e-nodes that it equated, after turning
the tree of one of them so that it becomes a root. The path between two
e-nodes of a class is then the reason for their equality, and only unions that
were made before can be on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnfuse.egraph.rule import Rule


@dataclass(frozen=True, eq=False)
class Firing:
    """A rule that equated two e-nodes.

    Attributes:
        rule: the rule.
        given: what its variables stood for: e-nodes by number, numbers and attributes as they are.
        before: the e-node that its left side matched.
        after: the e-node of its right side.
        round: the round of saturation.
    """

    rule: Rule
    given: Mapping[str, Any]
    before: int
    after: int
    round: int

    def __str__(self) -> str:
        return f"{self.rule.where}: rule {self.rule.name}"


@dataclass(frozen=True, eq=False)
class Assertion:
    """A caller who equated two e-nodes; `text` is what a derivation says of it."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class Congruence:
    """The same op of equal operands; `pairs` are the operands of both, as they correspond."""

    pairs: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return "congruence"


Reason = Firing | Assertion | Congruence


@dataclass(frozen=True, slots=True)
class Link:
    """One edge: ``source`` equals ``target`` for a reason, which reads so if ``forward``."""

    source: int
    target: int
    reason: Reason
    forward: bool

    def turned(self) -> Link:
        """The same edge from the other end."""
        return Link(self.target, self.source, self.reason, not self.forward)


class Forest:
    """The edges, each kept at the end that is farther from the root of its tree."""

    def __init__(self) -> None:
        self._up: dict[int, Link] = {}

    def link(self, source: int, target: int, reason: Reason) -> None:
        """Add the edge of a union: ``reason`` turns source into target."""
        edge: Link | None = Link(source, target, reason, True)
        while edge is not None:
            previous = self._up.get(edge.source)
            self._up[edge.source] = edge
            edge = previous.turned() if previous else None

    def path(self, source: int, target: int) -> list[Link] | None:
        """The edges from source to target, or None where there is no way."""
        forth, back = self._way_up(source), self._way_up(target)
        met = {source: 0} | {edge.target: place + 1 for place, edge in enumerate(forth)}
        for place, node in enumerate([target, *(edge.target for edge in back)]):
            if node in met:
                return forth[: met[node]] + [edge.turned() for edge in reversed(back[:place])]
        return None

    def _way_up(self, node: int) -> list[Link]:
        way: list[Link] = []
        while (edge := self._up.get(node)) is not None:
            way.append(edge)
            node = edge.target
        return way
