"""The cheapest choices of one e-node for each e-class that is needed, exactly.

Dynamic programming over sets of classes that are still to be chosen for.
Classes are chosen for from the roots down, users before their operands; so
what a choice costs from there on depends only on that set, not on how it came
about. A set falls into parts that need nothing in common, which are solved
by themselves. So the work grows with how much is shared at one place, and not
with the size of the e-graph.

That sharing pays only when all users choose it is what greedy and tree costs
get wrong: they look at each class alone.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import product

from attnfuse.egraph.costs import Option, Options, Table, below, bits, union


class OutOfBudget(Exception):
    """The search met more sets of classes than it was allowed to."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A choice for one class, if any, and solutions for what is needed then."""

    cost: float
    place: int
    option: Option | None
    rest: tuple[Solution, ...]

    def choice(self) -> dict[int, Option]:
        """The option of each class."""
        found: dict[int, Option] = {}
        todo: list[Solution] = [self]
        for solution in todo:  # grows while it is walked
            if solution.option is not None:
                found[solution.place] = solution.option
            todo.extend(solution.rest)
        return found


Taken = tuple[tuple[int, Option], ...]
"""Choices that may matter later: those in cycles of classes that are not done with."""


class Best:
    """Finds the ``count`` cheapest choices for the roots of a table.

    Raises:
        OutOfBudget: when it would have to look at more sets of classes than ``budget``.
    """

    def __init__(self, table: Table, count: int, budget: int) -> None:
        self.table, self.count, self.budget = table, count, budget
        self.options: Options = {
            place: options
            for place, options in enumerate(table.reduced)
            if not table.free >> place & 1
        }
        inside = below(self.options)
        self.reach = {place: inside[place] | 1 << place for place in inside}
        self.rank = {place: reach.bit_count() for place, reach in self.reach.items()}
        self.cyclic = {place for place in inside if inside[place] >> place & 1}
        self.solved: dict[tuple[int, Taken], list[Solution]] = {}

    @property
    def explored(self) -> int:
        """How many sets of classes it has looked at."""
        return len(self.solved)

    def choices(self) -> list[dict[int, Option]]:
        """The cheapest choices, cheapest first; fewer than asked for where there are no more."""
        roots = union(1 << root for root in self.table.roots) & ~self.table.free
        free = {place: self.table.options[place][0] for place in bits(self.table.free)}
        return [free | solution.choice() for solution in self.solve(roots, ())]

    def solve(self, pending: int, taken: Taken) -> list[Solution]:
        """The cheapest solutions for some classes together."""
        key = (pending, taken)
        if key not in self.solved:
            if len(self.solved) >= self.budget:
                raise OutOfBudget
            parts = self.parts(pending)
            one = len(parts) == 1
            found = self.branch(pending, taken) if one else self.combine(parts, taken)
            self.solved[key] = found
        return self.solved[key]

    def parts(self, pending: int) -> list[int]:
        """The classes in groups, such that different groups need nothing in common."""
        groups: list[tuple[int, int]] = []
        for place in bits(pending):
            members, reach = 1 << place, self.reach[place]
            apart: list[tuple[int, int]] = []
            for others, reached in groups:
                if reached & reach:
                    members, reach = members | others, reach | reached
                else:
                    apart.append((others, reached))
            groups = [*apart, (members, reach)]
        return [members for members, _ in groups]

    def combine(self, parts: list[int], taken: Taken) -> list[Solution]:
        """The cheapest combinations of solutions of the parts."""
        solved = [self.solve(part, self.relevant(part, taken)) for part in parts]
        found = [Solution(0.0, -1, None, ())]
        for solutions in solved:
            sums = (
                Solution(one.cost + other.cost, -1, None, (one, other))
                for one, other in product(found, solutions)
            )
            found = heapq.nsmallest(self.count, sums, key=lambda each: each.cost)
        return found

    def branch(self, pending: int, taken: Taken) -> list[Solution]:
        """Try all options of the topmost class; nothing that is chosen for later can need it."""
        place = max(bits(pending), key=self.rank.__getitem__)
        done = union(1 << at for at, _ in taken)
        found: list[Solution] = []
        for option in self.options[place]:
            if place in self.cyclic and leads_back(option.needs, place, dict(taken)):
                continue
            now = (*taken, (place, option)) if place in self.cyclic else taken
            rest = (pending & ~(1 << place)) | (option.needs & ~done)
            found += [
                Solution(option.cost + each.cost, place, option, (each,))
                for each in self.solve(rest, self.relevant(rest, now))
            ]
        return heapq.nsmallest(self.count, found, key=lambda each: each.cost)

    def relevant(self, pending: int, taken: Taken) -> Taken:
        """The choices for classes that pending ones can still lead back to."""
        if not taken:
            return ()
        reach = union(self.reach[place] for place in bits(pending))
        return tuple(each for each in taken if reach >> each[0] & 1)


def leads_back(needs: int, place: int, taken: dict[int, Option]) -> bool:
    """Whether the choices that are made already lead from `needs` to `place`."""
    seen, todo = 0, needs
    while todo:
        at = todo.bit_length() - 1
        todo &= ~(1 << at)
        seen |= 1 << at
        if at == place:
            return True
        if at in taken:
            todo |= taken[at].needs & ~seen
    return False
