from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
from expressions import Expression, World, at, floats, ints, predicates, term_of, worlds
from hypothesis import given
from small_terms import Q_LEN, D, E, K, Q, b, k, kv_len, q, table, tensor

from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis, DType, Symbol, Type
from attnfuse.ir.op import Op
from attnfuse.ir.ops import OPS
from attnfuse.ir.program import Program
from attnfuse.ir.term import Term, make

PYTHON = {
    "·": "*",
    "≤": "<=",
    " = ": " == ",
    "∧": " and ",
    "∨": " or ",
    "⟨": "(",
    "⟩": ")",
    "not(": "negated(",
}


class Entries:
    """A table as printed terms read it: the nearest entry, floats in quarters."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name

    def __getitem__(self, places: int | tuple[int, ...]) -> Any:
        """The value at a place, as the expression's own meaning has it."""
        several = (places,) if isinstance(places, int) else places
        parts = tuple(Expression("const", (), place) for place in several)
        return at(Expression(self.name, parts), self.world, (0, 0, 0))


def choose(condition: bool, yes: float, no: float) -> float:
    return yes if condition else no


def convert(x: float, dtype: Callable[[float], float]) -> float:
    return dtype(x)


def read(text: str, world: World, point: tuple[int, int, int]) -> Any:
    """What a reader makes of a printed term who knows nothing but precedence."""
    for sign, spelled in PYTHON.items():
        text = text.replace(sign, spelled)
    names: dict[str, Any] = dict(zip("bqk", point, strict=True))
    names |= {name: Entries(world, name) for name in ("limits", "flags", "biases")}
    names |= {"q_len": world.q_len, "kv_len": world.kv_len, "float32": float, "int32": math.trunc}
    names |= {"rows": world.float_at(point[1]), "columns": world.float_at(point[0], point[2])}
    names |= {"minimum": min, "maximum": max, "abs": abs, "tanh": math.tanh}
    names |= {"negated": operator.not_, "where": choose, "cast": convert}
    return eval(text, names)


@given(floats(2) | ints(2, opened=True) | predicates(2, opened=True), worlds)
def test_a_printed_term_reads_as_what_it_means(expression: Expression, world: World) -> None:
    text = str(term_of(expression))
    for point in world.points():
        wanted = at(expression, world, point)
        found = read(text, world, point)
        assert math.isclose(found, wanted, rel_tol=1e-4, abs_tol=1e-4), f"{text} at {point}"


X = tensor("x", Q)
SLOPE = table("slope", 2)


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (ir.sub(q, k), "q - k"),
        (ir.neg(ir.add(q, k)), "-k - q"),
        (ir.sub(ir.mul(ir.const(2), q), ir.const(3)), "2·q - 3"),
        (ir.mul(ir.const(-3), q, k), "-3·k·q"),
        (ir.floordiv(ir.add(q, kv_len), ir.const(4)), "(q + kv_len) // 4"),
        (ir.mod(ir.neg(k), ir.const(4)), "(-1·k) % 4"),
        (ir.le(k, q), "0 ≤ (q - k)"),
        (ir.and_(ir.le(k, q), ir.le(q, k)), "(0 ≤ (k - q)) ∧ (0 ≤ (q - k))"),
        (ir.gather(SLOPE, ir.add(b, ir.const(1))), "slope[b + 1]"),
        (ir.add(X, ir.const(-0.5)), "x - 0.5"),
        (ir.mul(ir.const(0.5), ir.add(X, ir.const(1.0))), "0.5·(x + 1)"),
        (ir.add(X, ir.gather(SLOPE, b)), "x + ⟨slope[b]⟩"),
        (ir.div(X, ir.add(X, X)), "x / (x + x)"),
        (ir.cast(X, DType.float16), "cast(x, dtype=float16)"),
        (ir.unary["tanh"](ir.neg(X)), "tanh(-1·x)"),
        (ir.not_(ir.lt(X, ir.const(1.0))), "not(x < 1)"),
        (ir.TRUE, "True"),
        (ir.slot(2, DType.int32, (Q,)), "$2"),
        (ir.pack(ir.add(ir.gather(SLOPE, b), ir.const(1.0))), "⟨slope[b] + 1⟩"),
    ],
)
def test_terms_print_as_one_would_write_them(term: Term, text: str) -> None:
    both = {text, " ∧ ".join(reversed(text.split(" ∧ ")))} if "∧" in text else {text}
    assert str(term) in both


