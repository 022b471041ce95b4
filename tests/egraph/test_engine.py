from __future__ import annotations

from itertools import combinations, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from toy_graphs import LEAVES, Toy, toys

from attnfuse.egraph.derivation import derive
from attnfuse.egraph.engine import EGraph, ENode
from attnfuse.egraph.facts import Choice, Fact
from attnfuse.errors import NotEqual, UnequalFacts, UnknownFact
from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis, DType, Type
from attnfuse.ir.ops import OPS
from attnfuse.ir.term import Term, make, walk

X, Y, Z, W = LEAVES


def tanh(x: Term) -> Term:
    return make(OPS["tanh"], (x,))


def _canonical(graph: EGraph, number: int) -> tuple[object, ...]:
    op, attributes, operands = graph.node(number)
    found = [graph.find(each) for each in operands]
    return (op.name, tuple(sorted(found) if op.flat else found), attributes)


@given(toys())
def test_invariants(toy: Toy) -> None:
    graph = toy.graph()
    seen: dict[tuple[object, ...], int] = {}
    for number in graph.classes():
        assert graph.find(number) == number
        for node in graph.members(number):
            assert graph.find(node) == number
            assert seen.setdefault(_canonical(graph, node), number) == number
    assert len(seen) == graph.size
    for number in graph.classes():
        for node in graph.members(number):
            for operand in graph.node(node).operands:
                assert node in graph.users(operand)


@given(toys())
def test_the_classes_are_those_of_naive_congruence_closure(toy: Toy) -> None:
    graph = toy.graph()
    every = list(dict.fromkeys(walk(*toy.terms)))
    names = {term: place for place, term in enumerate(every)}
    for one, other in toy.pairs:
        _merge(names, one, other)
    changed = True
    while changed:
        changed = False
        for one, other in combinations(every, 2):
            if names[one] != names[other] and _shape(one, names) == _shape(other, names):
                _merge(names, one, other)
                changed = True
    for one, other in combinations(every, 2):
        same = graph.find(graph.add(one)) == graph.find(graph.add(other))
        assert same == (names[one] == names[other]), (str(one), str(other))


def _merge(names: dict[Term, int], one: Term, other: Term) -> None:
    old, new = names[one], names[other]
    for term, name in names.items():
        if name == old:
            names[term] = new


def _shape(term: Term, names: dict[Term, int]) -> object:
    operands = [names[operand] for operand in term.operands]
    leaf = term if not operands else None
    return (term.op.name, leaf, sorted(operands) if term.op.flat else operands)


@settings(deadline=None)
@given(toys())
def test_every_step_of_a_derivation_is_one_given_equation_at_one_place(toy: Toy) -> None:
    graph = toy.graph()
    given_pairs = {*toy.pairs, *((b, a) for a, b in toy.pairs)}
    for one, other in combinations(dict.fromkeys(walk(*toy.terms)), 2):
        a, b = graph.add(one), graph.add(other)
        if graph.find(a) != graph.find(b):
            with pytest.raises(NotEqual):
                derive(graph, a, b)
            continue
        derivation = derive(graph, a, b)
        assert (derivation.start, derivation.end) == (one, other)
        chain = [derivation.start, *(step.term for step in derivation.steps)]
        assert len(set(chain)) == len(chain)
        for before, after in pairwise(chain):
            assert _one_step(before, after, given_pairs), (str(before), str(after))


