"""Small e-graphs for the tests: terms over a few numbers, with a meaning that makes many equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from attnfuse.egraph.engine import EGraph
from attnfuse.egraph.facts import Fact
from attnfuse.ir.axes import DType
from attnfuse.ir.ops import OPS
from attnfuse.ir.term import Term, make

MODULUS = 5
LEAVES = tuple(
    make(OPS["input"], (), (f"x{n}", "query", DType.float32, ())) for n in range(MODULUS - 1)
)


def value(term: Term) -> int:
    """A meaning under which add and mul are what they should be, modulo a small number."""
    values = [value(operand) for operand in term.operands]
    match term.op.name:
        case "input":
            result = int(term.text("name")[1:])
        case "add":
            result = sum(values)
        case "mul":
            result = values[0] * values[1] if len(values) == 2 else _product(values)
        case "div":
            result = 2 * values[0] + 3 * values[1]
        case _:
            result = 3 * values[0] + 1
    return result % MODULUS


def _product(values: Sequence[int]) -> int:
    product = 1
    for each in values:
        product *= each
    return product


def _unary(x: Term) -> Term:
    return make(OPS["tanh"], (x,))


def _ordered(x: Term, y: Term) -> Term:
    return make(OPS["div"], (x, y))


def _flat(name: str, x: Term, y: Term) -> Term:
    return make(OPS[name], sorted((x, y), key=lambda t: t.digest))


def _extend(inner: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    return st.one_of(
        st.builds(_unary, inner),
        st.builds(_ordered, inner, inner),
        st.builds(_flat, st.sampled_from(["add", "mul"]), inner, inner),
    )


terms = st.recursive(st.sampled_from(LEAVES), _extend, max_leaves=5)
"""Random terms."""


@dataclass(frozen=True)
class Toy:
    """Terms, and pairs of them to be equated."""

    terms: tuple[Term, ...]
    pairs: tuple[tuple[Term, Term], ...]

    def graph(self, facts: tuple[Fact, ...] = ()) -> EGraph:
        """The e-graph, closed."""
        graph = EGraph(facts)
        for term in self.terms:
            graph.add(term)
        for one, other in self.pairs:
            graph.union(graph.add(one), graph.add(other), "given")
        graph.rebuild()
        return graph


@st.composite
def toys(draw: st.DrawFn, *, sound: bool = False, most: int = 6) -> Toy:
    """Random e-graphs; sound ones equate only what has the same value."""
    chosen = tuple(draw(st.lists(terms, min_size=2, max_size=most, unique=True)))
    pairs = [(a, b) for a in chosen for b in chosen if a is not b]
    if sound:
        pairs = [(a, b) for a, b in pairs if value(a) == value(b)]
    some = draw(st.lists(st.sampled_from(pairs), max_size=5)) if pairs else []
    return Toy(chosen, tuple(some))
