"""Shifts: what is added to a whole row of scores changes no weight.

ALiBi's bias m·(k − q) (Press et al., 2022) is m·k − m·q, and m·q is the same for all keys of a
query. So the softmax doesn't need it, and its statistics are told of it: log-sum-exp and row
maximum get it back. Nothing but addition and masks may stand between. A shift doesn't pass a
softcap, which isn't linear; and it stays in sight of a sink, which is weighed against the
log-sum-exp.

The shift has to be finite: −∞ for a whole row leaves a row that sees nothing. So it is made of
finite numbers, of positions and lengths, also times slopes, and of entries of tensors that are
promised to be `finite`.

``finite``
    No entry of this tensor is infinite.
"""

from __future__ import annotations

import math

from attnfuse.egraph.pattern import closed, op, rest, variables
from attnfuse.egraph.rule import Declined, Facts, rule
from attnfuse.egraph.ruleset import RuleSet
from attnfuse.ir import build as ir
from attnfuse.ir.term import Term

(p,) = variables("p")
known, more = closed("known"), rest("more")
SHIFTED = op.add(known, more)


@rule(op.mask(SHIFTED, p))
def shift_out_of_mask(
    known: Term, more: tuple[Term, ...], p: Term, facts: Facts
) -> Term | Declined:
    """mask(x + r, p) → mask(x, p) + r"""
    parts = _without_shift(known, more, facts)
    if isinstance(parts, Declined):
        return parts
    x, shift = parts
    return _alike(ir.add(ir.mask(x, p), shift), ir.mask(ir.add(known, *more), p))


@rule(op.softmax(SHIFTED))
def shift_out_of_softmax(known: Term, more: tuple[Term, ...], facts: Facts) -> Term | Declined:
    """softmax(x + r) → softmax(x)

    exp(x + r) / Σ exp(x + r) = exp(r)·exp(x) / (exp(r)·Σ exp(x)) for a finite r without keys.
    """
    parts = _without_shift(known, more, facts)
    if isinstance(parts, Declined):
        return parts
    return _alike(ir.softmax(parts[0]), ir.softmax(ir.add(known, *more)))


@rule(op.logsumexp(SHIFTED))
def shift_out_of_logsumexp(known: Term, more: tuple[Term, ...], facts: Facts) -> Term | Declined:
    """lse(x + r) → lse(x) + r"""
    parts = _without_shift(known, more, facts)
    if isinstance(parts, Declined):
        return parts
    x, shift = parts
    return _alike(ir.add(ir.logsumexp(x), shift), ir.logsumexp(ir.add(known, *more)))


@rule(op.row_max(SHIFTED))
def shift_out_of_row_max(known: Term, more: tuple[Term, ...], facts: Facts) -> Term | Declined:
    """max(x + r) → max(x) + r"""
    parts = _without_shift(known, more, facts)
    if isinstance(parts, Declined):
        return parts
    x, shift = parts
    return _alike(ir.add(ir.row_max(x), shift), ir.row_max(ir.add(known, *more)))


@rule(op.entropy(SHIFTED))
def shift_out_of_entropy(known: Term, more: tuple[Term, ...], facts: Facts) -> Term | Declined:
    """entropy(x + r) → entropy(x)

    It is a function of softmax(x) alone.
    """
    parts = _without_shift(known, more, facts)
    if isinstance(parts, Declined):
        return parts
    return _alike(ir.entropy(parts[0]), ir.entropy(ir.add(known, *more)))


def _alike(found: Term, whole: Term) -> Term | Declined:
    """What was found, if it has the axes of the whole."""
    if found.type.axes != whole.type.axes:
        return Declined("only the shift gives the scores one of their axes")
    return ir.cast(found, whole.type.dtype)


def _without_shift(
    known: Term, more: tuple[Term, ...], facts: Facts
) -> tuple[Term, Term] | Declined:
    """The scores without the part of a bias that is the same for all keys, and that part."""
    kept: list[Term] = []
    shift: list[Term] = []
    bias = ir.unpack(known)
    for part in bias.operands if bias.op.name == "add" else (bias,):
        with_keys, without = _split(part)
        finite = _is_finite(without, facts)
        kept += [with_keys] if finite else [part]
        shift += [without] if finite else []
    found = ir.add(*shift) if shift else ir.const(0.0)
    if ir.value_of(found) == 0:
        return Declined("no part of the bias is finite and the same for all keys")
    rest = ir.add(*kept) if kept else ir.const(0.0)
    return ir.add(*more, ir.pack(rest)), ir.pack(found)


def _split(part: Term) -> tuple[Term, Term]:
    """A part of a bias as a sum: what depends on the key, and what doesn't."""
    if "k" not in part.type.names:
        return ir.const(0.0), part
    factors = part.operands if part.op.name == "mul" else (part,)
    keyed = [factor for factor in factors if "k" in factor.type.names]
    if len(keyed) != 1 or not _is_cast_integer(keyed[0]):
        return part, ir.const(0.0)
    others = [factor for factor in factors if factor is not keyed[0]]
    coefficients, _ = ir.affine_parts(keyed[0].operands[0])
    with_keys = {each: by for each, by in coefficients.items() if "k" in each.type.names}
    same = ir.sub(keyed[0].operands[0], ir.affine(with_keys, 0))
    if ir.value_of(same) == 0:
        return part, ir.const(0.0)
    sides = (ir.cast(each, keyed[0].type.dtype) for each in (ir.affine(with_keys, 0), same))
    one, other = (ir.mul(*others, side) for side in sides)
    return one, other


def _is_finite(part: Term, facts: Facts) -> bool:
    """Whether no value of a closed term is infinite.

    What positions are multiplied by is finite: −∞ times the position 0 would be no number. What
    constants are multiplied by need not be.
    """
    if part.op.name == "mul":
        sloped = any(map(_is_cast_integer, part.operands))
        slopes = [each for each in part.operands if sloped and each.op.name == "gather"]
        return all(each in slopes or _is_finite(each, facts) for each in part.operands)
    if part.op.name == "gather":
        return part.type.dtype.is_int or "finite" in facts(part.operands[0]).promises
    value = ir.value_of(part)
    return math.isfinite(value) if value is not None else _is_cast_integer(part)


def _is_cast_integer(part: Term) -> bool:
    return part.op.name == "cast" and part.operands[0].type.dtype.is_int


RULES = RuleSet(
    (
        shift_out_of_mask,
        shift_out_of_softmax,
        shift_out_of_logsumexp,
        shift_out_of_row_max,
        shift_out_of_entropy,
    )
)
"""The family, in order."""
