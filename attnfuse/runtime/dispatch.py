"""From a call to its kernel."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from attnfuse.backends.reference import evaluate
from attnfuse.backends.tilelang.toolchain import missing_tool
from attnfuse.compiler import Compiled
from attnfuse.errors import NoBackward, NoTensorData, NoToolchain
from attnfuse.ir.axes import Symbol
from attnfuse.ir.binding import bind_sizes
from attnfuse.settings import get_settings

Outputs = Tensor | tuple[Tensor, ...]


def call(compiled: Compiled, tensors: Mapping[str, Tensor]) -> Outputs:
    """The outputs of a compiled variant for these tensors.

    Raises:
        WrongShape: sizes don't fit each other.
        NoTensorData: the tensors are on the meta device.
        NoBackward: a tensor requires a gradient.
        NoToolchain: nothing can be built here, and the scores are too many
            for the reference backend.
    """
    if any(tensor.is_meta for tensor in tensors.values()):
        raise NoTensorData(variant=compiled.program.name)
    sizes = bind_sizes(compiled.program, {name: tuple(t.shape) for name, t in tensors.items()})
    _refuse_gradients(compiled.program.name, tensors)
    problem = missing_tool(compiled.device)
    if problem is None:
        outputs = compiled.run(tensors, sizes)
    else:
        outputs = _stand_in(compiled, tensors, problem, sizes)
    return outputs[0] if len(outputs) == 1 else outputs


def _refuse_gradients(variant: str, tensors: Mapping[str, Tensor]) -> None:
    wanting = [name for name, tensor in tensors.items() if tensor.requires_grad]
    if wanting and torch.is_grad_enabled():
        raise NoBackward(variant=variant, names=", ".join(wanting))


def _stand_in(
    compiled: Compiled, tensors: Mapping[str, Tensor], problem: str, sizes: Mapping[Symbol, int]
) -> tuple[Tensor, ...]:
    """The reference backend's outputs, where no kernel can be built."""
    limit = get_settings().reference_limit
    scores = sizes[Symbol("q_len")] * sizes[Symbol("kv_len")]
    if limit and scores > limit:
        raise NoToolchain(problem=problem, scores=scores, limit=limit)
    warn_once(compiled.program.name, problem)
    return evaluate(compiled.program, tensors, exact=False)


@cache
def warn_once(variant: str, problem: str) -> None:
    """Say that a variant runs on the reference backend, and why, once for each pair."""
    warnings.warn(
        f"{variant} runs on AttnFuse's reference backend, slowly and with all scores in memory: "
        f"{problem}.",
        stacklevel=5,
    )
