"""Programs on the GPU that is there, against float64."""

from __future__ import annotations

import pytest
import torch
from cases import CASES, Case, Sizes, check

pytestmark = pytest.mark.gpu

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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_program_equals_float64(case: Case, dtype: torch.dtype) -> None:
    if case.head_dim % 8:
        pytest.skip("rows of this head_dim are not aligned for GPUs")
    generator = torch.Generator().manual_seed(len(case.name))
    for sizes in LENGTHS:
        tensors, extra = case.inputs(sizes, dtype, generator)
        tensors = [tensor.cuda() for tensor in tensors]
        extra = {name: tensor.cuda() for name, tensor in extra.items()}
        poison(tensors[0])
        got = case.variant(*tensors, **extra)
        assert isinstance(got, tuple)
        exact = case.dense(tensors, extra, torch.float64)
        check((got[0], got[1]), exact, case.dense(tensors, extra, dtype))


def poison(like: torch.Tensor) -> None:
    """Leave NaN in the memory that the next outputs will get."""
    for size in (2**10, 2**14, 2**18, 2**22):
        torch.full((size,), float("nan"), dtype=torch.float32, device=like.device)


def test_transposed_queries_are_read_in_place() -> None:
    case = CASES[1]
    tensors, extra = case.inputs(Sizes(2, 130, 70), torch.float16, torch.Generator())
    tensors = [tensor.cuda() for tensor in tensors]
    apart = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in tensors]
    got = case.variant(*apart)
    assert isinstance(got, tuple) and got[0].stride() == apart[0].stride()
    exact = case.dense(tensors, extra, torch.float64)
    check((got[0], got[1]), exact, case.dense(tensors, extra, torch.float16))


def test_misaligned_rows_are_refused() -> None:
    from attnfuse.errors import Misaligned

    case = CASES[0]
    wide = torch.zeros(1, 2, 9, 65, dtype=torch.float16, device="cuda")[..., :64]
    with pytest.raises(Misaligned, match=r"q has strides.*16 bytes.*q\.contiguous"):
        case.variant(wide, wide, wide)


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
