"""The `hopper` schedule: copies, products and softmax side by side, by groups of warps.

A block has a producer, a warp group that starts copies by TMA, and consumers,
warp groups that multiply 64 queries each. Q·Kᵀ of the next tile runs on the
matrix unit while this tile's scores become weights; so does weights·V of the
tile before. Barriers say which buffer is full and which is empty. Blocks stay:
each takes one tile of queries after the other, those with most keys first.

After FlashAttention-3 (Shah et al., 2024).
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from attnfuse.backends.tilelang.expressions import MINUS_INFINITY, Expressions
from attnfuse.backends.tilelang.header import (
    batch_labels,
    block_indices,
    key_head,
    write_header,
    write_parameters,
)
from attnfuse.backends.tilelang.names import identifier
from attnfuse.backends.tilelang.steps import Steps
from attnfuse.backends.tilelang.text import Text
from attnfuse.backends.tilelang.words import Words
from attnfuse.ir import build as ir
from attnfuse.ir.axes import DType, Size
from attnfuse.ir.term import Term, walk
from attnfuse.masks import full_range
from attnfuse.masks.ranges import Q_FIRST, Q_LAST
from attnfuse.plan.kernel import LSE, QueryMajor, Result

_PRELUDE = Path(__file__).with_name("hopper.cuh")
_LOG2E = 1.4426950408889634
_WARP_GROUP = 128
_REGISTERS = {1: (24, 240), 2: (24, 240), 3: (32, 160)}
"""Registers of a producer's and of a consumer's threads, by the number of consumers."""

_MEETING = 7
"""The hardware barrier of the consumers; TileLang takes others from 3 on."""

_EMIT_ARRIVE = 'annotations={"emit_arrive": 1}'
_POLICY = "policy=T.GemmWarpPolicy.FullRow"


def emit(plan: QueryMajor, words: Words, heading: str) -> str:
    """The TileLang program that carries out ``plan``, as Python text."""
    text = Text()
    write_header(text, plan, heading, prelude=_PRELUDE.read_text("utf-8"))
    with write_parameters(text, plan, words):
        _Body(plan, words, text).write()
    return str(text)


class _Body:
    """Writes what one block does."""

    def __init__(self, plan: QueryMajor, words: Words, text: Text) -> None:
        self.plan, self.words, self.text = plan, words, text
        ((self.query, self.key),) = plan.streams
        self.rows, self.keys = plan.schedule.block_q, plan.schedule.block_k
        self.stages, self.threads = plan.schedule.stages, plan.schedule.threads
        self.consumers = self.threads - _WARP_GROUP
        self.width, self.features = plan.width(self.query), plan.width(plan.value)
        self.factor, self.inner = _factored(plan.score)
        self.sizes = dict(zip(plan.results[0].labels, plan.results[0].sizes, strict=True))
        self.indices = block_indices(plan)
        self.steps = Steps(words, text)
        self.ends = Expressions(plan, self.indices | {"q_first": "q_first", "q_last": "q_last"})
        self.row_results = [each for each in plan.results if not each.has_features]
        (self.result,) = [each for each in plan.results if each.has_features]

    def write(self) -> None:
        """Write all of it."""
        line, entries = self.text.line, [str(self.sizes[each]) for each in batch_labels(self.plan)]
        line(f"q_blocks = T.ceildiv({self.sizes[self.plan.rows]}, {self.rows})")
        line(f"columns = {' * '.join((str(self.sizes['h']), *entries))}")
        line("works = q_blocks * columns")
        line(f"blocks = T.min(works, {self.plan.schedule.blocks})")
        kernel = f"T.Kernel(blocks, threads={self.threads}, prelude=PRELUDE)"
        produce, consume = _REGISTERS[self.consumers // _WARP_GROUP]
        with self.text.block(f"with {kernel} as own_block:"):
            self._allocate()
            with self.text.block(f"if thread < {_WARP_GROUP}:"):
                line(f"T.set_max_nreg({produce}, 0)")
                with self._works():
                    self._produce()
            with self.text.block("else:"):
                line(f"T.set_max_nreg({consume}, 1)")
                with self._works():
                    self._consume()

    def _allocate(self) -> None:
        line, words, dtype = self.text.line, self.words, self.plan.attended
        rows, stages = self.rows, self.stages
        line(f"q_tile = {words.shared((rows, self.width), dtype)}")
        line(f"k_tiles = {words.shared((stages, self.keys, self.width), dtype)}")
        line(f"v_tiles = {words.shared((stages, self.keys, self.features), dtype)}")
        line(f"out_tile = {words.shared((rows, self.features), self.result.dtype)}")
        self.steps.allocate(self.query.steps, "q_tile", rows)
        line(f"score = {words.fragment((rows, self.keys))}")
        line(f"weights = {words.fragment((rows, self.keys), dtype)}")
        line(f"out_sum = {words.fragment((rows, self.features))}")
        self.text.comment("two rows of a thread")
        for name in ("row_max", "row_sum", "rescale"):
            line(f'{name} = T.alloc_local((2,), "float32")')
        line('grown = T.alloc_local((1,), "int32")')
        if self.plan.reads(LSE):
            line(f"row_lse = {words.shared((rows,), DType.float32)}")
        line("q_full = T.alloc_barrier(1)")
        line(f"q_empty = T.alloc_barrier({self.consumers})")
        for name in ("k", "v"):
            line(f"{name}_full = T.alloc_barrier({[1] * stages})")
            line(f"{name}_empty = T.alloc_barrier({[self.consumers] * stages})")
        line("thread = T.get_thread_binding()")
        # TileLang takes no remainder of what is only a name for an expression.
        for name in ("work", "q_block", "entry", "h", *batch_labels(self.plan)):
            line(f"{name} = T.alloc_var(T.int32)")
        for name in ("tile_first", "tile_end"):
            line(f"{name} = T.alloc_var(T.int32)")
        line("loaded = T.alloc_var(T.int32, init=0)")

    @contextmanager
    def _works(self) -> Generator[None]:
        """The tiles of queries of this block, every other row of them from the end."""
        text, line = self.text, self.text.line
        with text.block("for turn in T.serial(T.ceildiv(works, blocks)):"):
            line("work = turn * blocks + own_block + (turn % 2) * (blocks - 1 - 2 * own_block)")
            with text.block("if work < works:"):
                self._locate()
                yield
                line("loaded = loaded + tile_end - tile_first")

    def _locate(self) -> None:
        line, labels = self.text.line, batch_labels(self.plan)
        uneven = self._depends_on_queries()
        line(f"q_block = {'q_blocks - 1 - work // columns' if uneven else 'work % q_blocks'}")
        line(f"entry = {'work % columns' if uneven else 'work // q_blocks'}")
        line(f"h = entry % {self.sizes['h']}")
        line(f"entry = entry // {self.sizes['h']}")
        for label in reversed(labels[1:]):
            line(f"{label} = entry % {self.sizes[label]}")
            line(f"entry = entry // {self.sizes[label]}")
        line(f"{labels[0]} = entry")
        line(f"q_first = q_block * {self.rows}")
        line(f"q_last = q_first + {self.rows - 1}")
        first, end = self.ends.spell(self.plan.keys.first), self.ends.spell(self.plan.keys.end)
        self.text.comment(f"keys that this tile of queries can see: {self.plan.keys}")
        line(f"tile_first = ({first}) // {self.keys}")
        line(f"tile_end = T.max(tile_first, T.ceildiv({end}, {self.keys}))")

    def _depends_on_queries(self) -> bool:
        """Whether later queries see more keys."""
        first, end = (set(walk(term)) for term in (self.plan.keys.first, self.plan.keys.end))
        return Q_LAST in end and Q_FIRST not in first

    # -- the producer ------------------------------------------------------------------------

    def _produce(self) -> None:
        line, stages = self.text.line, self.stages
        line("T.barrier_wait(q_empty, (turn + 1) % 2)")
        place = f"{self._at(self.query.parameter, 'h')}, q_first:q_first + {self.rows}, :"
        self._copy(f"{identifier(self.query.parameter)}[{place}]", "q_tile", "q_full")
        with self.text.block("for step in T.serial(tile_end - tile_first):"):
            line(f"k_first = (tile_end - 1 - step) * {self.keys}")
            line(f"room = (loaded + step) % {stages}")
            line(f"phase = (loaded + step) // {stages} % 2")
            for name, load in (("k", self.key), ("v", self.plan.value)):
                head = key_head(self.plan, load.parameter)
                place = f"{self._at(load.parameter, head)}, k_first:k_first + {self.keys}, :"
                line(f"T.barrier_wait({name}_empty[room], 1 - phase)")
                source = f"{identifier(load.parameter)}[{place}]"
                self._copy(source, f"{name}_tiles[room, :, :]", f"{name}_full[room]")

    def _copy(self, source: str, tile: str, barrier: str) -> None:
        self.text.line(f"T.tma_copy({source}, {tile}, barrier={barrier}, {_EMIT_ARRIVE})")

    def _at(self, parameter: str, head: str) -> str:
        return ", ".join((*batch_labels(self.plan), head))

    # -- the consumers -----------------------------------------------------------------------

    def _consume(self) -> None:
        line, text = self.text.line, self.text
        line("T.fill(out_sum, 0)")
        with text.block("for r in T.serial(2):"):
            line("row_sum[r] = 0")
            line(f"row_max[r] = {MINUS_INFINITY}")
        line("T.barrier_wait(q_full, turn % 2)")
        indices = self.indices | {"q": "q_first + i", "d": "j"}
        for step in self.query.steps:
            at = Expressions(self.plan, indices)
            self.steps.write(step, "q_tile", "q_tile", at, self.rows)
        if self.query.steps:
            self._show()
        # Not `if`: TileLang would repeat that for each statement, and what is in flight between
        # them the assembler would wait for.
        with text.block("for once in T.serial(T.min(tile_end - tile_first, 1)):"):
            self._first_scores()
            with text.block("for step in T.serial(tile_end - tile_first - 1):"):
                self._both()
            self._last_values()
        line("T.barrier_arrive(q_empty)")
        self._epilogue()

    def _first_scores(self) -> None:
        self._room("loaded")
        self.text.line("T.barrier_wait(k_full[room], phase)")
        self._scores("room")
        self.text.line("T.wait_wgmma(0)")
        self.text.line("T.barrier_arrive(k_empty[room])")
        self._weigh("tile_end - 1")
        self.text.line("grown[0] = 0  # there is nothing to rescale yet")

    def _both(self) -> None:
        """Scores of one tile, and the values of the one before."""
        line = self.text.line
        self._room("loaded + step")
        line(f"next_room = (loaded + step + 1) % {self.stages}")
        line(f"T.barrier_wait(k_full[next_room], (loaded + step + 1) // {self.stages} % 2)")
        self._scores("next_room")
        self._rescale()
        self._values()
        line("T.wait_wgmma(1)")
        line("T.barrier_arrive(k_empty[next_room])")
        self._weigh("tile_end - 2 - step", "T.wait_wgmma(0)", "T.barrier_arrive(v_empty[room])")

    def _last_values(self) -> None:
        self._room("loaded + tile_end - tile_first - 1")
        self._rescale()
        self._values()
        self.text.line("T.wait_wgmma(0)")
        self.text.line("T.barrier_arrive(v_empty[room])")

    def _room(self, place: str) -> None:
        """The buffer of a tile, and how often it has been filled before, modulo 2."""
        self.text.line(f"room = ({place}) % {self.stages}")
        self.text.line(f"phase = ({place}) // {self.stages} % 2")

    def _scores(self, room: str) -> None:
        how = f"transpose_B=True, {_POLICY}, clear_accum=True"
        self.text.line(f"T.wgmma_gemm(q_tile, k_tiles[{room}, :, :], score, {how})")

    def _rescale(self) -> None:
        elements = self.rows * self.features // self.consumers
        self._call(f"rescale<{elements}>", "out_sum", "rescale", "grown")

    def _values(self) -> None:
        self.text.line("T.barrier_wait(v_full[room], phase)")
        self.text.line(f"T.wgmma_gemm(weights, v_tiles[room, :, :], out_sum, {_POLICY})")

    def _weigh(self, tile: str, *before_copy: str) -> None:
        """Scores of a tile become weights; then the values of the tile before are done."""
        line, text = self.text.line, self.text
        line(f"k_first = ({tile}) * {self.keys}")
        indices = self.indices | {"q": "q_first + i", "k": "k_first + j"}
        at_score = Expressions(self.plan, indices, ["score[i, j]"])
        each = self.words.each(self.rows, self.keys)
        if self.inner.op.name != "slot":
            text.comment(f"score / {self.factor:.6g} = {self.inner}")
            with text.block(f"for i, j in {each}:"):
                line(f"score[i, j] = {at_score.spell(self.inner)}")
        full = full_range(self.plan.visible, ir.length(self._kv_len()))
        first, end = self.ends.spell(full.first), self.ends.spell(full.end)
        text.comment(f"all of them see {full}")
        with text.block(f"if T.Or(k_first < {first}, k_first + {self.keys} > {end}):"):
            visible = f"k_first + j < {self._kv_len()}"
            if self.plan.visible is not ir.TRUE:
                visible = f"T.And({visible}, {at_score.spell(self.plan.visible)})"
            with text.block(f"for i, j in {each}:"):
                line(f"score[i, j] = T.if_then_else({visible}, score[i, j], {MINUS_INFINITY})")
        elements = self.rows * self.keys // self.consumers
        scale = f"T.float32({self.factor * _LOG2E!r})"
        tensors = ("score", "row_max", "row_sum", "rescale", "grown")
        self._call(f"softmax<{elements}>", *tensors, number=scale)
        for each_line in before_copy:
            line(each_line)
        line("T.copy(score, weights)")

    def _call(self, function: str, *tensors: str, number: str | None = None) -> None:
        arguments = [f"{name}.data" for name in tensors] + ([number] if number else [])
        call = f'T.call_extern("handle", "attnfuse::{function}", {", ".join(arguments)})'
        self.text.line(f"T.evaluate({call})")

    # -- the epilogue ------------------------------------------------------------------------

    def _epilogue(self) -> None:
        text, line = self.text, self.text.line
        elements = self.rows * self.features // self.consumers
        factor = f"T.float32({self.factor!r})"
        self._call(f"finish<{elements}>", "out_sum", "row_max", "row_sum", number=factor)
        if self.plan.reads(LSE):
            with text.block("if thread % 4 == 0:"), text.block("for r in T.serial(2):"):
                row = f"(thread // 32 - {_WARP_GROUP // 32}) * 16 + thread % 32 // 4 + r * 8"
                line(f"row_lse[{row}] = row_max[r]")
            self._meet()
        indices = self.indices | {"q": "q_first + i", "e": "j"}
        at_result = Expressions(self.plan, indices, ["out_sum[i, j]", "row_lse[i]"])
        batch = ", ".join(batch_labels(self.plan))
        for result in self.row_results:
            text.comment(str(result))
            with text.block(f"for i in {self.words.each(self.rows)}:"):
                value = at_result.spell(result.expression)
                line(f"{identifier(result.name)}[{batch}, h, q_first + i] = {value}")
        self._write(self.result, at_result, batch)

    def _write(self, result: Result, at_result: Expressions, batch: str) -> None:
        value = result.expression
        value = value.operands[0] if value.op.name == "cast" else value
        if value.op.name != "slot":
            self.text.comment(str(result))
            with self.text.block(f"for i, j in {self.words.each(self.rows, self.features)}:"):
                self.text.line(f"out_sum[i, j] = {at_result.spell(value)}")
        self._meet()  # whoever stored the tile before has waited until it had been read
        self.text.line("T.copy(out_sum, out_tile)")
        self._show()
        place = f"{batch}, h, q_first:q_first + {self.rows}, :"
        self.text.line(f"T.copy(out_tile, {identifier(result.name)}[{place}])")

    def _show(self) -> None:
        """What threads have written to shared memory is for the matrix unit, or for TMA."""
        self.text.line("T.fence_proxy_async()")
        self._meet()

    def _meet(self) -> None:
        """All consumers wait for each other."""
        self.text.line(f"T.sync_threads({_MEETING}, {self.consumers})")

    def _kv_len(self) -> Size:
        return self.plan.parameter(self.key.parameter).sizes[-2]


def _factored(score: Term) -> tuple[float, Term]:
    """A positive factor of the score that softmax can apply, and the rest of it."""
    if score.op.name == "mul":
        factor = ir.value_of(score.operands[0])
        if isinstance(factor, float) and factor > 0:
            return factor, ir.mul(*score.operands[1:])
    return 1.0, score
