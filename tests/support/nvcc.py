"""What NVIDIA's compiler says of a generated program: registers, spills, shared memory."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from attnfuse.backends.tilelang.compilers import NVCC_FAST, NVCC_FLAGS, find_nvcc
from attnfuse.compiler import Launch

_USED = re.compile(r"Used (\d+) registers")
_SPILLED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True)
class Resources:
    """What a kernel needs on an architecture.

    Attributes:
        registers: of a thread.
        spill_stores: bytes of registers that a thread stores to memory, by ptxas's count.
        spill_loads: bytes that it loads again.
        shared_memory: bytes that a block uses, as TileLang allots them.
        lines: of the CUDA program.
    """

    registers: int
    spill_stores: int
    spill_loads: int
    shared_memory: int
    lines: int


def command(arch: str, program: Path) -> list[str]:
    """The command that compiles a program for an architecture such as ``sm_90a``, as kernels are.

    It differs in that ptxas tells what it used.
    """
    import tilelang

    nvcc, templates = find_nvcc(), Path(tilelang.__file__).parent
    assert nvcc is not None
    return [
        *(nvcc, *NVCC_FLAGS, *NVCC_FAST, "-Xptxas", "-v", f"-arch={arch}"),
        *(f"-I{templates / 'src'}", f"-I{templates / '3rdparty/cutlass/include'}"),
        *(str(program), "-o", str(program.with_suffix(".cubin"))),
    ]


def resources(launch: Launch) -> Resources:
    """Compile a launch's kernel for the architecture that it was made for."""
    lowered = launch.lowered
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "kernel.cu"
        program.write_text(lowered.text, "utf-8")
        done = subprocess.run(
            command(launch.source.device.arch, program), capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    (registers,), ((stores, loads),) = _USED.findall(done.stderr), _SPILLED.findall(done.stderr)
    return Resources(
        registers=int(registers),
        spill_stores=int(stores),
        spill_loads=int(loads),
        shared_memory=lowered.shared_memory,
        lines=lowered.text.count("\n"),
    )
