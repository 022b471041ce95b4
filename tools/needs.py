"""Say which of AttnFuse's needs this interpreter lacks: `python needs.py PYPROJECT [EXTRA ...]`.

Prints what is missing, by commas, and exits with 1 when anything is.
"""

import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement


def missing(needs: Iterable[str]) -> Iterator[str]:
    """The needs that are not installed, or not in a version that fits."""
    for need in needs:
        requirement = Requirement(need)
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            yield need
        else:
            if not requirement.specifier.contains(installed, prereleases=True):
                yield f"{need} (has {installed})"


def main(pyproject: str, *extras: str) -> int:
    """Check the dependencies in `pyproject` and those of `extras`."""
    project = tomllib.loads(Path(pyproject).read_text("utf-8"))["project"]
    optional = project["optional-dependencies"]
    needs = [*project["dependencies"], *(need for extra in extras for need in optional[extra])]
    lacking = list(missing(needs))
    print(", ".join(lacking))
    return bool(lacking)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
