"""Sigmoid attention: no normalisation, each weight is a sigmoid of its own score.

Ramapuram et al., "Theory, Analysis, and Best Practices for Sigmoid Self-Attention" (2024); sizes
of ViT-B/16, the vision transformer among their models, which has no mask.

Each of n keys gets the weight σ(s − log n). Without the bias a fresh model's weights would be 1/2
each and add up to n/2; with it they are about 1/n, as softmax's are. n is `af.kv_len`, so one
kernel serves all lengths. There is no running maximum and no sum to keep: weights go straight into
the product with the values.

    python examples/06_sigmoid.py
"""

from __future__ import annotations

from common import Sizes, compare
from torch import Tensor

import attnfuse as af

PATCHES = (320 // 16) ** 2 + 1  # of an image of 320 × 320, and the class token
SIZES = Sizes(heads=12, key_heads=12, head_dim=64, value_dim=64, q_len=PATCHES, kv_len=PATCHES)


@af.variant
def sigmoid(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
    """Weights σ(q · k / √d − log n)."""
    s = af.bias(af.scores(q, k), -af.log(af.kv_len))
    return af.attend(af.sigmoid(s), v)


def inputs(sizes: Sizes) -> tuple[Tensor, ...]:
    """Random queries, keys and values."""
    return sizes.qkv()


def main() -> None:
    """Run it on one image."""
    compare(sigmoid, *inputs(SIZES))


if __name__ == "__main__":
    main()
