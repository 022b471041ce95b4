"""Random surroundings for examples of rules: sizes, leaves of every kind, and their tensors.

Sorts say what role a value plays: a rule about masks needs scores, not keys.
Leaves that stand for something computed are inputs of the role "query",
whatever their axes, since rules must not look into them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

import torch

from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis, DType, Size, Symbol
from attnfuse.ir.term import Term

if TYPE_CHECKING:
    from torch import Tensor

AXES = {
    "query": ("b", "hk", "g", "q", "d"),
    "key": ("b", "hk", "k", "d"),
    "value": ("b", "hk", "k", "e"),
    "scores": ("b", "hk", "g", "q", "k"),
    "output": ("b", "hk", "g", "q", "e"),
    "state": ("b", "hk", "d", "e"),
    "row": ("b", "hk", "g", "q"),
    "predicate": ("b", "hk", "g", "q", "k"),
}
"""The sorts of computed values, and the axes of each."""

ROWS = 64
"""Rows of tables of cosines and sines: more than any position here."""

NUMBERS = (0.5, 2.0, -1.5, 0.0, 0.125, 3.0, -0.25, 1.0, math.inf, -math.inf, 1e-30, 1e4)
"""What a constant may be."""


class World:
    """One example's surroundings. Everything in it comes from one seed.

    Attributes:
        random: the source of all choices.
        dtype: the element type of its floats.
        tensors: the tensor of each input that was made.
        sizes: the number behind each symbol.
        promises: what holds for each input, as rules may ask.
    """

    def __init__(self, seed: int, dtype: DType) -> None:
        self.random = Random(seed)
        self.dtype = dtype
        self.tensors: dict[Term, Tensor] = {}
        self.sizes: dict[Symbol, int] = {}
        self.promises: dict[Term, frozenset[str]] = {}
        self._torch = torch.Generator().manual_seed(seed)
        self._tables: tuple[Term, Term] | None = None
        queries, keys = self.random.sample(range(1, 8), 2)
        counts = {"b": self.random.choice((1, 2)), "hk": self.random.choice((1, 2))}
        counts |= {"g": self.random.choice((1, 2, 3)), "q": queries, "k": keys}
        counts |= {"d": self.random.choice((4, 8)), "e": 3}
        self.axes = {name: Axis(name, self._size(name, n)) for name, n in counts.items()}

    def _size(self, name: str, count: int) -> Size:
        """Lengths are symbols, or numbers now and then."""
        if name not in ("q", "k") or self.random.random() < 0.3:
            return count
        symbol = Symbol(f"{name}_len")
        self.sizes[symbol] = count
        return symbol

    def chance(self, probability: float) -> bool:
        """Whether something of this probability happens."""
        return self.random.random() < probability

    # -- inputs ------------------------------------------------------------------

    def input(self, role: str, axes: Sequence[Axis], values: Tensor | None = None) -> Term:
        """A new input, by default of normally distributed floats."""
        shape = [self.count(axis.size) for axis in axes]
        if values is None:
            values = torch.randn(shape, generator=self._torch)
            values = values.to(getattr(torch, self.dtype))
        name = f"x{len(self.tensors)}"
        named = [Axis(f"{name}.{n}", a.size) for n, a in enumerate(axes)]
        dtype = DType(str(values.dtype).removeprefix("torch."))
        term = ir.input_(name, role, dtype, named if role == "captured" else axes)
        self.tensors[term] = values
        return term

    def count(self, size: Size) -> int:
        """The number behind a size."""
        return size if isinstance(size, int) else self.sizes[size]

    def captured(self, *shape: int, values: Tensor | None = None) -> Term:
        """A captured tensor."""
        axes = [Axis(str(n), size) for n, size in enumerate(shape)]
        return self.input("captured", axes, values)

    def whole(self, low: int, high: int, *shape: int) -> Term:
        """A captured tensor of integers, low ≤ i ≤ high."""
        values = torch.randint(low, high + 1, shape, generator=self._torch, dtype=torch.int32)
        return self.captured(*shape, values=values)

    def promise(self, term: Term, *promises: str) -> Term:
        """The term, of which something is promised."""
        self.promises[term] = self.promises.get(term, frozenset()) | set(promises)
        return term

    # -- indices -----------------------------------------------------------------

    def index(self, name: str) -> Term:
        """A position; ``h`` is the query head."""
        axes = [self.axes[each] for each in (("hk", "g") if name == "h" else (name,))]
        return ir.index(name, axes)

    def heads(self) -> int:
        """The number of query heads."""
        return self.count(self.axes["hk"].size) * self.count(self.axes["g"].size)

    def per_head(self) -> Term:
        """A captured number for each head, now and then promised to be finite."""
        table = self.captured(self.heads())
        if self.chance(0.5):
            self.promise(table, "finite")
        return ir.gather(table, self.index("h"))

    def offset(self) -> Term:
        """An integer that does not depend on positions: a number, a length, a captured one."""
        batch = self.count(self.axes["b"].size)
        natural = self.promise(self.whole(0, 9, batch), "natural")
        choices: list[Callable[[], Term]] = [
            lambda: ir.const(self.random.randint(-4, 6)),
            lambda: ir.length(self.axes["k"].size),
            lambda: ir.sub(ir.length(self.axes["k"].size), ir.length(self.axes["q"].size)),
            lambda: ir.gather(natural, self.index("b")),
            lambda: ir.gather(self.whole(-3, 6, batch), self.index("b")),
            lambda: ir.minimum(ir.gather(self.whole(-3, 6, batch), self.index("b")), ir.const(2)),
        ]
        return self.random.choice(choices)()

    # -- closed values -----------------------------------------------------------

    def closed(self, sort: str, *, finite: bool = False) -> Term:
        """A value of indices, lengths and captured tensors that fits where a sort is wanted.

        What others are multiplied by is ``finite``: AttnFuse asks that of its inputs.
        """
        if sort == "predicate":
            return ir.pack(self.predicate())
        if sort in ("query", "key", "value", "output"):
            at = self.index(AXES[sort][-2])
            by_position = self.chance(0.2)
            gain = ir.gather(self.captured(8), at) if by_position else self.gain(AXES[sort][-1])
            return ir.pack(gain)
        names = [name for name in ("q", "k") if name in AXES[sort]]
        return ir.pack(self.bias(names, finite=finite) if names else self.per_head())

    def gain(self, feature: str) -> Term:
        """A captured number for each feature, pairwise equal or not, and promised so or not."""
        size = self.count(self.axes[feature].size)
        values = torch.randn(size, generator=self._torch).to(getattr(torch, self.dtype))
        pairing = self.random.choice(("half", "interleaved", "none"))
        if pairing == "half" and feature == "d":
            values = values[: size // 2].repeat(2)
        elif pairing == "interleaved" and feature == "d":
            values = values[: size // 2].repeat_interleave(2)
        table = self.captured(size, values=values)
        if pairing != "none" and feature == "d" and self.chance(0.8):
            self.promise(table, f"pairwise {pairing}")
        return ir.gather(table, self.index(feature))

    def bias(self, names: Sequence[str], *, finite: bool = False) -> Term:
        """A bias of positions and heads: dense, by distance, linear, or −∞ in places."""
        one = self.index(self.random.choice(names))
        distance = ir.sub(self.index("k"), self.index("q")) if len(names) == 2 else one
        centred = ir.add(distance, ir.const(3))
        dense = self.captured(8)
        torch_inf = torch.tensor([0.0, -math.inf, 0.5]).to(getattr(torch, self.dtype))
        choices: list[Callable[[], Term]] = [
            lambda: ir.gather(dense, one),
            lambda: ir.gather(self.captured(self.heads(), 8), self.index("h"), centred),
            lambda: ir.mul(self.per_head(), ir.cast(distance, DType.float32)),
            lambda: ir.mul(self.per_head(), ir.cast(one, DType.float32)),
            lambda: self.per_head(),
        ]
        if not finite:
            choices += [
                lambda: ir.gather(self.captured(3, values=torch_inf), ir.mod(one, ir.const(3))),
                *[lambda: self._additive_mask(ir.gather(dense, one))] * 2,
            ]
        return self.random.choice(choices)()

    def _additive_mask(self, bias: Term) -> Term:
        """A mask that is added, with or without a bias; −∞ where it hides, or only −10⁴."""
        hidden = ir.const(self.random.choice((-math.inf, -math.inf, -1e4)))
        shown = self.random.choice((ir.const(0.0), bias))
        if self.chance(0.3):
            return ir.where(self.predicate(), hidden, shown)
        added = ir.where(self.predicate(), shown, hidden)
        return ir.add(added, self.per_head()) if self.chance(0.3) else added

    def predicate(self) -> Term:
        """A predicate of positions: bands, documents, prefixes, and what can be made of these."""
        if self.chance(0.2):
            return self.random.choice((self._bands, self._causal_document))()
        made = self._simple_predicate()
        if self.chance(0.4):
            join = self.random.choice((ir.and_, ir.or_))
            made = join(made, self._simple_predicate())
        return ir.not_(made) if self.chance(0.1) else made

    def _simple_predicate(self) -> Term:
        q, k = self.index("q"), self.index("k")
        batch = self.count(self.axes["b"].size)
        wide = self.random.choice((0, 1, 2, 9))
        choices: list[Callable[[], Term]] = [
            lambda: ir.le(k, ir.add(q, ir.const(self.random.choice((-1, 0, 1, 2, 9))))),
            lambda: ir.le(q, ir.add(k, ir.const(wide))),
            lambda: ir.le(k, ir.add(q, self.offset())),
            lambda: ir.le(ir.const(0), self.offset()),
            lambda: ir.lt(k, ir.gather(self.whole(0, 7, batch), self.index("b"))),
            lambda: ir.lt(k, ir.length(self.axes["k"].size)),
            lambda: ir.le(ir.const(-wide), ir.sub(k, q)),
            lambda: self._same_document(batch),
            self._band,
        ]
        return self.random.choice(choices)()

    def _bands(self) -> Term:
        return ir.or_(self._band(), self._band())

    def _band(self) -> Term:
        """Some diagonals: low ≤ k − q ≤ high."""
        low = self.random.randint(-4, 3)
        high = low + self.random.randint(0, 3)
        distance = ir.sub(self.index("k"), self.index("q"))
        return ir.and_(ir.le(ir.const(low), distance), ir.le(distance, ir.const(high)))

    def _causal_document(self) -> Term:
        """The same document and, nearly, no later key."""
        batch = self.count(self.axes["b"].size)
        late = ir.add(self.index("q"), ir.const(self.random.choice((-1, 0, 0, 1))))
        return ir.and_(self._same_document(batch), ir.le(self.index("k"), late))

    def _same_document(self, batch: int) -> Term:
        """Of documents one after another, as may be promised; or of any."""
        documents = self.whole(0, 1, batch, 8)
        if self.chance(0.5):
            self.tensors[documents].copy_(self.tensors[documents].sort(-1).values)
            if self.chance(0.8):
                self.promise(documents, "sorted")
        b = self.index("b")
        return ir.eq(
            ir.gather(documents, b, self.index("q")), ir.gather(documents, b, self.index("k"))
        )

    # -- rotations ---------------------------------------------------------------

    def tables(self) -> tuple[Term, Term]:
        """Cosines and sines, one pair a world.

        Of angles that are linear in the row, or any others; or cosines and sines that are scaled.
        """
        if self._tables is None:
            columns = self.random.choice((1, self.count(self.axes["d"].size) // 2))
            shape = (ROWS, columns)
            rows = torch.arange(ROWS, dtype=torch.float64)
            angles = rows[:, None] * 0.7 ** torch.arange(1.0, columns + 1.0).double()
            kind = self.random.choice(("angles", "angles", "angles", "unit", "scaled"))
            if kind != "angles":
                angles = torch.rand(shape, generator=self._torch, dtype=torch.float64) * 6
            length = 1.25 if kind == "scaled" else 1.0
            # wide enough that rounding the tables is not what makes two sides differ
            pair = (length * angles.cos(), length * angles.sin())
            cos, sin = (self.captured(*shape, values=values) for values in pair)
            if kind != "scaled" and self.chance(0.8):
                self.promise(cos, kind)
                self.promise(sin, kind)
            self._tables = (cos, sin)
        return self._tables

    def positions(self, name: str) -> Term:
        """Rows of the tables for the positions along an axis."""
        position = self.index(name)
        for _ in range(self.random.choice((0, 1, 2))):
            position = ir.add(position, self.offset())
        return ir.pack(position)
