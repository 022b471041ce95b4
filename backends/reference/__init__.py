"""The reference backend: any program by the op table's meanings, in plain PyTorch.

It is the oracle of all tests and runs where there is no toolchain. It holds
all scores in memory, and torch's autograd differentiates it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from attnfuse.ir.axes import Axis
from attnfuse.ir.binding import bind_sizes
from attnfuse.ir.evaluate import Evaluation
from attnfuse.ir.layout import dimensions
from attnfuse.ir.program import Program
from attnfuse.ir.term import Term


def evaluate(program: Program, tensors: Mapping[str, Tensor], *, exact: bool) -> tuple[Tensor, ...]:
    """The outputs of ``program``.

    Args:
        program: any program.
        tensors: its inputs by name, dimensions as the variant's caller passes them.
        exact: compute every float in float64 and return that; else round each
            value as its type says.

    Raises:
        WrongShape: the inputs don't fit together.
    """
    return _values(program, program.outputs, tensors, exact=exact)


def probabilities(program: Program, tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """The dense value of each softmax in ``program``, as typed."""
    softmaxes = [term for term in program.terms() if term.op.name == "softmax"]
    return _values(program, softmaxes, tensors, exact=False)


def _values(
    program: Program, terms: Iterable[Term], tensors: Mapping[str, Tensor], *, exact: bool
) -> tuple[Tensor, ...]:
    sizes = bind_sizes(program, {name: tuple(each.shape) for name, each in tensors.items()})
    inputs = {term: _split(tensors[term.text("name")], term.type.axes) for term in program.inputs}
    device = next(iter(inputs.values())).device
    evaluation = Evaluation(inputs, sizes, exact=exact, device=device)
    return tuple(_merged(evaluation.value(term), term.type.axes) for term in terms)


def _split(tensor: Tensor, axes: Sequence[Axis]) -> Tensor:
    """A caller's tensor with a dimension for each axis."""
    for place, dimension in enumerate(dimensions(axes)):
        if len(dimension) == 2:
            shape, groups = list(tensor.shape), dimension[0].size
            assert isinstance(groups, int)
            shape[place : place + 1] = [groups, shape[place] // groups]
            tensor = tensor.reshape(shape)
    return tensor


def _merged(value: Tensor, axes: Sequence[Axis]) -> Tensor:
    """A value with the dimensions that callers see."""
    for place, dimension in enumerate(dimensions(axes)):
        if len(dimension) == 2:
            value = value.flatten(place, place + 1)
    return value
