"""Axes, sizes and types: what a Term's value is shaped like.

Every dimension has a name, so an operand needs no transposes or singleton
dimensions to meet another: values broadcast over the axes they do not have.
The names:

=============  ===============================================================
``b``          batch; ``b0``, ``b1``, … where a variant has several batch axes
``hk``         key/value head
``g``          query head within the group of its key/value head
``q``, ``k``   query position, key position
``d``, ``e``   feature of queries and keys, feature of values
``name.0`` …   the anonymous axes of the captured tensor ``name``
=============  ===============================================================

What a user calls head ``h`` is the pair (``hk``, ``g``): h = hk·G + g, the
convention of grouped-query attention (Ainslie et al., 2023).
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from attnfuse.errors import AxisMismatch

_ORDER = {"hk": 1, "g": 2, "q": 3, "k": 4, "d": 5, "e": 6}
_CAPTURED = 7


class DType(StrEnum):
    """The element types that a Term can have, named as in torch."""

    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"
    float64 = "float64"
    int32 = "int32"
    int64 = "int64"
    bool = "bool"

    @property
    def is_float(self) -> builtins.bool:
        """Whether this is a floating-point type."""
        return self.value.startswith(("float", "bfloat"))

    @property
    def is_int(self) -> builtins.bool:
        """Whether this is an integer type (bool is not)."""
        return self.value.startswith("int")

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        sizes = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
        return (sizes | {"int32": 4, "int64": 8, "bool": 1})[self.value]


@dataclass(frozen=True, slots=True, order=True)
class Symbol:
    """A size that is known at the call only, such as ``q_len``."""

    name: str

    def __str__(self) -> str:
        return self.name


Size = int | Symbol


@dataclass(frozen=True, slots=True)
class Axis:
    """A named dimension and its size."""

    name: str
    size: Size

    def __str__(self) -> str:
        return f"{self.name}={self.size}"


@dataclass(frozen=True, slots=True)
class Type:
    """The element type and the axes of a value, axes in canonical order."""

    dtype: DType
    axes: tuple[Axis, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the axes."""
        return tuple(axis.name for axis in self.axes)

    def axis(self, name: str) -> Axis:
        """The axis called ``name``; KeyError where there is none."""
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise KeyError(name)

    def without(self, name: str) -> tuple[Axis, ...]:
        """The axes but the one called ``name``."""
        return tuple(axis for axis in self.axes if axis.name != name)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.axes))}]"


def rank(name: str) -> tuple[int, str]:
    """The place of an axis in the canonical order: batch, heads, positions, features, captured."""
    return (0 if is_batch(name) else _ORDER.get(name, _CAPTURED), name)


def is_batch(name: str) -> bool:
    """Whether ``name`` is a batch axis: ``b``, ``b0``, ``b1``, …"""
    return name[0] == "b" and (len(name) == 1 or name[1:].isdigit())


def union(types: Iterable[Type]) -> tuple[Axis, ...]:
    """The axes of a value that broadcasts over ``types``, in canonical order.

    Raises AxisMismatch where one axis has two sizes.
    """
    found: dict[str, Axis] = {}
    for type_ in types:
        for axis in type_.axes:
            if found.setdefault(axis.name, axis) != axis:
                raise AxisMismatch(axis=axis.name, one=found[axis.name].size, other=axis.size)
    return tuple(sorted(found.values(), key=lambda axis: rank(axis.name)))
