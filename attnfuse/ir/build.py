"""The constructors of all terms, under one roof: import this to make terms."""

from __future__ import annotations

from collections.abc import Sequence

from attnfuse.ir.arithmetic import (
    Number,
    abs_,
    add,
    affine,
    affine_parts,
    cast,
    const,
    div,
    floordiv,
    maximum,
    minimum,
    mod,
    mul,
    neg,
    random,
    sub,
    unary,
    value_of,
)
from attnfuse.ir.axes import Axis, DType, Size
from attnfuse.ir.logic import FALSE, TRUE, and_, conjuncts, eq, le, lt, mask, not_, or_, where
from attnfuse.ir.normal import normal, rebuild, substitute
from attnfuse.ir.ops import OPS
from attnfuse.ir.packing import fill, is_closed, pack, settle, unpack
from attnfuse.ir.term import Term, make

ROLES = ("query", "key", "value", "captured")
"""What an input can be."""


def input_(name: str, role: str, dtype: DType, axes: Sequence[Axis]) -> Term:
    """A tensor that the caller passes; ``role`` is one of `ROLES`."""
    assert role in ROLES
    return make(OPS["input"], (), (name, role, dtype, tuple(axes)))


def slot(position: int, dtype: DType, axes: Sequence[Axis]) -> Term:
    """The place of operand ``position`` in a form."""
    return make(OPS["slot"], (), (position, dtype, tuple(axes)))


def index(name: str, axes: Sequence[Axis]) -> Term:
    """The position along an axis; over two axes (heads) the position in row-major order."""
    return make(OPS["index"], (), (name, DType.int32, tuple(axes)))


def length(size: Size) -> Term:
    """The size of an axis, as an int32 value."""
    return const(size) if isinstance(size, int) else make(OPS["length"], (), (size,))


@normal("gather")
def gather(table: Term, *indices: Term) -> Term:
    """``table[indices]``; an index outside the table reads the nearest entry."""
    return make(OPS["gather"], (table, *map(unpack, indices)))


@normal("indexed")
def indexed(*operands_and_form: Term) -> Term:
    """A form over tensors, packed again from its expression."""
    *tensors, form = operands_and_form
    return pack(fill(form, tensors))


@normal("rotate")
def rotate(
    x: Term, cos: Term, sin: Term, positions: Term, pairing: str, inverse: bool = False
) -> Term:
    """Rotary position embedding of ``x`` by row ``positions`` of the tables (Su et al., 2021).

    ``inverse`` turns by the opposite angles: the transposed map, and so rotation's derivative.
    """
    return make(OPS["rotate"], (x, cos, sin, pack(positions)), (pairing, inverse))


@normal("normalise")
def normalise(x: Term, weight: Term, kind: str, eps: float) -> Term:
    """``x`` divided by its features' RMS (``rms``) or length (``l2``), · weight."""
    return make(OPS["normalise"], (x, pack(unpack(weight))), (kind, eps))


@normal("stored")
def stored(x: Term) -> Term:
    """``x``, written to memory by a pass of its own."""
    return x if x.op.name == "stored" else make(OPS["stored"], (x,))


def concat(*operands: Term, over: str) -> Term:
    """Values one after another along an axis; they broadcast over the others."""
    return make(OPS["concat"], operands, (over,))


def contract(a: Term, b: Term, *, over: str, dtype: DType) -> Term:
    """Σ over one axis of the product: Q·Kᵀ over ``d``, P·V over ``k``."""
    return make(OPS["contract"], (a, b), (over, dtype))


def softmax(scores: Term) -> Term:
    """Softmax over the keys; a row that sees nothing is 0."""
    return make(OPS["softmax"], (scores,))


def logsumexp(scores: Term) -> Term:
    """Natural log of the sum over keys of exp(scores), −∞ for a row that sees nothing."""
    return make(OPS["logsumexp"], (scores,))


def row_max(scores: Term) -> Term:
    """The greatest score of each row, −∞ for a row that sees nothing."""
    return make(OPS["row_max"], (scores,))


def entropy(scores: Term) -> Term:
    """The entropy of softmax(scores) over the keys, in nats; 0 for a row that sees nothing."""
    return make(OPS["entropy"], (scores,))


__all__ = [
    "FALSE",
    "ROLES",
    "TRUE",
    "Number",
    "abs_",
    "add",
    "affine",
    "affine_parts",
    "and_",
    "cast",
    "concat",
    "conjuncts",
    "const",
    "contract",
    "div",
    "entropy",
    "eq",
    "fill",
    "floordiv",
    "gather",
    "index",
    "indexed",
    "input_",
    "is_closed",
    "le",
    "length",
    "logsumexp",
    "lt",
    "mask",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "neg",
    "normalise",
    "not_",
    "or_",
    "pack",
    "random",
    "rebuild",
    "rotate",
    "row_max",
    "settle",
    "slot",
    "softmax",
    "stored",
    "sub",
    "substitute",
    "unary",
    "unpack",
    "value_of",
    "where",
]
