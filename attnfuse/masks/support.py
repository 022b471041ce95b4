"""Where a weight can differ from 0, read off its expression.

For weights that are no softmax: sigmoid attention, squared ReLU, linear
attention. A masked score is −∞, and the sigmoid of that is 0.
"""

from __future__ import annotations

import math

from attnfuse.ir import build as ir
from attnfuse.ir.term import Term, walk


def support(weight: Term) -> Term:
    """A closed predicate outside of which ``weight`` is 0; true where nothing is known.

    Args:
        weight: an elementwise expression of scores.
    """
    if weight.op.name == "where" and ir.value_of(weight.operands[2]) == 0:
        condition, inner = ir.unpack(weight.operands[0]), support(weight.operands[1])
        return ir.and_(condition, inner) if ir.is_closed(condition) else inner
    masks = [term for term in walk(weight) if term.op.name == "mask"]
    visible = [ir.unpack(term.operands[1]) for term in masks if _vanishes(weight, term)]
    return ir.and_(*filter(ir.is_closed, visible))


def _vanishes(weight: Term, mask: Term) -> bool:
    """Whether ``weight`` is 0 wherever ``mask`` hides."""
    return ir.value_of(ir.substitute(weight, {mask: ir.const(-math.inf)})) == 0
