"""Which tiles, stages and threads a plan gets on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnfuse.devices import Device
from attnfuse.errors import DoesNotFitDevice
from attnfuse.ir.axes import DType, Symbol
from attnfuse.ir.term import Term
from attnfuse.plan import hopper
from attnfuse.plan.guard import Guard
from attnfuse.plan.kernel import ENTROPY, Load, Pass, Plan, QueryMajor, Schedule
from attnfuse.settings import get_settings

_GPU_TILES = (
    (128, 128, 256),
    (128, 64, 256),
    (64, 64, 128),
    (64, 32, 128),
    (32, 32, 64),
    (32, 16, 64),
)
"""block_q, block_k, threads: the largest that fits wins. Each M = block_q has a whole
number of warp rows of 16 (and of Hopper's 64) for its threads."""

_FLOAT32_TILES = ((128, 64, 128), (128, 32, 128), (64, 32, 64), (64, 16, 64))
"""The same for float32, whose products give each thread a row of scores and of outputs."""

_FEW_QUERIES = {"cpu": 8, "cuda": 64, "hip": 64}
"""Up to how many queries smaller tiles are worth a kernel of their own: on a GPU a tile of 128
would be half empty, and on a CPU each row costs its time."""

_CPU = Schedule("pipelined", block_q=64, block_k=64, stages=0, threads=1)
_CPU_PASS = Schedule("pass", block_q=64, block_k=0, stages=0, threads=1)

_REDUCTION_BYTES = 8

UNSCHEDULED = Schedule("pipelined", block_q=0, block_k=0, stages=0, threads=0)
"""What a plan has before it is scheduled."""


def guards(device: Device) -> tuple[Guard | None, ...]:
    """The sizes for which plans are scheduled apart; the last choice, without a guard, fits all."""
    return Guard(Symbol("q_len"), _FEW_QUERIES[device.kind]), None


def schedule(plan: Plan, device: Device, guard: Guard | None = None) -> Plan:
    """``plan`` with the largest tiles whose shared memory fits ``device``.

    Args:
        plan: a plan of any schedule.
        device: what to schedule for.
        guard: the sizes to schedule for, all by default.

    Raises:
        DoesNotFitDevice: not even the smallest tiles fit.
    """
    if device.kind == "cpu":
        rows = replace(_CPU, block_q=guard.most) if guard else _CPU
        return replace(plan, schedule=_CPU_PASS if isinstance(plan, Pass) else rows)
    if isinstance(plan, Pass):
        schedules = [Schedule("pass", rows, 0, 0, 128) for rows in (64, 32, 16)]
    else:
        wanted = guard is None and "hopper" in get_settings().schedules
        schedules = hopper.schedules(plan, device) if wanted else []
        schedules += [
            Schedule("pipelined", block_q, block_k, device.stages, threads)
            for block_q, block_k, threads in _tiles(plan)
            if guard is None or block_q <= guard.most
        ]
    candidates = [replace(plan, schedule=each) for each in schedules]
    for candidate in candidates:
        if shared_memory(candidate) <= device.shared_memory:
            return candidate
    raise DoesNotFitDevice(
        variant=plan.name,
        needed=shared_memory(candidates[-1]),
        device=device.title,
        available=device.shared_memory,
    )


def shared_memory(plan: Plan) -> int:
    """Bytes of shared memory that a block needs for its tiles.

    Queries stay; keys and values have one buffer for each stage, and as many
    again for keys that are changed on the way in, since a buffer that is being
    filled ahead must not be written by anyone else. Tiles of the epilogue take
    their place when the loop is over. Reductions over rows exchange two numbers
    a thread where warps can't do it in registers. Weights of float32 are shared
    as well, since no matrix unit multiplies them.
    """
    tiles, stages = plan.schedule, max(plan.schedule.stages, 1)
    total = tiles.threads * _REDUCTION_BYTES
    if isinstance(plan, Pass):
        return total + tiles.block_q * (_row_bytes(plan, plan.like) + _norm_bytes(plan.load.steps))
    assert isinstance(plan, QueryMajor)
    if tiles.name == "hopper":
        return hopper.shared_memory(plan)
    loop = tiles.block_k * _row_bytes(plan, plan.value.parameter) * _buffers(plan.value, stages)
    loop += tiles.block_k * _norm_bytes(plan.value.steps)
    if plan.reads(ENTROPY):  # one number more to reduce
        total += tiles.threads * _REDUCTION_BYTES // 2
    if plan.attended is DType.float32:
        loop += tiles.block_q * tiles.block_k * DType.float32.itemsize
    for query, key in plan.streams:
        loop += tiles.block_q * _row_bytes(plan, query.parameter)
        loop += tiles.block_k * _row_bytes(plan, key.parameter) * _buffers(key, stages)
        loop += tiles.block_q * _norm_bytes(query.steps) + tiles.block_k * _norm_bytes(key.steps)
    epilogue = tiles.block_q * sum(map(_step_bytes, plan.steps))
    return total + max(loop, epilogue)


def _tiles(plan: Plan) -> tuple[tuple[int, int, int], ...]:
    return _FLOAT32_TILES if plan.attended is DType.float32 else _GPU_TILES


def _buffers(load: Load, stages: int) -> int:
    return stages * (2 if load.steps else 1)


def padded(features: int) -> int:
    """Features of a tile in shared memory: matrix units take multiples of 16."""
    return -(-features // 16) * 16


def _row_bytes(plan: Plan, name: str) -> int:
    parameter = plan.parameter(name)
    size = parameter.sizes[-1]
    assert isinstance(size, int)
    return padded(size) * parameter.dtype.itemsize


def _norm_bytes(steps: Sequence[Term]) -> int:
    """Bytes that each row of a tile needs for its norm."""
    return DType.float32.itemsize * any(step.op.name == "normalise" for step in steps)


def _step_bytes(step: Term) -> int:
    """Bytes of a row of the tile that a step of the epilogue works in."""
    size = step.type.axes[-1].size
    assert isinstance(size, int)
    return padded(size) * step.type.dtype.itemsize + _norm_bytes((step,))
