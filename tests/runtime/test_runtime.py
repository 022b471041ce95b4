"""Calls: fallbacks, refusals, the cache, and what loading a kernel leaves alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from numbers_of import numbers
from torch import Tensor

import attnfuse as af
from attnfuse.devices import find_device
from attnfuse.errors import BuildFailed, NoToolchain, WrongArgument
from attnfuse.runtime import cache, dispatch


def fresh(cap: float) -> af.Variant:
    """A variant that nothing has compiled yet: ``cap`` is part of its program."""

    @af.variant
    def capped(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        return af.attend(af.softmax(af.softcap(af.scores(q, k), cap)), v)

    return capped


def qkv(length: int = 9) -> list[Tensor]:
    """Random queries, keys and values."""
    return [torch.randn(1, 2, length, 16) for _ in range(3)]


def test_without_a_compiler_the_reference_runs_and_says_so_once() -> None:
    variant, tensors = fresh(2.0), qkv()
    dispatch.warn_once.cache_clear()
    with af.use(cxx=None):
        with pytest.warns(UserWarning, match=r"capped runs on AttnFuse's reference.*ATTNFUSE_CXX"):
            out = variant(*tensors)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = variant(*tensors)
    assert isinstance(out, Tensor) and isinstance(again, Tensor)
    assert torch.equal(out, again)
    exact = variant.reference(*tensors)
    assert isinstance(exact, Tensor) and out.dtype is torch.float32
    torch.testing.assert_close(out.double(), exact, atol=1e-5, rtol=0)


def test_without_a_compiler_large_scores_are_refused() -> None:
    variant, tensors = fresh(3.0), qkv(65)
    with af.use(cxx=None, reference_limit=64 * 64):
        with pytest.raises(NoToolchain, match=r"no C\+\+ compiler.*4225 scores.*limit of 4096"):
            variant(*tensors)
        variant(*(tensor[:, :, :64] for tensor in tensors))
    with af.use(cxx=None, reference_limit=0):
        variant(*tensors)


def test_meta_tensors_give_meta_tensors() -> None:
    variant = fresh(10.0)
    meta = [tensor.transpose(1, 2).to("meta").transpose(1, 2) for tensor in qkv()]
    assert variant.compile(*meta).device.name == "cpu"
    out = variant(*meta)
    assert isinstance(out, Tensor) and out.is_meta
    assert (out.shape, out.stride()) == (meta[0].shape, meta[0].stride())


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    broken = tmp_path / "c++"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho no such luck >&2; exit 1\n')
    broken.chmod(0o755)
    with (
        af.use(cxx=str(broken), cache_dir=tmp_path),
        pytest.raises(BuildFailed, match=r"-march=native(.|\n)*no such luck"),
    ):
        fresh(4.0)(*qkv())


def test_a_kernel_is_built_once_and_found_again_elsewhere(tmp_path: Path) -> None:
    tensors = qkv()
    with af.use(cache_dir=tmp_path / "one"):
        out = fresh(5.0)(*tensors)
    moved = tmp_path / "two"
    shutil.move(tmp_path / "one", moved)
    (library,) = moved.rglob("*.so")
    built = library.stat().st_mtime_ns
    with af.use(cache_dir=moved):
        again = fresh(5.0)(*tensors)
    assert list(moved.rglob("*.so")) == [library] and library.stat().st_mtime_ns == built
    assert isinstance(out, Tensor) and isinstance(again, Tensor) and torch.equal(out, again)
    assert {path.suffix for path in library.parent.iterdir()} == {".py", ".cpp", ".so", ".json", ""}


def test_a_cache_that_can_not_be_written_costs_a_warning_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    cache.temporary_root.cache_clear()
    variant, tensors = fresh(6.0), qkv()
    with af.use(cache_dir=tmp_path), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "mkdir", _refuse_inside(tmp_path, Path.mkdir))
        with pytest.warns(UserWarning, match=r"can't write its cache.*ATTNFUSE_CACHE_DIR"):
            out = variant(*tensors)
    exact = variant.reference(*tensors)
    assert isinstance(out, Tensor) and isinstance(exact, Tensor)
    torch.testing.assert_close(out.double(), exact, atol=1e-5, rtol=0)


def _refuse_inside(root: Path, mkdir: object) -> object:
    def refuse(path: Path, *args: object, **kwargs: object) -> None:
        if path.is_relative_to(root):
            raise PermissionError(13, "Permission denied", str(path))
        assert callable(mkdir)
        mkdir(path, *args, **kwargs)

    return refuse


SUBNORMALS = """
import numpy, torch
import attnfuse as af

