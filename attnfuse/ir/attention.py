"""The rows of the op table that are not elementwise: leaves and attention's own ops."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attnfuse.errors import DoesNotFit
from attnfuse.ir.axes import Axis, DType, Symbol, Type, union
from attnfuse.ir.elementwise import promote
from attnfuse.ir.op import Op
from attnfuse.ir.term import Term

if TYPE_CHECKING:
    from torch import Tensor

    from attnfuse.ir.evaluate import Evaluation


def fits(condition: bool, op: str, problem: str, remedy: str) -> None:
    """Raise DoesNotFit unless ``condition`` holds."""
    if not condition:
        raise DoesNotFit(op=op, problem=problem, remedy=remedy)


# -- leaves ------------------------------------------------------------------


def _infer_declared(term: Term) -> Type:
    axes = term["axes"]
    assert isinstance(axes, tuple)
    declared = [axis for axis in axes if isinstance(axis, Axis)]
    return Type(DType(term.text("dtype")), tuple(declared))


def _infer_const(term: Term) -> Type:
    value = term["value"]
    if isinstance(value, bool):
        return Type(DType.bool)
    return Type(DType.int32 if isinstance(value, int) else DType.float32)


def _mean_const(evaluation: Evaluation, term: Term, values: tuple[Tensor, ...]) -> Tensor:
    return evaluation.full(term["value"], evaluation.dtype(term))


def _mean_index(evaluation: Evaluation, term: Term, values: tuple[Tensor, ...]) -> Tensor:
    sizes = [evaluation.size(axis.size) for axis in term.type.axes]
    count = 1
    for size in sizes:
        count *= size
    return evaluation.arange(count).reshape(sizes)


def _mean_length(evaluation: Evaluation, term: Term, values: tuple[Tensor, ...]) -> Tensor:
    size = term["size"]
    assert isinstance(size, Symbol)
    return evaluation.full(evaluation.size(size), evaluation.dtype(term))


# -- captured tensors ----------------------------------------------------------


def _infer_gather(term: Term) -> Type:
    table, *indices = (operand.type for operand in term.operands)
    fits(
        len(indices) == len(table.axes),
        "gather",
        f"a tensor of {len(table.axes)} dimensions is read with {len(indices)} indices",
        "give one index for each dimension",
    )
    for index in indices:
        fits(
            index.dtype.is_int,
            "gather",
            f"an index is of type {index.dtype}",
            "use integers, such as af.q - af.k",
        )
    return Type(table.dtype, union(indices))


def _mean_gather(evaluation: Evaluation, term: Term, values: tuple[Tensor, ...]) -> Tensor:
    table, *indices = values
    aligned = [
        evaluation.align(index, operand.type.axes, term.type.axes)
        for index, operand in zip(indices, term.operands[1:], strict=True)
    ]
    if 0 in table.shape:  # nothing to read: a zero, so that an empty table needs no special case
        shape = [evaluation.size(axis.size) for axis in term.type.axes]
        return table.new_zeros(shape)
    clamped = [
        index.clamp(0, size - 1).long() for index, size in zip(aligned, table.shape, strict=True)
    ]
    return table[tuple(clamped)] if clamped else table


def _infer_indexed(term: Term) -> Type:
    return term.form().type


def _mean_indexed(evaluation: Evaluation, term: Term, values: tuple[Tensor, ...]) -> Tensor:
    return evaluation.form(term.form(), values)


# -- rotation, storage ---------------------------------------------------------

PAIRINGS = ("half", "interleaved")
"""Which two features a rotation turns: i and i + rotary_dim / 2, or 2i and 2i + 1."""


def _infer_rotate(term: Term) -> Type:
    x, cos, sin, positions = (operand.type for operand in term.operands)
    pairing = term.text("pairing")
    fits(
        pairing in PAIRINGS,
        "rotate",
        f"the pairing is {pairing!r}",
        f"give one of {', '.join(PAIRINGS)}",
    )
    size = x.axes[-1].size if x.axes else None
    fits(
        x.dtype.is_float and isinstance(size, int),
        "rotate",
        f"the rotated tensor is {x}",
        "give floats whose last axis, the features, has a known size",
    )
    tables = len(cos.axes) == len(sin.axes) == 2 and cos.dtype.is_float and sin.dtype.is_float
    width = cos.axes[-1].size if tables else None
    fits(
        isinstance(width, int) and width == sin.axes[-1].size,
        "rotate",
        f"cos is {cos} and sin is {sin}",
        "give two tables of floats, of shape (positions, rotary_dim / 2)",
    )
    assert isinstance(width, int) and isinstance(size, int)
    fits(
        2 * width <= size,
        "rotate",
        f"the tables rotate {2 * width} features, and there are {size}",
        "give tables of at most head_dim / 2 columns",
    )
    fits(
        positions.dtype.is_int and set(positions.axes) <= set(x.axes[:-1]),
        "rotate",
        f"positions are {positions}, the rotated tensor is {x}",
        "give an integer for each batch entry and position",
    )
    return x


def _mean_rotate(evaluation: Evaluation, term: Term, values: tuple[Tensor, ...]) -> Tensor:
    x, cos, sin, positions = values
    wide = evaluation.wide(term.operands[0])
    axes = (*term.operands[3].type.axes, term.type.axes[-1])
    rows = (table[positions.clamp(0, max(len(table) - 1, 0)).long()] for table in (cos, sin))
    c, s = (evaluation.align(row.to(wide), axes, term.type.axes) for row in rows)
    s = -s if term["inverse"] else s
    half, x = cos.shape[1], x.to(wide)
    interleaved = term.text("pairing") == "interleaved"
    first = x[..., 0 : 2 * half : 2] if interleaved else x[..., :half]
    second = x[..., 1 : 2 * half : 2] if interleaved else x[..., half : 2 * half]
    turned = (first * c - second * s, second * c + first * s)
    both = (
        evaluation.stack(turned, -1).flatten(-2) if interleaved else evaluation.concat(turned, -1)
    )
    return evaluation.concat((both, x[..., 2 * half :]), -1).to(evaluation.dtype(term))


# -- concatenation --------------------------------------------------------------


def _infer_concat(term: Term) -> Type:
    over = term.text("over")
    types = [operand.type for operand in term.operands]
    sizes = [axis.size for each in types for axis in each.axes if axis.name == over]
    counts = [size for size in sizes if isinstance(size, int)]
    fits(
        len(counts) == len(types) > 0 and len({each.dtype for each in types}) == 1,
        "concat",
        f"{', '.join(map(str, types))} are joined along {over!r}",
        "give tensors of one element type, whose sizes along that axis are known",
    )
    others = union(Type(each.dtype, each.without(over)) for each in types)
    joined = Type(types[0].dtype, (Axis(over, sum(counts)),))
    return Type(types[0].dtype, union([Type(types[0].dtype, others), joined]))


def _mean_concat(evaluation: Evaluation, term: Term, values: tuple[Tensor, ...]) -> Tensor:
    place = term.type.names.index(term.text("over"))
    sizes = [evaluation.size(axis.size) for axis in term.type.axes]
    sizes[place] = -1
    wide = [
        evaluation.align(value, operand.type.axes, term.type.axes).expand(sizes)
        for value, operand in zip(values, term.operands, strict=True)
    ]
    return evaluation.concat(wide, place)


def _infer_normalise(term: Term) -> Type:
    x, weight = (operand.type for operand in term.operands)
    fits(
        x.dtype.is_float and bool(x.axes) and x.axes[-1].name in ("d", "e"),
        "normalise",
        f"its operand is {x}",
        "normalise the features of queries, keys or values",
    )
    fits(
        weight.dtype.is_float and set(weight.axes) <= set(x.axes),
        "normalise",
        f"the weight is {weight}, the normalised tensor is {x}",
        "give a float for each feature",
    )
    return x


def _mean_normalise(evaluation: Evaluation, term: Term, values: tuple[Tensor, ...]) -> Tensor:
    x, weight = (value.to(evaluation.wide(term.operands[0])) for value in values)
    weight = evaluation.align(weight, term.operands[1].type.axes, term.type.axes)
    eps = float(str(term["eps"]))
    if term["kind"] == "rms":
        divisor = (x.square().mean(-1, keepdim=True) + eps).sqrt()
    else:
        divisor = x.square().sum(-1, keepdim=True).sqrt().clamp_min(eps)
    return (x / divisor * weight).to(evaluation.dtype(term))


# -- contraction, masks, normalisers --------------------------------------------


def _infer_contract(term: Term) -> Type:
    a, b = (operand.type for operand in term.operands)
    over = term.text("over")
    fits(
        over in a.names and over in b.names,
        "contract",
        f"{a} and {b} are summed over {over!r}, which one of them lacks",
        "contract a query with a key, and probabilities with a value",
    )
    fits(
        a.axis(over) == b.axis(over),
        "contract",
        f"axis {over!r} has size {a.axis(over).size} here and {b.axis(over).size} there",
        "give both sides the same size",
    )
    kept = (Type(a.dtype, a.without(over)), Type(b.dtype, b.without(over)))
    return Type(DType(term.text("dtype")), union(kept))


def _mean_contract(evaluation: Evaluation, term: Term, values: tuple[Tensor, ...]) -> Tensor:
    names: dict[str, str] = {}
    sides = [
        "".join(names.setdefault(name, chr(97 + len(names))) for name in operand.type.names)
        for operand in term.operands
    ]
    result = "".join(names[name] for name in term.type.names)
    wide = evaluation.wide(*term.operands)
    product = evaluation.einsum(f"{sides[0]},{sides[1]}->{result}", *(v.to(wide) for v in values))
    return product.to(evaluation.dtype(term))


def _infer_mask(term: Term) -> Type:
    scores, visible = (operand.type for operand in term.operands)
    fits(
        visible.dtype is DType.bool,
        "mask",
        f"the predicate is of type {visible.dtype}",
        "give a bool that says what stays visible, such as af.causal()",
    )
    fits(
        scores.dtype.is_float,
        "mask",
        f"the scores are of type {scores.dtype}",
        "mask scores, after af.scores",
    )
    return Type(scores.dtype, union((scores, visible)))


def _mean_mask(evaluation: Evaluation, term: Term, values: tuple[Tensor, ...]) -> Tensor:
    scores, visible = (
        evaluation.align(value, operand.type.axes, term.type.axes)
        for value, operand in zip(values, term.operands, strict=True)
    )
    return scores.where(visible, evaluation.full(float("-inf"), scores.dtype))


def _over_keys(term: Term) -> Type:
    scores = term.operands[0].type
    fits(
        "k" in scores.names and scores.dtype.is_float,
        term.op.name,
        f"its operand is {scores}, which has no key positions",
        "give it scores, made by af.scores",
    )
    return scores


def _shifted(evaluation: Evaluation, term: Term, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The row maximum (0 for a row that sees nothing), exponentials, and their sum."""
    keys = term.operands[0].type.names.index("k")
    scores = scores.to(evaluation.wide(term.operands[0]))
    if scores.shape[keys] == 0:
        top = scores.sum(keys, keepdim=True)
    else:
        top = scores.detach().amax(keys, keepdim=True)
        top = top.masked_fill(top == float("-inf"), 0.0)
    exponentials = (scores - top).exp()
    return top, exponentials, exponentials.sum(keys, keepdim=True)


