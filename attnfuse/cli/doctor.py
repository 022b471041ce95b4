"""`attnfuse doctor`: what this machine has, whether kernels can be built here, and what to mend."""

from __future__ import annotations

import argparse
import os
import platform
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from attnfuse import __version__
from attnfuse.backends.tilelang.compilers import find_nvcc, run_compiler, version_of
from attnfuse.cli.cache import bytes_in_words
from attnfuse.devices import Device, device_of
from attnfuse.errors import AttnFuseError, BuildFailed, SettingError
from attnfuse.runtime.contents import entries
from attnfuse.settings import Settings, get_settings, variable

Parsers = Any  # argparse has no public name for what add_subparsers returns

_REPORT = "report it, with what stands here"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        subject: what.
        text: what it is like.
        remedy: what to do about it, if it is a problem.
        builds: whether it shows that kernels can be built here.
    """

    subject: str
    text: str
    remedy: str | None = None
    builds: bool = False

    def __str__(self) -> str:
        line = f"{'!' if self.remedy else ' '} {self.subject:<16}{self.text}"
        return f"{line}\n    → {self.remedy}" if self.remedy else line


def configure(verbs: Parsers) -> None:
    """Add the verb."""
    verb = verbs.add_parser("doctor", help="say what this machine has and what to mend")
    verb.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> int:
    builds = False
    for finding in findings():
        print(finding, flush=True)
        builds |= finding.builds
    print("kernels can be built here" if builds else "no kernel can be built here")
    return 0 if builds else 1


def findings() -> Iterator[Finding]:
    """All that is worth knowing, the slow parts last."""
    yield Finding("python", f"{platform.python_version()} on {platform.platform()}")
    yield Finding("attnfuse", __version__)
    packages = list(map(package, ("torch", "tilelang")))
    yield from packages
    if any(finding.remedy for finding in packages):
        return
    try:
        get_settings()
    except SettingError as error:
        yield Finding("settings", str(error), "mend or unset the variable")
        return
    yield from settings()
    yield cache()
    yield from nvidia()
    yield cpu()


def package(name: str) -> Finding:
    """The version of a package that AttnFuse needs."""
    try:
        return Finding(name, version(name))
    except PackageNotFoundError:
        return Finding(name, "not installed", f"pip install {name}")


def settings() -> Iterator[Finding]:
    """The variables that are set, and those that look like settings and are none."""
    known = [variable(each.name) for each in fields(Settings)]
    for name in sorted(name for name in os.environ if name.startswith("ATTNFUSE_")):
        remedy = None if name in known else f"there are {', '.join(known)}"
        yield Finding("setting", f"{name}={os.environ[name]}", remedy)


def cache() -> Finding:
    """The cache's folder: its place, its size, and whether it can be written."""
    folder = get_settings().cache_dir
    found = entries()
    size = bytes_in_words(sum(entry.size for entry in found))
    text = f"{folder}: {len(found)} programs, {size}"
    if _can_be_written(folder):
        return Finding("cache", text)
    remedy = f"make it writable, or set {variable('cache_dir')} to a folder that is"
    return Finding("cache", f"{text}, can't be written", remedy)


def _can_be_written(folder: Path) -> bool:
    """Whether a file can be made there, or where the folder would be made."""
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            return True
    except OSError:
        return False


def cpu() -> Finding:
    """The C++ compiler, and whether a kernel that it builds computes what it should."""
    from attnfuse.cli import trial

    compiler = get_settings().cxx
    if compiler is None:
        remedy = f"install g++ or clang++, or set {variable('cxx')}"
        return Finding("C++ compiler", "none", remedy)
    try:
        named = f"{compiler}, {version_of(compiler).splitlines()[0]}"
        seconds, error = trial.run()
    except BuildFailed as failed:
        return Finding("C++ compiler", str(failed), f"mend it, or set {variable('cxx')} to another")
    except Exception as failed:
        problem = f"{compiler}: no kernel: {type(failed).__name__}: {failed}"
        return Finding("C++ compiler", problem, _REPORT)
    if not error < 1e-5:
        return Finding("C++ compiler", f"{named}; a kernel is wrong by {error:.1e}", _REPORT)
    built = f"a kernel was built in {seconds:.1f} s and is right to {error:.0e}"
    return Finding("C++ compiler", f"{named}; {built}", builds=True)


def nvidia() -> Iterator[Finding]:
    """The GPUs and their profiles, and whether nvcc compiles for them."""
    present: list[Device] = []
    for title, device in gpus():
        if device is None:
            yield Finding("GPU", f"{title}, which has no profile", "kernels for it can't be made")
        else:
            yield Finding("GPU", f"{title}, profile {device.name} ({device.arch})")
            present.append(device)
    if not present:
        yield Finding("GPU", "none that AttnFuse knows")
    nvcc = find_nvcc()
    if nvcc is not None:
        yield _nvcc(nvcc, [device for device in present if device.kind == "cuda"])
    elif any(device.kind == "cuda" for device in present):
        yield Finding("nvcc", "none", "install the CUDA toolkit, or set CUDA_HOME")
    else:
        yield Finding("nvcc", "none")


def gpus() -> Iterator[tuple[str, Device | None]]:
    """The name of each GPU that torch sees, and its profile, if there is one."""
    import torch

    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        place = torch.empty(0, device=torch.device("cuda", index))
        try:
            yield torch.cuda.get_device_name(index), device_of({"place": place})
        except AttnFuseError:
            yield torch.cuda.get_device_name(index), None


def _nvcc(nvcc: str, devices: list[Device]) -> Finding:
    try:
        found = re.search(r"release [\d.]+", version_of(nvcc))
        known = run_compiler([nvcc, "--list-gpu-code"]).split()
    except BuildFailed as failed:
        return Finding("nvcc", str(failed), "mend it, or set CUDA_HOME to another toolkit")
    unknown = {device.arch for device in devices if not _compiles_for(device.arch, known)}
    text = f"{nvcc}, {found[0] if found else 'of an unknown release'}"
    if unknown:
        problem = f"{text}; doesn't know {', '.join(sorted(unknown))}"
        return Finding("nvcc", problem, "install a newer CUDA toolkit")
    return Finding("nvcc", text, builds=bool(devices))


def _compiles_for(arch: str, known: list[str]) -> bool:
    """Some versions of nvcc list an architecture without the letter of its own instructions."""
    return arch in known or arch.rstrip("a") in known
