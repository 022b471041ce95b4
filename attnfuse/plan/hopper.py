"""What the `hopper` schedule can carry out, and how much shared memory that takes.

TMA copies whole rows of 128 bytes into tiles that the matrix unit reads, so
keys and values have to lie in memory as they are multiplied: what is done to
them on the way in has to be done beforehand, by a pass.
"""

from __future__ import annotations

from attnfuse.devices import Device
from attnfuse.ir import build as ir
from attnfuse.ir.axes import DType
from attnfuse.ir.program import Program
from attnfuse.ir.term import Term
from attnfuse.plan.kernel import ENTROPY, LSE, ROW_MAX, Plan, QueryMajor, Schedule

ARCH = "sm_90a"
"""The architecture whose matrix units and barriers it uses."""

_NARROW = (DType.float16, DType.bfloat16)
_WIDTHS = (64, 128)
_BARRIERS = 1024
_PREPARED = ("rotate", "normalise")


def schedules(plan: Plan, device: Device) -> list[Schedule]:
    """The schedules to try for a plan, best first; none where this kind can't carry it out."""
    if device.arch != ARCH or not isinstance(plan, QueryMajor) or not _fits(plan):
        return []
    return [Schedule("hopper", 128, 128, 2, 384, device.processors)]


def shared_memory(plan: QueryMajor) -> int:
    """Bytes of shared memory of a block: queries, keys, values, outputs; barriers."""
    tiles = plan.schedule
    ((query, _),) = plan.streams
    (result,) = [each for each in plan.results if each.has_features]
    width, features = plan.width(query), plan.width(plan.value)
    total = tiles.block_q * width * plan.attended.itemsize
    total += tiles.stages * tiles.block_k * (width + features) * plan.attended.itemsize
    total += tiles.block_q * features * result.dtype.itemsize
    row = (1 + plan.reads(LSE)) * DType.float32.itemsize  # a norm's divisor, the log-sum-exp
    return total + tiles.block_q * row + _BARRIERS


def hoisted(program: Program) -> Program:
    """The program with passes that prepare its keys and values."""
    replaced: dict[Term, Term] = {}
    for term in program.terms():
        if term.op.name == "contract":
            other = term.operands[1]
            if other.op.name in _PREPARED:
                replaced[other] = ir.stored(other)
    outputs = tuple(ir.substitute(output, replaced) for output in program.outputs)
    return Program(program.name, program.inputs, outputs)


def _fits(plan: QueryMajor) -> bool:
    if not plan.normalised or len(plan.streams) != 1 or plan.steps:
        return False
    if plan.reads(ROW_MAX) or plan.reads(ENTROPY) or plan.attended not in _NARROW:
        return False
    ((query, key),) = plan.streams
    loads = (query, key, plan.value)
    placed = all(plan.parameter(load.parameter).pattern.aligned for load in loads)
    wide = all(plan.width(load) in _WIDTHS for load in loads)
    prepared = not key.steps and not plan.value.steps
    return placed and wide and prepared and sum(each.has_features for each in plan.results) == 1
