"""Runs a tutorial: `python tutorial.py PAGE`, in an empty folder.

Blocks ``python file=NAME`` are written to a file, other ``python`` blocks are run one after another
in one namespace, ``raises=ERROR`` ones must raise it. In ``console`` blocks, each command after
``$`` is run, and what follows must match its output, where … stands for anything.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from attnfuse.cli import main


def blocks(page: str) -> Iterator[tuple[str, dict[str, str], str]]:
    """The language, the options and the text of each fenced block."""
    for info, text in re.findall(r"^```(\w+.*?)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        language, *options = info.split()
        yield language, dict(option.split("=") for option in options), text


def run_python(options: dict[str, str], text: str, namespace: dict[str, Any]) -> None:
    """Write a block to its file, or run it."""
    if "file" in options:
        Path(options["file"]).write_text(text, "utf-8")
        return
    source = Path(f"block_{len(list(Path().glob('block_*')))}.py")
    source.write_text(text, "utf-8")
    code = compile(text, str(source.absolute()), "exec")
    if "raises" in options:
        with pytest.raises(Exception, match=re.escape(str(source))) as caught:
            exec(code, namespace)
        assert caught.type.__name__ == options["raises"]
    else:
        exec(code, namespace)


def run_console(text: str) -> None:
    """Run the command of a block and compare its output."""
    command, expected = text.split("\n", 1)
    words = shlex.split(command.removeprefix("$ "))
    assert words[0] == "attnfuse", command
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        main(words[1:])
    pattern = expected.strip().replace("[", "[[]").replace("…", "*")
    assert fnmatchcase(output.getvalue().strip(), pattern), output.getvalue()


def run(page: Path) -> int:
    """Run all blocks of a page; how many there were."""
    namespace: dict[str, Any] = {"__name__": "tutorial"}
    count = 0
    for language, options, text in blocks(page.read_text("utf-8")):
        if language == "python":
            run_python(options, text, namespace)
        elif language == "console":
            run_console(text)
        count += 1
    return count


if __name__ == "__main__":
    print(f"{run(Path(sys.argv[1]))} blocks")
