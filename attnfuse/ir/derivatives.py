"""The derivative of each elementwise op, written in other ops.

∂result/∂operand for each operand, None where the op is not differentiable in
it. At kinks (minimum, maximum, abs) the derivative of the branch that is taken
counts, and of two equal operands the later one's.
"""

from __future__ import annotations

from collections.abc import Callable

from attnfuse.ir import build as ir
from attnfuse.ir.term import Term

Partials = Callable[[Term], tuple[Term | None, ...]]

_LN2 = 0.6931471805599453
_ONE = ir.const(1.0)


def _mul(term: Term) -> tuple[Term | None, ...]:
    parts = term.operands
    others = (parts[:place] + parts[place + 1 :] for place in range(len(parts)))
    return tuple(ir.mul(*rest) for rest in others)


def _div(term: Term) -> tuple[Term | None, ...]:
    x, y = term.operands
    return (ir.div(_ONE, y), ir.neg(ir.div(x, ir.mul(y, y))))


def _unary(rule: Callable[[Term, Term], Term]) -> Partials:
    """The partial of a function of one operand x, which may use the result y."""
    return lambda term: (rule(term.operands[0], term),)


def _chosen(term: Term) -> tuple[Term | None, ...]:
    """1 for the operand that the minimum or maximum takes, else 0."""
    taken: list[Term] = []
    for place, operand in enumerate(term.operands):
        later = (ir.not_(ir.eq(other, term)) for other in term.operands[place + 1 :])
        mine = ir.and_(ir.eq(operand, term), *later)
        taken.append(ir.where(mine, _ONE, ir.const(0.0)))
    return tuple(taken)


def _where(term: Term) -> tuple[Term | None, ...]:
    condition, zero = term.operands[0], ir.const(0.0)
    return (None, ir.where(condition, _ONE, zero), ir.where(condition, zero, _ONE))


def _cast(term: Term) -> tuple[Term | None, ...]:
    kinds = (term.type.dtype, term.operands[0].type.dtype)
    return (_ONE if all(dtype.is_float for dtype in kinds) else None,)


PARTIALS: dict[str, Partials] = {
    "add": lambda term: (_ONE,) * len(term.operands),
    "mul": _mul,
    "div": _div,
    "minimum": _chosen,
    "maximum": _chosen,
    "abs": _unary(lambda x, y: ir.where(ir.le(ir.const(0.0), x), _ONE, ir.const(-1.0))),
    "exp": _unary(lambda x, y: y),
    "exp2": _unary(lambda x, y: ir.mul(ir.const(_LN2), y)),
    "log": _unary(lambda x, y: ir.div(_ONE, x)),
    "tanh": _unary(lambda x, y: ir.sub(_ONE, ir.mul(y, y))),
    "sigmoid": _unary(lambda x, y: ir.mul(y, ir.sub(_ONE, y))),
    "sqrt": _unary(lambda x, y: ir.div(ir.const(0.5), y)),
    "where": _where,
    "cast": _cast,
}
"""The partial derivatives by the name of the op."""
