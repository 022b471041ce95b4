"""The pipeline: one function for each arrow between a program and its kernel.

    program ──saturate──▶ programs ──make_plans──▶ plans ──schedule──▶ plans ──emit──▶ source

The rest of the way, from a source to a kernel, is gone at the first call: `attnfuse.compiled`.
Each thing between arrows is a value that prints itself and hangs off `Compiled`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import attnfuse.logs as logs
from attnfuse.backends.tilelang import source as emitting
from attnfuse.backends.tilelang.source import Source
from attnfuse.compiled import Choice, Compiled, Launch, dump
from attnfuse.devices import Device
from attnfuse.errors import CannotLower
from attnfuse.ir.axes import DType
from attnfuse.ir.program import Program
from attnfuse.ir.verify import verify
from attnfuse.plan import Guard, Part, Pattern, Plan, guards, hopper, match, schedule, split
from attnfuse.plan.schedule import UNSCHEDULED
from attnfuse.runtime.stats import count, timed

_ON_GPU = (DType.float16, DType.bfloat16, DType.float32)
_log = logging.getLogger("attnfuse.compiler")


def saturate(program: Program, device: Device) -> list[Program]:
    """The forms of ``program`` worth considering on ``device``, best first.

    For now the program itself: rewriting comes between here and there.
    """
    return [program]


def make_plans(
    program: Program, device: Device, patterns: Mapping[str, Pattern]
) -> list[tuple[Part, Plan]]:
    """The launches that compute ``program``, not yet scheduled.

    Raises:
        CannotLower: no kernel form covers the program.
    """
    for term in program.inputs:
        if device.kind != "cpu" and term["role"] != "captured" and term.type.dtype not in _ON_GPU:
            problem = (
                f"no kernel for {device.title} multiplies {term.type.dtype}; "
                "pass float16, bfloat16 or float32"
            )
            raise CannotLower(problem=problem, term=term)
    known, plans = dict(patterns), list[tuple[Part, Plan]]()
    for part in split(program):
        plan = match(part.program, known, UNSCHEDULED)
        known.update(zip(part.keeps, (result.pattern for result in plan.results), strict=False))
        plans.append((part, plan))
    return plans


def emit(plan: Plan, program: Program, device: Device) -> Source:
    """The TileLang program that carries out ``plan``."""
    return emitting.emit(plan, device, str(program))


def compile_program(program: Program, device: Device, patterns: Mapping[str, Pattern]) -> Compiled:
    """Everything up to the TileLang programs.

    Args:
        program: a traced program.
        device: what to compile for.
        patterns: for each input, its place in memory.

    Raises:
        CannotLower: no kernel form covers the program.
        DoesNotFitDevice: not even the smallest tiles fit.
    """
    logs.configure()
    verify(program)
    with timed("saturate"):
        chosen = saturate(program, device)[0]
    verify(chosen)
    choices = [_choice(guard, chosen, device, patterns) for guard in guards(device)]
    return Compiled(program, chosen, _distinct(choices), device)


def _choice(
    guard: Guard | None, program: Program, device: Device, patterns: Mapping[str, Pattern]
) -> Choice:
    with timed("plan"):
        plans = _scheduled(program, device, patterns, guard)
    launches: list[Launch] = []
    for part, plan in plans:
        with timed("emit"):
            source = emit(plan, part.program, device)
        launches.append(Launch(part, plan, source))
        _log.info("%s for %s: %s", plan.name, device.title, plan.schedule)
        dump(source, "graph.txt", f"{part.program}\n")
        dump(source, "plan.txt", f"{plan}\n")
        dump(source, "program.py", source.text)
    count("compilations")
    return Choice(guard, tuple(launches))


def _scheduled(
    program: Program, device: Device, patterns: Mapping[str, Pattern], guard: Guard | None
) -> list[tuple[Part, Plan]]:
    """The launches, scheduled; keys prepared beforehand where all of it then runs on `hopper`."""

    def plans(form: Program) -> list[tuple[Part, Plan]]:
        made = make_plans(form, device, patterns)
        return [(part, schedule(plan, device, guard)) for part, plan in made]

    if guard is None and device.arch == hopper.ARCH:
        found = plans(hopper.hoisted(program))
        if all(plan.schedule.name in ("hopper", "pass") for _, plan in found):
            return found
    return plans(program)


def _distinct(choices: list[Choice]) -> tuple[Choice, ...]:
    """The choices that differ from the last one, which fits all sizes, and that one."""
    *guarded, last = choices
    texts = [launch.source.text for launch in last.launches]
    own = [each for each in guarded if [one.source.text for one in each.launches] != texts]
    return (*own, last)
