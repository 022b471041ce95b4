"""What the rules make of terms as variants have them, and what they leave alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from attnfuse.egraph.engine import EGraph
from attnfuse.egraph.facts import Choice, Fact, Promises
from attnfuse.egraph.saturate import Stop, saturate
from attnfuse.egraph.search import Search
from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis, DType, Symbol
from attnfuse.ir.term import Term, walk
from attnfuse.rewrites import FAMILIES, RULES

B, HK, G = Axis("b", Symbol("batch")), Axis("hk", 2), Axis("g", 3)
Q, K, D, E = Axis("q", Symbol("q_len")), Axis("k", Symbol("kv_len")), Axis("d", 8), Axis("e", 8)
HALF = DType.float16
QUERY = ir.input_("query", "query", HALF, [B, HK, G, Q, D])
KEY = ir.input_("key", "key", HALF, [B, HK, K, D])
VALUE = ir.input_("value", "value", HALF, [B, HK, K, E])
COS, SIN = (
    ir.input_(name, "captured", DType.float32, [Axis(f"{name}.0", 64), Axis(f"{name}.1", 4)])
    for name in ("cos", "sin")
)
GAIN = ir.input_("gain", "captured", HALF, [Axis("gain.0", 8)])
SLOPES = ir.input_("slopes", "captured", DType.float32, [Axis("slopes.0", 6)])
SCALES = ir.input_("scales", "captured", HALF, [Axis("scales.0", Symbol("kv_len"))])
IDS = ir.input_("ids", "captured", DType.int32, [Axis("ids.0", Symbol("kv_len"))])
ROW, COLUMN = ir.index("q", [Q]), ir.index("k", [K])
DISTANCE = ir.sub(COLUMN, ROW)
SLOPE = ir.gather(SLOPES, ir.index("h", [HK, G]))
GAINS = ir.gather(GAIN, ir.index("d", [D]))
ANGLES = {COS: frozenset({"angles"}), SIN: frozenset({"angles"})}
CAUSAL = ir.le(COLUMN, ROW)


def scores(query: Term = QUERY, key: Term = KEY) -> Term:
    return ir.contract(query, key, over="d", dtype=DType.float32)


def attend(weights: Term, value: Term = VALUE) -> Term:
    return ir.contract(weights, value, over="k", dtype=HALF)


def rotate(x: Term, rows: Term, *, inverse: bool = False) -> Term:
    return ir.rotate(x, COS, SIN, rows, "half", inverse)


def normalise(x: Term, weight: Term | None = None, eps: float = 0.1) -> Term:
    return ir.normalise(x, ir.const(1.0) if weight is None else weight, "rms", eps)


def times(factor: float, x: Term) -> Term:
    return ir.mul(ir.const(factor), x)


def tanh(x: Term) -> Term:
    return ir.unary["tanh"](x)


def band(low: int, high: int) -> Term:
    return ir.and_(ir.le(ir.const(low), DISTANCE), ir.le(DISTANCE, ir.const(high)))


def linear(slope: Term, position: Term) -> Term:
    return ir.mul(slope, ir.cast(position, DType.float32))


def same_document(late: Term = ROW, early: Term = COLUMN) -> Term:
    return ir.eq(ir.gather(IDS, late), ir.gather(IDS, early))


def hidden(predicate: Term, value: float) -> Term:
    return ir.where(predicate, ir.const(0.0), ir.const(value))


def low_rank(c: float, dtype: DType, width: int = 4) -> tuple[Term, Term]:
    """c·q·kᵀ + u·wᵀ, and as one contraction."""
    rank = Axis("d", width)
    q, k = (ir.input_(n, n, dtype, [B, HK, a, D]) for n, a in (("query", Q), ("key", K)))
    u, w = (ir.input_(n, n, dtype, [B, HK, a, rank]) for n, a in (("query", Q), ("key", K)))
    joined = scores(ir.concat(times(c, q), u, over="d"), ir.concat(k, w, over="d"))
    return ir.add(times(c, scores(q, k)), scores(u, w)), joined


def equal(before: Term, after: Term, promises: Promises | None = None) -> bool:
    """Whether the rules find that both are the same."""
    graph = EGraph(promises=promises)
    one = graph.add(before)
    assert saturate(graph, RULES).stop is Stop.saturated
    return graph.find(one) == graph.find(graph.add(after))


ALIBI = ir.add(scores(), linear(SLOPE, DISTANCE))
BY_KEY = ir.add(scores(), linear(SLOPE, COLUMN))
BY_ROW = linear(SLOPE, ir.neg(ROW))
PAIRWISE = {**ANGLES, GAIN: frozenset({"pairwise half"})}
SORTED = {IDS: frozenset({"sorted"})}
NEAR = ir.le(COLUMN, ir.const(5))
IN_BAND = ir.and_(same_document(), band(-3, 0))

EQUAL: dict[str, tuple[Term, Term, Promises]] = {
    "a scale of queries meets the one before a softcap": (
        times(50.0, tanh(times(0.02, scores(times(0.5, QUERY), KEY)))),
        times(50.0, tanh(times(0.01, scores()))),
        {},
    ),
    "a scale of linear weights leaves the loop": (
        attend(ir.where(CAUSAL, times(0.25, scores()), ir.const(0.0))),
        times(0.25, attend(ir.where(CAUSAL, scores(), ir.const(0.0)))),
        {},
    ),
    "an exponential takes its factor along": (
        ir.unary["exp"](times(0.5, scores())),
        ir.unary["exp2"](times(0.5 * math.log2(math.e), scores())),
        {},
    ),
    "two bands that touch are one": (
        ir.mask(scores(), ir.or_(band(-4, -2), band(-1, 3))),
        ir.mask(scores(), band(-4, 3)),
        {},
    ),
    "what both bands ask is asked of their union": (
        ir.mask(scores(), ir.or_(IN_BAND, ir.and_(same_document(), band(-1, 5)))),
        ir.mask(scores(), ir.and_(same_document(), band(-3, 5))),
        {},
    ),
    "a bound that always holds is dropped": (
        ir.mask(scores(), ir.and_(CAUSAL, ir.le(COLUMN, ir.length(K.size)))),
        ir.mask(scores(), CAUSAL),
        {},
    ),
    "the same document is a bound where ids are sorted": (
        ir.mask(scores(), ir.and_(same_document(), CAUSAL)),
        ir.mask(scores(), ir.and_(ir.le(ir.gather(IDS, ROW), ir.gather(IDS, COLUMN)), CAUSAL)),
        SORTED,
    ),
    "a bias of −∞ is a mask": (
        ir.mask(ir.add(scores(), ir.add(hidden(NEAR, -math.inf), SLOPE)), CAUSAL),
        ir.mask(ir.add(scores(), ir.pack(SLOPE)), ir.and_(CAUSAL, NEAR)),
        {},
    ),
    "masks with 0 merge": (
        ir.where(CAUSAL, ir.where(NEAR, scores(), ir.const(0.0)), ir.const(0.0)),
        ir.where(ir.and_(CAUSAL, NEAR), scores(), ir.const(0.0)),
        {},
    ),
    "a softmax doesn't need ALiBi's rows": (
        ir.softmax(ir.mask(ALIBI, CAUSAL)),
        ir.softmax(ir.mask(BY_KEY, CAUSAL)),
        {},
    ),
    "the log-sum-exp gets ALiBi's rows back": (
        ir.logsumexp(ir.mask(ALIBI, CAUSAL)),
        ir.add(ir.logsumexp(ir.mask(BY_KEY, CAUSAL)), BY_ROW),
        {},
    ),
    "so does the row maximum": (ir.row_max(ALIBI), ir.add(ir.row_max(BY_KEY), BY_ROW), {}),
    "the entropy doesn't need them": (ir.entropy(ALIBI), ir.entropy(BY_KEY), {}),
    "a finite bias of heads is the same for all keys": (
        ir.softmax(ir.add(scores(), ir.pack(SLOPE))),
        ir.softmax(scores()),
        {SLOPES: frozenset({"finite"})},
    ),
    "differential attention is two attentions": (
        attend(ir.sub(ir.softmax(scores()), ir.mul(SLOPE, ir.softmax(times(2.0, scores()))))),
        ir.add(
            attend(ir.softmax(scores())),
            times(
                -1.0,
                ir.cast(ir.mul(SLOPE, attend(ir.softmax(times(2.0, scores())))), HALF),
            ),
        ),
        {},
    ),
    "a sink's factor leaves the loop": (
        attend(
            ir.mul(
                ir.softmax(scores()),
                ir.unary["sigmoid"](ir.sub(ir.logsumexp(scores()), ir.pack(SLOPE))),
            )
        ),
        ir.cast(
            ir.mul(
                attend(ir.softmax(scores())),
                ir.unary["sigmoid"](ir.sub(ir.logsumexp(scores()), ir.pack(SLOPE))),
            ),
            HALF,
        ),
        {},
    ),
    "the scale of a quantised key becomes one of scores": (
        scores(QUERY, ir.mul(ir.gather(SCALES, COLUMN), KEY)),
        ir.mul(ir.gather(SCALES, COLUMN), scores()),
        {},
    ),
    "the scales of features move from keys to queries": (
        scores(QUERY, ir.mul(GAINS, KEY)),
        scores(ir.mul(GAINS, QUERY), KEY),
        {},
    ),
    "linear attention is a state": (
        attend(times(0.5, scores())),
        times(
            0.5,
            ir.contract(
                QUERY,
                ir.contract(KEY, VALUE, over="k", dtype=DType.float32),
                over="d",
                dtype=HALF,
            ),
        ),
        {},
    ),
    "a low-rank bias is a few more features": (*low_rank(0.125, HALF), {}),
    "and in bfloat16 with any scale": (*low_rank(3.0, DType.bfloat16), {}),
    "offsets of both positions cancel": (
        scores(rotate(QUERY, ir.add(ROW, ir.const(5))), rotate(KEY, ir.add(COLUMN, ir.const(5)))),
        scores(rotate(QUERY, ROW), rotate(KEY, COLUMN)),
        ANGLES,
    ),
    "at one position nothing is left to rotate": (
        scores(rotate(QUERY, ir.const(7)), rotate(KEY, ir.const(7))),
        scores(),
        ANGLES,
    ),
    "opposite rotations undo each other": (
        rotate(rotate(QUERY, ROW), ROW, inverse=True),
        QUERY,
        ANGLES,
    ),
    "and leave a difference": (
        rotate(rotate(QUERY, ROW), ir.add(ROW, ir.const(4)), inverse=True),
        rotate(QUERY, ir.const(4), inverse=True),
        ANGLES,
    ),
    "a norm goes past a rotation": (
        normalise(rotate(QUERY, ROW)),
        rotate(normalise(QUERY), ROW),
        ANGLES,
    ),
    "and takes a pairwise weight along": (
        rotate(normalise(QUERY, GAINS), ROW),
        normalise(rotate(QUERY, ROW), GAINS),
        PAIRWISE,
    ),
    "a norm divides its ε": (
        normalise(times(-2.0, QUERY), GAINS, 0.1),
        normalise(QUERY, times(-1.0, GAINS), 0.025),
        {},
    ),
    "a norm's weight takes factors in": (
        ir.mul(GAINS, times(3.0, normalise(QUERY, GAINS))),
        normalise(QUERY, times(3.0, ir.mul(GAINS, GAINS))),
        {},
    ),
    "two passes are one": (
        ir.stored(rotate(ir.stored(normalise(KEY)), COLUMN)),
        ir.stored(rotate(normalise(KEY), COLUMN)),
        {},
    ),
    "a copy is made of keys in strides": (
        scores(),
        scores(QUERY, ir.stored(KEY)),
        {KEY: frozenset({"strided"})},
    ),
    "a copy need not be made": (scores(QUERY, ir.stored(KEY)), scores(), {}),
}

APART: dict[str, tuple[Term, Term, Promises]] = {
    "bands with a gap": (
        ir.mask(scores(), ir.or_(band(-4, -2), band(0, 3))),
        ir.mask(scores(), band(-4, 3)),
        {},
    ),
    "documents whose ids may fall": (
        ir.mask(scores(), ir.and_(same_document(), CAUSAL)),
        ir.mask(scores(), ir.and_(ir.le(ir.gather(IDS, ROW), ir.gather(IDS, COLUMN)), CAUSAL)),
        {},
    ),
    "documents without an order of positions": (
        ir.mask(scores(), ir.and_(same_document(), ir.le(COLUMN, ir.add(ROW, ir.const(1))))),
        ir.mask(
            scores(),
            ir.and_(
                ir.le(ir.gather(IDS, ROW), ir.gather(IDS, COLUMN)),
                ir.le(COLUMN, ir.add(ROW, ir.const(1))),
            ),
        ),
        SORTED,
    ),
    "a bias that is only large": (
        ir.add(scores(), ir.pack(hidden(NEAR, -1e9))),
        ir.mask(scores(), NEAR),
        {},
    ),
    "a mask below a softcap": (
        tanh(ir.mask(scores(), CAUSAL)),
        ir.mask(tanh(scores()), CAUSAL),
        {},
    ),
    "ALiBi below a softcap": (ir.softmax(tanh(ALIBI)), ir.softmax(tanh(BY_KEY)), {}),
    "a log-sum-exp with and without a shift": (ir.logsumexp(ALIBI), ir.logsumexp(BY_KEY), {}),
    "a bias of heads that may be −∞": (
        ir.softmax(ir.add(scores(), ir.pack(SLOPE))),
        ir.softmax(scores()),
        {},
    ),
    "a low-rank bias beside scores whose scale leaves float16": (*low_rank(3.0, HALF), {}),
    "a norm and tables of any length": (
        normalise(rotate(QUERY, ROW)),
        rotate(normalise(QUERY), ROW),
        {},
    ),
    "a norm whose weight differs within pairs": (
        rotate(normalise(QUERY, GAINS), ROW),
        normalise(rotate(QUERY, ROW), GAINS),
        ANGLES,
    ),
    "rotations that turn the same way": (
        rotate(rotate(QUERY, ROW), ROW),
        rotate(QUERY, ir.mul(ir.const(2), ROW)),
        ANGLES,
    ),
    "linear attention under a mask": (
        attend(ir.where(CAUSAL, scores(), ir.const(0.0))),
        attend(scores()),
        {},
    ),
    "keys of which nothing is promised, and a copy": (scores(), scores(QUERY, ir.stored(KEY)), {}),
}


@pytest.mark.parametrize("name", EQUAL)
def test_rules_find_that(name: str) -> None:
    assert equal(*EQUAL[name])


@pytest.mark.parametrize("name", APART)
def test_rules_keep_apart(name: str) -> None:
    assert not equal(*APART[name])


def test_no_rule_is_in_two_families_and_each_module_has_one() -> None:
    assert [rule for family in FAMILIES for rule in family.RULES] == list(RULES)
    for family in FAMILIES:
        assert {rule.module for rule in family.RULES} == {family.__name__}


# -- the forms of rotary attention ----------------------------------------------------------------

READY = Fact("ready", lambda choice: choice.op.name in ("input", "stored") or None, max)
"""Whether a value lies in memory, so that loads need not prepare it."""


def price(stored_query: float, stored_key: float) -> Callable[[Choice], float]:
    """Costs of passes; what loads have to prepare costs 10 for a query, 30 for a key."""

    def cost(choice: Choice) -> float:
        if choice.op.name == "stored":
            return stored_query if "q" in choice.known.type.names else stored_key
        if choice.op.name == "contract" and choice["over"] == "d":
            loads = zip(choice.operands, (10.0, 30.0), strict=True)
            return sum(each for known, each in loads if "ready" not in known.facts)
        return 0.0

    return cost


def passes(roots: tuple[Term, ...], cost: Callable[[Choice], float]) -> set[str]:
    """Which sides the best form stores."""
    best = Search(roots, RULES, cost, facts=(READY,)).run().extraction.best
    stored = [term for term in walk(*best.terms) if term.op.name == "stored"]
    assert len(stored) == len({term.type.names for term in stored})
    return {"query" if "q" in term.type.names else "key" for term in stored}


ROTARY = attend(ir.softmax(scores(rotate(QUERY, ROW), rotate(normalise(KEY), COLUMN))))


@pytest.mark.parametrize(
    ("costs", "stored"),
    [
        ((20.0, 40.0), set[str]()),
        ((20.0, 25.0), {"key"}),
        ((5.0, 25.0), {"query", "key"}),
        ((5.0, 40.0), {"query"}),
    ],
)
def test_what_is_rotated_beforehand_is_a_matter_of_cost(
    costs: tuple[float, float], stored: set[str]
) -> None:
    assert passes((ROTARY,), price(*costs)) == stored


def test_a_rotation_rides_on_a_pass_that_exists() -> None:
    """Rotated keys for a cache, as a second output, are what attention then reads."""
    cache = ir.stored(rotate(normalise(KEY), COLUMN))
    costs = price(20.0, 40.0)
    assert passes((ROTARY,), costs) == set()
    assert passes((ROTARY, cache), costs) == {"key"}


def test_a_variant_may_ask_for_a_pass_and_not_get_it() -> None:
    asked = attend(ir.softmax(scores(rotate(QUERY, ROW), ir.stored(rotate(KEY, COLUMN)))))
    assert passes((asked,), price(20.0, 40.0)) == set()
    assert passes((asked,), price(20.0, 25.0)) == {"key"}
