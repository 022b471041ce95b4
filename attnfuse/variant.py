"""`@variant`: a Python function over traced values becomes a compiled attention."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from attnfuse.backends.reference import evaluate, probabilities
from attnfuse.compiler import Compiled, compile_program
from attnfuse.devices import Device, device_of, find_device
from attnfuse.errors import NeedsStatic, WrongArgument, WrongOutput
from attnfuse.ir.program import Program
from attnfuse.ir.term import walk
from attnfuse.runtime.dispatch import call
from attnfuse.signature import Signature, describe, input_term, roles, scope_of
from attnfuse.traced import Traced, as_term, tracing

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class _Call:
    """The arguments of a call, sorted out."""

    signature: Signature
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
        self._function = function
        self._parameters = inspect.signature(function)
        self._roles = roles(function)
        self._static: frozenset[tuple[str, int]] = frozenset()
        self._programs: dict[Signature, Program] = {}
        self._compiled: dict[tuple[Signature, str], Compiled] = {}

    def __call__(self, *args: object, **kwargs: object) -> Tensor | tuple[Tensor, ...]:
        """The outputs of the variant.

        Queries are (batch, query heads, q_len, head_dim), keys (batch, key
        heads, kv_len, head_dim), values (batch, key heads, kv_len, value_dim),
        all of one element type; an output is (batch, query heads, q_len, …).
        Any strides will do.

        Raises:
            AttnFuseError: what was given doesn't fit, and what to do; before
                anything is compiled.
        """
        traced = self._trace(args, kwargs)
        return call(self._compile(traced, device_of(traced.tensors)), traced.tensors)

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
        return self._compile(traced, found)

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

    def reference(
        self, *args: object, exact: bool = True, **kwargs: object
    ) -> Tensor | tuple[Tensor, ...]:
        """The outputs by the reference backend, differentiable, with all scores in memory.

        Args:
            args: as for a call.
            exact: compute and return float64; else round as the types say.
            kwargs: as for a call.
        """
        traced = self._trace(args, kwargs)
        return _unwrap(evaluate(traced.program, traced.tensors, exact=exact))

    def probabilities(self, *args: object, **kwargs: object) -> Tensor | tuple[Tensor, ...]:
        """The dense probabilities (batch, query heads, q_len, kv_len), for debugging.

        One tensor for each softmax, computed as typed by the reference backend.
        """
        traced = self._trace(args, kwargs)
        return _unwrap(probabilities(traced.program, traced.tensors))

    def __repr__(self) -> str:
        return f"<variant {self.name}{self._parameters}>"

    def _trace(self, args: tuple[object, ...], kwargs: dict[str, object]) -> _Call:
        import torch

        bound = self._parameters.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        tensors = {n: a for n, a in arguments.items() if isinstance(a, torch.Tensor)}
        while True:
            try:
                signature = describe(self.name, arguments, self._roles, self._static)
                if signature not in self._programs:
                    self._programs[signature] = self._run(signature)
                return _Call(signature, self._programs[signature], tensors)
            except NeedsStatic as request:
                self._static |= {(request.name, request.dimension)}

    def _run(self, signature: Signature) -> Program:
        """Run the function over traced values."""
        scope = scope_of(self.name, signature)
        inputs = {spec.name: input_term(spec, scope) for spec in signature.tensors}
        arguments = {name: Traced(term) for name, term in inputs.items()}
        with tracing(scope):
            returned = self._function(**arguments, **dict(signature.constants))
        outputs = cast(
            "tuple[object, ...]", returned if isinstance(returned, tuple) else (returned,)
        )
        for output in outputs:
            self._check_output(output)
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

    def _compile(self, traced: _Call, device: Device) -> Compiled:
        key = (traced.signature, device.name)
        if key not in self._compiled:
            patterns = {spec.name: spec.pattern for spec in traced.signature.tensors}
            self._compiled[key] = compile_program(traced.program, device, patterns)
        return self._compiled[key]


def variant(function: Callable[..., object]) -> Variant:
    """Make an attention variant of a Python function.

    Parameters named ``q``, ``k`` or ``v`` (or ``query_pe``, ``k1``, …), or
    annotated with `Query`, `Key`, `Value`, take part in attention; other tensor
    parameters are captured and read by subscript; Python numbers and strings
    are constants, and another value is another kernel. The function returns
    one output or a tuple of outputs.
    """
    return Variant(function)


def _unwrap(outputs: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    return outputs[0] if len(outputs) == 1 else outputs
