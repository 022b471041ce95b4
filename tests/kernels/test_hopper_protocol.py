"""The barriers of the `hopper` schedule, on the CPU: its programs run with nothing but barriers."""

# What a trace holds has no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from barriers import Stuck, Trace, run

import attnfuse as af
from attnfuse.backends.tilelang.source import emit
from attnfuse.devices import find_device
from attnfuse.plan import QueryMajor

ROWS = 128


@af.variant
def attended(
    q: af.Query, k: af.Key, v: af.Value, cos: af.Captured, sin: af.Captured, mode: str
) -> tuple[af.Traced, af.Traced]:
    """Full, causal or windowed attention, with queries rotated in the kernel."""
    s = af.scores(af.rope(q, cos, sin), k)
    if mode == "causal":
        s = af.mask(s, af.causal())
    elif mode == "window":
        s = af.mask(s, af.window(before=150, after=0))
    return af.attend(af.softmax(s), v), af.lse(s)


@cache
def program(mode: str, stages: int, blocks: int) -> tuple[str, QueryMajor]:
    """The text, and its plan, for 2 query heads and 1 key head."""
    shapes = [(1, heads, ROWS, 64) for heads in (2, 1, 1)]
    qkv = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes]
    tables = [torch.empty(ROWS, 32, device="meta") for _ in range(2)]
    with af.use(schedules="hopper,pipelined"):
        launch = attended.compile(*qkv, *tables, mode, device="h200").launches[-1]
    plan = launch.plan
    assert isinstance(plan, QueryMajor) and plan.schedule.name == "hopper"
    plan = replace(plan, schedule=replace(plan.schedule, stages=stages, blocks=blocks))
    return emit(plan, find_device("h200"), "").text, plan


def visits(mode: str, q_first: int, q_len: int, kv_len: int, keys: int) -> list[int]:
    """The first keys of the tiles that a tile of queries has to see, the last one first."""
    first = max(q_first + kv_len - q_len - 150, 0) if mode == "window" else 0
    end = kv_len if mode == "full" else min(q_first + ROWS + kv_len - q_len, kv_len)
    start, stop = first // keys, -(-end // keys)
    return [tile * keys for tile in reversed(range(start, max(start, stop)))]


def traced(mode: str, stages: int, blocks: int, q_len: int, kv_len: int) -> Trace:
    """What a call of these sizes and two batch entries does."""
    text, plan = program(mode, stages, blocks)
    works = -(-q_len // ROWS) * 2 * 2
    sizes = {"q_len": q_len, "kv_len": kv_len, "batch": 2, "cos_dim0": 1, "sin_dim0": 1}
    groups = plan.schedule.threads // 128
    return run(text, "attended", groups, min(works, blocks), sizes)


@pytest.mark.parametrize("mode", ["full", "causal", "window"])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_every_tile_is_taken_once_and_no_buffer_by_two(mode: str, stages: int) -> None:
    """From no tile of keys to five; blocks with one tile of queries, and with several."""
    _, plan = program(mode, stages, 3)
    keys = plan.schedule.block_k
    for q_len, kv_len in ((300, 5 * keys - 3), (129, 0), (1, 1), (400, 200), (128, 2 * keys)):
        done = traced(mode, stages, 3, q_len, kv_len)
        places = {place[1:] for place in done.written}
        wanted = [
            (b, h, q_first) for b in range(2) for h in range(2) for q_first in range(0, q_len, ROWS)
        ]
        assert len(done.written) == len(wanted)
        assert {(b, h, q_first) for b, h, q_first, _ in places} == set(wanted)
        for (_, group), products in done.products.items():
            if group:
                check_order(products, mode, (q_len, kv_len, keys))
        first = [products for (_, group), products in done.products.items() if group == 1]
        scores = [what for products in first for kind, what in products if kind == "scores"]
        total = sum(4 * len(visits(mode, q, q_len, kv_len, keys)) for q in range(0, q_len, ROWS))
        assert len(scores) == len(set(scores)) == total


def check_order(products: list[tuple[str, object]], mode: str, sizes: tuple[int, int, int]) -> None:
    """Values of a tile come after its scores, from the same head, and none is left out."""
    q_len, kv_len, keys = sizes
    taken: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    waiting: list[tuple[int, ...]] = []
    for kind, what in products:
        if kind == "scores":
            assert isinstance(what, tuple)
            (_, b, h, q_first, _), (_, *key) = what
            assert key[:2] == [b, h // 2]
            taken.setdefault((b, h, q_first), []).append(tuple(key))
            waiting.append(tuple(key))
        else:
            assert isinstance(what, tuple)
            assert what[1:] == waiting.pop(0)
            assert len(waiting) <= 1
    assert not waiting
    for (_, _, q_first), tiles in taken.items():
        assert [tile[2] for tile in tiles] == visits(mode, q_first, q_len, kv_len, keys)


DEFECTS = {
    "the producer doesn't wait for empty keys": (
        "T.barrier_wait(k_empty[room], 1 - phase)",
        "pass",
    ),
    "the producer doesn't wait for empty values": (
        "T.barrier_wait(v_empty[room], 1 - phase)",
        "pass",
    ),
    "consumers don't wait for keys": (
        "T.barrier_wait(k_full[next_room], (loaded + step + 1) // 2 % 2)",
        "pass",
    ),
    "keys are given back too early": ("T.wait_wgmma(1)", "pass"),
    "values are never given back": ("T.barrier_arrive(v_empty[room])", "pass"),
    "queries are never given back": ("T.barrier_arrive(q_empty)", "pass"),
    "wrong parity of the queries": ("(turn + 1) % 2", "turn % 2"),
    "buffers are not counted over tiles": ("loaded = loaded + tile_end - tile_first", "pass"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_what_would_hang_or_race_is_found(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation itself: each barrier is needed."""
    monkeypatch.setattr("barriers.PATIENCE", 0.5)
    text, plan = program("causal", 2, 3)
    old, new = DEFECTS[defect]
    assert old in text
    broken = text.replace(old, new)
    sizes = {"q_len": 700, "kv_len": 700, "batch": 2, "cos_dim0": 1, "sin_dim0": 1}
    with pytest.raises((AssertionError, Stuck)):
        run(broken, "attended", plan.schedule.threads // 128, 3, sizes)
