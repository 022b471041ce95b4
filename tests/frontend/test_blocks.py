"""Each block by itself, on the reference backend, against plain PyTorch in float64."""

from __future__ import annotations

import math

import pytest
import torch
from cases import CASES, Case, Sizes
from numbers_of import numbers
from torch import Tensor

import attnfuse as af
from attnfuse.errors import CannotLower, DoesNotFit, NotInVariant, WrongArgument


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reference_equals_plain_pytorch(case: Case) -> None:
    generator = torch.Generator().manual_seed(1)
    for sizes in (Sizes(2, 13, 29), Sizes(1, 29, 13), Sizes(1, 1, 1), Sizes(1, 3, 0)):
        tensors, extra = case.inputs(sizes, torch.float64, generator)
        got = case.variant.reference(*tensors, exact=True, **extra)
        got = got if isinstance(got, tuple) else (got,)
        for ours, theirs in zip(got, case.dense(tensors, extra, torch.float64), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-9)


def visible(predicate: str, q_len: int, kv_len: int, **options: object) -> Tensor:
    """Where the probabilities of a mask are not 0."""

    @af.variant
    def masked(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        mask = getattr(af, predicate)(**options)
        return af.attend(af.softmax(af.mask(af.scores(q, k), mask)), v)

    q, k = torch.zeros(1, 1, q_len, 4), torch.zeros(1, 1, kv_len, 4)
    p = masked.probabilities(q, k, k)
    assert isinstance(p, Tensor)
    return (p[0, 0] > 0).int()


def test_causal_alignments_as_flash_attention_and_pytorch_have_them() -> None:
    assert numbers(visible("causal", 2, 5)) == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    top_left = visible("causal", 2, 5, alignment="top_left")
    assert numbers(top_left) == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]
    assert numbers(visible("causal", 5, 2)) == [[0, 0], [0, 0], [0, 0], [1, 0], [1, 1]]


def test_windows_count_neighbours_on_either_side() -> None:
    assert numbers(visible("window", 4, 4, before=1, after=0)) == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 1, 1, 0],
        [0, 0, 1, 1],
    ]
    assert numbers(visible("window", 2, 4, after=0)) == numbers(visible("causal", 2, 4))
    assert visible("window", 3, 3).all()
    eight = visible("window", 8, 8, before=3 - 1, after=0)
    assert eight[-1].sum() == 3  # Hugging Face's sliding_window=3


def test_probabilities_are_dense_and_sum_to_one() -> None:
    case = CASES[1]
    tensors, _ = case.inputs(Sizes(2, 9, 11), torch.float32, torch.Generator())
    p = case.variant.probabilities(*tensors)
    assert isinstance(p, Tensor) and p.shape == (2, case.heads, 9, 11)
    torch.testing.assert_close(p.sum(-1), torch.ones(2, case.heads, 9))


def test_rope_conventions_differ_by_a_permutation_of_features() -> None:
    @af.variant
    def rotated(
        q: af.Query, k: af.Key, v: af.Value, cos: af.Captured, sin: af.Captured, pairing: str
    ) -> af.Traced:
        s = af.scores(af.rope(q, cos, sin, pairing=pairing), af.rope(k, cos, sin, pairing=pairing))
        return af.attend(af.softmax(s), v)

    q, k, v = (torch.randn(1, 2, 6, 8) for _ in range(3))
    tables = af.rope_tables(6, 8)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    interleaved = rotated.reference(q, k, v, *tables, "interleaved")
    half = rotated.reference(q[..., order], k[..., order], v, *tables, "half")
    torch.testing.assert_close(interleaved, half)
    other = rotated.reference(q, k, v, *tables, "half")
    assert isinstance(other, Tensor) and isinstance(interleaved, Tensor)
    assert (other - interleaved).abs().max() > 1e-3


def test_rope_tables_hold_the_angles() -> None:
    cos, sin = af.rope_tables(5, 6, theta=100.0, dtype=torch.float64)
    for position in range(5):
        for pair in range(3):
            angle = position * 100.0 ** (-2 * pair / 6)
            assert cos[position, pair].item() == pytest.approx(math.cos(angle), abs=1e-12)
            assert sin[position, pair].item() == pytest.approx(math.sin(angle), abs=1e-12)


@pytest.mark.parametrize("rotary_dim", [0, 3, -2])
def test_an_odd_rotary_dim_is_refused(rotary_dim: int) -> None:
    with pytest.raises(WrongArgument, match=rf"rotary_dim is {rotary_dim}; give an even number"):
        af.rope_tables(4, rotary_dim)


