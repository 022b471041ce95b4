"""What `verify` refuses, and every error that making or binding terms raises."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from expressions import BIASES as TABLE
from expressions import COLUMNS, FLAGS, LIMITS, ROWS, Expression, floats, predicates, term_of
from hypothesis import given
from small_terms import KV_LEN, B, D, E, K, Q, b, k, q, table, tensor

from attnfuse.errors import (
    AttnFuseError,
    AxisMismatch,
    DoesNotFit,
    MalformedProgram,
    WrongArity,
    WrongOperandKind,
)
from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis, DType, Symbol, Type
from attnfuse.ir.op import Op
from attnfuse.ir.ops import OPS
from attnfuse.ir.program import Program
from attnfuse.ir.term import Attribute, Term, make
from attnfuse.ir.verify import verify

X = tensor("x", Q)


def malformed(*outputs: Term, inputs: tuple[Term, ...] = (X,)) -> str:
    """What is wrong with a program, and the message shows where."""
    with pytest.raises(MalformedProgram) as raised:
        verify(Program("p", inputs, outputs))
    fields = raised.value.fields
    op, problem, term = (fields[name] for name in ("op", "problem", "term"))
    assert isinstance(term, Term) and op == term.op.name
    assert str(raised.value) == f"{op} is malformed: {problem}\n  in {term}"
    return str(problem)


@given(floats(), predicates(opened=True))
def test_what_the_constructors_make_is_accepted(one: Expression, other: Expression) -> None:
    inputs = (ROWS, COLUMNS, TABLE, LIMITS, FLAGS)
    verify(Program("p", inputs, (term_of(one), term_of(other))))


def test_an_op_that_the_table_does_not_have_is_malformed() -> None:
    known = OPS["exp"]
    unknown = Op("unknown", 1, (), known.infer, known.meaning)
    assert malformed(make(unknown, (X,))) == "this op is not in the op table"


def test_an_op_that_has_the_name_of_another_is_malformed() -> None:
    known = OPS["exp"]
    double = Op("exp", 1, (), known.infer, known.meaning)
    only_here = tensor("only here", Q)
    term = make(double, (only_here,))
    assert malformed(term, inputs=(only_here,)) == "this op is not in the op table"


def test_a_slot_outside_of_a_form_is_malformed() -> None:
    slot = ir.slot(0, DType.float32, (Q,))
    assert malformed(ir.unary["exp"](slot)) == "a slot stands outside of a form"


def test_an_input_that_the_program_does_not_have_is_malformed() -> None:
    assert malformed(ir.mul(X, tensor("y", Q))) == "the program has no such input"


def test_a_type_that_is_not_inferred_is_malformed() -> None:
    term = ir.unary["exp"](tensor("of a wrong type", Q))
    term.type = Type(DType.float16, (Q,))
    problem = malformed(term, inputs=(term.operands[0],))
    assert problem == "its type is float16[q=q_len], and its operands make it float32[q=q_len]"


@pytest.mark.parametrize(
    ("term", "form"),
    [
        (make(OPS["add"], (X, make(OPS["add"], (X, X)))), "x + x + x"),
        (make(OPS["mul"], (X, ir.const(2.0))), "2·x"),
        (make(OPS["add"], (k, k)), "2·k"),
        (make(OPS["le"], (k, q)), "0 ≤ (q - k)"),
        (make(OPS["add"], (X, ir.gather(table("x", 3), q))), "x + ⟨x[q]⟩"),
        (make(OPS["stored"], (ir.stored(X),)), "stored(x)"),
        (make(OPS["mask"], (X, ir.TRUE)), "x"),
    ],
)
def test_a_term_that_is_not_in_normal_form_is_malformed(term: Term, form: str) -> None:
    inputs = (X, table("x", 3))
    assert malformed(term, inputs=inputs) == f"its normal form is {form}"


def test_a_form_that_names_a_tensor_is_malformed() -> None:
    hidden = make(OPS["indexed"], (), (ir.gather(table("t", 3), q),))
    assert malformed(hidden) == "its normal form is ⟨t[q]⟩"


def test_a_form_whose_slots_have_no_operand_is_malformed() -> None:
    form = ir.gather(ir.slot(1, DType.float32, (Axis("t.0", 3),)), q)
    term = make(OPS["indexed"], (table("t", 3),), (form,))
    assert malformed(term, inputs=(table("t", 3),)) == "slot 1 of its form has no operand"


def test_a_form_whose_slots_differ_from_the_operands_is_malformed() -> None:
    form = ir.gather(ir.slot(0, DType.float16, (Axis("t.0", 3),)), q)
    term = make(OPS["indexed"], (table("t", 3),), (form,))
    wanted = "slot 0 of its form is float16[t.0=3], and the operand is float32[t.0=3]"
    assert malformed(term, inputs=(table("t", 3),)) == wanted


# -- making terms ----------------------------------------------------------------------------

Y = tensor("y", Q, D)
HALF = tensor("half", Q, dtype=DType.float16)
BOOL = tensor("bool", Q, dtype=DType.bool)
SHORT = tensor("short", Axis("q", 7))
SCALAR = table("scalar")
COS, SIN = table("cos", 9, 2), table("sin", 9, 2)


def rotated(
    x: Term = Y, cos: Term = COS, sin: Term = SIN, positions: Term = q, pairing: str = "half"
) -> Callable[[], Term]:
    return lambda: ir.rotate(x, cos, sin, positions, pairing)


def contracted(x: Term, y: Term, over: str) -> Callable[[], Term]:
    return lambda: ir.contract(x, y, over=over, dtype=DType.float32)


def built(op: str, *operands: Term, attributes: tuple[Attribute, ...] = ()) -> Callable[[], Term]:
    return lambda: make(OPS[op], operands, attributes)


REFUSED: list[tuple[Callable[[], Term], type[AttnFuseError], str]] = [
    (
        lambda: ir.add(X, SHORT),
        AxisMismatch,
        "axis 'q' has size q_len in one operand and 7 in another; make them agree",
    ),
    (
        lambda: ir.add(tensor("p", Axis("d", 4)), tensor("r", Axis("d", 8))),
        AxisMismatch,
        "axis 'd' has size 4 in one operand and 8 in another; make them agree",
    ),
    (built("softmax"), WrongArity, "softmax takes 1 operands, not 0"),
    (built("where", BOOL, X), WrongArity, "where takes 3 operands, not 2"),
    (
        lambda: ir.add(X, BOOL),
        WrongOperandKind,
        "add can't combine float, bool; it takes operands of one kind: float or int",
    ),
    (
        built("mul", X, q),
        WrongOperandKind,
        "mul can't combine float, int; it takes operands of one kind: float or int",
    ),
    (
        built("lt", q, k),
        WrongOperandKind,
        "lt can't combine int, int; it takes operands of one kind: float",
    ),
    (
        lambda: ir.unary["exp"](BOOL),
        WrongOperandKind,
        "exp can't combine bool; it takes operands of one kind: float",
    ),
    (
        lambda: ir.where(X, X, X),
        WrongOperandKind,
        "where can't combine float, float, float; it takes a bool, then two of one kind",
    ),
    (
        lambda: ir.where(BOOL, X, BOOL),
        WrongOperandKind,
        "where can't combine bool, float, bool; it takes a bool, then two of one kind",
    ),
    (
        lambda: ir.gather(table("t", 3, 4), q),
        DoesNotFit,
        "gather: a tensor of 2 dimensions is read with 1 indices; "
        "give one index for each dimension",
    ),
    (
        lambda: ir.gather(table("t", 3), X),
        DoesNotFit,
        "gather: an index is of type float32; use integers, such as af.q - af.k",
    ),
    (
        rotated(sin=SCALAR),
        DoesNotFit,
        "rotate: cos is float32[cos.0=9, cos.1=2] and sin is float32[]; "
        "give two tables of floats, of shape (positions, rotary_dim / 2)",
    ),
    (
        rotated(cos=table("c", 9, 1)),
        DoesNotFit,
        "rotate: cos is float32[c.0=9, c.1=1] and sin is float32[sin.0=9, sin.1=2]; "
        "give two tables of floats, of shape (positions, rotary_dim / 2)",
    ),
    (
        rotated(cos=table("c", 9, 3), sin=table("s", 9, 3)),
        DoesNotFit,
        "rotate: the tables rotate 6 features, and there are 4; "
        "give tables of at most head_dim / 2 columns",
    ),
    (
        rotated(positions=b),
        DoesNotFit,
        "rotate: positions are int32[b=batch], the rotated tensor is float32[q=q_len, d=4]; "
        "give an integer for each batch entry and position",
    ),
    (
        rotated(positions=X),
        DoesNotFit,
        "rotate: positions are float32[q=q_len], the rotated tensor is float32[q=q_len, d=4]; "
        "give an integer for each batch entry and position",
    ),
    (
        rotated(x=SCALAR),
        DoesNotFit,
        "rotate: the rotated tensor is float32[]; "
        "give floats whose last axis, the features, has a known size",
    ),
    (
        rotated(x=X),
        DoesNotFit,
        "rotate: the rotated tensor is float32[q=q_len]; "
        "give floats whose last axis, the features, has a known size",
    ),
    (
        rotated(pairing="halves"),
        DoesNotFit,
        "rotate: the pairing is 'halves'; give one of half, interleaved",
    ),
    (
        lambda: ir.concat(Y, tensor("z", Q, D, dtype=DType.float16), over="d"),
        DoesNotFit,
        "concat: float32[q=q_len, d=4], float16[q=q_len, d=4] are joined along 'd'; "
        "give tensors of one element type, whose sizes along that axis are known",
    ),
    (
        lambda: ir.concat(Y, Y, over="q"),
        DoesNotFit,
        "concat: float32[q=q_len, d=4], float32[q=q_len, d=4] are joined along 'q'; "
        "give tensors of one element type, whose sizes along that axis are known",
    ),
    (
        contracted(Y, tensor("v", K, E), "d"),
        DoesNotFit,
        "contract: float32[q=q_len, d=4] and float32[k=kv_len, e=5] are summed over 'd', "
        "which one of them lacks; contract a query with a key, and probabilities with a value",
    ),
    (
        contracted(Y, tensor("key", K, Axis("d", 8)), "d"),
        DoesNotFit,
        "contract: axis 'd' has size 4 here and 8 there; give both sides the same size",
    ),
    (
        lambda: ir.mask(tensor("s", Q, K), q),
        DoesNotFit,
        "mask: the predicate is of type int32; "
        "give a bool that says what stays visible, such as af.causal()",
    ),
    (
        lambda: ir.mask(BOOL, ir.le(k, q)),
        DoesNotFit,
        "mask: the scores are of type bool; mask scores, after af.scores",
    ),
    (
        lambda: ir.softmax(X),
        DoesNotFit,
        "softmax: its operand is float32[q=q_len], which has no key positions; "
        "give it scores, made by af.scores",
    ),
    (
        lambda: ir.logsumexp(ir.sub(q, k)),
        DoesNotFit,
        "logsumexp: its operand is int32[q=q_len, k=kv_len], which has no key positions; "
        "give it scores, made by af.scores",
    ),
]


@pytest.mark.parametrize(("make_term", "kind", "message"), REFUSED)
def test_what_does_not_fit_is_refused_and_the_message_says_what_to_do(
    make_term: Callable[[], Term], kind: type[AttnFuseError], message: str
) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        make_term()


def test_a_refused_term_leaves_nothing_behind() -> None:
    for _ in range(2):
        with pytest.raises(AxisMismatch):
            ir.add(X, SHORT)
    assert ir.add(X, HALF).type == Type(DType.float32, (Q,))


def test_axes_stand_in_one_order_whatever_the_order_of_the_operands() -> None:
    second = Axis("b1", Symbol("second"))
    for term in (ir.add(b, q, k, ir.index("b1", (second,))), ir.add(k, q, b)):
        assert term.type.names == tuple(n for n in ("b", "b1", "q", "k") if n in term.type.names)
    mixed = ir.add(tensor("m", E, K, D, Axis("t.0", 3), B), tensor("n", second))
    assert mixed.type.names == ("b", "b1", "k", "d", "e", "t.0")
    assert mixed.type.axis("k").size == KV_LEN
    with pytest.raises(KeyError, match="q"):
        mixed.type.axis("q")
