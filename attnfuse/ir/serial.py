"""Programs as text, to be kept in files and handed to other processes.

The text is JSON without spaces, and the same for equal programs::

    {"format":1,"digest":…,"name":…,"nodes":[[op,[operands],[attributes]],…],
     "inputs":[nodes],"outputs":[nodes]}

Nodes are numbered in the order of the list, and name only earlier ones. An
attribute is JSON's own null, boolean, integer or string, or an object whose
one key says what it is: ``float`` (hexadecimal, so that every bit and every
infinity returns), ``dtype``, ``symbol``, ``axis``, ``term`` (a node) or
``tuple``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from attnfuse.errors import CorruptProgram
from attnfuse.ir.axes import Axis, DType, Symbol
from attnfuse.ir.ops import OPS
from attnfuse.ir.program import Program
from attnfuse.ir.term import Attribute, Term, make, walk

FORMAT = 1
"""Changes whenever an older AttnFuse couldn't read the text."""


def dump(program: Program) -> str:
    """A program as text."""
    writer = _Writer()
    writer.add(*program.inputs, *program.outputs)
    data = {
        "format": FORMAT,
        "digest": program.digest,
        "name": program.name,
        "nodes": writer.nodes,
        "inputs": [writer.numbers[term] for term in program.inputs],
        "outputs": [writer.numbers[term] for term in program.outputs],
    }
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def load(text: str) -> Program:
    """The program that `dump` wrote, made of the very terms that it had where these still exist.

    Raises:
        CorruptProgram: the text is damaged, or another version's.
    """
    try:
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise CorruptProgram(problem=f"its format is {data['format']}, not {FORMAT}")
        program = _program(data)
        intact = program.digest == data["digest"]
    except CorruptProgram:
        raise
    except Exception as error:  # a type rule may stumble over wrong attributes in any way
        problem = f"it can't be read ({type(error).__name__}: {error})"
        raise CorruptProgram(problem=problem) from error
    if not intact:
        raise CorruptProgram(problem="its digest is not that of its content")
    return program


class _Writer:
    """Numbers terms, and the forms within them."""

    def __init__(self) -> None:
        self.nodes: list[object] = []
        self.numbers: dict[Term, int] = {}

    def add(self, *roots: Term) -> None:
        for term in walk(*roots, down_to=self.numbers):
            if term not in self.numbers:
                attributes = [self._written(value) for value in term.attributes]
                operands = [self.numbers[operand] for operand in term.operands]
                self.numbers[term] = len(self.nodes)
                self.nodes.append([term.op.name, operands, attributes])

    def _written(self, value: Attribute) -> object:
        match value:
            case DType():
                return {"dtype": value.value}
            case None | bool() | int() | str():
                return value
            case float():
                return {"float": value.hex()}
            case Symbol():
                return {"symbol": value.name}
            case Axis():
                return {"axis": [value.name, self._written(value.size)]}
            case Term():
                self.add(value)
                return {"term": self.numbers[value]}
            case tuple():
                return {"tuple": [self._written(each) for each in value]}


def _program(data: Any) -> Program:
    nodes: list[Term] = []
    for op, operands, attributes in data["nodes"]:
        values = [_read(value, nodes) for value in attributes]
        nodes.append(make(OPS[op], _picked(nodes, operands), values))
    inputs, outputs = _picked(nodes, data["inputs"]), _picked(nodes, data["outputs"])
    return Program(data["name"], inputs, outputs)


def _picked(nodes: Sequence[Term], numbers: Sequence[int]) -> tuple[Term, ...]:
    return tuple(nodes[number] for number in numbers)


def _read(value: Any, nodes: Sequence[Term]) -> Attribute:
    if value is None or isinstance(value, bool | int | str):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "term":
            return _picked(nodes, [content])[0]
        case "tuple":
            return tuple(_read(each, nodes) for each in content)
        case "axis":
            size = _read(content[1], nodes)
            assert isinstance(size, int | Symbol)
            return Axis(content[0], size)
        case _:
            return _LEAVES[kind](content)


_LEAVES: dict[str, Callable[[str], Attribute]] = {
    "float": float.fromhex,
    "dtype": DType,
    "symbol": Symbol,
}
