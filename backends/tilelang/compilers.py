"""The compilers that make binaries of lowered programs: the host's for C++, nvcc for CUDA."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

from attnfuse.backends.tilelang.source import Source
from attnfuse.devices import Device
from attnfuse.errors import BuildFailed
from attnfuse.settings import get_settings

FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-w"),
    *("-fno-math-errno", "-fno-trapping-math", "-fassociative-math"),
    *("-fno-signed-zeros", "-freciprocal-math"),
)
"""Flags of the host's compiler. Never -Ofast, -ffast-math or -funsafe-math-optimizations: they
link code that makes the whole process flush subnormal numbers to zero."""

HEADER = Path(__file__).with_name("cpu_math.h")
"""Mathematics for the host's compiler, included before every program."""

WITHOUT_HALF = "-DHALF_HALF_HPP"
"""Leaves out TileLang's header of half-precision numbers, by the macro that tells whether it has
been read: for a program without any, reading it took a quarter of the compiler's time."""

NVCC_FLAGS = ("-std=c++20", "-O3", "--cubin")
"""Flags of nvcc, which is told the architecture as well."""

NVCC_FAST = ("--use_fast_math",)
"""Further flags for programs that need not be exact."""

EXTENSIONS = {"cpu": "so", "cuda": "cubin"}
"""The kinds of devices whose binaries are made here, and the extension of these."""

_QUOTED = 2000


def compiler_for(device: Device) -> str | None:
    """The path of the compiler that makes binaries for a device, or None where there is none."""
    return get_settings().cxx if device.kind == "cpu" else find_nvcc()


def find_nvcc() -> str | None:
    """The nvcc of ``CUDA_HOME``, or else the one on PATH."""
    home = os.environ.get("CUDA_HOME")
    found = shutil.which("nvcc", path=f"{home}/bin") if home else None
    return found or shutil.which("nvcc")


def compile_file(source: Source, text: Path, binary: Path) -> None:
    """Compile the target code in the file ``text`` to ``binary``.

    Raises:
        BuildFailed: the compiler refused it.
    """
    command = _command(source)
    if source.device.kind == "cpu" and "half" not in text.read_text("utf-8"):
        command.append(WITHOUT_HALF)
    run_compiler([*command, str(text), "-o", str(binary)])


def run_compiler(command: list[str]) -> str:
    """What a compiler prints.

    Raises:
        BuildFailed: it failed, with what it said.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildFailed(command=" ".join(command), output=str(error)) from error
    if done.returncode:
        said = (done.stderr or done.stdout)[-_QUOTED:]
        raise BuildFailed(command=" ".join(command), output=said)
    return done.stdout


def tag(device: Device) -> str:
    """A hash of what a binary depends on beside its program: compiler, flags and processor.

    Raises:
        BuildFailed: the compiler doesn't tell its version.
    """
    compiler = compiler_for(device)
    assert compiler is not None
    flags = (
        (*FLAGS, HEADER.read_text("utf-8")) if device.kind == "cpu" else (*NVCC_FLAGS, *NVCC_FAST)
    )
    return _hash(version_of(compiler), *flags, machine(device))


@cache
def version_of(compiler: str) -> str:
    """What a compiler says of itself.

    Raises:
        BuildFailed: it fails to.
    """
    return run_compiler([compiler, "--version"])


@cache
def machine(device: Device) -> str:
    """A hash of the processor: -march=native code runs on its like only."""
    return _hash(platform.machine(), _processor()) if device.kind == "cpu" else device.arch


def _command(source: Source) -> list[str]:
    device = source.device
    compiler = compiler_for(device)
    assert compiler is not None
    tilelang = _tilelang()
    if device.kind == "cpu":
        return [compiler, *FLAGS, f"-I{tilelang / 'src'}", "-include", str(HEADER)]
    headers = [f"-I{tilelang / 'src'}", f"-I{tilelang / '3rdparty/cutlass/include'}"]
    fast = () if source.exact else NVCC_FAST
    return [compiler, *NVCC_FLAGS, *fast, f"-arch={device.arch}", *headers]


def _tilelang() -> Path:
    """TileLang's folder, found without importing it."""
    spec = find_spec("tilelang")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("flags", "Features"))}))


def _hash(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()
