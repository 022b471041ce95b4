from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import islice

import pytest
import torch
import wrong_rules

from attnfuse.egraph.pattern import Node, number, op, rest, variables
from attnfuse.egraph.rule import Rule, rule
from attnfuse.errors import NoInstance
from attnfuse.ir import build as ir
from attnfuse.ir.axes import DType
from attnfuse.ir.evaluate import Evaluation
from attnfuse.ir.ops import OPS
from attnfuse.ir.term import Term
from attnfuse.rewrites import RULES, scale
from attnfuse.testing import check
from attnfuse.testing.checker import close, same_bits
from attnfuse.testing.instances import SHAPES, examples

x, p, r, over, dtype = variables("x p r over dtype")
c, more = number("c"), rest("more")


@rule(op.mul(c, op.contract(x, p, over=over, dtype=dtype)), when=lambda c: abs(c) < 1e9)
def scale_into_left(c: float, x: Term, p: Term, over: str, dtype: DType) -> Term:
    """c·Σ x·p → Σ (c·x)·p"""
    return ir.contract(ir.mul(ir.const(c), x), p, over=over, dtype=dtype)


EXAMPLES = 40
"""Of each rule; `attnfuse rules check` tries 300, which takes minutes."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_holds_on_random_examples(rule: Rule) -> None:
    found = check(rule, EXAMPLES)
    assert found.applied >= EXAMPLES, str(found)
    assert found.passed, str(found)
    assert not found.strict, str(found)


@pytest.mark.parametrize("rule", wrong_rules.RULES, ids=lambda rule: rule.name)
def test_every_planted_wrong_rule_is_caught(rule: Rule) -> None:
    found = check(rule, 60)
    assert found.wrong > 0, str(found)
    assert not found.passed
    # because of a value, and not because it raised an error
    assert any(each.after for each in found.counterexamples) or rule is wrong_rules.axis_lost


def test_there_are_twenty_six_wrong_rules() -> None:
    assert len(wrong_rules.RULES) == 26


def test_a_counterexample_shows_both_sides_and_what_became_of_a_value() -> None:
    found = check(wrong_rules.scale_out_of_softcap, 20)
    text = str(found)
    assert "WRONG" in text
    assert "tanh(" in text
    assert "became" in text
    assert json.loads(json.dumps(found.data()))["passed"] is False


def test_a_merge_of_types_is_a_counterexample() -> None:
    found = check(wrong_rules.axis_lost, 5)
    assert "differ in their type" in found.counterexamples[0].problem


def test_a_rule_that_never_applies_is_vacuous() -> None:
    @rule(op.mask(op.mask(x, p), r), when=lambda p: p.type.dtype is DType.float32)
    def never(x: Term, p: Term, r: Term) -> Term:
        """mask(mask(x, p), r) → mask(x, p ∧ r)"""
        return ir.mask(x, ir.and_(p, r))

    found = check(never, 10)
    assert found.vacuous
    assert not found.passed
    assert found.strict


def _is_large(c: float) -> bool:
    return c > 2


def test_a_condition_that_refuses_too_much_is_noticed() -> None:
    large_only = replace(scale_into_left, when=_is_large, when_parameters=("c",))
    assert not check(scale_into_left, 100).strict
    found = check(large_only, 100)
    # it also refuses infinities, with reason
    assert found.equal_anyway > 0.7 * found.retried > 0


def test_bits_are_compared_in_every_type() -> None:
    @rule(op.mul(c, op.add(more)), when=lambda c: abs(c) < 1e9, exact="bits")
    def not_in_bits(c: float, more: tuple[Term, ...]) -> Term:
        """c·(x + y) → c·x + c·y"""
        return ir.add(*(ir.mul(ir.const(c), term) for term in more))

    found = check(not_in_bits, 100)
    assert found.wrong > 0
    assert "the bits differ" in found.counterexamples[0].problem
    assert set(check(scale.scale_over_mask, 30).dtypes) == {
        DType.float16,
        DType.bfloat16,
        DType.float32,
    }


def test_bits_tell_zeros_apart_but_not_nans() -> None:
    zeros, nans = torch.tensor([0.0, 1.0]), torch.tensor([math.nan, 1.0])
    assert same_bits(zeros, zeros)
    assert same_bits(nans, -nans.abs() * torch.tensor([1.0, -1.0]))
    assert not same_bits(zeros, torch.tensor([-0.0, 1.0]))
    assert not same_bits(zeros, zeros.half())
    assert not same_bits(zeros, torch.tensor([0.0, 1.0 + 2**-23]))


def test_values_are_close_by_the_largest_of_them() -> None:
    one = torch.tensor([1e6, 0.0, -math.inf, math.nan], dtype=torch.float64)
    near = torch.tensor([1e6, 1e-4, -math.inf, math.nan], dtype=torch.float64)
    assert close(one, near, 1e-9)
    assert not close(one, near, 1e-12)
    assert not close(one, near.nan_to_num(nan=math.nan, neginf=0.0), 1e-9)
    assert not close(one, one[:2], 1.0)
    assert close(torch.zeros(0), torch.zeros(0), 0.0)


def test_the_growth_of_rounding_errors_is_measured() -> None:
    inward, outward = check(scale_into_left, 200), check(scale.scale_out_of_left, 200)
    for dtype in (DType.float16, DType.bfloat16):
        assert inward.growth[dtype] > 1.2 > outward.growth[dtype]


def test_a_rule_over_ops_without_examples_is_an_error_with_a_remedy() -> None:
    @rule(op.gather(x, p))
    def unknown(x: Term, p: Term) -> Term:
        """table[i] → table[i]"""
        return ir.gather(x, p)

    with pytest.raises(NoInstance, match="SHAPES"):
        check(unknown, 3)


@pytest.mark.parametrize("name", SHAPES)
def test_there_are_examples_of_every_op_with_shapes(name: str) -> None:
    operands = variables("a b c d")[: OPS[name].arity or 2]
    drawn = islice(examples(Node(name, tuple(operands), ()), (DType.float16, DType.float32)), 60)
    found = [example for example in drawn if example is not None]
    assert found
    made = [(term, world) for term, world in found if term.op.name == name]
    assert made, "their normal form is always another op"
    for term, world in made:
        value = Evaluation(
            world.tensors, world.sizes, exact=True, device=torch.device("cpu")
        ).value(term)
        assert value.shape == tuple(world.count(axis.size) for axis in term.type.axes)


def test_checks_can_be_repeated() -> None:
    one, two = (check(wrong_rules.softcap_under_mask, 20, seed=3) for _ in range(2))
    assert one.data() == two.data()
    assert check(wrong_rules.softcap_under_mask, 20, seed=4).data() != one.data()
