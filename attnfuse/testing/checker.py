"""The rule checker: tries a rewrite rule on random examples of its left side.

Both sides are evaluated by the op table's meanings, in float64: `real` rules
must agree to rounding there, `approx` rules to 5 %. Both sides of `bits` rules
must also agree bit by bit, with all floats in float16, bfloat16 and float32.
A check is only as good as its examples: it finds mistakes, and proves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from attnfuse.egraph.engine import EGraph
from attnfuse.egraph.proof import Firing
from attnfuse.egraph.rule import Rule
from attnfuse.egraph.ruleset import RuleSet
from attnfuse.egraph.saturate import Report, saturate
from attnfuse.errors import AttnFuseError, NoInstance, RuleFailed, UnequalFacts
from attnfuse.ir.axes import DType
from attnfuse.ir.evaluate import Evaluation
from attnfuse.ir.term import Term
from attnfuse.testing.instances import examples
from attnfuse.testing.worlds import World

if TYPE_CHECKING:
    from torch import Tensor

_DTYPES = (DType.float16, DType.bfloat16, DType.float32)
_TOLERANCE = {"bits": 1e-9, "real": 1e-9, "approx": 0.05}
_ATTEMPTS = 60
"""How many examples to try for each one that is wanted."""
_RETRIES = 200
"""On how many refused examples to see whether the condition is too strict."""


@dataclass(frozen=True)
class Counterexample:
    """An example on which the two sides of a rule differ."""

    before: Term
    after: Term | None
    problem: str

    def __str__(self) -> str:
        after = "" if self.after is None else f"\n  became  {self.after}"
        return f"{self.problem}\n  {self.before}{after}"


@dataclass
class Check:
    """What came of checking one rule.

    Attributes:
        rule: the rule.
        applied: on how many examples it applied.
        declined: on how many its condition kept it from applying.
        retried: on how many of these it was applied without its condition.
        equal_anyway: on how many of those both sides are equal all the same.
        dtypes: on how many of them with each element type.
        wrong: on how many the sides differ.
        counterexamples: the first few of these.
        errors: for each 16-bit type the summed errors of the left and of the right side, when
            everything is computed as typed.
    """

    rule: Rule
    applied: int = 0
    declined: int = 0
    retried: int = 0
    equal_anyway: int = 0
    dtypes: Counter[DType] = field(default_factory=lambda: Counter[DType]())
    wrong: int = 0
    counterexamples: list[Counterexample] = field(default_factory=lambda: list[Counterexample]())
    errors: dict[DType, tuple[float, float]] = field(
        default_factory=lambda: dict[DType, tuple[float, float]]()
    )

    @property
    def vacuous(self) -> bool:
        """Whether the rule never applied, so that nothing is known of it."""
        return self.applied == 0

    @property
    def strict(self) -> bool:
        """Whether the condition seems to refuse what would be right."""
        return self.retried >= 20 and self.equal_anyway > 0.95 * self.retried

    @property
    def passed(self) -> bool:
        """Whether it applied, a `bits` rule in each element type, and was never wrong."""
        tried = len(self.dtypes) == len(_DTYPES) or self.rule.exact != "bits"
        return self.applied > 0 and tried and self.wrong == 0

    @property
    def growth(self) -> dict[DType, float]:
        """By what factor the rule multiplies the rounding error, for each 16-bit type."""
        return {dtype: after / before for dtype, (before, after) in self.errors.items() if before}

    def __str__(self) -> str:
        verdict = "vacuous" if self.vacuous else "ok" if self.passed else "WRONG"
        text = f"{self.rule.name}: {verdict}, {self.wrong} wrong of {self.applied}"
        text += f", declined {self.declined}"
        if self.retried:
            text += f" ({self.equal_anyway} of {self.retried} equal anyway)"
        text += ", over-strict condition" if self.strict else ""
        text += "".join(f", {dtype} error ×{by:.2f}" for dtype, by in self.growth.items())
        return "\n".join([text, *(f"  {each}" for each in self.counterexamples)])

    def data(self) -> dict[str, Any]:
        """The check as plain values, for JSON."""
        return {
            "rule": self.rule.name,
            "exact": self.rule.exact,
            "passed": self.passed,
            "applied": self.applied,
            "dtypes": {str(dtype): times for dtype, times in self.dtypes.items()},
            "wrong": self.wrong,
            "vacuous": self.vacuous,
            "declined": self.declined,
            "retried": self.retried,
            "equal_anyway": self.equal_anyway,
            "strict": self.strict,
            "error_growth": {str(dtype): by for dtype, by in self.growth.items()},
            "counterexamples": [str(each) for each in self.counterexamples],
        }


def check(rule: Rule, count: int = 300, seed: int = 0) -> Check:
    """Apply a rule to random examples, until it has applied to ``count`` of them.

    Raises:
        NoInstance: when not even one example of its left side could be made.
    """
    result = Check(rule)
    made = 0
    stream = examples(rule.left, _DTYPES, seed)
    for _ in range(_ATTEMPTS * count):
        example = next(stream)
        made += example is not None
        if example is not None:
            _try(result, *example)
        if result.applied >= count:
            break
    if not made:
        remedy = "add the ops to attnfuse.testing.instances.SHAPES"
        raise NoInstance(where=rule.where, rule=rule.name, pattern=rule.left, remedy=remedy)
    return result


def check_all(rules: Iterable[Rule], count: int = 300, seed: int = 0) -> list[Check]:
    """Check each of some rules; raises what `check` raises."""
    return [check(rule, count, seed) for rule in rules]


def _try(result: Check, term: Term, world: World) -> None:
    rule = result.rule
    try:
        graph, report = _run(rule, term, world)
    except (UnequalFacts, RuleFailed) as error:
        result.applied += 1
        _wrong(result, Counterexample(term, None, str(error)))
        return
    fired = [firing for firing in report.fired if firing.rule is rule]
    for firing in fired:
        result.applied += 1
        result.dtypes[world.dtype] += 1
        _compare(result, graph, firing, world)
    if any(refusal.rule is rule for refusal in report.declined) and not fired:
        result.declined += 1
        if rule.when is not None and result.retried < _RETRIES:
            result.retried += 1
            result.equal_anyway += _equal_anyway(rule, term, world)


def _run(rule: Rule, term: Term, world: World) -> tuple[EGraph, Report]:
    graph = EGraph(promises=world.promises)
    graph.add(term)
    return graph, saturate(graph, RuleSet((rule,)).rounds(1))


def _wrong(result: Check, counterexample: Counterexample) -> None:
    result.wrong += 1
    if len(result.counterexamples) < 3:
        result.counterexamples.append(counterexample)


def _compare(result: Check, graph: EGraph, firing: Firing, world: World) -> None:
    rule = result.rule
    before, after = graph.term(firing.before), graph.term(firing.after)
    exact = _values((before, after), world, exact=True)
    if not close(*exact, _TOLERANCE[rule.exact]):
        _wrong(result, Counterexample(before, after, _difference(*exact)))
        return
    typed = _values((before, after), world, exact=False)
    if rule.exact == "bits":
        if not same_bits(*typed):
            problem = f"in {world.dtype} the bits differ; {_difference(*typed)}"
            _wrong(result, Counterexample(before, after, problem))
    elif world.dtype is not DType.float32:
        errors = [_error(value, exact[0]) for value in typed]
        old = result.errors.get(world.dtype, (0.0, 0.0))
        result.errors[world.dtype] = (old[0] + errors[0], old[1] + errors[1])


def _equal_anyway(rule: Rule, term: Term, world: World) -> bool:
    """Whether the sides are equal where the condition doesn't hold."""
    try:
        graph, report = _run(replace(rule, when=None), term, world)
    except AttnFuseError:
        return False
    pairs = [(graph.term(f.before), graph.term(f.after)) for f in report.fired]
    sides = [_values(pair, world, exact=True) for pair in pairs]
    return bool(sides) and all(close(*each, _TOLERANCE[rule.exact]) for each in sides)


