"""What the launchers of all targets share: outputs, and the values of a kernel's parameters."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from attnfuse.backends.tilelang.words import Words
from attnfuse.ir.axes import Size, Symbol
from attnfuse.plan.kernel import Plan, Result

Sizes = Mapping[Symbol, int]


def empty_outputs(
    plan: Plan, tensors: Mapping[str, Tensor], sizes: Sizes, words: Words
) -> list[Tensor]:
    """Uninitialised outputs, laid out in memory like the query, or what is prepared."""
    like = tensors[plan.like]
    return [_empty_like(like, result, sizes, words) for result in plan.results]


def number(size: Size, sizes: Sizes) -> int:
    """The number behind a size."""
    return size if isinstance(size, int) else sizes[size]


def _empty_like(query: Tensor, result: Result, sizes: Sizes, words: Words) -> Tensor:
    """An output; rows of features lie in memory in the query's order.

    So whoever passes (batch, length, head, feature) in memory gets it back.
    """
    shape = [number(size, sizes) for size in result.sizes]
    order = list(range(len(shape)))
    if result.has_features:
        order[:-1] = sorted(order[:-1], key=lambda d: query.stride(d), reverse=True)
    dtype = getattr(torch, words.stored(result.dtype).value)
    memory = torch.empty([shape[d] for d in order], dtype=dtype, device=query.device)
    return memory.permute([order.index(d) for d in range(len(shape))])
