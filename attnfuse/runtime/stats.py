"""What this process has done so far: counters, and the seconds that each arrow took."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from time import perf_counter

ARROWS = ("trace", "saturate", "plan", "emit", "lower", "compile", "load")
"""The steps that are timed, in the order in which a program takes them."""


def _no_time() -> dict[str, float]:
    return dict.fromkeys(ARROWS, 0.0)


@dataclass(frozen=True)
class Stats:
    """What a process has done since it began, or since `reset_stats`.

    Attributes:
        traces: functions that were traced.
        compilations: programs that were taken through the arrows, up to their TileLang programs.
        builds: binaries that were made, here or by a process that this one started.
        disk_hits: binaries that were found in the cache on disk.
        memory_hits: calls whose kernel was in memory.
        calls: calls of variants.
        fallbacks: calls that the reference backend answered.
        seconds: the time that each arrow took, all in all. Processes that build side by side
            count in full.
    """

    traces: int = 0
    compilations: int = 0
    builds: int = 0
    disk_hits: int = 0
    memory_hits: int = 0
    calls: int = 0
    fallbacks: int = 0
    seconds: Mapping[str, float] = field(default_factory=_no_time)

    def __str__(self) -> str:
        counted = [f"{name:<14}{value}" for name, value in counters(self).items()]
        timed = [f"{arrow:<14}{seconds:.3f} s" for arrow, seconds in self.seconds.items()]
        return "\n".join((*counted, *timed))


def counters(stats: Stats) -> dict[str, int]:
    """The counters alone, by name."""
    return {name: value for name, value in asdict(stats).items() if name != "seconds"}


# CPython switches threads at calls and at jumps back only, so neither of the two additions below
# can be interrupted, and a lock would cost more than they do. Without the GIL some may be lost.
_counts = counters(Stats())
_seconds = _no_time()


def count(name: str) -> None:
    """Add 1 to a counter.

    Raises:
        KeyError: there is no such counter.
    """
    _counts[name] += 1


@contextmanager
def timed(arrow: str) -> Generator[None]:
    """Add the time that a block takes to an arrow's.

    Raises:
        KeyError: there is no such arrow.
    """
    began = perf_counter()
    try:
        yield
    finally:
        took = perf_counter() - began
        _seconds[arrow] += took


def absorb(other: Stats) -> None:
    """Add what another process did for this one."""
    for name, value in counters(other).items():
        _counts[name] += value
    for arrow, seconds in other.seconds.items():
        _seconds[arrow] += seconds


def stats() -> Stats:
    """What this process has done so far. Printed, one line for each counter and arrow."""
    return Stats(**_counts, seconds=dict(_seconds))


def reset_stats() -> None:
    """Set all counters and times to 0."""
    _counts.update(dict.fromkeys(_counts, 0))
    _seconds.update(_no_time())
