"""Runs kernels on NVIDIA GPUs, from binaries, without TileLang's host code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from attnfuse.backends.tilelang.arguments import Arguments, Told
from attnfuse.backends.tilelang.binaries import Built
from attnfuse.backends.tilelang.driver import (
    Launcher,
    allow_shared_memory,
    load_kernel,
    parameter_offsets,
)
from attnfuse.backends.tilelang.launching import (
    Output,
    Placed,
    Prepared,
    Shapes,
    Sizes,
)
from attnfuse.backends.tilelang.words import Words
from attnfuse.plan.kernel import Plan

_WORDS = Words(on_gpu=True)
_BY_DEFAULT = 48 * 1024
"""Bytes of shared memory that any kernel may use."""


@dataclass(frozen=True)
class CudaKernel:
    """A kernel that the driver has loaded, for all devices of its architecture."""

    plan: Plan
    built: Built
    handle: int
    devices: set[int] = field(default_factory=set[int])

    @cached_property
    def shapes(self) -> Shapes:
        """What it is told of sizes and strides."""
        return Shapes(self.plan, _WORDS)

    def prepare(self, inputs: Sequence[Placed], like: Placed, sizes: Sizes) -> Prepared:
        """The launch for tensors of this shape and these strides; arguments as on the CPU."""
        outputs, grid = self.shapes.outputs(like, sizes), self.shapes.grid(sizes)
        if 0 in grid:
            return _Nothing(outputs)
        device = like.device.index
        assert isinstance(device, int)
        self._allow(device)
        told = self._arguments.told(self.shapes.values(inputs, outputs, sizes))
        shape = (grid, self.plan.schedule.threads, self.built.shared_memory)
        launcher = Launcher(self.handle, *shape, self._arguments.size)
        return _Launch(outputs, told, launcher, device)

    @cached_property
    def _arguments(self) -> Arguments:
        offsets = parameter_offsets(self.handle, len(self.built.parameters))
        return Arguments(self.plan, self.built, offsets)

    def _allow(self, device: int) -> None:
        """Once a device, ask for the shared memory that the kernel needs."""
        if device not in self.devices:
            if self.built.shared_memory > _BY_DEFAULT:
                allow_shared_memory(self.handle, self.built.shared_memory, device)
            self.devices.add(device)


@dataclass(frozen=True)
class _Nothing:
    """A launch of no blocks, which the driver refuses."""

    outputs: tuple[Output, ...]

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [output.allocate() for output in self.outputs]


@dataclass(frozen=True)
class _Launch:
    """What a call has to do, on the tensors' device and its current stream."""

    outputs: tuple[Output, ...]
    told: Told
    launcher: Launcher
    device: int

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        outputs = [output.allocate() for output in self.outputs]
        packed = self.told([tensor.data_ptr() for tensor in (*inputs, *outputs)])
        # The address alone takes a twentieth of the time that making a stream's object takes.
        stream = torch._C._cuda_getCurrentRawStream(self.device)  # pyright: ignore
        if torch.cuda.current_device() == self.device:
            self.launcher(packed, stream, self.device)
        else:
            with torch.cuda.device(self.device):
                self.launcher(packed, stream, self.device)
        return outputs


def load(plan: Plan, built: Built) -> CudaKernel:
    """The kernel of a binary, loaded by the driver.

    Raises:
        DriverFailed: the driver doesn't take it.
    """
    torch.cuda.init()
    return CudaKernel(plan, built, load_kernel(built.path.read_bytes(), built.function))
