"""The elementwise rows of the op table.

Integers are exact and divide like Python (towards minus infinity). Operands
of one op have one kind (float, int or bool); `attnfuse.ir.build` inserts the
casts. Where floats of several widths meet, the widest wins, and float16 with
bfloat16 gives float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from attnfuse.errors import WrongArity, WrongOperandKind
from attnfuse.ir.axes import DType, Type, union
from attnfuse.ir.op import Meaning, Op
from attnfuse.ir.philox import WORDS, philox, uniform, words_of
from attnfuse.ir.term import Term

if TYPE_CHECKING:
    from torch import Tensor

    from attnfuse.ir.evaluate import Evaluation

Binary = Callable[["Tensor", "Tensor"], "Tensor"]

UNARY = ("exp", "exp2", "log", "tanh", "sigmoid", "sqrt")
"""Names of the functions of one float; each is also the name of torch's."""


def kind(dtype: DType) -> str:
    """``float``, ``int`` or ``bool``."""
    return "float" if dtype.is_float else "int" if dtype.is_int else "bool"


def promote(dtypes: list[DType]) -> DType:
    """The element type in which operands of these types are combined."""
    widest = max(dtypes, key=lambda dtype: (dtype.is_float, dtype.itemsize))
    if {DType.float16, DType.bfloat16} <= set(dtypes) and widest.itemsize == 2:
        return DType.float32
    return widest


def check_kinds(op: str, operands: Sequence[Term], *kinds: str) -> None:
    """Raise WrongOperandKind unless all operands are of one of these kinds."""
    given = [kind(operand.type.dtype) for operand in operands]
    if len(set(given)) > 1 or not set(given) <= set(kinds):
        allowed = f"operands of one kind: {' or '.join(kinds)}"
        raise WrongOperandKind(op=op, given=", ".join(given), allowed=allowed)


def _infer(kinds: tuple[str, ...], result: DType | None) -> Callable[[Term], Type]:
    def rule(term: Term) -> Type:
        check_kinds(term.op.name, term.operands, *kinds)
        return Type(result or _combined(term.operands), union(x.type for x in term.operands))

    return rule


def _combined(operands: Sequence[Term]) -> DType:
    """The common element type.

    As in torch, a scalar has no width of its own beside a tensor, and a
    constant none beside anything: half a float16 is a float16.
    """
    varying = [operand for operand in operands if operand.op.name != "const"] or operands
    strong = [operand for operand in varying if operand.type.axes] or varying
    return promote([operand.type.dtype for operand in strong])


def _infer_where(term: Term) -> Type:
    condition, *branches = (operand.type for operand in term.operands)
    kinds = {kind(branch.dtype) for branch in branches}
    if condition.dtype is not DType.bool or len(kinds) > 1:
        given = ", ".join(kind(operand.type.dtype) for operand in term.operands)
        raise WrongOperandKind(op="where", given=given, allowed="a bool, then two of one kind")
    return Type(_combined(term.operands[1:]), union([condition, *branches]))


def _infer_cast(term: Term) -> Type:
    return Type(DType(term.text("dtype")), term.operands[0].type.axes)


def _infer_random(term: Term) -> Type:
    count = len(term.operands)
    if not 1 <= count <= 1 + WORDS:
        raise WrongArity(op="random", allowed=f"a seed and at most {WORDS}", given=count)
    check_kinds("random", term.operands, "int")
    return Type(DType.float32, union(operand.type for operand in term.operands))


def _mean_random(evaluation: Evaluation, term: Term, values: tuple[Tensor, ...]) -> Tensor:
    seed, *indices = values
    counter = [words_of(index)[0] for index in indices]
    counter += [seed.long() & 0] * (WORDS - len(indices))
    return uniform(philox(counter, words_of(seed))[0]).to(evaluation.dtype(term))


def _fold(combine: Binary) -> Meaning:
    return lambda evaluation, term, values: reduce(combine, values)


def _method(name: str) -> Meaning:
    return lambda evaluation, term, values: getattr(values[0], name)(*values[1:])


def _row(
    name: str, arity: int | None, kinds: str, meaning: Meaning, result: DType | None = None
) -> Op:
    infer = _infer(tuple(kinds.split()), result)
    return Op(name, arity, (), infer, meaning, elementwise=True, flat=arity is None)


ROWS = (
    _row("add", None, "float int", _fold(lambda x, y: x + y)),
    _row("mul", None, "float int", _fold(lambda x, y: x * y)),
    _row("div", 2, "float", _fold(lambda x, y: x / y)),
    _row("floordiv", 2, "int", _fold(lambda x, y: x // y)),
    _row("mod", 2, "int", _fold(lambda x, y: x % y)),
    _row("minimum", None, "float int", _fold(lambda x, y: x.minimum(y))),
    _row("maximum", None, "float int", _fold(lambda x, y: x.maximum(y))),
    _row("abs", 1, "float int", _method("abs")),
    *(_row(name, 1, "float", _method(name)) for name in UNARY),
    _row("le", 2, "float int", _fold(lambda x, y: x <= y), DType.bool),
    _row("lt", 2, "float", _fold(lambda x, y: x < y), DType.bool),
    _row("eq", 2, "float int bool", _fold(lambda x, y: x == y), DType.bool),
    _row("and", None, "bool", _fold(lambda x, y: x & y)),
    _row("or", None, "bool", _fold(lambda x, y: x | y)),
    _row("not", 1, "bool", _method("logical_not")),
    Op("random", None, (), _infer_random, _mean_random, elementwise=True),
    Op(
        "where",
        3,
        (),
        _infer_where,
        lambda evaluation, term, values: values[1].where(values[0], values[2]),
        elementwise=True,
    ),
    Op(
        "cast",
        1,
        ("dtype",),
        _infer_cast,
        lambda evaluation, term, values: values[0].to(evaluation.dtype(term)),
        elementwise=True,
    ),
)
"""The rows, as the op table takes them."""
