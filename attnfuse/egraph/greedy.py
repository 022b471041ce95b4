"""Greedy extraction: each class takes what is cheapest by itself, from the leaves up.

Knuth, "A generalization of Dijkstra's algorithm" (1977): classes are settled
in the order of their cost, so a choice never leads back to itself. By `tree`
shared operands count once for each user; else once, but whether sharing pays
is still seen by each class alone, and so can be missed.
"""

from __future__ import annotations

import heapq

from attnfuse.egraph.costs import Option, Options, bits, union


def greedy(options: Options, *, tree: bool = False) -> dict[int, Option]:
    """The option that each class takes; classes without any usable form are left out."""
    return _Greedy(options, tree).run()


class _Greedy:
    def __init__(self, options: Options, tree: bool) -> None:
        self.options, self.tree = options, tree
        self.taken: dict[int, Option] = {}
        self.costs: dict[int, float] = {}
        self.sets: dict[int, int] = {}
        self.heap: list[tuple[float, int, int]] = []
        self.missing: dict[tuple[int, int], int] = {}
        self.users: dict[int, list[tuple[int, int]]] = {}

    def run(self) -> dict[int, Option]:
        for place, options in self.options.items():
            for number, option in enumerate(options):
                self.missing[place, number] = option.needs
                for other in option.places:
                    self.users.setdefault(other, []).append((place, number))
                if not option.needs:
                    self.offer(place, number)
        while self.heap:
            cost, place, number = heapq.heappop(self.heap)
            if place not in self.taken:
                self.settle(place, self.options[place][number], cost)
        return self.taken

    def settle(self, place: int, option: Option, cost: float) -> None:
        self.taken[place], self.costs[place] = option, cost
        self.sets[place] = self.below(option) | 1 << place
        for user, number in self.users.get(place, ()):
            self.missing[user, number] &= ~(1 << place)
            if not self.missing[user, number] and user not in self.taken:
                self.offer(user, number)

    def offer(self, place: int, number: int) -> None:
        option = self.options[place][number]
        if self.tree:
            below = sum(self.costs[other] for other in option.places)
        else:
            below = sum(self.taken[other].cost for other in bits(self.below(option)))
        heapq.heappush(self.heap, (option.cost + below, place, number))

    def below(self, option: Option) -> int:
        return union(self.sets[other] for other in option.places)
