"""Counters and times."""

from __future__ import annotations

import sys
import threading

import pytest

import attnfuse as af
from attnfuse.runtime.stats import ARROWS, Stats, absorb, count, reset_stats, timed


def test_everything_starts_at_nothing() -> None:
    reset_stats()
    assert af.stats() == Stats()
    assert set(af.stats().seconds) == set(ARROWS)


def test_counted_and_timed() -> None:
    af.reset_stats()
    count("calls")
    count("calls")
    before = af.stats()
    with pytest.raises(ZeroDivisionError), timed("plan"):
        raise ZeroDivisionError
    assert before.calls == 2 and before.seconds["plan"] == 0
    assert af.stats().seconds["plan"] > 0


def test_a_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(KeyError):
        count("call")
    with pytest.raises(KeyError), timed("planning"):
        pass


def test_what_another_process_did_is_added() -> None:
    reset_stats()
    count("builds")
    absorb(Stats(builds=2, seconds=dict.fromkeys(ARROWS, 1.5)))
    assert af.stats() == Stats(builds=3, seconds=dict.fromkeys(ARROWS, 1.5))


def test_threads_lose_no_count() -> None:
    reset_stats()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        counting = [threading.Thread(target=_count_often) for _ in range(4)]
        for thread in counting:
            thread.start()
        for thread in counting:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert af.stats().calls == 4 * 20_000


def _count_often() -> None:
    for _ in range(20_000):
        count("calls")


def test_printed_one_line_each() -> None:
    reset_stats()
    count("disk_hits")
    lines = str(af.stats()).splitlines()
    assert "disk_hits     1" in lines and "compile       0.000 s" in lines
    assert len(lines) == 7 + len(ARROWS)
