"""What the compiler makes of a variant: kernels, and the sizes that each is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from attnfuse.backends.tilelang import lower as lowering
from attnfuse.backends.tilelang.binaries import Built
from attnfuse.backends.tilelang.lower import Lowered
from attnfuse.backends.tilelang.source import Source
from attnfuse.devices import Device
from attnfuse.files import write_atomically
from attnfuse.ir.axes import Symbol
from attnfuse.ir.program import Program
from attnfuse.plan import Guard, Part, Plan
from attnfuse.runtime.building import ensure, find
from attnfuse.runtime.cache import folder_of
from attnfuse.runtime.loading import Kernel, load
from attnfuse.runtime.preparing import prepare
from attnfuse.settings import get_settings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Launch:
    """One kernel, as text.

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
        """The C, CUDA or HIP that the program becomes; needs neither GPU nor compiler."""
        lowered = lowering.lower(self.source, folder_of(self.source.digest))
        dump(self.source, f"kernel.{lowered.extension}", lowered.text)
        return lowered


@dataclass(frozen=True)
class Choice:
    """The kernels that compute a variant, and when to take them.

    Attributes:
        guard: the sizes of a call that they are for; None for all.
        launches: the kernels, in the order in which they run.
    """

    guard: Guard | None
    launches: tuple[Launch, ...]
    _lock: RLock = field(default_factory=RLock, repr=False, compare=False)

    @cached_property
    def built(self) -> tuple[Built | None, ...]:
        """The binary of each kernel, None where TileLang builds it itself; made if need be."""
        found = tuple(ensure([launch.source for launch in self.launches]))
        for launch, built in zip(self.launches, found, strict=True):
            if built is not None and get_settings().dump_dir is not None:
                text = built.text
                dump(launch.source, f"kernel{text.suffix}", text.read_text("utf-8"))
        return found

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels, loaded."""
        with self._lock:
            if self.is_loaded:  # another thread was faster
                return self.kernels
            pairs = zip(self.launches, self.built, strict=True)
            kernels = tuple(load(each.plan, each.source, built) for each, built in pairs)
            self.__dict__["kernels"] = kernels
        return kernels

    @property
    def is_loaded(self) -> bool:
        """Whether its kernels are in this process."""
        return "kernels" in self.__dict__

    @property
    def is_built(self) -> bool:
        """Whether its kernels are on disk, all of them, so that no tool is needed."""
        return all(find(launch.source) is not None for launch in self.launches)

    def made(self) -> Iterator[str]:
        """What exists so far of each launch, in words."""
        places = self.__dict__.get("built", (None,) * len(self.launches))
        for launch, built in zip(self.launches, places, strict=True):
            lines = [f"{_lines(launch.source.text)} lines of TileLang, {launch.source.digest}"]
            if "lowered" in launch.__dict__:
                lowered = launch.lowered
                shared = f", {lowered.shared_memory} bytes of shared memory"
                lines.append(f"{_lines(lowered.text)} lines of {lowered.extension}{shared}")
            if built is not None:
                shared = f"{built.shared_memory} bytes of shared memory"
                lines.append(f"{built.function} in {built.path}, {shared}")
            made = "\n".join(f"  {line}" for line in lines)
            yield f"plan\n{_indented(launch.plan)}\n\nmade\n{made}"


@dataclass(frozen=True)
class Compiled:
    """A variant, compiled for one device and one pattern of strides.

    Attributes:
        traced: the program as it was traced.
        program: the form that was chosen.
        choices: kernels and the sizes that they are for; the first whose guard holds is taken,
            and the last one has none.
        device: what it was compiled for.
    """

    traced: Program
    program: Program
    choices: tuple[Choice, ...]
    device: Device

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The kernels of the last choice, which fit any sizes."""
        return self.choices[-1].launches

    def choose(self, sizes: Mapping[Symbol, int]) -> Choice:
        """The kernels for a call of these sizes."""
        return next(each for each in self.choices if each.guard is None or each.guard.holds(sizes))

    def prepare(
        self, inputs: Sequence[Tensor], sizes: Mapping[Symbol, int]
    ) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        """What a call has to do, for tensors of this shape, these strides and this device.

        Args:
            inputs: the program's inputs, in its order.
            sizes: the sizes that they have.

        Raises:
            BuildFailed: the target's compiler refused a program.
        """
        choice = self.choose(sizes)
        launches = zip(choice.launches, choice.kernels, strict=True)
        triples = [(launch.part, launch.plan, kernel) for launch, kernel in launches]
        return prepare(self.program, triples, inputs, sizes)

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
        for choice in self.choices:
            if len(self.choices) > 1:
                lines += ["", f"where {choice.guard}" if choice.guard else "otherwise"]
            for made in choice.made():
                lines += ["", made]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.explain()


def dump(source: Source, name: str, text: str) -> None:
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
