"""The table that extraction works on: what each e-node costs, which operands it needs, and bounds.

E-classes are numbered anew, from 0, and sets of them are Python integers used
as bit sets: unions of sets are what extraction spends its time on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from attnfuse.egraph.engine import EGraph
from attnfuse.egraph.facts import Choice

Cost = Callable[[Choice], float | None]
"""What an e-node costs by itself, operands not counted; None or infinity if it can't be used.
It depends on the e-node and on what is known of it and its operands; never negative."""


@dataclass(frozen=True, slots=True)
class Option:
    """One e-node of a class: its number, its own cost, and the set of the classes it needs."""

    node: int
    cost: float
    needs: int


def bits(classes: int) -> Iterator[int]:
    """The members of a set of classes."""
    while classes:
        low = classes & -classes
        yield low.bit_length() - 1
        classes ^= low


class Table:
    """Options by class, cheapest first, for all classes that roots may need.

    Attributes:
        places: the number here of each e-class.
        options: the usable e-nodes of each class.
        least: the cheapest option's own cost.
        must: the classes that any choice for a class needs, itself among them.
        below: the classes that some choice for a class needs, by way of any others.
    """

    def __init__(self, graph: EGraph, roots: Sequence[int], cost: Cost) -> None:
        self.places: dict[int, int] = {}
        self.options: list[list[Option]] = []
        self._collect(graph, roots, cost)
        self.least = [options[0].cost if options else math.inf for options in self.options]
        self.below = self._fixpoint(0, lambda sets: _union(sets))
        self.must = self._fixpoint((1 << len(self.options)) - 1, lambda sets: _meet(sets))

    def needed(self, classes: int, already: int) -> float:
        """At least this is still to be paid for a set of classes and what they must have."""
        must = 0
        for place in bits(classes):
            must |= self.must[place]
        return sum(self.least[place] for place in bits(must & ~already))

    def _collect(self, graph: EGraph, roots: Sequence[int], cost: Cost) -> None:
        todo = list(dict.fromkeys(map(graph.find, roots)))
        self.places.update((number, place) for place, number in enumerate(todo))
        for number in todo:  # grows while it is walked
            options: list[Option] = []
            for node in graph.members(number):
                own = cost(graph.choice(node))
                if own is None or math.isinf(own):
                    continue
                needs = 0
                for operand in map(graph.find, graph.node(node).operands):
                    if operand not in self.places:
                        self.places[operand] = len(todo)
                        todo.append(operand)
                    needs |= 1 << self.places[operand]
                options.append(Option(node, own, needs))
            self.options.append(sorted(options, key=lambda option: option.cost))

    def _fixpoint(self, start: int, combine: Callable[[list[int]], int]) -> list[int]:
        """For each class a set of classes, made of the sets of what its options need."""
        sets = [start] * len(self.options)
        changed = True
        while changed:
            changed = False
            for place in reversed(range(len(sets))):
                found = combine([self._reached(option, sets) for option in self.options[place]])
                found |= 1 << place
                changed |= found != sets[place]
                sets[place] = found
        return sets

    def _reached(self, option: Option, sets: list[int]) -> int:
        reached = 0
        for place in bits(option.needs):
            reached |= sets[place]
        return reached


def _union(sets: list[int]) -> int:
    union = 0
    for each in sets:
        union |= each
    return union


def _meet(sets: list[int]) -> int:
    if not sets:
        return 0
    meet = sets[0]
    for each in sets[1:]:
        meet &= each
    return meet
