"""Key ranges against the keys that are seen, found by looking at every one of them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from expressions import Expression, World, at, predicates, term_of
from hypothesis import assume, given
from hypothesis import strategies as st
from small_terms import K, Q, array, b, k, kv_len, q, q_len, table, tensor, value

from attnfuse.ir import build as ir
from attnfuse.ir.axes import DType
from attnfuse.ir.term import Term, walk
from attnfuse.masks import KeyRange, full_range, key_range, support
from attnfuse.masks.ranges import Q_FIRST, Q_LAST

# -- predicates as expressions -----------------------------------------------------------

BATCH, QUERY, KEY = Expression("b"), Expression("q"), Expression("k")
LIMIT = Expression("limits", (BATCH,))


def const(number: int) -> Expression:
    return Expression("const", (), number)


def node(op: str, *parts: Expression) -> Expression:
    return Expression(op, parts)


def shifted(alignment: str) -> Expression:
    """The position of a query among the keys."""
    if alignment == "top_left":
        return QUERY
    return node("add", QUERY, node("sub", Expression("kv_len"), Expression("q_len")))


def edge(alignment: str, distance: int, below: bool) -> Expression:
    """One edge of a band: the key lies at most, or at least, so far from the query."""
    limit = node("add", shifted(alignment), const(distance))
    return node("le", KEY, limit) if below else node("le", limit, KEY)


def padding(least: int, below: bool) -> Expression:
    """Keys before, or after, a limit that is gathered for each batch entry."""
    limit = node("add", LIMIT, const(least))
    return node("lt", KEY, limit) if below else node("le", limit, KEY)


alignments = st.sampled_from(["top_left", "bottom_right"])
edges = st.builds(edge, alignments, st.integers(-3, 3), st.booleans())
paddings = st.builds(padding, st.integers(-1, 3), st.booleans())
bands = st.lists(edges | paddings, min_size=1, max_size=4)
"""Bounds on one key that are affine in the query, with slope 1, and gathered limits."""


def slant(slope: int, distance: int, below: bool) -> Expression:
    """A bound on one key by a multiple of the query's position."""
    limit = node("add", node("mul", const(slope), QUERY), const(distance))
    return node("le", KEY, limit) if below else node("lt", limit, KEY)


slanted = st.builds(slant, st.integers(-3, 3), st.integers(-3, 5), st.booleans())
"""Bounds on one key that rise faster than the query, or fall."""

SAME_DOCUMENT = node("eq", node("limits", QUERY), node("limits", KEY))


def prefix(limit: Expression, visible: Expression) -> Expression:
    """What is visible, and all keys before a limit."""
    return node("or", limit, visible)


def within(number: int) -> Expression:
    """A limit for each query."""
    return node("le", KEY, node("limits", node("add", QUERY, const(number))))


def half(number: int) -> Expression:
    """A bound on twice the key."""
    return node("le", node("mul", const(2), KEY), const(number))


others = st.one_of(
    predicates(1),
    slanted,
    st.just(SAME_DOCUMENT),
    st.builds(prefix, paddings, edges),
    st.builds(within, st.integers(-1, 1)),
    st.builds(half, st.integers(0, 9)),
)
"""What else may stand in a mask."""


@st.composite
def tiles(draw: st.DrawFn) -> tuple[World, int, int]:
    """A call with some queries and keys, and the first and last query of a tile."""
    queries, keys = draw(st.integers(1, 7)), draw(st.integers(0, 7))
    limits = draw(st.tuples(*[st.integers(-2, 8)] * 3))
    flags = draw(st.tuples(*[st.booleans()] * 3))
    world = World(draw(st.integers(1, 2)), queries, keys, limits, flags, (0,))
    first = draw(st.integers(0, queries - 1))
    return world, first, draw(st.integers(first, queries - 1))


Tile = tuple[World, int, int]


def range_of(found: KeyRange, tile: Tile, batch: int) -> tuple[int, int]:
    """The numbers behind a range, for one tile of one batch entry."""
    world, first, last = tile
    ends = {Q_FIRST: ir.const(first), Q_LAST: ir.const(last)}
    numbers: list[int] = []
    for term in (found.first, found.end):
        settled = array(value(ir.substitute(term, ends), world.inputs, sizes=world.sizes))
        assert settled.ndim <= 1  # the same for all queries and keys
        numbers.append(int(settled[batch] if settled.ndim else settled))
    return numbers[0], numbers[1]


