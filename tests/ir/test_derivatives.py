from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_terms import K, Q, b, check_normal, k, q, table, tensor, value
from torch import Tensor

from attnfuse.ir import build as ir
from attnfuse.ir.axes import DType
from attnfuse.ir.derivatives import PARTIALS
from attnfuse.ir.normal import construct
from attnfuse.ir.ops import OPS
from attnfuse.ir.term import Term, make

NOT_DIFFERENTIABLE = {"const", "index", "length", "input", "slot"}
"""Leaves."""

DISCRETE = {"floordiv", "mod", "le", "lt", "eq", "and", "or", "not", "random"}
"""Ops whose operands or results are no floats, or that are constant almost everywhere."""

ELSEWHERE = {
    "gather",
    "indexed",
    "normalise",
    "rotate",
    "stored",
    "concat",
    "contract",
    "mask",
    "softmax",
    "logsumexp",
    "row_max",
    "entropy",
}
"""Ops that are not elementwise: their derivative isn't a factor for each element."""

X, Y, Z = (tensor(name, Q, K, dtype=DType.float64) for name in "xyz")
ROW = tensor("row", Q, dtype=DType.float64)
VISIBLE = ir.le(k, q)

CASES: dict[str, list[tuple[Term, ...]]] = {
    "add": [(X, Y), (X, ROW, Y), (X, X)],
    "mul": [(X, Y), (X, ROW, Y), (X, X, ROW)],
    "div": [(X, Y), (ROW, X)],
    "minimum": [(X, Y), (X, Y, Z), (ROW, X)],
    "maximum": [(X, Y), (X, Y, Z), (ROW, X)],
    "where": [(VISIBLE, X, Y), (VISIBLE, X, ROW)],
    **{name: [(X,), (ROW,)] for name in ("abs", "exp", "exp2", "log", "tanh", "sigmoid", "sqrt")},
    "cast": [(X,)],
}
"""Operands for each op that has partial derivatives."""

MOVED = [(name, parts) for name, cases in CASES.items() for parts in cases]


def draw(term: Term, seed: int) -> Tensor:
    """Numbers of either sign, no two alike and none near a kink or a pole."""
    shape = [4 if axis is K else 3 for axis in term.type.axes]
    generator = torch.Generator().manual_seed(seed)
    size = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5
    return size * (torch.randint(0, 2, shape, generator=generator) * 2 - 1)


def test_every_float_op_has_partial_derivatives_or_is_known_to_have_none() -> None:
    listed = set(PARTIALS) | NOT_DIFFERENTIABLE | DISCRETE | ELSEWHERE
    assert set(OPS) == listed
    assert not set(PARTIALS) & (NOT_DIFFERENTIABLE | DISCRETE | ELSEWHERE)
    elementwise = {name for name, op in OPS.items() if op.elementwise}
    assert elementwise == set(PARTIALS) | DISCRETE


def test_every_op_with_partial_derivatives_is_tested() -> None:
    assert set(CASES) == set(PARTIALS)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("name", "operands"), MOVED)
def test_partial_derivatives_are_those_of_autograd(
    name: str, operands: tuple[Term, ...], seed: int
) -> None:
    term = construct(OPS[name], operands, (DType.float32,) if name == "cast" else ())
    partials, operands = PARTIALS[name](term), term.operands
    assert len(partials) == len(operands)
    inputs = {leaf: draw(leaf, place + 5 * seed) for place, leaf in enumerate((X, Y, Z, ROW))}
    if name in ("log", "sqrt"):
        inputs = {leaf: each.abs() for leaf, each in inputs.items()}
    weights = torch.randn(value(term, inputs).shape, dtype=torch.float64)
    # each occurrence of a tensor is a variable of its own
    apart = [tensor(f"operand {place}", *each.type.axes) for place, each in enumerate(operands)]
    for place, (operand, partial) in enumerate(zip(operands, partials, strict=True)):
        if operand not in inputs:
            assert partial is None
            continue
        assert partial is not None
        check_normal(partial)
        leaf = inputs[operand].clone().requires_grad_()
        moved = make(
            term.op, (*operands[:place], apart[place], *operands[place + 1 :]), term.attributes
        )
        result = value(moved, inputs | {apart[place]: leaf}, exact=True)
        (wanted,) = torch.autograd.grad((result * weights).sum(), leaf)
        factor = value(partial, inputs, exact=True)
        dense = torch.broadcast_to(_over(factor, partial, term), weights.shape) * weights
        found = dense if leaf.dim() == dense.dim() else dense.sum(-1)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def _over(factor: Tensor, partial: Term, term: Term) -> Tensor:
    """A factor with a dimension for each axis of the result."""
    for place, axis in enumerate(term.type.axes):
        if axis not in partial.type.axes:
            factor = factor.unsqueeze(place)
    return factor


@given(st.lists(st.sampled_from([-1.0, 0.5, 2.0]), min_size=3, max_size=3))
def test_of_equal_operands_the_last_has_the_derivative(numbers: list[float]) -> None:
    terms = [tensor(f"x{place}", dtype=DType.float64) for place in range(3)]
    inputs = {term: torch.tensor(each) for term, each in zip(terms, numbers, strict=True)}
    for name, choose in (("minimum", min), ("maximum", max)):
        term = make(OPS[name], terms)
        found = [value(each, inputs, exact=True).item() for each in PARTIALS[name](term) if each]
        last = 2 - numbers[::-1].index(choose(numbers))
        assert found == [float(place == last) for place in range(3)]


def test_nothing_is_differentiated_through_what_is_no_float() -> None:
    count, flag = tensor("n", Q, dtype=DType.int32), tensor("p", Q, dtype=DType.bool)
    assert PARTIALS["cast"](ir.cast(ROW, DType.int32)) == (None,)
    assert PARTIALS["cast"](ir.cast(count, DType.float32)) == (None,)
    assert PARTIALS["cast"](ir.cast(flag, DType.float32)) == (None,)
    assert PARTIALS["where"](ir.where(flag, ROW, X))[0] is None


def test_closed_operands_have_derivatives_too() -> None:
    bias, slope = table("bias", 9, dtype=DType.float64), table("slope", 2, dtype=DType.float64)
    near, steep = ir.gather(bias, ir.sub(q, k)), ir.gather(slope, b)
    product = ir.mul(X, near, steep)
    by_x, by_packed = PARTIALS["mul"](product)
    assert by_x is ir.mul(near, steep)
    assert by_packed is X
    one, other = PARTIALS["mul"](ir.mul(near, steep))
    assert {one, other} == {near, steep}
