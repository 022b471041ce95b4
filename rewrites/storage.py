"""Storage: what is done to queries, keys and values while they are loaded, or once beforehand.

Rotations and norms right below a contraction are done while its tiles are loaded, for each
tile again; below `stored` they are done once, by a pass that writes what it makes. So there are
four forms of rotary attention: either side in the loads, or by a pass. Where a pass exists anyway
(keys are stored for a cache, say), a rotation that is stored rides on it for nothing: since
rotate(stored(x)) is rotate(x), the pass that stores the rotation may as well be the only one.

`stored` changes no value, but x and stored(x) are never equated by themselves: a form would then
have to store all uses of x or none. Who reads x is equated with who reads stored(x).

``strided``
    The features of this input are not contiguous in memory.
"""

from __future__ import annotations

from attnfuse.egraph.pattern import op, variables
from attnfuse.egraph.rule import Declined, Facts, rule
from attnfuse.egraph.ruleset import RuleSet
from attnfuse.ir import build as ir
from attnfuse.ir.axes import DType
from attnfuse.ir.term import Term

a, b, x, cos, sin, positions, weight = variables("a b x cos sin positions weight")
over, dtype, pairing, inverse, kind, eps = variables("over dtype pairing inverse kind eps")

ROTATED = op.rotate(x, cos, sin, positions, pairing=pairing, inverse=inverse)
NORMED = op.normalise(x, weight, kind=kind, eps=eps)


@rule(
    op.contract(op.stored(x), b, over=over, dtype=dtype),
    op.contract(x, b, over=over, dtype=dtype),
    exact="bits",
)
def pass_out_of_left() -> None:
    """stored(x)·b → x·b"""


@rule(
    op.contract(a, op.stored(x), over=over, dtype=dtype),
    op.contract(a, x, over=over, dtype=dtype),
    exact="bits",
)
def pass_out_of_right() -> None:
    """a·stored(x) → a·x"""


@rule(
    op.rotate(op.stored(x), cos, sin, positions, pairing=pairing, inverse=inverse),
    ROTATED,
    exact="bits",
)
def pass_out_of_rotation() -> None:
    """rotate(stored(x)) → rotate(x)

    Of two passes one is left: stored(rotate(stored(x))) is stored(rotate(x)).
    """


@rule(op.normalise(op.stored(x), weight, kind=kind, eps=eps), NORMED, exact="bits")
def pass_out_of_norm() -> None:
    """norm(stored(x)) → norm(x)

    Of two passes one is left: stored(norm(stored(x))) is stored(norm(x)).
    """


@rule(
    op.contract(ROTATED, b, over=over, dtype=dtype),
    op.contract(op.stored(ROTATED), b, over=over, dtype=dtype),
    exact="bits",
)
def rotation_of_left_by_pass() -> None:
    """rotate(x)·b → stored(rotate(x))·b

    A query is rotated once either way: this pays where the pass exists anyway.
    """


@rule(
    op.contract(a, ROTATED, over=over, dtype=dtype),
    op.contract(a, op.stored(ROTATED), over=over, dtype=dtype),
    exact="bits",
)
def rotation_of_right_by_pass() -> None:
    """a·rotate(x) → a·stored(rotate(x))

    Keys, or values, are then rotated once, and not for each tile of queries.
    """


@rule(
    op.contract(NORMED, b, over=over, dtype=dtype),
    op.contract(op.stored(NORMED), b, over=over, dtype=dtype),
    exact="bits",
)
def norm_of_left_by_pass() -> None:
    """norm(x)·b → stored(norm(x))·b"""


@rule(
    op.contract(a, NORMED, over=over, dtype=dtype),
    op.contract(a, op.stored(NORMED), over=over, dtype=dtype),
    exact="bits",
)
def norm_of_right_by_pass() -> None:
    """a·norm(x) → a·stored(norm(x))"""


@rule(
    op.rotate(NORMED, cos, sin, positions, pairing=pairing, inverse=inverse),
    op.rotate(op.stored(NORMED), cos, sin, positions, pairing=pairing, inverse=inverse),
    exact="bits",
)
def norm_below_rotation_by_pass() -> None:
    """rotate(norm(x)) → rotate(stored(norm(x)))

    Where normalised keys are stored anyway, only the rotation is left to the loads.
    """


@rule(op.contract(a, x, over=over, dtype=dtype), exact="bits")
def strided_right_by_pass(
    a: Term, x: Term, over: str, dtype: DType, facts: Facts
) -> Term | Declined:
    """a·x → a·stored(x)

    For keys and values that are promised to be `strided`: each tile of queries reads all of them.
    """
    if "strided" not in facts(x).promises:
        return Declined("nothing says that its features are not contiguous")
    return ir.contract(a, ir.stored(x), over=over, dtype=dtype)


RULES = RuleSet(
    (
        pass_out_of_left,
        pass_out_of_right,
        pass_out_of_rotation,
        pass_out_of_norm,
        rotation_of_left_by_pass,
        rotation_of_right_by_pass,
        norm_of_left_by_pass,
        norm_of_right_by_pass,
        norm_below_rotation_by_pass,
        strided_right_by_pass,
    )
)
"""The family, in order."""
