"""The building blocks of attention: small functions over traced values.

A classical variant goes scale → softcap → bias → mask → softmax → attend.
Ordinary arithmetic composes what the blocks return.
"""

from __future__ import annotations

import math
from typing import NoReturn

from attnfuse.errors import NeedsStatic, WrongArgument
from attnfuse.ir import build as ir
from attnfuse.ir.attention import PAIRINGS
from attnfuse.ir.axes import Axis, DType
from attnfuse.ir.layout import dimensions, label
from attnfuse.ir.term import Term
from attnfuse.traced import Traced, as_term, b, combine, exp, h, k, kv_len, log, q, q_len, where

NORMS = ("rms", "l2")
"""By what features are divided: the root of their mean square, or their length."""

ALIGNMENTS = ("bottom_right", "top_left")
"""Which ends of queries and keys stand at one position: the last ones, or the first ones."""


def rope(
    x: Traced,
    cos: Traced,
    sin: Traced,
    *,
    positions: Traced | None = None,
    pairing: str = "half",
    inverse: bool = False,
) -> Traced:
    """Rotary position embedding (RoFormer, Su et al., 2021) of queries, keys, values or outputs.

    Features pair up, and pair i of the row at position p turns by the angle
    whose cosine and sine are ``cos[p, i]`` and ``sin[p, i]``. Rotation is done
    in float32 and rounded to the type of ``x``.

    Values that are rotated make outputs relative, too, when these are turned
    back: ``rope(out, cos, sin, inverse=True)`` (GTA, Miyato et al., 2024).

    Args:
        x: a query, key, value, or an output made by `attend`.
        cos: captured tensor (positions, rotary_dim / 2); features beyond rotary_dim pass through.
        sin: the same for sines.
        positions: integer row of the tables for each batch entry and position;
            by default row i of ``x`` takes row i of the tables. A position
            outside the tables takes their nearest row.
        pairing: ``"half"`` (Llama in Hugging Face: i with i + rotary_dim/2) or
            ``"interleaved"`` (RoFormer, Meta's Llama: 2i with 2i + 1).
        inverse: turn by the opposite angles.

    Raises:
        WrongArgument: x is none of these, or the pairing has another name.
        DoesNotFit: the tables have odd sizes, or rotate more features than there are.
    """
    axes = [axis.name for axis in x.term.type.axes]
    if axes[-1:] not in (["d"], ["e"]):
        _refuse("rope", "x", x.term, "a query, a key, a value or an output")
    if pairing not in PAIRINGS:
        _refuse("rope", "pairing", pairing, " or ".join(map(repr, PAIRINGS)))
    rows = (q if "q" in axes else k) if positions is None else positions
    tables = (_table("cos", cos), _table("sin", sin))
    return Traced(ir.rotate(x.term, *tables, rows.term, pairing, inverse))


def _table(argument: str, table: Traced) -> Term:
    """A captured matrix whose number of columns is known."""
    term = table.term
    if term.op.name != "input" or len(term.type.axes) != 2:
        _refuse("rope", argument, term, "a captured tensor of shape (positions, rotary_dim / 2)")
    if not isinstance(term.type.axes[1].size, int):
        raise NeedsStatic(term.text("name"), 1)
    return term


def norm(
    x: Traced, weight: Traced | None = None, *, kind: str = "rms", eps: float = 1e-6
) -> Traced:
    """Normalised features of queries, keys or values (qk-norm: Henry et al., 2020; Qwen 3).

    Of outputs it is a head norm, as in the Diff Transformer (Ye et al., 2024).
    Computed in float32, multiplied by the weight, then rounded to the type of ``x``.

    Args:
        x: a query, key, value, or an output made by `attend`.
        weight: what each feature is multiplied by, a captured tensor (features,);
            or an expression of heads and captured tensors.
        kind: ``"rms"`` divides by √(mean of squares + eps) (Zhang & Sennrich,
            2019); ``"l2"`` by max(√(sum of squares), eps), as torch's ``normalize``.
        eps: keeps the divisor from 0.

    Raises:
        WrongArgument: x is none of these, the kind has another name, eps is
            negative, or the weight is a tensor of several dimensions or depends
            on queries, keys or values.
    """
    features = x.term.type.axes[-1:]
    if not features or features[0].name not in ("d", "e"):
        _refuse("norm", "x", x.term, "a query, a key, a value or an output")
    if kind not in NORMS:
        _refuse("norm", "kind", kind, " or ".join(map(repr, NORMS)))
    if not eps >= 0:
        _refuse("norm", "eps", eps, "0 or a positive number")
    return Traced(ir.normalise(x.term, _weight(weight, features[0]), kind, float(eps)))


