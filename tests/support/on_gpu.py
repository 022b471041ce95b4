"""Tensors for tests on a GPU."""

from __future__ import annotations

import torch


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the GPU, expanded where it was."""
    once = tuple(slice(1) if stride == 0 else slice(None) for stride in tensor.stride())
    return tensor[once].cuda().expand(tensor.shape)


def poison(like: torch.Tensor) -> None:
    """Leave NaN in the memory that the next outputs will get."""
    for size in (2**10, 2**14, 2**18, 2**22):
        torch.full((size,), float("nan"), dtype=torch.float32, device=like.device)
