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
from common import compare, normal
from torch import Tensor

import attnfuse as af

HEADS, HEAD_DIM = 12, 64
BUCKETS, MAX_DISTANCE = 32, 128
LENGTH = 400


@af.variant
def t5(q: af.Query, k: af.Key, v: af.Value, buckets: af.Captured, weight: af.Captured) -> af.Traced:
    """Unscaled scores and the bias of the distance's bucket; no mask."""
    bucket = buckets[af.k - af.q + (af.q_len - 1)]
    s = af.bias(af.scores(q, k, scale=1.0), weight[bucket, af.h])
    return af.attend(af.softmax(s), v)


def buckets_of(length: int) -> Tensor:
    """The bucket of each distance from −(length − 1) to length − 1."""
    distance = torch.arange(1 - length, length)
    half = BUCKETS // 2
    near = half // 2  # distances below have a bucket each
    far = distance.abs().clamp_min(1).double() / near
    steps = (far.log() / math.log(MAX_DISTANCE / near) * (half - near)).long()
    bucket = torch.where(distance.abs() < near, distance.abs(), near + steps).clamp_max(half - 1)
    return bucket + half * (distance > 0)


def main() -> None:
    """Run one layer of the encoder."""
    q = normal(1, HEADS, LENGTH, HEAD_DIM, seed=0) * HEAD_DIM**-0.5
    k, v = (normal(1, HEADS, LENGTH, HEAD_DIM, seed=seed) for seed in (1, 2))
    compare(t5, q, k, v, buckets_of(LENGTH), normal(BUCKETS, HEADS, seed=3))


if __name__ == "__main__":
    main()
