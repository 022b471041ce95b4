"""Rules that later families need, to show that the language can say them."""

from __future__ import annotations

from itertools import product

from hypothesis import given as drawn
from toy_graphs import Toy, toys

from attnfuse.egraph.engine import EGraph
from attnfuse.egraph.facts import Choice, Fact
from attnfuse.egraph.matching import matches
from attnfuse.egraph.pattern import closed, number, op, rest, variables
from attnfuse.egraph.rule import Declined, Facts, Rule, rule
from attnfuse.egraph.ruleset import RuleSet
from attnfuse.egraph.saturate import saturate
from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis, DType, Symbol
from attnfuse.ir.term import Term
from attnfuse.rewrites import masks
from attnfuse.testing import check

q, k, u, w, v, x, p = variables("q k u w v x p")
c, more, slope = number("c"), rest("more"), closed("slope")
over, dtype, pairing = variables("over dtype pairing")

B, HK, G, D = Axis("b", 2), Axis("hk", 2), Axis("g", 2), Axis("d", 8)
Q, K = Axis("q", Symbol("q_len")), Axis("k", Symbol("k_len"))
QUERY = ir.input_("q", "query", DType.float32, [B, HK, G, Q, D])
KEY = ir.input_("k", "key", DType.float32, [B, HK, K, D])
SCORES = ir.contract(QUERY, KEY, over="d", dtype=DType.float32)
ROW, COLUMN = ir.index("q", [Q]), ir.index("k", [K])


def becomes(rules: tuple[Rule, ...], before: Term, after: Term) -> bool:
    """Whether saturation finds the two equal, `after` being found and not just added."""
    graph = EGraph()
    root = graph.add(before)
    assert saturate(graph, RuleSet(rules)).stop == "saturated"
    size = graph.size
    found = graph.add(after)
    graph.rebuild()
    return graph.find(found) == graph.find(root) and graph.size == size


# -- ALiBi: what is constant along a row does not change a softmax ------------------------------


def _without_row(bias: Term) -> Term | None:
    """A bias slope · (k − q) without its part in q, or None where it has no such form."""
    expression = ir.unpack(bias)
    casts = [each for each in expression.operands if each.op.name == "cast"]
    if expression.op.name != "mul" or len(casts) != 1:
        return None
    coefficients, constant = ir.affine_parts(casts[0].operands[0])
    kept = {atom: by for atom, by in coefficients.items() if "k" in atom.type.names}
    if not kept or len(kept) == len(coefficients):
        return None
    others = [each for each in expression.operands if each is not casts[0]]
    return ir.mul(*others, ir.cast(ir.affine(kept, constant), DType.float32))


@rule(op.softmax(op.add(slope, more)))
def alibi_row_drops(slope: Term, more: tuple[Term, ...]) -> Term | Declined:
    """softmax(x + m·(k − q)) → softmax(x + m·k)"""
    column = _without_row(slope)
    if column is None or "q" not in {name for each in more for name in each.type.names}:
        return Declined("no part of the bias is constant along a row")
    return ir.softmax(ir.add(*more, column))


def test_alibi_shift() -> None:
    slopes = ir.input_("m", "captured", DType.float32, [Axis("m.0", 4)])
    slope_ = ir.gather(slopes, ir.index("h", [HK, G]))
    distance = ir.cast(ir.sub(COLUMN, ROW), DType.float32)
    before = ir.softmax(ir.add(SCORES, ir.mul(slope_, distance)))
    after = ir.softmax(ir.add(SCORES, ir.mul(slope_, ir.cast(COLUMN, DType.float32))))
    assert becomes((alibi_row_drops,), before, after)
    assert check(alibi_row_drops, 100).passed


# -- a low-rank bias joins the contraction -------------------------------------------------------


@rule(
    op.add(op.contract(q, k, over="d", dtype=dtype), op.contract(u, w, over="d", dtype=dtype), more)
)
def low_rank_bias_joins(
    q: Term, k: Term, u: Term, w: Term, dtype: DType, more: tuple[Term, ...]
) -> Term | Declined:
    """Σ q·k + Σ u·w → Σ [q, u]·[k, w]"""
    if q.type.dtype is not u.type.dtype or k.type.dtype is not w.type.dtype:
        return Declined("their element types differ")
    left, right = ir.concat(q, u, over="d"), ir.concat(k, w, over="d")
    return ir.add(ir.contract(left, right, over="d", dtype=dtype), *more)


def test_low_rank_bias_into_the_contraction() -> None:
    rank = Axis("d", 3)
    rows = ir.input_("u", "captured", DType.float32, [HK, G, Q, rank])
    columns = ir.input_("w", "captured", DType.float32, [HK, K, rank])
    bias = ir.contract(rows, columns, over="d", dtype=DType.float32)
    extra = ir.pack(ir.cast(ROW, DType.float32))
    joined = ir.contract(
        ir.concat(QUERY, rows, over="d"),
        ir.concat(KEY, columns, over="d"),
        over="d",
        dtype=DType.float32,
    )
    before = ir.add(SCORES, bias, extra)
    assert becomes((low_rank_bias_joins,), before, ir.add(joined, extra))
    assert check(low_rank_bias_joins, 100).passed


# -- a mask rises above everything, by a fact of its own -----------------------------------------


def _hidden(choice: Choice) -> bool | None:
    """Whether a mask stands somewhere in the scores."""
    below = any(known.facts.get("hidden") for known in choice.operands)
    return below or choice.op.name == "mask" or None


