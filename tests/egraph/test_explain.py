from __future__ import annotations

import json
from collections.abc import Callable

import wrong_rules

from attnfuse.egraph.derivation import derive, enter_candidate
from attnfuse.egraph.engine import EGraph
from attnfuse.egraph.explain import explain
from attnfuse.egraph.extract import extract
from attnfuse.egraph.facts import Choice, Fact
from attnfuse.egraph.ruleset import RuleSet
from attnfuse.egraph.saturate import Limits, saturate
from attnfuse.egraph.search import Search
from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis, DType
from attnfuse.ir.term import Term
from attnfuse.rewrites import RULES, scale
from attnfuse.testing import replay

Q, K = Axis("q", 5), Axis("k", 7)
QUERY = ir.input_("q", "query", DType.float32, [Q, Axis("d", 4)])
KEY = ir.input_("k", "key", DType.float32, [K, Axis("d", 4)])
ROW, COLUMN = ir.index("q", [Q]), ir.index("k", [K])
SCORES = ir.contract(ir.mul(ir.const(0.5), QUERY), KEY, over="d", dtype=DType.float32)
MASKED = ir.mask(ir.mask(SCORES, ir.le(COLUMN, ROW)), ir.le(ROW, ir.add(COLUMN, ir.const(2))))
ROOT = ir.mul(ir.const(3.0), MASKED)
COSTS = {"mul": 3.0, "mask": 2.0, "contract": 10.0}


def cost(choice: Choice) -> float:
    return COSTS.get(choice.op.name, 0.0)


def _masked(choice: Choice) -> bool | None:
    below = any(known.facts.get("masked") for known in choice.operands)
    return below or choice.op.name == "mask" or None


MASKED_FACT = Fact("masked", _masked, lambda a, b: a or b)


def _over_a_mask(op: str) -> Callable[[Choice], float | None]:
    """The same cost, but nothing where ``op`` stands over a mask."""

    def price(choice: Choice) -> float | None:
        over = choice.op.name == op and choice.operands[0].facts.get("masked")
        return None if over else cost(choice)

    return price


def _search(*roots: Term, rules: RuleSet = RULES, count: int = 1) -> Search:
    return Search(roots, rules, cost, count=count)


def test_a_derivation_goes_from_the_program_to_the_candidate_rule_by_rule() -> None:
    found = _search(ROOT).run()
    (alternative,) = explain(found).alternatives
    (derivation,) = alternative.derivations
    assert derivation.start is ROOT
    assert derivation.end is found.extraction.best.terms[0]
    assert found.extraction.best.cost == 15.0
    assert {"masks_merge", "scale_out_of_left"} <= set(derivation.rules)
    assert derivation.exact == "real"
    result = replay(derivation)
    assert result.wrong is None
    assert len(result.errors) == len(derivation.steps) >= 3
    assert max(result.errors) < 1e-12
    assert str(result).count("\n= ") == len(derivation.steps)


def test_a_derivation_of_one_kind_of_rule_is_as_exact_as_that() -> None:
    found = _search(MASKED, rules=RULES.only(["masks_merge"])).run()
    derivation = explain(found).alternatives[0].derivations[0]
    assert (derivation.rules, derivation.exact) == (("masks_merge",), "bits")


def test_a_replay_names_the_step_that_is_wrong() -> None:
    capped = ir.unary["tanh"](ir.mask(SCORES, ir.le(COLUMN, ROW)))
    rules = wrong_rules.RULES.only(["softcap_under_mask"])
    found = Search((capped,), rules, _over_a_mask("tanh"), (MASKED_FACT,)).run()
    derivation = explain(found).alternatives[0].derivations[0]
    result = replay(derivation)
    assert result.wrong == 0
    assert "softcap_under_mask  [real]  error inf  WRONG" in str(result)


def test_an_explanation_is_text_and_data() -> None:
    explanation = explain(_search(ROOT, SCORES, count=3).run(), worth=True)
    text = str(explanation)
    data = json.loads(json.dumps(explanation.data()))
    assert explanation.summary.startswith("saturated after ")
    assert "proved best" in text
    for part in ("scale_out_of_left: fired", "[real]", "masks_merge", "#1: cost 18", "#3: cost"):
        assert part in text, part
    assert len(data["alternatives"]) == 3
    assert len(data["alternatives"][0]["derivations"]) == 2
    fired = {each["name"]: each["fired"] for each in data["rules"]}
    assert fired["masks_merge"] > 0


def test_declined_rules_stand_there_with_their_reasons() -> None:
    masked = ir.mul(ir.const(-1.0), ir.mask(SCORES, ir.le(COLUMN, ROW)))
    explanation = explain(_search(masked).run())
    (activity,) = [each for each in explanation.activities if each.rule == "scale_under_mask"]
    assert activity.fired == 0
    ((reason, times),) = activity.declined
    assert reason.startswith("not so: the factor is positive")
    assert 0 < times <= activity.matched
    assert f"declined {times}×: {reason}" in str(explanation)
    data = json.loads(json.dumps(explanation.data()))
    (described,) = [each for each in data["rules"] if each["name"] == "scale_under_mask"]
    assert described["declined"] == [{"reason": reason, "times": times}]


def test_each_rule_is_worth_what_is_lost_without_it() -> None:
    explanation = explain(_search(ROOT).run(), worth=True)
    assert explanation.worth["masks_merge"] == 2.0
    assert explanation.worth["scale_out_of_left"] == 3.0
    assert "without masks_merge: +2" in str(explanation)


def test_without_a_rule_there_may_be_nothing() -> None:
    rules = RULES.only(["masks_merge"])
    search = Search((MASKED,), rules, _over_a_mask("mask"), (MASKED_FACT,))
    explanation = explain(search.run(), worth=True)
    assert explanation.worth == {"masks_merge": None}
    assert "without masks_merge: nothing" in str(explanation)


def test_what_a_limit_left_unfolded_is_derived_as_a_normal_form() -> None:
    graph = EGraph()
    root = graph.add(ir.mul(ir.const(3.0), SCORES))
    saturate(graph, scale.RULES, Limits(rounds=1))
    candidate = next(
        each
        for each in extract(graph, [root], cost, count=9).candidates
        if str(each.terms[0]).startswith("1.5")
    )
    (end,) = enter_candidate(graph, [root], candidate)
    derivation = derive(graph, root, end)
    assert derivation.end is candidate.terms[0]
    assert derivation.rules == ("scale_out_of_left", "normal form")
    assert replay(derivation).wrong is None
