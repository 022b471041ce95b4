"""Emits what is done to a tile that all threads see: norms and rotations.

Prologues do it to queries, keys and values while they are loaded, epilogues
to outputs before they are written.
"""

from __future__ import annotations

from collections.abc import Sequence

from attnfuse.backends.tilelang.expressions import Expressions, spell_number
from attnfuse.backends.tilelang.names import identifier
from attnfuse.backends.tilelang.text import Text
from attnfuse.backends.tilelang.words import Words
from attnfuse.ir import build as ir
from attnfuse.ir.axes import DType
from attnfuse.ir.term import Term

_LANES = 8
"""Partial sums of a row of squares; a few threads add them without a barrier."""


class Steps:
    """Writes steps, `normalise` and `rotate` terms. Features of a tile beyond the size are 0.

    Args:
        words: the words of the target.
        text: where to write.
    """

    def __init__(self, words: Words, text: Text) -> None:
        self._words, self._text = words, text

    def allocate(self, steps: Sequence[Term], tile: str, rows: int) -> None:
        """Write the allocation of what steps need besides their tile."""
        if any(step.op.name == "normalise" for step in steps):
            self._text.line(f"{tile}_squares = {self._words.fragment((rows, _LANES))}")
            self._text.line(f"{tile}_sums = {self._words.fragment((rows,))}")
            self._text.line(f"{tile}_divisor = {self._words.shared((rows,), DType.float32)}")

    def write(
        self, step: Term, source: str, tile: str, expressions: Expressions, rows: int
    ) -> None:
        """Write one step from the tile ``source`` to ``tile``, which may be the same.

        Args:
            step: the step.
            source: where its operand is.
            tile: where its value goes.
            expressions: spells terms at row i and feature j.
            rows: the rows of the tile.
        """
        self._text.comment(f"{tile} = {_described(step, source)}")
        write = self._rotate if step.op.name == "rotate" else self._normalise
        write(step, source, tile, expressions, rows)

    def _normalise(
        self, step: Term, source: str, tile: str, expressions: Expressions, rows: int
    ) -> None:
        words, text, size = self._words, self._text, size_of(step)
        features, dtype = words.features(size), words.tile(step.type.dtype)
        text.line(f"T.clear({tile}_squares)")
        with (
            text.block(f"for part in T.serial({-(-features // _LANES)}):"),
            text.block(f"for i, j in {words.each(rows, _LANES)}:"),
        ):
            text.line(f"feature = part * {_LANES} + j")
            one = f'T.cast({source}[i, feature], "float32")'
            inside = f"T.if_then_else(feature < {features}, {one}, 0.0)"
            text.line(f"one = {inside if features % _LANES else one}")
            text.line(f"{tile}_squares[i, j] += one * one")
        text.line(f"T.reduce_sum({tile}_squares, {tile}_sums, dim=1)")
        eps = spell_number(step["eps"])
        with text.block(f"for i in {words.each(rows)}:"):
            total = f"{tile}_sums[i]"
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
        half = size_of(cos)
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
        rest = self._words.features(size_of(step)) - 2 * half
        if rest and source != tile:
            with self._text.block(f"for i, j in {self._words.each(rows, rest)}:"):
                self._text.line(f"{tile}[i, j + {2 * half}] = {source}[i, j + {2 * half}]")


def size_of(term: Term) -> int:
    """The size of a term's last axis, which is static."""
    size = term.type.axes[-1].size
    assert isinstance(size, int)
    return size


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
