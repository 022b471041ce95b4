"""From programs to binaries: found on disk, or made, several of them side by side."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from attnfuse.backends.tilelang import binaries
from attnfuse.backends.tilelang import lower as lowering
from attnfuse.backends.tilelang.binaries import Built
from attnfuse.backends.tilelang.source import Source
from attnfuse.runtime import workers
from attnfuse.runtime.cache import folder_of, locked, places
from attnfuse.runtime.stats import count, timed
from attnfuse.settings import get_settings

_log = logging.getLogger("attnfuse.runtime")


def ensure(sources: Sequence[Source]) -> list[Built | None]:
    """The binary of each program. Those that are nowhere on disk are made.

    One is made in this process, several each by a process of its own, as the
    setting ``build_processes`` allows.

    Returns:
        For each program its binary, or None for one that TileLang has to build itself.

    Raises:
        BuildFailed: the target's compiler refused a program.
        DoesNotFitDevice: a program uses more shared memory than a block can have.
    """
    unique = {source.digest: source for source in sources if binaries.can_make(source.device)}
    known = {digest: find(source) for digest, source in unique.items()}
    missing = [unique[digest] for digest, built in known.items() if built is None]
    known |= zip((source.digest for source in missing), _made(missing), strict=True)
    return [known.get(source.digest) for source in sources]


def find(source: Source) -> Built | None:
    """A program's binary, where it is on disk."""
    for folder in places(source.digest):
        built = binaries.find(source.device, folder)
        if built is not None:
            count("disk_hits")
            _log.info("%s for %s is in %s", source.name, source.device.title, folder)
            return built
    return None


def build(source: Source, folder: Path) -> Built:
    """The binary of a program, made in ``folder`` unless another process does so meanwhile.

    Raises:
        BuildFailed: the target's compiler refused the program.
        DoesNotFitDevice: it uses more shared memory than a block can have.
    """
    with locked(folder):
        built = binaries.find(source.device, folder)
        if built is not None:
            count("disk_hits")
            return built
        _log.info("building %s for %s in %s", source.name, source.device.title, folder)
        with timed("lower"):
            lowered = lowering.lower(source, folder)
        with timed("compile"):
            built = binaries.make(source, lowered, folder)
        count("builds")
    return built


def _made(sources: Sequence[Source]) -> list[Built]:
    folders = [folder_of(source.digest) for source in sources]
    processes = min(get_settings().build_processes or os.cpu_count() or 1, len(sources))
    if processes < 2:
        return list(map(build, sources, folders))
    workers.build(sources, folders, processes)
    return list(map(_just_made, sources, folders))


def _just_made(source: Source, folder: Path) -> Built:
    built = binaries.find(source.device, folder)
    return built if built is not None else build(source, folder)  # someone cleared the cache