@af.variant
def plain(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
    return af.attend(af.softmax(af.scores(q, k)), v)

q = torch.randn(1, 1, 70, 16)
plain(q, q, q)
small = torch.tensor([1e-40]) * torch.tensor([0.5])
assert small.item() > 0, "torch flushes subnormals"
assert (numpy.float32(1e-40) * numpy.float32(0.5)) > 0, "numpy flushes subnormals"
"""


def test_loading_a_kernel_leaves_subnormal_numbers_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SUBNORMALS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_cpu_exponential_is_accurate(tmp_path: Path) -> None:
    """The host compiler's exp2f against float64, over the whole range that kernels use."""
    import ctypes

    from attnfuse.backends.tilelang.compilers import FLAGS, HEADER
    from attnfuse.settings import get_settings

    loop = "for (int i = 0; i < n; i++) y[i] = exp2f(x[i]);"
    text = f'extern "C" void all(const float* x, float* y, int n) {{ {loop} }}'
    (tmp_path / "exp.cpp").write_text(text)
    compiler = get_settings().cxx
    assert compiler is not None
    command = [compiler, *FLAGS, "-include", str(HEADER), str(tmp_path / "exp.cpp")]
    subprocess.run([*command, "-o", str(tmp_path / "exp.so")], check=True)
    x = torch.cat((torch.linspace(-126, 127, 100_001), torch.linspace(-1, 1, 10_001)))
    x = torch.cat((x, torch.tensor([0.0, -127.0, -1000.0, float("-inf"), float("nan")])))
    y = torch.empty_like(x)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, y)]
    ctypes.CDLL(str(tmp_path / "exp.so")).all(*pointers, len(x))
    exact = x.double().exp2()
    assert ((y[:-5] - exact[:-5]) / exact[:-5]).abs().max() < 2.5e-7
    assert numbers(y[-5:-1]) == [1.0, 0.0, 0.0, 0.0] and y[-1].isnan()


def test_each_stage_is_dumped_where_asked(tmp_path: Path) -> None:
    with af.use(dump_dir=tmp_path):
        compiled = fresh(7.0).compile(*qkv())
        (launch,) = compiled.launches
        text = launch.lowered.text
    digests = [choice.launches[0].source.digest for choice in compiled.choices]
    names = {f"capped-cpu-{digest[:8]}" for digest in digests}
    assert {path.name for path in tmp_path.iterdir()} == names and len(names) == 2
    folder = tmp_path / f"capped-cpu-{launch.source.digest[:8]}"
    stages = {path.name: path.read_text() for path in folder.iterdir()}
    assert set(stages) == {"graph.txt", "plan.txt", "program.py", "kernel.cpp"}
    assert stages["program.py"] == launch.source.text and stages["kernel.cpp"] == text
    assert stages["graph.txt"] == f"{launch.part.program}\n"


def test_explain_and_source_show_what_runs() -> None:
    variant, tensors = fresh(8.0), qkv()
    text = variant.explain(*tensors)
    for part in ("capped on CPU", "traced graph", "tanh", "plan", "64×64 tiles", "rewriting"):
        assert part in text
    source = variant.source(*tensors)
    compile(source, "program.py", "exec")
    folder = cache.folder_of(variant.compile(*tensors).launches[0].source.digest)
    variant(*tensors)
    assert (folder / "program.py").read_text() == source
    built = variant.explain(*tensors)
    assert f"capped_kernel in {folder}" in built and "0 bytes of shared memory" in built
    assert "capped_kernel" in variant.source(*tensors, lang="target")
    with pytest.raises(WrongArgument, match=r"lang is fortran; give 'tilelang' or 'target'"):
        variant.source(*tensors, lang="fortran")


def test_compiling_is_logged(tmp_path: Path) -> None:
    environment = os.environ | {"ATTNFUSE_LOGS": "+attnfuse.compiler,+attnfuse.runtime"}
    environment["ATTNFUSE_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", SUBNORMALS],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert "plain for CPU: pipelined, 64×64 tiles" in done.stderr
    assert "building plain for CPU" in done.stderr


def test_the_reference_device_is_the_cpu_profile() -> None:
    assert fresh(9.0).compile(*qkv()).device is find_device("cpu")