def test_a_term_shows_its_type_where_it_must_be_short() -> None:
    assert repr(ir.le(k, q)) == "<le: bool[q=q_len, k=kv_len]>"
    assert str(Type(DType.float16, (Q, Axis("d", 64)))) == "float16[q=q_len, d=64]"
    assert str(Type(DType.bool)) == "bool[]"


def test_attributes_of_every_kind_are_printed() -> None:
    row = Op("op", 0, ("a", "b", "c", "d"), OPS["length"].infer, OPS["length"].meaning)
    term = make(row, (), (None, (Q, "text"), Symbol("n"), DType.bfloat16))
    assert str(term) == "op(a=None, b=(q=q_len, text), c=n, d=bfloat16)"


def attention() -> Program:
    query, key, v = (
        tensor(name, *axes, dtype=DType.float16, role=role)
        for name, role, axes in (
            ("query", "query", (Q, D)),
            ("key", "key", (K, D)),
            ("v", "value", (K, E)),
        )
    )
    bias = table("bias", 9)
    scores = ir.contract(query, key, over="d", dtype=DType.float32)
    scores = ir.add(ir.mul(ir.const(0.5), scores), ir.gather(bias, ir.sub(q, k)))
    masked = ir.mask(scores, ir.le(k, q))
    out = ir.contract(ir.softmax(masked), v, over="k", dtype=DType.float16)
    return Program("attention", (query, key, v, bias), (out, ir.logsumexp(masked)))


def test_a_program_prints_one_step_a_line() -> None:
    lines = [" ".join(line.split()) for line in str(attention()).splitlines()]
    assert lines == [
        "attention(",
        "query: query float16[q=q_len, d=4],",
        "key: key float16[k=kv_len, d=4],",
        "v: value float16[k=kv_len, e=5],",
        "bias: captured float32[bias.0=9],",
        "):",
        "%0 = contract(query, key, over=d, dtype=float32) float32[q=q_len, k=kv_len]",
        "%1 = mask(0.5·%0 + ⟨bias[q - k]⟩, ⟨0 ≤ (q - k)⟩) float32[q=q_len, k=kv_len]",
        "%2 = softmax(%1) float32[q=q_len, k=kv_len]",
        "%3 = contract(%2, v, over=k, dtype=float16) float16[q=q_len, e=5]",
        "%4 = logsumexp(%1) float32[q=q_len]",
        "return %3, %4",
    ]


def test_what_a_program_uses_twice_has_a_line_and_a_name() -> None:
    square = ir.mul(X, X)
    program = Program("p", (X,), (ir.add(square, ir.unary["exp"](square)),))
    text = str(program)
    assert text.count("x·x") == 1
    assert "return exp(%0) + %0" in text or "return %0 + exp(%0)" in text


def test_a_named_step_needs_no_brackets() -> None:
    total = ir.add(X, ir.const(1.0))
    program = Program("p", (X,), (ir.div(ir.const(1.0), total), ir.unary["exp"](total)))
    assert str(program).splitlines()[-1] == "  return 1 / %0, exp(%0)"


def test_a_sum_that_starts_with_a_named_step_keeps_its_brackets() -> None:
    step = ir.softmax(tensor("s", Q, K))
    total = ir.mul(ir.const(2.0), ir.add(step, ir.const(1.0)))
    assert str(Program("p", (), (total,))).splitlines()[-1] == "  return 2·(%0 + 1)"


def test_a_symbol_prints_as_its_name() -> None:
    assert f"{Q_LEN} {Q}" == "q_len q=q_len"