def trace(body: object, *extra: Tensor, head_dim: int = 8) -> None:
    """Trace a variant with one head and these captured tensors."""
    assert callable(body)
    q = torch.zeros(1, 1, 4, head_dim)
    af.variant(body).trace(q, q, q, *extra)


def test_what_rope_refuses() -> None:
    table, small = torch.zeros(4, 4), torch.zeros(4, 3)

    def scores(q: af.Query, k: af.Key, v: af.Value, cos: af.Captured) -> af.Traced:
        return af.attend(af.softmax(af.rope(af.scores(q, k), cos, cos)), v)

    def pairing(q: af.Query, k: af.Key, v: af.Value, cos: af.Captured) -> af.Traced:
        return af.rope(q, cos, cos, pairing="neox")

    def different(
        q: af.Query, k: af.Key, v: af.Value, cos: af.Captured, sin: af.Captured
    ) -> af.Traced:
        return af.rope(q, cos, sin)

    with pytest.raises(WrongArgument, match=r"rope: x is .*a key, a value or an output"):
        trace(scores, table)
    with pytest.raises(WrongArgument, match=r"pairing is neox; give 'half' or 'interleaved'"):
        trace(pairing, table)
    with pytest.raises(DoesNotFit, match=r"rotate: cos is .*4.* and sin is .*3"):
        trace(different, table, small)
    with pytest.raises(DoesNotFit, match=r"rotate 8 features, and there are 6"):
        trace(different, table, table, head_dim=6)


