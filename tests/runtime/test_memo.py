"""Memory with a limit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from attnfuse.runtime.memo import Memo


def test_the_oldest_entry_is_forgotten() -> None:
    memo: Memo[int, str] = Memo(2)
    for number in (1, 2, 1, 3):
        memo[number] = str(number)
    assert dict(memo) == {2: "2", 3: "3"}


def test_threads_may_fill_it_at_once() -> None:
    memo: Memo[tuple[int, int], int] = Memo(8)

    def fill(thread: int) -> None:
        for number in range(20_000):
            memo[thread, number] = number

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fill, range(4)))
    assert 0 < len(memo) <= 8 + 4
