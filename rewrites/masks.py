"""Mask merging: one mask, outermost, with one predicate, or none.

Bands and the like need no rules: a predicate is in a normal form, in which
"and" takes the tighter of two bounds of one direction.
"""

from __future__ import annotations

import math

from attnfuse.egraph.pattern import closed, op, rest, variables
from attnfuse.egraph.rule import Declined, rule
from attnfuse.egraph.ruleset import RuleSet
from attnfuse.ir import build as ir
from attnfuse.ir.axes import union
from attnfuse.ir.term import Term
from attnfuse.rewrites.bounds import always

x, p, r = variables("x p r")
known, more = closed("known"), rest("more")


LOST_AXIS = Declined("only the mask gives the scores one of their axes")


@rule(op.mask(op.mask(x, p), r), exact="bits")
def masks_merge(x: Term, p: Term, r: Term) -> Term | Declined:
    """mask(mask(x, p), r) → mask(x, p ∧ r)"""
    merged = ir.mask(x, ir.and_(p, r))
    return merged if merged.type.axes == union([x.type, p.type, r.type]) else LOST_AXIS


@rule(op.mask(x, known), when=lambda known: always(known), exact="bits")
def mask_of_nothing(x: Term, known: Term) -> Term | Declined:
    """mask(x, true) → x

    Where a predicate holds for all positions and lengths: a window wider than the sequence.
    """
    return x if x.type.axes == union([x.type, known.type]) else LOST_AXIS


@rule(op.add(op.mask(x, p), more))
def mask_over_sum(x: Term, p: Term, more: tuple[Term, ...]) -> Term | Declined:
    """mask(x, p) + y → mask(x + y, p)

    Captured tensors hold neither +∞ nor NaN: that is what AttnFuse asks of all inputs.
    """
    if ir.value_of(x) is not None:
        return Declined("a constant takes the element type of what it is added to")
    numbers = [value for term in more if (value := ir.value_of(term)) is not None]
    if any(math.isnan(value) or value == math.inf for value in numbers):
        return Declined("−∞ plus this constant is not −∞")
    return ir.mask(ir.add(x, *more), p)


RULES = RuleSet((masks_merge, mask_of_nothing, mask_over_sum))
"""The family, in order."""
