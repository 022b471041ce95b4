"""The keys that a tile of queries can see, read off the predicate.

A bound on one key, 0 ≤ ±k + rest, whose rest is affine in q and otherwise the
same for the whole tile, gives a bound for the tile at its first or its last
query. Other predicates leave the range as it is: a range may be too wide,
never too narrow.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnfuse.ir import build as ir
from attnfuse.ir.term import Term, walk

Q_FIRST = ir.index("q_first", ())
Q_LAST = ir.index("q_last", ())


@dataclass(frozen=True)
class KeyRange:
    """The keys first ≤ k < end that a tile of queries can see.

    Both are integer terms over ``q_first`` and ``q_last``, the tile's ends;
    end may lie before first where the tile sees nothing.
    """

    first: Term
    end: Term

    def __str__(self) -> str:
        return f"{self.first} ≤ k < {self.end}"


def key_range(visible: Term, kv_len: Term) -> KeyRange:
    """The range of keys outside of which ``visible``, a closed predicate, is false."""
    if visible is ir.FALSE:
        return KeyRange(ir.const(0), ir.const(0))
    firsts, ends = [ir.const(0)], [kv_len]
    for predicate in ir.conjuncts(visible):
        bound = _bound(predicate)
        if bound is None:
            continue
        sign, rest = bound
        if sign > 0:  # k ≥ −rest, least where rest is greatest
            firsts.append(ir.neg(_greatest(rest)))
        else:  # k ≤ rest
            ends.append(ir.add(_greatest(rest), ir.const(1)))
    return KeyRange(ir.maximum(*firsts), ir.minimum(*ends))


def full_range(visible: Term, kv_len: Term) -> KeyRange:
    """A range of keys that every query of a tile can see, as wide as the predicate shows.

    Args:
        visible: a closed predicate.
        kv_len: how many keys there are.
    """
    if visible is ir.TRUE:
        return KeyRange(ir.const(0), kv_len)
    firsts, ends = [ir.const(0)], [kv_len]
    for predicate in ir.conjuncts(visible):
        bound = _bound(predicate)
        if bound is None:
            return KeyRange(ir.const(0), ir.const(0))
        sign, rest = bound
        if sign > 0:
            firsts.append(ir.neg(_least(rest)))
        else:
            ends.append(ir.add(_least(rest), ir.const(1)))
    return KeyRange(ir.maximum(*firsts), ir.minimum(*ends))


Rest = tuple[dict[Term, int], int]


def _bound(predicate: Term) -> tuple[int, Rest] | None:
    """The sign of k and the rest of a bound on one key, or None."""
    if predicate.op.name != "le" or not predicate.operands[1].type.dtype.is_int:
        return None
    coefficients, constant = ir.affine_parts(predicate.operands[1])
    keys = [term for term in coefficients if _is_index(term, "k")]
    sign = coefficients.pop(keys[0]) if keys else 0
    varying = [t for t in coefficients if not _is_index(t, "q") and _depends_on_position(t)]
    if sign not in (1, -1) or varying:
        return None
    return sign, (coefficients, constant)


def _greatest(rest: Rest) -> Term:
    """The greatest value of an affine term over the queries of a tile."""
    return _at_ends(rest, (Q_FIRST, Q_LAST))


def _least(rest: Rest) -> Term:
    """The least value of an affine term over the queries of a tile."""
    return _at_ends(rest, (Q_LAST, Q_FIRST))


def _at_ends(rest: Rest, ends: tuple[Term, Term]) -> Term:
    """An affine term at one end of a tile where it falls with the query, at the other where not."""
    coefficients, constant = rest
    placed: dict[Term, int] = {}
    for term, factor in coefficients.items():
        placed[ends[factor > 0] if _is_index(term, "q") else term] = factor
    return ir.affine(placed, constant)


def _is_index(term: Term, name: str) -> bool:
    return term.op.name == "index" and term["name"] == name


def _depends_on_position(term: Term) -> bool:
    return any(_is_index(leaf, "q") or _is_index(leaf, "k") for leaf in walk(term))
