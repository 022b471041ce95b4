"""From kernels to what a call does: its launches, with every size and stride filled in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from attnfuse.ir.axes import Symbol
from attnfuse.ir.program import Program
from attnfuse.plan import Part, Plan, QueryMajor
from attnfuse.runtime.loading import Kernel

if TYPE_CHECKING:
    from attnfuse.backends.tilelang.launching import Placed, Prepared


@dataclass(frozen=True)
class _Chain:
    """Launches one after the other.

    Attributes:
        steps: each launch, and which tensors it reads: first come those of the call, then the
            outputs of each launch.
    """

    steps: tuple[tuple[tuple[int, ...], Prepared], ...]

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        tensors, outputs = list(inputs), list[Tensor]()
        for places, launch in self.steps:
            outputs = launch([tensors[place] for place in places])
            tensors += outputs
        return outputs


def prepare(
    program: Program,
    launches: Iterable[tuple[Part, Plan, Kernel]],
    inputs: Sequence[Tensor],
    sizes: Mapping[Symbol, int],
) -> Prepared | _Chain:
    """What a call does for tensors of this shape, these strides and this device.

    Args:
        program: what is computed.
        launches: the kernels that compute it, in the order in which they run.
        inputs: the program's inputs, in its order.
        sizes: the sizes that they have.

    Outputs lie in memory in the order of the program's first query.
    """
    names = [term.text("name") for term in program.inputs]
    query = names[[term["role"] for term in program.inputs].index("query")]
    known: dict[str, tuple[int, Placed]] = dict(zip(names, enumerate(inputs), strict=True))
    steps, total = list[tuple[tuple[int, ...], "Prepared"]](), len(inputs)
    for part, plan, kernel in launches:
        read = [known[parameter.name] for parameter in plan.parameters]
        _, like = known[query if isinstance(plan, QueryMajor) else plan.like]
        launch = kernel.prepare([tensor for _, tensor in read], like, sizes)
        steps.append((tuple(place for place, _ in read), launch))
        known |= zip(part.keeps, enumerate(launch.outputs, total), strict=False)
        total += len(launch.outputs)
    places, only = steps[0]
    return only if len(steps) == 1 and places == tuple(range(len(inputs))) else _Chain(tuple(steps))
