"""Builds and runs programs on the GPU that is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnfuse.backends.tilelang.header import tensors
from attnfuse.backends.tilelang.launching import Sizes, empty_outputs
from attnfuse.backends.tilelang.lower import import_tilelang, load, pass_configs, target_of
from attnfuse.backends.tilelang.source import Source
from attnfuse.backends.tilelang.words import Words
from attnfuse.errors import Misaligned
from attnfuse.plan.kernel import Parameter, QueryMajor

_WORDS = Words(on_gpu=True)
_ALIGNMENT = 16


@dataclass(frozen=True)
class GpuKernel:
    """A kernel that is loaded onto a GPU."""

    plan: QueryMajor
    kernel: Any

    def __call__(self, given: Mapping[str, Tensor], sizes: Sizes) -> tuple[Tensor, ...]:
        """The outputs for tensors on one GPU, by name, and the sizes that they have.

        Runs on the tensors' device and its current stream.

        Raises:
            Misaligned: rows of a query, key, value or output don't start at multiples of 16 bytes.
        """
        inputs = [given[parameter.name].detach() for parameter in self.plan.parameters]
        outputs = empty_outputs(self.plan, given, sizes, _WORDS)
        for parameter, tensor in zip(tensors(self.plan), (*inputs, *outputs), strict=True):
            _check_alignment(self.plan, parameter, tensor)
        if outputs[0].numel() == 0:
            return tuple(outputs)
        shaped = [tensor if tensor.dim() else tensor.reshape(1) for tensor in inputs]
        with torch.cuda.device(outputs[0].device):
            self.kernel(*shaped, *outputs)
        return tuple(outputs)


def build(plan: QueryMajor, source: Source, folder: Path) -> GpuKernel:
    """The kernel of a program, compiled by TileLang, which keeps a cache of its own."""
    kernel = import_tilelang().compile(
        load(source, folder),
        target=target_of(source.device),
        pass_configs=dict(pass_configs(source.device)),
    )
    return GpuKernel(plan, kernel)


def _check_alignment(plan: QueryMajor, parameter: Parameter, tensor: Tensor) -> None:
    """Copy engines and vector loads want each row at a multiple of 16 bytes."""
    if parameter.labels[-1:] not in (("d",), ("e",)):
        return
    steps = [stride * tensor.itemsize for stride in tensor.stride()[:-1]]
    unit = tensor.stride(-1) == 1 or tensor.shape[-1] == 1
    if not unit or any(step % _ALIGNMENT for step in (*steps, tensor.data_ptr())):
        raise Misaligned(variant=plan.name, name=parameter.name, strides=tuple(tensor.stride()))
