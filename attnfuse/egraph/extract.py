"""Extraction: the cheapest programs in an e-graph, exactly, with shared work counted once.

`best` finds the cheapest choices; here they become terms, which are compared,
shown to the caller's judge, and ranked. When the search runs out of its
budget, the greedy answer serves as a bound for a second try, and else as the
answer; whether the result is proved best is always said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from attnfuse.egraph.best import Best, OutOfBudget
from attnfuse.egraph.costs import Cost, Option, Table
from attnfuse.egraph.engine import EGraph
from attnfuse.egraph.greedy import greedy
from attnfuse.errors import NothingToExtract
from attnfuse.ir.normal import construct
from attnfuse.ir.term import Term


@dataclass(frozen=True)
class Candidate:
    """One program that an e-graph holds.

    Attributes:
        cost: the sum of its e-nodes' own costs.
        terms: the roots, in normal form.
        nodes: the e-node that each e-class takes.
        judged: the cost by which candidates are ranked at last; `cost` unless a judge says another.
    """

    cost: float
    terms: tuple[Term, ...]
    nodes: Mapping[int, int]
    judged: float


Judge = Callable[[Candidate], float | None]
"""Looks at a whole candidate: the cost to rank it by, or None to reject it."""


@dataclass(frozen=True)
class Extraction:
    """The best candidates, best first.

    Attributes:
        candidates: at most as many as were asked for, no two with the same terms.
        proved: whether no program that the judge accepts has a lower cost (not judged cost) than
            the candidates, and fewer were found only because there are no more.
        explored: how many sets of classes the search looked at.
        rejected: how many candidates the judge rejected.
    """

    candidates: tuple[Candidate, ...]
    proved: bool
    explored: int
    rejected: int

    @property
    def best(self) -> Candidate:
        """The first of the candidates."""
        return self.candidates[0]


def extract(
    graph: EGraph,
    roots: Sequence[int],
    cost: Cost,
    *,
    count: int = 1,
    judge: Judge | None = None,
    budget: int = 20_000,
) -> Extraction:
    """The ``count`` cheapest programs for several roots together.

    Args:
        graph: an e-graph, rebuilt.
        roots: e-nodes whose values the program computes.
        cost: what an e-node costs.
        count: how many candidates are wanted.
        judge: rejects candidates, which others then replace, or gives the cost to rank them by.
        budget: how many sets of classes to look at before the greedy answer has to do.

    Raises:
        NothingToExtract: when no program can be used.
    """
    table = Table(graph, roots, cost)
    chosen = _Chosen(graph, roots, table, judge, count)
    try:
        return chosen.extraction(_consider_best(chosen, table, count, budget), proved=True)
    except OutOfBudget:
        bound = chosen.consider(_greedy(graph, roots, table))
    try:  # once more, when the greedy answer leaves less to look at
        if count == 1 and judge is None and table.prune(bound):
            return chosen.extraction(_consider_best(chosen, table, count, budget), proved=True)
    except OutOfBudget:
        pass
    return chosen.extraction(budget, proved=False)


def _consider_best(chosen: _Chosen, table: Table, count: int, budget: int) -> int:
    """Consider the cheapest choices, and more where terms are equal or rejected."""
    wanted, explored = count, 0
    while True:
        best = Best(table, wanted, budget)
        choices = best.choices()
        explored += best.explored
        for choice in choices:
            chosen.consider(choice)
        if len(chosen.found) >= count or len(choices) < wanted:
            return explored
        wanted *= 2


def extract_greedy(
    graph: EGraph, roots: Sequence[int], cost: Cost, *, tree: bool = False
) -> Candidate:
    """A cheap program, found without search; `extract` says how much it misses.

    Raises:
        NothingToExtract: when no program can be used.
    """
    table = Table(graph, roots, cost)
    return _Builder(graph, table).candidate(_greedy(graph, roots, table, tree))


def _greedy(
    graph: EGraph, roots: Sequence[int], table: Table, tree: bool = False
) -> dict[int, Option]:
    choice = greedy(dict(enumerate(table.options)), tree=tree)
    for root, place in zip(roots, table.roots, strict=True):
        if place not in choice:
            raise NothingToExtract(problem=_INFINITE, term=graph.term(root))
    return choice


_INFINITE = "each of its forms has a part of infinite cost"


class _Builder:
    """Makes candidates of choices. What different candidates share is built once."""

    def __init__(self, graph: EGraph, table: Table) -> None:
        self.graph, self.table = graph, table
        self.built: dict[tuple[int, tuple[Term, ...]], Term] = {}
        self.classes = list(table.places)

    def candidate(self, choice: dict[int, Option]) -> Candidate:
        terms: dict[int, Term] = {}
        roots = tuple(self.term(choice, place, terms) for place in self.table.roots)
        cost = sum(choice[place].cost for place in terms)
        nodes = {self.classes[place]: choice[place].node for place in terms}
        return Candidate(cost, roots, nodes, cost)

    def term(self, choice: dict[int, Option], place: int, terms: dict[int, Term]) -> Term:
        if place not in terms:
            op, attributes, operands = self.graph.node(choice[place].node)
            places = [self.table.places[self.graph.find(operand)] for operand in operands]
            below = tuple(self.term(choice, other, terms) for other in places)
            key = (choice[place].node, below)
            if key not in self.built:
                self.built[key] = construct(op, below, attributes)
            terms[place] = self.built[key]
        return terms[place]


class _Chosen:
    """The candidates that are kept: of equal terms the cheapest, and none that is rejected."""

    def __init__(
        self,
        graph: EGraph,
        roots: Sequence[int],
        table: Table,
        judge: Judge | None,
        count: int,
    ) -> None:
        self.builder = _Builder(graph, table)
        self.term = graph.term(roots[0])
        self.judge, self.count = judge, count
        self.found: dict[tuple[Term, ...], Candidate] = {}
        self.rejected: set[tuple[Term, ...]] = set()

    def consider(self, choice: dict[int, Option]) -> float:
        """Keep what these choices make, unless it is known or rejected; what it costs."""
        candidate = self.builder.candidate(choice)
        if candidate.terms in self.found or candidate.terms in self.rejected:
            return candidate.cost
        judged = candidate.cost if self.judge is None else self.judge(candidate)
        if judged is None:
            self.rejected.add(candidate.terms)
        else:
            self.found[candidate.terms] = replace(candidate, judged=judged)
        return candidate.cost

    def extraction(self, explored: int, *, proved: bool) -> Extraction:
        if not self.found:
            rejected = f"the judge rejected all {len(self.rejected)} candidates"
            problem = rejected if self.rejected else _INFINITE
            raise NothingToExtract(problem=problem, term=self.term)
        kept = sorted(self.found.values(), key=lambda each: each.cost)[: self.count]
        ranked = tuple(sorted(kept, key=lambda each: each.judged))
        return Extraction(ranked, proved, explored, len(self.rejected))
