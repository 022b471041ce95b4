"""Tensors as plain Python numbers, with types."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor


def numbers(tensor: Tensor) -> Any:
    """The entries of a tensor as nested lists."""
    return cast("Any", tensor).tolist()
