"""Programs as text: the same terms come back, and damaged text is refused."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import CASES, Case, Sizes
from hypothesis import given
from hypothesis import strategies as st
from random_programs import program as random_roots

from attnfuse.errors import CorruptProgram
from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis, DType, Symbol
from attnfuse.ir.ops import OPS
from attnfuse.ir.program import Program
from attnfuse.ir.serial import dump, load
from attnfuse.ir.term import Term, make
from attnfuse.testing.worlds import World


def traced(case: Case) -> Program:
    """A case's program."""
    tensors, extra = case.inputs(Sizes(1, 8, 8), torch.float32, torch.Generator())
    return case.variant.trace(*tensors, **extra)


def assert_returns(program: Program) -> None:
    """The program comes back from its text, as the very same terms."""
    text = dump(program)
    found = load(text)
    assert found == program and found.digest == program.digest
    assert all(map(lambda one, other: one is other, found.outputs, program.outputs))
    assert all(map(lambda one, other: one is other, found.inputs, program.inputs))
    assert dump(found) == text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_variant_returns(case: Case) -> None:
    assert_returns(traced(case))


@given(st.integers(0, 2**32), st.sampled_from([DType.float16, DType.float32, DType.float64]))
def test_random_programs_return(seed: int, dtype: DType) -> None:
    world = World(seed, dtype)
    roots = random_roots(world)
    assert_returns(Program("random", tuple(world.tensors), roots))


def constants(*values: float | bool) -> Program:
    """A program of constants."""
    return Program("constants", (), tuple(map(ir.const, values)))


@given(st.lists(st.floats() | st.booleans() | st.integers(), min_size=1))
def test_constants_return_bit_for_bit(values: list[float | bool]) -> None:
    assert_returns(constants(*values))


def test_equal_numbers_of_other_kinds_stay_apart() -> None:
    program = constants(0.0, -0.0, 0, False, 1.0, 1, True, math.inf, -math.inf, math.nan)
    found = [term["value"] for term in load(dump(program)).outputs]
    kinds = [float, float, int, bool, float, int, bool, float, float, float]
    assert list(map(type, found)) == kinds
    assert isinstance(found[1], float) and math.copysign(1, found[1]) == -1


def test_a_program_of_another_process_returns() -> None:
    program = traced(CASES[1])
    code = (
        "import sys; from attnfuse.ir.serial import dump, load\n"
        "program = load(sys.stdin.read()); print(program.digest); print(dump(program))"
    )
    text = dump(program)
    done = subprocess.run(
        [sys.executable, "-c", code], input=text, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [program.digest, text]


def test_forms_share_the_table_of_nodes() -> None:
    seen = json.loads(dump(traced(next(case for case in CASES if case.name == "causal"))))
    held = [value for _, _, attributes in seen["nodes"] for value in attributes]
    texts = [json.dumps(value) for value in held]
    numbers = [int(found[1]) for text in texts if (found := re.match(r'{"term": (\d+)}', text))]
    assert numbers and all(number < len(seen["nodes"]) for number in numbers)


def test_a_deep_program_returns() -> None:
    term: Term = ir.input_("q0", "query", DType.float32, [Axis("q", Symbol("q_len"))])
    inputs = (term,)
    for _ in range(3000):
        term = make(OPS["tanh"], (term,))
    assert_returns(Program("deep", inputs, (term,)))


DAMAGE: list[Callable[[dict[str, Any]], object]] = [
    lambda data: data.pop("nodes"),
    lambda data: data.update(format=2),
    lambda data: data.update(name="other"),
    lambda data: data["outputs"].append(10**6),
    lambda data: data["outputs"].append("0"),
    lambda data: data["outputs"].clear(),
    lambda data: data["nodes"].append(["no_such_op", [], []]),
    lambda data: data["nodes"].append(["add", [], []]),
    lambda data: data["nodes"].append(["const", [], [1.5]]),
    lambda data: data["nodes"].append(["const", [], [{"float": "high"}]]),
    lambda data: data["nodes"].append(["const", [], [{"complex": 1}]]),
    lambda data: data["nodes"][0].pop(),
    lambda data: data["nodes"].reverse(),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found(damage: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(dump(traced(CASES[0])))
    damage(data)
    with pytest.raises(CorruptProgram, match="no program that this AttnFuse wrote"):
        load(json.dumps(data))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '"text"', "[" * 100_000, "{}"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(CorruptProgram):
        load(text)


@given(st.data())
def test_cut_or_changed_text_is_refused_or_the_same(data: st.DataObject) -> None:
    program = traced(CASES[0])
    text = dump(program)
    place = data.draw(st.integers(0, len(text) - 1))
    changed = text[:place] + data.draw(st.sampled_from(["", "0", '"', "x"])) + text[place + 1 :]
    for given_ in (text[:place], changed):
        try:
            found = load(given_)
        except CorruptProgram:
            continue
        assert found == program
