"""What the launchers of all targets share: outputs, and the values of a kernel's parameters.

A launch is *prepared* once for each shape and pattern of strides. What a call
has to do then is to allocate the outputs, and to launch.
"""

from __future__ import annotations

import math
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
    return torch.empty_strided(shape, _strides(shape, like), dtype=dtype, device=device)


def _strides(shape: Sequence[int], like: Placed) -> tuple[int, ...]:
    """The strides of an output."""
    order = list(range(len(shape)))
    if len(shape) == like.dim():
        steps = like.stride()
        order[:-1] = sorted(order[:-1], key=lambda place: steps[place], reverse=True)
    found, step = [0] * len(shape), 1
    for place in reversed(order):
        found[place] = step
        step *= max(shape[place], 1)
    return tuple(found)


class Shapes:
    """What a kernel is told of sizes and strides, and what it writes, worked out for a plan.

    Args:
        plan: what the kernel does.
        words: the words of its target.
    """

    def __init__(self, plan: Plan, words: Words) -> None:
        self._inputs = [strides(parameter) for parameter in plan.parameters]
        self._results = [strides(result) for result in plan.results]
        dtypes = [words.stored(result.dtype).value for result in plan.results]
        self._dtypes: list[torch.dtype] = [getattr(torch, dtype) for dtype in dtypes]
        self._sizes = [result.sizes for result in plan.results]
        first = plan.results[0]
        extents = dict(zip(first.labels, first.sizes, strict=True))
        self._rows, self._block = extents[plan.rows], plan.schedule.block_q
        self._blocks = plan.schedule.blocks
        self._heads = extents["h"]
        self._entries = [extents[label] for label in batch_labels(plan)]

    def outputs(self, like: Placed, sizes: Sizes) -> tuple[Output, ...]:
        """The outputs to be, in the order of the plan's results."""
        made: list[Output] = []
        for wanted, dtype in zip(self._sizes, self._dtypes, strict=True):
            shape = tuple(number(size, sizes) for size in wanted)
            made.append(Output(shape, _strides(shape, like), dtype, like.device))
        return tuple(made)

    def values(
        self, inputs: Sequence[Placed], outputs: Sequence[Output], sizes: Sizes
    ) -> dict[str, int]:
        """The value of each size and stride that the kernel is told, by name."""
        values = {str(symbol): size for symbol, size in sizes.items()}
        for names, tensor in zip(self._inputs, inputs, strict=True):
            values |= zip(names, tensor.stride(), strict=False)
        for names, output in zip(self._results, outputs, strict=True):
            values |= zip(names, output.strides, strict=True)
        return values

    def grid(self, sizes: Sizes) -> tuple[int, int, int]:
        """Blocks of rows, heads and batch entries; or as many as share these."""
        entries = math.prod(number(size, sizes) for size in self._entries)
        rows = number(self._rows, sizes)
        grid = -(-rows // self._block), number(self._heads, sizes), entries
        return (min(math.prod(grid), self._blocks), 1, 1) if self._blocks else grid


def number(size: Size, sizes: Sizes) -> int:
    """The number behind a size."""
    return size if isinstance(size, int) else sizes[size]
