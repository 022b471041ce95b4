"""Extraction: the cheapest programs in an e-graph, exactly, with shared work counted once.

Branch and bound over one choice for each e-class that is needed. Greedy and
tree costs are wrong on shared work, since sharing pays only when all users
choose it; so they serve as the first bound, and as the answer when the search
runs out of its budget. Whether the result is proved best is always said.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from attnfuse.egraph.costs import Cost, Option, Table, bits
from attnfuse.egraph.engine import EGraph
from attnfuse.egraph.greedy import greedy, needed, total
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
        explored: how many states the search went through.
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
    budget: int = 100_000,
) -> Extraction:
    """The ``count`` cheapest programs for several roots together.

    Args:
        graph: an e-graph, rebuilt.
        roots: e-nodes whose values the program computes.
        cost: what an e-node costs.
        count: how many candidates are wanted.
        judge: rejects candidates, which others then replace, or gives the cost to rank them by.
        budget: how many states to search before the greedy answer has to do.

    Raises:
        NothingToExtract: when no program can be used.
    """
    table = Table(graph, roots, cost)
    search = _Search(graph, roots, table, count, judge, budget)
    return search.run()


def extract_greedy(
    graph: EGraph, roots: Sequence[int], cost: Cost, *, tree: bool = False
) -> Candidate:
    """A cheap program, found without search; `extract` says how much it misses.

    Raises:
        NothingToExtract: when no program can be used.
    """
    table = Table(graph, roots, cost)
    return _Builder(graph, roots, table).candidate(_greedy(graph, roots, table, tree))


def _greedy(
    graph: EGraph, roots: Sequence[int], table: Table, tree: bool = False
) -> dict[int, Option]:
    choice = greedy(table, tree=tree)
    for root in roots:
        if table.places[graph.find(root)] not in choice:
            problem = "each of its forms has a part of infinite cost"
            raise NothingToExtract(problem=problem, term=graph.term(root))
    return choice


class _Builder:
    """Makes candidates of choices. What different candidates share is built once."""

    def __init__(self, graph: EGraph, roots: Sequence[int], table: Table) -> None:
        self.graph, self.table = graph, table
        self.roots = [table.places[graph.find(root)] for root in roots]
        self.built: dict[tuple[int, tuple[Term, ...]], Term] = {}
        self.classes = list(table.places)

    def candidate(self, choice: dict[int, Option]) -> Candidate:
        cost = total(choice, self.roots)
        terms: dict[int, Term] = {}
        roots = tuple(self.term(choice, place, terms) for place in self.roots)
        nodes = {self.classes[place]: choice[place].node for place in needed(choice, self.roots)}
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


class _OutOfBudget(Exception):
    pass


class _Search:
    def __init__(
        self,
        graph: EGraph,
        roots: Sequence[int],
        table: Table,
        count: int,
        judge: Judge | None,
        budget: int,
    ) -> None:
        self.table, self.count, self.judge, self.budget = table, count, judge, budget
        self.builder = _Builder(graph, roots, table)
        self.fallback = self.builder.candidate(_greedy(graph, roots, table))
        self.problem = graph.term(roots[0])
        self.taken: dict[int, Option] = {}
        self.found: list[Candidate] = []
        self.costs: dict[tuple[Term, ...], float] = {}
        self.rejected: set[tuple[Term, ...]] = set()
        self.explored = 0

    def run(self) -> Extraction:
        self.consider(self.fallback)
        pending = 0
        for root in self.builder.roots:
            pending |= 1 << root
        try:
            self.explore(0, pending, 0.0)
        except _OutOfBudget:
            proved = False
        else:
            proved = True
        if not self.found:
            problem = f"the judge rejected all {len(self.rejected)} candidates"
            raise NothingToExtract(problem=problem, term=self.problem)
        ranked = tuple(sorted(self.found, key=lambda candidate: candidate.judged))
        return Extraction(ranked, proved, self.explored, len(self.rejected))

    @property
    def worst(self) -> float:
        """What a candidate must cost less than in order to matter."""
        if len(self.found) < self.count:
            return math.inf
        return self.found[-1].cost

    def consider(self, candidate: Candidate) -> None:
        """Keep a candidate if it is among the best; of equal terms, the cheapest choice counts."""
        if candidate.cost >= min(self.worst, self.costs.get(candidate.terms, math.inf)):
            return
        self.costs[candidate.terms] = candidate.cost
        self.found = [each for each in self.found if each.terms != candidate.terms]
        judged = candidate.cost if self.judge is None else self.judge(candidate)
        if judged is None:
            self.rejected.add(candidate.terms)
            return
        insort(self.found, replace(candidate, judged=judged), key=lambda each: each.cost)
        del self.found[self.count :]

    def explore(self, done: int, pending: int, cost: float) -> None:
        """Try all choices for the pending classes; `done` are the classes that have one."""
        self.explored += 1
        if self.explored > self.budget:
            raise _OutOfBudget
        if not pending:
            self.consider(self.builder.candidate(self.taken))
            return
        # a hair below, so that rounding never hides an equal candidate behind a cheaper bound
        if (cost + self.table.needed(pending, done)) * (1 - 1e-12) >= self.worst:
            return
        place = self.next(pending)
        done, rest = done | 1 << place, pending & ~(1 << place)
        for option in self.table.options[place]:
            if self.leads_back(option.needs, place):
                continue
            self.taken[place] = option
            self.explore(done, rest | (option.needs & ~done), cost + option.cost)
            del self.taken[place]

    def next(self, pending: int) -> int:
        """A class without a choice to make if there is one, else the one that hangs on the most."""
        options, below = self.table.options, self.table.below
        return max(bits(pending), key=lambda at: (len(options[at]) == 1, below[at].bit_count()))

    def leads_back(self, needs: int, place: int) -> bool:
        """Whether the choices that are made already lead from `needs` to `place`."""
        seen, todo = 0, needs
        while todo:
            at = todo.bit_length() - 1
            todo &= ~(1 << at)
            seen |= 1 << at
            if at == place:
                return True
            if self.table.below[at] >> place & 1 and at in self.taken:
                todo |= self.taken[at].needs & ~seen
        return False
