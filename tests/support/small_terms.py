"""Small terms for tests: a few axes, indices and tensors, and how to evaluate them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis, DType, Symbol
from attnfuse.ir.evaluate import Evaluation
from attnfuse.ir.normal import rebuild
from attnfuse.ir.term import Term, walk

BATCH, Q_LEN, KV_LEN = Symbol("batch"), Symbol("q_len"), Symbol("kv_len")
B, Q, K = Axis("b", BATCH), Axis("q", Q_LEN), Axis("k", KV_LEN)
HK, G, D, E = Axis("hk", 2), Axis("g", 3), Axis("d", 4), Axis("e", 5)

b, h, q, k = ir.index("b", (B,)), ir.index("h", (HK, G)), ir.index("q", (Q,)), ir.index("k", (K,))
q_len, kv_len = ir.length(Q_LEN), ir.length(KV_LEN)

SIZES = {BATCH: 2, Q_LEN: 3, KV_LEN: 4}

FLOATS = (DType.float16, DType.bfloat16, DType.float32, DType.float64)


def tensor(name: str, *axes: Axis, dtype: DType = DType.float32, role: str = "query") -> Term:
    """An input with these axes; computed from queries unless its role is ``captured``."""
    return ir.input_(name, role, dtype, axes)


def table(name: str, *sizes: int, dtype: DType = DType.float32) -> Term:
    """A captured tensor, with anonymous axes of these sizes."""
    axes = [Axis(f"{name}.{place}", size) for place, size in enumerate(sizes)]
    return ir.input_(name, "captured", dtype, axes)


def value(
    term: Term,
    inputs: Mapping[Term, Tensor] | None = None,
    *,
    exact: bool = False,
    sizes: Mapping[Symbol, int] = SIZES,
) -> Tensor:
    """The value of a term, dimensions in the order of its axes."""
    device = torch.device("cpu")
    return Evaluation(inputs or {}, sizes, exact=exact, device=device).value(term)


def array(x: Tensor) -> np.ndarray[Any, Any]:
    """The numbers of a tensor, floats in float64."""
    x = x.detach()
    return (x.double() if x.is_floating_point() else x).numpy()


def items(x: Tensor) -> Any:
    """The numbers of a tensor as nested lists."""
    return array(x).tolist()


def torch_type(dtype: DType) -> torch.dtype:
    """The type of torch that has the same name."""
    found = getattr(torch, dtype.value)
    assert isinstance(found, torch.dtype)
    return found


def everything(*roots: Term) -> Iterator[Term]:
    """Every term below these, and within the forms that they hold."""
    for term in walk(*roots):
        yield term
        if term.op.name == "indexed":
            yield from everything(term.form())


def check_normal(root: Term) -> None:
    """Fail unless every term below ``root`` is in normal form.

    Each is what its constructor makes of its operands; no sum stands in a sum
    and no product in a product; an op of any number of operands has at most one
    constant; and what is closed is packed where it meets something that isn't.
    """
    for term in everything(root):
        assert rebuild(term, term.operands) is term, f"{term} becomes another term"
        if term.op.flat:
            names = [operand.op.name for operand in term.operands]
            assert term.op.name not in names, f"{term} is nested"
            assert names.count("const") <= 1, f"{term} has constants left to fold"
        if term.op.name == "indexed":
            assert ir.pack(ir.unpack(term)) is term, f"{term} is packed in another way"
        affine = term.op.name in ("add", "mul") and term.type.dtype.is_int
        if term.op.elementwise and not affine:
            _check_packed(term)


def _check_packed(term: Term) -> None:
    """What is closed is packed beside what isn't; sums, products and junctions pack it as one."""
    constant = [operand for operand in term.operands if operand.op.name == "const"]
    packed = [operand for operand in term.operands if operand.op.name == "indexed"]
    closed = [operand for operand in term.operands if ir.is_closed(operand)]
    if len(closed) < len(term.operands):
        assert closed == constant, f"{term} has something closed that isn't packed"
        one = term.op.name in ("add", "mul", "and", "or")
        assert not one or len(packed) <= 1, f"{term} has two packed operands"
    else:
        assert not packed, f"{term} is packed needlessly"
