"""Runs kernels on AMD GPUs, which TileLang itself builds and launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnfuse.backends.tilelang.launching import Output, Placed, Prepared, Shapes, Sizes
from attnfuse.backends.tilelang.lower import (
    import_tilelang,
    load,
    pass_configs,
    quick_proofs,
    target_of,
)
from attnfuse.backends.tilelang.source import Source
from attnfuse.backends.tilelang.words import Words
from attnfuse.plan.kernel import Plan

_WORDS = Words(on_gpu=True)


@dataclass(frozen=True)
class HipKernel:
    """A kernel with TileLang's host code, which reads sizes and strides off the tensors."""

    plan: Plan
    kernel: Any

    @cached_property
    def shapes(self) -> Shapes:
        """What it is told of sizes and strides."""
        return Shapes(self.plan, _WORDS)

    def prepare(self, inputs: Sequence[Placed], like: Placed, sizes: Sizes) -> Prepared:
        """The launch for tensors of this shape and these strides; arguments as on the CPU."""
        return _Launch(self.kernel, self.shapes.outputs(like, sizes))


@dataclass(frozen=True)
class _Launch:
    """What a call has to do, on the tensors' device and its current stream."""

    kernel: Any
    outputs: tuple[Output, ...]

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        outputs = [output.allocate() for output in self.outputs]
        if outputs[0].numel():
            shaped = [tensor if tensor.dim() else tensor.reshape(1) for tensor in inputs]
            with torch.cuda.device(outputs[0].device):
                self.kernel(*shaped, *outputs)
        return outputs


def build(plan: Plan, source: Source, folder: Path) -> HipKernel:
    """The kernel of a program, compiled by TileLang, which keeps a cache of its own."""
    with quick_proofs():
        kernel = import_tilelang().compile(
            load(source, folder),
            target=target_of(source.device),
            pass_configs=dict(pass_configs(source)),
        )
    return HipKernel(plan, kernel)
