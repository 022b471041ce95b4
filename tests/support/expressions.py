"""Random expressions, each with two meanings: a term, and what Python makes of it at one point.

Both read the same tree, but the second knows nothing of terms. A term can be
made in many ways (other orders, other groupings, equivalent forms), which a
normal form must not show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from random import Random

import torch
from hypothesis import strategies as st
from small_terms import (
    BATCH,
    KV_LEN,
    Q_LEN,
    B,
    K,
    Q,
    array,
    b,
    k,
    kv_len,
    q,
    q_len,
    table,
    tensor,
    value,
)
from torch import Tensor

from attnfuse.ir import build as ir
from attnfuse.ir.axes import DType, Symbol
from attnfuse.ir.term import Term

Value = bool | int | float

LIMITS = table("limits", 3, dtype=DType.int32)
FLAGS = table("flags", 3, dtype=DType.bool)
BIASES = table("biases", 3, 2, dtype=DType.float64)
ROWS = tensor("rows", Q, dtype=DType.float64)
COLUMNS = tensor("columns", B, K, dtype=DType.float64)

LEAVES: dict[str, Term] = {
    "b": b,
    "q": q,
    "k": k,
    "q_len": q_len,
    "kv_len": kv_len,
    "row": ROWS,
    "column": COLUMNS,
    "whole row": ir.cast(ROWS, DType.int32),
}


@dataclass(frozen=True)
class Expression:
    """An op or a leaf, what it is applied to, and the number of a constant or divisor."""

    op: str
    parts: tuple[Expression, ...] = ()
    number: Value = 0

    def __str__(self) -> str:
        inside = [*map(str, self.parts), *([str(self.number)] if self.number else [])]
        return f"{self.op}({', '.join(inside)})" if inside else self.op


@dataclass(frozen=True)
class World:
    """The sizes and tensors of one call, floats in quarters so that their sums are exact."""

    batch: int
    q_len: int
    kv_len: int
    limits: tuple[int, ...]
    flags: tuple[bool, ...]
    quarters: tuple[int, ...]

    @property
    def sizes(self) -> dict[Symbol, int]:
        """The numbers behind the symbols."""
        return {BATCH: self.batch, Q_LEN: self.q_len, KV_LEN: self.kv_len}

    def float_at(self, *places: int) -> float:
        """The number at a place of a tensor of floats."""
        place = sum(factor * each for factor, each in zip((7, 3, 1), places, strict=False))
        return self.quarters[place % len(self.quarters)] / 4

    @property
    def inputs(self) -> dict[Term, Tensor]:
        """The tensors."""
        rows = [self.float_at(i) for i in range(self.q_len)]
        columns = [[self.float_at(i, j) for j in range(self.kv_len)] for i in range(self.batch)]
        biases = [[self.float_at(i, j, 1) for j in range(2)] for i in range(3)]
        return {
            LIMITS: torch.tensor(self.limits),
            FLAGS: torch.tensor(self.flags),
            ROWS: torch.tensor(rows, dtype=torch.float64),
            COLUMNS: torch.tensor(columns, dtype=torch.float64),
            BIASES: torch.tensor(biases, dtype=torch.float64),
        }

    def points(self) -> Iterator[tuple[int, int, int]]:
        """Every b, q, k."""
        return product(range(self.batch), range(self.q_len), range(self.kv_len))


worlds = st.builds(
    World,
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 3),
    st.tuples(*[st.integers(-3, 4)] * 3),
    st.tuples(*[st.booleans()] * 3),
    st.lists(st.integers(-8, 8), min_size=11, max_size=11).map(tuple),
)
"""Random small worlds."""


# -- what Python makes of an expression ---------------------------------------------


def _clamped(entries: Sequence[Value], place: Value) -> Value:
    return entries[min(max(int(place), 0), len(entries) - 1)]


REDUCTIONS: dict[str, Callable[[list[Value]], Value]] = {
    "add": sum,
    "mul": math.prod,
    "minimum": min,
    "maximum": max,
    "and": all,
    "or": any,
}
OPERATORS: dict[str, Callable[[Value, Value], Value]] = {
    "sub": lambda x, y: x - y,
    "floordiv": lambda x, y: x // y,
    "mod": lambda x, y: x % y,
    "le": lambda x, y: x <= y,
    "lt": lambda x, y: x < y,
    "eq": lambda x, y: x == y,
}


def at(expression: Expression, world: World, point: tuple[int, int, int]) -> Value:
    """The value of an expression at one point, with Python's own numbers."""
    values = [at(part, world, point) for part in expression.parts]
    named: dict[str, Value] = dict(zip("bqk", point, strict=True))
    named |= {"q_len": world.q_len, "kv_len": world.kv_len, "const": expression.number}
    named |= {"row": world.float_at(point[1]), "column": world.float_at(point[0], point[2])}
    named["whole row"] = math.trunc(named["row"])
    name = expression.op
    if name in named:
        return named[name]
    if name in REDUCTIONS:
        return REDUCTIONS[name](values)
    if name in OPERATORS:
        return OPERATORS[name](*values)
    if name in ("limits", "flags"):
        return _clamped(world.limits if name == "limits" else world.flags, values[0])
    if name == "biases":
        row, column = _clamped(range(3), values[0]), _clamped(range(2), values[1])
        return world.float_at(int(row), int(column), 1)
    match name, values:
        case "not", [x]:
            return not x
        case "abs", [x]:
            return abs(x)
        case "tanh", [x]:
            return math.tanh(x)
        case "float", [x]:
            return float(x)
        case "where", [condition, x, y]:
            return x if condition else y
        case _:
            raise AssertionError(name)


