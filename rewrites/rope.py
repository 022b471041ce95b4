"""Rotary embeddings (RoFormer, Su et al., 2021): offsets that cancel, gains that commute.

Two rotations that turn the same way, each with the position, are not one rotation with the
offsets added: angles would double.

A rotation is a pair of tables read at a position, and says nothing of angles.
So what follows from angles has to be promised of the tables:

``angles``
    Row i of the cosine table holds cos(i·θ), of the sine table sin(i·θ), with
    one θ for each column, the same in both; and all positions at which the
    variant reads the two are rows of them.
``unit``
    The squares of a cosine and of the sine in its place sum to 1; so for `angles`.
``pairwise half``, ``pairwise interleaved``
    The two features of each pair of a whole head have one entry in this tensor.
``natural``
    No entry of this integer tensor is negative.
"""

from __future__ import annotations

from attnfuse.egraph.pattern import closed, op, rest, variables
from attnfuse.egraph.rule import Declined, Facts, rule
from attnfuse.egraph.ruleset import RuleSet
from attnfuse.ir import build as ir
from attnfuse.ir.axes import DType
from attnfuse.ir.term import Term
from attnfuse.rewrites.bounds import IsNatural, least

q, k, x, cos, sin, positions = variables("q k x cos sin positions")
m, n, gain = closed("m"), closed("n"), closed("gain")
dtype, pairing, inverse, turned = variables("dtype pairing inverse turned")
more = rest("more")


def are_angles(cos: Term, sin: Term, facts: Facts) -> bool:
    """The tables are promised to be `angles`."""
    return "angles" in facts(cos).promises and "angles" in facts(sin).promises


def are_unit(cos: Term, sin: Term, facts: Facts) -> bool:
    """The tables are promised to be `angles` or `unit`."""
    both = facts(cos).promises & facts(sin).promises
    return "angles" in both or "unit" in both


@rule(
    op.contract(
        op.rotate(q, cos, sin, m, pairing=pairing, inverse=inverse),
        op.rotate(k, cos, sin, n, pairing=pairing, inverse=inverse),
        over="d",
        dtype=dtype,
    ),
    when=are_angles,
)
def rope_offset_cancels(
    q: Term,
    k: Term,
    cos: Term,
    sin: Term,
    m: Term,
    n: Term,
    pairing: str,
    inverse: bool,
    dtype: DType,
    facts: Facts,
) -> Term | Declined:
    """rotate(q, m + o)·rotate(k, n + o) → rotate(q, m)·rotate(k, n)

    Only the difference of two positions matters, whichever way both turn. The offset must not
    be negative, and what is left of the positions neither: they must stay rows of the tables.
    """
    offset = _common(ir.unpack(m), ir.unpack(n))
    if ir.value_of(offset) == 0:
        return Declined("the two positions have no offset in common")
    left = [ir.sub(ir.unpack(position), offset) for position in (m, n)]

    def is_natural(tensor: Term) -> bool:
        return "natural" in facts(tensor).promises

    if not all(_is_natural(term, is_natural) for term in (offset, *left)):
        return Declined("the offset, or the positions without it, may be negative")
    query, key = (
        ir.rotate(x, cos, sin, rows, pairing, inverse) for x, rows in zip((q, k), left, strict=True)
    )
    return ir.contract(query, key, over="d", dtype=dtype)


def _is_natural(term: Term, is_natural: IsNatural) -> bool:
    below = least(term, is_natural)
    return below is not None and below >= 0


def _common(m: Term, n: Term) -> Term:
    """What both sums have in common."""
    (one, one_constant), (other, other_constant) = ir.affine_parts(m), ir.affine_parts(n)
    shared = {term: min(one[term], other[term]) for term in one if term in other}
    positive = {term: factor for term, factor in shared.items() if factor > 0}
    return ir.affine(positive, max(0, min(one_constant, other_constant)))


