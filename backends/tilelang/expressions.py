"""Closed terms as TileLang expressions: shared by all schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from attnfuse.backends.tilelang.names import identifier
from attnfuse.ir import build as ir
from attnfuse.ir.axes import DType, Size
from attnfuse.ir.elementwise import UNARY
from attnfuse.ir.term import Term
from attnfuse.plan.kernel import Plan

_INFIX = {"mul": " * ", "div": " / ", "le": " <= ", "lt": " < ", "eq": " == "}
_NAMED = {"floordiv": "T.floordiv", "mod": "T.floormod", "not": "T.Not"}
_CALLS = _NAMED | {name: f"T.{name}" for name in UNARY} | {"where": "T.if_then_else"}
_FOLDS = {"minimum": "T.min", "maximum": "T.max", "and": "T.And", "or": "T.Or"}
MINUS_INFINITY = '-T.infinity("float32")'


@dataclass(frozen=True)
class Expressions:
    """Spells terms at one place of a program.

    Attributes:
        plan: the plan that the program carries out.
        indices: the text of each index at this place, by name.
        slots: the text of each slot at this place.
    """

    plan: Plan
    indices: Mapping[str, str]
    slots: Sequence[str] = ()

    def spell(self, term: Term) -> str:
        """``term`` as text that can stand as an argument."""
        term = ir.unpack(term)
        name = term.op.name
        if name == "add":
            return self._sum(term)
        if name in _INFIX:
            return _INFIX[name].join(self._bracket(operand) for operand in term.operands)
        if name in _FOLDS:
            return self._folded(_FOLDS[name], list(term.operands))
        if name in _CALLS:
            return f"{_CALLS[name]}({', '.join(map(self.spell, term.operands))})"
        return self._others()[name](term)

    def _others(self) -> dict[str, Callable[[Term], str]]:
        return {
            "const": lambda term: spell_number(term["value"]),
            "length": lambda term: term.text("size"),
            "index": lambda term: self.indices[term.text("name")],
            "slot": lambda term: self.slots[term.integer("position")],
            "cast": lambda term: f'T.cast({self.spell(term.operands[0])}, "{term["dtype"]}")',
            "gather": self._gather,
            "mask": self._mask,
            "abs": self._abs,
        }

    def _bracket(self, term: Term) -> str:
        text = self.spell(term)
        return text if _is_atom(text) else f"({text})"

    def _sum(self, term: Term) -> str:
        """A sum, with a minus before its negative integer parts."""
        text = ""
        for part in term.operands:
            opposite = _opposite(part)
            if opposite is None or not text:
                text += (" + " if text else "") + self.spell(part)
            else:
                text += f" - {self._bracket(opposite)}"
        return text

    def _folded(self, call: str, operands: list[Term]) -> str:
        text = self.spell(operands[0])
        for operand in operands[1:]:
            text = f"{call}({text}, {self.spell(operand)})"
        return text

    def _mask(self, term: Term) -> str:
        scores, visible = map(self.spell, term.operands)
        return f"T.if_then_else({visible}, {scores}, {MINUS_INFINITY})"

    def _abs(self, term: Term) -> str:
        """The greater of x and −x: TileLang's C target has no abs of floats."""
        text = self._bracket(term.operands[0])
        return f"T.max({text}, -{text})"

    def _gather(self, term: Term) -> str:
        table, *indices = term.operands
        name, dtype = table.text("name"), table.type.dtype
        sizes = self.plan.parameter(name).sizes
        places = [self.nearest(index, size) for index, size in zip(indices, sizes, strict=True)]
        text = f"{identifier(name)}[{', '.join(places or ['0'])}]"
        narrow = dtype in (DType.float16, DType.bfloat16)
        return f'T.cast({text}, "float32")' if narrow else text

    def nearest(self, index: Term, size: Size) -> str:
        """An index, kept within 0 … size − 1."""
        text = self.spell(index)
        if index.op.name == "index" and index["name"] == "h" and size == _extent(index):
            return text  # a kernel's head is always one of the heads
        if index.op.name == "index":
            return f"T.min({text}, {size} - 1)"
        return f"T.max(0, T.min({text}, {size} - 1))"


def _opposite(term: Term) -> Term | None:
    """``−term``, if ``term`` is an integer with a negative factor."""
    factor = ir.value_of(term.operands[0] if term.op.name == "mul" else term)
    negative = isinstance(factor, int) and factor < 0
    return ir.neg(term) if negative and term.type.dtype.is_int else None


def _is_atom(text: str) -> bool:
    """Whether ``text`` can be an operand as it is: no operator outside of brackets."""
    depth = 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == " " and depth == 0:
            return False
    return not text.startswith("-")


def spell_number(value: object) -> str:
    """A Python number as TileLang text."""
    if isinstance(value, float):
        if value in (float("inf"), float("-inf")):
            return MINUS_INFINITY if value < 0 else MINUS_INFINITY[1:]
        return f"T.float32({value!r})"
    return f"T.bool({value})" if isinstance(value, bool) else repr(value)


def _extent(index: Term) -> int | None:
    total = 1
    for axis in index.type.axes:
        if not isinstance(axis.size, int):
            return None
        total *= axis.size
    return total
