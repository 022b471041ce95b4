"""What is known of an e-class: its type, its promises, and facts that the caller defines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnfuse.errors import UnknownFact
from attnfuse.ir.axes import Type
from attnfuse.ir.op import Op
from attnfuse.ir.term import Attribute, Term


@dataclass(slots=True)
class Known:
    """What is known of the value that all members of an e-class share.

    Attributes:
        type: its element type and axes.
        closed: a term of indices, lengths and captured tensors that it equals, if there is one.
        promises: what the caller promised of it, which is an input then.
        facts: the facts of the e-graph, by name; see `Fact`.
    """

    type: Type
    closed: Term | None = None
    promises: frozenset[str] = frozenset()
    facts: dict[str, Any] = field(default_factory=lambda: dict[str, Any]())

    def __getitem__(self, name: str) -> Any:
        """The fact called ``name``; UnknownFact where it is not known here."""
        if name not in self.facts:
            raise UnknownFact(name=name, what=self.type, known=", ".join(sorted(self.facts)))
        return self.facts[name]


@dataclass(frozen=True, slots=True)
class Choice:
    """One e-node as facts and costs see it: an op over classes, of which something is known."""

    op: Op
    attributes: tuple[Attribute, ...]
    operands: tuple[Known, ...]
    known: Known

    def __getitem__(self, name: str) -> Attribute:
        """The attribute called ``name``."""
        return self.attributes[self.op.attributes.index(name)]


@dataclass(frozen=True)
class Fact:
    """Something to know of every e-class, found from its e-nodes.

    Without a join, all e-nodes of a class must agree; two that differ are
    reported as the mistake of the rule that equated them. With one, what is
    known is the join of what the e-nodes say: it must be associative,
    commutative, idempotent, and rise only finitely often.

    Attributes:
        name: what rules and costs ask for.
        infer: the value for an e-node from what is known of its operands, or None.
        join: makes one value of two.
    """

    name: str
    infer: Callable[[Choice], Any]
    join: Callable[[Any, Any], Any] | None = None


Promises = Mapping[Term, frozenset[str]]
"""What the caller promises of input tensors; the names are the rules' own."""
