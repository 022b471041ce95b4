"""ALiBi: no position embedding, but a penalty that grows linearly with the distance.

Press, Smith, Lewis, "Train Short, Test Long: Attention with Linear Biases Enables Input Length
Extrapolation" (2022); used by BLOOM and MPT. Sizes of BLOOM 7B, with fewer heads.

Head h of H, counted from 0, adds −2^(−8(h+1)/H) · (distance to the key) to its scaled scores. (The
paper's slopes where H is a power of 2; for another H its code takes them from two powers of 2.)

`af.q` counts queries from 0. Where a cache holds keys from before the first of them, the position
of a query among the keys is `af.position()`, so that the last query stands at the last key; as
`af.causal()` has it. What is the same in a whole row drops out of softmax, and BLOOM's own code
leaves the query's position out. But with it the bias of a near key is small, and so is its rounding
error.

    python examples/03_alibi.py
"""

from __future__ import annotations

import torch
from common import Sizes, compare
from torch import Tensor

import attnfuse as af

# In the model 32 heads.
SIZES = Sizes(heads=8, key_heads=8, head_dim=128, value_dim=128, q_len=384, kv_len=384)


@af.variant
def alibi(q: af.Query, k: af.Key, v: af.Value, slopes: af.Captured) -> af.Traced:
    """Each head's slope times the signed distance, which is negative before the query."""
    s = af.bias(af.scores(q, k), slopes[af.h] * (af.k - af.position()))
    return af.attend(af.softmax(af.mask(s, af.causal())), v)


def slopes_of(heads: int) -> Tensor:
    """1/2, 1/4, … 1/256 for eight heads."""
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)


def inputs(sizes: Sizes) -> tuple[Tensor, ...]:
    """Random queries, keys and values, and the slopes."""
    return (*sizes.qkv(), slopes_of(sizes.heads))


def main() -> None:
    """Run it, and again with a cache: the last 100 queries alone, by the same kernel."""
    q, k, v, slopes = inputs(SIZES)
    compare(alibi, q, k, v, slopes)
    compare(alibi, q[:, :, -100:], k, v, slopes)


if __name__ == "__main__":
    main()
