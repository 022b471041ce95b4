"""Generated programs on the CPU target against float64, over random lengths and strides."""

from __future__ import annotations

import random

import pytest
import torch
from cases import CASES, Case, Sizes, check, dense_softmax
from draws import lengths, strided
from torch import Tensor

import attnfuse as af

LENGTHS = (0, 1, 7, 63, 64, 65, 129, 1000)
RUNS = [(case, dtype) for case in CASES for dtype in case.dtypes]


def name(value: object) -> str:
    """A readable name for a parametrised test."""
    return value.name if isinstance(value, Case) else str(value).removeprefix("torch.")


def some_sizes(case: Case, dtype: torch.dtype) -> list[Sizes]:
    """Every length for queries and for keys, paired at random; a batch of 0 among them.

    Few queries have a kernel of their own, which is built for every third case.
    """
    chooser, has_few = random.Random(f"{case.name} {dtype}"), RUNS.index((case, dtype)) % 3 == 0
    pairs = [*lengths(chooser, LENGTHS), (65, 65), (129, 129)]
    pairs = [(q if q > 8 or has_few else q + 9, k) for q, k in pairs]
    return [Sizes(chooser.randint(1, 2), *pair) for pair in pairs] + [Sizes(0, 17, 9)]


@pytest.mark.parametrize(("case", "dtype"), RUNS, ids=name)
def test_program_equals_float64_over_lengths_and_strides(case: Case, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(len(case.name))
    chooser = random.Random(case.name)
    for sizes in some_sizes(case, dtype):
        tensors, extra = case.inputs(sizes, dtype, generator)
        how = [chooser.choice(("contiguous", "transposed", "sliced")) for _ in tensors]
        given = [strided(tensor, each) for tensor, each in zip(tensors, how, strict=True)]
        got = case.variant(*given, **extra)
        got = got if isinstance(got, tuple) else (got,)
        exact = case.dense(tensors, extra, torch.float64)
        check(got, exact, case.dense(tensors, extra, dtype))
        assert {each.dtype for each in got if each.dim() == 3} <= {torch.float32}
        assert got[0].dtype is dtype


def test_one_kernel_serves_all_lengths() -> None:
    case = CASES[0]
    tensors, _ = case.inputs(Sizes(2, 33, 65), torch.float32, torch.Generator())
    longer, _ = case.inputs(Sizes(1, 200, 7), torch.float32, torch.Generator())
    assert case.variant.compile(*tensors) is case.variant.compile(*longer)


@af.variant
def two_streams(
    q: af.Query, k: af.Key, v: af.Value, q_pe: af.Query, k_pe: af.Key
) -> tuple[af.Traced, af.Traced]:
    """Two contractions in one score, as in multi-head latent attention."""
    s = af.scores(q, k, scale=0.125) + af.scores(q_pe, k_pe, scale=0.25)
    s = af.mask(s, af.causal())
    return af.attend(af.softmax(s), v), af.lse(s)


def test_two_contractions_make_one_score() -> None:
    generator = torch.Generator().manual_seed(0)
    for q_len, kv_len in ((70, 130), (130, 70), (1, 1)):
        shapes = [(2, 4, q_len, 32), (2, 2, kv_len, 32), (2, 2, kv_len, 24)]
        shapes += [(2, 4, q_len, 16), (2, 2, kv_len, 16)]
        tensors = [torch.randn(shape, generator=generator) for shape in shapes]

        def dense(dtype: torch.dtype, tensors: list[Tensor] = tensors) -> tuple[Tensor, Tensor]:
            q, k, v, q_pe, k_pe = (tensor.to(dtype) for tensor in tensors)
            k, v, k_pe = (tensor.repeat_interleave(2, 1) for tensor in (k, v, k_pe))
            scores = q @ k.transpose(-1, -2) * 0.125 + q_pe @ k_pe.transpose(-1, -2) * 0.25
            rows, columns = scores.shape[-2:]
            hidden = torch.ones(rows, columns).triu(1 + columns - rows).bool()
            return dense_softmax(scores.masked_fill(hidden, float("-inf")), v)

        out, lse = two_streams(*tensors)
        check((out, lse), dense(torch.float64), dense(torch.float32))


@af.variant
def differential(
    q1: af.Query, q2: af.Query, k1: af.Key, k2: af.Key, v: af.Value, lam: af.Captured
) -> tuple[af.Traced, af.Traced]:
    """Differential attention (Ye et al., 2024), λ learnt for each head; and what its parts saw."""
    s1 = af.mask(af.scores(q1, k1), af.causal())
    s2 = af.mask(af.scores(q2, k2), af.causal())
    first, second = af.attend(af.softmax(s1), v), af.attend(af.softmax(s2), v)
    return first - lam[af.h] * second, af.lse(s1) - af.lse(s2)


def test_several_attentions_are_launches_that_the_last_one_combines() -> None:
    generator = torch.Generator().manual_seed(0)
    for batch, q_len, kv_len in ((2, 70, 130), (1, 1, 1), (1, 0, 5)):
        heads = ((4, q_len, 16), (4, q_len, 16), (2, kv_len, 16), (2, kv_len, 16), (2, kv_len, 24))
        tensors = [torch.randn(batch, *shape, generator=generator) for shape in heads]
        lam = torch.rand(4, generator=generator)

        def dense(
            dtype: torch.dtype, tensors: list[Tensor] = tensors, lam: Tensor = lam
        ) -> tuple[Tensor, Tensor]:
            q1, q2, k1, k2, v = (tensor.to(dtype) for tensor in tensors)
            k1, k2, v = (tensor.repeat_interleave(2, 1) for tensor in (k1, k2, v))
            rows, columns = q1.shape[2], k1.shape[2]
            hidden = torch.ones(rows, columns).triu(1 + columns - rows).bool()
            scores = (q @ k.transpose(-1, -2) / 4 for q, k in ((q1, k1), (q2, k2)))
            parts = [dense_softmax(s.masked_fill(hidden, float("-inf")), v) for s in scores]
            (first, one), (second, other) = parts
            return first - lam.to(dtype)[:, None, None] * second, one - other

        got = differential(*tensors, lam)
        assert isinstance(got, tuple)
        check(got, dense(torch.float64), dense(torch.float32))
    launches = differential.compile(*tensors, lam).launches
    assert [launch.plan.name for launch in launches] == ["differential_part0", "differential"]
    assert "part0_0" in launches[1].source.text


def test_two_batch_axes_are_kept_apart() -> None:
    """Evoformer: a bias over rows varies along one batch axis, a pair bias along the other."""

    @af.variant
    def evoformer(
        q: af.Query, k: af.Key, v: af.Value, row: af.Captured, pair: af.Captured
    ) -> tuple[af.Traced, af.Traced]:
        s = af.bias(af.bias(af.scores(q, k), row), pair)
        return af.attend(af.softmax(s), v), af.lse(s)

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 2, 70, 16, generator=generator) for _ in range(3))
    row = torch.randn(2, 3, 1, 1, 70, generator=generator)
    pair = torch.randn(2, 1, 2, 70, 70, generator=generator)

    def dense(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        scores = q.to(dtype) @ k.to(dtype).transpose(-1, -2) / 4 + row.to(dtype) + pair.to(dtype)
        return dense_softmax(scores, v.to(dtype))

    out, lse = evoformer(q, k, v, row, pair)
    check((out, lse), dense(torch.float64), dense(torch.float32))


@af.variant
def prepared(
    q: af.Query,
    k: af.Key,
    v: af.Value,
    gain: af.Captured,
    cos: af.Captured,
    sin: af.Captured,
    hoist: bool,
) -> tuple[af.Traced, af.Traced]:
    """Normalised and rotated queries and keys, while they are loaded or beforehand."""
    q_turned = af.rope(af.norm(q, gain), cos, sin)
    k_turned, values = af.rope(af.norm(k, gain), cos, sin), af.norm(v)
    if hoist:
        q_turned, k_turned, values = map(af.stored, (q_turned, k_turned, values))
    s = af.mask(af.scores(q_turned, k_turned), af.causal())
    return af.attend(af.softmax(s), values), af.lse(s)


def test_passes_beforehand_give_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(0)
    for batch, q_len, kv_len in ((2, 70, 130), (1, 130, 65), (1, 1, 0)):
        heads = ((6, q_len, 40), (2, kv_len, 40), (2, kv_len, 24))
        tensors = [torch.randn(batch, *shape, generator=generator) for shape in heads]
        captured = (torch.rand(40, generator=generator), *af.rope_tables(200, 32))
        fused = prepared(*tensors, *captured, False)
        hoisted = prepared(*tensors, *captured, True)
        assert isinstance(fused, tuple) and isinstance(hoisted, tuple)
        assert all(torch.equal(one, other) for one, other in zip(fused, hoisted, strict=True))
        exact = prepared.reference(*tensors, *captured, True)
        assert isinstance(exact, tuple)
        check(hoisted, exact, fused)
    launches = prepared.compile(*tensors, *captured, True).launches
    names = [launch.plan.name for launch in launches]
    assert names == [*(f"prepared_stored{i}" for i in range(3)), "prepared"]
    assert "rotate" not in launches[-1].source.text.split('"""')[2]


@af.variant
def with_cache(
    q: af.Query, k: af.Key, v: af.Value, cos: af.Captured, sin: af.Captured
) -> af.Traced:
    """Decoding: queries stand at the last positions of an unrotated cache."""
    turned = af.rope(q, cos, sin, positions=af.q + (af.kv_len - af.q_len))
    s = af.mask(af.scores(turned, af.rope(k, cos, sin)), af.causal())
    return af.attend(af.softmax(s), v)


def test_decoding_token_by_token_equals_one_forward_pass() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 12, 32, generator=generator) for _ in range(3))
    tables = af.rope_tables(12, 32)
    whole = with_cache(q, k, v, *tables)
    assert isinstance(whole, Tensor)
    steps = [(0, 7), *((place, place + 1) for place in range(7, 12))]
    parts = [with_cache(q[:, :, a:b], k[:, :, :b], v[:, :, :b], *tables) for a, b in steps]
    torch.testing.assert_close(torch.cat([p for p in parts if isinstance(p, Tensor)], 2), whole)


