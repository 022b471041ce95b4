"""Rotation tables at any positions, and the scalings of their frequencies.

The formulas are written here once more as plain Python over single numbers, from the papers and
from what Hugging Face's documentation and code say that its ``rope_type`` values mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numbers_of import numbers
from torch import Tensor

import attnfuse as af
from attnfuse.errors import WrongArgument

THETAS = (1e4, 1.5e5, 5e5, 1e6)
LENGTHS = (2048, 4096, 8192, 131072)

Scale = Callable[[float], af.RopeScaling]
SCALES: dict[str, Scale] = {
    "linear": lambda factor: af.LinearScaling(factor=factor),
    "ntk": lambda factor: af.NtkScaling(factor=factor),
    "dynamic": lambda factor: af.DynamicNtkScaling(factor=factor, original=100, length=250),
    "yarn": lambda factor: af.YarnScaling(factor=factor, original=4096),
    "whole yarn": lambda factor: af.YarnScaling(factor=factor, original=4096, truncate=False),
    "llama3": lambda factor: af.Llama3Scaling(factor=factor),
}
STATIC = [name for name in SCALES if name != "dynamic"]

dims = st.integers(2, 128).map(lambda pairs: 2 * pairs)
factors = st.floats(1.0, 64.0)
thetas = st.sampled_from(THETAS)
scales = st.sampled_from(sorted(SCALES))


def plain(dim: int, theta: float) -> list[float]:
    return [1.0 / theta ** (2 * i / dim) for i in range(dim // 2)]


def ntk(dim: int, theta: float, factor: float) -> list[float]:
    return plain(dim, theta * factor ** (dim / (dim - 2)))


def yarn(dim: int, theta: float, scaling: af.YarnScaling) -> list[float]:
    def pair(turns: float) -> float:
        return dim * math.log(scaling.original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    found: list[float] = []
    for i, frequency in enumerate(plain(dim, theta)):
        kept = 1 - min(max((i - low) / (high - low), 0.0), 1.0)
        found.append(frequency / scaling.factor * (1 - kept) + frequency * kept)
    return found


def llama3(dim: int, theta: float, scaling: af.Llama3Scaling) -> list[float]:
    original, factor = scaling.original, scaling.factor
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    found: list[float] = []
    for frequency in plain(dim, theta):
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            found.append(frequency)
        elif wavelength > original / low:
            found.append(frequency / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            found.append((1 - smooth) * frequency / factor + smooth * frequency)
    return found


def same(got: Tensor, wanted: list[float]) -> None:
    assert got.dtype is torch.float64
    assert numbers(got) == pytest.approx(wanted, rel=1e-12)


# -- frequencies ---------------------------------------------------------------


@given(dims, thetas, factors)
def test_linear_divides_every_frequency(dim: int, theta: float, factor: float) -> None:
    got = af.LinearScaling(factor=factor).frequencies(dim, theta)
    same(got, [frequency / factor for frequency in plain(dim, theta)])


@given(dims, thetas, factors)
def test_ntk_keeps_the_highest_and_divides_the_lowest(
    dim: int, theta: float, factor: float
) -> None:
    got = af.NtkScaling(factor=factor).frequencies(dim, theta)
    same(got, ntk(dim, theta, factor))
    assert got[0] == 1
    assert got[-1].item() == pytest.approx(plain(dim, theta)[-1] / factor, rel=1e-12)


@given(dims, thetas, factors, st.integers(1, 40000))
def test_dynamic_ntk_follows_the_length(dim: int, theta: float, factor: float, length: int) -> None:
    got = af.DynamicNtkScaling(factor=factor, original=2048).frequencies(dim, theta, length=length)
    grown = factor * max(length, 2048) / 2048 - (factor - 1)
    same(got, ntk(dim, theta, grown))


@given(dims, thetas, factors, st.sampled_from(LENGTHS), st.booleans())
def test_yarn_goes_by_parts(
    dim: int, theta: float, factor: float, original: int, truncate: bool
) -> None:
    scaling = af.YarnScaling(factor=factor, original=original, truncate=truncate)
    same(scaling.frequencies(dim, theta), yarn(dim, theta, scaling))


@given(dims, thetas, factors, st.sampled_from(LENGTHS), st.floats(0.5, 2.0), st.floats(2.5, 8.0))
def test_llama3_goes_by_parts(
    dim: int, theta: float, factor: float, original: int, low: float, high: float
) -> None:
    scaling = af.Llama3Scaling(
        factor=factor, original=original, low_freq_factor=low, high_freq_factor=high
    )
    same(scaling.frequencies(dim, theta), llama3(dim, theta, scaling))


@given(st.sampled_from(STATIC), dims, thetas)
def test_factor_1_changes_nothing(name: str, dim: int, theta: float) -> None:
    scaling = SCALES[name](1.0)
    assert scaling.amplitude == 1
    same(scaling.frequencies(dim, theta), plain(dim, theta))
    for ours, theirs in zip(
        af.rope_tables(9, dim, theta=theta, scaling=scaling),
        af.rope_tables(9, dim, theta=theta),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


@given(scales, dims, thetas, factors, factors)
def test_frequencies_fall_with_the_factor_and_with_the_pair(
    name: str, dim: int, theta: float, one: float, other: float
) -> None:
    less, more = sorted((one, other))
    high = SCALES[name](less).frequencies(dim, theta)
    low = SCALES[name](more).frequencies(dim, theta)
    slack = 1 + 1e-12
    assert (low <= high * slack).all()
    assert (high[1:] <= high[:-1] * slack).all()
    if name != "dynamic":
        unscaled = torch.tensor(plain(dim, theta), dtype=torch.float64)
        assert (unscaled / more <= low * slack).all()
        assert (low <= unscaled * slack).all()


def test_llama_3_1_8b() -> None:
    scaled = af.Llama3Scaling().frequencies(128, 500000.0)
    before = torch.tensor(plain(128, 500000.0), dtype=torch.float64)
    ratios = before / scaled
    # Wavelengths 2π · 500000^(i/64) pass 8192/4 after i = 28 and 8192/1 after i = 34.
    assert numbers(ratios[:29]) == pytest.approx([1.0] * 29, rel=1e-12)
    assert numbers(ratios[35:]) == pytest.approx([8.0] * 29, rel=1e-12)
    assert (ratios[28:35].diff() > 0).all()
    assert 1 < ratios[29] < ratios[34] < 8


def test_deepseek_v3() -> None:
    scaling = af.YarnScaling(factor=40.0, original=4096, mscale=1.0, mscale_all_dim=1.0)
    ratios = torch.tensor(plain(64, 10000.0), dtype=torch.float64) / scaling.frequencies(64)
    # The ramp is from floor(10.47) to ceil(22.51).
    assert numbers(ratios[:11]) == pytest.approx([1.0] * 11, rel=1e-12)
    assert numbers(ratios[23:]) == pytest.approx([40.0] * 9, rel=1e-12)
    assert (ratios[10:24].diff() > 0).all()
    # Halfway up the ramp, 13 pairs long, half-way between f and f / 40; it goes by 1/13.
    kept = (1 / ratios - 1 / 40) / (1 - 1 / 40)
    assert numbers(kept[10:24]) == pytest.approx([1 - i / 13 for i in range(14)], abs=1e-12)


def test_gpt_oss_has_ends_between_pairs() -> None:
    ratios = torch.tensor(plain(64, 150000.0), dtype=torch.float64) / af.YarnScaling(
        factor=32.0, original=4096, truncate=False
    ).frequencies(64, 150000.0)
    # From 8.09 to 17.40: the first pair that changes is 9, the first that is divided is 18.
    assert numbers(ratios[:9]) == pytest.approx([1.0] * 9, rel=1e-12)
    assert 1.0 < ratios[9] < ratios[17] < 32.0
    assert numbers(ratios[18:]) == pytest.approx([32.0] * 14, rel=1e-12)


@pytest.mark.parametrize(("original", "ratio"), [(10**12, 1.0), (2, 8.0)])
def test_yarn_where_all_pairs_turn_often_or_none_does(original: int, ratio: float) -> None:
    scaled = af.YarnScaling(factor=8.0, original=original).frequencies(16, 100.0)
    ratios = torch.tensor(plain(16, 100.0), dtype=torch.float64) / scaled
    assert numbers(ratios[1:]) == pytest.approx([ratio] * 7)


def test_dynamic_ntk_at_factor_1_is_ntk_by_the_length() -> None:
    dynamic = af.DynamicNtkScaling(factor=1.0, original=512)
    wanted = af.NtkScaling(factor=2.0).frequencies(32)
    torch.testing.assert_close(dynamic.frequencies(32, length=1024), wanted, atol=0, rtol=1e-14)
    for length in (1, 511, 512):
        same(dynamic.frequencies(32, length=length), plain(32, 10000.0))


def test_dynamic_ntk_takes_its_length_from_the_number_of_positions() -> None:
    short = af.DynamicNtkScaling(factor=2.0, original=16)
    told = af.DynamicNtkScaling(factor=2.0, original=16, length=40)
    whole = af.rope_tables(40, 8, scaling=short)
    shard = af.rope_tables(torch.arange(20, 40), 8, scaling=told)
    for all_rows, rows in zip(whole, shard, strict=True):
        torch.testing.assert_close(all_rows[20:], rows, atol=0, rtol=0)
    assert not torch.equal(whole[0][:20], af.rope_tables(20, 8, scaling=short)[0])
    assert torch.equal(whole[0][:20], af.rope_tables(20, 8, scaling=told)[0])


# -- the amplitude -------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "amplitude"),
    [
        ({"factor": 64.0}, 1.4158883083359672),
        ({"factor": 16.0}, 0.1 * math.log(16) + 1),
        ({"factor": 64.0, "attention_factor": 1.0}, 1.0),
        ({"factor": 8.0, "attention_factor": 0.5, "mscale": 3.0}, 0.5),
        ({"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707}, 1.0),
        (
            {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0},
            (0.0707 * math.log(40) + 1) / (0.1 * math.log(40) + 1),
        ),
        ({"factor": 40.0, "mscale": 0.707}, 0.0707 * math.log(40) + 1),
        ({"factor": 40.0, "mscale": 0.0}, 1.0),
    ],
)
def test_yarn_amplitudes(options: dict[str, Any], amplitude: float) -> None:
    scaling = af.YarnScaling(original=4096, **options)
    assert scaling.amplitude == pytest.approx(amplitude, rel=1e-14)
    cos, sin = af.rope_tables(5, 8, scaling=scaling, dtype=torch.float64)
    torch.testing.assert_close(cos**2 + sin**2, torch.full_like(cos, amplitude**2))


@pytest.mark.parametrize("name", [name for name in SCALES if "yarn" not in name])
def test_other_amplitudes_are_1(name: str) -> None:
    assert SCALES[name](8.0).amplitude == 1


@af.variant
def turned(
    q: af.Query, k: af.Key, v: af.Value, cos: af.Captured, sin: af.Captured
) -> tuple[af.Traced, af.Traced]:
    s = af.scores(af.rope(q, cos, sin), af.rope(k, cos, sin))
    return af.attend(af.softmax(s), v), af.lse(s)


@pytest.mark.parametrize("factor", [1.0, 1.5, None])
def test_the_attention_factor_multiplies_scores_by_its_square(factor: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 2, 7, 8, generator=generator, dtype=torch.float64)
    # With one key, the log-sum-exp of a row is its only score.
    k = torch.randn(1, 2, 1, 8, generator=generator, dtype=torch.float64)

    def scores(attention_factor: float | None) -> Tensor:
        scaling = af.YarnScaling(factor=4.0, original=64, attention_factor=attention_factor)
        tables = af.rope_tables(7, 8, scaling=scaling, dtype=torch.float64)
        _, logits = turned.reference(q, k, k, *tables, exact=True)
        assert isinstance(logits, Tensor)
        return logits

    amplitude = 0.1 * math.log(4.0) + 1 if factor is None else factor
    torch.testing.assert_close(scores(factor), scores(1.0) * amplitude**2)


# -- positions -----------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_tables_at_given_positions(kind: torch.dtype) -> None:
    positions = torch.tensor([5, 0, 200, 5, 3], dtype=kind)
    all_rows = af.rope_tables(201, 12, theta=500.0, scaling=af.LinearScaling(factor=3.0))
    rows = af.rope_tables(positions, 12, theta=500.0, scaling=af.LinearScaling(factor=3.0))
    for every, some in zip(all_rows, rows, strict=True):
        torch.testing.assert_close(some, every[positions.long()], atol=0, rtol=0)


def test_no_positions_and_negative_ones() -> None:
    for none in (0, torch.zeros(0, dtype=torch.int64)):
        cos, sin = af.rope_tables(none, 6)
        assert cos.shape == sin.shape == (0, 3)
    (ahead, up), (behind, down) = (af.rope_tables(torch.tensor([p]), 6) for p in (7, -7))
    assert torch.equal(ahead, behind)
    assert torch.equal(up, -down)


def test_far_positions_are_exact() -> None:
    position = 20_000_019  # float32 has no odd numbers so large
    cos, sin = af.rope_tables(torch.tensor([position]), 4, theta=100.0)
    for pair in range(2):
        angle = position * 100.0 ** (-pair / 2)
        assert cos[0, pair].item() == pytest.approx(math.cos(angle), abs=1e-7)
        assert sin[0, pair].item() == pytest.approx(math.sin(angle), abs=1e-7)


def test_types_and_devices() -> None:
    positions = torch.arange(3)
    cos, sin = af.rope_tables(positions, 4, dtype=torch.bfloat16)
    assert cos.dtype is sin.dtype is torch.bfloat16
    for given_positions in (3, positions):
        assert af.rope_tables(given_positions, 4, device="meta")[0].device.type == "meta"
    assert af.rope_tables(positions.to("meta"), 4)[1].device.type == "meta"
    exact = af.rope_tables(positions, 4, dtype=torch.float64)
    for rounded, ours in zip(af.rope_tables(positions, 4), exact, strict=True):
        assert torch.equal(rounded, ours.float())


@af.variant
def shifted(
    q: af.Query,
    k: af.Key,
    v: af.Value,
    q_cos: af.Captured,
    q_sin: af.Captured,
    k_cos: af.Captured,
    k_sin: af.Captured,
    at: af.Captured,
) -> af.Traced:
    s = af.scores(af.rope(q, q_cos, q_sin), af.rope(k, k_cos, k_sin))
    return af.attend(af.softmax(af.mask(s, af.k <= at[af.q])), v)


def causal_rows(qkv: tuple[Tensor, ...], positions: Tensor) -> Tensor:
    """Attention of the queries at these positions to all the keys before them."""
    q, k, v = qkv
    tables = (*af.rope_tables(positions, 8), *af.rope_tables(k.shape[2], 8))
    out = shifted.reference(q[:, :, positions], k, v, *tables, positions)
    assert isinstance(out, Tensor)
    return out


@pytest.mark.parametrize("shards", [[(0, 1), (2, 3)], [(0, 3), (1, 2)]], ids=["blocks", "balanced"])
def test_shards_of_context_parallelism_equal_the_whole(shards: list[tuple[int, ...]]) -> None:
    generator = torch.Generator().manual_seed(3)
    qkv = tuple(torch.randn(1, 2, 16, 8, generator=generator) for _ in range(3))
    whole = causal_rows(qkv, torch.arange(16))
    quarters = torch.arange(16).chunk(4)
    for shard in shards:
        positions = torch.cat([quarters[i] for i in shard])
        torch.testing.assert_close(causal_rows(qkv, positions), whole[:, :, positions])


@af.variant
def packed(
    q: af.Query, k: af.Key, v: af.Value, cos: af.Captured, sin: af.Captured, document: af.Captured
) -> af.Traced:
    s = af.scores(af.rope(q, cos, sin), af.rope(k, cos, sin))
    return af.attend(af.softmax(af.mask(s, document[af.q] == document[af.k])), v)


def test_packed_documents_start_again() -> None:
    generator = torch.Generator().manual_seed(4)
    lengths = [3, 5, 2]
    q, k, v = (torch.randn(1, 2, 10, 8, generator=generator) for _ in range(3))
    positions = torch.cat([torch.arange(length) for length in lengths])
    document = torch.arange(3).repeat_interleave(torch.tensor(lengths))
    together = packed.reference(q, k, v, *af.rope_tables(positions, 8), document)
    assert isinstance(together, Tensor)
    for i in range(len(lengths)):
        q_part, k_part, v_part, out = (x[:, :, document == i] for x in (q, k, v, together))
        tables = af.rope_tables(lengths[i], 8)
        alone, _ = turned.reference(q_part, k_part, v_part, *tables)
        torch.testing.assert_close(out, alone)


# -- scalings of one's own, and refusals ---------------------------------------


def test_a_scaling_of_ones_own() -> None:
    class Halved(af.RopeScaling):
        def frequencies(
            self, rotary_dim: int, theta: float = 1e4, *, length: int | None = None
        ) -> Tensor:
            assert length == 6
            return torch.full((rotary_dim // 2,), 0.5, dtype=torch.float64)

    cos, sin = af.rope_tables(6, 4, scaling=Halved())
    assert numbers(cos[3]) == pytest.approx([math.cos(1.5)] * 2)
    assert numbers(sin[3]) == pytest.approx([math.sin(1.5)] * 2)


def test_scalings_are_values() -> None:
    assert af.YarnScaling(factor=2.0, original=9) == af.YarnScaling(factor=2.0, original=9)
    assert len({af.Llama3Scaling(), af.Llama3Scaling(factor=8.0)}) == 1
    with pytest.raises(AttributeError):
        af.LinearScaling(factor=2.0).factor = 3.0  # pyright: ignore[reportAttributeAccessIssue]


NAN, INFINITE = math.nan, math.inf


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("factor", [0.5, 0.0, -2.0, NAN, INFINITE])
def test_factors_below_1_are_refused(name: str, factor: float) -> None:
    message = rf"Scaling: factor is {factor}; give a number, at least 1: contexts become longer"
    with pytest.raises(WrongArgument, match=message):
        SCALES[name](factor)


YARN = {"factor": 2.0, "original": 64}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("DynamicNtkScaling", {"factor": 2.0, "original": 0}, "original is 0; give the number of tok"),
    ("DynamicNtkScaling", {**YARN, "length": 0}, "length is 0; give a number of tokens, at least"),
    ("YarnScaling", {"factor": 2.0, "original": -1}, "original is -1; give the number of tokens"),
    (
        "YarnScaling",
        {**YARN, "beta_slow": 32},
        r"beta_slow is 32; give a .* beta_fast, which is 32",
    ),
    ("YarnScaling", {**YARN, "beta_slow": 0.0}, r"beta_slow is 0\.0; give a number above 0 and"),
    ("YarnScaling", {**YARN, "beta_fast": NAN}, r"beta_slow is 1\.0; give .* beta_fast, .* nan"),
    ("YarnScaling", {**YARN, "attention_factor": 0.0}, r"attention_factor is 0\.0; give a posit"),
    ("YarnScaling", {**YARN, "attention_factor": NAN}, r"attention_factor is nan; .* or None"),
    ("YarnScaling", {**YARN, "mscale": -1.0}, r"mscale is -1\.0; give 0 or a positive number"),
    ("YarnScaling", {**YARN, "mscale_all_dim": INFINITE}, r"mscale_all_dim is inf; give 0 or a"),
    ("Llama3Scaling", {"original": 0}, "original is 0; give the number of tokens that the model"),
    ("Llama3Scaling", {"low_freq_factor": 4.0}, r"low_freq_factor is 4\.0; .* which is 4\.0"),
    ("Llama3Scaling", {"low_freq_factor": -1.0}, r"low_freq_factor is -1\.0; give a number abo"),
]


@pytest.mark.parametrize(("name", "options", "message"), REFUSED)
def test_what_scalings_refuse(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(WrongArgument, match=f"{name}: {message}"):
        getattr(af, name)(**options)


@pytest.mark.parametrize("name", SCALES)
def test_dims_and_bases_that_no_scaling_takes(name: str) -> None:
    scaling = SCALES[name](2.0)
    with pytest.raises(WrongArgument, match=r"RoPE: rotary_dim is 7; give an even number"):
        scaling.frequencies(7)
    with pytest.raises(WrongArgument, match=r"rotary_dim is 0; give an even number of features"):
        af.rope_tables(3, 0, scaling=scaling)


@pytest.mark.parametrize("theta", [1.0, 0.0, -5.0, NAN, INFINITE])
def test_bases_that_are_refused(theta: float) -> None:
    message = rf"RoPE: theta is {theta}; give a base above 1: each pair turns slower"
    for name in STATIC:
        with pytest.raises(WrongArgument, match=message):
            af.rope_tables(3, 8, theta=theta, scaling=SCALES[name](1.0))
    with pytest.raises(WrongArgument, match=message):
        af.rope_tables(3, 8, theta=theta)


def test_one_pair_has_no_base_to_change() -> None:
    message = r"NtkScaling: rotary_dim is 2; give an even .* 4: the first pair isn't scaled"
    for name in ("ntk", "dynamic"):
        with pytest.raises(WrongArgument, match=message):
            SCALES[name](2.0).frequencies(2)
    same(af.LinearScaling(factor=2.0).frequencies(2), [0.5])


def test_dynamic_scaling_of_some_positions_needs_the_length() -> None:
    scaling = af.DynamicNtkScaling(factor=2.0, original=64)
    message = r"DynamicNtkScaling: length is None; give the length of the whole sequence, Dynamic"
    with pytest.raises(WrongArgument, match=message):
        af.rope_tables(torch.arange(8), 8, scaling=scaling)
    with pytest.raises(WrongArgument, match=message):
        scaling.frequencies(8)


@pytest.mark.parametrize(
    ("positions", "shown"),
    [
        (-1, "-1"),
        ([0, 1], "of type list"),
        (2.0, "of type float"),
        (torch.tensor(4), r"a tensor of torch\.int64 and shape \(\)"),
        (torch.zeros(2, 3, dtype=torch.int32), r"a tensor of torch\.int32 and shape \(2, 3\)"),
        (torch.zeros(4), r"a tensor of torch\.float32 and shape \(4,\)"),
        (torch.zeros(4, dtype=torch.bool), r"a tensor of torch\.bool and shape \(4,\)"),
        (torch.zeros(4, dtype=torch.complex64), r"a tensor of torch\.complex64 and shape \(4,\)"),
    ],
)
def test_positions_that_are_refused(positions: Any, shown: str) -> None:
    message = rf"rope_tables: positions is {shown}; give how many there are, or a 1-D tensor of"
    with pytest.raises(WrongArgument, match=message + r" integers; .* af\.rope\(…, positions=…\)"):
        af.rope_tables(positions, 8)


@pytest.mark.parametrize("scaling", [{"rope_type": "yarn"}, 4.0, af.LinearScaling])
def test_what_is_no_scaling(scaling: Any) -> None:
    shown = type(scaling).__name__
    message = rf"rope_tables: scaling is of type {shown}; give an af\.LinearScaling, NtkScaling, "
    with pytest.raises(WrongArgument, match=message):
        af.rope_tables(3, 8, scaling=scaling)
