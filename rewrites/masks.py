"""Mask merging: one mask, outermost, with one predicate, or none.

Most of what is to be said of bands needs no rules: a predicate is in a normal form, in which
"and" takes the tighter of two bounds of one direction.

A mask never goes past a softcap: tanh(−∞) is −1, so keys that are masked before it keep weight.

``sorted``
    The entries of this tensor of integers never fall along its last dimension.
"""

from __future__ import annotations

import math

from attnfuse.egraph.pattern import closed, op, rest, variables
from attnfuse.egraph.rule import Declined, Facts, rule
from attnfuse.egraph.ruleset import RuleSet
from attnfuse.ir import build as ir
from attnfuse.ir.axes import union
from attnfuse.ir.term import Term
from attnfuse.rewrites.bounds import always, is_bound, least, parts_of, simplest, uncertain, united

x, p, r = variables("x p r")
known, more = closed("known"), rest("more")


LOST_AXIS = Declined("only the mask gives the scores one of their axes")


@rule(op.mask(op.mask(x, p), r), exact="bits")
def masks_merge(x: Term, p: Term, r: Term) -> Term | Declined:
    """mask(mask(x, p), r) → mask(x, p ∧ r)

    Simplified as `certain_bound_dropped` and `bands_unite` would, lest each of several masks
    is merged in each of its forms.
    """
    both = ir.and_(p, r)
    forms = (simplest(both), both) if ir.is_closed(ir.unpack(both)) else (both,)
    axes = union([x.type, p.type, r.type])
    masked = (ir.mask(x, form) for form in forms)
    return next((merged for merged in masked if merged.type.axes == axes), LOST_AXIS)


def sees_all(known: Term) -> bool:
    """The predicate holds for all positions and lengths, as far as can be proved."""
    return always(known)


@rule(op.mask(x, known), when=sees_all, exact="bits")
def mask_of_nothing(x: Term, known: Term) -> Term | Declined:
    """mask(x, true) → x

    Where a predicate holds for all positions and lengths: a window wider than the sequence.
    """
    return x if x.type.axes == union([x.type, known.type]) else LOST_AXIS


@rule(op.mask(x, known), exact="bits")
def certain_bound_dropped(x: Term, known: Term) -> Term | Declined:
    """mask(x, p ∧ true) → mask(x, p)

    Where a part of a predicate holds for all positions and lengths. What is left must be
    there: it is `mask_of_nothing` that drops all of a mask.
    """
    return _masked_by(uncertain(known), x, known)


@rule(op.mask(x, known), exact="bits")
def bands_unite(x: Term, known: Term) -> Term | Declined:
    """mask(x, m ≤ i ≤ n ∨ m' ≤ i ≤ n') → mask(x, min(m, m') ≤ i ≤ max(n, n'))

    For bands of one integer i that overlap or touch: m ≤ n' + 1 and m' ≤ n + 1. What both
    alternatives ask besides, the same document, say, is asked of the union.
    """
    return _masked_by(united(known), x, known)


UNCHANGED = Declined("the predicate has no such parts")


def _masked_by(predicate: Term, x: Term, known: Term) -> Term | Declined:
    """The scores under another form of a predicate."""
    if parts_of(predicate) == parts_of(known):
        return UNCHANGED
    if predicate is ir.TRUE:
        return Declined("nothing is left of the predicate")
    masked = ir.mask(x, predicate)
    return masked if masked.type.axes == union([x.type, known.type]) else LOST_AXIS


@rule(op.mask(x, known), exact="bits")
def document_as_bound(x: Term, known: Term, facts: Facts) -> Term | Declined:
    """mask(x, id[i] = id[j] ∧ i ≥ j) → mask(x, id[i] ≤ id[j] ∧ i ≥ j)

    For ids that are promised to be `sorted`, id[j] ≤ id[i] wherever j ≤ i: so a causal mask makes
    one bound of "the same document". The mask must say i ≥ j itself, of the very indices by which
    the ids are read.
    """
    parts = parts_of(known)
    bounds = [part.operands[1] for part in parts if is_bound(part)]
    changed = tuple(_ordered(part, bounds, facts) or part for part in parts)
    return UNCHANGED if changed == parts else _masked_by(ir.and_(*changed), x, known)


