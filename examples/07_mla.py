"""DeepSeek's multi-head latent attention (MLA), as it is computed for a prompt and in training.

DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model"
(2024); sizes of DeepSeek-V3, with fewer heads.

Each head has 128 features without position and 64 that are rotated. A score is the sum of two
products, so the two parts need not be copied behind each other, and no key is rotated but where it
is meant to be. All heads share the rotated part of the keys: one head, expanded to all by a view
that copies nothing. Values have 128 features.

DeepSeek rotates interleaved pairs, 2i with 2i + 1. Its YaRN leaves cosines and sines as they are,
because mscale and mscale_all_dim are equal, and multiplies the scale of scores by
(0.1 · mscale_all_dim · ln(factor) + 1)² instead.

    python examples/07_mla.py
"""

from __future__ import annotations

import math

from common import Sizes, compare, normal
from torch import Tensor

import attnfuse as af

# In the model 128 heads. Keys have as many features without position as values have.
SIZES = Sizes(heads=4, key_heads=4, head_dim=192, value_dim=128, q_len=300, kv_len=300)
YARN = af.YarnScaling(factor=40.0, original=4096, mscale=1.0, mscale_all_dim=1.0)
SCALE = 192**-0.5 * (0.1 * YARN.mscale_all_dim * math.log(YARN.factor) + 1.0) ** 2


@af.variant
def mla(
    q_nope: af.Query,
    q_rope: af.Query,
    k_nope: af.Key,
    k_rope: af.Key,
    v: af.Value,
    cos: af.Captured,
    sin: af.Captured,
) -> af.Traced:
    """Scores of both parts, one causal softmax."""
    q_turned = af.rope(q_rope, cos, sin, pairing="interleaved")
    k_turned = af.rope(k_rope, cos, sin, pairing="interleaved")
    s = af.scores(q_nope, k_nope, scale=SCALE) + af.scores(q_turned, k_turned, scale=SCALE)
    return af.attend(af.softmax(af.mask(s, af.causal())), v)


def inputs(sizes: Sizes) -> tuple[Tensor, ...]:
    """What the up-projections would give, taken apart by views, and rotation tables."""
    nope, rope = sizes.value_dim, sizes.head_dim - sizes.value_dim
    q = normal(sizes.batch, sizes.heads, sizes.q_len, nope + rope, seed=0)
    kv = normal(sizes.batch, sizes.key_heads, sizes.kv_len, 2 * nope, seed=1)
    k_rope = normal(sizes.batch, 1, sizes.kv_len, rope, seed=2).expand(-1, sizes.key_heads, -1, -1)
    tables = af.rope_tables(sizes.positions, rope // 2 * 2, scaling=YARN)
    return (q[..., :nope], q[..., nope:], kv[..., :nope], k_rope, kv[..., nope:], *tables)


def main() -> None:
    """Run it."""
    compare(mla, *inputs(SIZES))


if __name__ == "__main__":
    main()
