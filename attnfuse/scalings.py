"""Scalings of rotary frequencies: so that a model trained on short sequences reads longer ones."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from attnfuse.errors import WrongArgument

if TYPE_CHECKING:
    from torch import Tensor

THETA = 10000.0
"""The base of RoFormer's frequencies, and of many models since."""


class RopeScaling(ABC):
    """How the frequencies of a model change, that it may read longer contexts.

    Subclass it for a scaling that is not here.
    """

    __slots__ = ()

    @abstractmethod
    def frequencies(
        self, rotary_dim: int, theta: float = THETA, *, length: int | None = None
    ) -> Tensor:
        """The frequency of each pair of features, highest first.

        Args:
            rotary_dim: how many features of a head are rotated; an even number.
            theta: the base θ of the unscaled frequencies θ^(−2i / rotary_dim).
            length: of the whole sequence, in tokens; None where it isn't known. Only scalings
                that are called dynamic use it.

        Returns:
            Radians per position: (rotary_dim / 2,) in float64.

        Raises:
            WrongArgument: an odd rotary_dim, or one below 2; a θ of at most 1.
        """

    @property
    def amplitude(self) -> float:
        """What cosines and sines are multiplied by: 1, but for YaRN.

        Scores of rotated features are then multiplied by its square; features beyond rotary_dim
        are not.
        """
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling(RopeScaling):
    """Every frequency is divided by one factor (position interpolation, Chen et al., 2023).

    Hugging Face: ``rope_type="linear"``.

    Attributes:
        factor: how many times longer the context becomes; 1 changes nothing.

    Raises:
        WrongArgument: a factor below 1.
    """

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self, self.factor)

    def frequencies(
        self, rotary_dim: int, theta: float = THETA, *, length: int | None = None
    ) -> Tensor:
        """θ^(−2i / rotary_dim) / factor; see `RopeScaling.frequencies`."""
        return unscaled(rotary_dim, theta) / self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class NtkScaling(RopeScaling):
    """The base grows to θ · factor^(d / (d − 2)), d = rotary_dim (NTK-aware, bloc97, 2023).

    The highest frequency stays 1, the lowest is divided by the factor.

    Attributes:
        factor: how many times longer the context becomes; 1 changes nothing.

    Raises:
        WrongArgument: a factor below 1; in `frequencies`, a rotary_dim below 4.
    """

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self, self.factor)

    def frequencies(
        self, rotary_dim: int, theta: float = THETA, *, length: int | None = None
    ) -> Tensor:
        """Frequencies of the larger base; see `RopeScaling.frequencies`."""
        return _larger_base(self, rotary_dim, theta, self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicNtkScaling(RopeScaling):
    """NTK-aware scaling by as much as the sequence at hand needs (emozilla, 2023).

    It is `NtkScaling` by 1 + factor · (length / original − 1), and nothing changes up to the
    original length; at factor 1 it is thus by length / original. Hugging Face:
    ``rope_type="dynamic"``, where ``original`` is ``max_position_embeddings``.

    All keys of a sequence need the tables of one length. A cache of keys that were rotated for a
    shorter sequence doesn't fit longer ones.

    Attributes:
        factor: how strongly the scaling grows with the length.
        original: the length the model was trained on, in tokens.
        length: of the whole sequence, in tokens; by default, the number of positions that tables
            are made for. Where these are given as a tensor, the length is needed: a shard or
            packed documents don't tell it.

    Raises:
        WrongArgument: a factor below 1, an original or a length below 1; in `frequencies`, a
            rotary_dim below 4, or no length.
    """

    factor: float
    original: int
    length: int | None = None

    def __post_init__(self) -> None:
        _check_factor(self, self.factor)
        _check_original(self, self.original)
        if self.length is not None and self.length < 1:
            refuse(self, "length", self.length, "a number of tokens, at least 1, or None")

    def frequencies(
        self, rotary_dim: int, theta: float = THETA, *, length: int | None = None
    ) -> Tensor:
        """Frequencies of a base for that length; see `RopeScaling.frequencies`."""
        tokens = length if self.length is None else self.length
        if tokens is None:
            allowed = (
                "the length of the whole sequence, DynamicNtkScaling(length=…): positions in a "
                "tensor may be part of it (Hugging Face takes the largest position + 1)"
            )
            refuse(self, "length", None, allowed)
        beyond = max(tokens / self.original - 1, 0.0)
        return _larger_base(self, rotary_dim, theta, 1 + self.factor * beyond)


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling(RopeScaling):
    """Low frequencies are divided by the factor, high ones kept (YaRN, Peng et al., 2023).

    What counts is how often a pair turns full circle within the original length: above
    ``beta_fast`` times its frequency is kept, below ``beta_slow`` times it is divided by the
    factor, and a ramp that is linear in i joins the two. Hugging Face: ``rope_type="yarn"``.

    DeepSeek splits the amplitude: m(mscale) / m(mscale_all_dim) multiplies cosines and sines,
    with m(x) = 0.1 · x · ln(factor) + 1, and its models multiply the scale of scores by
    m(mscale_all_dim)², which is for the caller to do: ``af.scores(…, scale=…)``. (Hugging Face
    ignores either number where the other is 0 or missing; DeepSeek's own code and this don't.)

    Attributes:
        factor: how many times longer the context becomes; 1 changes nothing.
        original: the length the model was trained on, in tokens.
        beta_fast: full turns within the original length; from there on a frequency is kept.
        beta_slow: full turns too; from there down a frequency is divided by the factor.
        attention_factor: the amplitude itself; by default it is computed.
        mscale: of the computed amplitude; 1 gives the paper's 0.1 · ln(factor) + 1.
        mscale_all_dim: of what the amplitude is divided by; 0 divides by 1.
        truncate: whether the ramp's ends are rounded outward to whole pairs, as the authors' code
            does; gpt-oss doesn't.

    Raises:
        WrongArgument: a factor below 1, an original below 1, a beta_slow that is not between 0
            and beta_fast, an attention factor that is not positive, a negative mscale.
    """

    factor: float
    original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float = 1.0
    mscale_all_dim: float = 0.0
    truncate: bool = True

    def __post_init__(self) -> None:
        _check_factor(self, self.factor)
        _check_original(self, self.original)
        _check_ends(self, "beta_slow", self.beta_slow, "beta_fast", self.beta_fast)
        given = self.attention_factor
        if given is not None and not 0 < given < math.inf:
            refuse(self, "attention_factor", given, "a positive number, or None to compute it")
        for argument, value in (("mscale", self.mscale), ("mscale_all_dim", self.mscale_all_dim)):
            if not 0 <= value < math.inf:
                refuse(self, argument, value, "0 or a positive number")

    @property
    def amplitude(self) -> float:
        """What cosines and sines are multiplied by; see `RopeScaling.amplitude`."""
        if self.attention_factor is not None:
            return self.attention_factor
        return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)

    def _magnitude(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0

    def frequencies(
        self, rotary_dim: int, theta: float = THETA, *, length: int | None = None
    ) -> Tensor:
        """Frequencies divided by parts; see `RopeScaling.frequencies`."""
        import torch

        plain = unscaled(rotary_dim, theta)
        low, high = self._ramp(rotary_dim, theta)
        pairs = torch.arange(rotary_dim // 2, dtype=torch.float64)
        # Ends can meet where they are clamped; the ramp is a step then.
        divided = ((pairs - low) / (high - low or 1e-3)).clamp(0.0, 1.0)
        return torch.lerp(plain, plain / self.factor, divided)

    def _ramp(self, rotary_dim: int, theta: float) -> tuple[float, float]:
        """The pairs, not always whole, where the ramp starts and ends."""
        low = self._pair(self.beta_fast, rotary_dim, theta)
        high = self._pair(self.beta_slow, rotary_dim, theta)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        # The last pair is rotary_dim / 2 − 1, but the authors and all that followed clamp to
        # rotary_dim − 1: models are trained so. They clamp each end on one side only, which for
        # extreme lengths turns the ramp around.
        last = rotary_dim - 1.0
        return min(max(low, 0.0), last), min(max(high, 0.0), last)

    def _pair(self, turns: float, rotary_dim: int, theta: float) -> float:
        """The i for which θ^(−2i / rotary_dim) makes so many turns within the original length."""
        return rotary_dim * math.log(self.original / (turns * math.tau)) / (2 * math.log(theta))


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling(RopeScaling):
    """Low frequencies are divided by the factor, high ones kept (Llama 3.1, Meta, 2024).

    What counts is how often a pair turns full circle within the original length: above
    ``high_freq_factor`` times its frequency is kept, below ``low_freq_factor`` times it is
    divided by the factor; between them, what is kept grows linearly with the turns. The defaults
    are those of Llama 3.1. Hugging Face: ``rope_type="llama3"``.

    Attributes:
        factor: what low frequencies are divided by; 1 changes nothing.
        low_freq_factor: full turns within the original length.
        high_freq_factor: full turns too.
        original: the length the model was first trained on, in tokens.

    Raises:
        WrongArgument: a factor below 1, an original below 1, a low_freq_factor that is not
            between 0 and high_freq_factor.
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original: int = 8192

    def __post_init__(self) -> None:
        _check_factor(self, self.factor)
        _check_original(self, self.original)
        low, high = self.low_freq_factor, self.high_freq_factor
        _check_ends(self, "low_freq_factor", low, "high_freq_factor", high)

    def frequencies(
        self, rotary_dim: int, theta: float = THETA, *, length: int | None = None
    ) -> Tensor:
        """Frequencies divided by parts; see `RopeScaling.frequencies`."""
        import torch

        plain = unscaled(rotary_dim, theta)
        turns = plain * (self.original / math.tau)
        width = self.high_freq_factor - self.low_freq_factor
        divided = ((self.high_freq_factor - turns) / width).clamp(0.0, 1.0)
        return torch.lerp(plain, plain / self.factor, divided)


def unscaled(rotary_dim: int, theta: float) -> Tensor:
    """θ^(−2i / rotary_dim) in float64."""
    import torch

    if rotary_dim < 2 or rotary_dim % 2:
        allowed = "an even number of features, at least 2: they turn in pairs"
        refuse("RoPE", "rotary_dim", rotary_dim, allowed)
    if not 1 < theta < math.inf:
        refuse("RoPE", "theta", theta, "a base above 1: each pair turns slower than the last")
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
    return theta**-exponents


def _larger_base(scaling: RopeScaling, rotary_dim: int, theta: float, factor: float) -> Tensor:
    """Frequencies of a base by which the lowest of them is divided by the factor."""
    if rotary_dim < 4:
        allowed = "an even number of features, at least 4: the first pair isn't scaled"
        refuse(scaling, "rotary_dim", rotary_dim, allowed)
    return unscaled(rotary_dim, theta * factor ** (rotary_dim / (rotary_dim - 2)))


def _check_factor(scaling: RopeScaling, factor: float) -> None:
    if not 1 <= factor < math.inf:
        refuse(scaling, "factor", factor, "a number, at least 1: contexts become longer by it")


def _check_original(scaling: RopeScaling, original: int) -> None:
    if not 1 <= original < math.inf:
        allowed = "the number of tokens that the model was trained on, at least 1"
        refuse(scaling, "original", original, allowed)


def _check_ends(scaling: RopeScaling, slow: str, low: float, fast: str, high: float) -> None:
    """Check that the numbers of turns between which frequencies are mixed are in order."""
    if not 0 < low < high < math.inf:
        refuse(scaling, slow, low, f"a number above 0 and below {fast}, which is {high}")


def refuse(where: str | RopeScaling, argument: str, given: object, allowed: str) -> NoReturn:
    """Raise WrongArgument for a function, or for the scaling that ``where`` is."""
    function = where if isinstance(where, str) else type(where).__name__
    raise WrongArgument(function=function, argument=argument, given=given, allowed=allowed)
