"""Runs kernels on the host's processor."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product

import torch
from torch import Tensor

from attnfuse.backends.tilelang.binaries import Built
from attnfuse.backends.tilelang.header import RANGE_PARAMETERS, batch_labels, strides, tensors
from attnfuse.backends.tilelang.launching import Sizes, empty_outputs, number
from attnfuse.backends.tilelang.names import identifier
from attnfuse.backends.tilelang.words import Words
from attnfuse.plan.kernel import Parameter, Plan
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

    def __call__(self, given: Mapping[str, Tensor], sizes: Sizes) -> tuple[Tensor, ...]:
        """The outputs for tensors on the CPU, by name, and the sizes that they have."""
        inputs = {p.name: given[p.name].detach() for p in self.plan.parameters}
        inputs = {name: _as_stored(tensor) for name, tensor in inputs.items()}
        outputs = empty_outputs(self.plan, inputs, sizes, _WORDS)
        named = inputs | {r.name: o for r, o in zip(self.plan.results, outputs, strict=True)}
        values = self._values(named, sizes)
        threads = get_settings().cpu_threads or torch.get_num_threads()
        tasks = _tasks(*self._grid(sizes), threads)
        calls = [values | dict(zip(RANGE_PARAMETERS, task, strict=True)) for task in tasks]
        if threads == 1 or len(calls) < 2:
            for call in calls:
                self._run(call)
        else:
            list(_pool(threads).map(self._run, calls))
        wanted = (getattr(torch, result.dtype.value) for result in self.plan.results)
        return tuple(output.to(dtype) for output, dtype in zip(outputs, wanted, strict=True))

    def _run(self, values: Mapping[str, int]) -> None:
        self.function(*[values[name] for name in self.parameters])

    def _values(self, named: Mapping[str, Tensor], sizes: Sizes) -> dict[str, int]:
        values = {str(symbol): size for symbol, size in sizes.items()}
        for parameter in tensors(self.plan):
            values |= _parameter_values(parameter, named[parameter.name])
        return values

    def _grid(self, sizes: Sizes) -> tuple[int, int, int]:
        """Blocks of queries, heads and batch entries."""
        result = self.plan.results[0]
        extents = dict(
            zip(result.labels, (number(size, sizes) for size in result.sizes), strict=True)
        )
        entries = 1
        for label in batch_labels(self.plan):
            entries *= extents[label]
        return -(-extents[self.plan.rows] // self.plan.schedule.block_q), extents["h"], entries


def load(plan: Plan, built: Built) -> CpuKernel:
    """The kernel of a binary, loaded into this process."""
    function = ctypes.CDLL(str(built.path))[built.function]
    function.argtypes = [_TYPES.get(kind, ctypes.c_void_p) for _, kind in built.parameters]
    function.restype = ctypes.c_int32
    return CpuKernel(plan, function, tuple(name for name, _ in built.parameters))


def _as_stored(tensor: Tensor) -> Tensor:
    """An input in an element type that the C target has."""
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor


def _parameter_values(parameter: Parameter, tensor: Tensor) -> dict[str, int]:
    values = dict(zip(strides(parameter), tensor.stride(), strict=False))
    return values | {identifier(parameter.name): tensor.data_ptr()}


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
