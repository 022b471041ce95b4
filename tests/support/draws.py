"""Random lengths and strides for calls of one kernel."""

from __future__ import annotations

import random
from collections.abc import Sequence

from torch import Tensor

STRIDES = ("as made", "transposed", "sliced", "expanded")
"""What `strided` can do."""


def lengths(chooser: random.Random, choices: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs (q_len, kv_len): each of the choices once for both, paired at random."""
    q_lens, kv_lens = list(choices), list(choices)
    chooser.shuffle(q_lens)
    chooser.shuffle(kv_lens)
    return list(zip(q_lens, kv_lens, strict=True))


def strided(tensor: Tensor, how: str) -> Tensor:
    """A tensor (batch, …, heads, length, features) with other strides; features stay contiguous.

    Its values are the same, but where it is expanded: then all entries of the batch are the first.
    """
    if how == "transposed":  # (batch, …, length, heads, features) in memory
        return tensor.transpose(-3, -2).contiguous().transpose(-3, -2)
    if how == "sliced":
        wide = tensor.new_full((*tensor.shape[:-1], tensor.shape[-1] + 5), float("nan"))
        wide[..., 2:-3] = tensor
        return wide[..., 2:-3]
    if how == "expanded":
        return tensor[:1].expand(tensor.shape)
    return tensor
