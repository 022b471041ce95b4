"""Norms of features: what commutes with rotations, and what their weights take in.

A rotation turns pairs of features and keeps their length, so it keeps the sum of all squares:
if the tables are promised to be `angles` or `unit`, that is. Tables that are scaled, as YaRN's
(Peng et al., 2023), change it. A norm that subtracted the mean would not commute: a rotation
changes the mean.
"""

from __future__ import annotations

import math

from attnfuse.egraph.pattern import closed, number, op, rest, variables
from attnfuse.egraph.rule import Declined, Facts, rule
from attnfuse.egraph.ruleset import RuleSet
from attnfuse.ir import build as ir
from attnfuse.ir.term import Term
from attnfuse.rewrites.rope import are_unit, is_whole, pairwise_problem

x, cos, sin, positions, weight = variables("x cos sin positions weight")
kind, eps, pairing, inverse = variables("kind eps pairing inverse")
c, gain, more = number("c"), closed("gain"), rest("more")

LEAST, MOST = 2.0**-126, (2.0 - 2.0**-23) * 2.0**127
"""The normal numbers of float32, in which norms are computed."""


@rule(
    op.rotate(
        op.normalise(x, weight, kind=kind, eps=eps),
        cos,
        sin,
        positions,
        pairing=pairing,
        inverse=inverse,
    ),
    when=are_unit,
)
def norm_out_of_rotation(
    x: Term,
    weight: Term,
    kind: str,
    eps: float,
    cos: Term,
    sin: Term,
    positions: Term,
    pairing: str,
    inverse: bool,
    facts: Facts,
) -> Term | Declined:
    """rotate(norm(x)·w) → norm(rotate(x))·w

    |rotate(x)| = |x|. The weight must be the same for all features, or for both of each pair
    (see `gain_out_of_rotation`).
    """
    problem = _mixed(weight, cos, pairing, x, facts)
    if problem is not None:
        return problem
    return ir.normalise(ir.rotate(x, cos, sin, positions, pairing, inverse), weight, kind, eps)


@rule(
    op.normalise(
        op.rotate(x, cos, sin, positions, pairing=pairing, inverse=inverse),
        weight,
        kind=kind,
        eps=eps,
    ),
    when=are_unit,
)
def rotation_out_of_norm(
    x: Term,
    weight: Term,
    kind: str,
    eps: float,
    cos: Term,
    sin: Term,
    positions: Term,
    pairing: str,
    inverse: bool,
    facts: Facts,
) -> Term | Declined:
    """norm(rotate(x))·w → rotate(norm(x)·w)

    On the conditions of `norm_out_of_rotation`.
    """
    problem = _mixed(weight, cos, pairing, x, facts)
    if problem is not None:
        return problem
    return ir.rotate(ir.normalise(x, weight, kind, eps), cos, sin, positions, pairing, inverse)


def _mixed(weight: Term, cos: Term, pairing: str, x: Term, facts: Facts) -> Declined | None:
    """Why a rotation would mix features of different weights, if it may."""
    if x.type.axes[-1].name not in weight.type.names:
        return None
    if not is_whole(cos, x, pairing):
        return Declined("the rotation is partial, and pairs other features than the weight")
    return pairwise_problem(ir.unpack(weight), pairing, facts)


@rule(op.normalise(op.mul(c, more), weight, kind=kind, eps=eps))
def scale_out_of_norm(
    c: float, more: tuple[Term, ...], weight: Term, kind: str, eps: float
) -> Term | Declined:
    """norm(c·x; w, ε) → norm(x; sign(c)·w, ε / c²)

    √(c²·mean x² + ε) = |c|·√(mean x² + ε / c²); of kind l2 it is ε / |c|. So ε must
    change, too: for c ≠ 0, and as long as the new ε is a normal number of float32, or 0.
    """
    if not math.isfinite(c) or c == 0:
        return Declined("the factor is 0 or infinite")
    inner = eps / abs(c) / abs(c) if kind == "rms" else eps / abs(c)
    if eps and not LEAST <= inner <= MOST:
        return Declined("float32 doesn't hold the new ε")
    x = ir.mul(*more)
    return ir.normalise(x, ir.mul(ir.const(math.copysign(1.0, c)), weight), kind, inner)


@rule(op.mul(gain, op.normalise(x, weight, kind=kind, eps=eps), more))
def gain_into_norm(
    gain: Term, x: Term, weight: Term, kind: str, eps: float, more: tuple[Term, ...]
) -> Term | Declined:
    """γ·norm(x; w) → norm(x; γ·w)

    For a finite number, or captured numbers that vary along axes of x only.
    """
    number = ir.value_of(gain)
    if number is not None and not math.isfinite(number):
        return Declined("the factor is infinite")
    if ir.mul(gain, x).type != x.type:
        return Declined("the factor gives the result axes or an element type of its own")
    return ir.mul(ir.normalise(x, ir.mul(gain, weight), kind, eps), *more)


RULES = RuleSet((norm_out_of_rotation, rotation_out_of_norm, scale_out_of_norm, gain_into_norm))
"""The family, in order."""
