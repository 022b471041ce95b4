"""The meaning of each op against plain numpy and PyTorch, written here once more."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_terms import (
    BATCH,
    FLOATS,
    HK,
    KV_LEN,
    Q_LEN,
    SIZES,
    B,
    D,
    E,
    G,
    K,
    Q,
    array,
    b,
    h,
    items,
    k,
    kv_len,
    q,
    q_len,
    table,
    tensor,
    torch_type,
    value,
)
from torch import Tensor

from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis, DType
from attnfuse.ir.ops import OPS
from attnfuse.ir.philox import philox
from attnfuse.ir.term import Term, make

COVERED: set[str] = set()
"""The ops whose meaning a test in this file establishes."""

Array = np.ndarray[Any, Any]


def means(*ops: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark a test as establishing the meaning of these ops."""

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        COVERED.update(ops)
        return test

    return mark


def test_every_op_has_a_test_of_its_meaning() -> None:
    assert set(OPS) == COVERED


def draw(*shape: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    """Random normal numbers in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64) * scale


def ints(low: int, high: int, *shape: int, seed: int = 0) -> Tensor:
    """Random integers, low ≤ x < high."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator, dtype=torch.int32)


def equal(found: Tensor, wanted: Tensor | Array | float) -> None:
    """Fail unless the two have the same shape and nearly the same numbers."""
    expected = wanted if isinstance(wanted, Tensor) else torch.as_tensor(np.asarray(wanted))
    assert found.shape == expected.shape
    torch.testing.assert_close(
        found.double(), expected.double(), rtol=1e-12, atol=1e-13, equal_nan=True
    )


def raw(op: str, *operands: Term, attributes: Iterable[Any] = ()) -> Term:
    """A term as it stands, so that no normal form comes between op and meaning."""
    return make(OPS[op], operands, tuple(attributes))


# -- leaves ----------------------------------------------------------------------


@means("input")
@pytest.mark.parametrize("dtype", FLOATS)
def test_an_input_is_the_tensor_that_was_given(dtype: DType) -> None:
    x, given_ = tensor("x", Q, D, dtype=dtype), draw(3, 4)
    typed = value(x, {x: given_})
    assert typed.dtype == torch_type(dtype) and torch.equal(typed, given_.to(typed.dtype))
    exact = value(x, {x: given_.to(typed.dtype)}, exact=True)
    assert exact.dtype == torch.float64 and torch.equal(exact, typed.double())


def test_an_input_of_integers_is_one_in_exact_evaluation_too() -> None:
    x, given_ = tensor("x", Q, dtype=DType.int32), torch.tensor([1, 2, 3])
    assert value(x, {x: given_}, exact=True).dtype == torch.int32


@means("const")
@pytest.mark.parametrize(
    ("number", "dtype"),
    [(3, torch.int32), (-0.1, torch.float32), (True, torch.bool), (math.inf, torch.float32)],
)
def test_a_constant_is_its_number(number: float, dtype: torch.dtype) -> None:
    found = value(ir.const(number))
    assert found.shape == () and found.dtype == dtype
    assert found.item() == torch.tensor(number, dtype=dtype).item()
    exact = value(ir.const(number), exact=True)
    assert exact.item() == number  # 0.1 itself, and not the float32 next to it
    assert exact.dtype == (torch.float64 if dtype is torch.float32 else dtype)


@means("index")
def test_an_index_counts_positions_and_heads_in_row_major_order() -> None:
    assert items(value(q)) == [0, 1, 2] and value(q).dtype == torch.int32
    assert items(value(h)) == [[0, 1, 2], [3, 4, 5]]
    assert items(value(ir.index("h", (HK,)))) == [0, 1]
    assert value(q, sizes=SIZES | {Q_LEN: 0}).shape == (0,)


@means("length")
def test_a_length_is_the_size_of_the_call() -> None:
    assert value(kv_len).item() == 4 and value(kv_len).dtype == torch.int32
    assert value(q_len, sizes=SIZES | {Q_LEN: 0}).item() == 0


@means("slot", "indexed")
def test_a_packed_value_is_its_form_over_its_tensors() -> None:
    x, y = table("x", 5), table("y", 4, 4)
    open_ = ir.add(ir.gather(x, ir.sub(q, k)), ir.mul(ir.gather(y, k, q), ir.gather(x, k)))
    packed = ir.pack(open_)
    assert packed.op.name == "indexed"
    assert any(leaf.op.name == "slot" for leaf in packed.form().operands[0].operands)
    inputs = {x: draw(5), y: draw(4, 4, seed=1)}
    wanted = np.zeros((3, 4))
    for i in range(3):
        for j in range(4):
            near = inputs[x][max(i - j, 0)]
            wanted[i, j] = near + inputs[y][j, i] * inputs[x][j]
    equal(value(packed, inputs, exact=True), wanted)
    assert torch.equal(value(packed, inputs), value(open_, inputs))


# -- arithmetic --------------------------------------------------------------------

ROUNDED_ONCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "minimum": lambda x, y: torch.where(x < y, x, y),
    "maximum": lambda x, y: torch.where(x < y, y, x),
}
FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sqrt": np.sqrt,
    "abs": np.abs,
}


