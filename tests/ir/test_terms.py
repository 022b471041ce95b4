from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
from small_terms import KV_LEN, Q_LEN, D, K, Q, b, k, q, table, tensor

from attnfuse.errors import WrongArity
from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis, DType, Symbol
from attnfuse.ir.op import Op
from attnfuse.ir.ops import OPS
from attnfuse.ir.program import Program
from attnfuse.ir.term import Attribute, Term, make, walk

ROOT = Path(__file__).parents[2]

SAMPLE = """
from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis, DType, Symbol
from attnfuse.ir.program import Program

Q, K, D = Axis("q", Symbol("q_len")), Axis("k", Symbol("kv_len")), Axis("d", 4)
q, k = ir.index("q", (Q,)), ir.index("k", (K,))
query = ir.input_("query", "query", DType.float16, (Q, D))
key = ir.input_("key", "key", DType.float16, (K, D))
bias = ir.input_("bias", "captured", DType.float32, (Axis("bias.0", Symbol("bias.0")),))
documents = ir.input_("documents", "captured", DType.int64, (Axis("documents.0", 8),))
scores = ir.contract(query, key, over="d", dtype=DType.float32)
scores = ir.add(ir.mul(ir.const(0.125), scores), ir.gather(bias, ir.sub(q, k)), ir.const(-0.0))
same = ir.eq(ir.gather(documents, q), ir.gather(documents, k))
near = ir.or_(ir.le(k, ir.add(q, ir.length(Symbol("kv_len")))), ir.lt(ir.const(3), q))
softmax = ir.softmax(ir.mask(scores, ir.and_(same, near, ir.not_(ir.eq(q, k)))))
program = Program("sample", (query, key, bias, documents), (softmax, ir.logsumexp(scores)))
"""


def sample() -> Program:
    names: dict[str, object] = {}
    exec(SAMPLE, names)
    program = names["program"]
    assert isinstance(program, Program)
    return program


def deep() -> Term:
    """A new term every time, made of many parts."""
    return sample().outputs[0]


def test_equal_terms_are_one_object() -> None:
    one, other = sample(), sample()
    assert one.outputs[0] is other.outputs[0]
    assert one == other and hash(one) == hash(other)
    assert tensor("x", Q, D) is tensor("x", Q, D)


@pytest.mark.parametrize(
    "other",
    [
        tensor("y", Q, D),
        tensor("x", Q),
        tensor("x", D, Q),
        tensor("x", Q, Axis("d", 8)),
        tensor("x", Q, Axis("d", Symbol("4"))),
        tensor("x", Q, D, dtype=DType.float16),
        tensor("x", Q, D, role="key"),
    ],
)
def test_inputs_that_differ_in_anything_are_different_terms(other: Term) -> None:
    one = tensor("x", Q, D)
    assert one is not other
    assert one.digest != other.digest


def test_attributes_that_python_calls_equal_are_different_terms() -> None:
    values = (1, 1.0, True, 0, 0.0, -0.0, False)
    terms = [ir.const(value) for value in values]
    assert len(set(terms)) == len(values)
    assert len({term.digest for term in terms}) == len(values)
    types = (DType.int32, DType.float32, DType.bool)
    assert [term.type.dtype for term in terms] == [*types, types[0], types[1], types[1], types[2]]
    assert [repr(ir.value_of(term)) for term in terms] == list(map(repr, values))


def test_an_attribute_within_a_tuple_keeps_its_kind() -> None:
    row = Op("tuple", 0, ("value",), OPS["const"].infer, OPS["const"].meaning)
    values: list[Attribute] = [(1, 2), (1.0, 2), (True, 2), ((1,), 2), ((1.0,), 2)]
    terms = [make(row, (), (value,)) for value in values]
    assert len(set(terms)) == len(values)
    assert len({term.digest for term in terms}) == len(values)


def test_a_string_an_element_type_and_a_symbol_of_one_name_are_different_attributes() -> None:
    row = Op("name", 0, ("value",), OPS["const"].infer, OPS["const"].meaning)
    values = ("float16", DType.float16, Symbol("float16"))
    terms = [make(row, (), (value,)) for value in values]
    assert len(set(terms)) == len(values)
    assert len({term.digest for term in terms}) == len(values)


def test_the_order_of_operands_counts_where_the_op_has_an_order() -> None:
    x, y = tensor("x", Q), tensor("y", Q)
    assert ir.div(x, y) is not ir.div(y, x)
    assert ir.div(x, y).digest != ir.div(y, x).digest


def test_threads_that_make_equal_terms_get_one_object() -> None:
    start = threading.Barrier(8)
    made: list[list[Term]] = []

    def work() -> None:
        start.wait()
        names = [f"thread{number}" for number in range(200)]
        made.append([ir.add(tensor(name, Q), tensor("x", K), ir.const(1.5)) for name in names])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(made) == 8
    for terms in made[1:]:
        assert all(one is other for one, other in zip(terms, made[0], strict=True))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_term_comes_back_as_the_same_object(protocol: int) -> None:
    program = sample()
    for term in walk(*program.outputs):
        assert pickle.loads(pickle.dumps(term, protocol)) is term
    assert pickle.loads(pickle.dumps(program, protocol)) == program


