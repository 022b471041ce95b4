"""Builds and runs programs on the GPU that is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnfuse.backends.tilelang.launching import Sizes, empty_outputs
from attnfuse.backends.tilelang.lower import import_tilelang, load, pass_configs, target_of
from attnfuse.backends.tilelang.source import Source
from attnfuse.backends.tilelang.words import Words
from attnfuse.plan.kernel import Plan

_WORDS = Words(on_gpu=True)


@dataclass(frozen=True)
class GpuKernel:
    """A kernel that is loaded onto a GPU."""

    plan: Plan
    kernel: Any

    def __call__(self, given: Mapping[str, Tensor], sizes: Sizes) -> tuple[Tensor, ...]:
        """The outputs for tensors on one GPU, by name, and the sizes that they have.

        Runs on the tensors' device and its current stream.
        """
        inputs = [given[parameter.name].detach() for parameter in self.plan.parameters]
        outputs = empty_outputs(self.plan, given, sizes, _WORDS)
        if outputs[0].numel() == 0:
            return tuple(outputs)
        shaped = [tensor if tensor.dim() else tensor.reshape(1) for tensor in inputs]
        with torch.cuda.device(outputs[0].device):
            self.kernel(*shaped, *outputs)
        return tuple(outputs)


def build(plan: Plan, source: Source, folder: Path) -> GpuKernel:
    """The kernel of a program, compiled by TileLang, which keeps a cache of its own."""
    kernel = import_tilelang().compile(
        load(source, folder),
        target=target_of(source.device),
        pass_configs=dict(pass_configs(source.device)),
    )
    return GpuKernel(plan, kernel)