def seen(conditions: Iterable[Expression], tile: Tile, batch: int) -> list[int]:
    """The keys that some query of the tile sees."""
    world, first, last = tile
    both = node("and", *conditions)
    return [
        key
        for key in range(world.kv_len)
        if any(at(both, world, (batch, query, key)) for query in range(first, last + 1))
    ]


@given(bands, st.lists(others, max_size=3), tiles())
def test_no_visible_key_lies_outside_of_the_range(
    bounds: list[Expression], more: list[Expression], tile: Tile
) -> None:
    conditions = [*bounds, *more]
    found = key_range(ir.and_(*map(term_of, conditions)), kv_len)
    for batch in range(tile[0].batch):
        first, end = range_of(found, tile, batch)
        assert first >= 0 and end <= tile[0].kv_len
        assert all(first <= key < end for key in seen(conditions, tile, batch))


def has_width(bounds: list[Expression], tile: Tile) -> bool:
    """Whether the band would hold a key if there were keys everywhere."""
    world, first, _ = tile
    both = node("and", *(bound for bound in bounds if "limits" not in str(bound)))
    return any(at(both, world, (0, first, key)) for key in range(-20, 20))


@given(bands, tiles())
def test_the_range_of_bands_holds_nothing_else(bounds: list[Expression], tile: Tile) -> None:
    assume(has_width(bounds, tile))
    found = key_range(ir.and_(*map(term_of, bounds)), kv_len)
    for batch in range(tile[0].batch):
        first, end = range_of(found, tile, batch)
        keys = seen(bounds, tile, batch)
        if keys:
            assert (first, end) == (min(keys), max(keys) + 1)
        else:
            assert end <= first


@given(slanted, tiles())
def test_one_bound_of_any_slope_is_tight(bound: Expression, tile: Tile) -> None:
    found = key_range(term_of(bound), kv_len)
    first, end = range_of(found, tile, 0)
    keys = seen([bound], tile, 0)
    if keys:
        assert (first, end) == (min(keys), max(keys) + 1)
    else:
        assert end <= first


def seen_by_all(conditions: Iterable[Expression], tile: Tile, batch: int) -> list[int]:
    """The keys that every query of the tile sees."""
    world, first, last = tile
    both = node("and", *conditions)
    return [
        key
        for key in range(world.kv_len)
        if all(at(both, world, (batch, query, key)) for query in range(first, last + 1))
    ]


@given(st.lists(edges | paddings, max_size=4), st.lists(others, max_size=1), tiles())
def test_all_queries_see_the_keys_of_the_full_range(
    bounds: list[Expression], more: list[Expression], tile: Tile
) -> None:
    conditions = [*bounds, *more]
    found = full_range(ir.and_(*map(term_of, conditions)), kv_len)
    for batch in range(tile[0].batch):
        first, end = range_of(found, tile, batch)
        keys = seen_by_all(conditions, tile, batch)
        assert first >= 0 and set(range(first, end)) <= set(keys)
        if not more and keys:
            assert (first, end) == (min(keys), max(keys) + 1)


# -- by hand ----------------------------------------------------------------------------------


def text(*conditions: Term) -> str:
    return str(key_range(ir.and_(*conditions), kv_len))


NOTHING, ALL = "0 ≤ k < 0", "0 ≤ k < kv_len"
LENGTHS = table("lengths", 2, dtype=DType.int32)
LIMITED = ir.lt(k, ir.gather(LENGTHS, b))


def test_causal_masks_end_at_the_last_query() -> None:
    assert text(ir.le(k, q)) in (
        "0 ≤ k < minimum(kv_len, q_last + 1)",
        "0 ≤ k < minimum(q_last + 1, kv_len)",
    )


def test_windows_begin_at_the_first_query() -> None:
    assert text(ir.le(ir.sub(q, ir.const(2)), k)) == "maximum(q_first - 2, 0) ≤ k < kv_len"