# -- terms ----------------------------------------------------------------------------

NARY: dict[str, Callable[..., Term]] = {
    "add": ir.add,
    "mul": ir.mul,
    "minimum": ir.minimum,
    "maximum": ir.maximum,
    "and": ir.and_,
    "or": ir.or_,
}
FIXED: dict[str, Callable[..., Term]] = {
    "sub": ir.sub,
    "floordiv": ir.floordiv,
    "mod": ir.mod,
    "le": ir.le,
    "lt": ir.lt,
    "eq": ir.eq,
    "not": ir.not_,
    "abs": ir.abs_,
    "tanh": ir.unary["tanh"],
    "where": ir.where,
    "float": partial(ir.cast, dtype=DType.float32),
    "limits": partial(ir.gather, LIMITS),
    "flags": partial(ir.gather, FLAGS),
    "biases": partial(ir.gather, BIASES),
}


def term_of(expression: Expression) -> Term:
    """The term of an expression, made as it is written."""
    parts = [term_of(part) for part in expression.parts]
    if expression.op == "const":
        return ir.const(expression.number)
    if expression.op in LEAVES:
        return LEAVES[expression.op]
    return (NARY | FIXED)[expression.op](*parts)


def otherwise(expression: Expression, random: Random) -> Term:
    """The term of an expression, made in another order and by other means."""
    parts = [otherwise(part, random) for part in expression.parts]
    name = expression.op
    if name in NARY:
        random.shuffle(parts)
        if name in ("and", "or") and random.random() < 0.3:
            negated = [ir.not_(part) for part in parts]
            return ir.not_(_grouped(NARY["or" if name == "and" else "and"], negated, random))
        return _grouped(NARY[name], parts, random)
    if random.random() < 0.5 and all(part.type.dtype.is_int for part in parts):
        match name, parts:
            case "sub", [x, y]:
                return ir.add(ir.mul(y, ir.const(-1)), x)
            case "le", [x, y]:
                return random.choice([ir.not_(ir.lt(y, x)), ir.le(ir.neg(y), ir.neg(x))])
            case "lt", [x, y]:
                return random.choice([ir.not_(ir.le(y, x)), ir.le(ir.add(x, ir.const(1)), y)])
            case "eq", [x, y]:
                return random.choice([ir.eq(y, x), ir.eq(ir.sub(x, y), ir.const(0))])
            case _:
                pass
    return FIXED[name](*parts) if name in FIXED else term_of(expression)


