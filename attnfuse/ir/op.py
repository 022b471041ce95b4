"""What a row of the op table holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnfuse.ir.term import Term

if TYPE_CHECKING:
    from torch import Tensor

    from attnfuse.ir.axes import Type
    from attnfuse.ir.evaluate import Evaluation

Infer = Callable[[Term], "Type"]
Meaning = Callable[["Evaluation", Term, "tuple[Tensor, ...]"], "Tensor"]


@dataclass(frozen=True, eq=False, slots=True)
class Op:
    """One operation: what the compiler knows of it, in one place.

    Its derivative stands in `attnfuse.ir.derivatives`, since derivatives are
    written in terms of other ops.

    Attributes:
        name: its name, also in printed terms.
        arity: the number of operands, or None where any number will do.
        attributes: the names of its attributes, in order.
        infer: the type rule. It reads the operands and attributes of a term
            that has no type yet, and raises where they don't fit.
        meaning: the specification. It gets the evaluation, the term and the
            operands' values (for an elementwise op aligned to the axes of the
            result) and returns the value, dimensions in the order of the axes.
        elementwise: whether it works element by element over the union of the
            operands' axes.
        flat: whether its operands have no order and its normal form takes in
            the operands of an operand of the same op (sums, products, …).
    """

    name: str
    arity: int | None
    attributes: tuple[str, ...]
    infer: Infer
    meaning: Meaning
    elementwise: bool = False
    flat: bool = False

    def __reduce__(self) -> tuple[object, ...]:
        return (_row, (self.name,))


def _row(name: str) -> Op:
    from attnfuse.ir.ops import OPS

    return OPS[name]
