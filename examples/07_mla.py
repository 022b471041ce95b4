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

from common import compare, normal

import attnfuse as af

HEADS, NOPE, ROPE, VALUE = 4, 128, 64, 128  # in the model 128 heads
LENGTH = 300
YARN = af.YarnScaling(factor=40.0, original=4096, mscale=1.0, mscale_all_dim=1.0)
SCALE = (NOPE + ROPE) ** -0.5 * (0.1 * YARN.mscale_all_dim * math.log(YARN.factor) + 1.0) ** 2


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


def main() -> None:
    """Run it on what the up-projections would give."""
    q = normal(1, HEADS, LENGTH, NOPE + ROPE, seed=0)
    kv = normal(1, HEADS, LENGTH, NOPE + VALUE, seed=1)
    k_rope = normal(1, 1, LENGTH, ROPE, seed=2).expand(-1, HEADS, -1, -1)
    q_nope, q_rope = q[..., :NOPE], q[..., NOPE:]
    k_nope, v = kv[..., :NOPE], kv[..., NOPE:]
    cos, sin = af.rope_tables(LENGTH, ROPE, scaling=YARN)
    compare(mla, q_nope, q_rope, k_nope, k_rope, v, cos, sin)


if __name__ == "__main__":
    main()
