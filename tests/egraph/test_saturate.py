from __future__ import annotations

import math

import pytest

from attnfuse.egraph.engine import EGraph
from attnfuse.egraph.pattern import number, op, rest, variables
from attnfuse.egraph.rule import Declined, Rule, rule
from attnfuse.egraph.ruleset import RuleSet
from attnfuse.egraph.saturate import Limits, Stop, saturate
from attnfuse.errors import RuleFailed, UnequalFacts
from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis, DType
from attnfuse.ir.ops import OPS
from attnfuse.ir.term import Term, make

x, y = variables("x y")
c, more = number("c"), rest("more")
X = ir.input_("x", "query", DType.float32, [Axis("q", 4), Axis("k", 4)])
TANH = ir.unary["tanh"](X)


@rule(op.tanh(x))
def grows(x: Term) -> Term:
    """tanh(x) → tanh(x + x)"""
    return ir.unary["tanh"](ir.add(x, x))


@rule(op.tanh(x))
def to_exp(x: Term) -> Term:
    """tanh(x) → exp(x)"""
    return ir.unary["exp"](x)


@rule(op.exp(x))
def to_log(x: Term) -> Term:
    """exp(x) → log(x)"""
    return ir.unary["log"](x)


@pytest.mark.parametrize(
    ("limits", "stop"),
    [
        (Limits(nodes=20), Stop.nodes),
        (Limits(rounds=3), Stop.rounds),
        (Limits(seconds=0.0), Stop.time),
    ],
)
def test_limits_end_a_saturation_and_are_reported(
    limits: Limits, stop: Stop, caplog: pytest.LogCaptureFixture
) -> None:
    graph = EGraph()
    root = graph.add(TANH)
    report = saturate(graph, RuleSet((grows,)), limits)
    assert report.stop is stop
    assert str(stop) in str(report)
    assert f"rewriting ended early, so better forms may be missed: {stop} after" in caplog.text
    assert report.nodes == graph.size <= 25
    assert graph.find(graph.add(TANH)) == graph.find(root)


def test_a_time_limit_holds_within_a_round() -> None:
    graph = EGraph()
    graph.add(TANH)
    report = saturate(graph, RuleSet((grows,)), Limits(nodes=10**6, rounds=10**6, seconds=0.05))
    assert report.stop is Stop.time
    assert report.total_seconds < 0.5


def test_saturation_reports_what_it_did(caplog: pytest.LogCaptureFixture) -> None:
    graph = EGraph()
    root = graph.add(TANH)
    report = saturate(graph, RuleSet((to_exp, to_log)))
    assert report.stop is Stop.saturated
    assert [firing.rule.name for firing in report.fired] == ["to_exp", "to_log"]
    assert report.matched == {"to_exp": 1, "to_log": 1}
    assert set(report.seconds) >= {"to_exp", "to_log"}
    first = report.fired[0]
    assert graph.term(first.before) is TANH
    assert graph.term(first.after) is ir.unary["exp"](X)
    assert graph.term(first.given["x"]) is X
    assert first.round == 0
    assert {graph.node(n).op.name for n in graph.members(root)} == {"tanh", "exp", "log"}
    assert "to_log: fired 1 of 1 matches" in str(report)
    assert caplog.text == ""


def test_a_schedule_runs_its_steps_in_order() -> None:
    one, two = RuleSet((to_exp,)), RuleSet((to_log,))

    def ops(schedule: object) -> set[str]:
        graph = EGraph()
        root = graph.add(TANH)
        assert isinstance(schedule, type(one.saturate()))
        saturate(graph, schedule)
        return {graph.node(number).op.name for number in graph.members(root)}

    assert ops(one.saturate() + two.saturate()) == {"tanh", "exp", "log"}
    assert ops(two.saturate() + one.saturate()) == {"tanh", "exp"}
    assert ops((two.saturate() + one.saturate()) * 2) == {"tanh", "exp", "log"}
    assert ops(RuleSet((to_log, to_exp)).rounds(1)) == {"tanh", "exp"}


