"""`attnfuse cache list|clear`: what is in the compile cache, and removing it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnfuse.runtime.contents import Entry, definition_files, entries, remove
from attnfuse.settings import get_settings

Parsers = Any  # argparse has no public name for what add_subparsers returns


def configure(verbs: Parsers) -> None:
    """Add the verb."""
    verb = verbs.add_parser("cache", help="list and clear the compile cache")
    actions = verb.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="the programs in the cache, the newest first")
    listing.set_defaults(run=_list)
    clearing = actions.add_parser("clear", help="remove all programs and definitions")
    clearing.add_argument("--yes", action="store_true", help="without asking")
    clearing.set_defaults(run=_clear)


def bytes_in_words(size: int) -> str:
    """A size as people read it."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def age_in_words(seconds: float) -> str:
    """An age as people read it."""
    for unit, factor in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= factor:
            return f"{seconds / factor:.0f} {unit}"
    return f"{seconds:.0f} s"


def _list(given: argparse.Namespace) -> int:
    found = entries()
    rows = [_row(entry) for entry in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
    print(_total(found, definition_files()))
    return 0


def _clear(given: argparse.Namespace) -> int:
    found, files = entries(), definition_files()
    if (found or files) and not (given.yes or _agreed(_total(found, files))):
        return 2
    removed: list[Entry] = []
    for entry in found:
        problem = remove(entry.folder)
        if problem is None:
            removed.append(entry)
            print(f"removed {'  '.join(_row(entry))}")
        else:
            print(f"kept {_place(entry)}: {problem}")
    total = _total(removed, files)
    for path in files:
        path.unlink(missing_ok=True)
    print(f"removed {total}")
    return 0 if removed == found else 1


def _agreed(total: str) -> bool:
    if not sys.stdin.isatty():
        print("attnfuse: nobody to ask whether to clear the cache; give --yes", file=sys.stderr)
        return False
    return input(f"remove {total}? [y/N] ").strip().lower() in ("y", "yes")


def _row(entry: Entry) -> tuple[str, ...]:
    size, age = bytes_in_words(entry.size), age_in_words(entry.age)
    return entry.name, entry.device, size, age, _place(entry)


def _place(entry: Entry) -> str:
    return str(entry.folder.relative_to(get_settings().cache_dir))


def _total(found: Sequence[Entry], files: Sequence[Path]) -> str:
    size = sum(entry.size for entry in found) + sum(path.stat().st_size for path in files)
    counted = f"{_counted(found, 'program')}, {_counted(files, 'definition')}"
    return f"{counted}, {bytes_in_words(size)}, in {get_settings().cache_dir}"


def _counted(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"
