"""From a TileLang program to the C, CUDA or HIP that it becomes. Needs no GPU and no compiler."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from attnfuse.backends.tilelang.source import Source
from attnfuse.backends.tilelang.tensor_maps import TensorMap, tensor_maps
from attnfuse.devices import Device
from attnfuse.errors import DoesNotFitDevice
from attnfuse.files import write_atomically

PROGRAM = "program.py"
"""The name of a program's file in its folder."""

_EXTENSIONS = {"cpu": "cpp", "cuda": "cu", "hip": "hip"}
_lowering = threading.Lock()


@dataclass(frozen=True)
class Lowered:
    """What a program becomes.

    Attributes:
        text: the target code.
        extension: the usual extension of its file.
        shared_memory: bytes of shared memory that a block uses, as TileLang allots it.
        tensor_maps: what the host has to tell the copy engine at a launch.
    """

    text: str
    extension: str
    shared_memory: int
    tensor_maps: tuple[TensorMap, ...] = ()


def import_tilelang() -> Any:
    """TileLang, which then keeps quiet while it compiles unless it is told otherwise."""
    os.environ.setdefault("TILELANG_PRINT_ON_COMPILATION", "0")
    import tilelang

    return tilelang


@contextmanager
def quick_proofs() -> Generator[None]:
    """Lower without the cuts that Z3 takes from Hermite normal forms.

    TileLang asks Z3 thousands of small questions about indices, more than half
    of the time of lowering. More than half of that goes into these cuts, and
    programs are the same without them. TVM limits a question by Z3's count of
    its own steps, not by time: programs don't depend on how busy the machine
    is, but a setting that needs more steps proves less. Z3's older simplex
    (`smt.arith.solver` 2) is a little quicker yet, and leaves conditions twice
    and more barriers. The choice is the whole process's, so one thread lowers
    at a time.
    """
    import z3

    with _lowering:
        z3.set_param("smt.arith.enable_hnf", False)
        try:
            yield
        finally:
            z3.set_param("smt.arith.enable_hnf", True)


def load(source: Source, folder: Path) -> Any:
    """The TileLang function of a program, whose text is put into ``folder``."""
    path = folder / PROGRAM
    if not path.exists():
        write_atomically(path, source.text)
    return source.prim_func(path)


@cache
def lower(source: Source, folder: Path) -> Lowered:
    """The target code of a program. Once in a process: many strides have the same program.

    Raises:
        DoesNotFitDevice: it uses more shared memory than a block can have.
    """
    tilelang = import_tilelang()
    from tilelang import tvm

    target = tvm.target.Target(target_of(source.device))
    config = pass_configs(source)
    with tvm.transform.PassContext(opt_level=3, config=config), target, quick_proofs():
        artifact = tilelang.lower(load(source, folder), target=target)
    used = _shared_memory(artifact)
    if used > source.device.shared_memory:
        raise DoesNotFitDevice(
            variant=source.name,
            needed=used,
            device=source.device.title,
            available=source.device.shared_memory,
        )
    maps = tensor_maps(artifact.host_mod)
    return Lowered(artifact.kernel_source, _EXTENSIONS[source.device.kind], used, maps)


def target_of(device: Device) -> dict[str, str]:
    """TileLang's target for a device."""
    targets = {
        "cpu": {"kind": "c"},
        "cuda": {"kind": "cuda", "arch": device.arch},
        "hip": {"kind": "hip", "mcpu": device.arch},
    }
    return targets[device.kind]


def pass_configs(source: Source) -> Mapping[str, bool]:
    """How TileLang is to lower a program.

    Fast math turns exp2f and tanhf into single instructions on NVIDIA GPUs;
    infinities stay what they are. For float32 tanhf is then too coarse.
    TileLang's automatic warp specialisation is off: with a prologue, 0.1.15
    leaves a race between its warp groups (it warns so), and results are
    wrong. On the CPU the host compiler vectorises better than TileLang, whose
    vectors of float16 don't compile there.
    """
    if source.device.kind == "cpu":
        return {"tirx.disable_vectorize": True}
    if source.device.kind == "hip":
        return {}
    return {"tl.enable_fast_math": not source.exact, "tl.disable_warp_specialized": True}


def _shared_memory(artifact: Any) -> int:
    functions = artifact.device_mod.functions.values()
    name = "dyn_shared_memory_buf"
    return max((int(f.attrs[name]) for f in functions if f.attrs and name in f.attrs), default=0)
