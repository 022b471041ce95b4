"""Emits the loading of tiles and their prologues: shared by all schedules."""

from __future__ import annotations

from attnfuse.backends.tilelang.expressions import Expressions
from attnfuse.backends.tilelang.header import batch_labels, block_indices
from attnfuse.backends.tilelang.names import identifier
from attnfuse.backends.tilelang.steps import Steps
from attnfuse.backends.tilelang.text import Text
from attnfuse.backends.tilelang.words import Words
from attnfuse.plan.kernel import Load, Plan


class Loads:
    """Writes loads of one plan's tiles.

    Args:
        plan: the plan.
        words: the words of the target.
        text: where to write.
    """

    def __init__(self, plan: Plan, words: Words, text: Text) -> None:
        self._plan, self._words, self._text = plan, words, text
        self._steps = Steps(words, text)

    def tile(self, load: Load) -> str:
        """The name of the tile that the matrix unit reads."""
        return f"{load.parameter}_tile"

    def arriving(self, load: Load, *, ahead: bool) -> str:
        """The name of the tile that memory is copied into.

        Keys are copied ahead by a software pipeline, which owns that tile; so
        a prologue writes to another one.
        """
        return f"{load.parameter}_raw" if ahead and load.steps else self.tile(load)

    def allocate(self, load: Load, rows: int, *, ahead: bool) -> None:
        """Write the allocation of a load's tiles."""
        dtype = self._plan.parameter(load.parameter).dtype
        shape = (rows, self._words.features(self._plan.width(load)))
        for name in dict.fromkeys((self.arriving(load, ahead=ahead), self.tile(load))):
            self._text.line(f"{name} = {self._words.shared(shape, dtype)}")
        self._steps.allocate(load.steps, self.tile(load), rows)

    def copy(self, load: Load, head: str, first: str, rows: int, *, ahead: bool) -> None:
        """Write the copy of ``rows`` rows from memory; rows and features beyond the end are 0.

        The C target makes one loop with a bound at each element of T.copy,
        which compilers don't vectorise; with a loop for each row they do.
        """
        features = self._words.features(self._plan.width(load))
        batch, name = ", ".join(batch_labels(self._plan)), identifier(load.parameter)
        tile = self.arriving(load, ahead=ahead)
        if self._words.on_gpu:
            place = f"{batch}, {head}, {first}:{first} + {rows}, 0:{features}"
            self._text.line(f"T.copy({name}[{place}], {tile})")
            return
        with self._text.block(f"for i, j in {self._words.each(rows, features)}:"):
            self._text.line(f"{tile}[i, j] = {name}[{batch}, {head}, {first} + i, j]")

    def prologue(self, load: Load, index: str, first: str, rows: int, *, ahead: bool) -> None:
        """Write the steps of a load's prologue, on rows that start at position ``first``."""
        source, tile = self.arriving(load, ahead=ahead), self.tile(load)
        indices = block_indices(self._plan) | {index: f"{first} + i"}
        indices |= {"d": "j", "e": "j"}
        expressions = Expressions(self._plan, indices)
        for step in load.steps:
            self._steps.write(step, source, tile, expressions, rows)
            source = tile
