"""`attnfuse cache`: what it lists, what it removes, and what it leaves alone."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import tiny_source

import attnfuse as af
from attnfuse.cli import main
from attnfuse.cli.cache import age_in_words, bytes_in_words
from attnfuse.runtime.building import ensure
from attnfuse.runtime.cache import locked

NAMES = (
    *("program.py", "program.py.0123abcd", "lock", "kernel-0123456789abcdef.json"),
    *("kernel-0123456789abcdef.so", "kernel-0123456789abcdef.cpp.89abcdef"),
    *("kernel-0123456789abcdef.cubin", "kernel-0123456789abcdef.cu"),
    *("building-x1_y/kernel.so", "__pycache__/program.pyc"),
)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The cache's folder."""
    with af.use(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache"


def program(root: Path, digit: str, heading: str) -> Path:
    """A program's folder with all that may be in one."""
    folder = root / "programs" / (digit * 32)
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    (folder / "program.py").write_text(f'"""{heading}.\n\nGenerated …\n"""\n', "utf-8")
    return folder


def test_list_says_what_is_there_newest_first(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = program(root, "a", "llama for NVIDIA A100 (sm_80)")
    program(root, "b", "gemma for CPU (native)")
    for path in (old, *old.rglob("*")):
        os.utime(path, (time.time() - 7300, time.time() - 7300))
    assert main(["cache", "list"]) == 0
    first, second, total = capsys.readouterr().out.splitlines()
    assert first.split() == [
        "gemma",
        "CPU",
        "(native)",
        "46",
        "B",
        "0",
        "s",
        f"programs/{'b' * 32}",
    ]
    assert second.startswith("llama  NVIDIA A100 (sm_80)  53 B  2 h  programs/")
    assert total == f"2 programs, 0 definitions, 99 B, in {root}"


def test_what_the_compiler_makes_is_listed_and_removed_to_the_last_file(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (built,) = ensure([tiny_source(31.0)])
    assert built is not None
    assert main(["cache", "list"]) == 0
    assert capsys.readouterr().out.startswith("tiny  CPU (native)  ")
    assert main(["cache", "clear", "--yes"]) == 0
    assert capsys.readouterr().out.startswith("removed tiny  CPU (native)  ")
    assert list((root / "programs").iterdir()) == []


def test_an_empty_cache(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("list", "clear"):
        assert main(["cache", verb]) == 0
        assert f"0 programs, 0 definitions, 0 B, in {root}" in capsys.readouterr().out
    assert not root.exists()


def test_clear_leaves_what_is_not_ours(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = program(root, "a", "llama for CPU (native)")
    outside = root.parent / "precious"
    outside.mkdir()
    (outside / "program.py").touch()
    (root / "programs" / ("c" * 32)).symlink_to(outside)
    (root / "programs" / "mine").mkdir()
    (root / "notes.txt").touch()
    (folder / "kernel.so").touch()
    (folder / "building-of-mine").touch()
    (folder / "linked").symlink_to(outside)
    assert main(["cache", "clear", "--yes"]) == 1
    text = capsys.readouterr().out
    assert "building-of-mine, kernel.so, linked is not of AttnFuse's making" in text
    assert {path.name for path in folder.iterdir()} == {"building-of-mine", "kernel.so", "linked"}
    assert (outside / "program.py").exists() and (root / "notes.txt").exists()
    assert {path.name for path in (root / "programs").iterdir()} == {"a" * 32, "c" * 32, "mine"}


def test_definitions_are_counted_and_cleared_and_nothing_else(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = root / "definitions"
    (folder / "mine").mkdir(parents=True)
    ours = [folder / f"{digit * 32}.json{end}" for digit, end in (("a", ""), ("b", ".0123abcd"))]
    others = [folder / name for name in ("notes.json", f"{'c' * 32}.json.bak", f"{'d' * 31}.json")]
    for path in (*ours, *others):
        path.write_text("{}")
    (folder / f"{'e' * 32}.json").mkdir()
    assert main(["cache", "list"]) == 0
    assert capsys.readouterr().out == f"0 programs, 2 definitions, 4 B, in {root}\n"
    assert main(["cache", "clear", "--yes"]) == 0
    assert capsys.readouterr().out == f"removed 0 programs, 2 definitions, 4 B, in {root}\n"
    left = {*(path.name for path in others), "mine", f"{'e' * 32}.json"}
    assert {path.name for path in folder.iterdir()} == left


def test_clear_asks_before_it_removes_definitions(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    definition = root / "definitions" / f"{'a' * 32}.json"
    definition.parent.mkdir(parents=True)
    definition.touch()
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["cache", "clear"]) == 2
    assert "give --yes" in capsys.readouterr().err and definition.exists()


def test_clear_keeps_what_is_being_built(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = program(root, "a", "llama for CPU (native)")
    with locked(folder):
        assert main(["cache", "clear", "--yes"]) == 1
    assert f"kept programs/{'a' * 32}: it is being built" in capsys.readouterr().out
    assert (folder / "program.py").exists()


class Terminal(io.StringIO):
    """A stdin at which somebody sits."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("YES\n", 0), ("\n", 2), ("no\n", 2)])
def test_clear_asks_on_a_terminal(
    root: Path, monkeypatch: pytest.MonkeyPatch, answer: str, status: int
) -> None:
    folder = program(root, "a", "llama for CPU (native)")
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert main(["cache", "clear"]) == status
    assert folder.exists() is (status == 2)


def test_clear_refuses_where_nobody_can_answer(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = program(root, "a", "llama for CPU (native)")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["cache", "clear"]) == 2
    assert "give --yes" in capsys.readouterr().err and folder.exists()


def test_a_folder_without_its_program_is_listed(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "programs" / ("a" * 32)).mkdir(parents=True)
    assert main(["cache", "list"]) == 0
    assert capsys.readouterr().out.startswith("?  ?  0 B  0 s  programs/aaaa")


def test_numbers_in_words() -> None:
    sizes = [0, 999, 1000, 1_500_000, 2_000_000_000]
    assert list(map(bytes_in_words, sizes)) == ["0 B", "999 B", "1.0 kB", "1.5 MB", "2.0 GB"]
    ages = [0, 59, 60, 7200, 86400 * 3]
    assert list(map(age_in_words, ages)) == ["0 s", "59 s", "1 min", "2 h", "3 d"]
