"""Checks that a program keeps the rules of the IR: run on what rewriting hands back."""

from __future__ import annotations

from attnfuse.errors import AttnFuseError, MalformedProgram
from attnfuse.ir.normal import rebuild
from attnfuse.ir.ops import OPS
from attnfuse.ir.program import Program
from attnfuse.ir.term import Term, walk


def verify(program: Program) -> None:
    """Raise MalformedProgram, naming the op and showing the term, unless all rules hold.

    Every op is in the op table, every type is what the type rule infers, every
    term is in normal form, slots stand in forms only, and each input that is
    used is one of the program's.
    """
    for term in program.terms():
        problem = _problem(term, program)
        if problem:
            raise MalformedProgram(op=term.op.name, problem=problem, term=term)


def _problem(term: Term, program: Program) -> str | None:
    name = term.op.name
    if OPS.get(name) is not term.op:
        return "this op is not in the op table"
    if name == "slot":
        return "a slot stands outside of a form"
    if name == "input" and term not in program.inputs:
        return "the program has no such input"
    if name == "indexed" and (mismatch := _slot_problem(term)):
        return mismatch
    try:
        again = rebuild(term, term.operands)
        inferred = term.op.infer(term)
    except AttnFuseError as error:
        return str(error)
    if inferred != term.type:
        return f"its type is {term.type}, and its operands make it {inferred}"
    return None if again is term else f"its normal form is {again}"


def _slot_problem(term: Term) -> str | None:
    for slot in walk(term.form()):
        if slot.op.name != "slot":
            continue
        place = slot.integer("position")
        if place >= len(term.operands):
            return f"slot {place} of its form has no operand"
        operand = term.operands[place]
        if operand.type != slot.type:
            return f"slot {place} of its form is {slot.type}, and the operand is {operand.type}"
    return None
