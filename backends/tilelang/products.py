"""Emits products of tiles: shared by all schedules.

On GPUs the matrix units multiply 16-bit tiles. They would round float32 to
TF32, so float32 is multiplied by ordinary fused multiply-adds, as torch does
unless it is told otherwise. On the C target T.gemm becomes three loops, which
compilers make slow code of; so there a product is a function of `cpu_math.h`.
"""

from __future__ import annotations

from attnfuse.backends.tilelang.text import Text
from attnfuse.backends.tilelang.words import Shape, Words
from attnfuse.ir.axes import DType

_STEPS = 4
"""Depths are multiples of 16 on GPUs, keys in a tile and padded features alike."""


class Products:
    """Writes ``total += left · right``, or ``left · rightᵀ``.

    Args:
        words: the words of the target.
        text: where to write.
        dtype: the element type of what is multiplied.
    """

    def __init__(self, words: Words, text: Text, dtype: DType) -> None:
        self._words, self._text, self._dtype = words, text, dtype
        self._by_matrix_unit = words.on_gpu and dtype is not DType.float32

    def left(self, shape: Shape) -> str:
        """The allocation of a left side that is computed, where its product reads it."""
        place = self._words.fragment if self._by_matrix_unit else self._words.shared
        return place(shape, self._dtype)

    def write(
        self, left: str, right: str, total: str, sizes: Shape, *, transposed: bool = False
    ) -> None:
        """Write the product; ``sizes`` are rows, columns and depth."""
        if not self._words.on_gpu:
            function = "attnfuse_product" + ("_transposed" if transposed else "")
            numbers = ", ".join(map(str, sizes))
            operands = f"{left}, {right}, {total}, {numbers}"
            self._text.line(f'T.call_extern("int32", "{function}", {operands})')
        elif self._by_matrix_unit:
            how = "transpose_B=True, " if transposed else ""
            self._text.line(
                f"T.gemm({left}, {right}, {total}, {how}policy=T.GemmWarpPolicy.FullRow)"
            )
        else:
            self._by_rows(left, right, total, sizes, "j, d" if transposed else "d, j")

    def _by_rows(self, left: str, right: str, total: str, sizes: Shape, place: str) -> None:
        """A thread owns a row of the total; four steps of the sum share one wide load."""
        rows, columns, depth = sizes
        line, block = self._text.line, self._text.block
        steps, places = f"T.serial({depth // _STEPS})", self._words.each(rows, columns)
        unrolled = f"T.unroll({_STEPS})"
        with (
            block(f"for step in {steps}:"),
            block(f"for i, j in {places}:"),
            block(f"for part in {unrolled}:"),
        ):
            line(f"d = step * {_STEPS} + part")
            line(f"{total}[i, j] += {left}[i, d] * {right}[{place}]")
