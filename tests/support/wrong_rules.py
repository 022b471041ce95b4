"""Plausible rules that are wrong. The checker must catch every one of them.

Most of them are those of the study that preceded AttnFuse, in the ops of its IR.
"""

from __future__ import annotations

import math

from attnfuse.egraph.pattern import Node, Pattern, closed, number, op, rest, variables
from attnfuse.egraph.rule import Declined, Facts, rule
from attnfuse.egraph.ruleset import RuleSet
from attnfuse.ir import build as ir
from attnfuse.ir.axes import DType
from attnfuse.ir.term import Term
from attnfuse.rewrites.bounds import always
from attnfuse.rewrites.rope import are_angles, are_unit, pairwise_problem

q, k, v, x, p, cos, sin, positions = variables("q k v x p cos sin positions")
z, y, w, weight, kind, inverse = variables("z y w weight kind inverse")
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


@rule(
    op.rotate(
        op.rotate(x, cos, sin, m, pairing=pairing, inverse=inverse),
        cos,
        sin,
        n,
        pairing=pairing,
        inverse=inverse,
    ),
    when=are_angles,
)
def rotations_add_offsets(
    x: Term, cos: Term, sin: Term, m: Term, n: Term, pairing: str, inverse: bool
) -> Term:
    """rotate(rotate(x, i + a), i + b) → rotate(x, i + a + b): but the angles of i double"""
    one, other = (ir.affine_parts(ir.unpack(each)) for each in (m, n))
    return ir.rotate(x, cos, sin, ir.affine(one[0], one[1] + other[1]), pairing, inverse)


@rule(
    op.rotate(
        op.normalise(x, weight, kind=kind, eps=eps),
        cos,
        sin,
        positions,
        pairing=pairing,
        inverse=inverse,
    ),
    when=are_unit,
)
def weighted_norm_past_rotation(
    x: Term,
    weight: Term,
    kind: str,
    eps: float,
    cos: Term,
    sin: Term,
    positions: Term,
    pairing: str,
    inverse: bool,
) -> Term:
    """rotate(norm(x)·w) → norm(rotate(x))·w: but w may differ within a pair"""
    return ir.normalise(ir.rotate(x, cos, sin, positions, pairing, inverse), weight, kind, eps)


@rule(
    op.rotate(
        op.normalise(x, 1.0, kind=kind, eps=eps),
        cos,
        sin,
        positions,
        pairing=pairing,
        inverse=inverse,
    )
)
def norm_past_scaled_rotation(
    x: Term,
    kind: str,
    eps: float,
    cos: Term,
    sin: Term,
    positions: Term,
    pairing: str,
    inverse: bool,
) -> Term:
    """rotate(norm(x)) → norm(rotate(x)): but the tables may be scaled, and change lengths"""
    one = ir.const(1.0)
    return ir.normalise(ir.rotate(x, cos, sin, positions, pairing, inverse), one, kind, eps)


@rule(op.rotate(op.mul(gain, more), cos, sin, positions, pairing="half", inverse=inverse))
def gain_past_partial_rotation(
    gain: Term,
    more: tuple[Term, ...],
    cos: Term,
    sin: Term,
    positions: Term,
    inverse: bool,
    facts: Facts,
) -> Term | Declined:
    """rotate(γ·x) → γ·rotate(x): but a partial rotation pairs other features than whole heads do"""
    problem = pairwise_problem(ir.unpack(gain), "half", facts)
    if problem is not None:
        return problem
    return ir.mul(gain, ir.rotate(ir.mul(*more), cos, sin, positions, "half", inverse))


@rule(op.normalise(op.mul(c, more), weight, kind=kind, eps=eps))
def scale_vanishes_in_norm(
    c: float, more: tuple[Term, ...], weight: Term, kind: str, eps: float
) -> Term:
    """norm(c·x; ε) → norm(x; ε): but ε is not scaled, and c may be negative"""
    return ir.normalise(ir.mul(*more), weight, kind, eps)


@rule(op.softmax(op.add(known, more)), when=lambda known: "k" not in known.type.names)
def hidden_row_shifted(known: Term, more: tuple[Term, ...]) -> Term:
    """softmax(x + r) → softmax(x): but where r is −∞ a row sees nothing"""
    return ir.softmax(ir.add(*more))


