from __future__ import annotations

import math
from typing import Any

import pytest

from attnfuse.egraph.pattern import Node, closed, number, op, rest, variables
from attnfuse.egraph.rule import Declined, Rule, rule
from attnfuse.egraph.ruleset import RuleSet, Schedule, Step
from attnfuse.errors import MalformedRule, RuleClash, UnknownRule
from attnfuse.ir.term import Term

x, y, p = variables("x y p")
c, more = number("c"), rest("more")


def identity(x: Term) -> Term:
    """softmax(x) → x"""
    return x


def no_algebra(x: Term) -> Term:
    """Leaves out the softmax."""
    return x


def unbound(x: Term, z: Term) -> Term:
    """softmax(x) → z"""
    return z


def on_z(z: Term) -> bool:
    return bool(z)


def bare() -> Term:
    """softmax(x) → x"""
    raise AssertionError


def takes_any(*x: Term) -> Term:
    """softmax(x) → x"""
    return x[0]


SOFTMAX = op.softmax(x)


@pytest.mark.parametrize(
    ("left", "options", "function", "problem"),
    [
        (op.sofmax(x), {}, identity, "no op is called 'sofmax'"),
        (op.mask(op.sofmax(x), p), {}, identity, "no op is called 'sofmax'"),
        (op.mask(x), {}, identity, "mask(x) has 1 operands; mask takes 2"),
        (op.softmax(x, base=2), {}, identity, "softmax has no attribute 'base'"),
        (op.softmax(more), {}, identity, "a rest can't stand there"),
        (op.add(more, x), {}, identity, "a rest can't stand there"),
        (op.add(x, more, rest("others")), {}, identity, "a rest can't stand there"),
        (op.mask(x, closed("x")), {}, identity, "'x' stands for"),
        (op.contract(x, y, over=x), {}, identity, "'x' stands for"),
        (op.mask(x, *variables("facts")), {}, identity, "`facts` is taken"),
        (x, {}, identity, "its left side is not a term"),
        (
            SOFTMAX,
            {},
            unbound,
            "its right side uses 'z', which the left side doesn't bind; it binds x",
        ),
        (SOFTMAX, {"when": on_z}, identity, "its condition uses 'z'"),
        (SOFTMAX, {"when": math.isfinite}, identity, "its condition can't be given 'x' by name"),
        (SOFTMAX, {}, takes_any, "its right side can't be given 'x' by name"),
        (SOFTMAX, {"to": y}, bare, "its right side uses 'y'"),
        (SOFTMAX, {"to": op.sofmax(x)}, bare, "no op is called 'sofmax'"),
        (SOFTMAX, {"to": x}, identity, "it has both `to` and parameters"),
        (SOFTMAX, {}, no_algebra, "its docstring doesn't say what it does"),
        (SOFTMAX, {"exact": "exactly"}, identity, "exact is 'exactly'"),
    ],
)
def test_mistakes_are_found_where_a_rule_is_defined(
    left: Any, options: dict[str, Any], function: Any, problem: str
) -> None:
    with pytest.raises(MalformedRule) as caught:
        rule(left, **options)(function)
    text = str(caught.value)
    assert problem in text
    line = function.__code__.co_firstlineno
    assert text.startswith(f"{__file__}:{line}: rule {function.__name__}: ")


@rule(op.mul(c, op.mask(x, p)), when=lambda c: c > 0 and c < 9, exact="bits")
def example(c: float, x: Term, p: Term) -> Declined:
    """Moves a factor.

    c·mask(x, p) → mask(c·x, p)
    """
    return Declined("never")


def test_a_rule_knows_what_it_is() -> None:
    assert isinstance(example, Rule)
    assert (example.name, example.exact, example.module) == ("example", "bits", __name__)
    assert example.algebra == "c·mask(x, p) → mask(c·x, p)"
    assert example.doc.startswith("Moves a factor.\n\nc·mask")
    assert example.where.startswith(__file__)
    assert example.reason == "not c > 0 and c < 9"
    assert str(example.left) == "mul(c, mask(x, p))"


def test_a_named_condition_gives_its_docstring_as_the_reason() -> None:
    def small(c: float) -> bool:
        """The factor is small."""
        return c < 1

    made = rule(op.mul(c, x), when=small, name="other")(lambda_with_doc())
    assert made.reason == "not so: the factor is small"
    assert made.name == "other"


def lambda_with_doc() -> Any:
    def function(x: Term) -> Term:
        """c·x → x"""
        return x

    return function


def test_patterns_print_as_they_are_written() -> None:
    pattern = op.and_(op.le(0, x), more)
    assert isinstance(pattern, Node)
    assert str(pattern) == "and(le(0, x), *more)"
    assert str(op.contract(x, y, over="d")) == "contract(x, y, over=d)"


# -- rule sets and schedules ------------------------------------------------------------------


def _named(name: str) -> Rule:
    return rule(SOFTMAX, name=name)(identity)


ONE, TWO, THREE = map(_named, ("one", "two", "three"))


def test_rule_sets_are_values() -> None:
    rules = RuleSet((ONE, TWO)) + RuleSet((TWO, THREE))
    assert [each.name for each in rules] == ["one", "two", "three"]
    assert rules.without("two").rules == (ONE, THREE)
    assert rules.only(["three", "one"]).rules == (THREE, ONE)
    assert rules["two"] is TWO
    assert len(rules) == 3
    assert RuleSet((ONE,)) == RuleSet((ONE,))


def test_two_rules_of_one_name_are_an_error_that_names_both() -> None:
    with pytest.raises(RuleClash) as caught:
        RuleSet((ONE, _named("one")))
    assert str(caught.value).count(f"{__name__} ({__file__}:") == 2


def test_unknown_rules_are_named_with_those_that_there_are() -> None:
    rules = RuleSet((ONE, TWO))
    with pytest.raises(UnknownRule, match="'four'; there are one, two"):
        rules["four"]
    with pytest.raises(UnknownRule, match="'four'"):
        rules.without("four")
    with pytest.raises(UnknownRule, match="'four'"):
        rules.only(["four"])


def test_schedules_are_values() -> None:
    rules, others = RuleSet((ONE,)), RuleSet((TWO,))
    schedule = rules.saturate() + others.rounds(1) * 2
    steps = (Step(rules, None), Step(others, 1), Step(others, 1))
    assert schedule == Schedule(steps)
