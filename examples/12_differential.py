"""Differential attention (Ye et al., 2024): the difference of two attentions cancels noise.

Two sets of queries and keys attend to the same values; the second output is
subtracted, times a λ that each head learns. Each softmax is a launch of its
own. The second launch reads what the first has left, subtracts, and normalises
and scales each head's output, as the model does.

    python examples/12_differential.py
"""

from __future__ import annotations

from common import compare, normal

import attnfuse as af

HEADS, KEY_HEADS, HEAD_DIM, LENGTH = 8, 4, 64, 384
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


def main() -> None:
    """Run it on random tensors of the model's proportions: values are twice as wide."""
    shapes = [(HEADS, HEAD_DIM)] * 2 + [(KEY_HEADS, HEAD_DIM)] * 2 + [(KEY_HEADS, 2 * HEAD_DIM)]
    tensors = [normal(1, h, LENGTH, d, seed=seed) for seed, (h, d) in enumerate(shapes)]
    lam, weight = normal(HEADS, seed=9).sigmoid(), 1 + 0.1 * normal(2 * HEAD_DIM, seed=10)
    compare(differential, *tensors, lam, weight)


if __name__ == "__main__":
    main()
