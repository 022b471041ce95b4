"""The `pipelined` schedule: TileLang's software pipeline over key and value tiles.

One block computes one tile of queries of one head. Copies of the tiles to
come overlap with the work on the present one, as many as the plan has stages.
With one stage TileLang prefetches a single buffer, which is FlashAttention-2's
schedule; on sm_80 … sm_89 it is also the way around a crash of TileLang 0.1.15
on deeper pipelines with a bound that is known at run time only.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from attnfuse.backends.tilelang.epilogue import Epilogue
from attnfuse.backends.tilelang.expressions import MINUS_INFINITY, Expressions
from attnfuse.backends.tilelang.header import (
    block_indices,
    key_head,
    write_header,
    write_signature,
)
from attnfuse.backends.tilelang.loads import Loads
from attnfuse.backends.tilelang.products import Products
from attnfuse.backends.tilelang.text import Text
from attnfuse.backends.tilelang.words import Words
from attnfuse.ir.axes import Size
from attnfuse.ir.build import TRUE
from attnfuse.plan.kernel import ENTROPY, QueryMajor


def emit(plan: QueryMajor, words: Words, heading: str) -> str:
    """The TileLang program that carries out ``plan``, as Python text."""
    text = Text()
    write_header(text, plan, heading)
    with write_signature(text, plan, words):
        _Body(plan, words, text).write()
    return str(text)


class _Body:
    """Writes what one block does."""

    def __init__(self, plan: QueryMajor, words: Words, text: Text) -> None:
        self.plan, self.words, self.text = plan, words, text
        self.rows, self.keys = plan.schedule.block_q, plan.schedule.block_k
        self.loads = Loads(plan, words, text)
        self.products = Products(words, text, plan.parameter(plan.value.parameter).dtype)
        self.moments = plan.reads(ENTROPY)
        self.epilogue = Epilogue(plan, words, text)
        self.features = words.features(plan.width(plan.value))
        self.score_tiles = ["score"] + [f"score_{place}" for place in range(1, len(plan.streams))]

    def write(self) -> None:
        """Write all of it."""
        self.text.line(f"q_first = block * {self.rows}")
        self.text.line(f"q_last = q_first + {self.rows - 1}")
        self._allocate()
        self.text.line()
        for query, _ in self.plan.streams:
            self.loads.copy(query, "h", "q_first", self.rows, ahead=False)
            self.loads.prologue(query, "q", "q_first", self.rows, ahead=False)
        self.text.line("T.fill(out_sum, 0)")
        if self.plan.normalised:
            self.text.line("T.fill(row_sum, 0)")
            self.text.line(f"T.fill(row_max, {MINUS_INFINITY})")
        if self.moments:
            self.text.line("T.fill(row_moment, 0)")
        self.text.line()
        with self._tiles():
            self.text.line(f"k_first = tile * {self.keys}")
            self._contract()
            self._score()
            if self.plan.normalised:
                self._softmax()
            self._accumulate()
        self.text.line()
        self.epilogue.write()

    def _allocate(self) -> None:
        plan, words = self.plan, self.words
        for query, key in plan.streams:
            self.loads.allocate(query, self.rows, ahead=False)
            self.loads.allocate(key, self.keys, ahead=True)
        self.loads.allocate(plan.value, self.keys, ahead=True)
        for name in self.score_tiles:
            self.text.line(f"{name} = {words.fragment((self.rows, self.keys))}")
        if words.on_gpu:
            self.text.line(f"weights = {self.products.left((self.rows, self.keys))}")
        self.text.line(f"out_sum = {words.fragment((self.rows, self.features))}")
        rows = ["row_max", "row_max_before", "row_sum", "tile_sum", "rescale"]
        rows += ["row_moment", "tile_moment"] if self.moments else []
        for name in rows if plan.normalised else ():
            self.text.line(f"{name} = {words.fragment((self.rows,))}")
        if self.moments:
            self.text.line(f"shifted = {words.fragment((self.rows, self.keys))}")
        self.epilogue.allocate()

    def _tiles(self) -> AbstractContextManager[None]:
        """The loop over the key tiles that this tile of queries can see."""
        indices = block_indices(self.plan) | {"q_first": "q_first", "q_last": "q_last"}
        at_tile = Expressions(self.plan, indices)
        first, end = at_tile.spell(self.plan.keys.first), at_tile.spell(self.plan.keys.end)
        self.text.comment(f"keys that this tile of queries can see: {self.plan.keys}")
        self.text.line(f"tile_first = T.floordiv({first}, {self.keys})")
        self.text.line(f"tile_end = T.max(tile_first, T.ceildiv({end}, {self.keys}))")
        if not self.words.on_gpu:
            return self.text.block("for tile in T.serial(tile_first, tile_end):")
        stages = self.plan.schedule.stages
        loop = f"T.Pipelined(tile_first, tile_end, num_stages={stages})"
        return self.text.block(f"for tile in {loop}:")

    def _contract(self) -> None:
        for (query, key), tile in zip(self.plan.streams, self.score_tiles, strict=True):
            self.loads.copy(
                key, key_head(self.plan, key.parameter), "k_first", self.keys, ahead=True
            )
            self.loads.prologue(key, "k", "k_first", self.keys, ahead=True)
            operands = self.loads.tile(query), self.loads.tile(key), tile
            sizes = self.rows, self.keys, self.words.features(self.plan.width(query))
            self.text.line(f"T.clear({tile})")
            self.products.write(*operands, sizes, transposed=True)

    def _score(self) -> None:
        """The score expression and the mask, which also hides keys beyond the end.

        What is hidden has score −∞, or weight 0 where weights aren't a softmax.
        """
        indices = block_indices(self.plan) | {"q": "q_first + i", "k": "k_first + j"}
        products = [f"{tile}[i, j]" for tile in self.score_tiles]
        slots = products if self.words.on_gpu else [f"product_{n}" for n in range(len(products))]
        at_score = Expressions(self.plan, indices, slots)
        visible = f"k_first + j < {self._kv_len()}"
        hidden = MINUS_INFINITY if self.plan.normalised else "T.float32(0.0)"
        if self.plan.normalised and self.plan.visible is not TRUE:
            visible = f"T.And({visible}, {at_score.spell(self.plan.visible)})"
        self.text.comment(f"score = {self.plan.score}, where {self.plan.visible}")
        with self.text.block(f"for i, j in {self.words.each(self.rows, self.keys)}:"):
            if not self.words.on_gpu:  # gcc vectorises no load that a condition guards
                for slot, product in zip(slots, products, strict=True):
                    self.text.line(f"{slot} = {product}")
            score = at_score.spell(self.plan.score)
            self.text.line(f"score[i, j] = T.if_then_else({visible}, {score}, {hidden})")

    def _softmax(self) -> None:
        """Online softmax; a row that has seen nothing yet keeps −∞, and −∞ − −∞ is no number."""
        line, rows = self.text.line, self.words.each(self.rows)
        line("T.copy(row_max, row_max_before)")
        line("T.reduce_max(score, row_max, dim=1, clear=False)")
        with self.text.block(f"for i in {rows}:"):
            line(
                f"rescale[i] = T.if_then_else(row_max[i] == {MINUS_INFINITY}, T.float32(1.0), "
                "T.exp2((row_max_before[i] - row_max[i]) * LOG2E))"
            )
        if self.moments:
            self._shift()
        with self.text.block(f"for i, j in {self.words.each(self.rows, self.keys)}:"):
            line(
                f"score[i, j] = T.if_then_else(row_max[i] == {MINUS_INFINITY}, T.float32(0.0), "
                "T.exp2((score[i, j] - row_max[i]) * LOG2E))"
            )
        if self.moments:
            self._moments()
        line("T.reduce_sum(score, tile_sum, dim=1)")
        with self.text.block(f"for i in {rows}:"):
            line("row_sum[i] = row_sum[i] * rescale[i] + tile_sum[i]")

    def _shift(self) -> None:
        """Keep x = score − maximum for the entropy, ln Σeˣ − Σx·eˣ / Σeˣ; 0 where eˣ is 0."""
        with self.text.block(f"for i, j in {self.words.each(self.rows, self.keys)}:"):
            self.text.line(
                f"shifted[i, j] = T.if_then_else(score[i, j] == {MINUS_INFINITY}, "
                "T.float32(0.0), score[i, j] - row_max[i])"
            )

    def _moments(self) -> None:
        """Σ x·eˣ of this tile, and of those before: there x has become less, as the maximum grew.

        A row that had seen nothing had the maximum −∞, and −∞·0 is no number.
        """
        with self.text.block(f"for i, j in {self.words.each(self.rows, self.keys)}:"):
            self.text.line("shifted[i, j] = shifted[i, j] * score[i, j]")
        self.text.line("T.reduce_sum(shifted, tile_moment, dim=1)")
        with self.text.block(f"for i in {self.words.each(self.rows)}:"):
            grown = "(row_max_before[i] - row_max[i]) * row_sum[i]"
            before = f"rescale[i] * (row_moment[i] + {grown})"
            self.text.line(
                f"row_moment[i] = tile_moment[i] + T.if_then_else(row_max_before[i] == "
                f"{MINUS_INFINITY}, T.float32(0.0), {before})"
            )

    def _accumulate(self) -> None:
        value = self.plan.value
        if self.plan.normalised:
            with self.text.block(f"for i, j in {self.words.each(self.rows, self.features)}:"):
                self.text.line("out_sum[i, j] = out_sum[i, j] * rescale[i]")
        self.loads.copy(
            value, key_head(self.plan, value.parameter), "k_first", self.keys, ahead=True
        )
        self.loads.prologue(value, "k", "k_first", self.keys, ahead=True)
        if self.words.on_gpu:
            self.text.line("T.copy(score, weights)")
        weights = "weights" if self.words.on_gpu else "score"
        operands = weights, self.loads.tile(value), "out_sum"
        sizes = self.rows, self.features, self.keys
        self.products.write(*operands, sizes)

    def _kv_len(self) -> Size:
        key = self.plan.parameter(self.plan.streams[0][1].parameter)
        return key.sizes[-2]
