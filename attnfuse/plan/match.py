"""Recognises attention in a program and says what its launch does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from attnfuse.errors import CannotLower
from attnfuse.ir import build as ir
from attnfuse.ir.axes import DType
from attnfuse.ir.layout import dimensions
from attnfuse.ir.program import Program
from attnfuse.ir.term import Term, walk
from attnfuse.masks import key_range
from attnfuse.plan.kernel import Load, Parameter, QueryMajor, Result, Schedule

_WHAT = {"contract": "attend", "logsumexp": "lse"}
_PROLOGUE = ("rotate",)
_IN_SCORES = ("slot", "input", "const", "index", "length", "gather", "indexed", "mask")


def match(program: Program, contiguous: Mapping[str, bool], schedule: Schedule) -> QueryMajor:
    """The launch that computes ``program``.

    Args:
        program: a program with one softmax.
        contiguous: for each input, whether its last dimension has stride 1.
        schedule: how to carry it out.

    Raises:
        CannotLower: no kernel form covers it; the message shows the term.
    """
    scores, attended = _roots(program)
    masked, visible = scores, ir.TRUE
    while masked.op.name == "mask" and ir.is_closed(ir.unpack(masked.operands[1])):
        visible = ir.and_(visible, ir.unpack(masked.operands[1]))
        masked = masked.operands[0]
    contractions = [term for term in walk(masked) if term.op.name == "contract"]
    streams = [(_load(term.operands[0]), _load(term.operands[1])) for term in contractions]
    return QueryMajor(
        name=program.name,
        digest=program.digest,
        parameters=tuple(_parameter(term, contiguous) for term in _used(program)),
        results=_results(program),
        streams=tuple(streams),
        score=_score(masked, contractions),
        visible=visible,
        keys=key_range(visible, ir.length(scores.type.axis("k").size)),
        value=_load(attended.operands[1]),
        schedule=schedule,
    )


def _roots(program: Program) -> tuple[Term, Term]:
    """The scores under the softmax, and the contraction with the values."""
    attends = [term for term in program.outputs if _is_attend(term)]
    if len(attends) != 1:
        _refuse(program.outputs[0], f"{len(attends)} of the outputs are softmax · value, not one")
    scores = attends[0].operands[0].operands[0]
    for term in program.outputs:
        if not _is_attend(term) and not (
            term.op.name == "logsumexp" and term.operands[0] is scores
        ):
            _refuse(term, "this output is neither softmax · value nor the same scores' log-sum-exp")
    return scores, attends[0]


def _is_attend(term: Term) -> bool:
    return term.op.name == "contract" and term.operands[0].op.name == "softmax"


def _load(term: Term) -> Load:
    steps: list[Term] = []
    while term.op.name != "input":
        if term.op.name not in _PROLOGUE:
            _refuse(term, "this can't be done while a tile is loaded")
        steps.append(term)
        term = term.operands[0]
    return Load(term.text("name"), tuple(reversed(steps)))


def _score(masked: Term, contractions: list[Term]) -> Term:
    slots = {
        term: ir.slot(place, term.type.dtype, term.type.axes)
        for place, term in enumerate(contractions)
    }
    score = ir.substitute(masked, slots)
    for term in walk(score):
        if term.op.name not in _IN_SCORES and not term.op.elementwise:
            _refuse(term, "a score is made of contractions, elementwise ops and masks")
    return score


def _used(program: Program) -> list[Term]:
    used = set(program.terms())
    inputs = [term for term in program.inputs if term in used]
    for term in inputs:
        if term.type.dtype in (DType.bool, DType.float64):
            _refuse(term, f"kernels don't read {term.type.dtype} yet; pass another type")
    return inputs


def _parameter(term: Term, contiguous: Mapping[str, bool]) -> Parameter:
    name = term.text("name")
    return Parameter(name, term.type.dtype, dimensions(term.type.axes), contiguous[name])


def _results(program: Program) -> tuple[Result, ...]:
    taken = {term["name"] for term in program.inputs}
    results: list[Result] = []
    for term in program.outputs:
        what = _WHAT[term.op.name]
        name = "out" if what == "attend" else "lse"
        while name in taken:
            name += "_"
        taken.add(name)
        results.append(Result(name, term.type.dtype, dimensions(term.type.axes), True, what))
    return tuple(results)


def _refuse(term: Term, problem: str) -> NoReturn:
    raise CannotLower(problem=problem, term=term)
