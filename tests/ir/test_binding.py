from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_terms import BATCH, HK, KV_LEN, Q_LEN, B, D, G, K, Q, b, h, k, q

from attnfuse.errors import WrongShape
from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis, DType, Symbol
from attnfuse.ir.binding import Shape, bind_sizes
from attnfuse.ir.layout import dimensions, extent, label
from attnfuse.ir.program import Program
from attnfuse.ir.term import Term

FLOAT = DType.float32


def captured(name: str, rank: int, dtype: DType = FLOAT) -> Term:
    """A captured tensor whose sizes are known at the call only."""
    axes = [Axis(f"{name}.{place}", Symbol(f"{name}.{place}")) for place in range(rank)]
    return ir.input_(name, "captured", dtype, axes)


QUERY = ir.input_("query", "query", FLOAT, (B, HK, G, Q, D))
KEY = ir.input_("key", "key", FLOAT, (B, HK, K, D))
SLOPES, BIAS, LENGTHS = captured("slopes", 1), captured("bias", 2), captured("lengths", 1)


def program(*parts: Term, inputs: tuple[Term, ...] = (SLOPES, BIAS, LENGTHS)) -> Program:
    """Scores with further summands, which read the inputs."""
    scores = ir.contract(QUERY, KEY, over="d", dtype=FLOAT)
    return Program("scores", (QUERY, KEY, *inputs), (ir.add(scores, *parts),))


READS = program(
    ir.mul(ir.gather(SLOPES, h), ir.sub(k, q)),
    ir.gather(BIAS, q, k),
    ir.gather(LENGTHS, b),
)
SHAPES: dict[str, Shape] = {
    "query": (2, 6, 3, 4),
    "key": (2, 2, 5, 4),
    "slopes": (6,),
    "bias": (3, 5),
    "lengths": (2,),
}


def refused(target: Program, **shapes: Shape) -> str:
    """The message about a call with other shapes."""
    with pytest.raises(WrongShape) as raised:
        bind_sizes(target, SHAPES | shapes)
    return str(raised.value)


def test_sizes_are_read_off_the_shapes() -> None:
    assert bind_sizes(READS, SHAPES) == {
        BATCH: 2,
        Q_LEN: 3,
        KV_LEN: 5,
        Symbol("slopes.0"): 6,
        Symbol("bias.0"): 3,
        Symbol("bias.1"): 5,
        Symbol("lengths.0"): 2,
    }


@given(st.tuples(*[st.integers(0, 4)] * 3), st.tuples(*[st.integers(0, 3)] * 3))
def test_a_captured_tensor_may_be_larger_than_what_is_read(
    sizes: tuple[int, int, int], more: tuple[int, int, int]
) -> None:
    batch, queries, keys = sizes
    shapes = {
        "query": (batch, 6, queries, 4),
        "key": (batch, 2, keys, 4),
        "slopes": (6 + more[0],),
        "bias": (queries + more[0], keys + more[1]),
        "lengths": (batch + more[2],),
    }
    found = bind_sizes(READS, shapes)
    assert [found[symbol] for symbol in (BATCH, Q_LEN, KV_LEN)] == list(sizes)


def test_dimensions_of_size_one_are_read_everywhere() -> None:
    one: dict[str, Shape] = {"slopes": (1,), "bias": (1, 1), "lengths": (1,)}
    assert bind_sizes(READS, SHAPES | one)[Symbol("bias.1")] == 1


@pytest.mark.parametrize("shape", [(2, 6, 3), (2, 6, 3, 4, 1), ()])
def test_a_wrong_number_of_dimensions_is_refused(shape: Shape) -> None:
    wanted = f"scores: query has shape {shape}; 4 dimensions are wanted"
    assert refused(READS, query=shape) == wanted


def test_a_clashing_batch_is_refused() -> None:
    wanted = "scores: key has shape (3, 2, 5, 4); query has (2, 6, 3, 4): batch must agree"
    assert refused(READS, key=(3, 2, 5, 4)) == wanted


def test_a_batch_of_one_is_no_exception() -> None:
    assert "batch must agree" in refused(READS, key=(1, 2, 5, 4))


