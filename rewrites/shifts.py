"""Shifts: what is added to a whole row of scores changes no weight.

ALiBi's bias m·(k − q) (Press et al., 2022) is m·k − m·q, and m·q is the same for all keys of a
query. So the softmax doesn't need it, and its statistics are told of it: log-sum-exp and row
maximum get it back. Nothing but addition and masks may stand between. A shift doesn't pass a
softcap, which isn't linear; and it stays in sight of a sink, which is weighed against the
log-sum-exp.

A shift leaves a mask only together with the softmax above it: by itself it would only come back,
in another form each time.

The shift has to be finite: −∞ for a whole row leaves a row that sees nothing. So it is made of
finite numbers, of positions and lengths, also times slopes, and of entries of tensors that are
promised to be `finite`.

``finite``
    No entry of this tensor is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from attnfuse.egraph.pattern import closed, op, rest, variables
from attnfuse.egraph.rule import Declined, Facts, rule
from attnfuse.egraph.ruleset import RuleSet
from attnfuse.ir import build as ir
from attnfuse.ir.term import Term

(p,) = variables("p")
known, more = closed("known"), rest("more")
SHIFTED = op.add(known, more)
MASKED = op.mask(SHIFTED, p)

Terms = tuple[Term, ...]


@rule(op.softmax(SHIFTED))
def shift_out_of_softmax(known: Term, more: Terms, facts: Facts) -> Term | Declined:
    """softmax(x + r) → softmax(x)

    exp(x + r) / Σ exp(x + r) = exp(r)·exp(x) / (exp(r)·Σ exp(x)) for a finite r without keys.
    """
    return _moved(ir.softmax, known, more, facts)


@rule(op.softmax(MASKED))
def shift_out_of_masked_softmax(known: Term, more: Terms, p: Term, facts: Facts) -> Term | Declined:
    """softmax(mask(x + r, p)) → softmax(mask(x, p))"""
    return _moved(ir.softmax, known, more, facts, p)


@rule(op.logsumexp(SHIFTED))
def shift_out_of_logsumexp(known: Term, more: Terms, facts: Facts) -> Term | Declined:
    """lse(x + r) → lse(x) + r"""
    return _moved(ir.logsumexp, known, more, facts, back=True)


@rule(op.logsumexp(MASKED))
def shift_out_of_masked_logsumexp(
    known: Term, more: Terms, p: Term, facts: Facts
) -> Term | Declined:
    """lse(mask(x + r, p)) → lse(mask(x, p)) + r"""
    return _moved(ir.logsumexp, known, more, facts, p, back=True)


@rule(op.row_max(SHIFTED))
def shift_out_of_row_max(known: Term, more: Terms, facts: Facts) -> Term | Declined:
    """max(x + r) → max(x) + r"""
    return _moved(ir.row_max, known, more, facts, back=True)


@rule(op.row_max(MASKED))
def shift_out_of_masked_row_max(known: Term, more: Terms, p: Term, facts: Facts) -> Term | Declined:
    """max(mask(x + r, p)) → max(mask(x, p)) + r"""
    return _moved(ir.row_max, known, more, facts, p, back=True)


@rule(op.entropy(SHIFTED))
def shift_out_of_entropy(known: Term, more: Terms, facts: Facts) -> Term | Declined:
    """entropy(x + r) → entropy(x)

    It is a function of softmax(x) alone.
    """
    return _moved(ir.entropy, known, more, facts)


@rule(op.entropy(MASKED))
def shift_out_of_masked_entropy(known: Term, more: Terms, p: Term, facts: Facts) -> Term | Declined:
    """entropy(mask(x + r, p)) → entropy(mask(x, p))"""
    return _moved(ir.entropy, known, more, facts, p)


def _moved(
    function: Callable[[Term], Term],
    known: Term,
    more: Terms,
    facts: Facts,
    visible: Term = ir.TRUE,
    *,
    back: bool = False,
) -> Term | Declined:
    """A function of the scores without their shift, which is given back to what feels it."""
    parts = _without_shift(known, more, facts)
    if parts is None:
        return Declined("no part of the bias is finite and the same for all keys")
    x, shift = parts
    found = function(ir.mask(x, visible))
    found = ir.add(found, shift) if back else found
    whole = function(ir.mask(ir.add(known, *more), visible)).type
    if found.type.axes != whole.axes:
        return Declined("only the shift gives the scores one of their axes")
    return ir.cast(found, whole.dtype)


def _without_shift(known: Term, more: Terms, facts: Facts) -> tuple[Term, Term] | None:
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
        return None
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
        shift_out_of_softmax,
        shift_out_of_masked_softmax,
        shift_out_of_logsumexp,
        shift_out_of_masked_logsumexp,
        shift_out_of_row_max,
        shift_out_of_masked_row_max,
        shift_out_of_entropy,
        shift_out_of_masked_entropy,
    )
)
"""The family, in order."""