def _values(terms: tuple[Term, Term], world: World, *, exact: bool) -> tuple[Tensor, Tensor]:
    device = torch.device("cpu")
    evaluation = Evaluation(world.tensors, world.sizes, exact=exact, device=device)
    one, other = map(evaluation.value, terms)
    return one, other


def close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Equal shapes, infinities and NaNs, and nearly equal numbers; the largest gives the scale."""
    if one.shape != other.shape:
        return False
    if not one.dtype.is_floating_point:
        return torch.equal(one, other)
    scale = 1.0 + float(one.nan_to_num(0.0, 0.0, 0.0).abs().amax()) if one.numel() else 1.0
    return torch.allclose(one, other, rtol=0.0, atol=tolerance * scale, equal_nan=True)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Equal bit by bit, signs of zeros included; all NaNs count as one."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.dtype.is_floating_point:
        return torch.equal(one, other)
    signs = torch.equal(one.signbit() & ~one.isnan(), other.signbit() & ~other.isnan())
    return signs and torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)


def _difference(one: Tensor, other: Tensor) -> str:
    if one.shape != other.shape:
        return f"the shapes are {tuple(one.shape)} and {tuple(other.shape)}"
    equal = (one == other) | (one.isnan() & other.isnan())
    gaps = (one - other).abs().nan_to_num(torch.inf, torch.inf).masked_fill(equal, -1.0)
    at = int(gaps.flatten().argmax())
    return f"one entry is {float(one.flatten()[at]):g} and becomes {float(other.flatten()[at]):g}"


def _error(value: Tensor, exact: Tensor) -> float:
    """The mean error where both are finite, so that one outlier is not all that counts."""
    gaps = (value.double() - exact.double()).abs()
    finite = gaps[gaps.isfinite()]
    scale = 1.0 + float(exact.nan_to_num(0.0, 0.0, 0.0).abs().amax()) if exact.numel() else 1.0
    return float(finite.mean()) / scale if finite.numel() else 0.0
