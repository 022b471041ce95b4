"""The reference backend against attention written densely in PyTorch, and autograd against it."""

from __future__ import annotations

import math

import pytest
import torch
from small_terms import FLOATS, HK, B, D, E, G, K, Q, array, h, k, kv_len, q, q_len, torch_type
from torch import Tensor

from attnfuse.backends.reference import evaluate, probabilities
from attnfuse.errors import WrongShape
from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis, DType, Size, Symbol
from attnfuse.ir.program import Program
from attnfuse.ir.term import Term
from attnfuse.ir.verify import verify

SCALE, CAP = 0.5, 2.0


def captured(name: str, rank: int, dtype: DType, *static: int) -> Term:
    """A captured tensor; its last sizes are those given, the others known at the call only."""
    symbols: list[Size] = [Symbol(f"{name}.{place}") for place in range(rank - len(static))]
    axes = [Axis(f"{name}.{place}", size) for place, size in enumerate([*symbols, *static])]
    return ir.input_(name, "captured", dtype, axes)


def attention(dtype: DType, tables: DType) -> Program:
    """Rope, grouped queries, softcap, a bias by head and distance, causal at the bottom right."""
    query = ir.input_("query", "query", dtype, (B, HK, G, Q, D))
    key = ir.input_("key", "key", dtype, (B, HK, K, D))
    v = ir.input_("v", "value", dtype, (B, HK, K, E))
    cos, sin = (captured(name, 2, tables, 2) for name in ("cos", "sin"))
    bias = captured("bias", 2, tables)
    offset = ir.add(q, ir.sub(kv_len, q_len))
    turned = ir.rotate(query, cos, sin, offset, "half")
    scores = ir.contract(turned, ir.rotate(key, cos, sin, k, "half"), over="d", dtype=tables)
    scaled = ir.mul(ir.const(SCALE / CAP), scores)
    capped = ir.mul(ir.const(CAP), ir.unary["tanh"](scaled))
    biased = ir.add(capped, ir.gather(bias, h, ir.sub(offset, k)))
    masked = ir.mask(biased, ir.le(k, offset))
    out = ir.contract(ir.softmax(masked), v, over="k", dtype=dtype)
    inputs = (query, key, v, cos, sin, bias)
    return Program("attention", inputs, (out, ir.logsumexp(masked)))


def tensors(queries: int, keys: int, dtype: DType, *, batch: int = 2) -> dict[str, Tensor]:
    """Inputs for a call of that many queries and keys."""
    generator = torch.Generator().manual_seed(queries * 100 + keys)
    shapes: dict[str, tuple[int, ...]] = {"bias": (6, keys), "angles": (keys, 2)}
    shapes |= {
        "query": (batch, 6, queries, 4),
        "key": (batch, 2, keys, 4),
        "v": (batch, 2, keys, 5),
    }
    drawn = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }
    angles = drawn.pop("angles")
    drawn |= {"cos": angles.cos(), "sin": angles.sin()}
    attended = ("query", "key", "v")
    wide = DType.float64 if dtype is DType.float64 else DType.float32
    return {
        name: each.to(torch_type(dtype if name in attended else wide))
        for name, each in drawn.items()
    }


