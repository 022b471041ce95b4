"""Random examples of a rule's left side, and of whole terms' inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from typing import Any

from attnfuse.egraph.pattern import Kind, Node, Number, Pattern, Var
from attnfuse.errors import AttnFuseError
from attnfuse.ir import build as ir
from attnfuse.ir.attention import STATISTICS
from attnfuse.ir.axes import DType
from attnfuse.ir.elementwise import UNARY
from attnfuse.ir.normal import construct
from attnfuse.ir.op import Op
from attnfuse.ir.ops import OPS
from attnfuse.ir.term import Attribute, Term, make
from attnfuse.testing.worlds import AXES, NUMBERS, World

Shape = tuple[str, tuple[str, ...], tuple[tuple[str, Attribute], ...]]
"""A way to use an op: the sort of its result, those of its operands, attributes that go with it."""

_ANY = tuple(AXES)
_FLOATS = tuple(sort for sort in AXES if sort != "predicate")


def _each(sorts: tuple[str, ...], *operands: str) -> list[Shape]:
    """One way for each sort, which stands wherever the operands say ``same``."""
    return [
        (sort, tuple(sort if each == "same" else each for each in operands), ()) for sort in sorts
    ]


def _contract(result: str, left: str, right: str, over: str) -> Shape:
    return (result, (left, right), (("over", over),))


SHAPES: dict[str, list[Shape]] = {
    "contract": [
        _contract("scores", "query", "key", "d"),
        _contract("output", "scores", "value", "k"),
        _contract("state", "key", "value", "k"),
        _contract("output", "query", "state", "d"),
        _contract("row", "query", "query", "d"),
    ],
    "mask": [("scores", ("scores", "predicate"), ())],
    "softmax": [("scores", ("scores",), ())],
    **{name: [("row", ("scores",), ())] for name in STATISTICS},
    "rotate": [
        ("query", ("query", "cos", "sin", "q positions"), ()),
        ("key", ("key", "cos", "sin", "k positions"), ()),
        ("value", ("value", "cos", "sin", "k positions"), ()),
        ("output", ("output", "cos", "sin", "q positions"), ()),
    ],
    "normalise": [
        (sort, (sort, f"{sort} weight"), ()) for sort in ("query", "key", "value", "output")
    ],
    "concat": [(sort, (sort, sort), (("over", "d"),)) for sort in ("query", "key")],
    "stored": _each(_FLOATS, "same"),
    "where": _each(("scores",), "predicate", "same", "same"),
    "not": _each(("predicate",), "same"),
    "and": _each(("predicate",), "same"),
    "or": _each(("predicate",), "same"),
    "le": [("predicate", ("scores", "scores"), ())],
    "lt": [("predicate", ("scores", "scores"), ())],
    "eq": [("predicate", ("scores", "scores"), ())],
    "div": [*_each(_FLOATS, "same", "same"), ("query", ("query", "row"), ())],
    **{name: _each(_FLOATS, "same") for name in (*UNARY, "abs")},
    **{name: _each(_FLOATS, "same") for name in ("add", "mul", "minimum", "maximum", "cast")},
}
"""How each op is used. An op of any number of operands has the last sort as often as needed."""

ATTRIBUTES: dict[str, tuple[Attribute, ...]] = {
    "pairing": ("half", "interleaved"),
    "inverse": (False, True),
    "kind": ("rms", "l2"),
    "eps": (1e-6, 0.1),
    "value": NUMBERS,
}
"""What an attribute may be that a rule leaves open, by its name."""


class NoFit(Exception):
    """This way of making an example leads nowhere; another may do."""


class Example:
    """One example of a pattern in a world.

    Args:
        world: where its leaves come from.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._given: dict[str, tuple[str, Any]] = {}
        self._rests: dict[str, tuple[str, tuple[Term, ...]]] = {}
        self._factors = False  # whether what is made is what others are multiplied by

    def root(self, pattern: Node) -> Term:
        """A term that the pattern should match.

        Raises:
            NoFit: when the choices made on the way don't fit together.
        """
        shapes = self._shapes(pattern)
        return self._node(pattern, self._choose(shapes)) if shapes else _fail()

    def _choose(self, shapes: list[Shape]) -> Shape:
        return self.world.random.choice(shapes)

    def _shapes(self, pattern: Node, sort: str | None = None) -> list[Shape]:
        row, fixed = OPS[pattern.op], dict(pattern.attributes)
        return [
            shape
            for shape in SHAPES.get(pattern.op, [])
            if sort in (None, shape[0])
            and (row.arity is None or len(shape[1]) == len(pattern.operands))
            and all(isinstance(fixed.get(n, v), Var) or fixed.get(n, v) == v for n, v in shape[2])
        ]

    def _term(self, pattern: Pattern, sort: str) -> Term:
        if isinstance(pattern, Number):
            return ir.const(pattern.value)
        if isinstance(pattern, Node):
            shapes = self._shapes(pattern, sort)
            return self._node(pattern, self._choose(shapes)) if shapes else _fail()
        known = self._given.setdefault(pattern.name, (sort, None))
        if known[0] != sort:
            raise NoFit
        if known[1] is None:
            self._given[pattern.name] = (sort, self._leaf(pattern, sort))
        value = self._given[pattern.name][1]
        assert isinstance(value, Term)
        return value

    def _node(self, pattern: Node, shape: Shape) -> Term:
        row = OPS[pattern.op]
        result, sorts, fixed = shape
        operands: list[Term] = []
        outside, self._factors = self._factors, row.name == "mul"
        for place, each in enumerate(pattern.operands):
            sort = sorts[min(place, len(sorts) - 1)]
            if isinstance(each, Var) and each.kind is Kind.rest:
                operands += self._rest(each.name, sort, len(operands))
            else:
                operands.append(self._term(each, sort))
        self._factors = outside
        attributes = [
            self._attribute(pattern, name, result, dict(fixed)) for name in row.attributes
        ]
        return _made(row, operands, attributes)

    def _rest(self, name: str, sort: str, before: int) -> tuple[Term, ...]:
        if name not in self._rests:
            count = self.world.random.choice((1, 1, 2) if before < 2 else (0, 0, 1))
            self._rests[name] = (sort, tuple(self._value(sort, NUMBERS) for _ in range(count)))
        known, leaves = self._rests[name]
        if known != sort:
            raise NoFit
        return leaves

    def _attribute(
        self, pattern: Node, name: str, sort: str, fixed: dict[str, Attribute]
    ) -> Attribute:
        given = dict(pattern.attributes).get(name)
        if given is not None and not isinstance(given, Var):
            return given
        key = given.name if given is not None else ""
        if key in self._given:
            value: Attribute = self._given[key][1]
        elif name in fixed:
            value = fixed[name]
        elif name == "dtype":
            value = self._dtype(sort)
        else:
            value = self.world.random.choice(ATTRIBUTES[name])
        if fixed.get(name, value) != value:
            raise NoFit
        if key:
            self._given[key] = ("attribute", value)
        return value

    def _dtype(self, sort: str) -> DType:
        wide = sort in ("scores", "state", "row") and self.world.chance(0.7)
        return DType.float32 if wide else self.world.dtype

    def _leaf(self, pattern: Var, sort: str) -> Term:
        if pattern.kind is Kind.number:
            return ir.const(self.world.random.choice(NUMBERS))
        if pattern.kind is Kind.closed and sort in AXES:
            return self.world.closed(sort, finite=self._factors)
        # what is computed is never +∞: AttnFuse asks that of its inputs
        return self._value(sort, tuple(number for number in NUMBERS if number != math.inf))

    def _value(self, sort: str, numbers: tuple[float, ...]) -> Term:
        """A term of a sort: mostly a leaf, but also what rules tend to go wrong with."""
        world = self.world
        if sort in ("cos", "sin"):
            return world.tables()[sort == "sin"]
        if sort.endswith(" positions"):
            return world.positions(sort[0])
        if sort.endswith(" weight"):
            weights = (ir.const(1.0), world.closed(sort.removesuffix(" weight")))
            return world.random.choice(weights)
        if sort == "predicate":
            return world.closed(sort) if world.chance(0.85) else _comparison(world)
        if world.chance(0.1):
            return ir.const(world.random.choice(numbers))
        if world.chance(0.25):
            return world.closed(sort, finite=self._factors)
        narrow = world.random.choice(AXES[sort]) if world.chance(0.1) else None
        leaf = world.input("query", [world.axes[name] for name in AXES[sort] if name != narrow])
        if world.chance(0.3):
            world.promise(leaf, "strided")
        if sort == "scores" and narrow is None and world.chance(0.25):
            return ir.mask(leaf, world.predicate())
        return leaf


def _fail() -> Term:
    raise NoFit


def _comparison(world: World) -> Term:
    """A predicate that depends on something computed."""
    axes = [world.axes[name] for name in AXES["predicate"]]
    return ir.lt(world.input("query", axes), ir.const(0.3))


def _made(row: Op, operands: list[Term], attributes: list[Any]) -> Term:
    """In normal form, but for what the pattern wants to be nested: rules that flatten see that."""
    nested = row.flat and any(operand.op is row for operand in operands)
    return make(row, operands, attributes) if nested else construct(row, operands, attributes)


def examples(
    pattern: Node, dtypes: tuple[DType, ...], seed: int = 0
) -> Iterator[tuple[Term, World] | None]:
    """Examples of a pattern without end, in worlds of each type in turn; None for a failure."""
    for number in count(seed * 1_000_003):
        world = World(number, dtypes[number % len(dtypes)])
        try:
            yield Example(world).root(pattern), world
        except (NoFit, AttnFuseError):  # or the op itself says that its operands don't fit
            yield None