def _grouped(combine: Callable[..., Term], parts: list[Term], random: Random) -> Term:
    """The operands combined in groups, as somebody else would have put the parentheses."""
    if len(parts) < 3 or random.random() < 0.3:
        return combine(*parts)
    cut = random.randrange(1, len(parts))
    left, right = parts[:cut], parts[cut:]
    return combine(_grouped(combine, left, random), _grouped(combine, right, random))


# -- random expressions ------------------------------------------------------------------


def _leaf(*names: str) -> st.SearchStrategy[Expression]:
    return st.sampled_from([Expression(name) for name in names])


def _constant(numbers: st.SearchStrategy[Value]) -> st.SearchStrategy[Expression]:
    return numbers.map(lambda number: Expression("const", (), number))


def _node(
    names: Sequence[str], *parts: st.SearchStrategy[Expression]
) -> st.SearchStrategy[Expression]:
    return st.builds(Expression, st.sampled_from(names), st.tuples(*parts))


def _nary(
    names: Sequence[str], part: st.SearchStrategy[Expression]
) -> st.SearchStrategy[Expression]:
    several = st.lists(part, min_size=2, max_size=4).map(tuple)
    return st.builds(Expression, st.sampled_from(names), several)


@cache
def ints(depth: int = 3, *, opened: bool = False) -> st.SearchStrategy[Expression]:
    """Expressions of integers; with ``opened`` some depend on queries."""
    names = ("b", "q", "k", "q_len", "kv_len", *(("whole row",) if opened else ()))
    leaves = _leaf(*names) | _constant(st.integers(-4, 4))
    if depth == 0:
        return leaves
    inner = ints(depth - 1, opened=opened)
    divisor = _constant(st.integers(1, 4))
    return st.one_of(
        leaves,
        _nary(["add", "minimum", "maximum"], inner),
        _node(["add", "sub", "mul"], inner, inner),
        _node(["mul"], _constant(st.integers(-3, 3)), inner, inner),
        _node(["floordiv", "mod"], inner, divisor),
        _node(["abs", "limits"], inner),
    )


@cache
def floats(depth: int = 3) -> st.SearchStrategy[Expression]:
    """Expressions of floats: queries, captured tensors, indices and constants."""
    quarters = st.integers(-8, 8).map(lambda number: number / 4)
    index = ints(1)
    leaves = st.one_of(
        _leaf("row", "column"),
        _constant(quarters),
        _node(["float"], index),
        _node(["biases"], index, index),
    )
    if depth == 0:
        return leaves
    inner = floats(depth - 1)
    return st.one_of(
        leaves,
        _nary(["add", "minimum", "maximum"], inner),
        _nary(["add"], inner),
        _node(["mul"], inner, inner),
        _node(["abs", "tanh"], inner),
        _node(["where"], predicates(depth - 1, opened=True), inner, inner),
    )


@cache
def predicates(depth: int = 3, *, opened: bool = False) -> st.SearchStrategy[Expression]:
    """Predicates over integers; with ``opened`` some compare what is computed from queries."""
    index = ints(1, opened=opened)
    leaves = st.one_of(
        _node(["le", "lt", "eq"], index, index),
        _node(["flags"], index),
        _constant(st.booleans()),
        *([_node(["le", "lt", "eq"], floats(0), floats(0))] if opened else []),
    )
    if depth == 0:
        return leaves
    inner = predicates(depth - 1, opened=opened)
    return st.one_of(
        leaves, _nary(["and", "or"], inner), _nary(["and", "or"], inner), _node(["not"], inner)
    )


# -- comparing ----------------------------------------------------------------------------


def check_value(term: Term, expression: Expression, world: World) -> None:
    """Fail unless the term has the value of the expression at every point."""
    found = array(value(term, world.inputs, exact=True, sizes=world.sizes))
    names = term.type.names
    for point in world.points():
        places = [place for name, place in zip("bqk", point, strict=True) if name in names]
        wanted = at(expression, world, point)
        given = found[tuple(places)].item()
        assert type(given) is type(wanted)
        assert math.isclose(given, wanted, rel_tol=1e-12), f"{expression} at {point}: {given}"
