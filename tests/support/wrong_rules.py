"""Plausible rules that are wrong. The checker must catch every one of them.

They are those of the study that preceded AttnFuse, in the ops of its IR.
"""

from __future__ import annotations

import math

from attnfuse.egraph.pattern import Node, Pattern, closed, number, op, rest, variables
from attnfuse.egraph.rule import Declined, rule
from attnfuse.egraph.ruleset import RuleSet
from attnfuse.ir import build as ir
from attnfuse.ir.axes import DType
from attnfuse.ir.term import Term
from attnfuse.rewrites.bounds import always

q, k, v, x, p, cos, sin, positions = variables("q k v x p cos sin positions")
dtype, other, pairing = variables("dtype other pairing")
c, by, eps = number("c"), number("by"), number("eps")
known, gain, m, n = closed("known"), closed("gain"), closed("m"), closed("n")
more = rest("more")


@rule(op.tanh(op.mask(x, p)))
def softcap_under_mask(x: Term, p: Term) -> Term:
    """tanh(mask(x, p)) → mask(tanh(x), p): but a hidden key keeps the weight of −1"""
    return ir.mask(ir.unary["tanh"](x), p)


@rule(op.softmax(op.tanh(op.add(known, more))), when=lambda known: "k" not in known.type.names)
def alibi_shift_through_softcap(known: Term, more: tuple[Term, ...]) -> Term:
    """softmax(tanh(x + row)) → softmax(tanh(x)): but tanh is not linear"""
    return ir.softmax(ir.unary["tanh"](ir.add(*more)))


@rule(op.rotate(op.mul(gain, more), cos, sin, positions, pairing=pairing))
def gain_through_rope(
    gain: Term, more: tuple[Term, ...], cos: Term, sin: Term, positions: Term, pairing: str
) -> Term:
    """rotate(γ·x) → γ·rotate(x): but γ may differ within a pair"""
    return ir.mul(gain, ir.rotate(ir.mul(*more), cos, sin, positions, pairing))


@rule(op.mul(c, op.mask(x, p)), when=lambda c: math.isfinite(c))
def negative_scale_under_mask(c: float, x: Term, p: Term) -> Term:
    """c·mask(x, p) → mask(c·x, p): but c may be negative or 0"""
    return ir.mask(ir.mul(ir.const(c), x), p)


def _sides(bound: Term) -> tuple[int, int] | None:
    """The factor of k and the constant of a bound 0 ≤ ±(k − q) + constant."""
    if bound.op.name != "le" or not bound.operands[1].type.dtype.is_int:
        return None
    coefficients, constant = ir.affine_parts(bound.operands[1])
    factors = {atom["name"]: by for atom, by in coefficients.items() if atom.op.name == "index"}
    return (factors["k"], constant) if set(factors) == {"q", "k"} else None


@rule(op.mask(x, known))
def union_of_bands(x: Term, known: Term) -> Term | Declined:
    """mask(x, band ∨ band) → mask(x, hull): but there may be a gap between the bands"""
    bands = ir.unpack(known)
    if bands.op.name != "or" or len(bands.operands) != 2:
        return Declined("not two bands")
    found = [_sides(bound) for band in bands.operands for bound in ir.conjuncts(band)]
    sides = [side for side in found if side is not None]
    if len(sides) < 4 or len(sides) != len(found):
        return Declined("not two bands")
    distance = ir.sub(_index(bands, "k"), _index(bands, "q"))
    low = ir.const(-max(constant for sign, constant in sides if sign > 0))
    high = ir.const(max(constant for sign, constant in sides if sign < 0))
    return ir.mask(x, ir.and_(ir.le(low, distance), ir.le(distance, high)))


def _index(term: Term, name: str) -> Term:
    return ir.index(name, [term.type.axis(name)])


