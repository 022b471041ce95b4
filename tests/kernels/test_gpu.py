"""Programs on the GPU that is there, against float64."""

from __future__ import annotations

import pytest
import torch
from cases import CASES, Case, Sizes, check
from on_gpu import moved, poison

import attnfuse as af

pytestmark = pytest.mark.gpu

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LENGTHS = (
    Sizes(2, 65, 65),
    Sizes(1, 1, 1),
    Sizes(1, 1, 333),
    Sizes(2, 129, 1000),
    Sizes(1, 300, 70),
    Sizes(1, 7, 0),
    Sizes(1, 0, 7),
    Sizes(0, 7, 7),
)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_program_equals_float64(case: Case, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(len(case.name))
    for sizes in LENGTHS:
        tensors, extra = case.inputs(sizes, dtype, generator)
        tensors = [moved(tensor) for tensor in tensors]
        extra = {name: moved(tensor) for name, tensor in extra.items()}
        poison(tensors[0])
        got = case.variant(*tensors, **extra)
        got = got if isinstance(got, tuple) else (got,)
        exact = case.dense(tensors, extra, torch.float64)
        check(got, exact, case.dense(tensors, extra, dtype))


def test_transposed_queries_are_read_in_place() -> None:
    case = CASES[1]
    tensors, extra = case.inputs(Sizes(2, 130, 70), torch.float16, torch.Generator())
    tensors = [tensor.cuda() for tensor in tensors]
    apart = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in tensors]
    got = case.variant(*apart)
    assert isinstance(got, tuple) and got[0].stride() == apart[0].stride()
    exact = case.dense(tensors, extra, torch.float64)
    check((got[0], got[1]), exact, case.dense(tensors, extra, torch.float16))


def test_misaligned_rows_get_a_program_of_their_own() -> None:
    case = CASES[0]
    tensors, extra = case.inputs(Sizes(2, 130, 70), torch.float16, torch.Generator())
    tensors = [tensor.cuda() for tensor in tensors]
    wide = [torch.nn.functional.pad(tensor, (1, 2)) for tensor in tensors]
    apart = [tensor[..., 1:-2] for tensor in wide]
    exact = case.dense(tensors, extra, torch.float64)
    got = case.variant(*apart)
    assert isinstance(got, tuple)
    check(got, exact, case.dense(tensors, extra, torch.float16))
    across = [tensor.transpose(-1, -2).contiguous().transpose(-1, -2) for tensor in tensors]
    got = case.variant(*across)
    assert isinstance(got, tuple)
    check(got, exact, case.dense(tensors, extra, torch.float16))


def test_kernels_follow_the_current_stream() -> None:
    case = CASES[0]
    tensors, extra = case.inputs(Sizes(2, 500, 700), torch.float16, torch.Generator())
    tensors = [tensor.cuda() for tensor in tensors]
    case.variant(*tensors)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # type: ignore[no-untyped-call]
        late = [tensor * 1.0 for tensor in tensors]
        got = case.variant(*late)
    stream.synchronize()
    assert isinstance(got, tuple)
    exact = case.dense(tensors, extra, torch.float64)
    check((got[0], got[1]), exact, case.dense(tensors, extra, torch.float16))


@af.variant
def differential(
    q1: af.Query, q2: af.Query, k1: af.Key, k2: af.Key, v: af.Value, lam: af.Captured
) -> af.Traced:
    """Two attentions, combined by the second one's launch."""
    first = af.attend(af.softmax(af.mask(af.scores(q1, k1), af.causal())), v)
    second = af.attend(af.softmax(af.mask(af.scores(q2, k2), af.causal())), v)
    return first - lam[af.h] * second


@af.variant
def hoisted(
    q: af.Query, k: af.Key, v: af.Value, cos: af.Captured, sin: af.Captured
) -> tuple[af.Traced, af.Traced]:
    """Queries rotated while they are loaded, keys beforehand."""
    s = af.scores(af.rope(q, cos, sin), af.stored(af.rope(k, cos, sin)))
    s = af.mask(s, af.causal())
    return af.attend(af.softmax(s), v), af.lse(s)


def test_keys_rotated_beforehand_give_the_same_bits() -> None:
    case = next(case for case in CASES if case.name == "llama")
    for sizes in (Sizes(2, 200, 300), Sizes(1, 65, 1), Sizes(1, 5, 0)):
        tensors, extra = case.inputs(sizes, torch.float16, torch.Generator())
        tensors = [tensor.cuda() for tensor in tensors]
        extra = {name: tensor.cuda() for name, tensor in extra.items()}
        fused, before = case.variant(*tensors, **extra), hoisted(*tensors, **extra)
        assert all(torch.equal(one, other) for one, other in zip(fused, before, strict=True))


def test_several_attentions_are_combined() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 200, 64), (4, 200, 64), (2, 300, 64), (2, 300, 64), (2, 300, 128))
    tensors = [torch.randn(2, *shape, generator=generator).half().cuda() for shape in shapes]
    lam = torch.rand(4, generator=generator).cuda()
    got, exact = differential(*tensors, lam), differential.reference(*tensors, lam)
    plain = differential.reference(*tensors, lam, exact=False)
    assert isinstance(got, torch.Tensor) and isinstance(exact, torch.Tensor)
    assert isinstance(plain, torch.Tensor)
    check([got], [exact], [plain])
