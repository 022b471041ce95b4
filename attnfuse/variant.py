"""`@variant`: a Python function over traced values becomes a compiled attention."""

from __future__ import annotations

import functools
import inspect
import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock
from typing import Any, cast

import torch
from torch import Tensor

from attnfuse.backends.reference import evaluate, probabilities
from attnfuse.compiled import Compiled
from attnfuse.devices import device_of, find_device
from attnfuse.errors import NeedsStatic, WrongArgument, WrongOutput
from attnfuse.ir.program import Program
from attnfuse.ir.term import walk
from attnfuse.runtime import ops
from attnfuse.runtime.definitions import define
from attnfuse.runtime.dispatch import compiled, patterns_of
from attnfuse.runtime.gradients import AUTOCAST, without_autocast
from attnfuse.runtime.memo import Memo
from attnfuse.runtime.stats import count, timed
from attnfuse.signature import Signature, describe, input_term, roles, scope_of
from attnfuse.traced import Traced, as_term, tracing

Outputs = Tensor | tuple[Tensor, ...]

_PLAIN = (Tensor, torch.nn.Parameter)
"""Tensors whose shape is made of numbers; that of a fake one may be symbolic."""


@dataclass(frozen=True)
class _Call:
    """The arguments of a call, sorted out."""

    program: Program
    tensors: dict[str, Tensor]


