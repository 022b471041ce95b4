"""Replays derivations: evaluates every whole term on one random sample of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from attnfuse.egraph.derivation import Derivation
from attnfuse.egraph.facts import Promises
from attnfuse.ir.axes import DType, Size, Symbol
from attnfuse.ir.evaluate import Evaluation
from attnfuse.ir.term import Term, walk
from attnfuse.testing.checker import close

if TYPE_CHECKING:
    from torch import Tensor

_ROWS = 64


@dataclass(frozen=True)
class Sample:
    """Small inputs for a term: tensors by input, numbers by symbol."""

    tensors: Mapping[Term, Tensor]
    sizes: Mapping[Symbol, int]

    def evaluation(self, *, exact: bool = True) -> Evaluation:
        """An evaluation with these inputs, which computes what terms share only once."""
        device = torch.device("cpu")
        return Evaluation(self.tensors, self.sizes, exact=exact, device=device)


@dataclass(frozen=True)
class Replay:
    """What became of replaying a derivation.

    Attributes:
        derivation: the derivation.
        errors: for each step the largest difference from the start, relative to its scale.
        wrong: the first step after which the value is another one, or None.
    """

    derivation: Derivation
    errors: tuple[float, ...]
    wrong: int | None

    def __str__(self) -> str:
        lines = [f"  {self.derivation.start}"]
        for place, step in enumerate(self.derivation.steps):
            verdict = "  WRONG" if place == self.wrong else ""
            lines += [f"= {step}  error {self.errors[place]:.1e}{verdict}", f"  {step.term}"]
        return "\n".join(lines)


def sample(roots: Sequence[Term], promises: Promises | None = None, seed: int = 0) -> Sample:
    """Random inputs for terms, keeping what is promised of them.

    Lengths are small and differ from each other. Integers are 0, 1 or 2, in ascending order
    along the last dimension.
    """
    generator = torch.Generator().manual_seed(seed)
    symbols = sorted({each for term in walk(*roots) for each in _symbols(term)})
    sizes = {symbol: 3 + 2 * n for n, symbol in enumerate(symbols)}
    promised = promises or {}
    angles = {input_: "cos" for input_ in promised if "angles" in promised[input_]}
    for term in walk(*roots):
        if term.op.name == "rotate" and term.operands[2] in angles:
            angles[term.operands[2]] = "sin"
    tensors: dict[Term, Tensor] = {}
    for term in walk(*roots):
        if term.op.name == "input":
            shape = [_count(axis.size, sizes) for axis in term.type.axes]
            if term in angles:
                shape[0] = _ROWS
            tensors[term] = _tensor(term, shape, generator, angles, promised)
    return Sample(tensors, sizes)


def _symbols(term: Term) -> list[Symbol]:
    found = [axis.size for axis in term.type.axes if isinstance(axis.size, Symbol)]
    found += [value for value in term.attributes if isinstance(value, Symbol)]
    for value in term.attributes:
        if isinstance(value, Term):
            found += [symbol for inner in walk(value) for symbol in _symbols(inner)]
    return found


def _count(size: Size, sizes: Mapping[Symbol, int]) -> int:
    return size if isinstance(size, int) else sizes[size]


def _tensor(
    term: Term,
    shape: list[int],
    generator: torch.Generator,
    angles: Mapping[Term, str],
    promises: Promises,
) -> Tensor:
    if term in angles:
        rows = torch.arange(shape[0], dtype=torch.float64)[:, None]
        turned = rows * 0.7 ** torch.arange(1.0, shape[1] + 1.0, dtype=torch.float64)
        return turned.cos() if angles[term] == "cos" else turned.sin()
    dtype = term.type.dtype
    if not dtype.is_float:
        top = 2 if dtype is DType.bool else 3
        values = torch.randint(0, top, shape, generator=generator)
        return values.sort(-1).values.to(getattr(torch, dtype.value)) if shape else values
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    for promise in promises.get(term, ()):
        half = values[..., : shape[-1] // 2] if shape else values
        if promise == "pairwise half":
            values = torch.cat((half, half), -1)
        elif promise == "pairwise interleaved":
            values = half.repeat_interleave(2, -1)
    return values


def replay(
    derivation: Derivation,
    promises: Promises | None = None,
    *,
    given: Sample | None = None,
    tolerance: float = 1e-9,
) -> Replay:
    """Evaluate each term of a derivation in float64, and compare it with the first.

    Args:
        derivation: what to replay.
        promises: what its rules could rely on.
        given: the inputs; by default a random sample.
        tolerance: the largest difference that counts as equal, relative to the scale.
    """
    chain = [derivation.start, *(step.term for step in derivation.steps)]
    evaluation = (given or sample(chain, promises)).evaluation()
    first = evaluation.value(derivation.start)
    values = [evaluation.value(step.term) for step in derivation.steps]
    equal = [close(first, value, tolerance) for value in values]
    errors = tuple(_distance(first, value) for value in values)
    return Replay(derivation, errors, equal.index(False) if False in equal else None)


def _distance(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape or not one.numel():
        return float("inf") if one.shape != other.shape else 0.0
    gaps = (one.double() - other.double()).abs().masked_fill(one == other, 0.0)
    gaps = gaps.masked_fill(one.isnan() & other.isnan(), 0.0)
    scale = 1.0 + float(one.double().nan_to_num(0.0, 0.0, 0.0).abs().amax())
    return float(gaps.nan_to_num(torch.inf, torch.inf).amax()) / scale
