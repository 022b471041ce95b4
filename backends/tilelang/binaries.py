"""Binaries of programs on disk: made, described beside them, and found again.

A binary ``kernel-<tag>.so`` or ``.cubin`` has a file ``kernel-<tag>.json`` beside it that says how
to call it. So whoever finds the two needs neither TileLang nor a compiler. The tag is
`attnfuse.backends.tilelang.compilers.tag`. The JSON is written last: without it a binary doesn't
count, nor does one that isn't what its JSON describes.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from attnfuse import __version__
from attnfuse.backends.tilelang.compilers import (
    EXTENSIONS,
    compile_file,
    compiler_for,
    machine,
    tag,
    version_of,
)
from attnfuse.backends.tilelang.lower import Lowered
from attnfuse.backends.tilelang.source import Source
from attnfuse.backends.tilelang.tensor_maps import TensorMap, read
from attnfuse.devices import Device
from attnfuse.files import write_atomically
from attnfuse.versions import tilelang_version

FORMAT = 2
"""Changes whenever the JSON does, so that what another version wrote is built again."""

_SCRATCH = "building-"
_TEXTS = {".so": ".cpp", ".cubin": ".cu"}
_PROTOTYPES = {
    "cpu": re.compile(r"int32_t (\w+_kernel)\(([^)]*)\)"),
    "cuda": re.compile(
        r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+_kernel)\(([^)]*)\)'
    ),
}
_log = logging.getLogger("attnfuse.backends")


@dataclass(frozen=True)
class Built:
    """A binary on disk, and how to call it.

    Attributes:
        path: the binary.
        function: the name of the kernel's function.
        parameters: the name and the C type of each parameter, in order.
        shared_memory: bytes of dynamic shared memory that a block needs; 0 on a CPU.
        tensor_maps: what its parameters of the type `CUtensorMap` are to hold.
    """

    path: Path
    function: str
    parameters: tuple[tuple[str, str], ...]
    shared_memory: int
    tensor_maps: tuple[TensorMap, ...] = ()

    @property
    def text(self) -> Path:
        """The file of the target code."""
        return self.path.with_suffix(_TEXTS[self.path.suffix])


def can_make(device: Device) -> bool:
    """Whether binaries are made here for a device at all. TileLang builds HIP itself."""
    return device.kind in EXTENSIONS


def prototype(device: Device, text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The name of the kernel in target code, and the name and C type of each parameter."""
    found = _PROTOTYPES[device.kind].search(text)
    assert found is not None
    declared = (each.replace("__restrict__ ", "") for each in found[2].split(", "))
    pairs = (each.rsplit(" ", 1) for each in declared)
    return found[1], tuple((name, kind) for kind, name in pairs)


def make(source: Source, lowered: Lowered, folder: Path) -> Built:
    """Compile a lowered program in ``folder``. Only one process may do so at a time.

    Raises:
        BuildFailed: the compiler refused it.
        OSError: the folder can't be written.
    """
    device = source.device
    binary = folder / f"kernel-{tag(device)}.{EXTENSIONS[device.kind]}"
    text = binary.with_suffix(f".{lowered.extension}")
    write_atomically(text, lowered.text)
    _compile(source, text, binary)
    write_atomically(_beside(binary), json.dumps(_described(source, lowered, binary)))
    found = _read(_beside(binary), device)
    assert found is not None
    return found


def find(device: Device, folder: Path) -> Built | None:
    """What `make` made in ``folder`` for this machine, if it is there and whole.

    Without a compiler, what any compiler made will do.

    Raises:
        BuildFailed: the compiler doesn't tell its version.
    """
    return next(filter(None, (_read(path, device) for path in _candidates(device, folder))), None)


def _candidates(device: Device, folder: Path) -> Iterator[Path]:
    if compiler_for(device) is None:
        yield from sorted(folder.glob("kernel-*.json"))
    else:
        yield folder / f"kernel-{tag(device)}.json"


def _compile(source: Source, text: Path, binary: Path) -> None:
    """Put the binary where it belongs once it is whole, and away what killed builds left there."""
    for left in binary.parent.glob(f"{_SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=binary.parent) as scratch:
        made = Path(scratch) / binary.name
        compile_file(source, text, made)
        made.replace(binary)


def _beside(binary: Path) -> Path:
    return binary.with_suffix(".json")


def _described(source: Source, lowered: Lowered, binary: Path) -> dict[str, object]:
    compiler = compiler_for(source.device)
    assert compiler is not None
    function, parameters = prototype(source.device, lowered.text)
    versions = {"attnfuse": __version__, "tilelang": tilelang_version()}
    return {
        "format": FORMAT,
        "name": source.name,
        "device": source.device.name,
        "arch": source.device.arch,
        "machine": machine(source.device),
        "function": function,
        "parameters": parameters,
        "shared_memory": lowered.shared_memory,
        "tensor_maps": [asdict(each) for each in lowered.tensor_maps],
        "binary": _hash(binary),
        "versions": versions | {"compiler": version_of(compiler).strip()},
    }


def _read(path: Path, device: Device) -> Built | None:
    """The binary that a JSON file describes, or None, with a log line if something is wrong."""
    try:
        data = json.loads(path.read_text("utf-8"))
        problem = _problem(data, path, device)
        if problem is None:
            return _built(data, path, device)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        problem = f"it can't be read ({type(error).__name__}: {error})"
    _log.info("%s is not used: %s", path, problem)
    return None


def _problem(data: Any, path: Path, device: Device) -> str | None:
    if data["format"] != FORMAT:
        return f"its format is {data['format']}, not {FORMAT}"
    if data["machine"] != machine(device):
        return "it was made for another processor"
    if data["binary"] != _hash(_binary(path, device)):
        return "the binary beside it is not what it describes"
    return None


def _built(data: Any, path: Path, device: Device) -> Built:
    return Built(
        path=_binary(path, device),
        function=data["function"],
        parameters=tuple((name, kind) for name, kind in data["parameters"]),
        shared_memory=data["shared_memory"],
        tensor_maps=tuple(map(read, data["tensor_maps"])),
    )


def _binary(path: Path, device: Device) -> Path:
    return path.with_suffix(f".{EXTENSIONS[device.kind]}")


def _hash(path: Path) -> str:
    return blake2b(path.read_bytes(), digest_size=16).hexdigest()
