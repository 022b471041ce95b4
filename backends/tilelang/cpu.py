"""Runs kernels on the host's processor."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product

import torch
from torch import Tensor

from attnfuse.backends.tilelang.binaries import Built
from attnfuse.backends.tilelang.header import RANGE_PARAMETERS, tensors
from attnfuse.backends.tilelang.launching import (
    Output,
    Placed,
    Prepared,
    Shapes,
    Sizes,
)
from attnfuse.backends.tilelang.names import identifier
from attnfuse.backends.tilelang.words import Words
from attnfuse.plan.kernel import Plan
from attnfuse.settings import get_settings

_WORDS = Words(on_gpu=False)
_TYPES = {"int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64}
_TASKS_PER_THREAD = 4


@dataclass(frozen=True)
class CpuKernel:
    """A kernel that is loaded into this process. Calls release the GIL."""

    plan: Plan
    function: Callable[..., int]
    parameters: tuple[str, ...]

    @cached_property
    def shapes(self) -> Shapes:
        """What it is told of sizes and strides."""
        return Shapes(self.plan, _WORDS)

    def prepare(self, inputs: Sequence[Placed], like: Placed, sizes: Sizes) -> Prepared:
        """The launch for tensors of this shape and these strides."""
        stored = list(map(_where_stored, inputs))
        outputs = self.shapes.outputs(like, sizes)
        values = self.shapes.values(stored, outputs, sizes)
        return _Launch(self, outputs, values, self.shapes.grid(sizes))


@dataclass(frozen=True)
class _Launch:
    """What a call has to do."""

    kernel: CpuKernel
    outputs: tuple[Output, ...]
    values: Mapping[str, int]
    grid: tuple[int, int, int]

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        plan = self.kernel.plan
        stored = [_as_stored(tensor) for tensor in inputs]
        outputs = [output.allocate() for output in self.outputs]
        named = zip(tensors(plan), (*stored, *outputs), strict=True)
        pointers = {identifier(each.name): tensor.data_ptr() for each, tensor in named}
        self._run({**self.values, **pointers})
        wanted = (getattr(torch, result.dtype.value) for result in plan.results)
        return [output.to(dtype) for output, dtype in zip(outputs, wanted, strict=True)]

    def _run(self, values: Mapping[str, int]) -> None:
        """Run each part of the grid, on as many threads as there are to be."""
        threads = get_settings().cpu_threads or torch.get_num_threads()
        tasks = _tasks(*self.grid, threads)
        calls = [{**values, **dict(zip(RANGE_PARAMETERS, task, strict=True))} for task in tasks]
        if threads == 1 or len(calls) < 2:
            for call in calls:
                self._part(call)
        else:
            list(_pool(threads).map(self._part, calls))

    def _part(self, values: Mapping[str, int]) -> None:
        self.kernel.function(*[values[name] for name in self.kernel.parameters])


def load(plan: Plan, built: Built) -> CpuKernel:
    """The kernel of a binary, loaded into this process."""
    function = ctypes.CDLL(str(built.path))[built.function]
    function.argtypes = [_TYPES.get(kind, ctypes.c_void_p) for _, kind in built.parameters]
    function.restype = ctypes.c_int32
    return CpuKernel(plan, function, tuple(name for name, _ in built.parameters))


def _as_stored(tensor: Tensor) -> Tensor:
    """An input in an element type that the C target has."""
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor


def _where_stored(tensor: Placed) -> Placed:
    """The place of what `_as_stored` makes; what kernels leave stays where it is."""
    if not isinstance(tensor, Tensor):
        return tensor
    shape, strides = tensor.shape, tensor.stride()
    return _as_stored(torch.empty_strided(shape, strides, dtype=tensor.dtype, device="meta"))


def _tasks(q_blocks: int, heads: int, entries: int, threads: int) -> list[tuple[int, ...]]:
    """Ranges of the grid, as values of RANGE_PARAMETERS, enough of them to keep threads busy.

    Later queries first: under a causal mask they take longest.
    """
    if 0 in (q_blocks, heads, entries):
        return []
    if threads == 1:
        return [(0, q_blocks, 0, heads, 0, entries)]
    whole = heads * entries >= _TASKS_PER_THREAD * threads
    step = q_blocks if whole else 1
    firsts = reversed(range(0, q_blocks, step))
    places = product(firsts, range(heads), range(entries))
    return [(first, step, head, 1, entry, 1) for first, head, entry in places]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="attnfuse")
