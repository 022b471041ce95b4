"""The op table: every op that a Term can have, by name."""

from __future__ import annotations

from attnfuse.ir import attention, elementwise
from attnfuse.ir.op import Op

OPS: dict[str, Op] = {row.name: row for row in (*attention.ROWS, *elementwise.ROWS)}
"""All ops by name."""
