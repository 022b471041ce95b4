"""What is in the cache, and removing it: nothing but what AttnFuse itself put there."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from attnfuse.runtime.cache import LOCK, programs
from attnfuse.runtime.definitions import definitions

_DIGEST = re.compile(r"[0-9a-f]{32}")
_HALF_WRITTEN = r"(\.[0-9a-f]{8})?"
_FILE = re.compile(
    rf"(program\.py|kernel-[0-9a-f]{{16}}\.(json|so|cpp|cubin|cu)){_HALF_WRITTEN}|{LOCK}"
)
_DEFINITION = re.compile(rf"[0-9a-f]{{32}}\.json{_HALF_WRITTEN}")
_FOLDER = re.compile(r"building-\w+|__pycache__")
_HEADING = re.compile(r'"""(\w+) for (.+)\.\n')


@dataclass(frozen=True)
class Entry:
    """One program in the cache.

    Attributes:
        folder: where it is.
        name: what the program is called.
        device: what it was made for, in words.
        size: bytes of all its files.
        age: seconds since something was last written.
    """

    folder: Path
    name: str
    device: str
    size: int
    age: float


def entries() -> list[Entry]:
    """The programs in the cache, the newest first."""
    return sorted(map(_entry, _folders()), key=lambda entry: entry.age)


def definition_files() -> list[Path]:
    """The files that say what keys in graphs mean, those half written among them."""
    root = definitions()
    paths = root.iterdir() if root.is_dir() else ()
    return sorted(path for path in paths if _DEFINITION.fullmatch(path.name) and path.is_file())


def remove(folder: Path) -> str | None:
    """Remove a program from the cache.

    Returns:
        None, or in words why something is still there: it is being built, or
        files stand there that AttnFuse doesn't make.

    Raises:
        OSError: the folder can't be written.
    """
    lock = FileLock(folder / LOCK)
    try:
        with lock.acquire(timeout=0):
            _remove_own(folder)
    except Timeout:
        return "it is being built"
    left = ", ".join(sorted(path.name for path in folder.iterdir()))
    if left:
        return f"{left} is not of AttnFuse's making"
    folder.rmdir()
    return None


def _remove_own(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            if _FOLDER.fullmatch(path.name):
                shutil.rmtree(path)
        elif _FILE.fullmatch(path.name):
            path.unlink()


def _folders() -> Iterator[Path]:
    root = programs()
    for path in root.iterdir() if root.is_dir() else ():
        if _DIGEST.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            yield path


def _entry(folder: Path) -> Entry:
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    written = max((file.st_mtime for file in files), default=folder.stat().st_mtime)
    name, device = _described(folder)
    size = sum(file.st_size for file in files)
    return Entry(folder, name, device, size, max(0.0, time.time() - written))


def _described(folder: Path) -> tuple[str, str]:
    """A program's name and device, off its own heading."""
    try:
        found = _HEADING.match((folder / "program.py").read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        found = None
    return (found[1], found[2]) if found else ("?", "?")