def _weight(weight: Traced | None, feature: Axis) -> Term:
    if weight is None:
        return ir.const(1.0)
    term = as_term(weight)
    if term.op.name == "input":
        if len(term.type.axes) != 1:
            _refuse("norm", "weight", f"{len(term.type.axes)} dimensions", "a tensor (features,)")
        return ir.gather(term, ir.index(feature.name, (feature,)))
    if not ir.is_closed(ir.unpack(term)):
        _refuse("norm", "weight", term, "a tensor (features,), or an expression of heads and such")
    return term


def stored(x: Traced) -> Traced:
    """``x``, written to memory by a launch of its own, and read from there by others.

    Keys that are rotated or normalised while they are loaded are so for each
    block of queries again; stored, once. Of an input as it is, this is a copy
    in which features are contiguous: worth it where they are not, as in
    transposed keys, since each block of queries reads all of them.

    Args:
        x: a query, key or value.

    Raises:
        WrongArgument: x is none of these.
    """
    if x.term.type.names[-1:] not in (("d",), ("e",)):
        _refuse("stored", "x", x.term, "a query, a key or a value")
    return Traced(ir.stored(x.term))


def scores(query: Traced, key: Traced, *, scale: Traced | float | None = None) -> Traced:
    """Scaled scores, scale · query · keyᵀ: (batch, heads, q_len, kv_len) in float32.

    Query head h meets key head h // (query heads // key heads). They never
    exist as a whole: kernels make them tile by tile.

    Args:
        query: (batch, query heads, q_len, head_dim).
        key: (batch, key heads, kv_len, head_dim), of the same element type; or
            one for each query head.
        scale: 1 / √head_dim by default.

    Raises:
        WrongArgument: the arguments are not a query and a key.
        DoesNotFit: their head dims differ.
    """
    for argument, given, axis in (("query", query, "q"), ("key", key, "k")):
        if not {axis, "d"} <= set(given.term.type.names):
            _refuse("scores", argument, given.term, f"a {argument}")
    head_dim = query.term.type.axis("d").size
    assert isinstance(head_dim, int)
    factor = 1.0 / math.sqrt(head_dim) if scale is None else scale
    raw = ir.contract(query.term, key.term, over="d", dtype=_accumulator(query.term))
    return Traced(raw) * factor


def _accumulator(term: Term) -> DType:
    double = term.type.dtype is DType.float64
    return DType.float64 if double else DType.float32


def softcap(s: Traced, cap: Traced | float) -> Traced:
    """Cap · tanh(s / cap): scores bounded to ±cap (Gemma 2, 2024)."""
    if isinstance(cap, int | float) and not 0 < cap < math.inf:
        _refuse("softcap", "cap", cap, "a positive number")
    return combine(ir.unary["tanh"], s / cap) * cap


def bias(s: Traced, values: Traced | float) -> Traced:
    """S + values.

    Args:
        s: scores.
        values: an expression of positions, heads and captured tensors, such as
            ``table[af.h, af.q - af.k + 127]``; or a captured tensor itself,
            whose dimensions then are the last ones of (batch, heads, q_len,
            kv_len), or 1.

    Raises:
        WrongArgument: a captured tensor with more dimensions than scores have.
    """
    if isinstance(values, Traced) and values.term.op.name == "input" and values.term.type.axes:
        values = _dense(s, values)
    return s + values


def low_rank(left: Traced, right: Traced) -> Traced:
    """Low-rank bias Σᵣ left[…, q, r] · right[…, k, r], in float32: a term of the scores.

    It costs what a second `scores` of so few features costs, and no dense bias
    has to lie in memory: ``af.scores(q, k) + af.low_rank(left, right)``.

    Args:
        left: (batch, query heads, q_len, rank), a parameter annotated with `Query`.
        right: (batch, key heads or query heads, kv_len, rank), annotated with `Key`.
            What heads or batch entries share is passed as a view,
            ``factor.expand(…)``, which copies nothing.

    Raises:
        WrongArgument: the arguments are not made of a query and a key.
        DoesNotFit: their ranks differ.
    """
    for argument, given, axis in (("left", left, "q"), ("right", right, "k")):
        if not {axis, "d"} <= set(given.term.type.names):
            _refuse("low_rank", argument, given.term, _SIDES[axis])
    return Traced(ir.contract(left.term, right.term, over="d", dtype=_accumulator(left.term)))


_SIDES = {"q": "a query: annotate it with af.Query", "k": "a key: annotate it with af.Key"}


def _dense(s: Traced, values: Traced) -> Traced:
    """A captured tensor laid along the last dimensions of the scores."""
    groups, count = dimensions(s.term.type.axes), len(values.term.type.axes)
    if count > len(groups):
        _refuse("bias", "values", f"{count} dimensions", f"at most {len(groups)}")
    indices = [ir.index(label(group), group) for group in groups[-count:]]
    return Traced(ir.gather(values.term, *indices))


