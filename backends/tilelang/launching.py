"""What the launchers of all targets share: outputs, and the values of a kernel's parameters.

A launch is *prepared* once for each shape and pattern of strides. What a call
has to do then is to allocate the outputs, and to launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from attnfuse.backends.tilelang.header import batch_labels, strides
from attnfuse.backends.tilelang.words import Words
from attnfuse.ir.axes import Size, Symbol
from attnfuse.plan.kernel import Plan

Sizes = Mapping[Symbol, int]


class Placed(Protocol):
    """A tensor, or one that will be there at a call: its place in memory."""

    @property
    def device(self) -> torch.device:
        """The device."""
        ...

    def dim(self) -> int:
        """How many dimensions it has."""
        ...

    def stride(self) -> tuple[int, ...]:
        """The step of each dimension, in elements."""
        ...


@dataclass(frozen=True)
class Output:
    """A result to be: its place in memory, and the element type that a kernel writes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def dim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    def stride(self) -> tuple[int, ...]:
        """The step of each dimension, in elements."""
        return self.strides

    def allocate(self) -> Tensor:
        """An uninitialised tensor."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


class Prepared(Protocol):
    """A launch for tensors of some shape, strides and device."""

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What it returns, to be."""
        ...

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Launch: from the tensors of a plan's parameters, in order, to those of its results."""
        ...


def empty_output(
    shape: Sequence[int], like: Placed, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """An uninitialised output; rows of features lie in memory in the order of ``like``.

    So whoever passes (batch, length, head, feature) in memory gets it back.
    What has no features is contiguous.
    """
    order = list(range(len(shape)))
    if len(shape) == like.dim():
        steps = like.stride()
        order[:-1] = sorted(order[:-1], key=lambda place: steps[place], reverse=True)
    memory = torch.empty([shape[d] for d in order], dtype=dtype, device=device)
    return memory.permute([order.index(d) for d in range(len(shape))])


def outputs_of(plan: Plan, like: Placed, sizes: Sizes, words: Words) -> tuple[Output, ...]:
    """The outputs of a plan for these sizes, in the order of its results."""
    made: list[Output] = []
    for result in plan.results:
        shape = tuple(number(size, sizes) for size in result.sizes)
        dtype: torch.dtype = getattr(torch, words.stored(result.dtype).value)
        placed = empty_output(shape, like, dtype, torch.device("meta"))
        made.append(Output(shape, placed.stride(), dtype, like.device))
    return tuple(made)


def values_of(
    plan: Plan, inputs: Sequence[Placed], outputs: Sequence[Output], sizes: Sizes
) -> dict[str, int]:
    """The value of each size and stride that a kernel is told, by name."""
    values = {str(symbol): size for symbol, size in sizes.items()}
    for parameter, tensor in zip(plan.parameters, inputs, strict=True):
        values |= zip(strides(parameter), tensor.stride(), strict=False)
    for result, output in zip(plan.results, outputs, strict=True):
        values |= zip(strides(result), output.stride(), strict=True)
    return values


def grid_of(plan: Plan, sizes: Sizes) -> tuple[int, int, int]:
    """Blocks of rows, heads and batch entries."""
    result = plan.results[0]
    extents = dict(zip(result.labels, (number(size, sizes) for size in result.sizes), strict=True))
    entries = 1
    for label in batch_labels(plan):
        entries *= extents[label]
    return -(-extents[plan.rows] // plan.schedule.block_q), extents["h"], entries


def number(size: Size, sizes: Sizes) -> int:
    """The number behind a size."""
    return size if isinstance(size, int) else sizes[size]
