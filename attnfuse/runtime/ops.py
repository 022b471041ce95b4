"""The operators of PyTorch that every call goes through.

``attnfuse::attention_fwd(Tensor[] inputs, str key) -> Tensor[]`` is all that
autograd, `torch.compile`, `torch.export`, checkpointing and CUDA graphs see
of an attention. A `torch.library.Library` op under an autograd function
costs a third of `torch.library.custom_op` at each call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnfuse.errors import NoSecondDerivative, NoVmap
from attnfuse.runtime import dispatch, gradients
from attnfuse.runtime.definitions import find

_library = torch.library.Library("attnfuse", "DEF")
_library.define("attention_fwd(Tensor[] inputs, str key) -> Tensor[]")
_library.define(
    "attention_bwd(Tensor[] inputs, Tensor[] gradients, bool[] wanted, str key) -> Tensor[]"
)
attention_fwd: Callable[[list[Tensor], str], list[Tensor]]
attention_fwd = torch.ops.attnfuse.attention_fwd.default
attention_bwd: Callable[[list[Tensor], list[Tensor], list[bool], str], list[Tensor]]
attention_bwd = torch.ops.attnfuse.attention_bwd.default


class _Attention(torch.autograd.Function):
    """A call with gradients."""

    @staticmethod
    def forward(key: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            return tuple(attention_fwd(list(inputs), key))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.key, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *of_outputs: Tensor) -> tuple[Tensor | None, ...]:
        wanted = list(ctx.needs_input_grad[1:])
        found = iter(attention_bwd(list(ctx.saved_tensors), list(of_outputs), wanted, ctx.key))
        return None, *(next(found) if wants else None for wants in wanted)


_apply: Callable[..., tuple[Tensor, ...]] = _Attention.apply


def attend(inputs: list[Tensor], key: str) -> list[Tensor]:
    """The outputs of the program with this key.

    Args:
        inputs: its inputs, in its order.
        key: what `attnfuse.runtime.definitions.define` said.

    Raises:
        AttnFuseError: the tensors don't fit the program, or nothing can compute it here.
    """
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        program = find(key)
        gradients.check(program, inputs, dispatch.sizes_of(program, inputs))
        return list(_apply(key, *inputs))
    with torch._C._AutoDispatchBelowAutograd():
        return attention_fwd(inputs, key)


def _forward_fake(inputs: list[Tensor], key: str) -> list[Tensor]:
    program = find(key)
    return dispatch.empty_outputs(program, inputs, dispatch.sizes_of(program, inputs))


def _backward(
    inputs: list[Tensor], of_outputs: list[Tensor], wanted: list[bool], key: str
) -> list[Tensor]:
    return gradients.gradients(find(key), inputs, of_outputs, wanted)


def _backward_once(
    inputs: list[Tensor], of_outputs: list[Tensor], wanted: list[bool], key: str
) -> list[Tensor]:
    if torch.is_grad_enabled() and any(each.requires_grad for each in (*inputs, *of_outputs)):
        raise NoSecondDerivative(variant=find(key).name)
    with torch._C._AutoDispatchBelowAutograd():
        return attention_bwd(inputs, of_outputs, wanted, key)


def _backward_fake(
    inputs: list[Tensor], of_outputs: list[Tensor], wanted: list[bool], key: str
) -> list[Tensor]:
    return gradients.empty_gradients(inputs, wanted)


def _refuse_vmap(info: Any, in_dims: Any, *args: Any) -> Any:
    raise NoVmap


for _device in ("CPU", "CUDA"):
    _library.impl("attention_fwd", dispatch.run, _device)
    _library.impl("attention_bwd", _backward, _device)
_library.impl("attention_fwd", attend, "Autograd")
_library.impl("attention_bwd", _backward_once, "Autograd")
for _name, _fake in (("attention_fwd", _forward_fake), ("attention_bwd", _backward_fake)):
    torch.library.register_fake(f"attnfuse::{_name}", _fake, lib=_library)
    torch.library.register_vmap(f"attnfuse::{_name}", _refuse_vmap, lib=_library)
