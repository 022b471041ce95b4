"""What the examples share: random tensors, and a comparison with float64."""

from __future__ import annotations

import time

import torch
from torch import Tensor

import attnfuse as af


def normal(*shape: int, seed: int) -> Tensor:
    """Normally distributed numbers, the same in each run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def compare(
    variant: af.Variant, *tensors: Tensor, tolerance: float = 1e-5, **constants: int | float | None
) -> None:
    """Run the compiled kernel, and hold its output against the float64 reference.

    Args:
        variant: a variant with one output.
        tensors: its tensors.
        tolerance: the largest error allowed in any entry of the output.
        constants: its Python constants, by name.
    """
    began = time.perf_counter()
    out = variant(*tensors, **constants)
    seconds = time.perf_counter() - began
    exact = variant.reference(*tensors, exact=True, **constants)
    assert isinstance(out, Tensor) and isinstance(exact, Tensor)
    error = (out.double() - exact).abs().max().item()
    chosen = "".join(f", {name}={value}" for name, value in constants.items())
    print(f"{variant.name}{chosen}: {tuple(out.shape)} after {seconds:.1f} s")
    print(f"  largest error against float64: {error:.2e}")
    assert error <= tolerance, f"the error is larger than {tolerance}"
