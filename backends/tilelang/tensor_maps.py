"""Tensor maps: what Hopper's copy engine is told of a tensor in memory.

A kernel that copies by TMA takes a `CUtensorMap` for each such tensor. It
holds the tensor's address, and so the host makes it at a call. TileLang says
what it has to hold in an attribute of the host's function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

Extent = tuple[str, int]
"""A size or a stride: a number, times the value that the kernel is told by this name, if any."""

_CREATE = "__tvm_tensormap_create_tiled"
_ATTRIBUTE = "tma_descriptor_args"


@dataclass(frozen=True)
class TensorMap:
    """The arguments of `cuTensorMapEncodeTiled` but for the address, in its order and its words.

    Attributes:
        name: the kernel's parameter.
        tensor: the tensor that it describes.
        dtype: the driver's number of the element type.
        sizes: the size of each dimension, the innermost first.
        strides: bytes from one to the next in each dimension but the innermost.
        box: the size of a tile in each dimension.
        steps: the elements of a tile are so far apart, in each dimension.
        modes: the driver's numbers for interleaving, swizzling, prefetching, and what is
            read beyond the end.
    """

    name: str
    tensor: str
    dtype: int
    sizes: tuple[Extent, ...]
    strides: tuple[Extent, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    modes: tuple[int, int, int, int]


def number(extent: Extent, values: Mapping[str, int]) -> int:
    """The number behind a size or a stride."""
    name, factor = extent
    return factor * values[name] if name else factor


def read(data: Any) -> TensorMap:
    """A tensor map from the JSON of its fields.

    Raises:
        TypeError, ValueError: it isn't one.
    """
    plain = {name: _tuples(value) for name, value in data.items()}
    return TensorMap(**plain)


def tensor_maps(host: Any) -> tuple[TensorMap, ...]:
    """The tensor maps of a kernel, by its host module."""
    found: list[TensorMap] = []
    for function in host.functions.values():
        attributes = function.attrs
        if attributes is not None and _ATTRIBUTE in attributes:
            maps = attributes[_ATTRIBUTE].items()
            found += [_map(_text(name), list(arguments)) for name, arguments in maps]
    return tuple(sorted(found, key=lambda each: each.name))


def _map(name: str, arguments: list[Any]) -> TensorMap:
    assert arguments[0].value == _CREATE
    rank, rest = int(arguments[3]), arguments[5:]
    sizes, strides, box, steps = (rest[n * rank : (n + 1) * rank] for n in range(4))
    interleave, swizzle, prefetch, fill = map(int, rest[4 * rank :])
    return TensorMap(
        name=name,
        tensor=_text(arguments[4]),
        dtype=int(arguments[2]),
        sizes=tuple(map(_extent, sizes)),
        strides=tuple(map(_extent, strides[1:])),  # innermost elements are contiguous
        box=tuple(map(int, box)),
        steps=tuple(map(int, steps)),
        modes=(interleave, swizzle, prefetch, fill),
    )


def _text(term: Any) -> str:
    """A name as Python's own string: copying one of TVM's crashes the process."""
    return str(term).encode().decode()


def _extent(term: Any) -> Extent:
    """A number, a variable, or a product of the two, of TIR."""
    if isinstance(term, int):
        return "", term
    kind = type(term).__name__
    if kind == "IntImm":
        return "", int(term)
    if kind == "Cast":
        return _extent(term.value)
    if kind == "Mul":
        (name, one), (other, factor) = _extent(term.a), _extent(term.b)
        assert not (name and other)
        return name or other, one * factor
    assert kind == "Var", f"{term} is no size or stride"
    return _text(term), 1


def _tuples(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    items = cast("Sequence[Any]", value)
    return tuple(map(_tuples, items))
