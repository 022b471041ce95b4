"""Rule sets and schedules: which rules run, and in what order. Both are plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from attnfuse.egraph.rule import Rule
from attnfuse.errors import RuleClash, UnknownRule


@dataclass(frozen=True)
class RuleSet:
    """Rules in a fixed order, each name once.

    Raises:
        RuleClash: naming both definitions, when two rules have one name.
    """

    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        seen: dict[str, Rule] = {}
        for rule in self.rules:
            other = seen.setdefault(rule.name, rule)
            if other is not rule:
                raise RuleClash(rule=rule.name, one=_party(other), other=_party(rule))

    def __add__(self, other: RuleSet) -> RuleSet:
        """The rules of both, in this order; a rule that is in both comes once."""
        return RuleSet(tuple(dict.fromkeys(self.rules + other.rules)))

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __getitem__(self, name: str) -> Rule:
        """The rule called ``name``; UnknownRule where there is none."""
        for rule in self.rules:
            if rule.name == name:
                return rule
        raise UnknownRule(name=name, known=", ".join(rule.name for rule in self.rules))

    def without(self, *names: str) -> RuleSet:
        """All but the rules called so; UnknownRule where there is no such rule."""
        dropped = {self[name] for name in names}
        return RuleSet(tuple(rule for rule in self.rules if rule not in dropped))

    def only(self, names: Iterable[str]) -> RuleSet:
        """The rules called so, in the order of the names."""
        return RuleSet(tuple(self[name] for name in names))

    def saturate(self) -> Schedule:
        """Run all rules round by round, until nothing changes."""
        return Schedule((Step(self, None),))

    def rounds(self, count: int) -> Schedule:
        """Run all rules, at most ``count`` rounds."""
        return Schedule((Step(self, count),))


def _party(rule: Rule) -> str:
    return f"{rule.module} ({rule.where})"


@dataclass(frozen=True)
class Step:
    """Some rules, for a number of rounds, or (None) until nothing changes."""

    rules: RuleSet
    rounds: int | None


@dataclass(frozen=True)
class Schedule:
    """Steps that are run one after another: ``a.saturate() + b.rounds(1) * 3``."""

    steps: tuple[Step, ...]

    def __add__(self, other: Schedule) -> Schedule:
        return Schedule(self.steps + other.steps)

    def __mul__(self, times: int) -> Schedule:
        return Schedule(self.steps * times)
