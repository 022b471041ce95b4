"""Programs by their keys.

A graph that `torch.compile` or `torch.export` made knows an attention by a
key, the digest of its program. Such graphs outlive the process, and so what
a key means is written to ``<cache_dir>/definitions/<key>.json`` when it gets
into a graph.
"""

from __future__ import annotations

import logging
from pathlib import Path

from attnfuse.errors import CorruptProgram, UnknownDefinition
from attnfuse.files import write_atomically
from attnfuse.ir.program import Program
from attnfuse.ir.serial import dump, load
from attnfuse.settings import get_settings

_log = logging.getLogger("attnfuse.runtime")
_known: dict[str, Program] = {}


def definitions() -> Path:
    """The folder of all definitions, which need not exist."""
    return get_settings().cache_dir / "definitions"


def define(program: Program) -> str:
    """The key of a program, under which `find` finds it from now on, in this process."""
    key = program.digest
    _known.setdefault(key, program)
    return key


def keep(key: str) -> None:
    """Write down what a key means, for the later processes in which a graph may run."""
    path, text = definitions() / f"{key}.json", dump(find(key))
    try:
        if not path.exists() or path.read_bytes() != text.encode():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
    except OSError as error:
        _log.info("the definition of %s is in this process only: %s", key, error)


def find(key: str) -> Program:
    """The program with this key.

    Raises:
        UnknownDefinition: there is none, in this process or on disk.
        CorruptProgram: the file is damaged.
    """
    if key not in _known:
        try:
            text = (definitions() / f"{key}.json").read_text("utf-8", errors="replace")
        except OSError as error:
            raise UnknownDefinition(key=key, folder=definitions()) from error
        program = load(text)
        if program.digest != key:
            raise CorruptProgram(problem=f"{key}.json holds {program.digest}")
        _known[key] = program
    return _known[key]
