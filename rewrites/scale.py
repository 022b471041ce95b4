"""Scale folding: constant factors move through what is linear, and through masks.

Factors of a product are folded into one constant by the normal form, so these
rules only have to bring them together. They leave contractions but never
enter them: if they did, a factor 2 could leave on one side and a factor ½
on the other for ever, and saturation would not end.

A softcap c·tanh(s / c) has a factor before it and one behind. Scales of the scores meet the one
before, scales of the capped scores the one behind, and none goes past the tanh.
"""

from __future__ import annotations

import math

from attnfuse.egraph.pattern import number, op, rest, variables
from attnfuse.egraph.rule import Declined, rule
from attnfuse.egraph.ruleset import RuleSet
from attnfuse.ir import build as ir
from attnfuse.ir.axes import DType
from attnfuse.ir.term import Term

a, b, x, p, cos, sin, positions = variables("a b x p cos sin positions")
c, more = number("c"), rest("more")
over, dtype, pairing, inverse = variables("over dtype pairing inverse")

_TINY = {DType.float16: 2.0**-14, DType.bfloat16: 2.0**-126, DType.float32: 2.0**-126}
"""The least positive normal numbers; what is less may be 0 on a GPU."""


def is_finite(c: float) -> bool:
    """The factor is finite: ∞ times a sum is not the sum of ∞ times its parts."""
    return math.isfinite(c)


def is_positive(c: float, x: Term) -> bool:
    """The factor is positive in the type of the scores: 0·(−∞) is NaN, and −1·(−∞) is ∞."""
    return c >= _TINY.get(x.type.dtype, 0.0) and c > 0


@rule(op.contract(op.mul(c, more), b, over=over, dtype=dtype), when=is_finite)
def scale_out_of_left(c: float, more: tuple[Term, ...], b: Term, over: str, dtype: DType) -> Term:
    """Σ (c·a)·b → c·Σ a·b"""
    return ir.mul(ir.const(c), ir.contract(ir.mul(*more), b, over=over, dtype=dtype))


@rule(op.contract(a, op.mul(c, more), over=over, dtype=dtype), when=is_finite)
def scale_out_of_right(a: Term, c: float, more: tuple[Term, ...], over: str, dtype: DType) -> Term:
    """Σ a·(c·b) → c·Σ a·b"""
    return ir.mul(ir.const(c), ir.contract(a, ir.mul(*more), over=over, dtype=dtype))


@rule(op.mul(c, op.mask(x, p)), when=is_positive, exact="bits")
def scale_under_mask(c: float, x: Term, p: Term) -> Term | Declined:
    """c·mask(x, p) → mask(c·x, p)"""
    if ir.unpack(x).op.name == "mul":
        return Declined("factors of a packed product would be multiplied in another order")
    return ir.mask(ir.mul(ir.const(c), x), p)


@rule(op.mask(op.mul(c, x), p), when=is_positive, exact="bits")
def scale_over_mask(c: float, x: Term, p: Term) -> Term:
    """mask(c·x, p) → c·mask(x, p)"""
    return ir.mul(ir.const(c), ir.mask(x, p))


@rule(op.mul(c, op.add(more)), when=is_finite)
def scale_over_sum(c: float, more: tuple[Term, ...]) -> Term:
    """c·(x + y) → c·x + c·y"""
    return ir.add(*(ir.mul(ir.const(c), term) for term in more))


@rule(
    op.rotate(op.mul(c, more), cos, sin, positions, pairing=pairing, inverse=inverse),
    when=is_finite,
)
def scale_out_of_rotation(
    c: float,
    more: tuple[Term, ...],
    cos: Term,
    sin: Term,
    positions: Term,
    pairing: str,
    inverse: bool,
) -> Term:
    """rotate(c·x) → c·rotate(x)"""
    turned = ir.rotate(ir.mul(*more), cos, sin, positions, pairing, inverse)
    return ir.mul(ir.const(c), turned)


@rule(
    op.mul(c, op.rotate(x, cos, sin, positions, pairing=pairing, inverse=inverse)),
    when=is_finite,
)
def scale_into_rotation(
    c: float, x: Term, cos: Term, sin: Term, positions: Term, pairing: str, inverse: bool
) -> Term:
    """c·rotate(x) → rotate(c·x)"""
    return ir.rotate(ir.mul(ir.const(c), x), cos, sin, positions, pairing, inverse)


@rule(op.where(p, op.mul(c, more), 0.0), when=is_finite)
def scale_out_of_zero_mask(p: Term, c: float, more: tuple[Term, ...]) -> Term:
    """where(p, c·x, 0) → c·where(p, x, 0)"""
    return ir.mul(ir.const(c), ir.where(p, ir.mul(*more), ir.const(0.0)))


@rule(op.exp(x))
def exp_by_powers_of_two(x: Term) -> Term:
    """exp(x) → exp2(log₂(e)·x)

    The exponential that GPUs have. The factor meets others of x.
    """
    return ir.unary["exp2"](ir.mul(ir.const(math.log2(math.e)), x))


RULES = RuleSet(
    (
        scale_out_of_left,
        scale_out_of_right,
        scale_under_mask,
        scale_over_mask,
        scale_over_sum,
        scale_out_of_rotation,
        scale_into_rotation,
        scale_out_of_zero_mask,
        exp_by_powers_of_two,
    )
)
"""The family, in order."""
