"""Gradients by the reference backend, until kernels compute them.

They cost memory quadratic in the lengths, so a call says so once, and is
refused above the limit that the reference backend has everywhere.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch
from torch import Tensor

from attnfuse.backends.reference import evaluate
from attnfuse.errors import NoBackward
from attnfuse.ir.axes import Symbol
from attnfuse.ir.program import Program
from attnfuse.settings import get_settings

AUTOCAST = ("cpu", "cuda")
"""Devices that kernels run on and that autocast knows."""


def check(program: Program, inputs: Sequence[Tensor], sizes: Mapping[Symbol, int]) -> None:
    """Find out before the forward pass whether gradients can be had.

    Raises:
        NoBackward: by the setting ``backward``, or there are too many scores.
    """
    settings = get_settings()
    scores = sizes[Symbol("q_len")] * sizes[Symbol("kv_len")]
    limit = settings.reference_limit
    if settings.backward == "raise":
        problem, remedy = "ATTNFUSE_BACKWARD is raise", "set it to reference"
    elif limit and scores > limit:
        problem = (
            f"its kernels have no backward pass yet; the reference backend would hold {scores} "
            f"scores a head, above the limit of {limit}"
        )
        remedy = "raise ATTNFUSE_REFERENCE_LIMIT"
    else:
        _warn_once(program.name)
        return
    terms = zip(program.inputs, inputs, strict=True)
    names = ", ".join(term.text("name") for term, tensor in terms if tensor.requires_grad)
    raise NoBackward(variant=program.name, names=names, problem=problem, remedy=remedy)


def gradients(
    program: Program,
    inputs: Sequence[Tensor],
    of_outputs: Sequence[Tensor],
    wanted: Sequence[bool],
) -> list[Tensor]:
    """The gradients of the inputs that are wanted, each laid out like its input.

    Args:
        program: what was computed.
        inputs: the program's inputs, in its order.
        of_outputs: the gradient of each output.
        wanted: for each input, whether its gradient is wanted.
    """
    names = [term.text("name") for term in program.inputs]
    with _recording(), without_autocast(inputs):
        leaves = [
            tensor.detach().requires_grad_(wants)
            for tensor, wants in zip(inputs, wanted, strict=True)
        ]
        outputs = evaluate(program, dict(zip(names, leaves, strict=True)), exact=False)
        roots = [pair for pair in zip(outputs, of_outputs, strict=True) if pair[0].requires_grad]
        found = torch.autograd.grad(
            [output for output, _ in roots],
            [leaf for leaf in leaves if leaf.requires_grad],
            [gradient for _, gradient in roots],
            allow_unused=True,
            materialize_grads=True,
        )
    places = empty_gradients(inputs, wanted)
    return [place.copy_(gradient) for place, gradient in zip(places, found, strict=True)]


def empty_gradients(inputs: Sequence[Tensor], wanted: Sequence[bool]) -> list[Tensor]:
    """Uninitialised gradients of the inputs that are wanted."""
    pairs = zip(inputs, wanted, strict=True)
    return [torch.empty_like(tensor) for tensor, wants in pairs if wants]


@contextmanager
def _recording() -> Generator[None]:
    """A block that autograd records, also within an operator, where it is switched off twice."""
    autograd = torch._C.DispatchKey.AutogradFunctionality
    with torch._C._SetExcludeDispatchKeyGuard(autograd, False), torch.enable_grad():
        yield


def without_autocast(tensors: Iterable[Tensor]) -> AbstractContextManager[object]:
    """A block in which nothing is rounded but what terms say, for tensors of one device."""
    device = next(iter(tensors)).device.type
    return torch.autocast(device, enabled=False) if device in AUTOCAST else nullcontext()


@cache
def _warn_once(variant: str) -> None:
    warnings.warn(
        f"{variant}: its kernels have no backward pass yet; the gradients come from AttnFuse's "
        "reference backend, with several tensors of all scores in memory "
        "(batch × heads × q_len × kv_len × 4 bytes each). ATTNFUSE_BACKWARD=raise refuses instead.",
        stacklevel=7,  # from here to the line that called a variant
    )
