"""What every test may use: golden files, and tests that need a GPU."""

import difflib
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

TESTS = Path(__file__).parent

# Every run builds its kernels itself, in a folder that goes with it.
_built = tempfile.TemporaryDirectory(prefix="attnfuse-tests-")
os.environ["ATTNFUSE_CACHE_DIR"] = _built.name
os.environ["TILELANG_PRINT_ON_COMPILATION"] = "0"

# Where there is a process for each core already, torch's threads would wait for each other,
# spinning, and processes that build kernels side by side would each import TileLang first.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["ATTNFUSE_BUILD_PROCESSES"] = "1"

# A kernel takes seconds to compile, so an example has no deadline. Where a change is judged, the
# examples are the same every time; everywhere else they are new each time, and find more.
hypothesis.settings.register_profile("attnfuse", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("attnfuse")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="run only the tests that have golden files, and write these anew",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--update-golden"):
        items[:] = [item for item in items if "golden" in getattr(item, "fixturenames", ())]
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not _has_cuda():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _has_cuda() -> bool:
    import torch  # only where a test asks: it takes a second

    return torch.cuda.is_available()


def compare(text: str, path: Path, *, update: bool) -> None:
    """Hold `text` against the file at `path`, or write it there."""
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    if not path.exists():
        pytest.fail(f"there is no {path}; `make golden` writes it: read it, then commit it")
    wanted = path.read_text("utf-8")
    if text != wanted:
        lines = difflib.unified_diff(
            wanted.splitlines(), text.splitlines(), str(path), "what the test made", lineterm=""
        )
        pytest.fail("\n".join([*lines, "", "if this is meant, `make golden` writes the file anew"]))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compare a text with the test's golden file: `golden(text)` or `golden(text, ".py")`.

    The file is tests/golden/<test file>/<test><suffix>; `golden(text, path=...)` names another.
    """
    folder = TESTS / "golden" / request.path.relative_to(TESTS).with_suffix("")
    name = re.sub(r"[^\w.]+", "-", request.node.name).strip("-")
    update = bool(request.config.getoption("--update-golden"))

    def check(text: str, suffix: str = ".txt", path: Path | None = None) -> None:
        compare(text, path or folder / f"{name}{suffix}", update=update)

    return check
