"""Where generated programs and built kernels are kept."""

from __future__ import annotations

import tempfile
import warnings
from functools import cache
from pathlib import Path

from attnfuse.settings import get_settings


def folder_of(digest: str) -> Path:
    """The folder of one program, made if it isn't there.

    Where the cache can't be written, a folder that lasts as long as the
    process, with one warning.
    """
    folder = get_settings().cache_dir / "programs" / digest
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        folder = temporary_root(str(error)) / digest
        folder.mkdir(exist_ok=True)
    return folder


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
