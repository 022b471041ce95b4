"""Evaluates terms by the op table's meanings: the oracle of the whole project.

Either exactly, every float in float64, or as typed, every value rounded to
the element type of its term. Both are differentiable by torch's autograd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from attnfuse.ir.axes import Axis, Size, Symbol
from attnfuse.ir.term import Term, walk

if TYPE_CHECKING:
    from torch import Tensor


class Evaluation:
    """What a meaning may ask for while a graph is evaluated.

    Args:
        inputs: the tensor of each input term, dimensions as its axes.
        sizes: the number behind each symbol.
        exact: compute every float in float64, rather than as typed.
        device: where to compute.
    """

    def __init__(
        self,
        inputs: Mapping[Term, Tensor],
        sizes: Mapping[Symbol, int],
        *,
        exact: bool,
        device: torch.device,
    ) -> None:
        self._inputs = inputs
        self._sizes = sizes
        self._exact = exact
        self._device = device
        self._slots: tuple[Tensor, ...] = ()
        self._values: dict[Term, Tensor] = {}

    def value(self, root: Term) -> Tensor:
        """The value of ``root``, dimensions in the order of its axes."""
        for term in walk(root):
            if term not in self._values:
                operands = tuple(self._operand(term, operand) for operand in term.operands)
                self._values[term] = term.op.meaning(self, term, operands)
        return self._values[root]

    def form(self, form: Term, slots: Sequence[Tensor]) -> Tensor:
        """The value of a form with ``slots`` in its slots."""
        inner = Evaluation({}, self._sizes, exact=self._exact, device=self._device)
        inner._slots = tuple(slots)
        return inner.value(form)

    def input(self, term: Term) -> Tensor:
        """The tensor given for an input term."""
        value = self._inputs[term]
        return value.to(self.dtype(term))

    def slot(self, term: Term) -> Tensor:
        """The tensor in a form's slot."""
        return self._slots[term.integer("position")]

    def size(self, size: Size) -> int:
        """The number behind ``size``."""
        return size if isinstance(size, int) else self._sizes[size]

    def dtype(self, *terms: Term) -> torch.dtype:
        """The element type in which the value of a term is held."""
        dtype = terms[0].type.dtype
        exact = self._exact and dtype.is_float
        return torch.float64 if exact else getattr(torch, dtype.value)

    def wide(self, *terms: Term) -> torch.dtype:
        """The type for intermediate results: float32, or float64 where an operand is that wide."""
        doubles = any(self.dtype(term) is torch.float64 for term in terms)
        return torch.float64 if doubles else torch.float32

    def align(self, value: Tensor, have: Sequence[Axis], want: Sequence[Axis]) -> Tensor:
        """``value`` with a dimension of size 1 for each wanted axis that it lacks."""
        names = [axis.name for axis in have]
        for place, axis in enumerate(want):
            if axis.name not in names:
                value = value.unsqueeze(place)
        return value

    def full(self, value: object, dtype: torch.dtype) -> Tensor:
        """A scalar."""
        return torch.tensor(value, dtype=dtype, device=self._device)

    def arange(self, count: int) -> Tensor:
        """0 … count − 1, as int32."""
        return torch.arange(count, dtype=torch.int32, device=self._device)

    def stack(self, values: Sequence[Tensor], dim: int) -> Tensor:
        """``torch.stack``."""
        return torch.stack(tuple(values), dim)

    def concat(self, values: Sequence[Tensor], dim: int) -> Tensor:
        """``torch.cat``."""
        return torch.cat(tuple(values), dim)

    def einsum(self, equation: str, *values: Tensor) -> Tensor:
        """``torch.einsum``."""
        return torch.einsum(equation, *values)

    def _operand(self, term: Term, operand: Term) -> Tensor:
        value = self._values[operand]
        if not term.op.elementwise:
            return value
        value = self.align(value, operand.type.axes, term.type.axes)
        arithmetic = operand.type.dtype.is_float and term.type.dtype.is_float
        return value.to(self.dtype(term)) if arithmetic else value
