from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from toy_graphs import LEAVES, Toy, toys, value

from attnfuse.egraph.engine import EGraph
from attnfuse.egraph.extract import Candidate, extract, extract_greedy
from attnfuse.egraph.facts import Choice
from attnfuse.errors import NothingToExtract
from attnfuse.ir.axes import DType
from attnfuse.ir.normal import construct
from attnfuse.ir.op import Op
from attnfuse.ir.ops import OPS
from attnfuse.ir.term import Term, make

X, Y, Z, W = LEAVES


class Prices:
    """A random but fixed cost for each op over the classes of its operands."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, choice: Choice) -> float:
        names = (choice.op.name, len(choice.operands), str(choice.attributes), self.seed)
        return sum(map(ord, "".join(map(str, names)))) * 7919 % 13


def _every_choice(
    graph: EGraph, pending: tuple[int, ...], taken: dict[int, int]
) -> Iterator[dict[int, int]]:
    if not pending:
        yield taken
        return
    first, *others = pending
    if first in taken:
        yield from _every_choice(graph, tuple(others), taken)
        return
    for node in graph.members(first):
        below = tuple(map(graph.find, graph.node(node).operands))
        yield from _every_choice(graph, (*others, *below), {**taken, first: node})


def _term(graph: EGraph, taken: dict[int, int], number: int, inside: frozenset[int]) -> Term | None:
    if number in inside:
        return None
    op, attributes, operands = graph.node(taken[number])
    below = [_term(graph, taken, graph.find(each), inside | {number}) for each in operands]
    real = [each for each in below if each is not None]
    return construct(op, real, attributes) if len(real) == len(below) else None


def _brute_force(graph: EGraph, roots: list[int], prices: Prices) -> dict[tuple[Term, ...], float]:
    found: dict[tuple[Term, ...], float] = {}
    places = [graph.find(root) for root in roots]
    for taken in islice(_every_choice(graph, tuple(places), {}), 3000):
        terms = [_term(graph, taken, place, frozenset()) for place in places]
        real = tuple(each for each in terms if each is not None)
        if len(real) == len(roots):
            cost = sum(prices(graph.choice(node)) for node in taken.values())
            found[real] = min(found.get(real, math.inf), cost)
    assume(len(found) < 3000)
    return found


@settings(deadline=None, max_examples=150)
@given(toys(most=5), st.integers(0, 50), st.integers(1, 5), st.integers(1, 2))
def test_k_best_equal_brute_force(toy: Toy, seed: int, count: int, roots: int) -> None:
    graph, prices = toy.graph(), Prices(seed)
    numbers = [graph.add(term) for term in toy.terms[:roots]]
    expected = sorted(_brute_force(graph, numbers, prices).values())
    found = extract(graph, numbers, prices, count=count)
    assert found.proved
    assert [each.cost for each in found.candidates] == expected[:count]
    assert len({each.terms for each in found.candidates}) == len(found.candidates)


@settings(deadline=None)
@given(toys(sound=True, most=8), st.integers(0, 50), st.booleans())
def test_what_is_extracted_has_the_same_value(toy: Toy, seed: int, tree: bool) -> None:
    graph, prices = toy.graph(), Prices(seed)
    root = graph.add(toy.terms[0])
    candidates = [*extract(graph, [root], prices, count=4).candidates]
    candidates.append(extract_greedy(graph, [root], prices, tree=tree))
    for candidate in candidates:
        assert value(candidate.terms[0]) == value(toy.terms[0])
    assert min(each.cost for each in candidates) == candidates[0].cost


# -- the cases of the study: sharing pays only when all users choose it ---------------------


def _op(name: str, arity: int) -> Op:
    return Op(name, arity, (), OPS["tanh"].infer, OPS["tanh"].meaning)


ROTATED, HOISTED, FUSED = _op("rotated", 1), _op("attention", 2), _op("attention_rotating", 2)


def _costs(rotation: float, fused: float, attention: float) -> dict[str, float]:
    return {"rotated": rotation, "attention": attention, "attention_rotating": attention + fused}


def _attention(graph: EGraph, query: Term, key: Term) -> int:
    """Attention over a rotated key, which is stored before, or rotated at each visit."""
    hoisted = graph.add(make(HOISTED, (query, make(ROTATED, (key,)))))
    graph.union(hoisted, graph.add(make(FUSED, (query, key))), "rotate at load")
    return hoisted


@pytest.mark.parametrize(
    ("rotation", "fused", "attention"), [(9.0, 7.0, 173.0), (150.0, 110.0, 5900.0)]
)
def test_two_attentions_share_one_rotated_key(
    rotation: float, fused: float, attention: float
) -> None:
    graph = EGraph()
    one, two = _attention(graph, X, Z), _attention(graph, Y, Z)
    root = graph.add(make(OPS["div"], (graph.handle(one), graph.handle(two))))
    graph.rebuild()
    prices = _costs(rotation, fused, attention)

    def price(choice: Choice) -> float:
        return prices.get(choice.op.name, 0.0)

    for tree in (True, False):
        assert extract_greedy(graph, [root], price, tree=tree).cost == 2 * (attention + fused)
    found = extract(graph, [root], price, count=3)
    assert found.proved
    assert found.best.cost == 2 * attention + rotation
    assert [each.cost for each in found.candidates] == sorted(
        [2 * attention + rotation, 2 * (attention + fused), 2 * attention + fused + rotation]
    )


@pytest.mark.parametrize(
    ("rotation", "fused", "attention"), [(8.1, 8.0, 99.9), (34.0, 32.0, 295.6)]
)
def test_a_rotated_key_that_is_also_an_output_is_used(
    rotation: float, fused: float, attention: float
) -> None:
    graph = EGraph()
    output = _attention(graph, X, Z)
    key = graph.add(make(ROTATED, (Z,)))
    graph.rebuild()
    prices = _costs(rotation, fused, attention)

    def price(choice: Choice) -> float:
        return prices.get(choice.op.name, 0.0)

    for tree in (True, False):
        greedy = extract_greedy(graph, [output, key], price, tree=tree)
        assert greedy.cost == pytest.approx(attention + fused + rotation)
    found = extract(graph, [output, key], price)
    assert found.proved
    assert found.best.cost == pytest.approx(attention + rotation)
    assert extract(graph, [output], price).best.cost == pytest.approx(attention + fused)


# -- limits, judges, nothing to find --------------------------------------------------------


def _choices(count: int) -> tuple[EGraph, int]:
    """`count` independent choices between two leaves each."""
    graph = EGraph()
    sides = [(make(OPS["tanh"], (x,)), make(OPS["exp"], (x,))) for x in LEAVES[:count]]
    for one, other in sides:
        graph.union(graph.add(one), graph.add(other), "given")
    root = graph.add(make(OPS["add"], [one for one, _ in sides]))
    graph.rebuild()
    return graph, root


def _count_tanh(choice: Choice) -> float:
    return 2.0 if choice.op.name == "tanh" else 1.0


def test_a_judge_ranks_and_rejects() -> None:
    graph, root = _choices(3)

    def judge(candidate: Candidate) -> float | None:
        dear = sum(operand.op.name == "tanh" for operand in candidate.terms[0].operands)
        return None if dear == 0 else -candidate.cost

    found = extract(graph, [root], _count_tanh, count=4, judge=judge)
    assert found.proved
    assert found.rejected == 1
    assert [each.cost for each in found.candidates] == [9.0, 8.0, 8.0, 8.0]
    assert [each.judged for each in found.candidates] == [-9.0, -8.0, -8.0, -8.0]


def test_a_judge_that_rejects_everything_is_told_so() -> None:
    graph, root = _choices(2)
    with pytest.raises(NothingToExtract, match="rejected all 4"):
        extract(graph, [root], _count_tanh, count=9, judge=lambda candidate: None)


def test_without_a_budget_the_greedy_answer_stands_and_is_not_called_proved() -> None:
    graph, root = _choices(4)
    found = extract(graph, [root], _count_tanh, count=3, budget=1)
    assert not found.proved
    assert found.best.cost == extract_greedy(graph, [root], _count_tanh).cost


def test_infinite_costs_are_avoided_or_reported() -> None:
    graph, root = _choices(2)
    only_exp = extract(graph, [root], lambda c: None if c.op.name == "tanh" else 1.0, count=9)
    assert len(only_exp.candidates) == 1
    with pytest.raises(NothingToExtract, match="infinite"):
        extract(graph, [root], lambda c: None if c.op.name in ("tanh", "exp") else 1.0)
    with pytest.raises(NothingToExtract, match="infinite"):
        extract_greedy(graph, [root], lambda c: math.inf)


def test_cycles_are_never_extracted() -> None:
    graph = EGraph()
    inner = make(OPS["tanh"], (X,))
    outer = make(OPS["exp"], (inner,))
    graph.union(graph.add(X), graph.add(outer), "given")
    graph.rebuild()
    price = {"input": 9.0, "tanh": 0.0, "exp": 0.0}
    found = extract(graph, [graph.add(inner)], lambda choice: price[choice.op.name], count=5)
    assert [str(each.terms[0]) for each in found.candidates] == ["tanh(x0)"]


@pytest.mark.parametrize("swapped", [False, True])
def test_classes_that_need_each_other_are_paid_once(swapped: bool) -> None:
    """x = tanh(y) and y = exp(x): one of them has to be a leaf, and both are needed."""
    graph = EGraph()
    graph.union(graph.add(X), graph.add(make(OPS["tanh"], (Y,))), "given")
    graph.union(graph.add(Y), graph.add(make(OPS["exp"], (X,))), "given")
    root = graph.add(make(OPS["div"], (Y, X) if swapped else (X, Y)))
    graph.rebuild()

    def price(choice: Choice) -> float:
        leaf = 3.0 if choice.attributes[:1] == ("x0",) else 5.0
        return leaf if choice.op.name == "input" else {"exp": 1.0}.get(choice.op.name, 0.0)

    assert extract(graph, [root], price).best.cost == 4.0
    found = extract(graph, [root], price, count=9)
    assert [each.cost for each in found.candidates] == [4.0, 5.0, 8.0]


def test_the_greedy_answer_bounds_a_search_that_is_too_wide() -> None:
    """Many choices that share what they need, of which one is far too dear."""
    graph = EGraph()
    choices: list[Term] = []
    for n in range(16):
        names = [f"y{n}", f"z{n}", f"y{(n + 1) % 16}", f"z{(n + 5) % 16}"]
        x, y, z, w = (make(OPS["input"], (), (m, "query", DType.float32, ())) for m in names)
        cheap = make(OPS["tanh"], (make(OPS["div"], (x, z)),))
        dear = make(OPS["exp"], (make(OPS["div"], (y, w)),))
        graph.union(graph.add(cheap), graph.add(dear), "given")
        choices.append(cheap)
    root = graph.add(make(OPS["add"], choices))
    graph.rebuild()

    def price(choice: Choice) -> float:
        return {"exp": 1e6, "input": 1.0}.get(choice.op.name, 2.0)

    found = extract(graph, [root], price, budget=2000)
    assert found.proved
    assert found.best.cost == extract_greedy(graph, [root], price).cost
    assert not extract(graph, [root], price, budget=2000, count=2).proved
