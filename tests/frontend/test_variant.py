"""Tracing: roles, signatures, what is refused and in which words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import attnfuse as af
from attnfuse.errors import (
    AttnFuseError,
    CannotLower,
    DoesNotFit,
    MixedDevices,
    MixedDTypes,
    NoData,
    UnknownRole,
    WrongArgument,
    WrongOutput,
    WrongShape,
)


@af.variant
def plain(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
    """Attention with nothing to it."""
    return af.attend(af.softmax(af.scores(q, k)), v)


@af.variant
def biased(q: af.Query, k: af.Key, v: af.Value, table: af.Captured) -> af.Traced:
    """A bias for each key."""
    return af.attend(af.softmax(af.scores(q, k) + table[af.k]), v)


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    """Zeros of these shapes."""
    return [torch.zeros(shape) for shape in shapes]


def refused(error: type[AttnFuseError], words: str, *arguments: object) -> None:
    """Check that a call is refused in these words."""
    with pytest.raises(error, match=words):
        (plain if len(arguments) == 3 else biased)(*arguments)


def test_roles_come_from_names_and_annotations() -> None:
    @af.variant
    def named(
        query: af.Traced, key_pe: af.Traced, v2: af.Traced, slopes: af.Traced, kernel: af.Traced
    ) -> af.Traced:
        s = af.scores(query, key_pe) * slopes[af.h] + kernel[af.q]
        return af.attend(af.softmax(s), v2)

    @af.variant
    def annotated(
        left: af.Query, right: af.Key, content: af.Value, q_scale: af.Captured
    ) -> af.Traced:
        return af.attend(af.softmax(af.scores(left, right) * q_scale), content)

    q = torch.zeros(1, 2, 4, 8)
    inputs = named.trace(q, q, q, torch.zeros(2), torch.zeros(4)).inputs
    assert [term["role"] for term in inputs] == ["query", "key", "value", "captured", "captured"]
    inputs = annotated.trace(q, q, q, torch.zeros(())).inputs
    assert [term["role"] for term in inputs] == ["query", "key", "value", "captured"]


def test_signatures_share_programs_over_sizes_and_split_over_what_is_static() -> None:
    small, long = tensors((1, 2, 4, 8)), tensors((5, 2, 99, 8))
    assert plain.trace(*small * 3) is plain.trace(*long * 3)
    wide, half = tensors((1, 2, 4, 16)), [torch.zeros(1, 2, 4, 8, dtype=torch.float16)]
    assert plain.trace(*small * 3) is not plain.trace(*wide * 3)
    assert plain.trace(*small * 3) is not plain.trace(*half * 3)


def test_constants_are_part_of_the_program() -> None:
    @af.variant
    def scaled(
        q: af.Query, k: af.Key, v: af.Value, scale: float = 0.5, mode: str = "full"
    ) -> af.Traced:
        s = af.scores(q, k, scale=scale)
        s = af.mask(s, af.causal()) if mode == "causal" else s
        return af.attend(af.softmax(s), v)

    q = torch.randn(1, 1, 5, 8)
    assert scaled.trace(q, q, q) is scaled.trace(q, q, q, 0.5)
    programs = {scaled.trace(q, q, q, s, m) for s in (0.5, 1, 1.0) for m in ("full", "causal")}
    assert len(programs) == 4
    assert "0.25" in str(scaled.trace(q, q, q, scale=0.25))
    assert "mask" in str(scaled.trace(q, q, q, mode="causal"))


def test_shapes_that_do_not_fit_are_refused_with_both_shapes() -> None:
    q = torch.zeros(2, 4, 5, 8)
    refused(WrongShape, r"plain: q has shape \(4, 5, 8\); a query is \(batch,", q[0], q, q)
    refused(
        WrongShape,
        r"k has shape \(3, 4, 5, 8\).*q has \(2, 4, 5, 8\)",
        q,
        *tensors((3, 4, 5, 8)) * 2,
    )
    refused(
        WrongShape,
        r"q has shape 4 heads.*multiple of the 3 heads of k",
        q,
        *tensors((2, 3, 5, 8)) * 2,
    )
    refused(
        WrongShape,
        r"v has shape 4 dimensions and 3 heads; k has 4 dimensions and 2 heads, q has 4 "
        r"dimensions and 4 heads; make it like k or like q, by v\.expand\(…\) where heads",
        q,
        *tensors((2, 2, 5, 8), (2, 3, 5, 8)),
    )
    refused(
        WrongShape,
        r"k has shape 5 dimensions and 4 heads; q has 4 dimensions and 4 heads; make it like q",
        q,
        *tensors((1, 2, 4, 5, 8), (2, 4, 5, 8)),
    )
    refused(
        WrongShape,
        r"v has shape \(2, 4, 6, 8\).*k has \(2, 4, 5, 8\): kv_len",
        q,
        q,
        *tensors((2, 4, 6, 8)),
    )
    refused(DoesNotFit, r"contract.*'d' has size 8 .*16", q, *tensors((2, 4, 5, 16)) * 2)
    refused(
        WrongShape,
        r"table has shape \(3,\).*read at every af\.k: give 1 or at least 5",
        q,
        q,
        q,
        torch.zeros(3),
    )


def test_queries_share_one_number_of_heads() -> None:
    @af.variant
    def two(q: af.Query, q2: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        return af.attend(af.softmax(af.scores(q, k) + af.scores(q2, k)), v)

    with pytest.raises(WrongShape, match=r"q2 has shape .* 2 heads; q has .* 4 heads; make it lik"):
        two.trace(*tensors((2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)))


def test_keys_and_values_may_have_as_many_heads_as_the_query() -> None:
    q, k = tensors((2, 4, 5, 8), (2, 2, 5, 8))
    for keys, values in ((q, k), (k, q)):
        program = plain.trace(q, keys, values)
        names = {term["name"]: term.type.names for term in program.inputs}
        assert names["k" if keys is q else "v"][1:3] == ("hk", "g")
        assert "g" not in names["v" if keys is q else "k"]
    assert "g" in plain.trace(q, q, q).inputs[0].type.names
    assert "g" not in plain.trace(q, q, q).inputs[1].type.names


def test_element_types_and_devices_must_agree() -> None:
    q = torch.zeros(1, 1, 4, 8)
    refused(MixedDTypes, r"q is float32, k is float16, v is float32; give all", q, q.half(), q)
    refused(MixedDTypes, r"q is int32.*one of float16, bfloat16", *[q.int()] * 3)
    refused(MixedDTypes, r"table is complex64", q, q, q, torch.zeros(4, dtype=torch.complex64))
    refused(MixedDevices, r"q on cpu, k on meta, v on cpu.*move them to one", q, q.to("meta"), q)
    refused(WrongArgument, r"k is list; give a torch tensor", q, [1], q)
    with pytest.raises(TypeError, match="missing a required argument: 'v'"):
        plain(q, q)


def test_a_variant_without_a_role_says_how_to_give_it_one() -> None:
    @af.variant
    def lost(x: af.Traced, k: af.Traced, v: af.Traced) -> af.Traced:
        return af.attend(af.softmax(af.scores(x, k)), v)

    q = torch.zeros(1, 1, 4, 8)
    with pytest.raises(
        UnknownRole, match=r"lost has no query.*x, k, v.*annotate it with af\.Query"
    ):
        lost(q, q, q)


def test_outputs_that_are_none_are_refused() -> None:
    q = torch.zeros(1, 1, 4, 8)

    def check(body: object, words: str, *extra: Tensor) -> None:
        assert callable(body)
        with pytest.raises(WrongOutput, match=words):
            af.variant(body).trace(q, q, q, *extra)

    def nothing(q: af.Query, k: af.Key, v: af.Value) -> None:
        af.attend(af.softmax(af.scores(q, k)), v)

    def scores(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        return af.scores(q, k)

    def constant(q: af.Query, k: af.Key, v: af.Value, table: af.Captured) -> af.Traced:
        return table[af.q]

    check(nothing, r"nothing returned NoneType; return what af\.attend or af\.lse made")
    check(scores, r"scores returned <traced .*return what af\.attend")
    check(constant, r"constant returned .*depends on no query", torch.zeros(4))


def test_a_traced_value_has_no_data() -> None:
    q = torch.zeros(1, 1, 4, 8)

    def check(body: object, words: str) -> None:
        assert callable(body)
        with pytest.raises(NoData, match=words):
            af.variant(body).trace(q, q, q)

    def branching(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        s = af.scores(q, k)
        if bool(af.q > af.k):
            s = s * 2.0
        return af.attend(af.softmax(s), v)

    def converting(q: af.Query, k: af.Key, v: af.Value) -> float:
        return float(af.scores(q, k))

    check(branching, r"use af\.where")
    check(converting, r"arithmetic works on it")


def test_tensors_from_outside_must_be_parameters() -> None:
    outside = torch.zeros(4)

    @af.variant
    def closing(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        return af.attend(af.softmax(af.scores(q, k) * outside), v)  # pyright: ignore

    q = torch.zeros(1, 1, 4, 8)
    with pytest.raises(WrongArgument, match=r"Tensor; give.*pass tensors as parameters"):
        closing(q, q, q)


def test_what_no_kernel_covers_is_refused_with_the_term() -> None:
    @af.variant
    def headless(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        return af.lse(af.scores(q, k))

    @af.variant
    def lopsided(q: af.Query, k: af.Key, v: af.Value) -> tuple[af.Traced, af.Traced]:
        return af.attend(af.softmax(af.scores(q, k)), v), af.lse(af.scores(q, k) * 3.0)

    @af.variant
    def blended(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        p = af.softmax(af.scores(q, k)) - af.softmax(af.scores(q, k) * 2.0)
        return af.attend(p, v)

    q = torch.randn(1, 1, 4, 8)
    for variant, words in (
        (headless, r"it has 0 contractions over keys, not one"),
        (lopsided, r"other scores than those of the softmax\s+in logsumexp"),
        (blended, r"made of contractions, masks(.|\n)*in softmax(.|\n)*\.reference"),
    ):
        with pytest.raises(CannotLower, match=words):
            variant(q, q, q)
    assert blended.reference(q, q, q).shape == q.shape  # pyright: ignore


def test_a_lambda_is_a_variant_too() -> None:
    body: Callable[[af.Query, af.Key, af.Value], af.Traced] = lambda q, k, v: af.attend(  # noqa: E731
        af.softmax(af.scores(q, k)), v
    )
    variant = af.variant(body)
    q = torch.randn(1, 1, 4, 8)
    assert "def variant(" in variant.source(q, q, q)


def test_captured_sizes_are_learnt_from_rope() -> None:
    @af.variant
    def rotated(
        q: af.Query, k: af.Key, v: af.Value, cos: af.Captured, sin: af.Captured
    ) -> af.Traced:
        s = af.scores(af.rope(q, cos, sin), af.rope(k, cos, sin))
        return af.attend(af.softmax(s), v)

    q = torch.zeros(1, 1, 4, 16)
    first = rotated.trace(q, q, q, *af.rope_tables(4, 16))
    assert rotated.trace(q, q, q, *af.rope_tables(9, 16)) is first
    assert rotated.trace(q, q, q, *af.rope_tables(9, 8)) is not first
    assert "cos.1=8" in str(first) and "cos.0=cos_dim0" in str(first)
