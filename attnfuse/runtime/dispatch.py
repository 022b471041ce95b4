"""From the tensors of a call to what it does: guards, kernels, and the reference where need be."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from threading import RLock

import torch
from torch import Tensor

from attnfuse.backends.reference import evaluate
from attnfuse.backends.tilelang.launching import empty_output, number
from attnfuse.backends.tilelang.toolchain import missing_tool
from attnfuse.compiled import Compiled
from attnfuse.compiler import compile_program
from attnfuse.devices import Device, device_of, place_of
from attnfuse.errors import MixedDTypes, NoToolchain
from attnfuse.ir.axes import Symbol
from attnfuse.ir.binding import bind_sizes
from attnfuse.ir.layout import dimensions, extent
from attnfuse.ir.program import Program
from attnfuse.ir.term import Term
from attnfuse.plan import Pattern
from attnfuse.runtime.definitions import find
from attnfuse.runtime.gradients import without_autocast
from attnfuse.runtime.memo import Memo
from attnfuse.runtime.stats import count
from attnfuse.settings import get_settings

Call = Callable[[Sequence[Tensor]], list[Tensor]]

_prepared: Memo[tuple[object, ...], Call] = Memo(4096)
_compiled: Memo[tuple[object, ...], Compiled] = Memo(1024)
_compiling = RLock()


def run(inputs: list[Tensor], key: str) -> list[Tensor]:
    """The outputs of the program with this key, for real tensors.

    Raises:
        AttnFuseError: they don't fit the program, or nothing can compute it here.
    """
    count("calls")
    place = (key, get_settings().schedules, *map(_place, inputs))
    prepared = _prepared.get(place)
    if prepared is not None:
        count("memory_hits")
        return prepared(inputs)
    return _first_call(place, inputs, key)


def compiled(program: Program, device: Device, patterns: tuple[Pattern, ...]) -> Compiled:
    """What the compiler makes of a program; once, whoever else wants it.

    Args:
        program: the program.
        device: what to compile for.
        patterns: for each of the program's inputs, its place in memory.

    Raises:
        CannotLower: no kernel form covers the program.
        DoesNotFitDevice: not even the smallest tiles fit.
    """
    place = (program, device.name, patterns, get_settings().schedules)
    with _compiling:
        if place not in _compiled:
            named = dict(zip(_names(program), patterns, strict=True))
            _compiled[place] = compile_program(program, device, named)
        return _compiled[place]


def patterns_of(program: Program, tensors: Sequence[Tensor]) -> tuple[Pattern, ...]:
    """Where the rows of each input lie in memory."""
    return tuple(map(_pattern, tensors, _roles(program)))


def empty_outputs(
    program: Program, inputs: Sequence[Tensor], sizes: Mapping[Symbol, int]
) -> list[Tensor]:
    """Uninitialised outputs, with the strides that kernels give them."""
    like = inputs[_roles(program).index("query")]
    return [_empty(term, like, sizes) for term in program.outputs]


def sizes_of(program: Program, inputs: Sequence[Tensor]) -> dict[Symbol, int]:
    """The number behind each symbol, for inputs in the program's order.

    Raises:
        WrongShape: they don't fit each other, or not the program.
        MixedDTypes: one has another element type than in the program.
        MixedDevices: they are on several devices.
    """
    named = dict(zip(_names(program), inputs, strict=True))
    place_of(named)
    for (name, tensor), dtype in zip(named.items(), _dtypes(program), strict=True):
        if tensor.dtype is not dtype:
            given, allowed = f"{name} is {tensor.dtype}", str(dtype).removeprefix("torch.")
            raise MixedDTypes(variant=program.name, given=given, allowed=allowed)
    return bind_sizes(program, {name: tuple(each.shape) for name, each in named.items()})


@lru_cache(maxsize=1024)
def _names(program: Program) -> tuple[str, ...]:
    """The names of the inputs."""
    return tuple(term.text("name") for term in program.inputs)


@lru_cache(maxsize=1024)
def _dtypes(program: Program) -> tuple[torch.dtype, ...]:
    """The element types of the inputs."""
    return tuple(getattr(torch, term.type.dtype.value) for term in program.inputs)


@lru_cache(maxsize=1024)
def _roles(program: Program) -> tuple[str, ...]:
    """The roles of the inputs."""
    return tuple(term.text("role") for term in program.inputs)


def _place(tensor: Tensor) -> tuple[object, ...]:
    """What kernels ask of a tensor's place in memory; two that agree are computed alike."""
    return (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor.data_ptr() & 15,
    )


def _first_call(place: tuple[object, ...], inputs: list[Tensor], key: str) -> list[Tensor]:
    """A call with tensors of new shapes."""
    program = find(key)
    sizes = sizes_of(program, inputs)
    device = device_of({"": inputs[0]})  # all are where the first one is
    own = compiled(program, device, patterns_of(program, inputs))
    choice = own.choose(sizes)
    if not choice.is_loaded:
        problem = missing_tool(device)
        if problem is not None and not choice.is_built:
            return _stand_in(program, inputs, sizes, problem)
    _prepared[place] = prepared = own.prepare(inputs, sizes)
    return prepared(inputs)


def _stand_in(
    program: Program, inputs: Sequence[Tensor], sizes: Mapping[Symbol, int], problem: str
) -> list[Tensor]:
    """The reference backend's outputs, where no kernel can be built."""
    limit = get_settings().reference_limit
    scores = sizes[Symbol("q_len")] * sizes[Symbol("kv_len")]
    if limit and scores > limit:
        raise NoToolchain(problem=problem, scores=scores, limit=limit)
    warn_once(program.name, problem)
    count("fallbacks")
    with without_autocast(inputs):
        outputs = evaluate(program, dict(zip(_names(program), inputs, strict=True)), exact=False)
    places = empty_outputs(program, inputs, sizes)
    return [place.copy_(output) for place, output in zip(places, outputs, strict=True)]


@cache
def warn_once(variant: str, problem: str) -> None:
    """Say that a variant runs on the reference backend, and why, once for each pair."""
    warnings.warn(
        f"{variant} runs on AttnFuse's reference backend, slowly and with all scores in memory: "
        f"{problem}.",
        stacklevel=5,
    )


def _pattern(tensor: Tensor, role: str) -> Pattern:
    """Where the rows of a tensor lie in memory. Captured ones are read entry by entry."""
    contiguous = tensor.dim() == 0 or tensor.stride(-1) == 1 or tensor.shape[-1] <= 1
    if role == "captured" or not contiguous:
        return Pattern(contiguous, aligned=role == "captured")
    step = math.gcd(*tensor.stride()[:-1]) * tensor.itemsize
    return Pattern(contiguous, aligned=step % 16 == 0 and tensor.data_ptr() % 16 == 0)


def _empty(term: Term, like: Tensor, sizes: Mapping[Symbol, int]) -> Tensor:
    groups = dimensions(term.type.axes)
    shape = [number(extent(group), sizes) for group in groups]
    dtype: torch.dtype = getattr(torch, term.type.dtype.value)
    return empty_output(shape, like, dtype, like.device)