def test_of_several_bounds_each_may_be_the_tightest() -> None:
    lower = [edge("top_left", -1, False), edge("bottom_right", -3, False), padding(0, False)]
    upper = [edge("top_left", 1, True), edge("bottom_right", 3, True), padding(1, True)]
    for queries, keys, limit, wanted in (
        (4, 6, 0, {"lower": (2, 6), "upper": (0, 1)}),
        (4, 6, 5, {"lower": (5, 6), "upper": (0, 5)}),
        (4, 9, 0, {"lower": (5, 9), "upper": (0, 1)}),
    ):
        tile = (World(1, queries, keys, (limit,) * 3, (True,) * 3, (0,)), 3, 3)
        for bounds, expected in ((lower, wanted["lower"]), (upper, wanted["upper"])):
            found = key_range(ir.and_(*map(term_of, bounds)), kv_len)
            assert range_of(found, tile, 0) == expected
            keys_seen = seen(bounds, tile, 0)
            assert (min(keys_seen), max(keys_seen) + 1) == expected


@pytest.mark.parametrize(
    "condition",
    [
        ir.TRUE,
        ir.eq(ir.gather(LENGTHS, q), ir.gather(LENGTHS, k)),
        ir.or_(LIMITED, ir.le(k, q)),
        ir.gather(table("flags", 3, 3, dtype=DType.bool), q, k),
        ir.le(k, ir.gather(LENGTHS, q)),
        ir.le(ir.mul(ir.const(2), k), q),
        ir.le(ir.mul(q, k), q_len),
        ir.lt(q, q_len),
    ],
)
def test_what_is_no_bound_on_a_key_leaves_all_keys(condition: Term) -> None:
    assert text(condition) == ALL


def test_where_nothing_is_visible_the_range_is_empty() -> None:
    assert text(ir.FALSE) == NOTHING
    assert text(ir.lt(k, q), ir.lt(q, k)) == NOTHING


def test_ranges_speak_of_the_tile_and_not_of_positions() -> None:
    found = key_range(ir.and_(ir.le(k, q), ir.le(ir.sub(q, kv_len), k), LIMITED), kv_len)
    leaves = {leaf for term in (found.first, found.end) for leaf in walk(term)}
    assert {Q_FIRST, Q_LAST, LENGTHS} < leaves
    assert not {q, k} & leaves
    assert all(axis not in (Q, K) for term in (found.first, found.end) for axis in term.type.axes)


# -- weights that are no softmax -------------------------------------------------------------

SCORES = tensor("scores", Q, K, dtype=DType.float64)
ZERO, ONE = ir.const(0.0), ir.const(1.0)
NEAR, CAUSAL = ir.lt(ir.sub(q, k), ir.const(2)), ir.le(k, q)


def weights(visible: Term) -> list[tuple[Term, bool]]:
    """Weights of masked scores, and whether they vanish where the mask hides."""
    masked = ir.mask(SCORES, visible)
    sigmoid, relu = ir.unary["sigmoid"](masked), ir.maximum(masked, ZERO)
    return [
        (sigmoid, True),
        (ir.unary["exp"](masked), True),
        (ir.mul(relu, relu), True),
        (ir.where(visible, SCORES, ZERO), True),
        (ir.where(NEAR, sigmoid, ZERO), True),
        (ir.mul(ir.const(0.5), ir.unary["exp"](ir.add(masked, ir.const(3.0)))), True),
        (ir.add(sigmoid, ONE), False),
        (ir.unary["tanh"](masked), False),
        (ir.where(visible, ZERO, SCORES), False),
        (ir.where(ir.lt(ZERO, SCORES), SCORES, ZERO), False),
    ]


@given(predicates(1), tiles())
def test_a_weight_is_zero_outside_of_its_support(condition: Expression, tile: Tile) -> None:
    world = tile[0]
    shape = (world.q_len, world.kv_len)
    numbers = torch.randn(shape, dtype=torch.float64)
    for weight, _ in weights(term_of(condition)):
        found = value(weight, world.inputs | {SCORES: numbers}, exact=True, sizes=world.sizes)
        inside = value(support(weight), world.inputs, sizes=world.sizes)
        names = weight.type.names
        for place, name in enumerate(names):
            if name not in support(weight).type.names:
                inside = inside.unsqueeze(place)
        assert bool((found == 0)[~torch.broadcast_to(inside, found.shape)].all())


def test_the_support_is_the_mask_where_the_weight_vanishes() -> None:
    for weight, vanishes in weights(CAUSAL):
        found = support(weight)
        if vanishes:
            assert set(ir.conjuncts(CAUSAL)) <= set(ir.conjuncts(found))
        else:
            assert found is ir.TRUE
