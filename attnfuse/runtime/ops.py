"""The operators of PyTorch that every call goes through.

``attnfuse::attention_fwd(Tensor[] inputs, str key) -> Tensor[]`` is all that
autograd, `torch.compile`, `torch.export`, checkpointing and CUDA graphs see
of an attention. It is a `torch.library.Library` op under an autograd function,
since `torch.library.custom_op` costs more at each call.
"""

# PyTorch's dispatcher has few public names in Python, and no types.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._functorch import autograd_function
from torch.autograd import forward_ad

from attnfuse.errors import NoBackward, NoSecondDerivative, NoVmap
from attnfuse.runtime import dispatch, gradients
from attnfuse.runtime.definitions import find, keep

_library = torch.library.Library("attnfuse", "DEF")
_library.define("attention_fwd(Tensor[] inputs, str key) -> Tensor[]")
_library.define(
    "attention_bwd(Tensor[] inputs, Tensor[] gradients, bool[] wanted, str key) -> Tensor[]"
)
attention_fwd: Callable[[list[Tensor], str], list[Tensor]]
attention_fwd = torch.ops.attnfuse.attention_fwd.default
attention_bwd: Callable[[list[Tensor], list[Tensor], list[bool], str], list[Tensor]]
attention_bwd = torch.ops.attnfuse.attention_bwd.default


@contextmanager
def _below_autograd() -> Generator[None]:
    """A block within a function's forward that is not recorded, but by torch.func's other levels.

    Autograd switches recording off before a function's forward, for these levels as well.
    """
    with (
        torch._C._AutoDispatchBelowAutograd(),
        torch.enable_grad(),
        forward_ad._set_fwd_grad_enabled(True),
    ):
        yield


class _Attention(torch.autograd.Function):
    """A call with gradients."""

    @staticmethod
    def forward(key: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        with _below_autograd():
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


class _Gradients(torch.autograd.Function):
    """The gradients of a call where somebody may want theirs, as `torch.func.grad` always may."""

    @staticmethod
    def forward(key: str, wanted: list[bool], *tensors: Tensor) -> tuple[Tensor, ...]:
        inputs, of_outputs = tensors[: len(wanted)], tensors[len(wanted) :]
        with _below_autograd():
            return tuple(attention_bwd(list(inputs), list(of_outputs), wanted, key))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.key = inputs[0]

    @staticmethod
    def backward(ctx: Any, *of_gradients: Tensor) -> Any:
        raise NoSecondDerivative(variant=find(ctx.key).name)


def _applied(function: type[torch.autograd.Function]) -> Callable[..., tuple[Tensor, ...]]:
    """What is below the Python of `Function.apply`, which costs more than all the rest of a call.

    That Python hands a call to torch.func; here the dispatcher has done so, and torch.func wants
    to be told that the function is meant for one of its levels.
    """
    functorch: Any = autograd_function
    single_level = functorch.enable_single_level_autograd_function
    above: Any = super(torch.autograd.Function, function)
    apply: Callable[..., tuple[Tensor, ...]] = above.apply

    def call(*args: object) -> tuple[Tensor, ...]:
        if not torch._C._are_functorch_transforms_active():
            return apply(*args)
        with single_level():
            return apply(*args)

    return call


_attend = _applied(_Attention)
_differentiate = _applied(_Gradients)


def attend(inputs: list[Tensor], key: str) -> list[Tensor]:
    """The outputs of the program with this key: `attention_fwd` for plain tensors, but quicker.

    Args:
        inputs: its inputs, in its order, of no subclass of `Tensor` that does things of its own.
        key: what `attnfuse.runtime.definitions.define` said.

    Raises:
        AttnFuseError: the tensors don't fit the program, or nothing can compute it here.
    """
    if torch._C._are_functorch_transforms_active():
        return attention_fwd(inputs, key)
    return _forward(inputs, key)


def _forward(inputs: list[Tensor], key: str) -> list[Tensor]:
    if forward_ad._current_level >= 0:
        _refuse_tangents(inputs, key)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        program = find(key)
        gradients.check(program, inputs, dispatch.sizes_of(program, inputs))
        return list(_attend(key, *inputs))
    with torch._C._AutoDispatchBelowAutograd():
        return attention_fwd(inputs, key)


def _refuse_tangents(inputs: list[Tensor], key: str) -> None:
    program = find(key)
    terms = zip(program.inputs, inputs, strict=True)
    moved = [term for term, x in terms if forward_ad.unpack_dual(x).tangent is not None]
    if moved:
        names = ", ".join(term.text("name") for term in moved)
        problem = "its kernels have no forward-mode derivative"
        remedy = "differentiate .reference(…)"
        raise NoBackward(variant=program.name, names=names, problem=problem, remedy=remedy)


def _forward_fake(inputs: list[Tensor], key: str) -> list[Tensor]:
    keep(key)
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
        return list(_differentiate(key, wanted, *inputs, *of_outputs))
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
_library.impl("attention_fwd", _forward, "Autograd")
_library.impl("attention_bwd", _backward_once, "Autograd")
for _name, _fake in (("attention_fwd", _forward_fake), ("attention_bwd", _backward_fake)):
    torch.library.register_fake(f"attnfuse::{_name}", _fake, lib=_library)
    torch.library.register_vmap(f"attnfuse::{_name}", _refuse_vmap, lib=_library)