@pytest.mark.parametrize("seed", range(20))
def test_a_derivation_never_comes_back_to_a_term(seed: int) -> None:
    """Many congruences, found one after another: their paths go to and fro."""
    random = Random(seed)
    every = [make(OPS["div"], (a, b)) for a in LEAVES for b in LEAVES]
    terms = random.sample(every, random.randint(3, 9))
    pairs = [(a, b) for a, b in (random.sample(LEAVES, 2) for _ in range(3))]
    graph = EGraph()
    for term in terms[: len(terms) // 2]:
        graph.add(term)
    for one, other in pairs:
        graph.union(graph.add(one), graph.add(other), "given")
        graph.rebuild()
    numbers = [graph.add(term) for term in terms]
    both_ways = {*pairs, *((b, a) for a, b in pairs)}
    for one, other in combinations(numbers, 2):
        if graph.find(one) == graph.find(other):
            derivation = derive(graph, one, other)
            chain = [derivation.start, *(step.term for step in derivation.steps)]
            assert (chain[0], chain[-1]) == (graph.term(one), graph.term(other))
            assert len(set(chain)) == len(chain)
            assert all(_one_step(a, b, both_ways) for a, b in pairwise(chain))


def _one_step(before: Term, after: Term, pairs: set[tuple[Term, Term]]) -> bool:
    if (before, after) in pairs:
        return True
    if before.op is not after.op or len(before.operands) != len(after.operands):
        return False
    old, new = list(before.operands), list(after.operands)
    if before.op.flat:
        for term in before.operands:
            if term in new:
                old.remove(term)
                new.remove(term)
    changes = [(a, b) for a, b in zip(old, new, strict=True) if a is not b]
    return len(changes) == 1 and _one_step(*changes[0], pairs)


def test_operands_of_a_flat_op_have_no_order() -> None:
    graph = EGraph()
    one = graph.add(make(OPS["add"], (tanh(X), tanh(Y))))
    other = graph.add(make(OPS["add"], (tanh(Z), tanh(W))))
    graph.union(graph.add(X), graph.add(W), "given")
    graph.union(graph.add(Y), graph.add(Z), "given")
    graph.rebuild()
    assert graph.find(one) == graph.find(other)
    assert len(derive(graph, one, other).steps) == 2


def test_attributes_of_different_types_differ() -> None:
    graph = EGraph()
    numbers = [ir.const(1), ir.const(1.0), ir.const(True), ir.const(0.0), ir.const(-0.0)]
    assert len({graph.find(graph.add(number)) for number in numbers}) == 5


def test_a_class_with_a_closed_member_is_handed_over_as_that_term() -> None:
    graph = EGraph()
    table = ir.input_("table", "captured", DType.float32, [Axis("table.0", 4)])
    bias = ir.pack(ir.gather(table, ir.index("k", [Axis("k", 4)])))
    unknown = ir.input_("x", "query", DType.float32, [Axis("k", 4)])
    number = graph.add(unknown)
    assert graph.handle(number).type == unknown.type
    assert graph.handle(number).op.name == "eclass"
    graph.union(number, graph.add(bias), "given")
    graph.rebuild()
    assert graph.handle(number) is bias
    assert graph.closed(number) == graph.add(bias)


def test_types_that_differ_are_an_error_that_shows_both_terms() -> None:
    graph = EGraph()
    wide = ir.input_("wide", "query", DType.float32, [Axis("q", 3)])
    with pytest.raises(UnequalFacts) as caught:
        graph.union(graph.add(X), graph.add(wide), "a guess")
    text = str(caught.value)
    for part in ("a guess", "type", "float32[]", "float32[q=3]", "x0", "wide"):
        assert part in text


def _size(choice: Choice) -> int:
    return 1 + sum(known["size"] for known in choice.operands)


def _even(choice: Choice) -> bool | None:
    return len(choice.operands) % 2 == 0 if choice.op.name != "input" else None


def test_facts_join_and_rise_to_the_users() -> None:
    graph = EGraph([Fact("size", _size, min)])
    top = graph.add(tanh(tanh(make(OPS["div"], (X, Y)))))
    assert graph.known(top)["size"] == 5
    graph.union(graph.add(make(OPS["div"], (X, Y))), graph.add(Z), "given")
    graph.rebuild()
    assert graph.known(top)["size"] == 3
    with pytest.raises(UnknownFact, match=r"'weight'.*there are size"):
        graph.known(top)["weight"]


@given(toys())
def test_facts_are_the_join_of_what_the_e_nodes_say(toy: Toy) -> None:
    graph = toy.graph((Fact("size", _size, min),))
    for number in graph.classes():
        assert graph.known(number)["size"] == min(
            _size(graph.choice(node)) for node in graph.members(number)
        )


def test_facts_without_a_join_must_agree() -> None:
    graph = EGraph([Fact("even", _even)])
    with pytest.raises(UnequalFacts, match="even"):
        graph.union(graph.add(tanh(X)), graph.add(make(OPS["div"], (X, Y))), "given")


def test_facts_that_come_to_differ_by_congruence_are_found() -> None:
    leaf = Fact("leaf", lambda choice: choice.op.name == "input" or None)
    named = Fact("first", lambda choice: choice.op.name == "tanh" or None, max)
    graph = EGraph([leaf, named])
    top = graph.add(tanh(X))
    graph.union(graph.add(X), graph.add(Y), "given")
    graph.rebuild()
    assert graph.known(graph.add(Y))["leaf"] is True
    assert graph.known(top)["first"] is True


def test_promises_belong_to_inputs() -> None:
    graph = EGraph(promises={X: frozenset({"sorted"})})
    assert graph.known(graph.add(X)).promises == {"sorted"}
    assert graph.known(graph.add(tanh(X))).promises == set()
    assert graph.known_of(Y).type == Type(DType.float32)


def test_an_e_node_is_a_plain_value() -> None:
    graph = EGraph()
    number = graph.add(tanh(X))
    assert graph.node(number) == ENode(OPS["tanh"], (), (graph.add(X),))
    assert graph.term(number) is tanh(X)
