"""Builds one program: `python -m attnfuse.runtime.worker FOLDER`, with the program on stdin.

It answers on stdout, in JSON: what it did, as `attnfuse.runtime.stats` counts, or the class and
the fields of the error that it raised.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from attnfuse.backends.tilelang.source import Source
from attnfuse.devices import Device
from attnfuse.errors import AttnFuseError
from attnfuse.runtime.building import build
from attnfuse.runtime.stats import stats


def main() -> None:
    """Build the program, and answer."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what tools print goes to stderr, and is no part of the answer
    job = json.load(sys.stdin)
    source = Source(job["name"], Device(**job["device"]), job["text"], job["exact"])
    said = json.dumps(answer(source, Path(sys.argv[1])))
    with os.fdopen(answers, "w", encoding="utf-8") as stream:
        stream.write(said)


def answer(source: Source, folder: Path) -> dict[str, object]:
    """Build a program, and say what that took or why it failed."""
    try:
        build(source, folder)
    except AttnFuseError as error:
        return {"error": type(error).__name__, "fields": _plain(error.fields)}
    return asdict(stats())


def _plain(fields: dict[str, object]) -> dict[str, object]:
    """The fields of an error as JSON has them; terms and the like become their text."""
    return {name: each if isinstance(each, int) else str(each) for name, each in fields.items()}


if __name__ == "__main__":
    main()
