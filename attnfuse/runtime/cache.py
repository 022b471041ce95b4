"""Where generated programs and built kernels are kept: one folder for each program.

``<cache_dir>/programs/<digest>/`` holds ``program.py`` and, for each compiler and processor, what
`attnfuse.backends.tilelang.binaries` made. The digest covers the program's text and the versions
of AttnFuse and TileLang, so nothing in a folder is ever out of date. No file names a place, so
the whole may be moved or copied.
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from filelock import FileLock, Timeout

from attnfuse.settings import get_settings

LOCK = "lock"
"""The name of the lock's file in a program's folder."""

_log = logging.getLogger("attnfuse.runtime")


def programs() -> Path:
    """The folder of all programs, which need not exist."""
    return get_settings().cache_dir / "programs"


def places(digest: str) -> list[Path]:
    """The folders where a program's binary may be, best first. They need not exist."""
    return [root / digest for root in (programs(), *(Path(each.name) for each in _holders))]


def folder_of(digest: str) -> Path:
    """The folder of one program, made if it isn't there.

    Where the cache can't be written, a folder that lasts as long as the
    process, with one warning.
    """
    folder = programs() / digest
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"{folder} is read-only")
    except OSError as error:
        folder = temporary_root(str(error)) / digest
        folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Let only one thread of one process at a time build in ``folder``.

    The system drops the lock of a process that ends, however it ends.
    """
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        _log.info("waiting for who builds in %s", folder)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@cache
def temporary_root(problem: str) -> Path:
    """A folder that goes with the process, because of ``problem``; warns when it is made."""
    warnings.warn(
        f"AttnFuse can't write its cache ({problem}); kernels are built again in each process. "
        "Set ATTNFUSE_CACHE_DIR to a folder that can be written.",
        stacklevel=3,
    )
    holder = tempfile.TemporaryDirectory(prefix="attnfuse-")
    _holders.append(holder)
    return Path(holder.name)


_holders: list[tempfile.TemporaryDirectory[str]] = []
"""Keeps temporary folders until the process ends."""
