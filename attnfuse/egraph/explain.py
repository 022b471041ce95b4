"""Explanations of a search: which rules fired or declined, what came of it, and its worth."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from attnfuse.egraph.derivation import Derivation, derive, enter_candidate
from attnfuse.egraph.extract import Candidate
from attnfuse.egraph.search import Found


@dataclass(frozen=True)
class Activity:
    """What one rule did: how often its left side matched, how often it changed something."""

    rule: str
    algebra: str
    exact: str
    matched: int
    fired: int
    declined: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        text = f"{self.rule}: fired {self.fired} of {self.matched} [{self.exact}]  {self.algebra}"
        return "\n".join([text, *(f"  declined {n}×: {why}" for why, n in self.declined)])


@dataclass(frozen=True)
class Alternative:
    """One candidate with the derivation of each root."""

    candidate: Candidate
    derivations: tuple[Derivation, ...]

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that lead to it."""
        return tuple(dict.fromkeys(name for each in self.derivations for name in each.rules))


@dataclass(frozen=True)
class Explanation:
    """All that can be said about a search.

    Attributes:
        summary: why saturation ended and whether the best candidate is proved to be the best.
        activities: what each rule did that matched at all.
        alternatives: the candidates, best first.
        worth: by how much the best gets worse without a rule that led to it; None where nothing
            could be used without it. Empty unless asked for.
    """

    summary: str
    activities: tuple[Activity, ...]
    alternatives: tuple[Alternative, ...]
    worth: dict[str, float | None]

    def __str__(self) -> str:
        lines = [self.summary, "", *map(str, self.activities)]
        for place, each in enumerate(self.alternatives, 1):
            by = ", ".join(each.rules) or "no rule"
            lines += ["", f"#{place}: cost {each.candidate.judged:g}, by {by}"]
            lines += map(str, each.derivations)
        if self.worth:
            lines.append("")
        for name, loss in self.worth.items():
            lines.append(f"without {name}: {'nothing' if loss is None else f'{loss:+g}'}")
        return "\n".join(lines)

    def data(self) -> dict[str, Any]:
        """The explanation as plain values, for JSON."""
        return {
            "summary": self.summary,
            "rules": [
                {
                    "name": each.rule,
                    "algebra": each.algebra,
                    "exact": each.exact,
                    "matched": each.matched,
                    "fired": each.fired,
                    "declined": [{"reason": why, "times": n} for why, n in each.declined],
                }
                for each in self.activities
            ],
            "alternatives": [
                {
                    "cost": each.candidate.judged,
                    "rules": list(each.rules),
                    "derivations": [derivation.data() for derivation in each.derivations],
                }
                for each in self.alternatives
            ],
            "worth": self.worth,
        }


def explain(found: Found, *, worth: bool = False) -> Explanation:
    """Explain a search.

    Args:
        found: what it found. Its e-graph gains the e-nodes of the candidates' terms.
        worth: also search once without each rule that led to the best candidate.
    """
    alternatives = tuple(_alternative(found, each) for each in found.extraction.candidates)
    known = {rule.name for rule in found.search.rules}
    used = tuple(name for name in alternatives[0].rules if name in known)
    losses = found.search.worth(used) if worth else {}
    return Explanation(_summary(found), _activities(found), alternatives, losses)


def _alternative(found: Found, candidate: Candidate) -> Alternative:
    ends = enter_candidate(found.graph, found.roots, candidate)
    pairs = zip(found.roots, ends, strict=True)
    return Alternative(candidate, tuple(derive(found.graph, root, end) for root, end in pairs))


def _summary(found: Found) -> str:
    report, extraction = found.report, found.extraction
    proved = "proved best" if extraction.proved else "not proved best: the search was cut short"
    return (
        f"{report.stop} after {report.rounds} rounds with {report.nodes} e-nodes; "
        f"{proved}, after {extraction.explored} sets of classes; {extraction.rejected} rejected"
    )


def _activities(found: Found) -> tuple[Activity, ...]:
    report = found.report
    fired = Counter(firing.rule.name for firing in report.fired)
    reasons: dict[str, Counter[str]] = {}
    for refusal in report.declined:
        reasons.setdefault(refusal.rule.name, Counter())[refusal.reason] += 1
    return tuple(
        Activity(
            rule.name,
            rule.algebra,
            rule.exact,
            report.matched[rule.name],
            fired[rule.name],
            tuple(reasons.get(rule.name, Counter()).items()),
        )
        for rule in found.search.rules
        if report.matched[rule.name]
    )
