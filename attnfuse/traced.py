"""What a variant's body computes with: traced values that look like numbers and tensors.

A traced value wraps a term and builds larger terms through Python's
operators. It has no data: ``if`` and ``float()`` on it raise.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NoReturn

from attnfuse.errors import NoData, NotInVariant, WrongArgument
from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis
from attnfuse.ir.term import Term


@dataclass(frozen=True)
class Scope:
    """The axes of the variant that is being traced."""

    batch: tuple[Axis, ...]
    heads: tuple[Axis, ...]
    queries: Axis
    keys: Axis


_scope: ContextVar[Scope | None] = ContextVar("scope", default=None)


@contextmanager
def tracing(scope: Scope) -> Generator[None]:
    """Trace with these axes within the block."""
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)


def scope(what: str) -> Scope:
    """The axes of the variant that is being traced; NotInVariant outside of one."""
    current = _scope.get()
    if current is None:
        raise NotInVariant(what=what)
    return current


class Traced:
    """A value inside a variant: arithmetic, comparison, ``&``, ``|``, ``~``, indexing build on it.

    Scores, predicates, probabilities, and what is read from captured tensors
    are all of this class. `shape` and data don't exist: sizes are symbolic.
    """

    __slots__ = ("_term",)
    __hash__ = object.__hash__

    def __init__(self, term: Term) -> None:
        self._term = term

    @property
    def term(self) -> Term:
        """The term that computes this value."""
        return self._term

    # arithmetic
    def __add__(self, other: Traced | float) -> Traced:
        return combine(ir.add, self, other)

    def __sub__(self, other: Traced | float) -> Traced:
        return combine(ir.sub, self, other)

    def __mul__(self, other: Traced | float) -> Traced:
        return combine(ir.mul, self, other)

    def __truediv__(self, other: Traced | float) -> Traced:
        return combine(ir.div, self, other)

    def __floordiv__(self, other: Traced | int) -> Traced:
        return combine(ir.floordiv, self, other)

    def __mod__(self, other: Traced | int) -> Traced:
        return combine(ir.mod, self, other)

    def __radd__(self, other: float) -> Traced:
        return combine(ir.add, other, self)

    def __rsub__(self, other: float) -> Traced:
        return combine(ir.sub, other, self)

    def __rmul__(self, other: float) -> Traced:
        return combine(ir.mul, other, self)

    def __rtruediv__(self, other: float) -> Traced:
        return combine(ir.div, other, self)

    def __neg__(self) -> Traced:
        return combine(ir.neg, self)

    def __abs__(self) -> Traced:
        return combine(ir.abs_, self)

    # comparison and logic
    def __le__(self, other: Traced | float) -> Traced:
        return combine(ir.le, self, other)

    def __lt__(self, other: Traced | float) -> Traced:
        return combine(ir.lt, self, other)

    def __ge__(self, other: Traced | float) -> Traced:
        return combine(ir.le, other, self)

    def __gt__(self, other: Traced | float) -> Traced:
        return combine(ir.lt, other, self)

    def __eq__(self, other: object) -> Traced:  # type: ignore[override]
        return combine(ir.eq, self, other)

    def __ne__(self, other: object) -> Traced:  # type: ignore[override]
        return ~(self == other)

    def __and__(self, other: Traced | bool) -> Traced:
        return combine(ir.and_, self, other)

    def __or__(self, other: Traced | bool) -> Traced:
        return combine(ir.or_, self, other)

    def __invert__(self) -> Traced:
        return combine(ir.not_, self)

    # reading captured tensors
    def __getitem__(self, indices: Traced | int | tuple[Traced | int, ...]) -> Traced:
        """The entry of a captured tensor; an index outside of it reads the nearest entry."""
        if self.term.op.name != "input" or self.term["role"] != "captured":
            raise WrongArgument(
                function="[…]",
                argument="the tensor",
                given=self.term,
                allowed="a captured tensor, one that is neither query, key nor value",
            )
        indices = indices if isinstance(indices, tuple) else (indices,)
        return Traced(ir.gather(self.term, *map(as_term, indices)))

    def __bool__(self) -> NoReturn:
        raise NoData(use="af.where(condition, x, y) to choose, and & | ~ to combine predicates")

    def __float__(self) -> NoReturn:
        raise NoData(use="the value as it is: arithmetic works on it")

    def __iter__(self) -> NoReturn:
        raise NoData(use="indices such as af.q and af.k to read a captured tensor")

    def __repr__(self) -> str:
        return f"<traced {self.term}: {self.term.type}>"


class Query(Traced):
    """Annotation for a parameter that is a query: (batch, query heads, q_len, head_dim)."""


class Key(Traced):
    """Annotation for a parameter that is a key: (batch, key heads, kv_len, head_dim).

    Keys and values all have the same number of heads, but some may have as many as the query.
    """


class Value(Traced):
    """Annotation for a parameter that is a value: (batch, key heads, kv_len, value_dim).

    Its heads are those of a key.
    """


class Captured(Traced):
    """Annotation for a parameter that is any other tensor, read by subscript."""


class Here(Traced):
    """A value that depends on the variant being traced, such as the position ``af.q``."""

    __slots__ = ("_find", "_name")

    def __init__(self, name: str, find: Callable[[Scope], Term]) -> None:
        self._name, self._find = name, find

    @property
    def term(self) -> Term:
        """The term of this value in the variant that is being traced."""
        return self._find(scope(f"af.{self._name}"))

    def __repr__(self) -> str:
        return f"af.{self._name}"


# Indices of the score at hand, and the lengths. A head is a query head; over several batch axes
# the batch index counts in row-major order.
b = Here("b", lambda current: ir.index("b", current.batch))
h = Here("h", lambda current: ir.index("h", current.heads))
q = Here("q", lambda current: ir.index("q", (current.queries,)))
k = Here("k", lambda current: ir.index("k", (current.keys,)))
q_len = Here("q_len", lambda current: ir.length(current.queries.size))
kv_len = Here("kv_len", lambda current: ir.length(current.keys.size))


def as_term(value: object) -> Term:
    """The term of a traced value, or the constant of a Python number."""
    if isinstance(value, Traced):
        return value.term
    if isinstance(value, bool | int | float):
        return ir.const(value)
    raise WrongArgument(
        function="an expression",
        argument="an operand",
        given=type(value).__name__,
        allowed="traced values and Python numbers; pass tensors as parameters of the variant",
    )


def combine(constructor: Callable[..., Term], *operands: object) -> Traced:
    """The traced value of a constructor over traced values and Python numbers."""
    terms = map(as_term, operands)
    return Traced(constructor(*(_scalar(term) for term in terms)))


def _scalar(term: Term) -> Term:
    """A captured 0-d tensor as its value; a larger one must be read by subscript."""
    if term.op.name == "input" and term["role"] == "captured":
        if term.type.axes:
            raise WrongArgument(
                function="arithmetic",
                argument=term.text("name"),
                given=f"a tensor of {len(term.type.axes)} dimensions",
                allowed=f"entries of it, such as {term['name']}[af.h]",
            )
        return ir.gather(term)
    return term


def where(condition: Traced, yes: Traced | float, no: Traced | float) -> Traced:
    """``yes`` where the condition holds, else ``no``; with ``-inf`` it is a mask."""
    return combine(ir.where, condition, yes, no)


def minimum(x: Traced | float, y: Traced | float) -> Traced:
    """The lesser of the two, element by element."""
    return combine(ir.minimum, x, y)


def maximum(x: Traced | float, y: Traced | float) -> Traced:
    """The greater of the two, element by element."""
    return combine(ir.maximum, x, y)


def exp(x: Traced) -> Traced:
    """eˣ, element by element."""
    return combine(ir.unary["exp"], x)


def log(x: Traced) -> Traced:
    """The natural logarithm, element by element."""
    return combine(ir.unary["log"], x)


def tanh(x: Traced) -> Traced:
    """The hyperbolic tangent, element by element."""
    return combine(ir.unary["tanh"], x)


def sqrt(x: Traced) -> Traced:
    """The square root, element by element."""
    return combine(ir.unary["sqrt"], x)


def sigmoid(x: Traced) -> Traced:
    """1 / (1 + e⁻ˣ), element by element."""
    return combine(ir.unary["sigmoid"], x)
