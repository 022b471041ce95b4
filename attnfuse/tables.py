"""Cosine and sine tables for rotary position embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnfuse.errors import WrongArgument

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def rope_tables(
    positions: int,
    rotary_dim: int,
    *,
    theta: float = 10000.0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles p · θ^(−2i / rotary_dim) (RoFormer, Su et al., 2021).

    Args:
        positions: how many positions p, from 0.
        rotary_dim: how many features of a head are rotated; an even number.
        theta: the base θ; 500000 in Llama 3.
        device: where the tables are to be.
        dtype: their element type, float32 by default. Angles are computed in float64.

    Returns:
        Two tensors of shape (positions, rotary_dim / 2).

    Raises:
        WrongArgument: an odd rotary_dim, or one below 2.
    """
    import torch

    if rotary_dim < 2 or rotary_dim % 2:
        raise WrongArgument(
            function="rope_tables",
            argument="rotary_dim",
            given=rotary_dim,
            allowed="an even number of features, at least 2: they turn in pairs",
        )
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), theta**-exponents)
    wanted = dtype or torch.float32
    return angles.cos().to(device, wanted), angles.sin().to(device, wanted)