def test_features_that_are_not_contiguous_get_a_program_of_their_own() -> None:
    case = CASES[1]
    generator = torch.Generator().manual_seed(0)
    tensors, extra = case.inputs(Sizes(1, 65, 70), torch.float32, generator)
    apart = [tensor.transpose(-1, -2).contiguous().transpose(-1, -2) for tensor in tensors]
    assert all(tensor.stride(-1) != 1 for tensor in apart)
    got = case.variant(*apart)
    assert isinstance(got, tuple)
    exact = case.dense(tensors, extra, torch.float64)
    check((got[0], got[1]), exact, case.dense(tensors, extra, torch.float32))


def test_expanded_tensors_are_read_in_place() -> None:
    case = CASES[0]
    generator = torch.Generator().manual_seed(0)
    tensors, extra = case.inputs(Sizes(1, 65, 70), torch.float32, generator)
    expanded = [tensor.expand(3, -1, -1, -1) for tensor in tensors]
    got = case.variant(*expanded)
    assert isinstance(got, tuple)
    exact = case.dense([*expanded], extra, torch.float64)
    check((got[0], got[1]), exact, case.dense([*expanded], extra, torch.float32))


def test_output_lies_in_memory_like_the_query() -> None:
    q = torch.randn(2, 20, 2, 64).transpose(1, 2)
    out, lse = CASES[0].variant(q, q, q)
    assert out.stride() == q.stride()
    assert out.transpose(1, 2).is_contiguous() and lse.is_contiguous()


