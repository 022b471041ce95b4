"""Whether this machine can build programs at all."""

from __future__ import annotations

from importlib.util import find_spec

from attnfuse.backends.tilelang.compilers import find_nvcc
from attnfuse.devices import Device
from attnfuse.settings import get_settings


def missing_tool(device: Device) -> str | None:
    """What is missing to build for ``device``, in words, or None."""
    if find_spec("tilelang") is None:
        return "TileLang is not installed (pip install tilelang)"
    if device.kind == "cpu" and get_settings().cxx is None:
        return "there is no C++ compiler (install g++ or clang++, or set ATTNFUSE_CXX)"
    if device.kind == "cuda" and find_nvcc() is None:
        return "there is no nvcc (install the CUDA toolkit, or set CUDA_HOME)"
    return None
