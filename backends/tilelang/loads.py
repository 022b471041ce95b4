"""Emits the loading of tiles and their prologues: shared by all schedules."""

from __future__ import annotations

from attnfuse.backends.tilelang.expressions import Expressions
from attnfuse.backends.tilelang.header import batch_labels, block_indices
from attnfuse.backends.tilelang.names import identifier
from attnfuse.backends.tilelang.text import Text
from attnfuse.backends.tilelang.words import Words
from attnfuse.ir import build as ir
from attnfuse.ir.term import Term
from attnfuse.plan.kernel import Load, QueryMajor


class Loads:
    """Writes loads of one plan's tiles.

    Args:
        plan: the plan.
        words: the words of the target.
        text: where to write.
    """

    def __init__(self, plan: QueryMajor, words: Words, text: Text) -> None:
        self._plan, self._words, self._text = plan, words, text

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

    def copy(self, load: Load, head: str, first: str, rows: int, *, ahead: bool) -> None:
        """Write the copy of ``rows`` rows from memory; rows and features beyond the end are 0."""
        features = self._words.features(self._plan.width(load))
        batch = ", ".join(batch_labels(self._plan))
        place = f"{batch}, {head}, {first}:{first} + {rows}, 0:{features}"
        source = f"{identifier(load.parameter)}[{place}]"
        self._text.line(f"T.copy({source}, {self.arriving(load, ahead=ahead)})")

    def prologue(self, load: Load, index: str, first: str, rows: int, *, ahead: bool) -> None:
        """Write the steps of a load's prologue, on rows that start at position ``first``."""
        source, tile = self.arriving(load, ahead=ahead), self.tile(load)
        for step in load.steps:
            self._text.comment(f"{tile} = {step.op.name} {source}, {step['pairing']} pairs")
            self._rotate(step, source, tile, f"{first} + i", index, rows)
            source = tile

    def _rotate(
        self, step: Term, source: str, tile: str, position: str, index: str, rows: int
    ) -> None:
        cos, sin, positions = step.operands[1:]
        half, size = cos.type.axes[1].size, step.type.axes[-1].size
        assert isinstance(half, int) and isinstance(size, int)
        expressions = Expressions(self._plan, block_indices(self._plan) | {index: position})
        row = expressions.nearest(ir.unpack(positions), cos.type.axes[0].size)
        first, second = _pair(step.text("pairing"), half)
        dtype = self._words.tile(step.type.dtype)
        with self._text.block(f"for i, j in {self._words.each(rows, half)}:"):
            for name, text in (
                ("one", f"{source}[i, {first}]"),
                ("other", f"{source}[i, {second}]"),
                ("cosine", f"{identifier(cos.text('name'))}[{row}, j]"),
                ("sine", f"{identifier(sin.text('name'))}[{row}, j]"),
            ):
                self._text.line(f'{name} = T.cast({text}, "float32")')
            turned = ("one * cosine - other * sine", "other * cosine + one * sine")
            for place, value in zip((first, second), turned, strict=True):
                self._text.line(f'{tile}[i, {place}] = T.cast({value}, "{dtype}")')
        rest = self._words.features(size) - 2 * half
        if rest and source != tile:
            with self._text.block(f"for i, j in {self._words.each(rows, rest)}:"):
                self._text.line(f"{tile}[i, j + {2 * half}] = {source}[i, j + {2 * half}]")


def _pair(pairing: str, half: int) -> tuple[str, str]:
    """The features of pair j."""
    return ("j", f"j + {half}") if pairing == "half" else ("2 * j", "2 * j + 1")
