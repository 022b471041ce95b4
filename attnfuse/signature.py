"""What a variant's program is specialised to: roles, element types, static sizes, constants.

Batch and lengths are symbolic. Head counts, feature sizes, element types and
Python constants are static: another value of one is another program. Where
tensors lie in memory makes another kernel of the same program.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnfuse.errors import MixedDTypes, UnknownRole, WrongArgument, WrongShape
from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis, DType, Size, Symbol
from attnfuse.ir.term import Term
from attnfuse.traced import Captured, Key, Query, Scope, Value

if TYPE_CHECKING:
    from torch import Tensor

Constant = bool | int | float | str | None

ATTENDED = (DType.float16, DType.bfloat16, DType.float32, DType.float64)
"""Element types that queries, keys and values can have."""

_ROLES = {"query": Query, "key": Key, "value": Value, "captured": Captured}
_SHAPES = {
    "query": "(batch, query heads, q_len, head_dim)",
    "key": "(batch, key heads, kv_len, head_dim), or as many heads as the query",
    "value": "(batch, key heads, kv_len, value_dim), or as many heads as the query",
}


@dataclass(frozen=True)
class TensorSpec:
    """What is static about one tensor argument.

    Attributes:
        name: the parameter's name.
        role: ``query``, ``key``, ``value`` or ``captured``.
        dtype: its element type.
        sizes: its shape, with None for the symbolic dimensions.
    """

    name: str
    role: str
    dtype: DType
    sizes: tuple[int | None, ...]


@dataclass(frozen=True)
class Signature:
    """What is static about a call: one program is traced for each signature."""

    tensors: tuple[TensorSpec, ...]
    constants: tuple[tuple[str, Constant], ...]

    def of_role(self, role: str) -> list[TensorSpec]:
        """The tensors with this role."""
        return [spec for spec in self.tensors if spec.role == role]


def roles(function: Callable[..., object]) -> dict[str, str]:
    """The role of each parameter: by its annotation, else by its name."""
    hints = typing.get_type_hints(function)
    annotated = {kind: role for role, kind in _ROLES.items()}
    return {
        name: annotated.get(hints.get(name, object)) or _role_by_name(name)
        for name in inspect.signature(function).parameters
    }


def _role_by_name(name: str) -> str:
    for role in ("query", "key", "value"):
        if re.fullmatch(rf"({role}|{role[0]})(\d+|_\w+)?", name):
            return role
    return "captured"


def describe(
    variant: str,
    arguments: Mapping[str, object],
    roles_of: Mapping[str, str],
    static: frozenset[tuple[str, int]],
) -> Signature:
    """The signature of a call.

    Args:
        variant: its name, for messages.
        arguments: tensors and constants by parameter.
        roles_of: the role of each parameter.
        static: dimensions of captured tensors whose size tracing needs to know.

    Raises:
        WrongShape: a query, key or value with fewer than four dimensions.
        MixedDTypes: queries, keys and values of different or unsupported types.
        WrongArgument: an argument that is neither a tensor nor a constant.
        UnknownRole: there is no query, key or value.
    """
    import torch

    tensors: list[TensorSpec] = []
    constants: list[tuple[str, Constant]] = []
    for name, argument in arguments.items():
        if isinstance(argument, torch.Tensor):
            tensors.append(_spec(variant, name, roles_of[name], argument, static))
        elif isinstance(argument, bool | int | float | str | None):
            constants.append((name, argument))
        else:
            allowed = "a torch tensor, or a Python number, string or None"
            raise WrongArgument(
                function=variant, argument=name, given=type(argument).__name__, allowed=allowed
            )
    signature = Signature(tuple(tensors), tuple(constants))
    _check_roles(variant, signature, list(arguments))
    _check_dtypes(variant, signature)
    return signature


def _spec(
    variant: str, name: str, role: str, tensor: Tensor, static: frozenset[tuple[str, int]]
) -> TensorSpec:
    shape = tensor.shape
    if role != "captured" and len(shape) < 4:
        raise WrongShape(
            variant=variant, name=name, given=tuple(shape), allowed=f"a {role} is {_SHAPES[role]}"
        )
    sizes: list[int | None] = [None] * len(shape)
    for place, size in enumerate(shape):
        fixed = (name, place) in static if role == "captured" else place in _fixed(len(shape))
        sizes[place] = int(size) if fixed else None  # a SymInt is static from here on
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in list(DType):
        raise MixedDTypes(variant=variant, given=f"{name} is {dtype}", allowed=", ".join(DType))
    return TensorSpec(name, role, DType(dtype), tuple(sizes))


def _fixed(dimensions: int) -> tuple[int, int]:
    """Heads and features: the static dimensions of queries, keys and values."""
    return (dimensions - 3, dimensions - 1)


def _check_roles(variant: str, signature: Signature, parameters: list[str]) -> None:
    for role in ("query", "key", "value"):
        if not signature.of_role(role):
            raise UnknownRole(
                variant=variant,
                role=role,
                parameters=", ".join(parameters),
                annotation=role.capitalize(),
            )


def _check_dtypes(variant: str, signature: Signature) -> None:
    attended = [spec for spec in signature.tensors if spec.role != "captured"]
    if len({spec.dtype for spec in attended}) > 1 or attended[0].dtype not in ATTENDED:
        given = ", ".join(f"{spec.name} is {spec.dtype}" for spec in attended)
        raise MixedDTypes(variant=variant, given=given, allowed=", ".join(ATTENDED))


# -- from a signature to axes and input terms -------------------------------------


def scope_of(variant: str, signature: Signature) -> Scope:
    """The axes that a variant is traced over.

    Raises:
        WrongShape: ranks or head counts that don't fit each other.
    """
    query = signature.of_role("query")[0]
    key = min((*signature.of_role("key"), *signature.of_role("value")), key=_heads)
    query_heads, key_heads = _heads(query), _heads(key)
    for spec in signature.tensors:
        if spec.role != "captured":
            _check_heads(variant, spec, query, key)
    if key_heads == 0 or query_heads % key_heads:
        raise WrongShape(
            variant=variant,
            name=query.name,
            given=f"{query_heads} heads",
            allowed=f"its heads must be a multiple of the {key_heads} heads of {key.name}",
        )
    heads = (Axis("hk", key_heads), Axis("g", query_heads // key_heads))
    batch = _batch_axes(len(query.sizes) - 3)
    return Scope(batch, heads, Axis("q", Symbol("q_len")), Axis("k", Symbol("kv_len")))


def _heads(spec: TensorSpec) -> int:
    heads = spec.sizes[-3]
    assert heads is not None
    return heads


def _check_heads(variant: str, spec: TensorSpec, query: TensorSpec, key: TensorSpec) -> None:
    """Queries have the heads of the first one; keys and values these, too, or the fewest of all."""
    like = (query,) if spec.role == "query" else (key, query)
    if _heads(spec) in map(_heads, like) and len(spec.sizes) == len(query.sizes):
        return
    others = [each for each in like if each is not spec]
    found = [f"{e.name} has {len(e.sizes)} dimensions and {_heads(e)} heads" for e in others]
    raise WrongShape(
        variant=variant,
        name=spec.name,
        given=f"{len(spec.sizes)} dimensions and {_heads(spec)} heads",
        allowed=f"{', '.join(found)}; make it like {' or like '.join(e.name for e in others)}, "
        f"by {spec.name}.expand(…) where heads are shared",
    )


def _batch_axes(count: int) -> tuple[Axis, ...]:
    if count == 1:
        return (Axis("b", Symbol("batch")),)
    return tuple(Axis(f"b{place}", Symbol(f"batch{place}")) for place in range(count))


def input_term(spec: TensorSpec, scope: Scope) -> Term:
    """The input term of a tensor. A key of as many heads as the query has both axes of heads."""
    if spec.role == "captured":
        axes = [Axis(f"{spec.name}.{d}", _size(spec, d)) for d in range(len(spec.sizes))]
    else:
        shared = spec.role != "query" and _heads(spec) == scope.heads[0].size
        heads = scope.heads[:1] if shared else scope.heads
        position = scope.queries if spec.role == "query" else scope.keys
        feature = Axis("e" if spec.role == "value" else "d", _size(spec, -1))
        axes = [*scope.batch, *heads, position, feature]
    return ir.input_(spec.name, spec.role, spec.dtype, axes)


def _size(spec: TensorSpec, dimension: int) -> Size:
    size = spec.sizes[dimension]
    return Symbol(f"{spec.name}_dim{dimension}") if size is None else size
