"""Emits what follows the loop over keys: sums become outputs and are written.

Outputs are expressions of a few buffers, one for each slot: the attention,
the statistics of its rows, and a tile for each step that is not elementwise.
"""

from __future__ import annotations

from attnfuse.backends.tilelang.expressions import MINUS_INFINITY, Expressions
from attnfuse.backends.tilelang.header import batch_labels, block_indices
from attnfuse.backends.tilelang.names import identifier
from attnfuse.backends.tilelang.steps import Steps, size_of
from attnfuse.backends.tilelang.text import Text
from attnfuse.backends.tilelang.words import Words
from attnfuse.ir.axes import DType
from attnfuse.ir.term import Term
from attnfuse.plan.kernel import ENTROPY, LSE, QueryMajor, Result, named

_ROWS = ("row_lse", "row_max", "row_entropy")
"""The buffers of the statistics, in the order of their slots."""


class Epilogue:
    """Writes the epilogue of one plan.

    Args:
        plan: the plan.
        words: the words of the target.
        text: where to write.
    """

    def __init__(self, plan: QueryMajor, words: Words, text: Text) -> None:
        self.plan, self.words, self.text = plan, words, text
        self.rows, self.steps = plan.schedule.block_q, Steps(words, text)
        self.features = words.features(plan.width(plan.value))
        tiles = (f"step{n}_tile" for n in range(len(plan.steps)))
        self.buffers = ("out_sum", *_ROWS, *tiles)
        indices = block_indices(plan) | {"q": "q_first + i", "e": "j"}
        self.expressions = Expressions(plan, indices, self._slots())

    def allocate(self) -> None:
        """Write the allocation of its buffers."""
        for slot in filter(self.plan.reads, (LSE, ENTROPY)):
            self.text.line(f"{self.buffers[slot]} = {self.words.fragment((self.rows,))}")
        for step, tile in self._tiles():
            shape = (self.rows, self.words.features(size_of(step)))
            self.text.line(f"{tile} = {self.words.shared(shape, step.type.dtype)}")
            self.steps.allocate((step,), tile, self.rows)
        for result in self.plan.results:
            if not _as_it_is(result) and not self._in_place(result):
                self.text.line(f"{self._tile(result)} = {self.words.fragment(self._shape(result))}")

    def write(self) -> None:
        """Write all of it."""
        if self.plan.normalised:
            self._normalise()
        if self.plan.reads(LSE):
            self._row("row_lse", "row_max[i] + T.log(row_sum[i])", MINUS_INFINITY)
        if self.plan.reads(ENTROPY):
            entropy = "T.log(row_sum[i]) - row_moment[i] / row_sum[i]"
            self._row("row_entropy", entropy, "T.float32(0.0)")
        for step, tile in self._tiles():
            self._step(step, tile)
        for result in sorted(self.plan.results, key=self._in_place):
            self._result(result)

    def _slots(self) -> list[str]:
        """The text of each slot at row i and feature j, as float32."""
        texts = ["out_sum[i, j]", *(f"{row}[i]" for row in _ROWS)]
        for step, tile in self._tiles():
            wide = self.words.tile(step.type.dtype) is DType.float32
            texts.append(f"{tile}[i, j]" if wide else f'T.cast({tile}[i, j], "float32")')
        return texts

    def _tiles(self) -> list[tuple[Term, str]]:
        """Each step and its tile."""
        return [(step, f"step{n}_tile") for n, step in enumerate(self.plan.steps)]

    def _normalise(self) -> None:
        """Divide by the row sums; 0 in rows that have seen nothing."""
        with self.text.block(f"for i, j in {self.words.each(self.rows, self.features)}:"):
            self.text.line(
                "out_sum[i, j] = T.if_then_else(row_sum[i] > 0, "
                "out_sum[i, j] / row_sum[i], T.float32(0.0))"
            )

    def _row(self, name: str, value: str, otherwise: str) -> None:
        """Compute a statistic, another value for rows that have seen nothing."""
        with self.text.block(f"for i in {self.words.each(self.rows)}:"):
            chosen = f"T.if_then_else(row_sum[i] > 0, {value}, {otherwise})"
            self.text.line(f"{name}[i] = {chosen}")

    def _step(self, step: Term, tile: str) -> None:
        """Put a step's operand into its tile, 0 in padding, and do the step there."""
        size, dtype = size_of(step), self.words.tile(step.type.dtype)
        features = self.words.features(size)
        self.text.comment(f"what {tile.removesuffix('_tile')} works on: {named(step.operands[0])}")
        with self.text.block(f"for i, j in {self.words.each(self.rows, features)}:"):
            value = self.expressions.spell(step.operands[0])
            inside = f"T.if_then_else(j < {size}, {value}, T.float32(0.0))"
            value = value if size == features else inside
            self.text.line(f'{tile}[i, j] = T.cast({value}, "{dtype}")')
        self.steps.write(step, tile, tile, self.expressions, self.rows)

    def _result(self, result: Result) -> None:
        """Compute one result from its expression and write it to memory.

        TileLang leaves out what lies outside of the tensor, as it does for T.copy. That takes it
        a second longer on GPUs, and is one loop with a condition at each element on the CPU.
        """
        if not _as_it_is(result):
            self._compute(result)
        places = _places(result)
        memory = ", ".join((*batch_labels(self.plan), "h", f"q_first + {places}"))
        with self.text.block(f"for {places} in {self.words.each(*self._shape(result))}:"):
            stored = f"{identifier(result.name)}[{memory}]"
            self.text.line(f"{stored} = {self._tile(result)}[{places}]")

    def _compute(self, result: Result) -> None:
        places = _places(result)
        self.text.comment(str(result))
        with self.text.block(f"for {places} in {self.words.each(*self._shape(result))}:"):
            value = self.expressions.spell(result.expression)
            self.text.line(f"{self._tile(result)}[{places}] = {value}")

    def _shape(self, result: Result) -> tuple[int, ...]:
        """The shape of a tile of a result."""
        width = result.sizes[-1]
        if not result.has_features:
            return (self.rows,)
        assert isinstance(width, int)
        return (self.rows, self.words.features(width))

    def _in_place(self, result: Result) -> bool:
        """Whether a result overwrites the sum: the last one of its shape does, after all else."""
        shape = (self.rows, self.features)
        alike = [each for each in self.plan.results if self._shape(each) == shape]
        return result in alike[-1:] and not _as_it_is(result)

    def _tile(self, result: Result) -> str:
        """The buffer that holds a result."""
        if _as_it_is(result):
            return self.buffers[_core(result).integer("position")]
        return "out_sum" if self._in_place(result) else f"{result.name}_tile"


def _places(result: Result) -> str:
    """The indices of a result's tile."""
    return "i, j" if result.has_features else "i"


def _core(result: Result) -> Term:
    """A result's expression without the cast to its element type."""
    term = result.expression
    return term.operands[0] if term.op.name == "cast" else term


def _as_it_is(result: Result) -> bool:
    """Whether a result is one of the buffers itself, but for its element type."""
    return _core(result).op.name == "slot"