def _infer_softmax(term: Term) -> Type:
    return _over_keys(term)


def _mean_softmax(evaluation: Evaluation, term: Term, values: tuple[Tensor, ...]) -> Tensor:
    _, exponentials, total = _shifted(evaluation, term, values[0])
    return (exponentials / total.masked_fill(total == 0, 1.0)).to(evaluation.dtype(term))


def _infer_statistic(term: Term) -> Type:
    scores = _over_keys(term)
    return Type(promote([scores.dtype, DType.float32]), scores.without("k"))


def _mean_logsumexp(evaluation: Evaluation, term: Term, values: tuple[Tensor, ...]) -> Tensor:
    top, _, total = _shifted(evaluation, term, values[0])
    empty = total == 0
    lse = (top + total.masked_fill(empty, 1.0).log()).masked_fill(empty, float("-inf"))
    keys = term.operands[0].type.names.index("k")
    return lse.squeeze(keys).to(evaluation.dtype(term))


def _mean_row_max(evaluation: Evaluation, term: Term, values: tuple[Tensor, ...]) -> Tensor:
    keys = term.operands[0].type.names.index("k")
    scores = values[0].to(evaluation.wide(term.operands[0]))
    if scores.shape[keys] == 0:
        top = scores.sum(keys) - math.inf
    else:
        top = scores.amax(keys)
        top = top.masked_fill(top == -math.inf, -math.inf)  # and no gradient
    return top.to(evaluation.dtype(term))


