"""CUDA graphs, streams, threads, devices and compiled functions on the GPU that is there."""

# What transforms functions has no types in PyTorch.
# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from attending import (
    assert_all_close,
    attended,
    biased,
    by_reference,
    gradients,
    tensors,
)
from torch import Tensor

import attnfuse as af
from attnfuse.runtime.stats import reset_stats, stats

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*its kernels have no backward pass:UserWarning"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),  # PyTorch's own
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),
]

HALF = 2e-2
"""Rounding of float16 and bfloat16 outputs and gradients of this size."""


@af.variant
def twice(
    q: af.Query, k: af.Key, v: af.Value, table: af.Captured, doc: af.Captured
) -> tuple[af.Traced, af.Traced]:
    """What `biased` computes by one launch, with keys that a launch of their own has copied."""
    s = af.bias(af.scores(q, af.stored(k)), table[af.h, af.q - af.k + 8])
    s = af.mask(s, doc[af.b, af.k] <= doc[af.b, af.q])
    return af.attend(af.softmax(s), v), af.lse(s)


def on_gpu(
    batch: int = 2, q_len: int = 40, dtype: torch.dtype = torch.float16, device: str = "cuda"
) -> list[Tensor]:
    """Arguments of `biased` and of `twice`; documents are copied, since they were expanded."""
    given = tensors(batch, q_len, dtype=dtype, head_dim=64)
    return [tensor.contiguous().to(device) for tensor in given]


def exact(own: af.Variant, given: list[Tensor]) -> list[Tensor]:
    out, lse = own.reference(*given)
    return [out, lse]


def assert_right(own: af.Variant, got: Any, given: list[Tensor]) -> None:
    """The outputs for these arguments, within the rounding of float16 and bfloat16."""
    for one, other in zip(got, exact(own, given), strict=True):
        torch.testing.assert_close(one.double(), other, atol=HALF, rtol=HALF)


@contextmanager
def no_synchronisation() -> Generator[None]:
    """A block in which nothing may wait for the GPU."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("own", "launches"), [(biased, 1), (twice, 2)], ids=["one", "two"])
def test_a_cuda_graph_replays_with_new_data(own: af.Variant, launches: int) -> None:
    given, others = on_gpu(), [tensor.flip(0) for tensor in on_gpu()]
    assert len(own.compile(*given).launches) == launches
    own(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = own(*given)
    for data in (others, on_gpu(), others):
        for tensor, new in zip(given, data, strict=True):
            tensor.copy_(new)
        for output in got:
            output.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert_right(own, got, data)


def test_a_capture_on_another_stream_after_a_warm_up_there() -> None:
    given, stream = on_gpu(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        attended(*given)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        got = attended(*given)
    graph.replay()
    torch.cuda.synchronize()
    assert_right(biased, got, given)


@pytest.mark.parametrize("own", [biased, twice], ids=["one launch", "two launches"])
def test_reduce_overhead_replays_with_new_data(own: af.Variant) -> None:
    torch._dynamo.reset()
    function: Callable[..., Any] = torch.compile(
        lambda *given: own(*given), mode="reduce-overhead", fullgraph=True
    )
    given = on_gpu()
    for turn in range(4):
        data = [given[0] * (turn + 1), *given[1:]]
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            got = [each.clone() for each in function(*data)]
        assert_right(own, got, data)


@pytest.mark.parametrize("own", [biased, twice], ids=["one launch", "two launches"])
def test_a_warmed_call_waits_for_nothing(own: af.Variant) -> None:
    for q_len in (40, 90):
        own(*on_gpu(2, q_len))
    known, new = on_gpu(2, 40), on_gpu(3, 77)
    reset_stats()
    with no_synchronisation():
        first = own(*known)
        second = own(*new)  # a length that no call has had yet
    assert (stats().builds, stats().compilations, stats().memory_hits) == (0, 0, 1)
    assert_right(own, first, known)
    assert_right(own, second, new)


@pytest.mark.parametrize("own", [biased, twice], ids=["one launch", "two launches"])
def test_a_fresh_thread_s_first_work_on_the_gpu_may_be_a_kernel(own: af.Variant) -> None:
    """Before it allocates anything: outputs of another thread's call were freed."""
    given = on_gpu()
    own(*given)
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(own, *given).result()
    torch.cuda.synchronize()
    assert_right(own, got, given)


def test_threads_on_streams_of_their_own() -> None:
    data = [on_gpu(2, q_len) for q_len in (40, 64, 71, 90)]
    torch.cuda.synchronize()

    def call(given: list[Tensor]) -> tuple[Tensor, Tensor]:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)  # type: ignore[no-untyped-call]
            late = [tensor * 1 for tensor in given]
            got = attended(*late)
        stream.synchronize()
        return got

    with ThreadPoolExecutor(4) as pool:
        for given, got in zip(data, pool.map(call, data), strict=True):
            assert_right(biased, got, given)


def test_kernels_run_where_the_tensors_are() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    for current, other in (("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")):
        given = on_gpu(device=other)
        with torch.cuda.device(current):
            for own in (biased, twice):
                got = own(*given)
                assert {str(each.device) for each in got} == {other}
                assert_right(own, got, given)
            assert torch.cuda.current_device() == torch.device(current).index


def test_one_dynamic_graph_serves_all_lengths_forward_and_backward() -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled: Callable[..., Any] = torch.compile(
        attended, fullgraph=True, dynamic=True, backend=counter
    )
    for q_len in (40, 12, 64, 90, 33):
        given = on_gpu(2, q_len)
        found = gradients(compiled, given)
        assert_all_close(found, gradients(by_reference, given), atol=HALF)
        assert all(bool(each.any()) for each in found)
    assert counter.frame_count == 1


def test_inductor_forward_and_backward() -> None:
    torch._dynamo.reset()

    def function(*given: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = attended(given[0] * 0.5, *given[1:])
        return out + 1.0, lse

    compiled: Callable[..., Any] = torch.compile(function, fullgraph=True, dynamic=True)
    for q_len in (40, 90):
        given = on_gpu(2, q_len)
        assert_all_close(compiled(*given), function(*given), atol=HALF)
        assert_all_close(gradients(compiled, given), gradients(function, given), atol=HALF)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast(dtype: torch.dtype) -> None:
    given = on_gpu(dtype=torch.float32)

    def function(*given: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cuda", dtype):
            return attended(*given)

    out, lse = function(*given)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    low = [*(tensor.to(dtype) for tensor in given[:3]), *given[3:]]
    assert_all_close([out, lse], attended(*low), atol=0)
    with torch.autocast("cuda", dtype):
        wide = torch.nn.functional.scaled_dot_product_attention(given[0], given[0], given[0])
    assert wide.dtype is dtype
    found = gradients(function, given)
    assert {each.dtype for each in found} == {torch.float32}
    assert_all_close(found, gradients(attended, given), atol=0.3)
