"""Every example has a main() and runs from start to end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from shown import PATHS, load

PAGE = Path(__file__).parents[1] / "docs" / "examples.md"


def test_there_are_examples() -> None:
    assert PATHS


def test_the_page_lists_every_example() -> None:
    listed = re.findall(r"^\| \[`(.+?)`\]\(\.\./examples/\1\)", PAGE.read_text("utf-8"), re.M)
    assert listed == [path.name for path in PATHS]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_example_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load(path)
    monkeypatch.setattr(module, "OUT", tmp_path, raising=False)
    monkeypatch.setattr(module, "DEVICES", ("a100",), raising=False)  # other tests have them all
    module.main()
    printed = capsys.readouterr().out
    assert "error against float64" in printed