@means(*ROUNDED_ONCE)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ROUNDED_ONCE)
def test_arithmetic_is_rounded_once_to_the_element_type(op: str, dtype: DType) -> None:
    x, y = tensor("x", B, Q, dtype=dtype), tensor("y", Q, K, dtype=dtype)
    term = raw(op, x, y)
    inputs = {x: draw(2, 3).to(torch_type(dtype)), y: draw(3, 4, seed=1).to(torch_type(dtype))}
    wide = {name: each.double() for name, each in inputs.items()}
    wanted = ROUNDED_ONCE[op](wide[x][:, :, None], wide[y][None])
    typed = value(term, inputs)
    assert term.type.dtype is dtype and typed.dtype == torch_type(dtype)
    assert torch.equal(typed, wanted.to(torch_type(dtype)))
    exact = value(term, inputs, exact=True)
    assert exact.dtype == torch.float64 and torch.equal(exact, wanted)


@pytest.mark.parametrize("op", ["add", "mul", "minimum", "maximum"])
def test_arithmetic_takes_any_number_of_operands(op: str) -> None:
    terms = [tensor(f"x{place}", Q, dtype=DType.float64) for place in range(4)]
    inputs = {term: draw(3, seed=place) for place, term in enumerate(terms)}
    stacked = array(torch.stack(list(inputs.values())))
    ufuncs = {"add": np.add, "mul": np.multiply, "minimum": np.minimum, "maximum": np.maximum}
    equal(value(raw(op, *terms), inputs), ufuncs[op].reduce(stacked, axis=0))


