"""Differential attention (Ye et al., 2024): the difference of two attentions cancels noise.

Two sets of queries and keys attend to the same values; the second output is
subtracted, times a λ that each head learns. Each softmax is a launch of its
own. The second launch reads what the first has left, subtracts, and normalises
and scales each head's output, as the model does.

    python examples/12_differential.py
"""

from __future__ import annotations

from common import Sizes, compare, normal
from torch import Tensor

import attnfuse as af

# Values are twice as wide as keys, as in the model.
SIZES = Sizes(heads=8, key_heads=4, head_dim=64, value_dim=128, q_len=384, kv_len=384)
LAMBDA_INIT = 0.2
"""λ of the first layer before training."""


@af.variant
def differential(
    q1: af.Query,
    q2: af.Query,
    k1: af.Key,
    k2: af.Key,
    v: af.Value,
    lam: af.Captured,
    weight: af.Captured,
) -> af.Traced:
    """(1 − λ₀)·norm(softmax(q₁·k₁ᵀ)·v − λ·softmax(q₂·k₂ᵀ)·v), causal."""
    first, second = (
        af.attend(af.softmax(af.mask(af.scores(q, k), af.causal())), v)
        for q, k in ((q1, k1), (q2, k2))
    )
    return af.norm(first - lam[af.h] * second, weight, eps=1e-5) * (1 - LAMBDA_INIT)


def inputs(sizes: Sizes) -> tuple[Tensor, ...]:
    """Two sets of random queries and keys, values, λ of each head, and the norm's weight."""
    q1, k1, v = sizes.qkv()
    q2, k2 = normal(*q1.shape, seed=3), normal(*k1.shape, seed=4)
    lam, weight = normal(sizes.heads, seed=5).sigmoid(), 1 + 0.1 * normal(sizes.value_dim, seed=6)
    return q1, q2, k1, k2, v, lam, weight


def main() -> None:
    """Run it."""
    compare(differential, *inputs(SIZES))


if __name__ == "__main__":
    main()
