"""Normal forms: each op's constructor, found by the op's name.

A term is in normal form when it is what its constructor makes of its own
operands. Whoever changes operands rebuilds through here, so normal forms hold
everywhere and no rewrite rule has to know commutativity or associativity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from attnfuse.ir.op import Op
from attnfuse.ir.ops import OPS
from attnfuse.ir.term import Term, make, walk

Constructor = TypeVar("Constructor", bound=Callable[..., Term])

_constructors: dict[str, Callable[..., Term]] = {}


def normal(op: str) -> Callable[[Constructor], Constructor]:
    """Register a function of operands, then attributes, as the constructor of ``op``."""

    def register(constructor: Constructor) -> Constructor:
        assert op in OPS and op not in _constructors
        _constructors[op] = constructor
        return constructor

    return register


def construct(op: Op, operands: Sequence[Term], attributes: Sequence[Any] = ()) -> Term:
    """A term of ``op`` in normal form; raises what its constructor raises."""
    constructor = _constructors.get(op.name)
    counts = op.arity is None or len(operands) == op.arity
    if constructor is None or not counts:  # make says what is wrong with the number
        return make(op, operands, attributes)
    return constructor(*operands, *attributes)


def rebuild(term: Term, operands: Sequence[Term]) -> Term:
    """``term`` with other operands, in normal form."""
    return construct(term.op, operands, term.attributes)


def substitute(root: Term, replacements: Mapping[Term, Term]) -> Term:
    """``root`` with each key of ``replacements`` replaced, in normal form."""
    done: dict[Term, Term] = {}
    for term in walk(root):
        operands = [done[operand] for operand in term.operands]
        if term in replacements:
            done[term] = replacements[term]
        elif tuple(operands) == term.operands:
            done[term] = term
        else:
            done[term] = rebuild(term, operands)
    return done[root]
