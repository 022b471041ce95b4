"""Derivations: how one term becomes another, as whole terms, one rule a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attnfuse.egraph.engine import EGraph, arranged
from attnfuse.egraph.extract import Candidate
from attnfuse.egraph.proof import Congruence, Firing, Link, Reason
from attnfuse.errors import NotEqual
from attnfuse.ir.normal import construct
from attnfuse.ir.term import Term

NORMAL_FORM = "normal form"
"""What a derivation calls a step that no rule made, but the constructor of a term."""


@dataclass(frozen=True)
class Step:
    """One rewrite.

    Attributes:
        rule: the name of the rule.
        exact: how equal the terms before and after are: bits, real or approx.
        forward: whether the rule was read from left to right.
        term: the whole term after it.
    """

    rule: str
    exact: str
    forward: bool
    term: Term

    def __str__(self) -> str:
        return f"{self.rule}{'' if self.forward else ' (backwards)'}  [{self.exact}]"


@dataclass(frozen=True)
class Derivation:
    """A chain of equal terms, each one rewrite away from the one before."""

    start: Term
    steps: tuple[Step, ...]

    @property
    def end(self) -> Term:
        """The last of the terms."""
        return self.steps[-1].term if self.steps else self.start

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the rules used, each once, in the order of their first use."""
        return tuple(dict.fromkeys(step.rule for step in self.steps))

    @property
    def exact(self) -> str:
        """How equal the ends are: no better than the weakest step."""
        tags = {step.exact for step in self.steps}
        return next((tag for tag in ("approx", "real") if tag in tags), "bits")

    def __str__(self) -> str:
        lines = [f"  {self.start}"]
        for step in self.steps:
            lines += [f"= {step}", f"  {step.term}"]
        return "\n".join(lines)

    def data(self) -> dict[str, Any]:
        """The derivation as plain values, for JSON."""
        steps = [
            {"rule": s.rule, "exact": s.exact, "forward": s.forward, "term": str(s.term)}
            for s in self.steps
        ]
        return {"start": str(self.start), "exact": self.exact, "steps": steps}


def derive(graph: EGraph, start: int, end: int) -> Derivation:
    """How the concrete term of one e-node becomes that of another in the same class.

    Raises:
        NotEqual: when they are in different classes.
    """
    chain = _Deriving(graph).chain(start, end)
    return Derivation(graph.term(start), _without_loops(graph.term(start), chain))


def enter_candidate(graph: EGraph, roots: list[int], candidate: Candidate) -> list[int]:
    """The e-nodes of an extracted candidate's terms.

    Where the constructors of its terms made something of them that no rule had found (a sum
    within a sum that a limit left standing), that is entered as a union of its own.
    """
    entered: dict[int, int] = {}

    def enter(number: int) -> int:
        number = graph.find(number)
        if number not in entered:
            like = candidate.nodes[number]
            op, attributes, operands = graph.node(like)
            pairs = [(enter(each), each) for each in operands]
            made = graph.congruent(like, pairs)
            normal = construct(op, [graph.term(each) for each, _ in pairs], attributes)
            entered[number] = graph.add(normal)
            graph.union(made, entered[number], NORMAL_FORM)
        return entered[number]

    numbers = [enter(root) for root in roots]
    graph.rebuild()
    return numbers


def _without_loops(start: Term, chain: list[Step]) -> tuple[Step, ...]:
    """Leave out what leads from a term back to itself."""
    last = {step.term: place for place, step in enumerate(chain)}
    kept: list[Step] = []
    place = last.get(start, -1) + 1
    while place < len(chain):
        kept.append(chain[place])
        place = last[chain[place].term] + 1
    return tuple(kept)


class _Deriving:
    """Unfolds paths in the forest; a congruence is unfolded into the steps of the operands."""

    def __init__(self, graph: EGraph) -> None:
        self.graph = graph
        self.chains: dict[tuple[int, int], list[Step]] = {}

    def chain(self, start: int, end: int) -> list[Step]:
        if (start, end) not in self.chains:
            path = self.graph.forest.path(start, end)
            if path is None:
                one, other = self.graph.term(start), self.graph.term(end)
                raise NotEqual(one=one, other=other)
            self.chains[start, end] = [step for link in path for step in self.unfolded(link)]
        return self.chains[start, end]

    def unfolded(self, link: Link) -> Iterator[Step]:
        if isinstance(link.reason, Congruence):
            yield from self.within(link, link.reason)
        else:
            name, exact = _name(link.reason)
            yield Step(name, exact, link.forward, self.graph.term(link.target))

    def within(self, link: Link, congruence: Congruence) -> Iterator[Step]:
        op, attributes, _ = self.graph.node(link.source)
        pairs = [pair if link.forward else pair[::-1] for pair in congruence.pairs]
        terms = [self.graph.term(one) for one, _ in pairs]
        for place, (one, other) in enumerate(pairs):
            for step in self.chain(one, other):
                terms[place] = step.term
                term = arranged(op, terms, attributes)
                yield Step(step.rule, step.exact, step.forward, term)


def _name(reason: Reason) -> tuple[str, str]:
    if isinstance(reason, Firing):
        return reason.rule.name, reason.rule.exact
    return str(reason), "real"
