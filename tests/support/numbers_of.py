"""Tensors as plain Python numbers, with types."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def numbers(tensor: Tensor) -> Any:
    """The entries of a tensor as nested lists."""
    values: Any = tensor.tolist()  # pyright: ignore[reportUnknownMemberType]
    return values
