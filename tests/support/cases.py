"""Attention variants for tests, each written twice: with AttnFuse's blocks, and densely in PyTorch.

The dense form shares nothing with the compiler. In float64 it is the oracle;
in a kernel's own element type its error is what a kernel is measured by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

import attnfuse as af

Extra = dict[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    """The sizes of one call that are symbolic in a kernel."""

    batch: int
    q_len: int
    kv_len: int


@dataclass(frozen=True)
class Grid:
    """Index tensors that broadcast over dense scores (b, h, q, k), and the lengths."""

    b: Tensor
    h: Tensor
    q: Tensor
    k: Tensor
    q_len: int
    kv_len: int

    @property
    def shifted(self) -> Tensor:
        """Positions of queries among the keys, the last query at the last key."""
        return self.q + self.kv_len - self.q_len


Score = Callable[[Tensor, Grid, Extra], Tensor]


def _same(scores: Tensor, grid: Grid, extra: Extra) -> Tensor:
    return scores


def _all(grid: Grid, extra: Extra) -> Tensor | bool:
    return True


def _unchanged(x: Tensor, extra: Extra, which: str) -> Tensor:
    return x


def _softmax(scores: Tensor, v: Tensor, grid: Grid, extra: Extra) -> tuple[Tensor, ...]:
    return dense_softmax(scores, v)


def _nothing(sizes: Sizes, generator: torch.Generator) -> Extra:
    return {}


@dataclass(frozen=True)
class Case:
    """A variant, its dense form, and the tensors that it takes.

    Attributes:
        variant: returns a tuple of outputs.
        heads: query heads.
        key_heads: key and value heads.
        head_dim: features of queries and keys.
        value_dim: features of values.
        extra: makes the captured tensors for a call.
        prologue: what is done to queries, keys and values, densely; told which by their letter.
        score: what is done to scores, densely.
        visible: what is visible, densely.
        finish: makes the outputs of masked scores and values, densely.
        dtypes: the element types to test.
        attended: which of the captured tensors are in truth more queries, keys or values.
    """

    variant: af.Variant
    heads: int = 2
    key_heads: int = 2
    head_dim: int = 32
    value_dim: int = 32
    extra: Callable[[Sizes, torch.Generator], Extra] = _nothing
    prologue: Callable[[Tensor, Extra, str], Tensor] = _unchanged
    score: Score = _same
    visible: Callable[[Grid, Extra], Tensor | bool] = _all
    finish: Callable[[Tensor, Tensor, Grid, Extra], tuple[Tensor, ...]] = _softmax
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    spread: float = field(default=1.0)
    attended: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The variant's name."""
        return self.variant.name

    def inputs(
        self, sizes: Sizes, dtype: torch.dtype, generator: torch.Generator
    ) -> tuple[list[Tensor], Extra]:
        """Random queries, keys and values, and the captured tensors."""
        shapes = [
            (sizes.batch, self.heads, sizes.q_len, self.head_dim),
            (sizes.batch, self.key_heads, sizes.kv_len, self.head_dim),
            (sizes.batch, self.key_heads, sizes.kv_len, self.value_dim),
        ]
        tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
        tensors[0] = tensors[0] * self.spread
        extra = self.extra(sizes, generator)
        return tensors, extra | {name: _as(extra[name], dtype) for name in self.attended}

    def dense(self, tensors: list[Tensor], extra: Extra, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """The outputs with everything in ``dtype``."""
        extra = {n: t.to(dtype) if t.is_floating_point() else t for n, t in extra.items()}
        q, k, v = (tensor.to(dtype) for tensor in tensors)
        group = self.heads // self.key_heads
        q, k, v = (self.prologue(x, extra, n) for x, n in zip((q, k, v), "qkv", strict=True))
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(self.head_dim)
        grid = _grid(scores)
        scores = self.score(scores, grid, extra)
        visible = torch.as_tensor(self.visible(grid, extra), device=scores.device)
        return self.finish(scores.masked_fill(~visible, -math.inf), v, grid, extra)


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor in another element type, expanded where it was."""
    once = tuple(slice(1) if stride == 0 else slice(None) for stride in tensor.stride())
    return tensor[once].to(dtype).expand(tensor.shape)


def _grid(scores: Tensor) -> Grid:
    b, h, q, k = (
        torch.arange(size, device=scores.device).view([-1 if d == place else 1 for d in range(4)])
        for place, size in enumerate(scores.shape)
    )
    return Grid(b, h, q, k, scores.shape[2], scores.shape[3])


def dense_softmax(scores: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax · V and the log-sum-exp, with 0 and −∞ for rows that see nothing."""
    if scores.shape[-1] == 0:
        empty = scores.new_full(scores.shape[:-1], -math.inf)
        return scores @ v, empty
    nothing = scores.amax(-1, keepdim=True) == -math.inf
    p = scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
    return p @ v, scores.float().logsumexp(-1) if scores.dtype.itemsize < 8 else scores.logsumexp(
        -1
    )


# -- the cases --------------------------------------------------------------------


@af.variant
def full(q: af.Query, k: af.Key, v: af.Value) -> tuple[af.Traced, af.Traced]:
    """Plain attention."""
    s = af.scores(q, k)
    return af.attend(af.softmax(s), v), af.lse(s)


@af.variant
def causal(q: af.Query, k: af.Key, v: af.Value) -> tuple[af.Traced, af.Traced]:
    """Causal, the last query at the last key."""
    s = af.mask(af.scores(q, k), af.causal())
    return af.attend(af.softmax(s), v), af.lse(s)


@af.variant
def causal_top_left(q: af.Query, k: af.Key, v: af.Value) -> tuple[af.Traced, af.Traced]:
    """Causal, the first query at the first key."""
    s = af.mask(af.scores(q, k), af.causal("top_left"))
    return af.attend(af.softmax(s), v), af.lse(s)


@af.variant
def window(q: af.Query, k: af.Key, v: af.Value) -> tuple[af.Traced, af.Traced]:
    """A window on both sides, whose first tiles hide all of some rows."""
    s = af.mask(af.scores(q, k), af.window(before=90, after=3))
    return af.attend(af.softmax(s), v), af.lse(s)


@af.variant
def turned(
    q: af.Query, k: af.Key, v: af.Value, cos: af.Captured, sin: af.Captured
) -> tuple[af.Traced, af.Traced]:
    """Queries and values that turn the inverse way, by half of the features."""
    s = af.scores(af.rope(q, cos, sin, inverse=True, pairing="interleaved"), k)
    return af.attend(af.softmax(s), af.rope(v, cos, sin, inverse=True)), af.lse(s)


def _turned(x: Tensor, extra: Extra, which: str) -> Tensor:
    if which == "k":
        return x
    return rotate(x, extra["cos"], -extra["sin"], interleaved=which == "q")


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Rotary embedding in plain PyTorch, row i of x by row i of the tables."""
    half, length = cos.shape[1], x.shape[-2]
    cos, sin = cos[:length], sin[:length]
    if interleaved:
        first, second = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
    else:
        first, second = x[..., :half], x[..., half : 2 * half]
    turned = (first * cos - second * sin, second * cos + first * sin)
    both = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat((both, x[..., 2 * half :]), -1)


def _rotated(*, interleaved: bool) -> Callable[[Tensor, Extra, str], Tensor]:
    def prologue(x: Tensor, extra: Extra, which: str) -> Tensor:
        if which == "v":
            return x
        return rotate(x, extra["cos"], extra["sin"], interleaved=interleaved)

    return prologue


def _tables(rotary_dim: int) -> Callable[[Sizes, torch.Generator], Extra]:
    def make(sizes: Sizes, generator: torch.Generator) -> Extra:
        rows = max(sizes.q_len, sizes.kv_len) + 3
        cos, sin = af.rope_tables(rows, rotary_dim, theta=500000.0)
        return {"cos": cos, "sin": sin}

    return make


@af.variant
def llama(
    q: af.Query, k: af.Key, v: af.Value, cos: af.Captured, sin: af.Captured
) -> tuple[af.Traced, af.Traced]:
    """Llama 3: rotary embedding of all features in halves, causal."""
    s = af.mask(af.scores(af.rope(q, cos, sin), af.rope(k, cos, sin)), af.causal())
    return af.attend(af.softmax(s), v), af.lse(s)


@af.variant
def partly_rotated(
    q: af.Query, k: af.Key, v: af.Value, cos: af.Captured, sin: af.Captured
) -> tuple[af.Traced, af.Traced]:
    """Interleaved pairs, and features beyond rotary_dim pass through."""
    q_turned = af.rope(q, cos, sin, pairing="interleaved")
    k_turned = af.rope(k, cos, sin, pairing="interleaved", positions=af.k)
    s = af.scores(q_turned, k_turned)
    return af.attend(af.softmax(s), v), af.lse(s)


@af.variant
def softcap(q: af.Query, k: af.Key, v: af.Value) -> tuple[af.Traced, af.Traced]:
    """Gemma 2: scores bounded to ±5, then the mask."""
    s = af.mask(af.softcap(af.scores(q, k), 5.0), af.causal())
    return af.attend(af.softmax(s), v), af.lse(s)


@af.variant
def relative_bias(
    q: af.Query, k: af.Key, v: af.Value, table: af.Captured
) -> tuple[af.Traced, af.Traced]:
    """A table of 41 distances per head, farther ones clipped; parameter order is free."""
    s = af.bias(af.scores(q, k), table[af.h, af.q - af.k + 20])
    return af.attend(af.softmax(s), v), af.lse(s)


def _relative_bias(scores: Tensor, grid: Grid, extra: Extra) -> Tensor:
    distance = (grid.q - grid.k + 20).clamp(0, 40)
    return scores + extra["table"][grid.h, distance]


@af.variant
def dense_bias(
    q: af.Query, k: af.Key, v: af.Value, pair: af.Captured
) -> tuple[af.Traced, af.Traced]:
    """A dense bias (heads, q_len, kv_len), the same for each batch entry; then softcap."""
    s = af.softcap(af.bias(af.scores(q, k), pair), 9.0)
    return af.attend(af.softmax(s), v), af.lse(s)


@af.variant
def alibi(q: af.Query, k: af.Key, v: af.Value, slopes: af.Captured) -> tuple[af.Traced, af.Traced]:
    """ALiBi: a slope per head times the distance, causal."""
    s = af.bias(af.scores(q, k), slopes[af.h] * (af.k - af.q))
    s = af.mask(s, af.causal("top_left"))
    return af.attend(af.softmax(s), v), af.lse(s)


@af.variant
def documents(q: af.Query, k: af.Key, v: af.Value, doc: af.Captured) -> tuple[af.Traced, af.Traced]:
    """Packed documents: a query sees the keys of its own document before it."""
    same = doc[af.b, af.q] == doc[af.b, af.k]
    s = af.mask(af.scores(q, k), same & af.causal("top_left"))
    return af.attend(af.softmax(s), v), af.lse(s)


def _documents(sizes: Sizes, generator: torch.Generator) -> Extra:
    longest = max(sizes.q_len, sizes.kv_len)
    ids = torch.randint(0, 4, (sizes.batch, longest), generator=generator)
    return {"doc": ids.sort(-1).values}


@af.variant
def padded(
    q: af.Query, k: af.Key, v: af.Value, lengths: af.Captured
) -> tuple[af.Traced, af.Traced]:
    """Each batch entry has its own number of keys, possibly 0; bands around it."""
    visible = (af.k < lengths[af.b]) & (abs(af.q - af.k) < 70)
    s = af.mask(af.scores(q, k), visible)
    return af.attend(af.softmax(s), v), af.lse(s)


@af.variant
def scalars(
    q: af.Query, k: af.Key, v: af.Value, temperature: af.Captured, gain: float = 0.5
) -> tuple[af.Traced, af.Traced]:
    """A learned temperature, a constant, a choice between expressions, an inner mask."""
    s = af.scores(q, k, scale=temperature * gain)
    s = af.where(af.q % 2 == af.k % 3, s * 2.0, af.exp(-abs(s)) / af.sqrt(2.0 + af.tanh(s)))
    s = af.maximum(s, af.minimum(af.sigmoid(s), af.log(1.5 + abs(s))))
    s = af.bias(af.where(af.k // 5 != 3, s, float("-inf")), 0.25)
    return af.attend(af.softmax(s), v), af.lse(s)


def _scalars(scores: Tensor, grid: Grid, extra: Extra) -> Tensor:
    s = scores * math.sqrt(24) * extra["temperature"] * 0.5
    damped = (-s.abs()).exp() / (2.0 + s.tanh()).sqrt()
    s = torch.where(grid.q % 2 == grid.k % 3, s * 2.0, damped)
    s = s.maximum(s.sigmoid().minimum((1.5 + s.abs()).log()))
    return s.masked_fill(grid.k // 5 == 3, -math.inf) + 0.25


@af.variant
def nothing_seen(q: af.Query, k: af.Key, v: af.Value) -> tuple[af.Traced, af.Traced]:
    """A mask that hides every key."""
    s = af.mask(af.scores(q, k), af.k < af.q - 5000)
    return af.attend(af.softmax(s), v), af.lse(s)


@af.variant
def reserved(
    q: af.Query, k: af.Key, v: af.Value, score: af.Captured, h: af.Captured, q_tile: af.Captured
) -> tuple[af.Traced, af.Traced]:
    """Captured tensors named like a program's own variables."""
    s = af.scores(q, k) + score[af.q] * h[af.h] + q_tile[af.k]
    return af.attend(af.softmax(s), v), af.lse(s)


@af.variant
def sinks(q: af.Query, k: af.Key, v: af.Value, sink: af.Captured) -> tuple[af.Traced, af.Traced]:
    """gpt-oss: a learnt logit for each head in the denominator, in a window."""
    s = af.mask(af.scores(q, k), af.window(before=20, after=0))
    z = sink[af.h]
    return af.attend(af.softmax(s, sink=z), v), af.lse(s, sink=z)


def _sinks(scores: Tensor, v: Tensor, grid: Grid, extra: Extra) -> tuple[Tensor, ...]:
    column = extra["sink"][grid.h].expand(*scores.shape[:-1], 1).to(scores.dtype)
    padded = torch.cat((scores, column), -1)
    out, lse = (
        dense_softmax(padded, torch.cat((v, torch.zeros_like(v[:, :, :1])), 2))
        if (v.shape[2])
        else (v.new_zeros(*scores.shape[:-1], v.shape[-1]), column.squeeze(-1).float())
    )
    return out, lse.to(scores.dtype) if scores.dtype == torch.float64 else lse


@af.variant
def sigmoid_attention(q: af.Query, k: af.Key, v: af.Value, shift: af.Captured) -> tuple[af.Traced]:
    """Sigmoid attention (Ramapuram et al., 2024): no normalisation, causal."""
    s = af.mask(af.scores(q, k) + shift, af.causal())
    return (af.attend(af.sigmoid(s), v),)


@af.variant
def squared_relu(q: af.Query, k: af.Key, v: af.Value) -> tuple[af.Traced]:
    """Squared ReLU in a window, scaled by the number of keys that a query sees at most."""
    r = af.relu(af.mask(af.scores(q, k), af.window(before=40, after=40)))
    return (af.attend(r * r, v) * (1 / 81),)


@af.variant
def linear(q: af.Query, k: af.Key, v: af.Value) -> tuple[af.Traced]:
    """Linear attention: the scores themselves, causal."""
    return (af.attend(af.where(af.causal(), af.scores(q, k), 0.0), v),)


def _weighted(weigh: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    def finish(scores: Tensor, v: Tensor, grid: Grid, extra: Extra) -> tuple[Tensor, ...]:
        return (weigh(scores) @ v,)

    return finish


@af.variant
def gated(
    q: af.Query, k: af.Key, v: af.Value, gate: af.Captured, gain: af.Captured
) -> tuple[af.Traced, af.Traced, af.Traced]:
    """Outputs made of one attention: gated, damped by the log-sum-exp, and a statistic."""
    s = af.mask(af.scores(q, k), af.causal("top_left"))
    out, lse = af.attend(af.softmax(s) * gain[af.h], v), af.lse(s)
    return af.gate(out, gate), out * af.sigmoid(lse), lse * 2.0 + gain[af.h]


def _gated(scores: Tensor, v: Tensor, grid: Grid, extra: Extra) -> tuple[Tensor, ...]:
    out, lse = dense_softmax(scores, v)
    gain = extra["gain"][grid.h]
    out = out * gain
    damped = out * lse.to(out.dtype).sigmoid().unsqueeze(-1)
    return out * extra["gate"].sigmoid(), damped, lse * 2.0 + gain.squeeze(-1)


@af.variant
def statistics(
    q: af.Query, k: af.Key, v: af.Value
) -> tuple[af.Traced, af.Traced, af.Traced, af.Traced]:
    """Maximum and entropy of rows, as outputs and within one; some rows see nothing."""
    s = af.mask(af.scores(q, k), af.window(before=70, after=0))
    entropy, top = af.entropy(s), af.row_max(s)
    out = af.attend(af.softmax(s), v)
    return af.gate(out * af.exp(-entropy), top), top, entropy, af.lse(s) + entropy * 0.5


def _statistics(scores: Tensor, v: Tensor, grid: Grid, extra: Extra) -> tuple[Tensor, ...]:
    out, lse = dense_softmax(scores, v)
    if scores.shape[-1] == 0:
        return out, lse, torch.zeros_like(lse), lse
    visible = scores > -math.inf
    p = scores.softmax(-1).where(visible, 0.0)
    entropy = -(p * scores.log_softmax(-1).where(visible, 0.0)).sum(-1)
    top = scores.amax(-1)
    damped = out * (-entropy).exp()[..., None] * top.sigmoid()[..., None]
    return damped, top, entropy, lse + entropy * 0.5


@af.variant
def own_heads(
    q: af.Query,
    k: af.Key,
    v: af.Value,
    q_own: af.Query,
    k_own: af.Key,
    cos: af.Captured,
    sin: af.Captured,
) -> tuple[af.Traced, af.Traced]:
    """A key that query heads share beside one of each of them, which is rotated beforehand."""
    own = af.scores(q_own, af.stored(af.rope(k_own, cos, sin)))
    s = af.mask(af.scores(q, k) + own, af.causal())
    return af.attend(af.softmax(s), v), af.lse(s)


def _own_heads_inputs(sizes: Sizes, generator: torch.Generator) -> Extra:
    return {
        "q_own": torch.randn(sizes.batch, 4, sizes.q_len, 24, generator=generator),
        "k_own": torch.randn(sizes.batch, 4, sizes.kv_len, 24, generator=generator),
        **_tables(16)(sizes, generator),
    }


def _own_heads(scores: Tensor, grid: Grid, extra: Extra) -> Tensor:
    key = rotate(extra["k_own"], extra["cos"], extra["sin"], interleaved=False)
    return scores + extra["q_own"] @ key.transpose(-1, -2) / math.sqrt(24)


@af.variant
def low_rank(
    q: af.Query, k: af.Key, v: af.Value, left: af.Query, right: af.Key
) -> tuple[af.Traced, af.Traced]:
    """A bias of rank 5, its right side one for each query head; the same for all of the batch."""
    s = af.mask(af.scores(q, k) + af.low_rank(left, right), af.causal())
    return af.attend(af.softmax(s), v), af.lse(s)


def _low_rank_inputs(sizes: Sizes, generator: torch.Generator) -> Extra:
    left = torch.randn(1, 1, sizes.q_len, 5, generator=generator)
    right = torch.randn(1, 6, sizes.kv_len, 5, generator=generator)
    return {
        "left": left.expand(sizes.batch, 6, -1, -1),
        "right": right.expand(sizes.batch, -1, -1, -1),
    }


@af.variant
def copied(q: af.Query, k: af.Key, v: af.Value) -> tuple[af.Traced, af.Traced]:
    """Keys and values that are copied beforehand, whatever their strides."""
    s = af.mask(af.scores(q, af.stored(k)), af.causal())
    return af.attend(af.softmax(s), af.stored(v)), af.lse(s)


@af.variant
def turned_back(
    q: af.Query, k: af.Key, v: af.Value, cos: af.Captured, sin: af.Captured
) -> tuple[af.Traced, af.Traced]:
    """GTA (Miyato et al., 2024): values turn, too, and outputs turn back."""
    s = af.mask(af.scores(af.rope(q, cos, sin), af.rope(k, cos, sin)), af.causal())
    out = af.attend(af.softmax(s), af.rope(v, cos, sin))
    return af.rope(out, cos, sin, inverse=True), af.lse(s)


def _turned_back(scores: Tensor, v: Tensor, grid: Grid, extra: Extra) -> tuple[Tensor, ...]:
    out, lse = dense_softmax(scores, v)
    return rotate(out, extra["cos"], -extra["sin"], interleaved=False), lse


@af.variant
def head_norms(
    q: af.Query,
    k: af.Key,
    v: af.Value,
    weight: af.Captured,
    gate: af.Captured,
    cos: af.Captured,
    sin: af.Captured,
) -> tuple[af.Traced, ...]:
    """Norms and rotations of outputs among elementwise ops, and one of them by itself."""
    s = af.mask(af.scores(q, k), af.causal("top_left"))
    out = af.attend(af.softmax(s), v) + 0.5
    normed = af.norm(out, weight, eps=1e-5)
    turned = af.rope(af.norm(normed * 2.0 + 1.0, kind="l2"), cos, sin, pairing="interleaved")
    return normed, af.gate(turned * 0.8 - out, gate), af.lse(s)


def _head_norms(scores: Tensor, v: Tensor, grid: Grid, extra: Extra) -> tuple[Tensor, ...]:
    out, lse = dense_softmax(scores, v)
    out = out + 0.5
    normed = _rms(out, extra["weight"])
    unit = torch.nn.functional.normalize(normed * 2.0 + 1.0, dim=-1, eps=1e-6)
    turned = rotate(unit, extra["cos"], extra["sin"], interleaved=True)
    return normed, (turned * 0.8 - out) * extra["gate"].sigmoid(), lse


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


@af.variant
def head_normed_difference(
    q: af.Query,
    k: af.Key,
    v: af.Value,
    q2: af.Query,
    k2: af.Key,
    lam: af.Captured,
    weight: af.Captured,
) -> tuple[af.Traced, af.Traced]:
    """Differential attention (Ye et al., 2024): a head norm over what two launches make."""
    s, other = (af.mask(af.scores(*sides), af.causal()) for sides in ((q, k), (q2, k2)))
    first, second = (af.attend(af.softmax(each), v) for each in (s, other))
    return af.norm(first - lam[af.h] * second, weight, eps=1e-5) * 0.8, af.lse(other)


def _difference_inputs(sizes: Sizes, generator: torch.Generator) -> Extra:
    return {
        "q2": torch.randn(sizes.batch, 4, sizes.q_len, 16, generator=generator),
        "k2": torch.randn(sizes.batch, 2, sizes.kv_len, 16, generator=generator),
        "lam": torch.rand(4, generator=generator),
        "weight": torch.rand(48, generator=generator) + 0.5,
    }


def _difference(scores: Tensor, v: Tensor, grid: Grid, extra: Extra) -> tuple[Tensor, ...]:
    first, _ = dense_softmax(scores, v)
    again = extra["q2"] @ extra["k2"].repeat_interleave(2, 1).transpose(-1, -2) / 4.0
    second, lse = dense_softmax(again.masked_fill(grid.k > grid.shifted, -math.inf), v)
    return _rms(first - extra["lam"][:, None, None] * second, extra["weight"]) * 0.8, lse


@af.variant
def qwen(
    q: af.Query,
    k: af.Key,
    v: af.Value,
    q_weight: af.Captured,
    k_weight: af.Captured,
    cos: af.Captured,
    sin: af.Captured,
) -> tuple[af.Traced, af.Traced]:
    """Qwen 3: RMS norms of queries and keys, then rotary embedding; here values have length 1."""
    q_turned = af.rope(af.norm(q, q_weight), cos, sin)
    k_turned = af.rope(af.norm(k, k_weight), cos, sin)
    s = af.mask(af.scores(q_turned, k_turned), af.causal())
    return af.attend(af.softmax(s), af.norm(v, kind="l2", eps=0.5)), af.lse(s)


def _qwen_inputs(sizes: Sizes, generator: torch.Generator) -> Extra:
    weights = {name: torch.rand(40, generator=generator) + 0.5 for name in ("q_weight", "k_weight")}
    return weights | _tables(16)(sizes, generator)


def _qwen(x: Tensor, extra: Extra, which: str) -> Tensor:
    if which == "v":
        return x / x.square().sum(-1, keepdim=True).sqrt().clamp_min(0.5)
    normed = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * extra[f"{which}_weight"]
    return rotate(normed, extra["cos"], extra["sin"], interleaved=False)


HALVES = (torch.float16, torch.bfloat16)

CASES = (
    Case(full, head_dim=64, value_dim=64, dtypes=(torch.float32, torch.float16)),
    Case(
        causal,
        heads=6,
        key_heads=2,
        head_dim=64,
        value_dim=64,
        visible=lambda grid, extra: grid.k <= grid.shifted,
        dtypes=(torch.float32, *HALVES),
        spread=8.0,
    ),
    Case(causal_top_left, head_dim=17, visible=lambda grid, extra: grid.k <= grid.q),
    Case(
        window,
        heads=4,
        key_heads=1,
        visible=lambda grid, extra: (grid.k >= grid.shifted - 90) & (grid.k <= grid.shifted + 3),
    ),
    Case(
        llama,
        heads=8,
        key_heads=2,
        head_dim=128,
        value_dim=128,
        extra=_tables(128),
        prologue=_rotated(interleaved=False),
        visible=lambda grid, extra: grid.k <= grid.shifted,
        dtypes=(torch.float32, torch.float16),
    ),
    Case(
        partly_rotated,
        head_dim=40,
        extra=_tables(16),
        prologue=_rotated(interleaved=True),
    ),
    Case(turned, heads=4, value_dim=40, extra=_tables(16), prologue=_turned),
    Case(
        softcap,
        heads=3,
        key_heads=1,
        score=lambda s, grid, extra: (s / 5.0).tanh() * 5.0,
        visible=lambda grid, extra: grid.k <= grid.shifted,
        spread=6.0,
    ),
    Case(
        relative_bias,
        head_dim=24,
        value_dim=40,
        extra=lambda sizes, generator: {"table": torch.randn(2, 41, generator=generator)},
        score=_relative_bias,
    ),
    Case(
        dense_bias,
        extra=lambda sizes, generator: {
            "pair": torch.randn(2, sizes.q_len, sizes.kv_len, generator=generator).half()
        },
        score=lambda s, grid, extra: ((s + extra["pair"]) / 9.0).tanh() * 9.0,
    ),
    Case(
        alibi,
        extra=lambda sizes, generator: {"slopes": torch.tensor([0.5, 0.0625])},
        score=lambda s, grid, extra: s + extra["slopes"][grid.h] * (grid.k - grid.q),
        visible=lambda grid, extra: grid.k <= grid.q,
    ),
    Case(
        documents,
        extra=_documents,
        visible=lambda grid, extra: (
            (extra["doc"][grid.b, grid.q] == extra["doc"][grid.b, grid.k]) & (grid.k <= grid.q)
        ),
    ),
    Case(
        padded,
        heads=7,
        key_heads=1,
        extra=lambda sizes, generator: {
            "lengths": torch.randint(
                0, sizes.kv_len + 1, (sizes.batch,), generator=generator, dtype=torch.int32
            )
        },
        visible=lambda grid, extra: (
            (grid.k < extra["lengths"][grid.b]) & ((grid.q - grid.k).abs() < 70)
        ),
    ),
    Case(
        scalars,
        head_dim=24,
        extra=lambda sizes, generator: {"temperature": torch.tensor(0.7)},
        score=_scalars,
    ),
    Case(
        qwen,
        heads=4,
        key_heads=1,
        head_dim=40,
        extra=_qwen_inputs,
        prologue=_qwen,
        visible=lambda grid, extra: grid.k <= grid.shifted,
        dtypes=(torch.float32, torch.float16),
    ),
    Case(
        sinks,
        heads=4,
        key_heads=2,
        extra=lambda sizes, generator: {"sink": torch.tensor([-3.0, 0.0, 2.0, 30.0])},
        visible=lambda grid, extra: (grid.k >= grid.shifted - 20) & (grid.k <= grid.shifted),
        finish=_sinks,
    ),
    Case(
        sigmoid_attention,
        extra=lambda sizes, generator: {"shift": torch.tensor(-2.0)},
        score=lambda s, grid, extra: s + extra["shift"],
        visible=lambda grid, extra: grid.k <= grid.shifted,
        finish=_weighted(torch.sigmoid),
    ),
    Case(
        squared_relu,
        visible=lambda grid, extra: (grid.k - grid.shifted).abs() <= 40,
        finish=_weighted(lambda s: s.relu().square() / 81),
    ),
    Case(
        linear,
        head_dim=16,
        visible=lambda grid, extra: grid.k <= grid.shifted,
        finish=_weighted(lambda s: s.masked_fill(s == -math.inf, 0.0)),
    ),
    Case(
        gated,
        heads=6,
        key_heads=3,
        value_dim=24,
        extra=lambda sizes, generator: {
            "gate": torch.randn(sizes.batch, 6, sizes.q_len, 24, generator=generator),
            "gain": torch.rand(6, generator=generator),
        },
        visible=lambda grid, extra: grid.k <= grid.q,
        finish=_gated,
    ),
    Case(
        statistics,
        heads=4,
        visible=lambda grid, extra: (grid.k >= grid.shifted - 70) & (grid.k <= grid.shifted),
        finish=_statistics,
        spread=3.0,
    ),
    Case(
        own_heads,
        heads=4,
        extra=_own_heads_inputs,
        score=_own_heads,
        visible=lambda grid, extra: grid.k <= grid.shifted,
        dtypes=(torch.float32, torch.float16),
        attended=("q_own", "k_own"),
    ),
    Case(
        low_rank,
        heads=6,
        extra=_low_rank_inputs,
        score=lambda s, grid, extra: s + extra["left"] @ extra["right"].transpose(-1, -2),
        visible=lambda grid, extra: grid.k <= grid.shifted,
        dtypes=(torch.float32, torch.float16),
        attended=("left", "right"),
    ),
    Case(
        copied,
        heads=4,
        head_dim=40,
        value_dim=24,
        visible=lambda grid, extra: grid.k <= grid.shifted,
        dtypes=(torch.float32, torch.bfloat16),
    ),
    Case(
        turned_back,
        heads=4,
        extra=_tables(32),
        prologue=lambda x, extra, which: rotate(x, extra["cos"], extra["sin"], interleaved=False),
        visible=lambda grid, extra: grid.k <= grid.shifted,
        finish=_turned_back,
        dtypes=(torch.float32, torch.float16),
    ),
    Case(
        head_norms,
        heads=4,
        value_dim=40,
        extra=lambda sizes, generator: {
            "weight": torch.rand(40, generator=generator) + 0.5,
            "gate": torch.randn(sizes.batch, 4, sizes.q_len, 40, generator=generator),
            **_tables(24)(sizes, generator),
        },
        visible=lambda grid, extra: grid.k <= grid.q,
        finish=_head_norms,
        dtypes=(torch.float32, torch.bfloat16),
    ),
    Case(
        head_normed_difference,
        heads=4,
        head_dim=16,
        value_dim=48,
        extra=_difference_inputs,
        visible=lambda grid, extra: grid.k <= grid.shifted,
        finish=_difference,
        attended=("q2", "k2"),
    ),
    Case(nothing_seen, visible=lambda grid, extra: grid.k < grid.q - 5000),
    Case(
        reserved,
        extra=lambda sizes, generator: {
            "score": torch.randn(sizes.q_len, generator=generator),
            "h": torch.randn(2, generator=generator),
            "q_tile": torch.randn(sizes.kv_len, generator=generator),
        },
        score=lambda s, grid, extra: (
            s + extra["score"][grid.q] * extra["h"][grid.h] + extra["q_tile"][grid.k]
        ),
    ),
)


# -- the budget ---------------------------------------------------------------------


def check(got: Sequence[Tensor], exact: Sequence[Tensor], plain: Sequence[Tensor]) -> None:
    """Hold outputs against float64, with plain PyTorch's error as measure.

    At most twice the error that plain PyTorch has in the same element type,
    plus 1e-5; everything finite, but the −∞ of rows that see nothing.
    """
    for place, (ours, oracle, theirs) in enumerate(zip(got, exact, plain, strict=True)):
        ours, theirs, oracle = ours.double().cpu(), theirs.double().cpu(), oracle.cpu()
        empty = oracle == -math.inf
        assert torch.equal(ours == -math.inf, empty), f"output {place}: −∞ in other places"
        assert ours.masked_fill(empty, 0.0).isfinite().all(), f"output {place} is not finite"
        allowed = 2 * _largest(theirs, oracle, empty) + 1e-5
        error = _largest(ours, oracle, empty)
        assert error <= allowed, f"output {place}: error {error:.2e}, allowed {allowed:.2e}"


def _largest(value: Tensor, oracle: Tensor, empty: Tensor) -> float:
    difference = (value.masked_fill(empty, 0.0) - oracle.masked_fill(empty, 0.0)).abs()
    return difference.max().item() if difference.numel() else 0.0
