"""Patterns: what the left side of a rewrite rule looks like.

A pattern is written like the term that it matches, with variables in it::

    x, p = variables("x p")
    c = number("c")
    op.mask(op.mul(c, x), p)

Operands are positional and attributes go by keyword. An attribute that is not
mentioned may have any value. A variable that occurs twice must be the same
value both times. The operands of sums, products and the like have no order:
every operand of the pattern is tried in every place, and `rest` stands for
all that are left over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from attnfuse.ir.term import Attribute


class Kind(Enum):
    """What a variable stands for, and what a rule's function is given for it."""

    term = "a term"
    closed = "a term of indices, lengths and captured tensors alone"
    number = "a constant, given as its number"
    rest = "the other operands, given as a tuple of terms"
    attribute = "the value of an attribute"


@dataclass(frozen=True)
class Var:
    """A variable of a pattern."""

    name: str
    kind: Kind = Kind.term

    def __str__(self) -> str:
        return f"*{self.name}" if self.kind is Kind.rest else self.name


@dataclass(frozen=True)
class Number:
    """A constant with this very value."""

    value: bool | int | float

    def __str__(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True)
class Node:
    """A term of one op, made by `op`."""

    op: str
    operands: tuple[Pattern, ...]
    attributes: tuple[tuple[str, Var | Attribute], ...]

    def __str__(self) -> str:
        arguments = [str(operand) for operand in self.operands]
        arguments += [f"{name}={value}" for name, value in self.attributes]
        return f"{self.op}({', '.join(arguments)})"


Pattern = Var | Number | Node
"""A left side, or a part of one."""


class _Ops:
    """Makes patterns: ``op.mask(x, p)``; ``op.and_`` and the like for Python's own words."""

    def __getattr__(self, name: str) -> Maker:
        if name.startswith("__"):
            raise AttributeError(name)
        return Maker(name.removesuffix("_"))


@dataclass(frozen=True)
class Maker:
    """Makes the patterns of one op; whether the op exists is checked where a rule is defined."""

    op: str

    def __call__(
        self, *operands: Pattern | bool | int | float, **attributes: Var | Attribute
    ) -> Node:
        """The pattern of a term with these operands and attributes."""
        made = [each if isinstance(each, Pattern) else Number(each) for each in operands]
        return Node(self.op, tuple(made), tuple(attributes.items()))


op = _Ops()
"""Patterns by the name of their op."""


def variables(names: str) -> list[Var]:
    """A variable for each of the names, which are separated by spaces."""
    return [Var(name) for name in names.split()]


def var(name: str) -> Var:
    """A variable that stands for a term, or for the value of an attribute."""
    return Var(name)


def closed(name: str) -> Var:
    """A variable that matches only terms of indices, lengths and captured tensors."""
    return Var(name, Kind.closed)


def number(name: str) -> Var:
    """A variable that matches only constants, and is given as the number."""
    return Var(name, Kind.number)


def rest(name: str) -> Var:
    """All operands that the rest of the pattern leaves over; may be none."""
    return Var(name, Kind.rest)


def nodes(pattern: Pattern) -> Iterator[Node]:
    """Every op in a pattern, outermost first."""
    if isinstance(pattern, Node):
        yield pattern
        for operand in pattern.operands:
            yield from nodes(operand)


def bound(pattern: Pattern) -> dict[str, set[Kind]]:
    """The kinds of what each variable stands for; more than one kind is a mistake."""
    found: dict[str, set[Kind]] = {}
    operands = [each for node in nodes(pattern) for each in node.operands]
    for each in [pattern, *operands]:
        if isinstance(each, Var):
            found.setdefault(each.name, set()).add(each.kind)
    for node in nodes(pattern):
        for _, value in node.attributes:
            if isinstance(value, Var):
                found.setdefault(value.name, set()).add(Kind.attribute)
    return found


def depth(pattern: Pattern) -> int:
    """How many ops lie below the outermost one on the longest way down."""
    if not isinstance(pattern, Node):
        return 0
    return max((1 + depth(each) for each in pattern.operands if isinstance(each, Node)), default=0)