def _ordered(equation: Term, bounds: list[Term], facts: Facts) -> Term | None:
    """The bound id[i] ≤ id[j] that an equation of two ids comes to, or None."""
    if equation.op.name != "eq" or not equation.operands[1].type.dtype.is_int:
        return None
    coefficients, constant = ir.affine_parts(equation.operands[1])
    if constant or sorted(coefficients.values()) != [-1, 1]:
        return None
    for late, early in (tuple(coefficients), tuple(coefficients)[::-1]):
        if _read_alike(late, early) and "sorted" in facts(late.operands[0]).promises:
            ahead = ir.sub(late.operands[-1], early.operands[-1])
            if any(_implies(bound, ahead) for bound in bounds):
                return ir.le(late, early)
    return None


def _implies(bound: Term, term: Term) -> bool:
    """Whether 0 ≤ bound implies 0 ≤ term, since the term is never less than the bound."""
    gap = least(ir.sub(term, bound))
    return gap is not None and gap >= 0


def _read_alike(one: Term, other: Term) -> bool:
    """Whether two reads of a tensor differ in their last index only."""
    same = one.op.name == other.op.name == "gather" and len(one.operands) > 1
    return same and one.operands[:-1] == other.operands[:-1]


@rule(op.add(op.mask(x, p), more))
def mask_over_sum(x: Term, p: Term, more: tuple[Term, ...]) -> Term | Declined:
    """mask(x, p) + y → mask(x + y, p)

    Captured tensors hold neither +∞ nor NaN: that is what AttnFuse asks of all inputs.
    """
    if ir.value_of(x) is not None:
        return Declined("a constant takes the element type of what it is added to")
    if any(map(_outweighs, more)):
        return Declined("−∞ plus this constant is not −∞")
    return ir.mask(ir.add(x, *more), p)


def _outweighs(term: Term) -> bool:
    """Whether it is a constant that makes something else of −∞."""
    value = ir.value_of(term)
    return value is not None and (math.isnan(value) or value == math.inf)


@rule(op.add(known, more))
def additive_mask(known: Term, more: tuple[Term, ...]) -> Term | Declined:
    """where(p, y, −∞) + x → mask(x + y, p)

    For what is −∞ by itself. A mask of −10⁹ is no mask: a row that sees nothing would become the
    average of what it doesn't see.
    """
    bias = ir.unpack(known)
    parts = bias.operands if bias.op.name == "add" else (bias,)
    found = [(part, masking) for part in parts if (masking := _masking(part)) is not None]
    if not found:
        return Declined("no part of the bias is −∞ where some predicate doesn't hold")
    part, (visible, shown) = found[0]
    others = [each for each in parts if each is not part]
    if any(map(_outweighs, (*more, *others))):
        return Declined("−∞ plus this constant is not −∞")
    masked = ir.mask(ir.add(*more, ir.pack(ir.add(shown, *others))), visible)
    whole = ir.add(known, *more).type
    return ir.cast(masked, whole.dtype) if masked.type.axes == whole.axes else LOST_AXIS


def _masking(part: Term) -> tuple[Term, Term] | None:
    """What a part of a bias shows, and where; None when it is −∞ nowhere, as far as is seen."""
    if part.op.name != "where":
        return None
    condition, yes, no = part.operands
    if ir.value_of(no) == -math.inf:
        return condition, yes
    return (ir.not_(condition), no) if ir.value_of(yes) == -math.inf else None


@rule(op.where(p, op.where(r, x, 0.0), 0.0), exact="bits")
def zero_masks_merge(p: Term, r: Term, x: Term) -> Term | Declined:
    """where(p, where(r, x, 0), 0) → where(p ∧ r, x, 0)"""
    merged = ir.where(ir.and_(p, r), x, ir.const(0.0))
    return merged if merged.type.axes == union([x.type, p.type, r.type]) else LOST_AXIS


RULES = RuleSet(
    (
        masks_merge,
        mask_of_nothing,
        certain_bound_dropped,
        bands_unite,
        document_as_bound,
        additive_mask,
        mask_over_sum,
        zero_masks_merge,
    )
)
"""The family, in order."""
