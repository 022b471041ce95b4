"""Saturation: apply rules to an e-graph until nothing changes or a limit is reached."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter
from typing import NamedTuple

from attnfuse.egraph.engine import EGraph
from attnfuse.egraph.flatten import FLATTEN
from attnfuse.egraph.matching import Bindings, Found, enter, handles, matches, signature
from attnfuse.egraph.pattern import depth
from attnfuse.egraph.proof import Firing
from attnfuse.egraph.rule import Declined, Rule
from attnfuse.egraph.ruleset import RuleSet, Schedule
from attnfuse.errors import RuleFailed
from attnfuse.ir.term import Term

_log = logging.getLogger("attnfuse.egraph")


class Stop(StrEnum):
    """Why saturation ended."""

    saturated = "saturated"
    rounds = "round limit"
    nodes = "node limit"
    time = "time limit"


@dataclass(frozen=True)
class Limits:
    """What saturation may use: e-nodes that differ, rounds of one step, seconds in all."""

    nodes: int = 5000
    rounds: int = 40
    seconds: float = 5.0


@dataclass(frozen=True)
class Refusal:
    """A rule that matched and did not apply: where, and why."""

    rule: Rule
    given: Bindings
    at: int
    reason: str


@dataclass
class Report:
    """What a saturation did.

    Attributes:
        fired: every union that a rule made, in order.
        declined: every match to which a rule did not apply, with the reason.
        matched: how often each rule matched, by name.
        seconds: the time spent on each rule, by name.
        rounds: how many rounds it took.
        nodes: how many e-nodes differ at the end.
        stop: why it ended; `Stop.saturated` means that nothing is left to find.
    """

    fired: list[Firing] = field(default_factory=lambda: list[Firing]())
    declined: list[Refusal] = field(default_factory=lambda: list[Refusal]())
    matched: Counter[str] = field(default_factory=lambda: Counter[str]())
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    rounds: int = 0
    nodes: int = 0
    total_seconds: float = 0.0
    stop: Stop = Stop.saturated

    def __str__(self) -> str:
        fired = Counter(firing.rule.name for firing in self.fired)
        lines = [
            f"{self.stop} after {self.rounds} rounds, {self.nodes} e-nodes, "
            f"{1e3 * self.total_seconds:.1f} ms"
        ]
        lines += [
            f"  {n}: fired {fired[n]} of {times} matches" for n, times in self.matched.items()
        ]
        reasons = Counter((each.rule.name, each.reason) for each in self.declined)
        lines += [f"  {name} declined {n}×: {why}" for (name, why), n in reasons.items()]
        return "\n".join(lines)


def saturate(graph: EGraph, rules: RuleSet | Schedule, limits: Limits | None = None) -> Report:
    """Apply rules to all that is in an e-graph; what they find is added to it.

    A rule set is run until nothing changes. A limit ends it early, and the
    report says so; what was found until then is kept, and sound.

    Raises:
        RuleFailed: when a rule's function raises an error.
        UnequalFacts: when a rule equates terms of different types or facts.
    """
    schedule = rules.saturate() if isinstance(rules, RuleSet) else rules
    return _Saturation(graph, limits or Limits()).run(schedule)


class _Match(NamedTuple):
    rule: Rule
    found: Found
    at: int
    given: Bindings


class _Limit(Exception):
    def __init__(self, stop: Stop) -> None:
        self.stop = stop


class _Saturation:
    def __init__(self, graph: EGraph, limits: Limits) -> None:
        self.graph, self.limits, self.report = graph, limits, Report()
        self.start = perf_counter()
        self.seen: set[tuple[object, ...]] = set()

    def run(self, schedule: Schedule) -> Report:
        report = self.report
        try:
            for step in schedule.steps:
                self.step(FLATTEN + step.rules, step.rounds)
        except _Limit as limit:
            report.stop = limit.stop
        self.graph.rebuild()
        report.nodes, report.total_seconds = self.graph.size, perf_counter() - self.start
        if report.stop is not Stop.saturated:
            _log.warning("rewriting ended early, so better forms may be missed: %s", report)
        return report

    def step(self, rules: RuleSet, rounds: int | None) -> None:
        """Run rules; None rounds: until nothing changes, which the round limit may prevent."""
        within: list[set[int]] | None = None
        for _ in range(self.limits.rounds if rounds is None else rounds):
            self.graph.rebuild()
            self.graph.touched.clear()
            found = [match for rule in rules for match in self.search(rule, within)]
            for match in found:
                self.apply(match)
            self.graph.rebuild()
            self.report.rounds += 1
            if not self.graph.touched:
                return
            within = self.changed(max(depth(rule.left) for rule in rules))
        if rounds is None:
            raise _Limit(Stop.rounds)

    def changed(self, levels: int) -> list[set[int]]:
        """The classes that changed, then those that also have such ones one level below, …"""
        graph = self.graph
        within = [{graph.find(number) for number in graph.touched}]
        for _ in range(levels):
            above = {graph.find(user) for number in within[-1] for user in graph.users(number)}
            within.append(within[-1] | above)
        return within

    def search(self, rule: Rule, within: list[set[int]] | None) -> Iterator[_Match]:
        """The new matches of a rule; only where something changed that it could see."""
        start = perf_counter()
        places = None if within is None else within[depth(rule.left)]
        for number in self.graph.having(rule.left.op):
            self.check_time()
            if places is None or self.graph.find(number) in places:
                for found, given in matches(self.graph, rule.left, number):
                    key = signature(self.graph, rule, number, given)
                    if key not in self.seen:
                        self.seen.add(key)
                        yield _Match(rule, found, number, given)
        self.report.seconds[rule.name] += perf_counter() - start

    def apply(self, match: _Match) -> None:
        start, rule = perf_counter(), match.rule
        self.check_time()
        self.report.matched[rule.name] += 1
        result = self.result(match)
        if isinstance(result, Declined):
            refusal = Refusal(rule, match.given, match.at, result.reason)
            self.report.declined.append(refusal)
        else:
            self.equate(match, result)
        self.report.seconds[rule.name] += perf_counter() - start
        if self.graph.size > self.limits.nodes:
            raise _Limit(Stop.nodes)

    def result(self, match: _Match) -> Term | Declined:
        rule, graph = match.rule, self.graph
        given = handles(graph, rule, match.given)
        try:
            holds = rule.holds(given, graph.known_of)
            if isinstance(holds, Declined) or not holds:
                return holds or Declined(rule.reason)
            return rule.apply(given, graph.known_of) or Declined("its right side declined")
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            term = graph.term(enter(graph, match.found))
            raise RuleFailed(
                where=rule.where, rule=rule.name, problem=problem, term=term
            ) from error

    def equate(self, match: _Match, result: Term) -> None:
        graph, report = self.graph, self.report
        before, after = enter(graph, match.found), graph.add(result)
        firing = Firing(match.rule, match.given, before, after, report.rounds)
        if graph.union(before, after, firing):
            report.fired.append(firing)

    def check_time(self) -> None:
        if perf_counter() - self.start > self.limits.seconds:
            raise _Limit(Stop.time)
