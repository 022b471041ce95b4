"""Contractions: they are linear, and associate.

So sums and factors move out of Q·Kᵀ and P·V, gains move from keys to queries, linear attention is
a product of three matrices, and a low-rank bias is a few more features. None of this goes past a
softmax, a softcap or a mask.

What others are multiplied by is finite, and so are queries, keys and values: AttnFuse asks that
of its inputs.
"""

from __future__ import annotations

import math

from attnfuse.egraph.pattern import closed, number, op, rest, variables
from attnfuse.egraph.rule import Declined, rule
from attnfuse.egraph.ruleset import RuleSet
from attnfuse.ir import build as ir
from attnfuse.ir.axes import DType
from attnfuse.ir.term import Term

a, b, factor, q, k, v, u, w = variables("a b factor q k v u w")
over, dtype, middle = variables("over dtype middle")
c, e, gain, more = number("c"), number("e"), closed("gain"), rest("more")


@rule(op.contract(op.add(more), b, over=over, dtype=dtype))
def sum_out_of_left(more: tuple[Term, ...], b: Term, over: str, dtype: DType) -> Term | Declined:
    """(p + r)·b → p·b + r·b

    So differential attention (p − λ·r)·v is two attentions.
    """
    if not _all_have(over, more):
        return LACKING
    return ir.add(*(ir.contract(each, b, over=over, dtype=dtype) for each in more))


@rule(op.contract(q, op.add(more), over="d", dtype=dtype))
def sum_out_of_right(q: Term, more: tuple[Term, ...], dtype: DType) -> Term | Declined:
    """Σ_d q·(k + r) → Σ_d q·k + Σ_d q·r

    For queries, which are finite. A score may be −∞, and −∞·(v + w) need not be −∞·v − ∞·w.
    """
    if not _all_have("d", more):
        return LACKING
    return ir.add(*(ir.contract(q, each, over="d", dtype=dtype) for each in more))


LACKING = Declined("a part lacks the axis that is summed over")


def _all_have(axis: str, terms: tuple[Term, ...]) -> bool:
    return all(axis in term.type.names for term in terms)


@rule(op.contract(op.mul(factor, more), b, over=over, dtype=dtype))
def factor_out_of_left(
    factor: Term, more: tuple[Term, ...], b: Term, over: str, dtype: DType
) -> Term | Declined:
    """Σₖ (f·p)·v → f·Σₖ p·v

    For a factor without the axis that is summed over: of heads or rows, as a sink's
    sigmoid(lse − z), which so moves out of the loop over keys.
    """
    a = ir.mul(*more)
    return _outside(factor, a, over) or ir.cast(
        ir.mul(factor, ir.contract(a, b, over=over, dtype=dtype)), dtype
    )


@rule(op.contract(a, op.mul(factor, more), over=over, dtype=dtype))
def factor_out_of_right(
    a: Term, factor: Term, more: tuple[Term, ...], over: str, dtype: DType
) -> Term | Declined:
    """Σ_d q·(f·k) → f·Σ_d q·k

    For a factor without the axis that is summed over: the scale of each quantised key, say, of
    scores before any softcap, or the scale of each feature of values.
    """
    b = ir.mul(*more)
    return _outside(factor, b, over) or ir.cast(
        ir.mul(factor, ir.contract(a, b, over=over, dtype=dtype)), dtype
    )


def _outside(factor: Term, rest: Term, over: str) -> Declined | None:
    """Why a factor has to stay in a contraction."""
    if ir.value_of(factor) is not None:
        return Declined("constants have rules of their own")
    if over in factor.type.names:
        return Declined("the factor depends on what is summed over")
    return None if over in rest.type.names else LACKING


@rule(op.contract(a, op.mul(gain, more), over=over, dtype=dtype))
def gain_to_left(
    a: Term, gain: Term, more: tuple[Term, ...], over: str, dtype: DType
) -> Term | Declined:
    """Σ_d q·(γ·k) → Σ_d (γ·q)·k

    For scales of the features that are summed over, when γ has no axes that the left side lacks:
    a query is scaled once, a key for each tile of queries. The scaled side keeps its element type,
    so a wider γ must not scale float16, whose range it may leave.
    """
    x = ir.mul(*more)
    if over not in gain.type.names or over not in x.type.names:
        return Declined("the factor, or the rest, doesn't vary with what is summed over")
    if not set(gain.type.names) <= set(a.type.names):
        return Declined("the factor varies along axes that the left side lacks")
    scaled = ir.mul(gain, a)
    if a.type.dtype is DType.float16 is not scaled.type.dtype:
        return Declined("the scaled side may leave the range of float16")
    return ir.contract(ir.cast(scaled, a.type.dtype), x, over=over, dtype=dtype)


@rule(op.contract(op.contract(q, k, over="d", dtype=middle), v, over="k", dtype=dtype))
def product_from_the_right(
    q: Term, k: Term, v: Term, middle: DType, dtype: DType
) -> Term | Declined:
    """(q·kᵀ)·v → q·(kᵀ·v)

    Linear attention (Katharopoulos et al., 2020), without softmax, softcap or mask between.
    """
    if not _separate(q, k, v):
        return MIXED
    state = ir.contract(k, v, over="k", dtype=middle)
    return ir.contract(q, state, over="d", dtype=dtype)


