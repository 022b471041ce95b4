"""What can be said of integer expressions and predicates without knowing any lengths."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import combinations

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
def parts_of(predicate: Term) -> tuple[Term, ...]:
    """The predicates of which a closed one is the conjunction."""
    return ir.conjuncts(ir.unpack(predicate))


@lru_cache(maxsize=256)
def always(predicate: Term) -> bool:
    """Whether a closed predicate holds for all positions and lengths, as far as can be proved."""
    return ir.value_of(uncertain(predicate)) is True


@lru_cache(maxsize=256)
def uncertain(predicate: Term) -> Term:
    """A closed predicate without the parts of it that always hold."""
    return ir.and_(*(part for part in parts_of(predicate) if not _holds(part)))


@lru_cache(maxsize=256)
def simplest(predicate: Term) -> Term:
    """A closed predicate, bands united, without the parts of it that always hold."""
    return uncertain(united(predicate))


@lru_cache(maxsize=256)
def united(predicate: Term) -> Term:
    """A closed predicate, in which bands that overlap or touch are one band."""
    return ir.and_(*map(_united, parts_of(predicate)))


def _united(predicate: Term) -> Term:
    if predicate.op.name != "or":
        return predicate
    for pair in combinations(predicate.operands, 2):
        union = _union(*(frozenset(ir.conjuncts(each)) for each in pair))
        if union is not None:
            others = (each for each in predicate.operands if each not in pair)
            return _united(ir.or_(union, *others))
    return predicate


def _union(one: frozenset[Term], other: frozenset[Term]) -> Term | None:
    """The union of two conjunctions, where it is one: what they share, and a band of the rest."""
    shared = one & other
    bounds = [_limits(each - shared) for each in (one, other)]
    if None in bounds:
        return None
    first, second = (each or {} for each in bounds)
    if len({frozenset((along, _opposite(along))) for along in (*first, *second)}) > 1:
        return None
    # one band begins at -limit, the other ends at its limit: no integer may lie between them
    ends = ((limit, second.get(_opposite(along))) for along, limit in first.items())
    if any(end is not None and -limit > end + 1 for limit, end in ends):
        return None
    hull = {along: max(limit, second[along]) for along, limit in first.items() if along in second}
    return ir.and_(*shared, *(_bound(along, limit) for along, limit in hull.items()))


Direction = frozenset[tuple[Term, int]]
"""The terms and factors of a sum."""


def _limits(bounds: frozenset[Term]) -> dict[Direction, int] | None:
    """Bounds 0 ≤ x + limit, as the limit for each x; None where one is no such bound."""
    if not all(map(is_bound, bounds)):
        return None
    parts = (ir.affine_parts(bound.operands[1]) for bound in bounds)
    return {frozenset(coefficients.items()): limit for coefficients, limit in parts}


def _bound(along: Direction, limit: int) -> Term:
    return ir.le(ir.const(0), ir.affine(dict(along), limit))


def _opposite(along: Direction) -> Direction:
    return frozenset((term, -factor) for term, factor in along)


def is_bound(predicate: Term) -> bool:
    """Whether a predicate is 0 ≤ an integer."""
    return predicate.op.name == "le" and predicate.operands[1].type.dtype.is_int


def _holds(predicate: Term) -> bool:
    if predicate.op.name == "or":
        return any(map(always, predicate.operands))
    if is_bound(predicate):
        below = least(predicate.operands[1])
        return below is not None and below >= 0
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
