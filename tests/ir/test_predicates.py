from __future__ import annotations

from random import Random

import pytest
from expressions import Expression, World, check_value, otherwise, predicates, term_of, worlds
from hypothesis import given
from hypothesis import strategies as st
from small_terms import B, Q, b, check_normal, k, kv_len, q, table, tensor

from attnfuse.errors import WrongOperandKind
from attnfuse.ir import build as ir
from attnfuse.ir.axes import DType
from attnfuse.ir.term import Term

randoms = st.randoms(use_true_random=False)
pairs = st.tuples(predicates(2, opened=True), predicates(2, opened=True))

LIMIT = ir.gather(table("limit", 2, dtype=DType.int32), b)
DOCUMENT = table("document", 4, dtype=DType.int32)
SAME = ir.eq(ir.gather(DOCUMENT, q), ir.gather(DOCUMENT, k))
OPAQUE = ir.gather(table("flags", 4, 4, dtype=DType.bool), q, k)
OPEN = ir.le(tensor("x", Q), tensor("y", B))


def ahead(least: int) -> Term:
    """The lower edge of a band: least ≤ k − q."""
    return ir.le(ir.const(least), ir.sub(k, q))


def behind(most: int) -> Term:
    """The upper edge of a band: k − q ≤ most."""
    return ir.le(ir.sub(k, q), ir.const(most))


# -- whatever the predicate ----------------------------------------------------------------


@given(predicates(opened=True), worlds)
def test_predicates_have_the_value_of_their_expression(
    expression: Expression, world: World
) -> None:
    check_value(term_of(expression), expression, world)


@given(predicates(opened=True), randoms)
def test_predicates_are_the_same_however_they_are_made(
    expression: Expression, random: Random
) -> None:
    assert otherwise(expression, random) is term_of(expression)


@given(predicates(opened=True))
def test_predicates_are_in_normal_form(expression: Expression) -> None:
    check_normal(term_of(expression))


@given(predicates(opened=True))
def test_not_undoes_not(expression: Expression) -> None:
    term = term_of(expression)
    assert ir.not_(ir.not_(term)) is term


@given(pairs)
def test_de_morgan(pair: tuple[Expression, Expression]) -> None:
    one, other = map(term_of, pair)
    assert ir.not_(ir.and_(one, other)) is ir.or_(ir.not_(one), ir.not_(other))
    assert ir.not_(ir.or_(one, other)) is ir.and_(ir.not_(one), ir.not_(other))


@given(pairs)
def test_and_and_or_have_neutral_and_absorbing_elements(
    pair: tuple[Expression, Expression],
) -> None:
    one, other = map(term_of, pair)
    assert ir.and_(one, ir.TRUE) is one is ir.or_(one, ir.FALSE)
    assert ir.and_(one, ir.FALSE, other) is ir.FALSE
    assert ir.or_(one, ir.TRUE, other) is ir.TRUE
    assert ir.and_(one, one) is one is ir.or_(one, one)
    assert ir.and_() is ir.TRUE and ir.or_() is ir.FALSE


@given(predicates(opened=True))
def test_conjuncts_hold_together(expression: Expression) -> None:
    term = term_of(expression)
    assert ir.and_(*ir.conjuncts(term)) is term


# -- bands ------------------------------------------------------------------------------------


@given(st.integers(-4, 4), st.integers(-4, 4))
def test_edges_of_one_direction_meet_in_the_tighter_and_join_in_the_wider(
    one: int, other: int
) -> None:
    assert ir.and_(ahead(one), ahead(other)) is ahead(max(one, other))
    assert ir.or_(ahead(one), ahead(other)) is ahead(min(one, other))
    assert ir.and_(behind(one), behind(other)) is behind(min(one, other))
    assert ir.or_(behind(one), behind(other)) is behind(max(one, other))


@given(*[st.integers(-4, 4)] * 4)
def test_bands_meet_in_a_band(first: int, last: int, other_first: int, other_last: int) -> None:
    found = ir.and_(ahead(first), behind(last), ahead(other_first), behind(other_last))
    low, high = max(first, other_first), min(last, other_last)
    if low > high:
        assert found is ir.FALSE
    else:
        assert found is ir.and_(ahead(low), behind(high))
        assert set(ir.conjuncts(found)) == {ahead(low), behind(high)}


@given(st.integers(-4, 4), st.integers(-4, 4))
def test_opposite_edges_contradict_each_other_or_cover_everything(least: int, most: int) -> None:
    assert (ir.and_(ahead(least), behind(most)) is ir.FALSE) == (least > most)
    assert (ir.or_(ahead(least), behind(most)) is ir.TRUE) == (least <= most + 1)