def turn(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> Tensor:
    one, two = x[..., :2], x[..., 2:]
    c, s = cos[positions], sin[positions]
    return torch.cat([one * c - two * s, two * c + one * s], -1)


def dense(given: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log-sum-exp and probabilities, one query head at a time."""
    query, key, v, cos, sin, bias = (
        given[name] for name in ("query", "key", "v", "cos", "sin", "bias")
    )
    queries, keys = query.shape[2], key.shape[2]
    rows, columns = torch.arange(queries) + keys - queries, torch.arange(keys)
    outs: list[Tensor] = []
    sums: list[Tensor] = []
    weights: list[Tensor] = []
    for head in range(6):
        left = turn(query[:, head], cos, sin, rows.clamp(min=0))
        right = turn(key[:, head // 3], cos, sin, columns)
        scores = CAP * torch.tanh(left @ right.mT * (SCALE / CAP))
        distance = (rows[:, None] - columns).clamp(0, keys - 1)
        scores = scores + bias[head][distance]
        scores = scores.masked_fill(columns > rows[:, None], -math.inf)
        p = torch.softmax(scores, -1).nan_to_num(0.0)
        weights.append(p)
        sums.append(torch.logsumexp(scores, -1))
        outs.append(p.to(v.dtype) @ v[:, head // 3])
    return torch.stack(outs, 1), torch.stack(sums, 1), torch.stack(weights, 1)


EXACT = attention(DType.float64, DType.float64)


def test_the_program_of_these_tests_keeps_the_rules() -> None:
    for dtype in FLOATS:
        verify(attention(dtype, DType.float32))


@pytest.mark.parametrize(("queries", "keys"), [(3, 3), (2, 5), (1, 7), (5, 3)])
def test_attention_is_what_it_is_densely(queries: int, keys: int) -> None:
    given = tensors(queries, keys, DType.float64)
    out, lse = evaluate(EXACT, given, exact=True)
    (p,) = probabilities(EXACT, given)
    for found, wanted in zip((out, lse, p), dense(given), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert out.shape == (2, 6, queries, 5) and lse.shape == (2, 6, queries)
    assert p.shape == (2, 6, queries, keys)


def test_queries_that_see_nothing_get_zeros() -> None:
    given = tensors(5, 3, DType.float64)  # two more queries than keys
    out, lse = evaluate(EXACT, given, exact=True)
    (p,) = probabilities(EXACT, given)
    assert bool((out[:, :, :2] == 0).all()) and bool((p[:, :, :2] == 0).all())
    assert bool((lse[:, :, :2] == -math.inf).all())
    assert bool((p[:, :, 2:].sum(-1) - 1).abs().max() < 1e-12)


@pytest.mark.parametrize(("queries", "keys", "batch"), [(0, 3, 2), (2, 0, 2), (2, 3, 0), (0, 0, 0)])
def test_calls_without_queries_keys_or_batch_work(queries: int, keys: int, batch: int) -> None:
    given = tensors(queries, keys, DType.float64, batch=batch)
    given |= {name: torch.ones(1, 2, dtype=torch.float64) for name in ("cos", "sin")}
    given["bias"] = torch.ones(1, 1, dtype=torch.float64)
    out, lse = evaluate(EXACT, given, exact=True)
    assert out.shape == (batch, 6, queries, 5) and lse.shape == (batch, 6, queries)
    if keys == 0:
        assert bool((out == 0).all()) and bool((lse == -math.inf).all())


@pytest.mark.parametrize("dtype", [DType.float16, DType.bfloat16, DType.float32])
def test_as_typed_every_value_has_its_element_type(dtype: DType) -> None:
    program = attention(dtype, DType.float32)
    given = tensors(4, 6, dtype)
    out, lse = evaluate(program, given, exact=False)
    (p,) = probabilities(program, given)
    assert out.dtype == torch_type(dtype)
    assert lse.dtype == p.dtype == torch.float32
    wide = {name: each.double() for name, each in given.items()}
    wanted, sums, weights = dense(wide)
    eps = torch.finfo(torch_type(dtype)).eps
    torch.testing.assert_close(out.double(), wanted, rtol=2 * eps, atol=4 * eps)
    # rotated queries and keys are rounded to their own type, and that is all
    torch.testing.assert_close(lse.double(), sums, rtol=2 * eps, atol=4 * eps)
    torch.testing.assert_close(p.double(), weights, rtol=8 * eps, atol=4 * eps)
    assert bool((out.double() != wanted).any())


@pytest.mark.parametrize("dtype", [DType.float16, DType.bfloat16, DType.float32])
def test_exactly_everything_is_computed_in_float64(dtype: DType) -> None:
    program = attention(dtype, DType.float32)
    given = tensors(4, 6, dtype)
    found = evaluate(program, given, exact=True)
    wanted = dense({name: each.double() for name, each in given.items()})
    for one, other in zip(found, wanted[:2], strict=True):
        assert one.dtype == torch.float64
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_strides_do_not_matter() -> None:
    given = tensors(3, 4, DType.float64)
    moved = {name: each.mT.contiguous().mT for name, each in given.items()}
    assert not moved["query"].is_contiguous()
    found = evaluate(EXACT, moved, exact=True)
    for one, other in zip(found, evaluate(EXACT, given, exact=True), strict=True):
        assert torch.equal(one, other)


def test_inputs_are_left_as_they_were() -> None:
    given = tensors(3, 4, DType.float32)
    before = {name: each.clone() for name, each in given.items()}
    evaluate(attention(DType.float32, DType.float32), given, exact=True)
    assert all(torch.equal(given[name], each) for name, each in before.items())


# -- derivatives --------------------------------------------------------------------------------


@pytest.mark.parametrize(("queries", "keys"), [(2, 3), (3, 2)])
def test_gradients_are_those_of_finite_differences(queries: int, keys: int) -> None:
    given = tensors(queries, keys, DType.float64, batch=1)
    names = list(given)

    def outputs(*each: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = evaluate(EXACT, dict(zip(names, each, strict=True)), exact=True)
        return out, lse.masked_fill(lse == -math.inf, 0.0)

    leaves = [each.requires_grad_() for each in given.values()]
    assert torch.autograd.gradcheck(outputs, leaves)


@pytest.mark.parametrize("exact", [True, False])
def test_gradients_are_those_of_dense_attention_in_the_inputs_own_type(exact: bool) -> None:
    given = tensors(4, 6, DType.float32)
    leaves = [each.requires_grad_() for each in given.values()]
    out, lse = evaluate(attention(DType.float32, DType.float32), given, exact=exact)
    found = torch.autograd.grad((out.sin().sum(), lse.square().sum()), leaves)
    wide = {name: each.double() for name, each in given.items()}
    wanted, sums, _ = dense(wide)
    expected = torch.autograd.grad((wanted.sin().sum(), sums.square().sum()), leaves)
    for name, one, other in zip(given, found, expected, strict=True):
        assert one.dtype == torch.float32
        bound = 1e-6 if exact else 2e-5
        torch.testing.assert_close(one, other, rtol=bound, atol=bound, msg=name)
        assert bool((one != 0).any())


def test_rows_that_see_nothing_have_zero_and_finite_gradients() -> None:
    given = tensors(5, 3, DType.float64)
    leaves = [given[name].requires_grad_() for name in ("query", "key", "v", "bias")]
    out, lse = evaluate(EXACT, given, exact=True)
    gradients = torch.autograd.grad(out.sum() + lse[:, :, 2:].sum(), leaves)
    assert all(bool(each.isfinite().all()) for each in gradients)
    assert bool((gradients[0][:, :, :2] == 0).all())
    assert bool((gradients[0][:, :, 3:] != 0).any())


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("key", (3, 2, 4, 4), "query has (2, 6, 3, 4): batch must agree"),
        ("v", (2, 2, 5, 5), "key has (2, 2, 4, 4): kv_len must agree"),
        ("query", (2, 6, 12), "4 dimensions are wanted"),
        ("query", (2, 8, 3, 4), "this program was made for 6, not 8"),
        ("v", (2, 2, 4, 3), "this program was made for 5, not 3"),
        ("cos", (3, 2), "its dimension 0 is read at every af.k: give 1 or at least 4"),
        ("bias", (5, 4), "its dimension 0 is read at every af.h: give 1 or at least 6"),
        ("bias", (4,), "2 dimensions are wanted"),
    ],
)
def test_inputs_that_do_not_fit_together_are_refused(
    name: str, shape: tuple[int, ...], message: str
) -> None:
    given = tensors(3, 4, DType.float64)
    given[name] = torch.zeros(shape, dtype=torch.float64)
    for exact in (True, False):
        with pytest.raises(WrongShape) as raised:
            evaluate(EXACT, given, exact=exact)
        assert str(raised.value) == f"attention: {name} has shape {shape}; {message}"
    with pytest.raises(WrongShape):
        probabilities(EXACT, given)


def test_a_program_without_softmax_has_no_probabilities() -> None:
    x = ir.input_("x", "query", DType.float32, (Q, K))
    program = Program("p", (x,), (ir.mul(x, x), x))
    given = {"x": torch.ones(2, 3)}
    assert probabilities(program, given) == ()
    square, same = evaluate(program, given, exact=False)
    assert array(square).tolist() == array(same).tolist() == [[1.0] * 3] * 2
