from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations
from random import Random

import pytest
from expressions import (
    COLUMNS,
    ROWS,
    Expression,
    World,
    check_value,
    floats,
    ints,
    otherwise,
    term_of,
    worlds,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from small_terms import D, Q, b, check_normal, items, k, kv_len, q, table, tensor, value

from attnfuse.errors import DoesNotFit, WrongOperandKind
from attnfuse.ir import build as ir
from attnfuse.ir.axes import DType
from attnfuse.ir.normal import construct
from attnfuse.ir.ops import OPS
from attnfuse.ir.term import Term, make, walk

randoms = st.randoms(use_true_random=False)
one, two, three = ir.const(1), ir.const(2), ir.const(3)

# -- whatever the expression ------------------------------------------------------------


@given(ints(opened=True), worlds)
def test_integer_terms_have_the_value_of_their_expression(
    expression: Expression, world: World
) -> None:
    check_value(term_of(expression), expression, world)


@given(ints(opened=True), randoms)
def test_integer_terms_are_the_same_however_they_are_made(
    expression: Expression, random: Random
) -> None:
    assert otherwise(expression, random) is term_of(expression)


@given(ints(opened=True))
def test_integer_terms_are_in_normal_form(expression: Expression) -> None:
    check_normal(term_of(expression))


@given(floats(), worlds)
def test_float_terms_have_the_value_of_their_expression(
    expression: Expression, world: World
) -> None:
    check_value(term_of(expression), expression, world)


@given(floats(), randoms)
def test_float_terms_are_the_same_however_they_are_made(
    expression: Expression, random: Random
) -> None:
    assert otherwise(expression, random) is term_of(expression)


@given(floats())
def test_float_terms_are_in_normal_form(expression: Expression) -> None:
    check_normal(term_of(expression))


@given(floats() | ints())
def test_packing_and_unpacking_undo_each_other(expression: Expression) -> None:
    term = term_of(expression)
    for part in walk(term):
        if part.op.name == "indexed":
            assert ir.pack(ir.unpack(part)) is part
        elif ir.is_closed(part):
            packed = ir.pack(part)
            assert ir.unpack(packed) is part
            assert packed.type == part.type
            tensors = {leaf for leaf in walk(part) if leaf.op.name == "input"}
            assert packed is part or set(packed.operands) == tensors


@settings(max_examples=50)
@given(floats(), worlds)
def test_substituting_is_making_the_term_anew(expression: Expression, world: World) -> None:
    """Doubling a query by substitution, or in the tensor that is given: it is the same."""
    doubled = {ROWS: ir.add(ROWS, ROWS)}
    term = term_of(expression)
    replaced = ir.substitute(term, doubled)
    check_normal(replaced)
    inputs = world.inputs
    found = value(replaced, inputs, exact=True, sizes=world.sizes)
    wanted = value(term, inputs | {ROWS: 2 * inputs[ROWS]}, exact=True, sizes=world.sizes)
    assert found.shape == wanted.shape
    assert items(found) == items(wanted)


# -- integers -------------------------------------------------------------------------------


def test_integer_sums_are_affine() -> None:
    assert ir.add(q, q) is ir.mul(two, q)
    assert ir.sub(q, q) is ir.const(0)
    assert ir.add(ir.sub(q, k), ir.sub(k, q), three) is three
    assert ir.mul(two, ir.add(q, three)) is ir.add(q, ir.const(6), q)
    assert ir.affine_parts(ir.sub(ir.mul(three, q), ir.add(k, one))) == ({q: 3, k: -1}, -1)
    assert ir.affine({q: 3, k: 0}, 0) is ir.mul(three, q)
    assert ir.affine({}, 7) is ir.const(7)


def test_integer_products_are_flat_and_their_constants_folded() -> None:
    assert [part.op.name for part in ir.mul(three, q, k).operands].count("index") == 2
    assert ir.mul(three, ir.mul(q, k)) is ir.mul(ir.mul(k, three), q)
    assert ir.mul(two, q, three, k) is ir.mul(ir.const(6), k, q)
    assert ir.mul(q, ir.const(0), k) is ir.const(0)
    assert ir.add(ir.mul(q, k), ir.mul(k, q)) is ir.mul(two, q, k)


def test_a_factor_of_a_sum_is_a_factor_of_the_product() -> None:
    shifted = ir.add(q, one)
    assert ir.mul(ir.mul(two, shifted), k) is ir.mul(two, ir.mul(shifted, k))
    assert ir.mul(ir.neg(shifted), k) is ir.neg(ir.mul(shifted, k))
    assert ir.mul(ir.sub(q, k), ir.sub(k, q)) is ir.neg(ir.mul(ir.sub(q, k), ir.sub(q, k)))


def test_dividing_integers_folds_constants() -> None:
    assert ir.floordiv(ir.const(-7), two) is ir.const(-4)
    assert ir.mod(ir.const(-7), two) is one
    assert ir.floordiv(q, one) is q
    assert ir.mod(q, one) is ir.const(0)


@pytest.mark.parametrize("divisor", [ir.const(0), ir.const(-2), k, ir.TRUE, ir.const(2.0)])
@pytest.mark.parametrize("name", ["floordiv", "mod"])
def test_integers_are_divided_by_positive_constants_only(name: str, divisor: Term) -> None:
    wanted = f"^{name}: its divisor is .*; divide integers by a positive constant$"
    with pytest.raises(DoesNotFit, match=wanted):
        construct(OPS[name], (q, divisor))


# -- floats ------------------------------------------------------------------------------------

x, y = tensor("x", Q), tensor("y", Q, D)


def test_float_constants_are_folded_in_float64() -> None:
    assert ir.value_of(ir.add(ir.const(0.1), ir.const(0.2), ir.const(-0.3))) == math.fsum(
        (0.1, 0.2, -0.3)
    )
    assert ir.mul(ir.const(0.1), x, ir.const(3.0)) is ir.mul(ir.const(0.1 * 3.0), x)
    assert ir.add(x, ir.const(0.5), ir.const(-0.5)) is x
    assert ir.mul(ir.const(0.5), x, ir.const(2.0)) is x
    assert ir.div(x, ir.const(8.0)) is ir.mul(ir.const(0.125), x)


def test_what_could_be_infinite_is_not_folded_away() -> None:
    zero = ir.const(0.0)
    assert ir.mul(zero, x).op.name == "mul"
    assert ir.sub(x, x).op.name == "add"
    assert ir.div(x, zero).op.name == "div"
    assert ir.add(x, x).operands == (x, x)


@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [
        ((math.inf, -math.inf), math.nan),
        ((math.inf, 1.0), math.inf),
        ((1e308, 1e308), math.inf),
        ((math.nan, 1.0), math.nan),
    ],
)
def test_folding_a_sum_is_adding_as_floats_do(numbers: tuple[float, ...], wanted: float) -> None:
    found = ir.value_of(ir.add(*map(ir.const, numbers)))
    assert found == wanted or (found is not None and math.isnan(found) and math.isnan(wanted))


