"""Splits a program into one program for each launch.

What is `stored` has a pass of its own, before whatever reads it.

A launch has one softmax. What combines several (differential attention, a
coarse and a fine branch) is computed by the epilogue of the last launch,
which reads what the earlier ones have left in memory, in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnfuse.ir import build as ir
from attnfuse.ir.attention import STATISTICS
from attnfuse.ir.axes import Axis, DType
from attnfuse.ir.layout import dimensions, extent, label
from attnfuse.ir.program import Program
from attnfuse.ir.term import Term, walk


@dataclass(frozen=True)
class Part:
    """One launch's share of a program.

    Attributes:
        program: what it computes.
        keeps: the names under which later parts read its outputs; empty for
            the last part, whose outputs are the program's.
    """

    program: Program
    keeps: tuple[str, ...] = ()


def split(program: Program) -> tuple[Part, ...]:
    """The parts of ``program``, in the order in which they are to run."""
    passes, rest = _passes(program)
    return (*passes, *_attentions(rest))


def _passes(program: Program) -> tuple[list[Part], Program]:
    """A part for each stored term, and the program that reads what they write."""
    parts: list[Part] = []
    inputs, replacements = list(program.inputs), dict[Term, Term]()
    for term in [term for term in program.terms() if term.op.name == "stored"]:
        name = _free(program, f"stored{len(parts)}")
        made = ir.substitute(term.operands[0], replacements)
        own = Program(f"{program.name}_{name}", tuple(inputs), (made,))
        parts.append(Part(own, (name,)))
        replacements[term] = ir.input_(name, _role(term), term.type.dtype, term.type.axes)
        inputs.append(replacements[term])
    outputs = tuple(ir.substitute(output, replacements) for output in program.outputs)
    return parts, Program(program.name, tuple(inputs), outputs)


def _role(term: Term) -> str:
    names = term.type.names
    return "query" if "q" in names else "value" if names[-1] == "e" else "key"


def _attentions(program: Program) -> tuple[Part, ...]:
    """A part for each attention; the last one combines what the others have left."""
    attends = [term for term in program.terms() if is_attend(term)]
    parts: list[Part] = []
    replacements: dict[Term, Term] = {}
    for place, attend in enumerate(attends[:-1]):
        cores = [attend, *_statistics(program, attend)]
        names = [_free(program, f"part{place}_{i}") for i in range(len(cores))]
        wide = [_wide(core) for core in cores]
        own = Program(f"{program.name}_part{place}", program.inputs, tuple(wide))
        parts.append(Part(own, tuple(names)))
        read = zip(cores, wide, names, strict=True)
        replacements |= {core: _reread(core, kept, name) for core, kept, name in read}
    outputs = tuple(ir.substitute(output, replacements) for output in program.outputs)
    kept = [leaf for leaf in walk(*outputs) if leaf.op.name == "input"]
    inputs = dict.fromkeys((*program.inputs, *kept))
    return (*parts, Part(Program(program.name, tuple(inputs), outputs)))


def is_attend(term: Term) -> bool:
    """Whether a term is the contraction of weights with values."""
    return term.op.name == "contract" and term["over"] == "k"


def _statistics(program: Program, attend: Term) -> list[Term]:
    """The statistics of the scores under an attention's softmax."""
    weights = attend.operands[0]
    if weights.op.name != "softmax":
        return []
    found = [term for term in program.terms() if term.op.name in STATISTICS]
    return [term for term in found if term.operands == weights.operands]


def _wide(core: Term) -> Term:
    """A core in float32: it is rounded once, where it is used."""
    if core.op.name != "contract":
        return core
    return ir.contract(*core.operands, over="k", dtype=DType.float32)


def _reread(core: Term, kept: Term, name: str) -> Term:
    """What an earlier part has kept, read at each of its entries."""
    groups = dimensions(core.type.axes)
    axes = [Axis(f"{name}.{place}", extent(group)) for place, group in enumerate(groups)]
    tensor = ir.input_(name, "captured", kept.type.dtype, axes)
    entries = ir.gather(tensor, *(ir.index(label(group), group) for group in groups))
    return ir.cast(entries, core.type.dtype)


def _free(program: Program, name: str) -> str:
    taken = {term.text("name") for term in program.inputs}
    while name in taken:
        name += "_"
    return name