@means(*FUNCTIONS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_are_those_of_numpy_to_the_last_place(op: str, dtype: DType) -> None:
    x = tensor("x", Q, K, dtype=dtype)
    given_ = draw(3, 4).to(torch_type(dtype))
    given_ = given_.abs() if op in ("log", "sqrt") else given_
    term = raw(op, x)
    wanted = torch.as_tensor(FUNCTIONS[op](array(given_)))
    typed = value(term, {x: given_})
    assert typed.dtype == torch_type(dtype)
    place = torch.finfo(typed.dtype).eps * wanted.abs()
    assert bool(((typed.double() - wanted).abs() <= 1.5 * place).all())
    equal(value(term, {x: given_}, exact=True), wanted)


@pytest.mark.parametrize(
    ("one", "other", "result"),
    [
        (DType.float16, DType.bfloat16, DType.float32),
        (DType.float16, DType.float32, DType.float32),
        (DType.bfloat16, DType.float64, DType.float64),
        (DType.int32, DType.int64, DType.int64),
    ],
)
def test_the_wider_of_two_element_types_wins(one: DType, other: DType, result: DType) -> None:
    x, y = tensor("x", Q, dtype=one), tensor("y", Q, dtype=other)
    given_ = {x: torch.tensor([1, 2, 3]), y: torch.tensor([3, 5, 7])}
    for op in ("add", "mul", "maximum"):
        assert raw(op, x, y).type.dtype is result is raw(op, y, x).type.dtype
        assert value(raw(op, x, y), given_).dtype == torch_type(result)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_constant_has_no_width_of_its_own(dtype: DType) -> None:
    x, half = tensor("x", Q, dtype=dtype), ir.const(0.3)
    given_ = {x: draw(3).to(torch_type(dtype))}
    always = ir.le(ir.const(0), q)
    terms = [ir.mul(half, x), ir.add(x, half), ir.maximum(x, half), ir.where(always, x, half)]
    for term in terms:
        assert term.type.dtype is dtype
        assert value(term, given_).dtype == torch_type(dtype)
    scalar = table("scalar", dtype=dtype)
    assert ir.mul(half, scalar).type.dtype is dtype  # weaker than a tensor of any width
    assert ir.mul(x, table("wide", dtype=DType.float64)).type.dtype is dtype
    assert torch.equal(value(terms[0], given_), given_[x] * torch.tensor(0.3).to(torch_type(dtype)))


@means("floordiv", "mod")
@given(st.lists(st.integers(-50, 50), min_size=3, max_size=3), st.integers(1, 9))
def test_integers_divide_towards_minus_infinity(numbers: list[int], divisor: int) -> None:
    x = tensor("x", Q, dtype=DType.int32)
    inputs = {x: torch.tensor(numbers)}
    quotient, rest = (raw(name, x, ir.const(divisor)) for name in ("floordiv", "mod"))
    assert items(value(quotient, inputs)) == [number // divisor for number in numbers]
    assert items(value(rest, inputs)) == [number % divisor for number in numbers]
    assert value(quotient, inputs).dtype == torch.int32


@pytest.mark.parametrize("dtype", [DType.int32, DType.int64])
def test_integers_are_exact(dtype: DType) -> None:
    x = tensor("x", Q, dtype=dtype)
    large = torch.tensor([16_777_217, -16_777_219, 2_000_000_001])
    found = value(ir.add(x, ir.const(2)), {x: large}, exact=True)
    assert items(found) == [16_777_219, -16_777_217, 2_000_000_003]
    assert found.dtype == torch_type(dtype)
    assert items(value(ir.abs_(x), {x: large})) == [16_777_217, 16_777_219, 2_000_000_001]


@means("cast")
@pytest.mark.parametrize("to", FLOATS)
@pytest.mark.parametrize("of", [*FLOATS, DType.int32, DType.bool])
def test_a_cast_rounds_to_the_nearest(of: DType, to: DType) -> None:
    x = tensor("x", Q, dtype=of)
    numbers = torch.tensor([1.0009765625, -2.00390625, 0.3], dtype=torch.float64)
    given_ = numbers.to(torch_type(of))
    term = raw("cast", x, attributes=(to,))
    typed, exact = value(term, {x: given_}), value(term, {x: given_}, exact=True)
    assert typed.dtype == torch_type(to) and torch.equal(typed, given_.double().to(typed.dtype))
    assert exact.dtype == torch.float64 and torch.equal(exact, given_.double())


def test_a_cast_to_integers_drops_the_fraction() -> None:
    x = tensor("x", Q)
    found = value(ir.cast(x, DType.int32), {x: torch.tensor([1.9, -1.9, 0.0])}, exact=True)
    assert items(found) == [1, -1, 0] and found.dtype == torch.int32


def test_integers_become_floats_where_floats_are_among_them() -> None:
    x = tensor("x", K, dtype=DType.float64)
    inputs = {x: draw(4)}
    grid = np.arange(3)[:, None] - np.arange(4)[None]
    equal(value(ir.mul(x, ir.sub(q, k)), inputs), array(inputs[x])[None] * grid)
    equal(
        value(ir.div(q, ir.add(k, ir.const(1))), exact=True),
        (np.arange(3)[:, None] / np.arange(1, 5)),
    )


KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000"),
    ("6627e8d5 e169c58d bc57ac4c 9b00dbd8",),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff"),
    ("408f276d 41c83b0e a20bc7c6 6d5451fd",),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0"),
    ("d16cfe09 94fdcceb 5001e420 24126ea1",),
]
"""Random123's vectors for philox4x32-10: counter and key, then what is made of them."""


def _words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(
    ("given_", "made"), zip(KNOWN_ANSWERS[::2], KNOWN_ANSWERS[1::2], strict=True)
)
def test_philox_has_the_known_answers(given_: tuple[str, str], made: tuple[str]) -> None:
    counter, (low, high) = (list(map(torch.tensor, _words(text))) for text in given_)
    assert [int(word) for word in philox(counter, (low, high))] == _words(made[0])


@means("random")
@given(st.integers(-(2**63), 2**63 - 1))
def test_random_numbers_are_those_of_philox(number: int) -> None:
    seed = table("seed", dtype=DType.int64)
    term = ir.random(ir.gather(seed), b, q, k)
    assert term.type.dtype is DType.float32 and term.type.names == ("b", "q", "k")
    inputs = {seed: torch.tensor(number)}
    found, exact = (value(term, inputs, exact=exact) for exact in (False, True))
    assert found.dtype == torch.float32 and torch.equal(found.double(), exact)
    key = (torch.tensor(number & 0xFFFFFFFF), torch.tensor(number >> 32 & 0xFFFFFFFF))
    for place in np.ndindex(2, 3, 4):
        word, *_ = philox([torch.tensor(each) for each in (*place, 0)], key)
        assert found[place].item() == (int(word) >> 8) / 2**24


def test_random_numbers_are_uniform_and_do_not_depend_on_each_other() -> None:
    sizes = SIZES | {Q_LEN: 100, KV_LEN: 100}
    found = value(ir.random(ir.const(7), b, q, k), sizes=sizes).double()
    assert 0 <= found.min() < 0.001 and 0.999 < found.max() < 1
    assert abs(found.mean().item() - 0.5) < 0.01
    assert abs(found.var().item() - 1 / 12) < 0.003
    other = value(ir.random(ir.const(8), b, q, k), sizes=sizes).double()
    for one, two in ((found[0], found[1]), (found[:, 1:], found[:, :-1]), (found, other)):
        assert abs(((one - 0.5) * (two - 0.5)).mean().item()) < 0.003


# -- logic --------------------------------------------------------------------------


@means("le", "lt", "eq")
@pytest.mark.parametrize("dtype", [*FLOATS, DType.int32])
def test_comparisons_are_those_of_python(dtype: DType) -> None:
    x, y = tensor("x", Q, dtype=dtype), tensor("y", K, dtype=dtype)
    inputs = {x: torch.tensor([-1, 0, 2]), y: torch.tensor([-1, 1, 2, 3])}
    pairs = [[(i, j) for j in items(inputs[y])] for i in items(inputs[x])]
    for exact in (False, True):
        found = {name: value(raw(name, x, y), inputs, exact=exact) for name in ("le", "eq")}
        assert items(found["le"]) == [[i <= j for i, j in row] for row in pairs]
        assert items(found["eq"]) == [[i == j for i, j in row] for row in pairs]
        assert items(value(ir.lt(x, y), inputs, exact=exact)) == [
            [i < j for i, j in row] for row in pairs
        ]
        assert found["le"].dtype == torch.bool


def test_nothing_compares_with_a_number_that_is_none() -> None:
    x, y = tensor("x", Q), tensor("y", Q)
    inputs = {x: torch.tensor([math.nan, 1.0, math.inf]), y: torch.tensor([1.0, math.nan, 1.0])}
    assert items(value(ir.le(x, y), inputs)) == [False, False, False]
    assert items(value(ir.not_(ir.le(x, y)), inputs)) == [True, True, True]
    assert items(value(ir.lt(y, x), inputs)) == [False, False, True]


@means("and", "or", "not")
def test_logic_is_that_of_python() -> None:
    x, y, z = (
        tensor(name, axis, dtype=DType.bool) for name, axis in zip("xyz", (B, Q, K), strict=True)
    )
    size = {BATCH: 2, Q_LEN: 2, KV_LEN: 2}
    both = torch.tensor([False, True])
    inputs = {x: both, y: both, z: both}
    cube = [[[(i, j, m) for m in (0, 1)] for j in (0, 1)] for i in (0, 1)]
    found = value(raw("and", x, y, z), inputs, sizes=size)
    assert items(found) == [[[all(each) for each in row] for row in face] for face in cube]
    found = value(raw("or", x, y, z), inputs, sizes=size)
    assert items(found) == [[[any(each) for each in row] for row in face] for face in cube]
    assert items(value(raw("not", x), inputs, sizes=size)) == [True, False]
    assert items(value(raw("eq", x, y), inputs, sizes=size)) == [[True, False], [False, True]]


@means("where")
@pytest.mark.parametrize("dtype", [*FLOATS, DType.int32, DType.bool])
def test_where_chooses_element_by_element(dtype: DType) -> None:
    x, y = tensor("x", Q, dtype=dtype), tensor("y", B, K, dtype=dtype)
    inputs = {x: draw(3).to(torch_type(dtype)), y: draw(2, 4, seed=1).to(torch_type(dtype))}
    found = value(raw("where", ir.le(k, q), x, y), inputs)
    assert found.dtype == torch_type(dtype) and found.shape == (2, 3, 4)
    for i, j, m in np.ndindex(2, 3, 4):
        assert found[i, j, m] == (inputs[x][j] if m <= j else inputs[y][i, m])


def test_values_broadcast_over_the_axes_that_they_lack_whatever_these_are() -> None:
    axes = {"b": B, "hk": HK, "g": G, "q": Q, "k": K}
    sizes = dict(zip(axes, (2, 2, 3, 3, 4), strict=True))
    whole = list(axes)
    for left in (["g", "k"], ["b", "q"], [], ["hk"], ["b", "hk", "g", "q", "k"]):
        right = [name for name in whole if name not in left] + left[:1]
        right.sort(key=whole.index)
        x = tensor("x", *(axes[name] for name in left), dtype=DType.float64)
        y = tensor("y", *(axes[name] for name in right), dtype=DType.float64)
        inputs = {
            x: draw(*(sizes[name] for name in left)),
            y: draw(*(sizes[name] for name in right), seed=1),
        }
        term = raw("add", x, y)
        assert term.type.names == tuple(whole)
        letters = dict(zip(whole, "abcde", strict=True))
        spelled = ["".join(letters[name] for name in names) for names in (left, right)]
        ones = torch.ones([sizes[name] for name in whole], dtype=torch.float64)
        wanted = sum(
            torch.einsum(f"{spelling},abcde->abcde", each, ones)
            for spelling, each in zip(spelled, inputs.values(), strict=True)
        )
        equal(value(term, inputs), wanted)


# -- captured tensors ------------------------------------------------------------------


@means("gather")
@given(st.data())
def test_gathering_reads_the_nearest_entry(data: st.DataObject) -> None:
    rows, columns = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    shift, factor = data.draw(st.tuples(st.integers(-6, 6), st.integers(-2, 2)))
    x = table("x", rows, columns, dtype=DType.float64)
    first = ir.add(ir.mul(ir.const(factor), q), b, ir.const(shift))
    inputs = {x: draw(rows, columns)}
    found = value(ir.gather(x, raw("add", first, raw("mul", ir.const(0), q)), k), inputs)
    assert found.shape == (2, 3, 4)
    for i, j, m in np.ndindex(2, 3, 4):
        row = min(max(factor * j + i + shift, 0), rows - 1)
        assert found[i, j, m] == inputs[x][row, min(m, columns - 1)]


@pytest.mark.parametrize("dtype", [*FLOATS, DType.int64, DType.bool])
def test_gathering_keeps_the_element_type(dtype: DType) -> None:
    x = table("x", 1, dtype=dtype)
    found = value(ir.gather(x, q), {x: torch.ones(1)})
    assert found.dtype == torch_type(dtype) and items(found) == [1, 1, 1]


def test_gathering_from_a_scalar_reads_it() -> None:
    x = table("x", dtype=DType.float64)
    equal(value(ir.gather(x), {x: torch.tensor(2.5)}), 2.5)


def test_gathering_from_an_empty_tensor_gives_zeros() -> None:
    x = table("x", 0, 3, dtype=DType.float64)
    equal(value(ir.gather(x, q, k), {x: torch.zeros(0, 3)}), np.zeros((3, 4)))


def test_the_gradient_of_gathering_adds_up_over_all_that_read() -> None:
    x = table("x", 3, dtype=DType.float64)
    leaf = draw(3).requires_grad_()
    total = value(ir.gather(x, ir.sub(q, k)), {x: leaf}).sum()
    (gradient,) = torch.autograd.grad(total, leaf)
    counts = [0, 0, 0]
    for i, j in np.ndindex(3, 4):
        counts[max(i - j, 0)] += 1
    assert items(gradient) == counts


# -- rotation, storage, concatenation ----------------------------------------------------


def _rotated(*tensors: Tensor, pairing: str) -> Array:
    """Rotation of x, (batch, positions, features), pair by pair."""
    x, cos, sin, positions = map(array, tensors)
    result, half = x.copy(), cos.shape[1]
    for row in np.ndindex(x.shape[:2]):
        place = min(max(int(positions[row]), 0), len(cos) - 1)
        for pair in range(half):
            one, two = (2 * pair, 2 * pair + 1) if pairing == "interleaved" else (pair, pair + half)
            turned = complex(x[(*row, one)], x[(*row, two)]) * complex(
                cos[place, pair], sin[place, pair]
            )
            result[(*row, one)], result[(*row, two)] = turned.real, turned.imag
    return result


@means("rotate")
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("given_positions", [False, True])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_rotation_turns_each_pair_of_features(
    pairing: str, given_positions: bool, width: int
) -> None:
    x = tensor("x", B, Q, D, dtype=DType.float64)
    cos, sin = (table(name, 5, width, dtype=DType.float64) for name in ("cos", "sin"))
    places = table("places", 2, 3, dtype=DType.int64)
    angles = draw(5, width, seed=1)
    inputs = {x: draw(2, 3, 4), cos: angles.cos(), sin: angles.sin()}
    inputs[places] = torch.tensor([[4, 0, 7], [-2, 1, 1]])
    positions = ir.gather(places, b, q) if given_positions else q
    term = ir.rotate(x, cos, sin, positions, pairing)
    rows = inputs[places] if given_positions else torch.arange(3).expand(2, 3)
    turned = _rotated(inputs[x], inputs[cos], inputs[sin], rows, pairing=pairing)
    equal(value(term, inputs), turned)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rotation_is_rounded_once(dtype: DType) -> None:
    x = tensor("x", B, Q, D, dtype=dtype)
    cos, sin = (table(name, 3, 2) for name in ("cos", "sin"))
    inputs = {x: draw(2, 3, 4).to(torch_type(dtype)), cos: draw(3, 2).cos(), sin: draw(3, 2).sin()}
    inputs = {name: each.to(torch_type(name.type.dtype)) for name, each in inputs.items()}
    found = value(ir.rotate(x, cos, sin, q, "half"), inputs)
    rows = torch.arange(3).expand(2, 3)
    wanted = torch.as_tensor(_rotated(inputs[x], inputs[cos], inputs[sin], rows, pairing="half"))
    assert found.dtype == torch_type(dtype)
    limits = torch.finfo(found.dtype)
    bound = wanted.abs() * limits.eps + (1e-6 if dtype is not DType.float64 else 1e-15)
    assert bool(((found.double() - wanted).abs() <= bound).all())


def test_rotation_by_tables_of_several_lengths_reads_the_nearest_row_of_each() -> None:
    x = tensor("x", Q, D, dtype=DType.float64)
    cos, sin = table("cos", 3, 2, dtype=DType.float64), table("sin", 1, 2, dtype=DType.float64)
    inputs = {x: draw(3, 4), cos: draw(3, 2), sin: draw(1, 2, seed=1)}
    wide = inputs | {sin: inputs[sin].expand(3, 2)}
    full = table("sin", 3, 2, dtype=DType.float64)
    wide[full] = wide.pop(sin)
    for pairing in ("half", "interleaved"):
        found = value(ir.rotate(x, cos, sin, q, pairing), inputs)
        equal(found, value(ir.rotate(x, cos, full, q, pairing), wide))


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_inverse_rotation_turns_back_and_is_the_derivative(pairing: str) -> None:
    x = tensor("x", Q, D, dtype=DType.float64)
    cos, sin = (table(name, 3, 2, dtype=DType.float64) for name in ("cos", "sin"))
    angles, weights = draw(3, 2, seed=1), draw(3, 4, seed=2)
    inputs = {x: draw(3, 4).requires_grad_(), cos: angles.cos(), sin: angles.sin()}
    turned = ir.rotate(x, cos, sin, q, pairing)
    back = ir.rotate(turned, cos, sin, q, pairing, inverse=True)
    equal(value(back, inputs), inputs[x])
    (gradient,) = torch.autograd.grad((value(turned, inputs) * weights).sum(), inputs[x])
    inverse = ir.rotate(x, cos, sin, q, pairing, inverse=True)
    equal(gradient, value(inverse, inputs | {x: weights}))
    assert "inverse=True" in str(inverse)
    assert "inverse" not in str(turned)


@means("stored")
def test_a_stored_value_is_the_value() -> None:
    x = tensor("x", Q, dtype=DType.float16)
    term = ir.stored(ir.mul(x, x))
    inputs = {x: draw(3)}
    assert term.op.name == "stored"
    assert torch.equal(value(term, inputs), value(ir.mul(x, x), inputs))


@means("concat")
def test_concatenation_puts_one_after_another_and_broadcasts() -> None:
    x = tensor("x", B, Q, D, dtype=DType.float64)
    y = tensor("y", Q, Axis("d", 3), dtype=DType.float64)
    term = ir.concat(x, y, x, over="d")
    assert term.type.axis("d").size == 11
    inputs = {x: draw(2, 3, 4), y: draw(3, 3)}
    arrays = [array(inputs[x]), np.stack([array(inputs[y])] * 2), array(inputs[x])]
    equal(value(term, inputs), np.concatenate(arrays, axis=2))


# -- contraction ---------------------------------------------------------------------------


@means("contract")
@pytest.mark.parametrize("dtype", FLOATS)
def test_contraction_sums_products_in_float32_at_least(dtype: DType) -> None:
    wide = Axis("d", 64)
    x, y = tensor("x", B, Q, wide, dtype=dtype), tensor("y", B, K, wide, dtype=dtype)
    inputs = {x: draw(2, 3, 64).to(torch_type(dtype)), y: draw(2, 4, 64).to(torch_type(dtype))}
    arrays = [array(inputs[each]) for each in (x, y)]
    wanted = torch.as_tensor(np.einsum("bqd,bkd->bqk", *arrays))
    equal(value(ir.contract(x, y, over="d", dtype=dtype), inputs, exact=True), wanted)
    scale = torch.as_tensor(np.einsum("bqd,bkd->bqk", *map(np.abs, arrays)))
    sums = 1e-14 if dtype is DType.float64 else 1e-6
    for result in (DType.float32, dtype):
        found = value(ir.contract(x, y, over="d", dtype=result), inputs)
        assert found.dtype == torch_type(result)
        eps = torch.finfo(found.dtype).eps
        assert bool(((found.double() - wanted).abs() <= sums * scale + eps * wanted.abs()).all())


def test_a_query_head_reads_the_key_head_of_its_group() -> None:
    p = tensor("p", HK, G, Q, K, dtype=DType.float64)
    v = tensor("v", HK, K, E, dtype=DType.float64)
    heads = torch.arange(2, dtype=torch.float64)
    inputs = {p: torch.full((2, 3, 3, 4), 0.25), v: heads[:, None, None].expand(2, 4, 5)}
    term = ir.contract(p, v, over="k", dtype=DType.float64)
    assert term.type.names == ("hk", "g", "q", "e")
    found = value(term, inputs).flatten(0, 1)
    for head in range(6):
        assert bool((found[head] == head // 3).all())
    heads_of = value(h).flatten()
    assert items(heads_of) == list(range(6))


def test_contraction_over_nothing_is_zero() -> None:
    x, y = tensor("x", Q, K), tensor("y", K, E)
    none = SIZES | {KV_LEN: 0}
    found = value(
        ir.contract(x, y, over="k", dtype=DType.float32),
        {x: torch.zeros(3, 0), y: torch.zeros(0, 5)},
        sizes=none,
    )
    assert items(found) == [[0.0] * 5] * 3


# -- masks and normalisers ------------------------------------------------------------------


def scores(dtype: DType = DType.float64) -> Term:
    return tensor("s", B, Q, K, dtype=dtype)


@means("normalise")
@pytest.mark.parametrize("dtype", FLOATS)
def test_normalised_features_have_length_one_times_the_weight(dtype: DType) -> None:
    x, gain = tensor("x", Q, D, dtype=dtype), table("gain", 4, dtype=DType.float64)
    weight = ir.gather(gain, ir.index("d", (D,)))
    inputs = {x: draw(3, 4).to(torch_type(dtype)), gain: draw(4, seed=1)}
    inputs[x][0] = 0.0
    rows, gains = items(inputs[x]), items(inputs[gain])
    for kind, eps in (("rms", 1e-3), ("l2", 0.5), ("rms", 0.0)):
        found = value(ir.normalise(x, weight, kind, eps), inputs)
        assert found.dtype == torch_type(dtype)
        for row, got in zip(rows, found, strict=True):
            squares = math.fsum(each * each for each in row)
            divisor = math.sqrt(squares / 4 + eps) if kind == "rms" else max(squares**0.5, eps)
            if divisor == 0.0:
                assert got.isnan().all()
                continue
            wanted = [each / divisor * g for each, g in zip(row, gains, strict=True)]
            exact = torch.tensor(wanted, dtype=torch.float64)
            kinds = torch.finfo(got.dtype)
            assert bool(((got.double() - exact).abs() <= 2 * kinds.eps * exact.abs()).all())


@means("mask")
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_mask_is_minus_infinity_where_nothing_is_visible(dtype: DType) -> None:
    s = tensor("s", Q, K, dtype=dtype)
    inputs = {s: draw(3, 4).to(torch_type(dtype))}
    found = value(ir.mask(s, ir.le(ir.add(k, b), q)), inputs)
    assert found.dtype == torch_type(dtype) and found.shape == (2, 3, 4)
    for i, j, m in np.ndindex(2, 3, 4):
        assert found[i, j, m] == (inputs[s][j, m] if m + i <= j else -math.inf)


def _softmax(row: list[float]) -> tuple[list[float], float]:
    """Softmax and log-sum-exp of one row, with Python's floats."""
    top = max(row, default=-math.inf)
    if top == -math.inf:
        return [0.0] * len(row), -math.inf
    weights = [math.exp(each - top) for each in row]
    total = math.fsum(weights)
    return [weight / total for weight in weights], top + math.log(total)


logits = st.floats(-120, 120) | st.sampled_from([-120.0, 0.0, 120.0, -math.inf])


@means("softmax", "logsumexp")
@given(st.lists(st.lists(logits, min_size=4, max_size=4), min_size=3, max_size=3))
def test_softmax_and_logsumexp_of_any_row(rows: list[list[float]]) -> None:
    s = tensor("s", Q, K, dtype=DType.float64)
    leaf = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    p, lse = (value(term, {s: leaf}) for term in (ir.softmax(s), ir.logsumexp(s)))
    for place, row in enumerate(rows):
        weights, total = _softmax(row)
        equal(p[place].detach(), np.array(weights))
        equal(lse[place].detach(), total)
        seen = any(each > -math.inf for each in row)
        assert p[place].sum().item() == pytest.approx(1.0 if seen else 0.0, abs=1e-14)
    # the derivative of the log-sum-exp is the softmax, and 0 in a row that sees nothing
    (gradient,) = torch.autograd.grad(lse[lse > -math.inf].sum(), leaf, retain_graph=True)
    equal(gradient, p.detach())
    (gradient,) = torch.autograd.grad(lse.sum() + p.square().sum(), leaf)
    assert bool(gradient.isfinite().all())


@means("row_max", "entropy")
@given(st.lists(st.lists(logits, min_size=4, max_size=4), min_size=3, max_size=3))
def test_maximum_and_entropy_of_any_row(rows: list[list[float]]) -> None:
    s = tensor("s", Q, K, dtype=DType.float64)
    leaf = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    top, entropy = (value(term, {s: leaf}) for term in (ir.row_max(s), ir.entropy(s)))
    for place, row in enumerate(rows):
        weights, _ = _softmax(row)
        assert top[place].item() == max(row)
        wanted = -math.fsum(weight * math.log(weight) for weight in weights if weight > 0)
        assert entropy[place].item() == pytest.approx(wanted, abs=1e-12)
    (gradient,) = torch.autograd.grad(entropy.sum() + top[top > -math.inf].sum(), leaf)
    assert bool(gradient.isfinite().all())
    assert bool((gradient[leaf == -math.inf] == 0).all())


def test_maximum_and_entropy_have_the_derivatives_of_finite_differences() -> None:
    s = scores()
    masked = ir.mask(s, ir.lt(k, q))  # query 0 sees nothing, query 1 one key

    def of(leaf: Tensor) -> tuple[Tensor, Tensor]:
        top, entropy = (value(each(masked), {s: leaf}) for each in (ir.row_max, ir.entropy))
        return top.masked_fill(top == -math.inf, 0.0), entropy

    leaf = draw(2, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(of, leaf)
    (gradient,) = torch.autograd.grad(of(leaf)[0].sum() + of(leaf)[1].sum(), leaf)
    assert bool((gradient[:, 0] == 0).all())


@pytest.mark.parametrize("dtype", FLOATS)
def test_statistics_are_float32_at_least(dtype: DType) -> None:
    s = tensor("s", Q, Axis("k", 3000), dtype=dtype)
    inputs = {s: draw(3, 3000).to(torch_type(dtype))}
    wide = value(ir.entropy(s), inputs, exact=True)
    for term in (ir.row_max(s), ir.entropy(s)):
        found = value(term, inputs)
        assert found.dtype == (torch.float64 if dtype is DType.float64 else torch.float32)
    assert bool(((value(ir.entropy(s), inputs) - wide).abs() < 1e-5).all())
    assert bool((wide > 4).all())
    assert bool((wide < math.log(3000)).all())


@pytest.mark.parametrize("exact", [False, True])
def test_a_row_that_sees_nothing_has_zero_gradients(exact: bool) -> None:
    s = scores(DType.float32)
    masked = ir.mask(s, ir.lt(k, q))  # query 0 sees nothing
    leaf = draw(2, 3, 4).float().requires_grad_()
    p, lse = (value(each(masked), {s: leaf}, exact=exact) for each in (ir.softmax, ir.logsumexp))
    assert bool((p[:, 0] == 0).all()) and bool((lse[:, 0] == -math.inf).all())
    assert bool(p.isfinite().all()) and bool(lse[:, 1:].isfinite().all())
    weights = draw(2, 3, 4, seed=1).to(p.dtype)
    total = (p * weights).sum() + (lse * weights[..., 0]).sum()
    (gradient,) = torch.autograd.grad(total, leaf)
    assert bool(gradient.isfinite().all())
    assert bool((gradient[:, 0] == 0).all()) and bool((gradient[:, 1, 0] != 0).all())


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_and_logsumexp_are_rounded_once(dtype: DType) -> None:
    long = tensor("s", Q, Axis("k", 3000), dtype=dtype)
    inputs = {long: draw(3, 3000).to(torch_type(dtype))}
    rows = [_softmax(row) for row in items(inputs[long])]
    p, lse = value(ir.softmax(long), inputs), value(ir.logsumexp(long), inputs)
    assert p.dtype == torch_type(dtype)
    assert lse.dtype == (torch.float64 if dtype is DType.float64 else torch.float32)
    for found, wanted in (
        (p, torch.tensor([row[0] for row in rows], dtype=torch.float64)),
        (lse, torch.tensor([row[1] for row in rows], dtype=torch.float64)),
    ):
        kind = torch.finfo(found.dtype)
        bound = kind.eps * wanted.abs() + kind.smallest_normal * kind.eps
        bound += 0.0 if found.dtype in (torch.float16, torch.bfloat16) else 20 * kind.eps * wanted
        assert bool(((found.double() - wanted).abs() <= bound).all())


def test_softmax_is_over_the_keys_wherever_their_axis_stands() -> None:
    s = tensor("s", Q, K, E, dtype=DType.float64)
    inputs = {s: draw(3, 4, 5)}
    weights = np.exp(array(inputs[s]))
    equal(value(ir.softmax(s), inputs), weights / weights.sum(axis=1, keepdims=True))
    equal(value(ir.logsumexp(s), inputs), np.log(weights.sum(axis=1)))


@pytest.mark.parametrize("empty", [BATCH, Q_LEN, KV_LEN])
def test_axes_of_length_zero_need_no_special_case(empty: object) -> None:
    sizes = {symbol: 0 if symbol == empty else size for symbol, size in SIZES.items()}
    shape = [sizes[symbol] for symbol in (BATCH, Q_LEN, KV_LEN)]
    s, v = scores(DType.float32), tensor("v", B, K, E)
    masked = ir.mask(ir.add(s, ir.gather(table("bias", 3), k)), ir.le(k, q))
    p = ir.softmax(masked)
    leaf = torch.zeros(shape, requires_grad=True)
    inputs = {s: leaf, v: torch.ones(shape[0], shape[2], 5), table("bias", 3): torch.ones(3)}
    found = value(p, inputs, sizes=sizes)
    out = value(ir.contract(p, v, over="k", dtype=DType.float32), inputs, sizes=sizes)
    lse = value(ir.logsumexp(masked), inputs, sizes=sizes)
    top, entropy = (value(each(masked), inputs, sizes=sizes) for each in (ir.row_max, ir.entropy))
    assert list(found.shape) == shape
    assert torch.equal(top, lse) or empty != KV_LEN
    assert list(top.shape) == list(entropy.shape) == shape[:2]
    assert bool((entropy == 0).all())
    assert list(out.shape) == [*shape[:2], 5] and bool((out == 0).all())
    assert list(lse.shape) == shape[:2] and bool((lse == -math.inf).all())
    (gradient,) = torch.autograd.grad(out.sum(), leaf)
    assert gradient.shape == leaf.shape