@rule(op.logsumexp(op.add(known, more)), when=lambda known: "k" not in known.type.names)
def shift_past_sink(known: Term, more: tuple[Term, ...]) -> Term:
    """lse(x + r) → lse(x): but a sink is weighed against the one with the shift"""
    return ir.logsumexp(ir.add(*more))


@rule(op.add(known, more))
def large_number_as_mask(known: Term, more: tuple[Term, ...]) -> Term | Declined:
    """where(p, y, −10⁴) + x → mask(x + y, p): but a row that sees nothing then sees all"""
    bias = ir.unpack(known)
    parts = bias.operands if bias.op.name == "add" else (bias,)
    for part in (each for each in parts if each.op.name == "where"):
        visible, shown, hidden = part.operands
        if ir.value_of(hidden) == -1e4:
            return ir.mask(ir.add(*more, shown, *(each for each in parts if each != part)), visible)
    return Declined("no bias is −10⁴ in places")


@rule(op.mask(x, known))
def unsorted_documents_as_bound(x: Term, known: Term) -> Term | Declined:
    """mask(x, id[i] = id[j] ∧ r) → mask(x, id[i] ≤ id[j] ∧ r): but ids may rise and fall"""
    parts = ir.conjuncts(ir.unpack(known))
    equations = [part for part in parts if part.op.name == "eq"]
    if not equations or len(parts) == 1:
        return Declined("no documents in a band")
    bounds = [ir.le(ir.const(0), part.operands[1]) for part in equations]
    return ir.mask(x, ir.and_(*bounds, *(part for part in parts if part not in equations)))


@rule(
    op.contract(
        q,
        op.rotate(op.mul(gain, more), cos, sin, positions, pairing=pairing, inverse=inverse),
        over="d",
        dtype=dtype,
    ),
    when=lambda q, gain: set(gain.type.names) <= set(q.type.names),
)
def gain_past_rotation_to_query(
    q: Term,
    gain: Term,
    more: tuple[Term, ...],
    cos: Term,
    sin: Term,
    positions: Term,
    pairing: str,
    inverse: bool,
    dtype: DType,
) -> Term:
    """q·rotate(γ·k) → (γ·q)·rotate(k): but the rotation mixes features"""
    turned = ir.rotate(ir.mul(*more), cos, sin, positions, pairing, inverse)
    return ir.contract(ir.mul(gain, q), turned, over="d", dtype=dtype)


@rule(op.contract(op.where(p, op.contract(q, k, over="d"), 0.0), v, over="k", dtype=dtype))
def linear_through_zero_mask(p: Term, q: Term, k: Term, v: Term, dtype: DType) -> Term:
    """where(p, q·kᵀ, 0)·v → q·(kᵀ·v): but the mask differs from query to query"""
    state = ir.contract(k, v, over="k", dtype=DType.float32)
    return ir.contract(q, state, over="d", dtype=dtype)


@rule(
    op.add(
        op.mul(c, op.contract(q, k, over="d", dtype=dtype)),
        op.contract(z, w, over="d", dtype=dtype),
    ),
    when=lambda c: math.isfinite(c),
)
def low_rank_bias_scaled(c: float, q: Term, k: Term, z: Term, w: Term, dtype: DType) -> Term:
    """c·(q·kᵀ) + u·wᵀ → c·([q u]·[k w]ᵀ): but the bias is not scaled"""
    sides = (ir.concat(q, z, over="d"), ir.concat(k, w, over="d"))
    return ir.mul(ir.const(c), ir.contract(*sides, over="d", dtype=dtype))


@rule(op.contract(x, op.add(v, y), over="k", dtype=dtype))
def hidden_scores_times_a_sum(x: Term, v: Term, y: Term, dtype: DType) -> Term | Declined:
    """x·(v + w) → x·v + x·w: but x may be −∞, and −∞ + ∞ is no number"""
    if not all("k" in each.type.names for each in (v, y)):
        return Declined("a part lacks keys")
    return ir.add(*(ir.contract(x, each, over="k", dtype=dtype) for each in (v, y)))


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
        rotations_add_offsets,
        weighted_norm_past_rotation,
        norm_past_scaled_rotation,
        gain_past_partial_rotation,
        scale_vanishes_in_norm,
        hidden_row_shifted,
        shift_past_sink,
        large_number_as_mask,
        unsorted_documents_as_bound,
        gain_past_rotation_to_query,
        linear_through_zero_mask,
        low_rank_bias_scaled,
        hidden_scores_times_a_sum,
    )
)
"""All twenty-six."""