def test_a_closed_part_stands_packed_where_it_meets_an_open_one() -> None:
    bias, slope = table("bias", 9), table("slope", 2)
    distance = ir.mul(ir.gather(slope, b), ir.sub(k, q))
    near = ir.gather(bias, ir.sub(q, k))
    for total in (ir.add(x, near, distance), ir.add(near, ir.add(distance, x))):
        assert total is ir.add(ir.add(x, distance), near)
        left, packed = total.operands
        assert left is x and packed.op.name == "indexed"
        assert set(packed.operands) == {bias, slope}
        assert ir.unpack(packed) is ir.add(near, distance)
    product = ir.mul(x, near, distance, ir.const(0.5))
    assert [part.op.name for part in product.operands] == ["const", "input", "indexed"]
    assert ir.unpack(product.operands[2]) is ir.mul(near, distance)
    assert ir.add(near, distance).op.name == "add"  # nothing open: nothing to pack


def test_constants_that_stood_in_a_packed_part_are_folded_with_the_others() -> None:
    near = ir.add(ir.gather(table("bias", 9), q), ir.const(1.5))
    total = ir.add(ir.add(x, near), ir.const(2.0))
    assert total is ir.add(x, ir.gather(table("bias", 9), q), ir.const(3.5))


def test_a_packed_value_is_shared_whatever_the_order_of_its_tensors() -> None:
    tables = [table(name, 9) for name in "uvw"]
    gathered = [ir.gather(each, place) for each, place in zip(tables, (q, k, b), strict=True)]
    terms = {ir.add(x, *order) for order in (gathered, gathered[::-1], gathered[1:] + gathered[:1])}
    assert len(terms) == 1


def test_two_tensors_of_one_kind_are_told_apart_when_packed() -> None:
    u, v = table("u", 9), table("v", 9)
    one_way = ir.pack(ir.sub(ir.gather(u, q), ir.gather(v, q)))
    other_way = ir.pack(ir.sub(ir.gather(v, q), ir.gather(u, q)))
    assert one_way is not other_way
    assert ir.unpack(one_way) is ir.sub(ir.gather(u, q), ir.gather(v, q))