@rule(
    op.contract(
        op.rotate(q, cos, sin, m, pairing=pairing),
        op.rotate(k, cos, sin, n, pairing=pairing),
        over="d",
        dtype=dtype,
    )
)
def offsets_dropped(
    q: Term, k: Term, cos: Term, sin: Term, m: Term, n: Term, pairing: str, dtype: DType
) -> Term:
    """rotate(q, m + a)·rotate(k, n + b) → rotate(q, m)·rotate(k, n): but a may not be b"""
    rows = [ir.affine(ir.affine_parts(ir.unpack(each))[0], 0) for each in (m, n)]
    sides = [ir.rotate(x, cos, sin, at, pairing) for x, at in zip((q, k), rows, strict=True)]
    return ir.contract(*sides, over="d", dtype=dtype)


@rule(op.tanh(op.mul(c, x)))
def scale_out_of_softcap(c: float, x: Term) -> Term:
    """tanh(c·x) → c·tanh(x): but tanh is not linear"""
    return ir.mul(ir.const(c), ir.unary["tanh"](x))


def _norm(x: Pattern) -> Node:
    """x / √(by·Σ x² + eps)."""
    square = op.contract(x, x, over="d", dtype=dtype)
    return op.div(x, op.sqrt(op.add(op.mul(by, square), eps)))


def _normed(x: Term, by: float, eps: float, dtype: DType) -> Term:
    square = ir.mul(ir.const(by), ir.contract(x, x, over="d", dtype=dtype))
    return ir.div(x, ir.unary["sqrt"](ir.add(square, ir.const(eps))))


@rule(_norm(op.mul(gain, more)))
def gain_out_of_norm(
    gain: Term, more: tuple[Term, ...], by: float, eps: float, dtype: DType
) -> Term:
    """norm(γ·x) → γ·norm(x): but the norm sees γ, too"""
    return ir.mul(gain, _normed(ir.mul(*more), by, eps, dtype))


@rule(op.contract(op.softmax(op.contract(q, k, over="d")), v, over="k", dtype=dtype))
def linear_through_softmax(q: Term, k: Term, v: Term, dtype: DType) -> Term:
    """softmax(q·kᵀ)·v → q·(kᵀ·v): but softmax is not linear"""
    state = ir.contract(k, v, over="k", dtype=dtype)
    return ir.contract(q, state, over="d", dtype=dtype)


@rule(op.contract(op.where(known, x, 0.0), v, over="k", dtype=dtype))
def window_as_causal(known: Term, x: Term, v: Term, dtype: DType) -> Term | Declined:
    """where(band, x, 0)·v → where(causal, x, 0)·v: but a band also ends below"""
    bounds = [(bound, _sides(bound)) for bound in ir.conjuncts(ir.unpack(known))]
    kept = [bound for bound, side in bounds if side is None or side[0] < 0]
    if len(kept) == len(bounds):
        return Declined("it has no lower bound")
    causal = ir.where(ir.and_(*kept), x, ir.const(0.0))
    return ir.contract(causal, v, over="k", dtype=dtype)


@rule(_norm(op.mul(c, more)))
def norm_absorbs_scale(
    c: float, more: tuple[Term, ...], by: float, eps: float, dtype: DType
) -> Term:
    """norm(c·x) → norm(x): but eps is not scaled with it"""
    return _normed(ir.mul(*more), by, eps, dtype)


@rule(op.mask(x, known), when=lambda known: any(map(always, ir.conjuncts(ir.unpack(known)))))
def mask_half_checked(x: Term, known: Term) -> Term:
    """mask(x, p ∧ true) → x: but p may not hold"""
    return x


@rule(op.softmax(x))
def axis_lost(x: Term) -> Term:
    """softmax(x) → lse(x): but that has no keys"""
    return ir.logsumexp(x)


RULES = RuleSet(
    (
        softcap_under_mask,
        alibi_shift_through_softcap,
        gain_through_rope,
        negative_scale_under_mask,
        union_of_bands,
        offsets_dropped,
        scale_out_of_softcap,
        gain_out_of_norm,
        linear_through_softmax,
        window_as_causal,
        norm_absorbs_scale,
        mask_half_checked,
        axis_lost,
    )
)
"""All thirteen."""
