"""Random attention programs in random surroundings."""

from __future__ import annotations

from attnfuse.ir import build as ir
from attnfuse.ir.axes import DType
from attnfuse.ir.term import Term
from attnfuse.testing.worlds import AXES, World


def program(world: World) -> tuple[Term, ...]:
    """The roots of a program: an output, and now and then also its log-sum-exp or its keys."""
    key = _side(world, "key")
    raw = ir.contract(_side(world, "query"), key, over="d", dtype=DType.float32)
    if world.chance(0.2):
        scale = ir.const(world.random.choice((1.0, 0.5, -2.0)))
        left, right = _side(world, "query"), _side(world, "key")
        raw = ir.add(raw, ir.mul(scale, ir.contract(left, right, over="d", dtype=DType.float32)))
    scores = _scores(world, raw)
    weights = ir.softmax(scores) if world.chance(0.85) else _linear(world, raw)
    if world.chance(0.2):
        other = ir.contract(_side(world, "query"), key, over="d", dtype=DType.float32)
        second = ir.softmax(_scores(world, other))
        weights = ir.add(weights, ir.mul(ir.const(-0.3), second))
    if world.chance(0.2):
        weights = ir.mul(ir.const(world.random.choice((0.5, 2.0, -1.5))), weights)
    if world.chance(0.1):
        weights = ir.mul(weights, ir.unary["sigmoid"](ir.logsumexp(scores)))
    output = ir.contract(weights, _leaf(world, "value"), over="k", dtype=world.dtype)
    statistic = world.random.choice((ir.logsumexp, ir.row_max, ir.entropy))
    extra = [statistic(scores)] if world.chance(0.3) else []
    return (output, *extra, *([ir.stored(key)] if world.chance(0.2) else []))


def _linear(world: World, scores: Term) -> Term:
    """Weights without a softmax: 0 where a mask hides."""
    for _ in range(world.random.randint(0, 2)):
        shown = ir.where(world.predicate(), scores, ir.const(0.0))
        scores = ir.mul(ir.const(0.5), shown) if "k" in shown.type.names else scores
    return scores


def _leaf(world: World, sort: str) -> Term:
    return world.input("query", [world.axes[name] for name in AXES[sort]])


def _side(world: World, sort: str) -> Term:
    """A query or key, with what is done to them before the scores."""
    made = _leaf(world, sort)
    for _ in range(world.random.randint(0, 3)):
        action = world.random.choice(("scale", "rotate", "rotate", "gain", "norm", "store"))
        if action == "scale":
            made = ir.mul(ir.const(world.random.choice((0.5, -2.0, 3.0))), made)
        elif action == "rotate":
            rows = world.positions(AXES[sort][-2])
            turned = world.chance(0.2)
            made = ir.rotate(made, *world.tables(), rows, "half", turned)
        elif action == "gain":
            made = ir.mul(ir.pack(world.gain("d")), made)
        elif action == "norm":
            weight = world.gain("d") if world.chance(0.5) else ir.const(1.0)
            made = ir.normalise(made, weight, world.random.choice(("rms", "l2")), 0.1)
        else:
            made = ir.stored(made)
    return made


def _scores(world: World, scores: Term) -> Term:
    for _ in range(world.random.randint(1, 5)):
        action = world.random.choice(("scale", "cap", "mask", "mask", "bias"))
        if action == "scale":
            scores = ir.mul(ir.const(world.random.choice((0.5, 2.0, 0.125))), scores)
        elif action == "cap":
            scores = ir.mul(ir.const(5.0), ir.unary["tanh"](ir.mul(ir.const(0.2), scores)))
        elif action == "mask":
            scores = ir.mask(scores, world.predicate())
        else:
            scores = ir.add(scores, ir.pack(world.bias(("q", "k"))))
    return scores
