"""The command line: `attnfuse VERB …`. Each verb is a module of this package.

A verb's module has a function ``configure``, which is given argparse's
subparsers, adds its own, and sets the default ``run`` to a function from the
parsed arguments to the exit status.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from attnfuse.errors import AttnFuseError

VERBS = ("rules", "cache", "doctor")
"""The verbs, each a module here, in the order of the help."""


def parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    made = argparse.ArgumentParser(prog="attnfuse", description="A compiler for attention kernels.")
    verbs = made.add_subparsers(metavar="VERB", required=True)
    for verb in VERBS:
        import_module(f"attnfuse.cli.{verb}").configure(verbs)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; by default with the arguments of this process.

    Returns:
        0, or 1 when what was asked for failed (a wrong rule), or 2 when it couldn't be done.
    """
    given = parser().parse_args(arguments)
    try:
        status = given.run(given)
    except AttnFuseError as error:
        print(f"attnfuse: {error}", file=sys.stderr)
        return 2
    assert isinstance(status, int)
    return status
