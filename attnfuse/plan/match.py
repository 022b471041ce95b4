"""Recognises attention in a program and says what its launch does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from attnfuse.errors import CannotLower
from attnfuse.ir import build as ir
from attnfuse.ir.attention import STATISTICS
from attnfuse.ir.axes import DType
from attnfuse.ir.layout import dimensions, extent
from attnfuse.ir.program import Program
from attnfuse.ir.term import Term, walk
from attnfuse.masks import key_range, support
from attnfuse.plan.kernel import (
    ATTEND,
    ENTROPY,
    FIRST_STEP,
    LSE,
    ROW_MAX,
    Load,
    Parameter,
    Pass,
    Pattern,
    Plan,
    QueryMajor,
    Result,
    Schedule,
)
from attnfuse.plan.split import is_attend

_STEPS = ("rotate", "normalise")
"""What can be done to a tile while it is loaded, or before it is written."""

_STATISTIC_SLOTS = {"logsumexp": LSE, "row_max": ROW_MAX, "entropy": ENTROPY}
_MADE_OF = "an output is made of one attention, its norms and rotations"
_NAMES = {"row_max": "maximum", "entropy": "entropy"}
_LEAVES = ("slot", "input", "const", "index", "length", "gather", "indexed", "mask")


def match(program: Program, patterns: Mapping[str, Pattern], schedule: Schedule) -> Plan:
    """The launch that computes ``program``.

    Args:
        program: a program with one contraction over keys, or one output that is a prologue.
        patterns: for each input, its place in memory.
        schedule: how to carry it out.

    Raises:
        CannotLower: no kernel form covers it; the message shows the term.
    """
    _refuse_random(program)
    if _is_pass(program):
        return _pass(program, patterns, schedule)
    attend = _attend(program)
    weights = attend.operands[0]
    normalised = weights.op.name == "softmax"
    inner, visible = _peel(weights.operands[0]) if normalised else (weights, support(weights))
    contractions = [term for term in walk(inner) if term.op.name == "contract"]
    outputs, steps = _epilogue(program, attend)
    return QueryMajor(
        name=program.name,
        digest=program.digest,
        parameters=tuple(_parameter(term, patterns) for term in _used(program)),
        results=_results(program, outputs),
        streams=tuple((_load(term.operands[0]), _load(term.operands[1])) for term in contractions),
        score=_closed(
            ir.substitute(inner, _slots(contractions)), "a score is made of contractions, masks"
        ),
        normalised=normalised,
        visible=visible,
        keys=key_range(visible, ir.length(weights.type.axis("k").size)),
        value=_load(attend.operands[1]),
        steps=steps,
        schedule=schedule,
    )


def _refuse_random(program: Program) -> None:
    for term in program.terms():
        if any(inner.op.name == "random" for inner in walk(ir.unpack(term))):
            _refuse(term, "dropout has no kernel yet; leave it out at inference")


def _is_pass(program: Program) -> bool:
    """Whether a program is a query, key or value, as it is or with something done to it."""
    names = [output.op.name for output in program.outputs]
    return names in [[name] for name in ("input", *_STEPS)] and not any(
        map(is_attend, program.terms())
    )


def _pass(program: Program, patterns: Mapping[str, Pattern], schedule: Schedule) -> Pass:
    (output,) = program.outputs
    slot = ir.slot(0, output.type.dtype, output.type.axes)
    return Pass(
        name=program.name,
        digest=program.digest,
        parameters=tuple(_parameter(term, patterns) for term in _used(program)),
        results=(_result("out", output, slot),),
        schedule=schedule,
        load=_load(output),
    )


def _attend(program: Program) -> Term:
    """The contraction with the values; there has to be one."""
    found = [term for term in program.terms() if is_attend(term)]
    if len(found) != 1:
        _refuse(program.outputs[0], f"it has {len(found)} contractions over keys, not one")
    return found[0]


def _peel(scores: Term) -> tuple[Term, Term]:
    """What is within the masks around scores, and the meet of their closed predicates."""
    visible = ir.TRUE
    while scores.op.name == "mask" and ir.is_closed(ir.unpack(scores.operands[1])):
        visible = ir.and_(visible, ir.unpack(scores.operands[1]))
        scores = scores.operands[0]
    return scores, visible


def _load(term: Term) -> Load:
    steps: list[Term] = []
    while term.op.name != "input":
        if term.op.name not in _STEPS:
            _refuse(term, "this can't be done while a tile is loaded")
        steps.append(term)
        term = term.operands[0]
    return Load(term.text("name"), tuple(reversed(steps)))


def _slots(cores: Sequence[Term], first: int = 0) -> dict[Term, Term]:
    """The slot of each core, counted from ``first``."""
    numbered = enumerate(cores, first)
    return {core: ir.slot(i, core.type.dtype, core.type.axes) for i, core in numbered}


def _closed(expression: Term, made_of: str) -> Term:
    """``expression``, if there is nothing in it but slots and elementwise ops."""
    for term in walk(expression):
        attended = term.op.name == "input" and term["role"] != "captured"
        if attended or (term.op.name not in _LEAVES and not term.op.elementwise):
            _refuse(term, f"{made_of} and elementwise ops")
    return expression


def _used(program: Program) -> list[Term]:
    used = set(program.terms())
    inputs = [term for term in program.inputs if term in used]
    for term in inputs:
        if term.type.dtype in (DType.bool, DType.float64):
            _refuse(term, f"kernels don't read {term.type.dtype} yet; pass another type")
    return inputs


def _parameter(term: Term, patterns: Mapping[str, Pattern]) -> Parameter:
    name = term.text("name")
    return Parameter(name, term.type.dtype, dimensions(term.type.axes), patterns[name])


def _epilogue(program: Program, attend: Term) -> tuple[list[Term], tuple[Term, ...]]:
    """The outputs as expressions over slots, and the steps behind these slots."""
    scores = attend.operands[0].operands[0] if attend.operands[0].op.name == "softmax" else None
    slots = _slots([attend], ATTEND)
    for term in [term for term in program.terms() if term.op.name in STATISTICS]:
        if term.operands[0] is not scores:
            _refuse(term, "these are other scores than those of the softmax")
        slots |= _slots([term], _STATISTIC_SLOTS[term.op.name])
    terms = walk(*program.outputs, down_to=list(slots))
    steps: list[Term] = []
    for term in [term for term in terms if term.op.name in _STEPS]:
        operand = _closed(ir.substitute(term.operands[0], slots), _MADE_OF)
        steps.append(ir.rebuild(term, (operand, *term.operands[1:])))
        slots |= _slots([term], FIRST_STEP + len(steps) - 1)
    outputs = [_closed(ir.substitute(term, slots), _MADE_OF) for term in program.outputs]
    return outputs, tuple(steps)


def _results(program: Program, expressions: Sequence[Term]) -> tuple[Result, ...]:
    taken = {term.text("name") for term in program.inputs}
    results: list[Result] = []
    for output, expression in zip(program.outputs, expressions, strict=True):
        name = "out" if "e" in output.type.names else _NAMES.get(output.op.name, "lse")
        while name in taken:
            name += "_"
        taken.add(name)
        results.append(_result(name, output, expression))
    return tuple(results)


def _result(name: str, output: Term, expression: Term) -> Result:
    dims, dtype = dimensions(output.type.axes), output.type.dtype
    row = extent(dims[-1])
    aligned = isinstance(row, int) and row * dtype.itemsize % 16 == 0
    return Result(name, dtype, dims, Pattern(aligned=aligned), expression)


def _refuse(term: Term, problem: str) -> NoReturn:
    raise CannotLower(problem=problem, term=term)
