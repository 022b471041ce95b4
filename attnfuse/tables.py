"""Cosine and sine tables for rotary position embeddings, and the scalings of their frequencies.

Pair i of a head's rotary features turns by f_i radians from one position to the next. A scaling
lowers frequencies, so that a model trained on short sequences reads longer ones.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, NoReturn

from attnfuse.scalings import THETA, RopeScaling, refuse, unscaled

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def rope_tables(
    positions: int | Tensor,
    rotary_dim: int,
    *,
    theta: float = THETA,
    scaling: RopeScaling | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles p · f_i (RoFormer, Su et al., 2021).

    The frequencies f_i are θ^(−2i / rotary_dim) radians per position, unless scaled.

    Args:
        positions: how many positions p, from 0; or a 1-D tensor of integers, the position of
            each row. Positions may come in any order and more than once: a rank of context
            parallelism gives those of its shard, packed documents start again at 0.
        rotary_dim: how many features of a head are rotated; an even number.
        theta: the base θ; 500000 in Llama 3.
        scaling: how frequencies change for long contexts, such as
            ``af.YarnScaling(factor=4.0, original=4096)``; by default they don't.
        device: where the tables are to be; by default where a tensor of positions is.
        dtype: their element type, float32 by default. All is computed in float64, and rounded
            at the end.

    Returns:
        Two tensors of shape (positions, rotary_dim / 2), times the scaling's amplitude.

    Raises:
        WrongArgument: an odd rotary_dim, or one below 2; a θ of at most 1; positions that are
            neither a number nor a 1-D tensor of integers; a scaling of another type, or one
            that lacks something (see `DynamicNtkScaling` and `NtkScaling`).
    """
    import torch

    rows = _rows(positions)
    amplitude = 1.0
    if scaling is None:
        frequencies = unscaled(rotary_dim, theta)
    else:
        _check_scaling(scaling)
        length = None if isinstance(positions, torch.Tensor) else positions
        frequencies = scaling.frequencies(rotary_dim, theta, length=length)
        amplitude = scaling.amplitude
    angles = torch.outer(rows, frequencies.to(rows.device))
    wanted = dtype or torch.float32
    cos, sin = angles.cos() * amplitude, angles.sin() * amplitude
    return cos.to(device, wanted), sin.to(device, wanted)


def _rows(positions: int | Tensor) -> Tensor:
    """The position of each row, in float64."""
    import torch

    if isinstance(positions, torch.Tensor):
        kind = positions.dtype
        if kind.is_floating_point or kind.is_complex or kind is torch.bool or positions.ndim != 1:
            _refuse_positions(f"a tensor of {kind} and shape {tuple(positions.shape)}")
        return positions.to(torch.float64)
    try:
        count = operator.index(positions)
    except TypeError:
        _refuse_positions(f"of type {type(positions).__name__}")
    if count < 0:
        _refuse_positions(str(count))
    return torch.arange(count, dtype=torch.float64)


def _refuse_positions(given: str) -> NoReturn:
    allowed = (
        "how many there are, or a 1-D tensor of integers; for positions that differ within a "
        "batch, make tables of all and pass their rows to af.rope(…, positions=…)"
    )
    refuse("rope_tables", "positions", given, allowed)


def _check_scaling(scaling: object) -> None:
    if not isinstance(scaling, RopeScaling):
        allowed = (
            "an af.LinearScaling, NtkScaling, DynamicNtkScaling, YarnScaling or Llama3Scaling, "
            "or another subclass of af.RopeScaling"
        )
        refuse("rope_tables", "scaling", f"of type {type(scaling).__name__}", allowed)