def mask(s: Traced, visible: Traced | bool) -> Traced:
    """The scores where ``visible`` holds, −∞ elsewhere.

    A query that sees no key gets output 0 and log-sum-exp −∞.

    Args:
        s: scores.
        visible: a predicate: `causal`, `window`, comparisons of ``af.q``,
            ``af.k`` and captured tensors, combined by ``&``, ``|``, ``~``.
    """
    return combine(ir.mask, s, visible)


def causal(alignment: str = "bottom_right") -> Traced:
    """Visible are the keys at or before the query's position.

    Args:
        alignment: where q_len and kv_len differ, ``"bottom_right"`` lets the
            last query see all keys (FlashAttention ≥ 2.1, decoding with a
            cache); ``"top_left"`` lets the first query see the first key only
            (PyTorch's ``is_causal``).
    """
    return k <= position(alignment)


def window(
    *, before: int | None = None, after: int | None = None, alignment: str = "bottom_right"
) -> Traced:
    """Visible are the key at the query's own position and its neighbours.

    FlashAttention's ``window_size=(l, r)`` is ``window(before=l, after=r)``;
    Hugging Face's ``sliding_window=W`` is ``window(before=W - 1, after=0)``.

    Args:
        before: how many keys before its own position a query sees; None for all.
        after: how many keys after its own position a query sees; None for all.
        alignment: as for `causal`.

    Raises:
        WrongArgument: a negative number, or an alignment of another name.
    """
    visible = ir.TRUE
    for argument, count in (("before", before), ("after", after)):
        if count is not None and count < 0:
            _refuse("window", argument, count, "0, a positive number, or None for all")
    if before is not None:
        visible = ir.and_(visible, (k >= position(alignment) - before).term)
    if after is not None:
        visible = ir.and_(visible, (k <= position(alignment) + after).term)
    return Traced(visible)


def position(alignment: str = "bottom_right") -> Traced:
    """The position of a query among the keys, which ``af.k`` counts.

    Distances that are to be the same with and without a cache of keys, as in
    ALiBi, are ``af.position() - af.k``.

    Args:
        alignment: as for `causal`.

    Raises:
        WrongArgument: an alignment of another name.
    """
    if alignment not in ALIGNMENTS:
        _refuse("position", "alignment", alignment, " or ".join(map(repr, ALIGNMENTS)))
    return q + (kv_len - q_len) if alignment == "bottom_right" else q + 0


def softmax(s: Traced, *, sink: Traced | float | None = None) -> Traced:
    """Probabilities: softmax over the keys, 0 in a row that sees nothing.

    Args:
        s: scores.
        sink: a logit that takes part in the denominator only (attention sinks,
            Xiao et al., 2023; as learnt per head in gpt-oss: ``sink[af.h]``).
            0 gives softmax₁ (Miller, 2023). Finite; it must not depend on keys.

    Raises:
        WrongArgument: a sink that depends on keys.
    """
    p = Traced(ir.softmax(s.term))
    if sink is None:
        return p
    # e^s / (Σ e^s + e^z) = softmax(s) · σ(lse − z): a factor for each row, outside of the loop
    return p * combine(ir.unary["sigmoid"], lse(s) - _row(sink, "softmax"))


def lse(s: Traced, *, sink: Traced | float | None = None) -> Traced:
    """The natural log-sum-exp of each row of scores: (batch, heads, q_len), float32.

    −∞ in a row that sees nothing and has no sink. Partial results over
    disjoint keys merge by it.

    Args:
        s: scores.
        sink: as for `softmax`.

    Raises:
        WrongArgument: a sink that depends on keys.
    """
    total = Traced(ir.logsumexp(s.term))
    if sink is None:
        return total
    sink = _row(sink, "lse")
    top = combine(ir.maximum, total, sink)
    return top + log(exp(total - top) + exp(sink - top))


def row_max(s: Traced) -> Traced:
    """The greatest visible score of each row: (batch, heads, q_len), float32.

    −∞ in a row that sees nothing. Logits that grow are clipped by it (QK-clip,
    Kimi K2, 2025).

    Args:
        s: scores, those of the softmax.
    """
    return Traced(ir.row_max(s.term))


def entropy(s: Traced) -> Traced:
    """The entropy −Σ p·ln p of each row of p = softmax(s), in nats: (batch, heads, q_len), float32.

    0 in a row that sees nothing, and where one key has all the weight;
    ln n where n keys share it. Attention that collapses shows by it
    (Zhai et al., 2023).

    Args:
        s: scores, those of the softmax.
    """
    return Traced(ir.entropy(s.term))


