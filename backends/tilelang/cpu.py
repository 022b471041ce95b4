"""Builds and runs programs on the host's processor."""

from __future__ import annotations

import ctypes
import platform
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnfuse.backends.tilelang.header import RANGE_PARAMETERS, batch_labels, strides, tensors
from attnfuse.backends.tilelang.launching import Sizes, empty_outputs, number
from attnfuse.backends.tilelang.lower import Lowered, import_tilelang
from attnfuse.backends.tilelang.names import identifier
from attnfuse.backends.tilelang.words import Words
from attnfuse.errors import BuildFailed
from attnfuse.files import write_atomically
from attnfuse.plan.kernel import Parameter, Plan
from attnfuse.settings import get_settings

FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-w"),
    *("-fno-math-errno", "-fno-trapping-math", "-fassociative-math"),
    *("-fno-signed-zeros", "-freciprocal-math"),
)
"""Compiler flags. Never -Ofast, -ffast-math or -funsafe-math-optimizations: they link
code that makes the whole process flush subnormal numbers to zero."""

HEADER = Path(__file__).with_name("cpu_math.h")
"""Mathematics for the host compiler, included before every program."""

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


def build(plan: Plan, lowered: Lowered, folder: Path) -> CpuKernel:
    """The kernel of a lowered program, compiled in ``folder`` unless it is there already.

    Raises:
        BuildFailed: the compiler refused it.
    """
    compiler = get_settings().cxx
    assert compiler is not None
    library = folder / f"kernel-{_machine(compiler)}.so"
    if not library.exists():
        _compile(compiler, lowered, library)
    name, parameters = _prototype(lowered.text)
    function = ctypes.CDLL(str(library))[name]
    function.argtypes = [kind for _, kind in parameters]
    function.restype = ctypes.c_int32
    return CpuKernel(plan, function, tuple(parameter for parameter, _ in parameters))


def _compile(compiler: str, lowered: Lowered, library: Path) -> None:
    text = library.with_suffix(".cpp")
    write_atomically(text, lowered.text)
    templates = Path(import_tilelang().__file__).parent / "src"
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        built = Path(scratch) / library.name
        headers = [f"-I{templates}", "-include", str(HEADER)]
        command = [compiler, *FLAGS, *headers, str(text), "-o", str(built)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildFailed(command=" ".join(command), output=done.stderr[-2000:])
        built.replace(library)


@cache
def _machine(compiler: str) -> str:
    """A tag of compiler, flags and processor: -march=native code runs on its like only."""
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=True
    ).stdout
    described = [version, *FLAGS, HEADER.read_text(), platform.machine(), _processor()]
    return blake2b("\0".join(described).encode(), digest_size=8).hexdigest()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("flags", "Features"))}))


def _prototype(text: str) -> tuple[str, list[tuple[str, Any]]]:
    """The kernel's name, and the name and ctypes type of each parameter, off the generated C."""
    found = re.search(r"int32_t (\w+_kernel)\(([^)]*)\)", text)
    assert found is not None
    declared = (each.rsplit(" ", 1) for each in found[2].split(", "))
    return found[1], [(name, _TYPES.get(kind, ctypes.c_void_p)) for kind, name in declared]


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
