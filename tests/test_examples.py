"""Every example has a main() and runs from start to end."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("[0-9]*.py"))
PAGE = Path(__file__).parents[1] / "docs" / "examples.md"


def test_there_are_examples() -> None:
    assert EXAMPLES


def test_the_page_lists_every_example() -> None:
    listed = re.findall(r"^\| \[`(.+?)`\]\(\.\./examples/\1\)", PAGE.read_text("utf-8"), re.M)
    assert listed == [path.name for path in EXAMPLES]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])  # as when Python runs it
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "OUT", tmp_path, raising=False)
    module.main()
    printed = capsys.readouterr().out
    assert "error against float64" in printed