def _mean_entropy(evaluation: Evaluation, term: Term, values: tuple[Tensor, ...]) -> Tensor:
    """As ln Σeˣ − Σ x·eˣ / Σeˣ for x = s − max s, where 0·(−∞) is 0."""
    keys = term.operands[0].type.names.index("k")
    top, exponentials, total = _shifted(evaluation, term, values[0])
    shifted = values[0].to(top.dtype) - top
    shifted = shifted.masked_fill(shifted == -math.inf, 0.0)
    total = total.masked_fill(total == 0, 1.0)
    entropy = total.log() - (exponentials * shifted).sum(keys, keepdim=True) / total
    return entropy.squeeze(keys).to(evaluation.dtype(term))


STATISTICS = ("logsumexp", "row_max", "entropy")
"""Ops that make one number of each row of scores."""


def _infer_same(term: Term) -> Type:
    return term.operands[0].type


ROWS = (
    Op(
        "input",
        0,
        ("name", "role", "dtype", "axes"),
        _infer_declared,
        lambda evaluation, term, values: evaluation.input(term),
    ),
    Op(
        "slot",
        0,
        ("position", "dtype", "axes"),
        _infer_declared,
        lambda evaluation, term, values: evaluation.slot(term),
    ),
    Op("const", 0, ("value",), _infer_const, _mean_const),
    Op("index", 0, ("name", "dtype", "axes"), _infer_declared, _mean_index),
    Op("length", 0, ("size",), lambda term: Type(DType.int32), _mean_length),
    Op("gather", None, (), _infer_gather, _mean_gather),
    Op("indexed", None, ("form",), _infer_indexed, _mean_indexed),
    Op("rotate", 4, ("pairing", "inverse"), _infer_rotate, _mean_rotate),
    Op("normalise", 2, ("kind", "eps"), _infer_normalise, _mean_normalise),
    Op("stored", 1, (), _infer_same, lambda evaluation, term, values: values[0]),
    Op("concat", None, ("over",), _infer_concat, _mean_concat),
    Op("contract", 2, ("over", "dtype"), _infer_contract, _mean_contract),
    Op("mask", 2, (), _infer_mask, _mean_mask),
    Op("softmax", 1, (), _infer_softmax, _mean_softmax),
    Op("logsumexp", 1, (), _infer_statistic, _mean_logsumexp),
    Op("row_max", 1, (), _infer_statistic, _mean_row_max),
    Op("entropy", 1, (), _infer_statistic, _mean_entropy),
)
"""The rows, as the op table takes them."""
