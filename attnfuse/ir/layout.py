"""Axes as the dimensions of the tensors that callers pass and get."""

from __future__ import annotations

from collections.abc import Sequence

from attnfuse.ir.axes import Axis, Size

Dimension = tuple[Axis, ...]


def dimensions(axes: Sequence[Axis]) -> tuple[Dimension, ...]:
    """The axes behind each dimension: one, or both of a query's head axes."""
    groups: list[Dimension] = []
    for axis in axes:
        if axis.name == "g":
            groups[-1] = (*groups[-1], axis)
        else:
            groups.append((axis,))
    return tuple(groups)


def extent(dimension: Dimension) -> Size:
    """The size of a dimension. Only static axes are ever merged."""
    size = dimension[0].size
    for axis in dimension[1:]:
        assert isinstance(size, int) and isinstance(axis.size, int)
        size *= axis.size
    return size


def label(dimension: Dimension) -> str:
    """What callers call a dimension: ``h`` for the pair of head axes, else the axis's name."""
    return "h" if dimension[0].name == "hk" else dimension[0].name
