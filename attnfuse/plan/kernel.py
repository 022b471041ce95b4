"""The query-major plan: one block owns a tile of queries and walks over its keys.

for each tile of queries
    load the queries, apply their prologue
    for each tile of keys that can be seen
        load the keys, apply their prologue
        scores = expression of the contractions, where visible, else −∞
        online softmax (Milakov & Gimelshein, 2018), accumulate P·V
    normalise, write the outputs as their expressions say
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass

from attnfuse.ir.axes import DType, Size
from attnfuse.ir.layout import Dimension, extent, label
from attnfuse.ir.term import Term, walk
from attnfuse.masks import KeyRange


@dataclass(frozen=True)
class Pattern:
    """What is static about a tensor's place in memory.

    Attributes:
        contiguous: whether its last dimension has stride 1.
        aligned: whether each of its rows starts at a multiple of 16 bytes, as
            wide loads and copy engines need it.
    """

    contiguous: bool = True
    aligned: bool = True


@dataclass(frozen=True)
class Parameter:
    """A tensor that a kernel reads.

    Attributes:
        name: the variant's name for it.
        dtype: its element type.
        dims: its dimensions, in the caller's order.
        pattern: its place in memory.
    """

    name: str
    dtype: DType
    dims: tuple[Dimension, ...]
    pattern: Pattern

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The size of each dimension."""
        return tuple(map(extent, self.dims))

    @property
    def labels(self) -> tuple[str, ...]:
        """What each dimension is called: b, h, q, k, d, e, or 0, 1, … for a captured tensor."""
        return tuple(label(dim).removeprefix(f"{self.name}.") for dim in self.dims)


ATTEND, LSE, ROW_MAX, ENTROPY, FIRST_STEP = range(5)
"""The slots of a result's expression: weights · values; of each row of scores the log-sum-exp,
the maximum, and the entropy of its softmax; then the steps of the epilogue."""

_SLOTS = ("attend", "lse", "row_max", "entropy")


def named(expression: Term) -> str:
    """An expression as text, its slots called by what they hold."""
    return re.sub(r"\$(\d+)", lambda found: _slot_name(int(found[1])), str(expression))


def _slot_name(slot: int) -> str:
    return _SLOTS[slot] if slot < FIRST_STEP else f"step{slot - FIRST_STEP}"


@dataclass(frozen=True)
class Result(Parameter):
    """A tensor that a kernel writes.

    Attributes:
        expression: its value, a closed term over the slots of the launch.
    """

    expression: Term

    def __str__(self) -> str:
        return f"{self.name} = {named(self.expression)}"

    @property
    def has_features(self) -> bool:
        """Whether it has a row of features for each position, rather than one number."""
        return self.labels[-1] in ("d", "e")


@dataclass(frozen=True)
class Load:
    """A tile of an input and what is done to it on the way in.

    Attributes:
        parameter: the name of the input.
        steps: the prologue, terms whose first operand is the step before, in order.
    """

    parameter: str
    steps: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return " → ".join([self.parameter, *(step.op.name for step in self.steps)])


@dataclass(frozen=True)
class Schedule:
    """How a plan is carried out.

    Attributes:
        name: the skeleton that it fills.
        block_q: queries in a tile.
        block_k: keys in a tile.
        stages: key and value tiles in flight.
        threads: threads of a block.
        blocks: how many blocks share all the work; 0 where each tile of queries has its own.
    """

    name: str
    block_q: int
    block_k: int
    stages: int
    threads: int
    blocks: int = 0

    def __str__(self) -> str:
        if not self.block_k:
            return f"{self.block_q} rows, {self.threads} threads"
        tile = f"{self.block_q}×{self.block_k} tiles"
        return f"{self.name}, {tile}, {self.stages} stages, {self.threads} threads"


@dataclass(frozen=True)
class Plan(ABC):
    """What all launches have in common: a block owns a tile of rows of one head.

    Attributes:
        name: the variant's name.
        digest: the digest of the program that it computes.
        parameters: what it reads.
        results: what it writes, in the order of the program's outputs.
        schedule: how to carry it out.
    """

    name: str
    digest: str
    parameters: tuple[Parameter, ...]
    results: tuple[Result, ...]
    schedule: Schedule

    @property
    def rows(self) -> str:
        """The label of the positions that blocks divide among them."""
        return self.results[0].labels[-2 if self.results[0].has_features else -1]

    @property
    @abstractmethod
    def like(self) -> str:
        """The parameter whose order of dimensions in memory the results take."""

    @property
    def attended(self) -> DType:
        """The element type of queries, keys and values."""
        return self.parameter(self.like).dtype

    def parameter(self, name: str) -> Parameter:
        """The parameter called ``name``."""
        return next(each for each in self.parameters if each.name == name)

    def width(self, load: Load) -> int:
        """The number of features of a load."""
        size = self.parameter(load.parameter).sizes[-1]
        assert isinstance(size, int)
        return size


@dataclass(frozen=True)
class Pass(Plan):
    """One launch that prepares queries, keys or values: load, prologue, store.

    Attributes:
        load: what is loaded, and done to it.
    """

    load: Load

    @property
    def like(self) -> str:
        """The parameter whose order of dimensions in memory the results take."""
        return self.load.parameter

    def __str__(self) -> str:
        lines = [f"{self.name}: pass, {self.schedule}"]
        lines += [f"  writes   {result.name} = {self.load}" for result in self.results]
        return "\n".join(lines)


@dataclass(frozen=True)
class QueryMajor(Plan):
    """One launch of query-major attention.

    Attributes:
        streams: the query and key sides of each contraction over features.
        score: the score as a closed term in which slot i is contraction i.
        normalised: whether weights are the softmax of the scores, or the scores themselves.
        visible: the closed predicate outside of which nothing has weight.
        keys: the keys that a tile of queries has to visit.
        value: the value side of the contraction over keys.
        steps: what the outputs need and that is not elementwise (norms, rotations): terms
            whose first operand is closed over earlier slots, each the value of the next slot.
    """

    streams: tuple[tuple[Load, Load], ...]
    score: Term
    normalised: bool
    visible: Term
    keys: KeyRange
    value: Load
    steps: tuple[Term, ...]

    @property
    def like(self) -> str:
        """The parameter whose order of dimensions in memory the results take."""
        return self.streams[0][0].parameter

    def reads(self, slot: int) -> bool:
        """Whether a step or a result reads this slot."""
        expressions = (*self.steps, *(result.expression for result in self.results))
        leaves = (leaf for leaf in walk(*expressions) if leaf.op.name == "slot")
        return any(leaf["position"] == slot for leaf in leaves)

    def __str__(self) -> str:
        lines = [f"{self.name}: query-major, {self.schedule}"]
        for place, (query, key) in enumerate(self.streams):
            lines.append(f"  ${place} = ({query}) · ({key})ᵀ")
        lines.append(f"  {'score   ' if self.normalised else 'weight  '} {self.score}")
        lines.append(f"  visible  {self.visible}")
        lines.append(f"  visits   {self.keys}")
        lines.append(f"  value    {self.value}")
        lines += [f"  step{n}    {named(step)}" for n, step in enumerate(self.steps)]
        lines += [f"  writes   {result}, {result.dtype}" for result in self.results]
        return "\n".join(lines)
