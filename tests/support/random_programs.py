"""Random attention programs in random surroundings."""

from __future__ import annotations

from attnfuse.ir import build as ir
from attnfuse.ir.axes import DType
from attnfuse.ir.term import Term
from attnfuse.testing.worlds import AXES, World


def program(world: World) -> tuple[Term, ...]:
    """The roots of a program: an output, and now and then also its log-sum-exp or its keys."""
    key = _side(world, "key")
    scores = _scores(world, ir.contract(_side(world, "query"), key, over="d", dtype=DType.float32))
    weights = ir.softmax(scores)
    if world.chance(0.2):
        other = ir.contract(_side(world, "query"), key, over="d", dtype=DType.float32)
        second = ir.softmax(_scores(world, other))
        weights = ir.add(weights, ir.mul(ir.const(-0.3), second))
    if world.chance(0.2):
        weights = ir.mul(ir.const(world.random.choice((0.5, 2.0, -1.5))), weights)
    output = ir.contract(weights, _leaf(world, "value"), over="k", dtype=world.dtype)
    extra = [ir.logsumexp(scores)] if world.chance(0.2) else []
    return (output, *extra, *([ir.stored(key)] if world.chance(0.2) else []))


def _leaf(world: World, sort: str) -> Term:
    return world.input("query", [world.axes[name] for name in AXES[sort]])


def _side(world: World, sort: str) -> Term:
    """A query or key, with what is done to them before the scores."""
    made = _leaf(world, sort)
    for _ in range(world.random.randint(0, 3)):
        action = world.random.choice(("scale", "rotate", "rotate", "gain", "store"))
        if action == "scale":
            made = ir.mul(ir.const(world.random.choice((0.5, -2.0, 3.0))), made)
        elif action == "rotate":
            rows = world.positions(AXES[sort][-2])
            made = ir.rotate(made, *world.tables(), rows, world.random.choice(("half", "half")))
        elif action == "gain":
            made = ir.mul(ir.pack(world.gain("d")), made)
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
