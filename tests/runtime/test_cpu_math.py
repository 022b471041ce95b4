"""The functions of cpu_math.h by themselves, at each width of vectors that this processor has."""

from __future__ import annotations

import ctypes
import platform
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attnfuse.backends.tilelang.compilers import FLAGS, HEADER
from attnfuse.settings import get_settings

NARROWER = ("-mno-avx512f", "-mno-avx") if platform.machine() == "x86_64" else ()
SIZES = (1, 2, 5, 6, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 100, 128, 129, 257)
GUARD = 64

EXPORTS = """
extern "C" {
void plain(float* a, float* b, float* c, int rows, int columns, int depth) {
  attnfuse_product(a, b, c, rows, columns, depth);
}
void transposed(float* a, float* b, float* c, int rows, int columns, int depth) {
  attnfuse_product_transposed(a, b, c, rows, columns, depth);
}
void exp2s(float* x, float* y, int count) {
  for (int i = 0; i < count; ++i) y[i] = exp2f(x[i]);
}
}
"""


@pytest.fixture(scope="module", params=["-march=native", *NARROWER])
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    """The functions, compiled as kernels are."""
    compiler = get_settings().cxx
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    folder: Path = tmp_path_factory.mktemp("cpu_math")
    (folder / "exports.cpp").write_text(EXPORTS)
    built = folder / "exports.so"
    command = [compiler, *FLAGS, request.param, "-include", str(HEADER)]
    subprocess.run([*command, str(folder / "exports.cpp"), "-o", str(built)], check=True)
    return ctypes.CDLL(str(built))


def address(tensor: Tensor) -> ctypes.c_void_p:
    """Where the elements of a tensor are."""
    return ctypes.c_void_p(tensor.data_ptr())


def guarded(values: Tensor) -> tuple[Tensor, Tensor]:
    """The same values, contiguous, and the memory around them, which is NaN."""
    memory = torch.full((values.numel() + 2 * GUARD,), float("nan"))
    inner = memory[GUARD:-GUARD].view(values.shape)
    inner.copy_(values)
    return inner, memory


def some_sizes(count: int) -> Iterator[tuple[int, int, int]]:
    """Rows, columns and depths at random, and some that kernels have."""
    yield from ((64, 64, 64), (64, 64, 128), (64, 17, 64), (64, 64, 17), (1, 1, 1))
    chooser = random.Random(0)
    for _ in range(count):
        rows, columns, depth = chooser.choices(SIZES, k=3)
        yield rows, columns, depth


@pytest.mark.parametrize("transposed", [False, True])
def test_products_equal_float64_and_touch_nothing_else(
    library: ctypes.CDLL, transposed: bool
) -> None:
    product = library.transposed if transposed else library.plain
    generator = torch.Generator().manual_seed(0)
    for rows, columns, depth in some_sizes(200):
        shape = (columns, depth) if transposed else (depth, columns)
        a, _ = guarded(torch.randn(rows, depth, generator=generator))
        b, _ = guarded(torch.randn(shape, generator=generator))
        before = torch.randn(rows, columns, generator=generator)
        c, memory = guarded(before)
        product(address(a), address(b), address(c), rows, columns, depth)
        right = (b.T if transposed else b).double()
        exact = before.double() + a.double() @ right
        size = before.double().abs() + a.double().abs() @ right.abs()
        error = (c.double() - exact).abs()
        assert (error <= (depth + 1) * 2.0**-24 * size).all(), (rows, columns, depth)
        assert memory[:GUARD].isnan().all() and memory[-GUARD:].isnan().all()


def test_exp2_is_within_two_units_in_the_last_place(library: ctypes.CDLL) -> None:
    x = torch.linspace(-126.0, 127.499, 100_001)
    y = torch.empty_like(x)
    library.exp2s(address(x), address(y), len(x))
    exact = x.double().exp2()
    assert ((y.double() - exact).abs() <= 2 * 2.0**-23 * exact).all()
    x = torch.tensor([float("-inf"), -1e30, -127.0, -0.0, 0.0, 1.0])
    y = torch.empty_like(x)
    library.exp2s(address(x), address(y), len(x))
    assert torch.equal(y, torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 2.0]))