def test_bounds_by_a_gathered_limit_meet_like_others() -> None:
    short = ir.lt(k, ir.sub(LIMIT, ir.const(2)))
    assert ir.and_(ir.lt(k, LIMIT), short) is short
    assert ir.or_(ir.lt(k, LIMIT), short) is ir.lt(k, LIMIT)
    assert ir.and_(ir.lt(k, LIMIT), ir.le(LIMIT, k)) is ir.FALSE
    assert ir.or_(ir.lt(k, LIMIT), ir.le(LIMIT, k)) is ir.TRUE
    assert set(ir.conjuncts(ir.and_(ir.lt(k, LIMIT), behind(0)))) == {ir.lt(k, LIMIT), behind(0)}


def test_a_comparison_of_integers_has_one_form() -> None:
    causal = ir.le(k, q)
    assert causal.op.name == "le" and causal.operands == (ir.const(0), ir.sub(q, k))
    assert ir.lt(k, ir.add(q, ir.const(1))) is causal
    assert ir.not_(ir.lt(q, k)) is causal
    assert ir.le(ir.add(k, kv_len), ir.add(kv_len, q)) is causal
    assert ir.eq(k, q) is ir.eq(ir.sub(q, k), ir.const(0)) is ir.eq(ir.neg(q), ir.neg(k))


def test_comparisons_that_always_or_never_hold_are_constants() -> None:
    assert ir.le(q, q) is ir.TRUE is ir.lt(q, ir.add(q, ir.const(1)))
    assert ir.lt(q, q) is ir.FALSE is ir.le(ir.add(q, ir.const(1)), q)
    assert ir.eq(ir.add(q, k), ir.add(k, q)) is ir.TRUE
    assert ir.eq(q, ir.add(q, ir.const(2))) is ir.FALSE


@pytest.mark.parametrize("predicate", [SAME, OPAQUE, OPEN, behind(0), ir.eq(q, k)])
def test_a_predicate_and_its_opposite(predicate: Term) -> None:
    opposite = ir.not_(predicate)
    assert ir.and_(predicate, opposite) is ir.FALSE
    assert ir.or_(predicate, opposite) is ir.TRUE
    assert ir.and_(opposite, LIMIT_HOLDS, predicate) is ir.FALSE
    assert ir.or_(opposite, LIMIT_HOLDS, predicate) is ir.TRUE


LIMIT_HOLDS = ir.lt(q, LIMIT)


def test_floats_compare_without_the_laws_of_integers() -> None:
    x, y = tensor("x", Q), tensor("y", B)
    assert ir.not_(ir.le(x, y)).op.name == "not"  # with nan neither x ≤ y nor y < x
    assert ir.not_(ir.le(x, y)) is not ir.lt(y, x)
    assert ir.eq(x, y) is ir.eq(y, x)
    assert ir.le(x, x).op.name == "le"


def test_a_closed_predicate_stands_packed_where_it_meets_an_open_one() -> None:
    both = ir.and_(OPEN, SAME, behind(0))
    assert both is ir.and_(SAME, ir.and_(behind(0), OPEN))
    packed = [part for part in both.operands if part.op.name == "indexed"]
    assert len(both.operands) == 2 and len(packed) == 1
    assert ir.unpack(packed[0]) is ir.and_(SAME, behind(0))
    assert ir.and_(both, behind(-1)) is ir.and_(OPEN, SAME, behind(-1))
    assert ir.and_(both, ahead(1)) is ir.FALSE


@pytest.mark.parametrize("combine", [ir.and_, ir.or_])
@pytest.mark.parametrize("other", [q, ir.const(1), tensor("x", Q)])
def test_numbers_are_no_predicates(combine: object, other: Term) -> None:
    assert callable(combine)
    name = "and" if combine is ir.and_ else "or"
    with pytest.raises(WrongOperandKind, match=f"^{name} can't combine .*; it takes .*bool$"):
        combine(other, OPAQUE)


def test_the_opposite_of_a_number_is_refused() -> None:
    for number in (q, ir.const(0), tensor("x", Q)):
        with pytest.raises(WrongOperandKind, match=r"^not can't combine .*; it takes .*bool$"):
            ir.not_(number)


def test_bools_have_no_order() -> None:
    for compare in (ir.le, ir.lt):
        with pytest.raises(WrongOperandKind, match=r"^(le|lt) can't combine bool, bool; it takes"):
            compare(OPAQUE, ir.not_(OPAQUE))
