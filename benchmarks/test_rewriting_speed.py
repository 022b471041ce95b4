"""How long rewriting takes: saturation and exact extraction, for each example and for 16 layers.

    python -m pytest benchmarks/test_rewriting_speed.py

The aims, on one core: 10 ms for each example, 100 ms for 16 stacked layers.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cases import CASES, Case, Sizes

from attnfuse.egraph.facts import Choice
from attnfuse.egraph.saturate import Stop
from attnfuse.egraph.search import Found, Search
from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis, DType, Symbol
from attnfuse.ir.term import Term
from attnfuse.rewrites import RULES

Benchmark = Callable[[Callable[[], Found]], Found]
"""What pytest-benchmark's fixture is used as: it runs a function often, and returns its result."""

COSTS = {"mul": 3.0, "mask": 2.0, "contract": 100.0, "softmax": 20.0, "rotate": 10.0, "tanh": 9.0}


def cost(choice: Choice) -> float:
    """Something like the work of each op; leaves and closed values cost nothing."""
    return 0.0 if choice.known.closed is not None else COSTS.get(choice.op.name, 1.0)


def layers(count: int) -> Term:
    """Attention over attention: scaled, rotated, masked twice, with a residual."""
    b, hk, q = Axis("b", Symbol("batch")), Axis("hk", 8), Axis("q", Symbol("q_len"))
    k, e = Axis("k", Symbol("kv_len")), Axis("e", 64)
    cos, sin = (
        ir.input_(name, "captured", DType.float32, [Axis(f"{name}.0", 4096), Axis(f"{name}.1", 32)])
        for name in ("cos", "sin")
    )
    rows, columns = ir.index("q", [q]), ir.index("k", [k])
    x = ir.input_("x", "query", DType.float16, [b, hk, q, e])
    for layer in range(count):
        key, value = (
            ir.input_(f"{name}{layer}", role, DType.float16, [b, hk, k, e])
            for name, role in (("k", "key"), ("v", "value"))
        )
        query = ir.rotate(ir.mul(ir.const(0.5), x), cos, sin, rows, "half")
        turned = ir.rotate(ir.mul(ir.const(2.0), key), cos, sin, columns, "half")
        s = ir.mul(ir.const(0.125), ir.contract(query, turned, over="e", dtype=DType.float32))
        s = ir.mul(ir.const(50.0), ir.unary["tanh"](ir.mul(ir.const(0.02), s)))
        s = ir.mask(ir.mask(s, ir.le(columns, rows)), ir.le(rows, ir.add(columns, ir.const(1024))))
        x = ir.add(x, ir.contract(ir.softmax(s), value, over="k", dtype=DType.float16))
    return x


def _traced(case: Case) -> tuple[Term, ...]:
    sizes = Sizes(batch=2, q_len=33, kv_len=41)
    inputs, extra = case.inputs(sizes, torch.float16, torch.Generator().manual_seed(0))
    return case.variant.trace(*inputs, **extra).outputs


def _run(roots: tuple[Term, ...]) -> Callable[[], Found]:
    return Search(roots, RULES, cost).run


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_example(benchmark: Benchmark, case: Case) -> None:
    """The aim is 10 ms."""
    found = benchmark(_run(_traced(case)))
    assert found.report.stop is Stop.saturated
    assert found.extraction.proved


def test_16_layers(benchmark: Benchmark) -> None:
    """The aim is 100 ms."""
    found = benchmark(_run((layers(16),)))
    assert found.report.stop is Stop.saturated
    assert found.extraction.proved