def test_least_and_greatest_drop_what_is_said_twice() -> None:
    assert ir.minimum(x, x) is x
    assert ir.maximum(three, q, one) is ir.maximum(q, ir.maximum(one, three))
    assert ir.minimum(q, three, k, q).operands.count(q) == 1
    assert ir.maximum(one, three) is three


def test_least_and_greatest_of_constants_do_not_depend_on_their_order() -> None:
    zero, minus_zero, no_number = ir.const(0.0), ir.const(-0.0), ir.const(math.nan)
    for order in permutations((zero, minus_zero, ir.const(2.0))):
        assert ir.minimum(x, *order) is ir.minimum(x, minus_zero)
    for order in permutations((zero, minus_zero, ir.const(-2.0))):
        assert ir.maximum(x, *order) is ir.maximum(x, zero)
    for order in permutations((zero, no_number, ir.const(-2.0))):
        assert ir.maximum(*order) is ir.minimum(*order) is no_number  # as torch has it


def test_casts_fold_where_nothing_is_lost() -> None:
    assert ir.cast(x, DType.float32) is x
    assert ir.cast(three, DType.float32) is ir.const(3.0)
    half = ir.cast(x, DType.float16)
    assert ir.cast(half, DType.float32) is not x


def test_choosing_by_a_constant_is_choosing() -> None:
    assert ir.where(ir.TRUE, x, y) is x
    assert ir.where(ir.FALSE, x, y) is y
    assert ir.where(ir.TRUE, two, ir.const(0.5)) is ir.const(2.0)  # a float, as without folding


def test_choosing_minus_infinity_is_masking() -> None:
    never, far = ir.const(-math.inf), ir.lt(k, q)
    assert ir.where(far, y, never) is ir.mask(y, far)
    assert ir.where(far, never, y) is ir.mask(y, ir.not_(far))
    assert ir.mask(y, ir.TRUE) is y
    closed = ir.gather(table("bias", 9), q)
    assert ir.where(far, closed, never).op.name == "where"
    assert ir.add(x, ir.where(far, closed, never)).op.name == "add"


def test_storing_twice_is_storing_once() -> None:
    stored = ir.stored(ir.mul(x, x))
    assert ir.stored(stored) is stored
    assert ir.stored(x).operands == (x,)  # a copy


def test_positions_of_a_rotation_are_packed() -> None:
    tables = (table("cos", 9, 2), table("sin", 9, 2))
    rotated = ir.rotate(y, *tables, ir.add(q, kv_len), "half")
    assert rotated.operands[3] is ir.pack(ir.add(q, kv_len))
    assert ir.rebuild(rotated, rotated.operands) is rotated


@pytest.mark.parametrize("combine", [ir.add, ir.mul, ir.minimum, ir.maximum])
@pytest.mark.parametrize("other", [ir.TRUE, x, q, table("flag", dtype=DType.bool)])
def test_bools_are_no_numbers(combine: object, other: Term) -> None:
    assert callable(combine)
    with pytest.raises(WrongOperandKind, match=r"can't combine .*bool.*; it takes"):
        combine(ir.TRUE, other)


@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid", "sqrt", "exp2", "log"])
def test_functions_of_constants_are_folded_where_they_are_numbers(name: str) -> None:
    functions: dict[str, Callable[[float], float]] = {
        "exp": math.exp,
        "tanh": math.tanh,
        "sqrt": math.sqrt,
        "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    }
    for number in (2.0, 0.0, -1.0, -math.inf, 1e6):
        found = ir.unary[name](ir.const(number))
        folded = ir.value_of(found)
        if folded is None:
            assert found.op.name == name and found.operands == (ir.const(number),)
        else:
            assert folded == functions[name](number)
    with pytest.raises(WrongOperandKind, match=rf"^{name} can't combine bool; it takes"):
        ir.unary[name](ir.TRUE)
    assert ir.unary["sigmoid"](ir.const(-math.inf)) is ir.const(0.0)


def test_the_absolute_value_of_a_bool_is_refused() -> None:
    with pytest.raises(WrongOperandKind, match=r"^abs can't combine bool; it takes"):
        ir.abs_(ir.TRUE)


def test_rebuilding_gives_what_the_constructor_gives() -> None:
    loose = make(OPS["add"], (ir.const(1.0), make(OPS["add"], (x, ir.const(2.0)))))
    assert ir.rebuild(loose, loose.operands) is ir.add(x, ir.const(3.0))
    assert ir.rebuild(ir.add(COLUMNS, x), (q, k)) is ir.add(k, q)
