"""Passes: queries, keys or values are prepared once and written to memory."""

from __future__ import annotations

from attnfuse.backends.tilelang.header import batch_labels, write_header, write_signature
from attnfuse.backends.tilelang.loads import Loads
from attnfuse.backends.tilelang.names import identifier
from attnfuse.backends.tilelang.text import Text
from attnfuse.backends.tilelang.words import Words
from attnfuse.plan.kernel import Pass


def emit(plan: Pass, words: Words, heading: str) -> str:
    """The TileLang program that carries out ``plan``, as Python text."""
    text, rows = Text(), plan.schedule.block_q
    write_header(text, plan, heading)
    with write_signature(text, plan, words):
        first = f"{plan.rows}_first"
        text.line(f"{first} = block * {rows}")
        loads = Loads(plan, words, text)
        loads.allocate(plan.load, rows, ahead=False)
        loads.copy(plan.load, "h", first, rows, ahead=False)
        loads.prologue(plan.load, plan.rows, first, rows, ahead=False)
        features = words.features(plan.width(plan.load))
        place = ", ".join((*batch_labels(plan), "h", f"{first} + i, j"))
        (result,) = plan.results
        with text.block(f"for i, j in {words.each(rows, features)}:"):
            text.line(f"{identifier(result.name)}[{place}] = {loads.tile(plan.load)}[i, j]")
    return str(text)
