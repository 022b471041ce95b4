"""Constructors of predicates: comparisons, and, or, not.

A comparison of integers is ``0 ≤ affine`` or ``0 = affine``. So a bound on
k − q, on k alone (padding) or with a gathered limit (documents, prefixes) all
look alike, and the meet of two of one direction is the tighter one, their
join the wider one.
"""

from __future__ import annotations

from collections.abc import Callable

from attnfuse.ir.arithmetic import affine, affine_parts, alike, const, neg, sub, value_of
from attnfuse.ir.axes import DType
from attnfuse.ir.elementwise import check_kinds
from attnfuse.ir.normal import normal
from attnfuse.ir.ops import OPS
from attnfuse.ir.packing import is_closed, pack, settle, unpack
from attnfuse.ir.term import Term, make

TRUE, FALSE = const(True), const(False)


@normal("le")
def le(x: Term, y: Term) -> Term:
    """``x ≤ y``."""
    x, y = settle(alike([x, y]))
    if not (x.type.dtype.is_int and y.type.dtype.is_int):
        return make(OPS["le"], (x, y))
    gap = sub(y, x)
    number = value_of(gap)
    return make(OPS["le"], (const(0), gap)) if number is None else const(number >= 0)


@normal("lt")
def lt(x: Term, y: Term) -> Term:
    """``x < y``; for integers ``x ≤ y − 1``."""
    x, y = settle(alike([x, y]))
    if x.type.dtype.is_int and y.type.dtype.is_int:
        return le(x, sub(y, const(1)))
    return make(OPS["lt"], (x, y))


@normal("eq")
def eq(x: Term, y: Term) -> Term:
    """``x = y``."""
    x, y = settle(alike([x, y]))
    if not x.type.dtype.is_int:
        return make(OPS["eq"], sorted((x, y), key=lambda term: term.digest))
    gap = sub(y, x)
    number = value_of(gap)
    if number is not None:
        return const(number == 0)
    opposite = neg(gap)
    return make(OPS["eq"], (const(0), min(gap, opposite, key=lambda term: term.digest)))


@normal("not")
def not_(x: Term) -> Term:
    """``not x``."""
    check_kinds("not", [x], "bool")
    (x,) = settle([x])
    name, number = x.op.name, value_of(x)
    if number is not None:
        return const(not number)
    if name == "not":
        return x.operands[0]
    if name in ("and", "or"):
        negated = map(not_, x.operands)
        return or_(*negated) if name == "and" else and_(*negated)
    if name == "le" and x.operands[1].type.dtype.is_int:
        return le(const(1), neg(x.operands[1]))
    return make(OPS["not"], (x,))


@normal("and")
def and_(*operands: Term) -> Term:
    """Whether all hold."""
    return _junction("and", operands, neutral=TRUE, absorbing=FALSE, tighter=min)


@normal("or")
def or_(*operands: Term) -> Term:
    """Whether one holds."""
    return _junction("or", operands, neutral=FALSE, absorbing=TRUE, tighter=max)


def conjuncts(predicate: Term) -> tuple[Term, ...]:
    """The predicates that must all hold."""
    return predicate.operands if predicate.op.name == "and" else (predicate,)


@normal("where")
def where(condition: Term, yes: Term, no: Term) -> Term:
    """``yes`` where the condition holds, else ``no``; a mask where one of them is −∞."""
    condition, (yes, no) = unpack(condition), alike([yes, no])
    number = value_of(condition)
    if number is not None:
        return yes if number else no
    if _is_minus_infinity(no) and not is_closed(unpack(yes)):
        return mask(yes, condition)
    if _is_minus_infinity(yes) and not is_closed(unpack(no)):
        return mask(no, not_(condition))
    return make(OPS["where"], settle([condition, yes, no]))


@normal("mask")
def mask(scores: Term, visible: Term) -> Term:
    """The scores where ``visible`` holds, −∞ elsewhere."""
    if visible is TRUE:
        return scores
    return make(OPS["mask"], (scores, pack(visible) if is_closed(visible) else visible))


def _is_minus_infinity(term: Term) -> bool:
    return value_of(term) == float("-inf")


def _junction(
    op: str,
    operands: tuple[Term, ...],
    *,
    neutral: Term,
    absorbing: Term,
    tighter: Callable[[int, int], int],
) -> Term:
    terms = list(dict.fromkeys(_flat(op, operands)))
    check_kinds(op, terms, "bool")
    if absorbing in terms:
        return absorbing
    bounds, rest = _bounds([term for term in terms if term is not neutral], tighter)
    if any(not_(term) in rest for term in rest) or _clash(bounds, op):
        return absorbing
    rest += [le(const(0), affine(dict(direction), limit)) for direction, limit in bounds.items()]
    if not all(map(is_closed, rest)):
        closed = [term for term in rest if is_closed(term)]
        rest = [term for term in rest if not is_closed(term)]
        rest += (
            [
                pack(
                    _junction(
                        op, tuple(closed), neutral=neutral, absorbing=absorbing, tighter=tighter
                    )
                )
            ]
            if closed
            else []
        )
    rest.sort(key=lambda term: (term.op.name, term.digest))
    if len(rest) < 2:
        return rest[0] if rest else neutral
    return make(OPS[op], rest)


Direction = frozenset[tuple[Term, int]]


def _bounds(
    terms: list[Term], tighter: Callable[[int, int], int]
) -> tuple[dict[Direction, int], list[Term]]:
    """The bounds 0 ≤ direction + limit, one for each direction, and all other predicates."""
    bounds: dict[Direction, int] = {}
    rest: list[Term] = []
    for term in terms:
        if (
            term.op.name == "le"
            and term.type.dtype is DType.bool
            and term.operands[1].type.dtype.is_int
        ):
            coefficients, limit = affine_parts(term.operands[1])
            direction = frozenset(coefficients.items())
            bounds[direction] = tighter(bounds.get(direction, limit), limit)
        else:
            rest.append(term)
    return bounds, rest


def _clash(bounds: dict[Direction, int], op: str) -> bool:
    """Whether two opposite bounds leave nothing (and) or everything (or)."""
    for direction, limit in bounds.items():
        other = bounds.get(frozenset((term, -factor) for term, factor in direction))
        if other is not None and (limit + other < 0 if op == "and" else limit + other >= -1):
            return True
    return False


def _flat(op: str, operands: tuple[Term, ...]) -> list[Term]:
    flat: list[Term] = []
    for operand in map(unpack, operands):
        flat += _flat(op, operand.operands) if operand.op.name == op else [operand]
    return flat
