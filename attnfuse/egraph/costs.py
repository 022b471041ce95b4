"""The table that extraction works on: what each e-node costs, and which classes it needs.

E-classes are numbered anew, from 0, and sets of them are Python integers used
as bit sets: unions of sets are what extraction spends its time on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from attnfuse.egraph.engine import EGraph
from attnfuse.egraph.facts import Choice

Cost = Callable[[Choice], float | None]
"""What an e-node costs by itself, operands not counted; None or infinity if it can't be used.
It depends on the e-node and on what is known of it and its operands; never negative."""


@dataclass(frozen=True, slots=True)
class Option:
    """One e-node of a class: its number, its own cost, and the classes it needs.

    These are given twice: as a set, and one by one.
    """

    node: int
    cost: float
    needs: int
    places: tuple[int, ...]


def option(node: int, cost: float, places: Iterable[int]) -> Option:
    """An e-node that needs these classes."""
    once = tuple(dict.fromkeys(places))
    return Option(node, cost, union(1 << place for place in once), once)


def bits(classes: int) -> Iterator[int]:
    """The members of a set of classes."""
    while classes:
        low = classes & -classes
        yield low.bit_length() - 1
        classes ^= low


def union(sets: Iterable[int]) -> int:
    """All that is in one of the sets."""
    found = 0
    for each in sets:
        found |= each
    return found


class Table:
    """The usable e-nodes of all classes that roots may need.

    Attributes:
        places: the number here of each e-class.
        roots: the numbers here of the roots.
        options: the usable e-nodes of each class, cheapest first.
        free: the classes that there is nothing to decide about: they have one option, which needs
            only such classes, and it costs nothing, or every program needs it.
        reduced: the options, as far as they need classes that are not free.
    """

    def __init__(self, graph: EGraph, roots: Sequence[int], cost: Cost) -> None:
        self.places: dict[int, int] = {}
        self.options: list[list[Option]] = []
        self._collect(graph, roots, cost)
        self.roots = [self.places[graph.find(root)] for root in roots]
        self._must = must(dict(enumerate(self.options)))
        self._wanted = union(self._must[root] for root in self.roots)
        self.free = self._free()
        self.reduced = [list(map(self._reduced, options)) for options in self.options]

    def prune(self, bound: float) -> bool:
        """Drop the options that no program cheaper than ``bound`` can have; whether there are any.

        What an option needs in any case, and what the roots need, costs at least its cheapest.
        """
        least = [options[0].cost if options else math.inf for options in self.options]

        def too_dear(place: int, given: Option) -> bool:
            others = self._wanted | union(self._must[other] for other in given.places)
            others &= ~(1 << place)
            # a hair below, so that rounding never drops an equal one
            return (given.cost + sum(least[at] for at in bits(others))) * (1 - 1e-12) > bound

        before = sum(map(len, self.reduced))
        for place, options in enumerate(self.options):
            kept = (each for each in options if not too_dear(place, each))
            self.reduced[place] = list(map(self._reduced, kept))
        return sum(map(len, self.reduced)) < before

    def _reduced(self, given: Option) -> Option:
        kept = (place for place in given.places if not self.free >> place & 1)
        return option(given.node, given.cost, kept)

    def _collect(self, graph: EGraph, roots: Sequence[int], cost: Cost) -> None:
        todo = list(dict.fromkeys(map(graph.find, roots)))
        self.places.update((number, place) for place, number in enumerate(todo))
        for number in todo:  # grows while it is walked
            options: list[Option] = []
            for node in graph.members(number):
                own = cost(graph.choice(node))
                if own is None or math.isinf(own):
                    continue
                operands = list(map(graph.find, graph.node(node).operands))
                for operand in operands:
                    if operand not in self.places:
                        self.places[operand] = len(todo)
                        todo.append(operand)
                options.append(option(node, own, map(self.places.__getitem__, operands)))
            self.options.append(sorted(options, key=lambda each: each.cost))

    def _free(self) -> int:
        free, changed = 0, True
        while changed:
            changed = False
            for place, options in reversed(list(enumerate(self.options))):
                if free >> place & 1 or len(options) != 1 or options[0].needs & ~free:
                    continue
                if options[0].cost == 0 or self._wanted >> place & 1:
                    free |= 1 << place
                    changed = True
        return free


Options = dict[int, list[Option]]
"""The options of some classes; they need no others than these."""


def must(options: Options) -> dict[int, int]:
    """For each class the set of those that any choice for it needs, itself among them."""
    everything = union(1 << place for place in options)

    def meet(place: int, sets: dict[int, int]) -> int:
        met = everything if options[place] else 0
        for each in options[place]:
            met &= union(sets[other] for other in each.places)
        return met | 1 << place

    return _fixpoint(options, everything, meet)


def below(options: Options) -> dict[int, int]:
    """For each class the set of those that some choice for it, and for these, may need."""

    def reach(place: int, sets: dict[int, int]) -> int:
        return union(sets[o] | 1 << o for each in options[place] for o in each.places)

    return _fixpoint(options, 0, reach)


def _fixpoint(
    options: Options, start: int, combine: Callable[[int, dict[int, int]], int]
) -> dict[int, int]:
    sets = dict.fromkeys(options, start)
    order = _operands_first(options)
    changed = True
    while changed:  # once more than needed, and oftener only where classes need each other
        changed = False
        for place in order:
            found = combine(place, sets)
            changed |= found != sets[place]
            sets[place] = found
    return sets


def _operands_first(options: Options) -> list[int]:
    """All classes, as far as possible after those that they need."""
    order: dict[int, None] = {}
    entered: set[int] = set()
    todo = list(reversed(options))
    while todo:
        place = todo[-1]
        if place not in entered:
            entered.add(place)
            needs = (other for each in options[place] for other in each.places)
            todo += [other for other in needs if other not in entered]
        else:
            order[todo.pop()] = None
    return list(order)
