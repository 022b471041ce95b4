"""Guards: the sizes for which a choice of plans was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attnfuse.ir.axes import Symbol


@dataclass(frozen=True)
class Guard:
    """A condition over the sizes of a call: that one of them is at most some number.

    Attributes:
        symbol: the size.
        most: the largest number for which the condition holds.
    """

    symbol: Symbol
    most: int

    def holds(self, sizes: Mapping[Symbol, int]) -> bool:
        """Whether the sizes of a call fulfil it."""
        return sizes[self.symbol] <= self.most

    def __str__(self) -> str:
        return f"{self.symbol} ≤ {self.most}"
