"""What the examples share: sizes, random tensors, and a comparison with float64."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

import attnfuse as af


@dataclass(frozen=True)
class Sizes:
    """The sizes of a call: batch and lengths may be any, and the others make a kernel.

    An example's `inputs` makes its variant's tensors for any sizes; `SIZES` are what it runs.
    """

    heads: int
    key_heads: int
    head_dim: int
    value_dim: int
    q_len: int
    kv_len: int
    batch: int = 1

    @property
    def positions(self) -> int:
        """How many rows a table needs that is read by positions of queries and of keys."""
        return max(self.q_len, self.kv_len)

    @property
    def rotary_dim(self) -> int:
        """All features, but an odd last one."""
        return self.head_dim // 2 * 2

    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        """Random queries, keys and values, (batch, heads, length, features)."""
        q = normal(self.batch, self.heads, self.q_len, self.head_dim, seed=0)
        k = normal(self.batch, self.key_heads, self.kv_len, self.head_dim, seed=1)
        v = normal(self.batch, self.key_heads, self.kv_len, self.value_dim, seed=2)
        return q, k, v


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