def _row(sink: Traced | float, function: str) -> Traced | float:
    """A sink: one number for each row at most."""
    if isinstance(sink, Traced) and "k" in as_term(sink).type.names:
        _refuse(function, "sink", sink, "a number, or an expression without af.k")
    return sink


def relu(s: Traced) -> Traced:
    """max(s, 0), element by element; its square is a normaliser (Primer, So et al., 2021)."""
    return combine(ir.maximum, s, 0.0)


def dropout(p: Traced, rate: float, seed: Traced | int) -> Traced:
    """Weights of which some are 0: each with probability ``rate``, the others · 1 / (1 − rate).

    Which ones follows from the seed and the place (b, h, q, k) by Philox
    (Salmon et al., 2011): the same on every device, whatever the tiles.
    Kernels don't have it yet: ``variant.reference(…)`` computes it.

    Args:
        p: probabilities, or other weights.
        rate: 0 ≤ rate < 1; 0 leaves the weights as they are.
        seed: an int of 31 bits; or a captured integer tensor of no dimensions,
            another value of which is no other program.

    Raises:
        WrongArgument: another rate or seed, or p has no queries and keys.
    """
    if not {"q", "k"} <= set(p.term.type.names):
        _refuse("dropout", "p", p.term, "probabilities, made by af.softmax")
    if not 0 <= rate < 1:
        _refuse("dropout", "rate", rate, "0 ≤ rate < 1")
    if not _is_seed(seed):
        _refuse("dropout", "seed", seed, "0 ≤ seed < 2³¹, or a captured integer of no dimensions")
    if rate == 0:
        return p
    kept = combine(ir.random, seed, b, h, q, k) >= float(rate)
    return p * where(kept, 1 / (1 - rate), 0.0)


def _is_seed(seed: Traced | int) -> bool:
    if isinstance(seed, Traced):
        term = seed.term
        return term.op.name == "input" and not term.type.axes and term.type.dtype.is_int
    return not isinstance(seed, bool) and 0 <= seed < 2**31


def attend(p: Traced, value: Traced) -> Traced:
    """The product p · value: (batch, heads, q_len, value_dim), of the value's element type.

    Args:
        p: probabilities, made by `softmax`; or any other weights, such as
            ``af.sigmoid(s)``, ``af.relu(s) * af.relu(s)``, or the scores
            themselves (linear attention, masked by ``af.where(visible, s, 0.0)``).
        value: (batch, key heads, kv_len, value_dim); or one for each query head.

    Raises:
        WrongArgument: the arguments are not probabilities and a value.
    """
    if not {"q", "k"} <= set(p.term.type.names):
        _refuse("attend", "p", p.term, "probabilities, made by af.softmax")
    if not {"k", "e"} <= set(value.term.type.names):
        _refuse("attend", "value", value.term, "a value")
    dtype = value.term.type.dtype
    factors = p.term.operands if p.term.op.name == "mul" else (p.term,)
    outer = [factor for factor in factors if "k" not in factor.type.names]
    inner = ir.mul(*(factor for factor in factors if "k" in factor.type.names))
    if not outer:
        return Traced(ir.contract(inner, value.term, over="k", dtype=dtype))
    # what is the same for all keys multiplies the sum; the product is rounded once
    summed = ir.contract(inner, value.term, over="k", dtype=_accumulator(value.term))
    return Traced(ir.cast(ir.mul(*outer, summed), dtype))


def gate(out: Traced, values: Traced) -> Traced:
    """The product out · σ(values), rounded to the type of ``out``: an output gate (AlphaFold 2).

    Args:
        out: an output, made by `attend`.
        values: a captured tensor of the output's shape, or an expression.

    Raises:
        WrongArgument: a captured tensor with another number of dimensions.
    """
    term = as_term(values)
    if term.op.name == "input":
        term = _at_output(out.term, term)
    product = ir.mul(out.term, ir.unary["sigmoid"](term))
    return Traced(ir.cast(product, out.term.type.dtype))


def _at_output(out: Term, tensor: Term) -> Term:
    """A captured tensor with the dimensions of an output, read at each of its entries."""
    groups = dimensions(out.type.axes)
    if len(tensor.type.axes) != len(groups):
        given = f"{len(tensor.type.axes)} dimensions"
        _refuse("gate", "values", given, f"{len(groups)} dimensions, as the output has")
    return ir.gather(tensor, *(ir.index(label(group), group) for group in groups))


def _refuse(function: str, argument: str, given: object, allowed: str) -> NoReturn:
    raise WrongArgument(function=function, argument=argument, given=given, allowed=allowed)