def test_a_pickled_op_comes_back_as_the_row_of_the_table() -> None:
    for op in OPS.values():
        assert pickle.loads(pickle.dumps(op)) is op


def test_copies_of_a_term_are_the_term() -> None:
    term = deep()
    assert copy.copy(term) is term
    assert copy.deepcopy(term) is term
    assert copy.deepcopy({"terms": [term]})["terms"][0] is term


def _elsewhere(seed: str, code: str) -> list[str]:
    """What ``code`` prints in another process, after the sample is made."""
    environment = os.environ | {"PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", SAMPLE + code]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_digests_are_the_same_in_every_process() -> None:
    program = sample()
    here = [program.digest, *(term.digest for term in program.terms())]
    code = """
import sys
print(program.digest, *(term.digest for term in program.terms()))
print(hash("a"), "torch" in sys.modules)
"""
    *first, hash_one, torch_one = _elsewhere("1", code)
    *second, hash_two, torch_two = _elsewhere("2", code)
    assert hash_one != hash_two  # or the two processes would show nothing
    assert first == second == here
    assert torch_one == torch_two == "False"  # terms need no torch until they are evaluated


def test_digests_tell_terms_apart() -> None:
    terms = list(walk(*sample().outputs))
    assert len(terms) >= 13
    assert len({term.digest for term in terms}) == len(terms)


def test_the_digest_of_a_program_depends_on_all_of_it() -> None:
    x, y = tensor("x", Q), tensor("y", Q)
    total = ir.add(x, y)
    programs = [
        Program("p", (x, y), (total,)),
        Program("other", (x, y), (total,)),
        Program("p", (y, x), (total,)),
        Program("p", (x, y), (total, x)),
        Program("p", (x, y), (x, total)),
        Program("p", (x, y), (ir.mul(x, y),)),
    ]
    assert len({program.digest for program in programs}) == len(programs)


def _alive(references: Sequence[weakref.ReferenceType[Term]]) -> int:
    gc.collect()
    return sum(reference() is not None for reference in references)


def test_terms_that_nobody_holds_are_freed() -> None:
    x = tensor("leak", Q)
    packed = ir.add(x, ir.gather(table("leaking table", 9), ir.sub(q, k)), ir.const(0.123))
    program = Program("leak", (x,), (packed,))
    references = [weakref.ref(term) for term in program.terms() if term not in (q, k)]
    references += [weakref.ref(packed.operands[1].form()), weakref.ref(ir.unpack(packed))]
    assert _alive(references) == len(references) >= 6
    del program, packed, x
    assert _alive(references) == 0


def test_the_same_term_is_interned_anew_after_it_was_freed() -> None:
    first = ir.add(tensor("again", Q), ir.const(0.5))
    digest, reference = first.digest, weakref.ref(first)
    del first
    assert _alive([reference]) == 0
    second = ir.add(tensor("again", Q), ir.const(0.5))
    assert second.digest == digest
    assert second is ir.add(ir.const(0.5), tensor("again", Q))


def test_walking_gives_each_term_once_and_operands_first() -> None:
    x = tensor("x", Q)
    square = ir.mul(x, x)
    root = ir.add(ir.unary["exp"](square), square, x)
    seen = list(walk(root, square))
    assert len(seen) == len(set(seen))
    assert set(seen) == {x, square, ir.unary["exp"](square), root}
    for place, term in enumerate(seen):
        assert all(operand in seen[:place] for operand in term.operands)


def test_walking_a_long_chain_needs_no_recursion() -> None:
    term = tensor("x", Q)
    for _ in range(5000):
        term = make(OPS["exp"], (term,))
    assert sum(1 for _ in walk(term)) == 5001


def test_attributes_are_read_by_name() -> None:
    length, index = ir.length(KV_LEN), ir.slot(3, DType.int32, (Q,))
    assert length["size"] == KV_LEN and length.text("size") == "kv_len"
    assert index.integer("position") == 3 and index["axes"] == (Q,)
    packed = ir.pack(ir.add(b, q))
    assert packed.form() is packed["form"] is ir.add(b, q)
    with pytest.raises(ValueError, match="not in"):
        length["position"]


def test_the_length_of_a_static_axis_is_a_constant() -> None:
    assert ir.length(7) is ir.const(7)
    assert ir.length(Q_LEN).op.name == "length"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_operands_is_refused(count: int) -> None:
    x = tensor("x", Q)
    with pytest.raises(WrongArity, match=f"^div takes 2 operands, not {count}$"):
        make(OPS["div"], (x,) * count)


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.flat])
def test_an_op_of_any_number_of_operands_needs_one(name: str) -> None:
    with pytest.raises(WrongArity, match=f"^{name} takes one or more operands, not 0$"):
        make(OPS[name], ())