def test_what_norm_refuses() -> None:
    def scores(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        return af.norm(af.scores(q, k))

    def kind(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        return af.norm(q, kind="layer")

    def eps(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        return af.norm(q, eps=-1.0)

    def weight(q: af.Query, k: af.Key, v: af.Value, wide: af.Captured) -> af.Traced:
        return af.norm(q, wide)

    def values(q: af.Query, k: af.Key, v: af.Value, wide: af.Captured) -> af.Traced:
        return af.norm(q, wide[af.k, 0])

    def computed(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        s = af.scores(q, k)
        return af.norm(af.attend(af.softmax(s), v), af.lse(s))

    with pytest.raises(
        WrongArgument, match=r"norm: x is .*; give a query, a key, a value or an output"
    ):
        trace(scores)
    with pytest.raises(WrongArgument, match=r"kind is layer; give 'rms' or 'l2'"):
        trace(kind)
    with pytest.raises(WrongArgument, match=r"eps is -1\.0; give 0 or a positive number"):
        trace(eps)
    with pytest.raises(WrongArgument, match=r"weight is 2 dimensions; give a tensor \(features,\)"):
        trace(weight, torch.zeros(2, 8))
    with pytest.raises(WrongArgument, match=r"weight is logsumexp.*an expression of heads"):
        trace(computed)
    with pytest.raises(DoesNotFit, match=r"normalise: the weight is float32\[k=kv_len\]"):
        trace(values, torch.zeros(4, 1))


def test_what_sinks_and_gates_refuse() -> None:
    def sink(q: af.Query, k: af.Key, v: af.Value, wide: af.Captured) -> af.Traced:
        return af.attend(af.softmax(af.scores(q, k), sink=wide[0, af.k]), v)

    def kept(q: af.Query, k: af.Key, v: af.Value, wide: af.Captured) -> af.Traced:
        return af.stored(af.scores(q, k))

    def gate(q: af.Query, k: af.Key, v: af.Value, wide: af.Captured) -> af.Traced:
        return af.gate(af.attend(af.softmax(af.scores(q, k)), v), wide)

    with pytest.raises(WrongArgument, match=r"softmax: sink is .*without af\.k"):
        trace(sink, torch.zeros(1, 4))
    with pytest.raises(WrongArgument, match=r"stored: x is .*; give a query, a key or a value"):
        trace(kept, torch.zeros(1, 4))
    with pytest.raises(WrongArgument, match=r"gate: values is 2 dimensions; give 4 dimensions"):
        trace(gate, torch.zeros(1, 4))


@af.variant
def dropped(q: af.Query, k: af.Key, v: af.Value, seed: af.Captured, rate: float) -> af.Traced:
    """Causal, with dropout."""
    s = af.mask(af.scores(q, k), af.causal())
    return af.attend(af.dropout(af.softmax(s), rate, seed), v)


def test_dropout_keeps_the_expectation_and_follows_the_seed() -> None:
    q = torch.zeros(2, 2, 64, 8, dtype=torch.float64)
    ones = torch.ones_like(q)
    runs = [dropped.reference(q, q, ones, torch.tensor(seed), 0.25) for seed in (1, 1, 2)]
    one, same, other = (run for run in runs if isinstance(run, Tensor))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert dropped.trace(q, q, q, torch.tensor(1), 0.25) is dropped.trace(
        q, q, q, torch.tensor(2), 0.25
    )
    # a row of n equal weights becomes (kept / n) / (1 − rate)
    n = torch.arange(1, 65, dtype=torch.float64)
    kept = one[..., 0] * n * 0.75
    torch.testing.assert_close(kept, kept.round())
    assert abs(kept.sum().item() / (4 * n.sum().item()) - 0.75) < 0.01
    assert not torch.equal(one[0], one[1]) and not torch.equal(one[:, 0], one[:, 1])
    whole = dropped.reference(q, q, ones, torch.tensor(1), 0.0)
    torch.testing.assert_close(whole, ones)


def test_dropout_has_no_kernel_and_says_what_to_do() -> None:
    q = torch.zeros(1, 1, 4, 8)
    message = r"dropout has no kernel yet; leave it out at inference\n.*\n.*\.reference\("
    with pytest.raises(CannotLower, match=message):
        dropped(q, q, q, torch.tensor(1), 0.5)
    assert "random" not in str(dropped.compile(q, q, q, torch.tensor(1), 0.0))


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1, math.nan])
def test_bad_rates_are_refused(rate: float) -> None:
    q = torch.zeros(1, 1, 4, 8)
    with pytest.raises(WrongArgument, match=r"dropout: rate is .*; give 0 ≤ rate < 1"):
        dropped.trace(q, q, q, torch.tensor(1), rate)


@pytest.mark.parametrize("seed", [-1, 2**31, True, torch.tensor(1.0), torch.tensor([1])], ids=str)
def test_bad_seeds_are_refused(seed: object) -> None:
    q = torch.zeros(1, 1, 4, 8)
    with pytest.raises(WrongArgument, match=r"dropout: seed is .*; give 0 ≤ seed < 2³¹"):
        dropped.trace(q, q, q, seed, 0.5)
    assert dropped.trace(q, q, q, 2**31 - 1, 0.5)


def test_what_low_rank_refuses() -> None:
    def captured(q: af.Query, k: af.Key, v: af.Value, left: af.Captured) -> af.Traced:
        return af.low_rank(left, k)

    def swapped(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        return af.low_rank(q, q)

    def wide(q: af.Query, k: af.Key, v: af.Value, key_factor: af.Key) -> af.Traced:
        return af.low_rank(q, key_factor)

    with pytest.raises(
        WrongArgument, match=r"low_rank: left is left; .*annotate it with af\.Query"
    ):
        trace(captured, torch.zeros(1, 1, 4, 8))
    with pytest.raises(WrongArgument, match=r"low_rank: right is q; .*annotate it with af\.Key"):
        trace(swapped)
    with pytest.raises(DoesNotFit, match=r"axis 'd' has size 8 here and 5 there"):
        trace(wide, torch.zeros(1, 1, 4, 5))


def test_what_the_other_blocks_refuse() -> None:
    def swapped(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        return af.scores(k, q)

    def raw(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        return af.attend(q, v)

    def capped(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        return af.softcap(af.scores(q, k), 0.0)

    def windowed(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        return af.mask(af.scores(q, k), af.window(before=-1))

    def aligned(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        return af.mask(af.scores(q, k), af.causal("middle"))

    def biased(q: af.Query, k: af.Key, v: af.Value, wide: af.Captured) -> af.Traced:
        return af.bias(af.scores(q, k), wide)

    def added(q: af.Query, k: af.Key, v: af.Value, wide: af.Captured) -> af.Traced:
        return af.scores(q, k) + wide

    with pytest.raises(WrongArgument, match=r"scores: query is k; give a query"):
        trace(swapped)
    with pytest.raises(WrongArgument, match=r"attend: p is q; give probabilities"):
        trace(raw)
    with pytest.raises(WrongArgument, match=r"softcap: cap is 0\.0; give a positive number"):
        trace(capped)
    with pytest.raises(WrongArgument, match=r"window: before is -1; give 0, a positive number"):
        trace(windowed)
    with pytest.raises(
        WrongArgument, match=r"position: alignment is middle; give 'bottom_right' or 'top"
    ):
        trace(aligned)
    with pytest.raises(WrongArgument, match=r"bias: values is 5 dimensions; give at most 4"):
        trace(biased, torch.zeros(1, 1, 1, 1, 1))
    with pytest.raises(WrongArgument, match=r"wide is a tensor of 1 dimensions.*wide\[af\.h\]"):
        trace(added, torch.zeros(3))


def test_positions_and_masks_have_no_value_outside_of_a_variant() -> None:
    with pytest.raises(NotInVariant, match=r"af\.q has no value here; use it inside"):
        print(af.q + 1)
    with pytest.raises(NotInVariant, match=r"@af\.variant"):
        af.causal()
