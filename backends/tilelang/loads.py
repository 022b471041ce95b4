"""Emits the loading of tiles and their prologues: shared by all schedules."""

from __future__ import annotations

from attnfuse.backends.tilelang.expressions import Expressions, spell_number
from attnfuse.backends.tilelang.header import batch_labels, block_indices
from attnfuse.backends.tilelang.names import identifier
from attnfuse.backends.tilelang.text import Text
from attnfuse.backends.tilelang.words import Words
from attnfuse.ir import build as ir
from attnfuse.ir.term import Term
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
        if any(step.op.name == "normalise" for step in load.steps):
            squares = (rows, self._words.reduced(self._plan.width(load)))
            self._text.line(f"{self.tile(load)}_squares = {self._words.fragment(squares)}")
            self._text.line(f"{self.tile(load)}_divisor = {self._words.fragment((rows,))}")

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
            self._text.comment(f"{tile} = {_described(step, source)}")
            write = self._rotate if step.op.name == "rotate" else self._normalise
            write(step, source, tile, expressions, rows)
            source = tile

    def _normalise(
        self, step: Term, source: str, tile: str, expressions: Expressions, rows: int
    ) -> None:
        words, text = self._words, self._text
        size = step.type.axes[-1].size
        assert isinstance(size, int)
        features, dtype = words.features(size), words.tile(step.type.dtype)
        with text.block(f"for i, j in {words.each(rows, words.reduced(size))}:"):
            place = "j" if words.reduced(size) == features else f"T.min(j, {features - 1})"
            text.line(f'one = T.cast({source}[i, {place}], "float32")')
            square = "one * one" if place == "j" else f"T.if_then_else(j < {size}, one * one, 0.0)"
            text.line(f"{tile}_squares[i, j] = {square}")
        text.line(f"T.reduce_sum({tile}_squares, {tile}_divisor, dim=1)")
        eps = spell_number(step["eps"])
        with text.block(f"for i in {words.each(rows)}:"):
            total = f"{tile}_divisor[i]"
            root = f"T.sqrt({total} / {size} + {eps})"
            root = root if step["kind"] == "rms" else f"T.max(T.sqrt({total}), {eps})"
            text.line(f"{tile}_divisor[i] = {root}")
        weight = expressions.spell(step.operands[1])
        with text.block(f"for i, j in {words.each(rows, features)}:"):
            value = f'T.cast({source}[i, j], "float32") / {tile}_divisor[i]'
            value = value if weight == "T.float32(1.0)" else f"{value} * {weight}"
            text.line(f'{tile}[i, j] = T.cast({value}, "{dtype}")')

    def _rotate(
        self, step: Term, source: str, tile: str, expressions: Expressions, rows: int
    ) -> None:
        cos, sin, positions = step.operands[1:]
        half, size = cos.type.axes[1].size, step.type.axes[-1].size
        assert isinstance(half, int) and isinstance(size, int)
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
            for place, value in zip((first, second), _turned(step), strict=True):
                self._text.line(f'{tile}[i, {place}] = T.cast({value}, "{dtype}")')
        rest = self._words.features(size) - 2 * half
        if rest and source != tile:
            with self._text.block(f"for i, j in {self._words.each(rows, rest)}:"):
                self._text.line(f"{tile}[i, j + {2 * half}] = {source}[i, j + {2 * half}]")


def _described(step: Term, source: str) -> str:
    """What a step does, in words; a flag is named where it is set."""
    names = zip(step.op.attributes, step.attributes, strict=True)
    words = [name if value is True else str(value) for name, value in names if value is not False]
    return ", ".join((f"{step.op.name} {source}", *words))


def _turned(step: Term) -> tuple[str, str]:
    """The two features of a pair, turned."""
    if step["inverse"]:
        return "one * cosine + other * sine", "other * cosine - one * sine"
    return "one * cosine - other * sine", "other * cosine + one * sine"


def _pair(pairing: str, half: int) -> tuple[str, str]:
    """The features of pair j."""
    return ("j", f"j + {half}") if pairing == "half" else ("2 * j", "2 * j + 1")
