"""Philox4x32-10 (Salmon et al., 2011): random numbers that are a function of key and counter.

Written in torch's int64 arithmetic, so that every device and process makes
the same numbers. The values of a word are 0 … 2³² − 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ROUNDS = 10
WORDS = 4
"""Words of a counter, and of what is made of it."""

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def philox(counter: Sequence[Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four random words.

    Args:
        counter: four words, int64 tensors that broadcast.
        key: two words.
    """
    a, b, c, d = counter
    first, second = key
    for _ in range(ROUNDS):
        high_a, low_a = _product(a, _MULTIPLIERS[0])
        high_c, low_c = _product(c, _MULTIPLIERS[1])
        a, b, c, d = high_c ^ b ^ first, low_c, high_a ^ d ^ second, low_a
        first, second = (first + _WEYL[0]) & _MASK, (second + _WEYL[1]) & _MASK
    return a, b, c, d


def words_of(number: Tensor) -> tuple[Tensor, Tensor]:
    """The low and the high word of an integer."""
    number = number.long()
    return number & _MASK, (number >> 32) & _MASK


def uniform(word: Tensor) -> Tensor:
    """A number in [0, 1) of the first 24 bits of a word, which is exact in float32."""
    return (word >> 8).double() * 2.0**-24


def _product(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The high and the low word of a product, by halves of a word: 64 bits have no room for it."""
    low, high = (word & 0xFFFF) * factor, (word >> 16) * factor
    high_word = (high + (low >> 16)) >> 16
    return high_word, (((high & 0xFFFF) << 16) + low) & _MASK
