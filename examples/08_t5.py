"""T5's relative position bias: a learnt number for each head and bucket of distances.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer"
(2020); the encoder of T5 base.

A distance k − q falls into one of 32 buckets: 16 for keys after the query, 16 for the others. Near
distances have a bucket each; farther ones share them, in steps that grow with the logarithm up to
distance 128. Buckets are looked up in a small table of all 2S − 1 distances, then the bias in the
model's own weight (buckets, heads): what is read from a tensor can index another, and the dense
bias (heads, S, S) is never made. Scores aren't scaled; T5 initialises the weights of queries so
that they needn't be.

    python examples/08_t5.py
"""

from __future__ import annotations

import math

import torch
from common import Sizes, compare, normal
from torch import Tensor

import attnfuse as af

SIZES = Sizes(heads=12, key_heads=12, head_dim=64, value_dim=64, q_len=400, kv_len=400)
BUCKETS, MAX_DISTANCE = 32, 128


@af.variant
def t5(q: af.Query, k: af.Key, v: af.Value, buckets: af.Captured, weight: af.Captured) -> af.Traced:
    """Unscaled scores and the bias of the distance's bucket; no mask."""
    bucket = buckets[af.k - af.q + (af.q_len - 1)]
    s = af.bias(af.scores(q, k, scale=1.0), weight[bucket, af.h])
    return af.attend(af.softmax(s), v)


def buckets_of(q_len: int, kv_len: int) -> Tensor:
    """The bucket of each distance from −(q_len − 1) to kv_len − 1."""
    distance = torch.arange(1 - q_len, kv_len)
    half = BUCKETS // 2
    near = half // 2  # distances below have a bucket each
    far = distance.abs().clamp_min(1).double() / near
    steps = (far.log() / math.log(MAX_DISTANCE / near) * (half - near)).long()
    bucket = torch.where(distance.abs() < near, distance.abs(), near + steps).clamp_max(half - 1)
    return bucket + half * (distance > 0)


def inputs(sizes: Sizes) -> tuple[Tensor, ...]:
    """Queries as T5 initialises them, keys, values, buckets and the bias's weight."""
    q, k, v = sizes.qkv()
    weight = normal(BUCKETS, sizes.heads, seed=3)
    return q * sizes.head_dim**-0.5, k, v, buckets_of(sizes.q_len, sizes.kv_len), weight


def main() -> None:
    """Run one layer of the encoder."""
    compare(t5, *inputs(SIZES))


if __name__ == "__main__":
    main()
