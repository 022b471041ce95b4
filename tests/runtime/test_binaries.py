"""Binaries on disk: what describes them, and when they count as absent."""

from __future__ import annotations

import ctypes
import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import compiler, tiny_source

import attnfuse as af
from attnfuse.backends.tilelang import binaries, compilers
from attnfuse.backends.tilelang.lower import Lowered
from attnfuse.backends.tilelang.source import Source
from attnfuse.devices import find_device
from attnfuse.errors import BuildFailed
from attnfuse.runtime.building import ensure

CPU, GPU = find_device("cpu"), find_device("a100")
SOURCE = Source("one", CPU, "")
LOWERED = Lowered(
    'extern "C" int32_t one_kernel(float* x, int32_t n, int64_t x_stride) {\n'
    "  x[0] = n + x_stride; return 0;\n}\n",
    "cpp",
    0,
)
CUDA = (
    'extern "C" __global__ void one_kernel(const half_t* __restrict__ q, int n, int64_t s);\n'
    'extern "C" __global__ void __launch_bounds__(256, 1) one_kernel(const half_t* __restrict__ q,'
    " int n, int64_t s) {}\n"
)
needs_nvcc = pytest.mark.skipif(compilers.find_nvcc() is None, reason="needs nvcc")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a binary in it."""
    folder = tmp_path_factory.mktemp("made")
    binaries.make(SOURCE, LOWERED, folder)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of that folder, elsewhere."""
    return shutil.copytree(made, tmp_path / "copy")


def description(folder: Path) -> Path:
    """The JSON in a folder."""
    (path,) = folder.glob("*.json")
    return path


def test_what_was_made_is_found_elsewhere_and_runs(folder: Path) -> None:
    built = binaries.find(CPU, folder)
    assert built is not None and built.path.parent == folder
    assert built.parameters == (("x", "float*"), ("n", "int32_t"), ("x_stride", "int64_t"))
    assert built.text.read_text("utf-8") == LOWERED.text
    number = ctypes.c_float()
    call = ctypes.CDLL(str(built.path))[built.function]
    call(ctypes.byref(number), ctypes.c_int32(40), ctypes.c_int64(2))
    assert number.value == 42


def test_the_description_names_no_place(made: Path, folder: Path) -> None:
    text = description(folder).read_text("utf-8")
    data = json.loads(text)
    assert set(data["versions"]) == {"attnfuse", "tilelang", "compiler"}
    assert (data["name"], data["device"], data["arch"]) == ("one", "cpu", "native")
    assert str(made) not in text and str(Path.cwd()) not in text and str(Path.home()) not in text


def _change(**values: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = description(folder)
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")

    return change


def _flip(folder: Path) -> None:
    (path,) = folder.glob("*.so")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "its format is 0, not 2": _change(format=0),
    "made for another processor": _change(machine="other"),
    "not what it describes": _flip,
    "can't be read (JSONDecodeError": lambda folder: description(folder).write_text("{"),
    "can't be read (KeyError": lambda folder: description(folder).write_text("{}"),
    "can't be read (TypeError": _change(parameters=3),
    "can't be read (UnicodeDecodeError": lambda folder: description(folder).write_bytes(b"\xff"),
}


@pytest.mark.parametrize("problem", DAMAGE)
def test_what_is_damaged_counts_as_absent(
    folder: Path, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    DAMAGE[problem](folder)
    with caplog.at_level(logging.INFO, "attnfuse"):
        assert binaries.find(CPU, folder) is None
    assert f"{description(folder)} is not used: " in caplog.text and problem in caplog.text


@pytest.mark.parametrize("suffix", [".so", ".json"])
def test_half_of_it_counts_as_absent(folder: Path, suffix: str) -> None:
    (path,) = folder.glob(f"*{suffix}")
    path.unlink()
    assert binaries.find(CPU, folder) is None


def test_another_compiler_has_another_binary(folder: Path, tmp_path: Path) -> None:
    with af.use(cxx=compiler(tmp_path / "other", "")):
        assert binaries.find(CPU, folder) is None
        made = binaries.make(SOURCE, LOWERED, folder)
        assert made == binaries.find(CPU, folder)
    assert made != binaries.find(CPU, folder) is not None
    assert len(list(folder.glob("*.so"))) == 2


def test_without_a_compiler_any_binary_for_this_processor_is_found(folder: Path) -> None:
    with af.use(cxx=None):
        assert binaries.find(CPU, folder) is not None
        _change(machine="other")(folder)
        assert binaries.find(CPU, folder) is None


def test_a_refused_program_leaves_no_binary(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="no_such_type"):
        binaries.make(SOURCE, replace(LOWERED, text="no_such_type x;"), tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".cpp"]


@pytest.mark.parametrize(("kind", "read"), [("float", 0), ("half", 1)])
def test_half_precision_is_read_where_a_program_has_any(
    kind: str, read: int, tmp_path: Path
) -> None:
    text = f"""
    #include <tl_templates/cpp/common.h>
    #ifdef HALF_ROUND_STYLE
    constexpr int32_t read = 1;
    #else
    constexpr int32_t read = 0;
    #endif
    extern "C" int32_t one_kernel({kind}* x) {{ x[0] = ({kind})1.5f; return read; }}
    """
    built = binaries.make(SOURCE, replace(LOWERED, text=text), tmp_path)
    assert ctypes.CDLL(str(built.path))[built.function](ctypes.byref(ctypes.c_float())) == read


def test_a_compiler_that_can_not_be_run_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c++"
    path.write_bytes(b"\0")
    path.chmod(0o755)
    with af.use(cxx=str(path)), pytest.raises(BuildFailed, match=r"c\+\+ --version(.|\n)*format"):
        binaries.find(CPU, tmp_path)


def test_what_killed_builds_left_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "building-left").mkdir()
    (tmp_path / "building-left" / "kernel.so").touch()
    binaries.make(SOURCE, LOWERED, tmp_path)
    assert list(tmp_path.glob("building-*")) == []


def test_the_prototype_of_a_cuda_kernel() -> None:
    name, parameters = binaries.prototype(GPU, CUDA)
    assert name == "one_kernel"
    assert parameters == (("q", "const half_t*"), ("n", "int"), ("s", "int64_t"))


def test_tilelang_builds_hip() -> None:
    assert ensure([tiny_source(1.0, "mi300x")]) == [None]


@needs_nvcc
def test_a_program_for_a_gpu_becomes_a_cubin(tmp_path: Path) -> None:
    with af.use(cache_dir=tmp_path):
        (built,) = ensure([tiny_source(2.0, "a100")])
    assert built is not None and built.path.read_bytes()[:4] == b"\x7fELF"
    assert built.function == "tiny_kernel" and built.shared_memory > 0
    assert {"q", "k", "v", "out"} <= {name for name, _ in built.parameters}
    assert {kind.rstrip("*") for _, kind in built.parameters} >= {"int", "int64_t"}
    with af.use(cache_dir=tmp_path), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        patch.delenv("CUDA_HOME", raising=False)
        assert ensure([tiny_source(2.0, "a100")]) == [built]
