from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs").glob("tutorial_*.md")), ids=lambda p: p.stem
)
def test_all_of_a_tutorial_is_true(page: Path, tmp_path: Path) -> None:
    """In a process and a folder of its own, since it puts rules in force and writes files."""
    command = [sys.executable, str(ROOT / "tests" / "support" / "tutorial.py"), str(page)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(" blocks")
    assert int(done.stdout.splitlines()[-1].split()[0]) >= 5