def test_a_rule_that_only_finds_what_is_known_does_not_fire() -> None:
    @rule(op.tanh(x))
    def same(x: Term) -> Term:
        """tanh(x) → tanh(x)"""
        return ir.unary["tanh"](x)

    graph = EGraph()
    graph.add(TANH)
    report = saturate(graph, RuleSet((same,)))
    assert (report.matched["same"], report.fired) == (1, [])


@rule(op.mul(c, x), when=lambda c: c > 2)
def large(c: float, x: Term) -> Declined | None:
    """c·x → x"""
    return Declined("not today") if c > 10 else None


@pytest.mark.parametrize(
    ("factor", "reason"),
    [(0.5, "not c > 2"), (3.0, "its right side declined"), (11.0, "not today")],
)
def test_what_declines_gives_its_reason(factor: float, reason: str) -> None:
    graph = EGraph()
    root = graph.add(ir.mul(ir.const(factor), X))
    (refusal,) = saturate(graph, RuleSet((large,))).declined
    assert (refusal.rule, refusal.reason, refusal.at) == (large, reason, root)
    assert refusal.given["c"] == factor


def _failing(name: str) -> Rule:
    @rule(op.tanh(x), name=name)
    def function(x: Term) -> Term:
        """tanh(x) → ?"""
        if name == "wrong_op":
            return ir.contract(x, x, over="d", dtype=DType.float32)
        return ir.nonsense(x)  # type: ignore[attr-defined, no-any-return]  # pyright: ignore

    return function


@pytest.mark.parametrize("name", ["wrong_op", "unknown_constructor"])
def test_an_error_within_a_rule_names_file_line_rule_and_term(name: str) -> None:
    failing = _failing(name)
    graph = EGraph()
    graph.add(TANH)
    with pytest.raises(RuleFailed) as caught:
        saturate(graph, RuleSet((failing,)))
    text = str(caught.value)
    assert text.startswith(f"{failing.where}: rule {name}: ")
    assert "applied to tanh(x)" in text
    assert ("DoesNotFit" if name == "wrong_op" else "nonsense") in text


def test_a_rule_that_merges_types_is_named_at_once() -> None:
    @rule(op.tanh(x))
    def loses_keys(x: Term) -> Term:
        """tanh(x) → lse(x)"""
        return ir.logsumexp(x)

    graph = EGraph()
    graph.add(TANH)
    with pytest.raises(UnequalFacts) as caught:
        saturate(graph, RuleSet((loses_keys,)))
    text = str(caught.value)
    assert text.startswith(f"{loses_keys.where}: rule loses_keys equates")
    assert "float32[q=4, k=4] and float32[q=4]" in text


def test_what_changed_below_is_matched_again() -> None:
    """A match three levels deep that comes about by a rule at its bottom."""

    @rule(op.tanh(op.log(op.tanh(op.log(x)))))
    def deep(x: Term) -> Term:
        """tanh(log(tanh(log(x)))) → x"""
        return x

    graph = EGraph()
    inner = make(OPS["tanh"], (make(OPS["exp"], (X,)),))
    root = graph.add(make(OPS["tanh"], (make(OPS["log"], (inner,)),)))
    report = saturate(graph, RuleSet((to_log, deep)))
    assert [firing.rule.name for firing in report.fired] == ["to_log", "deep"]
    assert graph.find(root) == graph.find(graph.add(X))


def test_a_sum_that_equals_one_of_its_parts_is_not_unrolled() -> None:
    """X = x + w would else be x + (w + w), x + (w + w + w), …: closed terms are packed into one."""
    graph = EGraph()
    near = ir.le(ir.index("k", X.type.axes[1:]), ir.const(2))
    hidden = ir.where(near, ir.const(0.0), ir.const(-math.inf))
    root = graph.add(ir.unary["tanh"](ir.add(X, hidden)))
    graph.union(graph.add(ir.add(X, hidden)), graph.add(X), "w is neutral for x")
    report = saturate(graph, RuleSet(()))
    assert report.stop is Stop.saturated
    assert graph.find(root) == graph.find(graph.add(TANH))
    assert graph.size <= 10
