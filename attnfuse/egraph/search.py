"""A whole search: saturate with some rules, then extract with some cost. A value, to be varied."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attnfuse.egraph.costs import Cost
from attnfuse.egraph.engine import EGraph
from attnfuse.egraph.extract import Extraction, Judge, extract
from attnfuse.egraph.facts import Fact, Promises
from attnfuse.egraph.ruleset import RuleSet
from attnfuse.egraph.saturate import Limits, Report, saturate
from attnfuse.errors import NothingToExtract
from attnfuse.ir.term import Term


@dataclass(frozen=True)
class Search:
    """What to look for.

    Attributes:
        roots: the terms that the program computes.
        rules: the rewrite rules.
        cost: what an e-node costs.
        facts: what to know of each e-class.
        promises: what is promised of input tensors.
        limits: what saturation may use.
        count: how many candidates are wanted.
        judge: looks at whole candidates; see `extract`.
        budget: how many sets of classes extraction may look at.
    """

    roots: tuple[Term, ...]
    rules: RuleSet
    cost: Cost
    facts: tuple[Fact, ...] = ()
    promises: Promises | None = None
    limits: Limits | None = None
    count: int = 1
    judge: Judge | None = None
    budget: int = 20_000

    def run(self) -> Found:
        """Do it.

        Raises:
            RuleFailed: when a rule's function raises an error.
            UnequalFacts: when a rule equates what can't be equal.
            NothingToExtract: when no program can be used.
        """
        graph = EGraph(self.facts, self.promises)
        roots = [graph.add(root) for root in self.roots]
        report = saturate(graph, self.rules, self.limits)
        extraction = extract(
            graph, roots, self.cost, count=self.count, judge=self.judge, budget=self.budget
        )
        return Found(self, graph, roots, report, extraction)

    def worth(self, names: tuple[str, ...]) -> dict[str, float | None]:
        """By how much the best candidate gets worse without each of the rules called so.

        None where no program can be used without it.
        """
        best = self.run().extraction.best.judged
        return {name: self._loss(name, best) for name in names}

    def _loss(self, name: str, best: float) -> float | None:
        try:
            found = replace(self, rules=self.rules.without(name)).run()
        except NothingToExtract:
            return None
        return found.extraction.best.judged - best


@dataclass(frozen=True)
class Found:
    """What a search found: the e-graph, the e-nodes of the roots, what the rules did, the best."""

    search: Search
    graph: EGraph
    roots: list[int]
    report: Report
    extraction: Extraction
