"""Golden files can fail, and a test that needs a GPU is skipped only where there is none."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Outcome = tuple[int, str]

TESTS = """
import pytest

def test_text(golden):
    golden("one\\ntwo\\n")

@pytest.mark.parametrize("n", [1.5])
def test_program(golden, n):
    golden("x = 1\\n", ".py")

def test_other():
    pass

@pytest.mark.gpu
def test_on_gpu():
    pass
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Outcome]:
    """Run pytest with our conftest on the tests above: its exit status and what it printed."""
    (tmp_path / "tests").mkdir()
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path / "tests")
    (tmp_path / "tests" / "test_some.py").write_text(TESTS, "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n", "utf-8")

    def pytest_on_them(*options: str, cuda: bool = False) -> Outcome:
        torch = f"class cuda: is_available = lambda: {cuda}"
        (tmp_path / "torch.py").write_text(torch, "utf-8")
        command = (sys.executable, "-m", "pytest", "--import-mode=importlib", "-rs", *options)
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout

    return pytest_on_them


def test_golden_files_are_written_then_compared(
    run: Callable[..., Outcome], tmp_path: Path
) -> None:
    folder = tmp_path / "tests" / "golden" / "test_some"
    status, printed = run("-k", "text or program")
    assert status == 1
    assert f"there is no {folder / 'test_text.txt'}; `make golden` writes it" in printed

    status, printed = run("--update-golden")
    assert status == 0
    assert "2 passed" in printed
    assert {path.name for path in folder.iterdir()} == {"test_text.txt", "test_program-1.5.py"}
    assert run("-k", "text or program")[0] == 0

    (folder / "test_text.txt").write_text("one\n2\n", "utf-8")
    status, printed = run("-k", "text")
    assert status == 1
    assert "-2\n" in printed
    assert "+two\n" in printed


def test_gpu_tests_are_skipped_without_a_gpu(run: Callable[..., Outcome]) -> None:
    status, printed = run("-k", "gpu or other", cuda=False)
    assert status == 0
    assert "1 passed, 1 skipped" in printed
    assert "needs a CUDA device" in printed


def test_gpu_tests_run_with_a_gpu(run: Callable[..., Outcome]) -> None:
    assert "1 passed" in run("-k", "gpu", cuda=True)[1]
