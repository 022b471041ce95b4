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

from common import compare, normal
from torch import Tensor

import attnfuse as af

HEADS, KEY_HEADS, HEAD_DIM = 6, 2, 128  # in the model 32 and 8 heads
EPS, THETA = 1e-6, 1e6
LENGTH = 320


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


def heads_of(projected: Tensor, heads: int) -> Tensor:
    """A view (batch, heads, length, head_dim) of (batch, length, heads · head_dim)."""
    return projected.view(*projected.shape[:2], heads, HEAD_DIM).transpose(1, 2)


def main() -> None:
    """Run it on what projections would give."""
    q = heads_of(normal(1, LENGTH, HEADS * HEAD_DIM, seed=0) * 3.0, HEADS)
    k = heads_of(normal(1, LENGTH, KEY_HEADS * HEAD_DIM, seed=1) * 3.0, KEY_HEADS)
    v = heads_of(normal(1, LENGTH, KEY_HEADS * HEAD_DIM, seed=2), KEY_HEADS)
    q_weight, k_weight = (1.0 + 0.2 * normal(HEAD_DIM, seed=seed) for seed in (3, 4))
    cos, sin = af.rope_tables(LENGTH, HEAD_DIM, theta=THETA)
    compare(qwen3, q, k, v, q_weight, k_weight, cos, sin)


if __name__ == "__main__":
    main()
