"""What can be said of the size of an integer expression without knowing any lengths."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis
from attnfuse.ir.term import Term

IsNatural = Callable[[Term], bool]
"""Says of a captured tensor whether all its entries are promised to be at least 0."""


def least(term: Term, is_natural: IsNatural = lambda tensor: False) -> int | None:
    """A number that an integer term is never less than, for any lengths; None if there is none.

    A position i along an axis of length n is 0 ≤ i ≤ n − 1.
    """
    coefficients, constant = ir.affine_parts(term)
    expanded = ir.const(constant)
    for atom, factor in coefficients.items():
        high = _last(atom) if factor < 0 else None
        bound = atom if high is None else high
        expanded = ir.add(expanded, ir.mul(ir.const(factor), bound))
    coefficients, constant = ir.affine_parts(expanded)
    for atom, factor in coefficients.items():
        if factor < 0 or not _is_natural(atom, is_natural):
            return None
    return constant


@lru_cache(maxsize=256)  # the same mask stands in every layer, and in many forms of one
def always(predicate: Term) -> bool:
    """Whether a closed predicate holds for all positions and lengths, as far as can be proved."""
    return all(map(_holds, ir.conjuncts(ir.unpack(predicate))))


def _holds(predicate: Term) -> bool:
    if predicate.op.name == "le" and predicate.operands[1].type.dtype.is_int:
        zero, gap = predicate.operands
        below = least(gap)
        return ir.value_of(zero) == 0 and below is not None and below >= 0
    return ir.value_of(predicate) is True


def _last(atom: Term) -> Term | None:
    """The greatest value of a position; None for what is not a position along one axis."""
    if atom.op.name != "index" or len(atom.type.axes) != 1:
        return None
    axis = atom.type.axes[0]
    assert isinstance(axis, Axis)
    return ir.sub(ir.length(axis.size), ir.const(1))


def _is_natural(atom: Term, is_natural: IsNatural) -> bool:
    if atom.op.name == "gather":
        return is_natural(atom.operands[0])
    return atom.op.name in ("index", "length")
