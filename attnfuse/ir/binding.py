"""From the shapes of a call to the sizes of a program, with every check that shapes allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from attnfuse.errors import WrongShape
from attnfuse.ir.axes import Size, Symbol
from attnfuse.ir.layout import dimensions, extent
from attnfuse.ir.packing import unpack
from attnfuse.ir.program import Program
from attnfuse.ir.term import Term, walk

Shape = tuple[int, ...]
Sizes = dict[Symbol, int]


@dataclass(frozen=True)
class _Read:
    """A dimension of a captured tensor that is read at every position of an axis."""

    table: str
    dimension: int
    axis: str
    sizes: tuple[Size, ...]


def bind_sizes(program: Program, shapes: Mapping[str, Shape]) -> Sizes:
    """The number behind each symbol of ``program``, for inputs of these shapes.

    Raises:
        WrongShape: a size clashes with another input's or with the program's,
            or a captured tensor is too small for how it is read.
    """
    sizes: Sizes = {}
    owners: dict[Symbol, str] = {}
    for name, wanted in _wanted(program):
        shape = shapes[name]
        if len(wanted) != len(shape):
            _refuse(program, name, shape, f"{len(wanted)} dimensions are wanted")
        for size, given in zip(wanted, shape, strict=True):
            if isinstance(size, int) and size != given:
                _refuse(program, name, shape, f"this program was made for {size}, not {given}")
            if isinstance(size, Symbol) and sizes.setdefault(size, given) != given:
                owner = owners[size]
                _refuse(program, name, shape, f"{owner} has {shapes[owner]}: {size} must agree")
            if isinstance(size, Symbol):
                owners.setdefault(size, name)
    _check_reads(program, shapes, sizes)
    return sizes


def _check_reads(program: Program, shapes: Mapping[str, Shape], sizes: Sizes) -> None:
    for read in _reads(program):
        have, want = shapes[read.table][read.dimension], 1
        for size in read.sizes:
            want *= size if isinstance(size, int) else sizes[size]
        if _is_less(have, want):
            reads = f"its dimension {read.dimension} is read at every {read.axis}"
            _refuse(program, read.table, shapes[read.table], f"{reads}: give 1 or at least {want}")


def _is_less(have: int, want: int) -> bool:
    """Whether a dimension is too small; a graph that can't know leaves it to the call itself."""
    if type(have) is int and type(want) is int:
        return have not in (1, want) and have < want
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return guard_or_false(have != 1) and guard_or_false(have < want)


@lru_cache(maxsize=1024)
def _wanted(program: Program) -> tuple[tuple[str, tuple[Size, ...]], ...]:
    """The name and the shape of each input."""
    shapes = (tuple(map(extent, dimensions(term.type.axes))) for term in program.inputs)
    names = (term.text("name") for term in program.inputs)
    return tuple(zip(names, shapes, strict=True))


@lru_cache(maxsize=1024)
def _reads(program: Program) -> tuple[_Read, ...]:
    return tuple(read for term in program.terms() for read in _reads_of(unpack(term)))


def _reads_of(root: Term) -> Iterator[_Read]:
    for term in walk(root):
        if term.op.name == "gather":
            table, *indices = term.operands
            for dimension, index in enumerate(indices):
                yield from _read(table, dimension, index)
        elif term.op.name == "rotate":
            for table in term.operands[1:3]:
                yield from _read(table, 0, unpack(term.operands[3]))


def _read(table: Term, dimension: int, index: Term) -> Iterator[_Read]:
    if index.op.name == "index" and table.op.name == "input":
        sizes = tuple(axis.size for axis in index.type.axes)
        yield _Read(table.text("name"), dimension, f"af.{index['name']}", sizes)


def _refuse(program: Program, name: str, shape: Shape, allowed: str) -> None:
    raise WrongShape(variant=program.name, name=name, given=shape, allowed=allowed)