class Variant:
    """An attention variant, made by `variant`. Calling it with torch tensors runs it.

    The first call with new static properties (see `attnfuse.signature`) traces
    and compiles; later calls with any batch size and lengths reuse the kernel.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        functools.update_wrapper(self, function)
        self.name = function.__name__ if function.__name__.isidentifier() else "variant"
        self._qualified_name = function.__qualname__
        self._function = function
        self._parameters = inspect.signature(function)
        self._names = tuple(self._parameters.parameters)
        self._roles = roles(function)
        self._static: tuple[tuple[str, int], ...] = ()
        self._programs: Memo[tuple[Signature, str], Program] = Memo(1024)
        self._keys: Memo[tuple[object, ...], tuple[str, tuple[int, ...]]] = Memo(4096)
        self._tracing = RLock()
        self._handle = f"{self.name} {next(_numbers)}"
        _variants[self._handle] = self

    def __call__(self, *args: object, **kwargs: object) -> Outputs:
        """The outputs of the variant.

        Queries are (batch, query heads, q_len, head_dim), keys (batch, key
        heads, kv_len, head_dim), values (batch, key heads, kv_len, value_dim),
        all of one element type; an output is (batch, query heads, q_len, …).
        Any strides will do. Under `torch.autocast` queries, keys and values
        are cast to its element type, as `scaled_dot_product_attention` does.

        Raises:
            AttnFuseError: what was given doesn't fit, and what to do; before
                anything is compiled.
        """
        if torch.compiler.is_compiling():
            _tell_dynamo()
            return _by_handle(self._handle, "_call", args, kwargs)
        return self._call(*args, **kwargs)

    def trace(self, *args: object, **kwargs: object) -> Program:
        """The term graph for these arguments."""
        return self._trace(args, kwargs).program

    def compile(self, *args: object, device: str | None = None, **kwargs: object) -> Compiled:
        """What the compiler makes of the variant for these arguments.

        Args:
            args: tensors and constants as for a call; meta tensors will do.
            device: a device profile (``"h200"``, ``"a100"``, …) or architecture
                (``"sm_90a"``); by default where the tensors are.
            kwargs: further arguments of the variant, by name.

        Raises:
            AttnFuseError: as for a call, or there is no such device.
        """
        traced = self._trace(args, kwargs)
        found = device_of(traced.tensors) if device is None else find_device(device)
        patterns = patterns_of(traced.program, list(traced.tensors.values()))
        return compiled(traced.program, found, patterns)

    def explain(self, *args: object, device: str | None = None, **kwargs: object) -> str:
        """What the compiler did and why, as text. Arguments as for `compile`."""
        return self.compile(*args, device=device, **kwargs).explain()

    def source(
        self, *args: object, device: str | None = None, lang: str = "tilelang", **kwargs: object
    ) -> str:
        """The generated program as text; of several launches, one after the other.

        Args:
            args: as for `compile`.
            device: as for `compile`.
            lang: ``"tilelang"``, or ``"target"`` for the C, CUDA or HIP it becomes.
            kwargs: as for `compile`.

        Raises:
            WrongArgument: another ``lang``.
        """
        if lang not in ("tilelang", "target"):
            allowed = "'tilelang' or 'target'"
            raise WrongArgument(function="source", argument="lang", given=lang, allowed=allowed)
        launches = self.compile(*args, device=device, **kwargs).launches
        texts = (each.source.text if lang == "tilelang" else each.lowered.text for each in launches)
        return "\n\n".join(texts)

    def reference(self, *args: object, exact: bool = True, **kwargs: object) -> Outputs:
        """The outputs by the reference backend, differentiable, with all scores in memory.

        Args:
            args: as for a call.
            exact: compute and return float64; else round as the types say.
            kwargs: as for a call.
        """
        if torch.compiler.is_compiling():
            _tell_dynamo()
            return _by_handle(self._handle, "_reference", (exact, *args), kwargs)
        return self._reference(exact, *args, **kwargs)

    def probabilities(self, *args: object, **kwargs: object) -> Outputs:
        """The dense probabilities (batch, query heads, q_len, kv_len), for debugging.

        One tensor for each softmax, computed as typed by the reference backend.
        """
        traced = self._trace(args, kwargs)
        with without_autocast(traced.tensors.values()):
            return _unwrap(probabilities(traced.program, traced.tensors))

    def __repr__(self) -> str:
        return f"<variant {self.name}{self._parameters}>"

    def __reduce__(self) -> str:
        """Copied and pickled as functions are: a copy is the variant itself, a pickle its name."""
        return self._qualified_name

    def _reference(self, exact: bool, *args: object, **kwargs: object) -> Outputs:
        traced = self._trace(args, kwargs)
        with without_autocast(traced.tensors.values()):
            return _unwrap(evaluate(traced.program, traced.tensors, exact=exact))

    def _call(self, *args: object, **kwargs: object) -> Outputs:
        given: list[Any] = [*args, *kwargs.values()]
        names = (*self._names[: len(args)], *kwargs)
        if _autocasts(given):
            pairs = zip(given, names, strict=False)
            given[: len(names)] = [_autocast(x, self._roles.get(name)) for x, name in pairs]
        place = self._static_parts(names, given)
        known = self._keys.get(place) if place is not None else None
        if known is None:
            named = dict(zip(kwargs, given[len(args) :], strict=True))
            traced = self._trace(tuple(given[: len(args)]), named)
            known = define(traced.program), tuple(map(names.index, traced.tensors))
            place = self._static_parts(names, given)  # tracing may have made more of it static
            if place is not None:
                self._keys[place] = known
        key, places = known
        attend = ops.attention_fwd if place is None else ops.attend
        outputs = attend([given[place] for place in places], key)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _static_parts(self, names: tuple[str, ...], given: list[Any]) -> tuple[object, ...] | None:
        """What the program of a call depends on; None where that can't be remembered."""
        if len(names) != len(given) or not self._roles.keys() >= set(names):
            return None
        parts: list[object] = [names]
        for name, each in zip(names, given, strict=True):
            if type(each) in _PLAIN:
                shape = each.shape
                if self._roles[name] != "captured":
                    if len(shape) < 4:
                        return None
                    parts.append((each.dtype, len(shape), shape[-3], shape[-1]))
                else:
                    static = [shape[place] for owner, place in self._static if owner == name]
                    parts.append((each.dtype, len(shape), *static))
            elif isinstance(each, bool | int | float | str | None):
                parts.append((type(each), repr(each)))  # −0.0 is another constant than 0.0
            else:
                return None
        return tuple(parts)

    def _trace(self, args: tuple[object, ...], kwargs: dict[str, object]) -> _Call:
        bound = self._parameters.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = {name: _specialised(each) for name, each in bound.arguments.items()}
        tensors = {n: a for n, a in arguments.items() if isinstance(a, Tensor)}
        while True:
            try:
                with self._tracing:
                    return _Call(self._program(arguments), tensors)
            except NeedsStatic as request:
                self._static += ((request.name, request.dimension),)

    def _program(self, arguments: dict[str, object]) -> Program:
        signature = describe(self.name, arguments, self._roles, frozenset(self._static))
        place = signature, repr(signature.constants)  # True equals 1, but is another constant
        if place not in self._programs:
            self._programs[place] = self._run(signature)
        return self._programs[place]

    def _run(self, signature: Signature) -> Program:
        """Run the function over traced values."""
        scope = scope_of(self.name, signature)
        inputs = {spec.name: input_term(spec, scope) for spec in signature.tensors}
        arguments = {name: Traced(term) for name, term in inputs.items()}
        with timed("trace"), tracing(scope):
            returned = self._function(**arguments, **dict(signature.constants))
        outputs = cast(
            "tuple[object, ...]", returned if isinstance(returned, tuple) else (returned,)
        )
        for output in outputs:
            self._check_output(output)
        count("traces")
        return Program(self.name, tuple(inputs.values()), tuple(map(as_term, outputs)))

    def _check_output(self, output: object) -> None:
        allowed = "what af.attend or af.lse made, or a tuple of these"
        if not isinstance(output, Traced):
            raise WrongOutput(variant=self.name, given=type(output).__name__, allowed=allowed)
        if "k" in output.term.type.names or "q" not in output.term.type.names:
            raise WrongOutput(variant=self.name, given=repr(output), allowed=allowed)
        used = {leaf["role"] for leaf in walk(output.term) if leaf.op.name == "input"}
        if not {"query", "key"} <= used:
            given = f"{output!r}, which depends on no query or on no key"
            raise WrongOutput(variant=self.name, given=given, allowed=allowed)


