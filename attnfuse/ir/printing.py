"""Terms and programs as text: expressions as one would write them, one line a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from attnfuse.ir.attention import STATISTICS
from attnfuse.ir.axes import Axis, DType, Symbol
from attnfuse.ir.program import Program
from attnfuse.ir.term import Attribute, Term

_ARITHMETIC = {"add": " + ", "mul": "·", "div": " / ", "floordiv": " // ", "mod": " % "}
_INFIX = _ARITHMETIC | {"le": " ≤ ", "lt": " < ", "eq": " = ", "and": " ∧ ", "or": " ∨ "}
_STEPS = {"normalise", "rotate", "stored", "contract", "mask", "softmax", *STATISTICS}

Spell = Callable[[Term], str]


def expression(term: Term) -> str:
    """A term on one line, everything written out."""
    return _spell(term, expression)


def listing(program: Program) -> str:
    """A program, one step a line; what is elementwise stands within the lines."""
    terms = program.terms()
    uses = Counter(operand for term in terms for operand in term.operands)
    uses.update(program.outputs)
    names: dict[Term, str] = {}
    lines = [f"{program.name}("]
    lines += [f"    {_declaration(term)}," for term in program.inputs]
    lines.append("):")

    def named(term: Term) -> str:
        return names.get(term) or _spell(term, named)

    for term in terms:
        shared = term.op.elementwise and uses[term] > 1
        if term.op.name in _STEPS or shared:
            text = _spell(term, named)
            names[term] = f"%{len(names)}"
            lines.append(f"  {names[term]} = {text:<58} {term.type}")
    lines.append(f"  return {', '.join(map(named, program.outputs))}")
    return "\n".join(lines)


def _declaration(term: Term) -> str:
    return f"{term['name']}: {term['role']} {term.type}"


def _spell(term: Term, inner: Spell) -> str:
    name = term.op.name
    if name == "indexed":
        tensors = [inner(operand) for operand in term.operands]
        return f"⟨{_form(term.form(), tensors)}⟩"
    if name == "add":
        return _sum(term, inner)
    if name in _INFIX:
        return _INFIX[name].join(_bracket(operand, inner) for operand in term.operands)
    if name == "gather":
        table, *indices = map(inner, term.operands)
        return f"{table}[{', '.join(indices)}]"
    leaf = _leaf(term)
    return leaf if leaf is not None else _call(term, inner)


def _leaf(term: Term) -> str | None:
    name = term.op.name
    if name in ("input", "index"):
        return term.text("name")
    if name == "slot":
        return f"${term['position']}"
    if name == "const":
        value = term["value"]
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    return term.text("size") if name == "length" else None


def _form(form: Term, tensors: list[str]) -> str:
    def inner(term: Term) -> str:
        place = term.integer("position") if term.op.name == "slot" else len(tensors)
        return tensors[place] if place < len(tensors) else _spell(term, inner)

    return inner(form)


def _sum(term: Term, inner: Spell) -> str:
    """A sum, with − for its negative parts."""
    text = ""
    for part in term.operands:
        spelled = inner(part)
        minus = spelled.startswith("-") and part.op.name in ("mul", "const")
        spelled = spelled.removeprefix("-1·").removeprefix("-") if minus else spelled
        joint = (" - " if text else "-") if minus else (" + " if text else "")
        text += joint + spelled
    return text


def _bracket(term: Term, inner: Spell) -> str:
    spelled = inner(term)
    named = spelled.startswith("%") and spelled[1:].isdigit()
    return f"({spelled})" if term.op.name in _INFIX and not named else spelled


def _call(term: Term, inner: Spell) -> str:
    attributes: Mapping[str, Attribute] = dict(
        zip(term.op.attributes, term.attributes, strict=True)
    )
    arguments = [inner(operand) for operand in term.operands]
    set_ = {name: value for name, value in attributes.items() if value is not False}
    arguments += [f"{name}={_attribute(value)}" for name, value in set_.items()]
    return f"{term.op.name}({', '.join(arguments)})"


def _attribute(value: Attribute) -> str:
    if isinstance(value, DType | Symbol | Axis):
        return str(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_attribute, value))})"
    return str(value)
