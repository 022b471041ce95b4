"""Programs by their keys.

A graph that `torch.compile` or `torch.export` made knows an attention by a
key, the digest of its program. Such graphs outlive the process, and so what
each key means lies in ``<cache_dir>/definitions/<key>.json``.
"""

from __future__ import annotations

import logging
from pathlib import Path

from attnfuse.errors import UnknownDefinition
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
    """The key of a program, under which `find` finds it, in this process and in later ones."""
    key = program.digest
    if key not in _known:
        _known[key] = program
        path = definitions() / f"{key}.json"
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, dump(program))
        except OSError as error:
            _log.info("the definition of %s is in this process only: %s", program.name, error)
    return key


def find(key: str) -> Program:
    """The program with this key.

    Raises:
        UnknownDefinition: there is none, in this process or on disk.
        CorruptProgram: the file is damaged.
    """
    if key not in _known:
        try:
            text = (definitions() / f"{key}.json").read_text("utf-8")
        except OSError as error:
            raise UnknownDefinition(key=key, folder=definitions()) from error
        _known[key] = load(text)
    return _known[key]
