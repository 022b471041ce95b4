"""From binaries to kernels that this process can call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from attnfuse.backends.tilelang.binaries import Built
from attnfuse.backends.tilelang.source import Source
from attnfuse.plan import Plan
from attnfuse.runtime.cache import folder_of
from attnfuse.runtime.stats import timed

if TYPE_CHECKING:
    from attnfuse.backends.tilelang.launching import Placed, Prepared, Sizes


class Kernel(Protocol):
    """A kernel that is loaded."""

    def prepare(self, inputs: Sequence[Placed], like: Placed, sizes: Sizes) -> Prepared:
        """The launch for tensors of this shape and these strides.

        Args:
            inputs: the tensors of the plan's parameters, in order, or where they will be.
            like: the tensor in whose order outputs lie in memory.
            sizes: the sizes that the tensors have.
        """
        ...


def load(plan: Plan, source: Source, built: Built | None) -> Kernel:
    """The kernel of a program, ready to be called.

    Args:
        plan: what the program does.
        source: the program.
        built: its binary, or None for a program that TileLang has to build itself.

    Raises:
        BuildFailed: the target's compiler refused the program.
        DriverFailed: the GPU's driver refused the binary.
    """
    if built is None:
        from attnfuse.backends.tilelang import hip

        with timed("compile"):
            return hip.build(plan, source, folder_of(source.digest))
    with timed("load"):
        if source.device.kind == "cpu":
            from attnfuse.backends.tilelang import cpu

            return cpu.load(plan, built)
        from attnfuse.backends.tilelang import cuda

        return cuda.load(plan, built)
