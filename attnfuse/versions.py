"""The versions that a generated program depends on."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

from attnfuse import __version__


@cache
def tilelang_version() -> str:
    """The version of TileLang that is installed."""
    return version("tilelang")


def version_line() -> str:
    """AttnFuse and TileLang with their versions."""
    return f"attnfuse {__version__} with tilelang {tilelang_version()}"
