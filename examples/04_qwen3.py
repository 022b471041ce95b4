"""Qwen 3's attention: queries and keys are normalised head by head, then rotated.

Qwen Team, "Qwen3 Technical Report" (2025); qk-norm itself is of Henry et al., "Query-Key
Normalization for Transformers" (2020), with another norm. Sizes of Qwen 3 8B, with fewer heads.

The norm divides the features of a head by the root of their mean square, computed in float32, and
multiplies them by a learnt weight, which all heads of a layer share. Norm and rotation are part of
the kernel: they happen while a tile of queries or keys is loaded. Three query heads meet one key
head here, and four in the model.

A projection gives (batch, length, heads · head_dim). The views of it below are passed as they are:
a kernel takes any strides, and nothing is copied.

    python examples/04_qwen3.py
"""

from __future__ import annotations

from common import Sizes, compare, normal
from torch import Tensor

import attnfuse as af

# In the model 32 and 8 heads.
SIZES = Sizes(heads=6, key_heads=2, head_dim=128, value_dim=128, q_len=320, kv_len=320)
EPS, THETA = 1e-6, 1e6


@af.variant
def qwen3(
    q: af.Query,
    k: af.Key,
    v: af.Value,
    q_weight: af.Captured,
    k_weight: af.Captured,
    cos: af.Captured,
    sin: af.Captured,
) -> af.Traced:
    """RMS norm, RoPE, causal softmax."""
    q_turned = af.rope(af.norm(q, q_weight, eps=EPS), cos, sin)
    k_turned = af.rope(af.norm(k, k_weight, eps=EPS), cos, sin)
    s = af.mask(af.scores(q_turned, k_turned), af.causal())
    return af.attend(af.softmax(s), v)


def projected(sizes: Sizes, length: int, heads: int, features: int, seed: int) -> Tensor:
    """A view (batch, heads, length, features) of (batch, length, heads · features)."""
    flat = normal(sizes.batch, length, heads * features, seed=seed)
    return flat.view(sizes.batch, length, heads, features).transpose(1, 2)


def inputs(sizes: Sizes) -> tuple[Tensor, ...]:
    """What projections would give, weights of the norms, and rotation tables."""
    q = projected(sizes, sizes.q_len, sizes.heads, sizes.head_dim, seed=0) * 3.0
    k = projected(sizes, sizes.kv_len, sizes.key_heads, sizes.head_dim, seed=1) * 3.0
    v = projected(sizes, sizes.kv_len, sizes.key_heads, sizes.value_dim, seed=2)
    q_weight, k_weight = (1.0 + 0.2 * normal(sizes.head_dim, seed=seed) for seed in (3, 4))
    tables = af.rope_tables(sizes.positions, sizes.rotary_dim, theta=THETA)
    return (q, k, v, q_weight, k_weight, *tables)


def main() -> None:
    """Run it."""
    compare(qwen3, *inputs(SIZES))


if __name__ == "__main__":
    main()
