"""The pipeline: one function for each arrow between a program and its kernel.

    program ──saturate──▶ programs ──make_plans──▶ plans ──emit──▶ source ──lower──▶ target code
                                                                    └──────build──────▶ kernel

Each thing between arrows is a value that prints itself and hangs off `Compiled`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import attnfuse.logs as logs
from attnfuse.backends.tilelang import lower as lowering
from attnfuse.backends.tilelang import source as emitting
from attnfuse.backends.tilelang.binaries import Built
from attnfuse.backends.tilelang.lower import Lowered
from attnfuse.backends.tilelang.source import Source
from attnfuse.devices import Device
from attnfuse.errors import CannotLower
from attnfuse.files import write_atomically
from attnfuse.ir.axes import DType, Symbol
from attnfuse.ir.program import Program
from attnfuse.ir.verify import verify
from attnfuse.plan import Part, Pattern, Plan, match, schedule, split
from attnfuse.plan.schedule import UNSCHEDULED
from attnfuse.runtime.building import ensure
from attnfuse.runtime.cache import folder_of
from attnfuse.runtime.stats import timed
from attnfuse.settings import get_settings

if TYPE_CHECKING:
    from torch import Tensor

    Kernel = Callable[[Mapping[str, "Tensor"], Mapping[Symbol, int]], "tuple[Tensor, ...]"]

_ON_GPU = (DType.float16, DType.bfloat16)
_log = logging.getLogger("attnfuse.compiler")


def saturate(program: Program, device: Device) -> list[Program]:
    """The forms of ``program`` worth considering on ``device``, best first.

    For now the program itself: rewriting comes between here and there.
    """
    return [program]


def make_plans(
    program: Program, device: Device, patterns: Mapping[str, Pattern]
) -> list[tuple[Part, Plan]]:
    """The launches that compute ``program``, with tiles that fit ``device``.

    Raises:
        CannotLower: no kernel form covers the program.
        DoesNotFitDevice: not even the smallest tiles fit.
    """
    for term in program.inputs:
        if device.kind != "cpu" and term["role"] != "captured" and term.type.dtype not in _ON_GPU:
            problem = (
                f"{device.title} multiplies no {term.type.dtype} yet; pass float16 or bfloat16"
            )
            raise CannotLower(problem=problem, term=term)
    known, plans = dict(patterns), list[tuple[Part, Plan]]()
    for part in split(program):
        plan = schedule(match(part.program, known, UNSCHEDULED), device)
        known.update(zip(part.keeps, (result.pattern for result in plan.results), strict=False))
        plans.append((part, plan))
    return plans


def emit(plan: Plan, program: Program, device: Device) -> Source:
    """The TileLang program that carries out ``plan``."""
    return emitting.emit(plan, device, str(program))


def lower(source: Source) -> Lowered:
    """The C, CUDA or HIP that a program becomes. Needs neither GPU nor compiler."""
    return lowering.lower(source, folder_of(source.digest))


def build(plan: Plan, source: Source, built: Built | None) -> Kernel:
    """The kernel of a program, loaded and ready to be called.

    Args:
        plan: what the program does.
        source: the program.
        built: its binary, or None for a program that TileLang has to build itself.

    Raises:
        BuildFailed: the target's compiler refused the program.
    """
    if built is None or source.device.kind != "cpu":
        from attnfuse.backends.tilelang import gpu

        return gpu.build(plan, source, folder_of(source.digest))
    from attnfuse.backends.tilelang import cpu

    with timed("load"):
        return cpu.load(plan, built)


@dataclass(frozen=True)
class Launch:
    """One kernel of a compiled variant. What needs tools is made when it is first asked for.

    Attributes:
        part: its share of the program.
        plan: what it does.
        source: the TileLang program.
    """

    part: Part
    plan: Plan
    source: Source

    @cached_property
    def lowered(self) -> Lowered:
        """The target code."""
        lowered = lower(self.source)
        _dump(self.source, f"kernel.{lowered.extension}", lowered.text)
        return lowered

    @cached_property
    def built(self) -> Built | None:
        """The binary; None where TileLang builds the program itself."""
        (built,) = ensure((self.source,))
        if built is not None and get_settings().dump_dir is not None:
            _dump(self.source, f"kernel{built.text.suffix}", built.text.read_text("utf-8"))
        return built

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel, ready to be called."""
        return build(self.plan, self.source, self.built)

    def made(self) -> Iterator[str]:
        """What exists so far, in words."""
        yield f"{_lines(self.source.text)} lines of TileLang, {self.source.digest}"
        if "lowered" in self.__dict__:
            lowered = self.lowered
            shared = f", {lowered.shared_memory} bytes of shared memory"
            yield f"{_lines(lowered.text)} lines of {lowered.extension}{shared}"
        if "kernel" in self.__dict__:
            yield "a kernel in this process"
        built = self.__dict__.get("built")
        if built is not None:
            shared = f"{built.shared_memory} bytes of shared memory"
            yield f"{built.function} in {built.path}, {shared}"


@dataclass(frozen=True)
class Compiled:
    """A variant, compiled for one signature and one device.

    Attributes:
        traced: the program as it was traced.
        program: the form that was chosen.
        launches: the kernels that compute it, in the order in which they run.
        device: what it was compiled for.
    """

    traced: Program
    program: Program
    launches: tuple[Launch, ...]
    device: Device

    def run(self, tensors: Mapping[str, Tensor], sizes: Mapping[Symbol, int]) -> tuple[Tensor, ...]:
        """The outputs for these inputs, by name, and the sizes that they have."""
        known = dict(tensors)
        outputs: tuple[Tensor, ...] = ()
        for launch in self.launches:
            outputs = launch.kernel(known, sizes)
            known.update(zip(launch.part.keeps, outputs, strict=False))
        return outputs

    def explain(self) -> str:
        """What the compiler did, as text."""
        lines = [
            f"{self.program.name} on {self.device.title} ({self.device.arch})",
            "",
            "traced graph",
            _indented(self.traced),
            "",
            "rewriting: none yet, the traced graph is the chosen one",
        ]
        for launch in self.launches:
            lines += ["", "plan", _indented(launch.plan), "", "made"]
            lines += [f"  {line}" for line in launch.made()]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.explain()


def compile_program(program: Program, device: Device, patterns: Mapping[str, Pattern]) -> Compiled:
    """Everything up to the TileLang program.

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
    chosen = saturate(program, device)[0]
    verify(chosen)
    launches: list[Launch] = []
    for part, plan in make_plans(chosen, device, patterns):
        source = emit(plan, part.program, device)
        launches.append(Launch(part, plan, source))
        _log.info("%s for %s: %s", plan.name, device.title, plan.schedule)
        _dump(source, "graph.txt", f"{part.program}\n")
        _dump(source, "plan.txt", f"{plan}\n")
        _dump(source, "program.py", source.text)
    return Compiled(program, chosen, tuple(launches), device)


def _dump(source: Source, name: str, text: str) -> None:
    """Write one stage where ATTNFUSE_DUMP_DIR says."""
    root = get_settings().dump_dir
    if root is not None:
        folder = Path(root) / f"{source.name}-{source.device.name}-{source.digest[:8]}"
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, text)


def _lines(text: str) -> int:
    return text.count("\n")


def _indented(value: object) -> str:
    return "\n".join(f"  {line}" for line in str(value).splitlines())
