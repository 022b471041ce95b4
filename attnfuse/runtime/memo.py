"""Memory that doesn't grow without end."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Memo(dict[Key, Value]):
    """A dictionary that forgets its oldest entry for each one above its limit.

    Args:
        limit: how many entries it may have.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        if len(self) > self.limit:
            with suppress(RuntimeError):  # another thread has just put something in: it forgets
                self.pop(next(iter(self)), None)
