"""The names of a program's variables."""

from __future__ import annotations

import re

_WORDS = (
    "T LOG2E batch q_len kv_len h entry own_entry head block own_block first_block blocks "
    "first_head heads first_entry entries q_first q_last k_first tile tile_first tile_end i j "
    "one other cosine sine score weights out_sum row_max row_max_before row_sum row_lse tile_sum "
    "rescale row_moment row_entropy shifted tile_moment b"
)
_OWN = frozenset(_WORDS.split())
_DERIVED = re.compile(
    r"(b\d+|(score|product)_\d+|batch\d+|\w+_(tile|raw|squares|divisor)|\w+_stride_\w+|\w+_dim\d+)"
)


def identifier(name: str) -> str:
    """The variable of a parameter: its own name, unless programs use that for something else."""
    return f"{name}_" if name in _OWN or _DERIVED.fullmatch(name) else name