@rule(op.add(x, more), when=lambda x, facts: facts(x).facts.get("hidden", False))
def seen_by_a_fact(x: Term, more: tuple[Term, ...], facts: Facts) -> Term | Declined:
    """x + y → x + y, looked at by way of a fact"""
    assert facts(x)["hidden"]
    return Declined("looked")


def test_masks_are_hoisted_past_biases_and_facts_follow_them() -> None:
    causal, window = ir.le(COLUMN, ROW), ir.le(ROW, ir.add(COLUMN, ir.const(7)))
    bias = ir.pack(ir.cast(COLUMN, DType.float32))
    inner = ir.mask(ir.mul(ir.const(0.5), SCORES), causal)
    before = ir.mask(ir.add(inner, bias), window)
    after = ir.mask(ir.add(ir.mul(ir.const(0.5), SCORES), bias), ir.and_(causal, window))
    assert becomes(masks.RULES.rules, before, after)
    graph = EGraph([Fact("hidden", _hidden, lambda a, b: a or b)])
    root = graph.add(before)
    assert graph.known(root)["hidden"]
    report = saturate(graph, RuleSet((seen_by_a_fact,)))
    assert {refusal.reason for refusal in report.declined} >= {"looked"}


# -- other forms that the study's rules have -----------------------------------------------------


@rule(
    op.contract(op.add(p, op.mul(c, x)), v, over=over, dtype=dtype),
    to=op.add(
        op.contract(p, v, over=over, dtype=dtype),
        op.mul(c, op.contract(x, v, over=over, dtype=dtype)),
    ),
)
def differential() -> Term:
    """(p + c·x)·v → p·v + c·(x·v)"""
    raise AssertionError("a pattern says it")


def test_a_right_side_can_be_a_pattern() -> None:
    value = ir.input_("v", "value", DType.float32, [B, HK, K, Axis("e", 8)])
    one, two = ir.softmax(SCORES), ir.softmax(ir.mul(ir.const(2.0), SCORES))
    before = ir.contract(
        ir.add(one, ir.mul(ir.const(-0.3), two)), value, over="k", dtype=DType.float32
    )
    parts = [ir.contract(each, value, over="k", dtype=DType.float32) for each in (one, two)]
    after = ir.add(parts[0], ir.mul(ir.const(-0.3), parts[1]))
    assert becomes((differential,), before, after)


@rule(op.contract(x, x, over=over, dtype=dtype))
def square(x: Term, over: str, dtype: DType) -> Declined:
    """x·x → x²"""
    return Declined("found")


def test_a_variable_that_occurs_twice_must_be_the_same() -> None:
    other = ir.input_("other", "query", DType.float32, [B, HK, G, Q, D])
    for left, right, times in ((QUERY, QUERY, 1), (QUERY, other, 0)):
        graph = EGraph()
        graph.add(ir.contract(left, right, over="d", dtype=DType.float32))
        assert len(saturate(graph, RuleSet((square,))).declined) == times
    graph = EGraph()
    graph.add(ir.contract(QUERY, other, over="d", dtype=DType.float32))
    graph.union(graph.add(QUERY), graph.add(other), "given")
    assert len(saturate(graph, RuleSet((square,))).declined) == 1


@rule(op.add(op.contract(q, k, over=over), op.contract(u, w, over=over)))
def alike(q: Term, over: str) -> Declined:
    """Σ q·k + Σ u·w → what has one axis for both sums"""
    return Declined(f"over {over}")


def test_an_attribute_that_occurs_twice_must_be_the_same() -> None:
    for other, times in (("d", 2), ("e", 0)):
        axis = Axis(other, 8)
        rows = ir.input_("u", "query", DType.float32, [B, HK, G, Q, axis])
        columns = ir.input_("w", "key", DType.float32, [B, HK, K, axis])
        graph = EGraph()
        graph.add(ir.add(SCORES, ir.contract(rows, columns, over=other, dtype=DType.float32)))
        assert len(saturate(graph, RuleSet((alike,))).declined) == times


@drawn(toys())
def test_matches_are_those_of_a_naive_search(toy: Toy) -> None:
    """div(tanh(x), x) and add(tanh(x), y), found by trying all classes for the variables.

    But for sums that are equal to one of their operands, which match nothing.
    """
    graph = toy.graph()
    one, two = op.div(op.tanh(x), x), op.add(op.tanh(x), p)
    found = {
        (graph.find(number), *map(graph.find, given.values()))
        for pattern in (one, two)
        for number in graph.having(pattern.op)
        for _, given in matches(graph, pattern, number)
    }
    forms = {
        (graph.node(node).op.name, *map(graph.find, graph.node(node).operands)): place
        for place in graph.classes()
        for node in graph.members(place)
    }
    expected: set[tuple[int, ...]] = set()
    for (name, *operands), place in forms.items():
        for a, b in product(graph.classes(), repeat=2):
            inner = forms.get(("tanh", a), -1)
            if name == "div" and operands == [inner, a]:
                expected.add((place, a))
            neutral = place in operands
            if name == "add" and sorted(operands) == sorted([inner, b]) and not neutral:
                expected.add((place, a, b))
    assert found == expected


def test_sums_within_sums_are_flattened() -> None:
    halved = rule(op.tanh(x), name="split")(_split)
    tanh = ir.unary["tanh"](SCORES)
    before = ir.add(tanh, SCORES, ir.const(1.0))
    after = ir.add(SCORES, SCORES, ir.mul(ir.const(2.0), SCORES), ir.const(3.0))
    assert becomes((halved,), before, after)


def _split(x: Term) -> Term:
    """tanh(x) → x + 2·x + 2, which is wrong, but shows what is to be seen"""
    return ir.add(x, ir.mul(ir.const(2.0), x), ir.const(2.0))