def test_unused_keys_may_hold_anything() -> None:
    """What is hidden never reaches a score, not even as NaN, nor with any weight a result."""
    case = next(case for case in CASES if case.name == "padded")
    generator = torch.Generator().manual_seed(0)
    tensors, _ = case.inputs(Sizes(2, 40, 300), torch.float32, generator)
    lengths = torch.tensor([20, 33], dtype=torch.int32)
    clean = case.variant(*tensors, lengths)
    for entry, length in enumerate(lengths):
        tensors[1][entry, :, length:] = float("nan")
        tensors[2][entry, :, length:] = 1e30
    dirty = case.variant(*tensors, lengths)
    assert torch.equal(clean[0], dirty[0]) and torch.equal(clean[1], dirty[1])


def test_a_mask_that_is_false_everywhere_gives_nothing() -> None:
    @af.variant
    def blind(q: af.Query, k: af.Key, v: af.Value) -> tuple[af.Traced, af.Traced]:
        s = af.mask(af.scores(q, k), False)
        return af.attend(af.softmax(s), v), af.lse(s)

    q = torch.randn(1, 1, 70, 16)
    out, lse = blind(q, q, q)
    assert torch.equal(out, torch.zeros_like(q))
    assert torch.equal(lse, torch.full((1, 1, 70), float("-inf")))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing(threads: int) -> None:
    case = CASES[1]
    generator = torch.Generator().manual_seed(0)
    tensors, _ = case.inputs(Sizes(2, 200, 300), torch.float32, generator)
    with af.use(cpu_threads=1):
        alone = case.variant(*tensors)
    with af.use(cpu_threads=threads):
        together = case.variant(*tensors)
    assert torch.equal(alone[0], together[0]) and torch.equal(alone[1], together[1])