def variant(function: Callable[..., object]) -> Variant:
    """Make an attention variant of a Python function.

    Parameters named ``q``, ``k`` or ``v`` (or ``query_pe``, ``k1``, …), or
    annotated with `Query`, `Key`, `Value`, take part in attention; other tensor
    parameters are captured and read by subscript; Python numbers and strings
    are constants, and another value is another kernel. The function returns
    one output or a tuple of outputs.
    """
    return Variant(function)


_numbers = itertools.count()
_variants: weakref.WeakValueDictionary[str, Variant] = weakref.WeakValueDictionary()
"""Variants by their handles, since graphs take strings and no variants as arguments.

A handle is never given again: a graph that outlives its variant must not meet another one.
"""


def _by_handle(
    handle: str, method: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> Outputs:
    """A call that Dynamo leaves to AOTAutograd, which traces through it to the operator."""
    outputs: Outputs = getattr(_variants[handle], method)(*args, **kwargs)
    return outputs


def _tell_dynamo() -> None:
    """Say so to Dynamo, at each call that it traces; importing it earlier costs seconds.

    What Dynamo takes for a constant function is called when it is traced.
    """
    torch.compiler.allow_in_graph(_by_handle)  # pyright: ignore[reportUnknownMemberType]


_tell_dynamo._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _specialised(argument: object) -> object:
    """A constant that is symbolic in a graph becomes a number, and the graph is guarded by it."""
    match argument:
        case torch.SymBool():
            return bool(argument)
        case torch.SymInt():
            return int(argument)
        case torch.SymFloat():
            return float(argument)
        case _:
            return argument


def _autocasts(given: list[Any]) -> bool:
    device = next((each.device.type for each in given if isinstance(each, Tensor)), None)
    return device in AUTOCAST and torch.is_autocast_enabled(device)


def _autocast(given: Any, role: str | None) -> Any:
    """A query, key or value in autocast's element type; float64 stays, as everywhere in PyTorch."""
    if not isinstance(given, Tensor) or role in ("captured", None):
        return given
    if not given.is_floating_point() or given.dtype is torch.float64:
        return given
    return given.to(torch.get_autocast_dtype(given.device.type))


def _unwrap(outputs: tuple[Tensor, ...]) -> Outputs:
    return outputs[0] if len(outputs) == 1 else outputs