def test_a_symbol_clashes_with_whoever_gave_it_first() -> None:
    same, other = (ir.input_(name, "key", FLOAT, (K,)) for name in ("same", "other"))
    target = program(same, other, inputs=(same, other))
    shapes: dict[str, Shape] = {"query": (2, 6, 3, 4), "key": (2, 2, 5, 4)}
    shapes |= {"same": (5,), "other": (6,)}
    with pytest.raises(WrongShape) as raised:
        bind_sizes(target, shapes)
    wanted = "scores: other has shape (6,); key has (2, 2, 5, 4): kv_len must agree"
    assert str(raised.value) == wanted


@pytest.mark.parametrize(
    ("name", "shape", "made_for", "given_"),
    [
        ("query", (2, 6, 3, 8), 4, 8),
        ("key", (2, 2, 5, 3), 4, 3),
        ("query", (2, 4, 3, 4), 6, 4),
        ("key", (2, 6, 5, 4), 2, 6),
    ],
)
def test_another_static_size_is_refused(
    name: str, shape: Shape, made_for: int, given_: int
) -> None:
    wanted = f"scores: {name} has shape {shape}; this program was made for {made_for}, not {given_}"
    assert refused(READS, **{name: shape}) == wanted


@pytest.mark.parametrize(
    ("name", "shape", "dimension", "index", "least"),
    [
        ("slopes", (5,), 0, "h", 6),
        ("slopes", (2,), 0, "h", 6),
        ("slopes", (0,), 0, "h", 6),
        ("bias", (2, 5), 0, "q", 3),
        ("bias", (3, 4), 1, "k", 5),
        ("lengths", (0,), 0, "b", 2),
    ],
)
def test_a_captured_tensor_that_is_too_small_is_refused(
    name: str, shape: Shape, dimension: int, index: str, least: int
) -> None:
    assert refused(READS, **{name: shape}) == (
        f"scores: {name} has shape {shape}; its dimension {dimension} is read at every "
        f"af.{index}: give 1 or at least {least}"
    )


def test_a_table_that_is_read_by_an_expression_may_have_any_size() -> None:
    near = program(ir.gather(SLOPES, ir.sub(q, k)), inputs=(SLOPES,))
    assert bind_sizes(near, SHAPES | {"slopes": (2,)})[Symbol("slopes.0")] == 2


def test_reads_in_a_mask_and_of_rotations_are_checked_too() -> None:
    cos, sin = (
        ir.input_(name, "captured", FLOAT, (Axis(f"{name}.0", Symbol(f"{name}.0")), Axis("r", 2)))
        for name in ("cos", "sin")
    )
    turned = ir.rotate(QUERY, cos, sin, q, "half")
    scores = ir.contract(turned, KEY, over="d", dtype=FLOAT)
    documents = captured("documents", 1, DType.int32)
    masked = ir.mask(scores, ir.eq(ir.gather(documents, k), ir.const(0)))
    target = Program("p", (QUERY, KEY, cos, sin, documents), (ir.softmax(masked),))
    tables: dict[str, Shape] = {"cos": (3, 2), "sin": (3, 2), "documents": (5,)}
    assert bind_sizes(target, SHAPES | tables)[Symbol("cos.0")] == 3
    assert "sin has shape (2, 2); its dimension 0 is read at every af.q: give 1 or at least 3" in (
        refused(target, **(tables | {"sin": (2, 2)}))
    )
    assert "documents has shape (4,); its dimension 0 is read at every af.k" in (
        refused(target, **(tables | {"documents": (4,)}))
    )


def test_callers_pass_the_two_axes_of_query_heads_as_one_dimension() -> None:
    found = dimensions(QUERY.type.axes)
    assert found == ((B,), (HK, G), (Q,), (D,))
    assert [extent(each) for each in found] == [BATCH, 6, Q_LEN, 4]
    assert [label(each) for each in found] == ["b", "h", "q", "d"]
    assert dimensions(KEY.type.axes) == ((B,), (HK,), (K,), (D,))
    assert dimensions(()) == ()