@rule(op.contract(q, op.contract(k, v, over="k", dtype=middle), over="d", dtype=dtype))
def product_from_the_left(
    q: Term, k: Term, v: Term, middle: DType, dtype: DType
) -> Term | Declined:
    """q·(kᵀ·v) → (q·kᵀ)·v"""
    if not _separate(q, k, v):
        return MIXED
    scores = ir.contract(q, k, over="d", dtype=middle)
    return ir.contract(scores, v, over="k", dtype=dtype)


MIXED = Declined("queries vary along keys, or values along the features of keys")


def _separate(q: Term, k: Term, v: Term) -> bool:
    """Whether each axis that is summed over is one of two factors only."""
    both = {"d", "k"} <= set(k.type.names)
    return both and "k" not in q.type.names and "d" not in v.type.names


@rule(
    op.add(op.contract(q, k, over="d", dtype=dtype), op.contract(u, w, over="d", dtype=dtype), more)
)
def products_join(
    q: Term, k: Term, u: Term, w: Term, dtype: DType, more: tuple[Term, ...]
) -> Term | Declined:
    """q·kᵀ + u·wᵀ → [q u]·[k w]ᵀ

    A low-rank bias, or scores in two parts, by one contraction. The one of more features comes
    first: the other order is the same.
    """
    if _width(q) < _width(u):
        return Declined("the other one has more features")
    joined = _joined((q, u), (k, w), dtype)
    return joined if isinstance(joined, Declined) else ir.add(joined, *more)


@rule(
    op.add(
        op.mul(c, op.contract(q, k, over="d", dtype=dtype)),
        op.contract(u, w, over="d", dtype=dtype),
        more,
    )
)
def scaled_product_joins(
    c: float, q: Term, k: Term, u: Term, w: Term, dtype: DType, more: tuple[Term, ...]
) -> Term | Declined:
    """c·(q·kᵀ) + u·wᵀ → [c·q u]·[k w]ᵀ

    For a finite c; and what is scaled must stay in the range of its type: in float16,
    2⁻¹⁴ ≤ |c| ≤ 1. (Dividing u by c instead would multiply it by √d or so.)
    """
    if not math.isfinite(c):
        return Declined("the factor is infinite")
    if q.type.dtype is DType.float16 and not LEAST_HALF <= abs(c) <= 1:
        return Declined("scaled queries may leave the range of float16")
    joined = _joined((ir.mul(ir.const(c), q), u), (k, w), dtype)
    return joined if isinstance(joined, Declined) else ir.add(joined, *more)


@rule(
    op.add(
        op.mul(c, op.contract(q, k, over="d", dtype=dtype)),
        op.mul(e, op.contract(u, w, over="d", dtype=dtype)),
        more,
    )
)
def scaled_products_join(
    c: float, q: Term, k: Term, e: float, u: Term, w: Term, dtype: DType, more: tuple[Term, ...]
) -> Term | Declined:
    """c·(q·kᵀ) + e·(u·wᵀ) → c·([q (e/c)·u]·[k w]ᵀ)

    For finite c ≠ 0 and e with |e| ≤ |c|, so that (e/c)·u stays in the range of its type: in
    float16, 2⁻¹⁴ ≤ |e/c|. The one of more features comes first where |e| = |c|.
    """
    if not (math.isfinite(c) and math.isfinite(e) and c):
        return Declined("a factor is infinite, or both are 0")
    ratio = e / c
    if abs(ratio) > 1 or (abs(ratio) == 1 and _width(q) < _width(u)):
        return Declined("the other one has the larger factor, or more features")
    if u.type.dtype is DType.float16 and abs(ratio) < LEAST_HALF:
        return Declined("scaled queries may leave the range of float16")
    joined = _joined((q, ir.mul(ir.const(ratio), u)), (k, w), dtype)
    return joined if isinstance(joined, Declined) else ir.add(ir.mul(ir.const(c), joined), *more)


LEAST_HALF = 2.0**-14
"""The least positive normal number of float16."""


def _joined(left: tuple[Term, Term], right: tuple[Term, Term], dtype: DType) -> Term | Declined:
    if any(one.type.dtype is not other.type.dtype for one, other in (left, right)):
        return Declined("the two products are of different element types")
    sides = (ir.concat(*each, over="d") for each in (left, right))
    return ir.contract(*sides, over="d", dtype=dtype)


def _width(x: Term) -> int:
    size = x.type.axis("d").size
    assert isinstance(size, int)
    return size


RULES = RuleSet(
    (
        sum_out_of_left,
        sum_out_of_right,
        factor_out_of_left,
        factor_out_of_right,
        gain_to_left,
        product_from_the_right,
        product_from_the_left,
        products_join,
        scaled_product_joins,
        scaled_products_join,
    )
)
"""The family, in order."""