@rule(op.rotate(op.mul(gain, more), cos, sin, positions, pairing=pairing, inverse=inverse))
def gain_out_of_rotation(
    gain: Term,
    more: tuple[Term, ...],
    cos: Term,
    sin: Term,
    positions: Term,
    pairing: str,
    inverse: bool,
    facts: Facts,
) -> Term | Declined:
    """rotate(γ·x) → γ·rotate(x)

    For a gain γ of the features, when the two features of each rotated pair have the same one:
    of whole heads for pairs of halves, since a partial rotation pairs other features.
    """
    problem = pairwise_problem(ir.unpack(gain), pairing, facts)
    if problem is not None:
        return problem
    x = ir.mul(*more)
    if x.type.names[-1:] != ("d",):
        return Declined("the rest has no features to rotate")
    if not is_whole(cos, x, pairing):
        return Declined("the rotation is partial, and pairs other features than the gain")
    return ir.mul(gain, ir.rotate(x, cos, sin, positions, pairing, inverse))


def pairwise_problem(gain: Term, pairing: str, facts: Facts) -> Declined | None:
    """Why both features of each pair of a whole head may not have the same gain."""
    if gain.op.name != "gather" or not _reads_features(gain):
        return Declined("it is not one gain for each feature")
    if f"pairwise {pairing}" not in facts(gain.operands[0]).promises:
        return Declined(f"the gain is not promised to be `pairwise {pairing}`")
    return None


def is_whole(cos: Term, x: Term, pairing: str) -> bool:
    """Whether rotated features pair up as those of a whole head do: neighbours always do."""
    return pairing == "interleaved" or 2 * _columns(cos) == x.type.axes[-1].size


def _reads_features(read: Term) -> bool:
    """Whether a tensor is read at the feature by its last index, and by no other."""
    *others, last = read.operands[1:]
    feature = last.op.name == "index" and last["name"] == "d"
    return feature and all("d" not in index.type.names for index in others)


def _columns(table: Term) -> int:
    size = table.type.axes[-1].size
    assert isinstance(size, int)
    return size


@rule(
    op.rotate(
        op.rotate(x, cos, sin, m, pairing=pairing, inverse=turned),
        cos,
        sin,
        n,
        pairing=pairing,
        inverse=inverse,
    ),
    when=are_unit,
)
def opposite_rotations_meet(
    x: Term,
    cos: Term,
    sin: Term,
    m: Term,
    n: Term,
    pairing: str,
    turned: bool,
    inverse: bool,
    facts: Facts,
) -> Term | Declined:
    """unrotate(rotate(x, m), n) → rotate(x, m - n)

    And x itself for m = n. For m ≥ n ≥ 0 the difference is a row of the tables, too, and for
    n ≥ m ≥ 0 what is left is unrotate(x, n - m); both need tables of `angles`.
    """
    if turned == inverse:
        return Declined("both turn the same way")
    left = ir.sub(ir.unpack(m), ir.unpack(n))
    if ir.value_of(left) == 0:
        return x
    if not are_angles(cos, sin, facts):
        return Declined("the tables are not promised to be `angles`")

    def is_natural(tensor: Term) -> bool:
        return "natural" in facts(tensor).promises

    for rows, least_one, way in ((left, n, turned), (ir.neg(left), m, inverse)):
        if all(_is_natural(each, is_natural) for each in (rows, ir.unpack(least_one))):
            return ir.rotate(x, cos, sin, rows, pairing, way)
    return Declined("what is left of the positions may be negative")


@rule(op.rotate(x, cos, sin, 0, pairing=pairing, inverse=inverse), to=x, when=are_angles)
def rotation_by_nothing() -> None:
    """rotate(x, 0) → x

    The first row of tables of `angles` is that of angle 0: so for the one query of a step with a
    cache, where offsets cancel.
    """


RULES = RuleSet(
    (rope_offset_cancels, gain_out_of_rotation, opposite_rotations_meet, rotation_by_nothing)
)
"""The family, in order."""
