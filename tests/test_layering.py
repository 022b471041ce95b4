"""Imports go only up the list of layers; rewrites and backends never import each other."""

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "attnfuse.rewrites": "rewrites",
    "attnfuse.backends": "backends",
    "attnfuse": "attnfuse",
}

# One line a layer, lowest first. A module may import from its own layer and from those above it
# in this list. Whoever adds a file or folder to the package gives it a layer here.
LAYERS = (
    {"errors", "settings", "logs", "files", "versions"},
    {"ir"},
    {"egraph"},
    {"devices", "cost", "autodiff", "masks", "plan"},
    {"rewrites", "backends"},
    {"compiled", "compiler", "runtime", "plugins"},
    {"blocks", "scalings", "tables", "traced", "signature", "variant"}
    | {"flex", "capture", "integrations", "explain", "cli", "testing", "__main__"},
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
APART = {"rewrites", "backends"}


def modules(root: Path) -> Iterator[tuple[str, Path]]:
    """Every module of the package, with its file; the links are the same files once more."""
    for package, folder in FOLDERS.items():
        for place, folders, files in os.walk(root / folder):
            folders.sort()
            inside = Path(place).relative_to(root / folder).parts
            for file in sorted(files):
                if file.endswith(".py"):
                    yield ".".join((package, *inside, file[:-3])), Path(place, file)


def imported(tree: ast.AST) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Each import, wherever it stands: its line, the module, and the names taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ()
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            yield node.lineno, name, tuple(alias.name for alias in node.names)


def objection(part: str, target: str, names: tuple[str, ...]) -> str | None:
    """Why the part of the package called `part` must not import this, if so."""
    if target.startswith("."):
        return "relative import; write the full name"
    if target == "attnfuse":
        # The version is set before anything else is, so it can be had from the package itself.
        fine = names == ("__version__",)
        return None if fine else "import from the module that defines it, not from attnfuse"
    if not target.startswith("attnfuse."):
        return None
    other = target.split(".")[1]
    if other not in LEVEL:
        return f"{other} has no layer; give it one in tests/test_layering.py"
    if LEVEL[other] > LEVEL[part]:
        return f"{part} (layer {LEVEL[part]}) must not import {other} (layer {LEVEL[other]})"
    return f"{part} and {other} stay apart" if {part, other} == APART else None


def violations(root: Path) -> list[str]:
    """What is wrong in the tree at `root`, one line each."""
    found: list[str] = []
    for name, path in modules(root):
        part = name.split(".")[1]
        where = path.relative_to(root)
        if name == "attnfuse.__init__":
            continue  # the lazy front: it imports at first use, and names everything
        if part not in LEVEL:
            found.append(f"{where}: {part} has no layer; give it one in tests/test_layering.py")
            continue
        for line, target, names in imported(ast.parse(path.read_text("utf-8"))):
            why = objection(part, target, names)
            if why:
                found.append(f"{where}:{line}: {why}")
    return found


def test_imports_keep_to_the_layers() -> None:
    assert violations(ROOT) == []


def test_the_package_is_looked_at() -> None:
    names = {name for name, _ in modules(ROOT)}
    assert {
        "attnfuse.settings",
        "attnfuse.rewrites.__init__",
        "attnfuse.backends.__init__",
    } <= names
    assert not any(name.startswith("attnfuse.attnfuse") for name in names)


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("attnfuse/ir/term.py", "import attnfuse.egraph.rule", "ir (layer 1) must not import egra"),
        (
            "attnfuse/settings.py",
            "from attnfuse.ir.term import Term",
            "settings (layer 0) must not",
        ),
        ("attnfuse/plan/a.py", "def f():\n  import attnfuse.rewrites", "plan (layer 3) must not"),
        ("attnfuse/cost.py", "if TYPE_CHECKING:\n  from attnfuse.cli import x", "cost (layer 3)"),
        ("rewrites/rope.py", "import attnfuse.backends.tilelang", "rewrites and backends stay"),
        ("backends/tilelang/a.py", "from attnfuse.rewrites import rope", "backends and rewrites"),
        ("backends/tilelang/a.py", "from attnfuse import rewrites", "import from the module"),
        ("attnfuse/flex.py", "import attnfuse", "import from the module that defines it"),
        ("attnfuse/flex.py", "from attnfuse import __version__, variant", "import from the module"),
        ("attnfuse/flex.py", "from . import variant", "relative import"),
        ("attnfuse/flex.py", "from ..ir import term", "relative import"),
        ("attnfuse/flex.py", "import attnfuse.novel", "novel has no layer"),
        ("attnfuse/novel.py", "", "novel has no layer"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, text: str, why: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text, "utf-8")
    (found,) = violations(tmp_path)
    assert found.startswith(file)
    assert why in found


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("attnfuse/plan/a.py", "import torch\nfrom attnfuse.ir.term import Term"),
        ("attnfuse/plan/a.py", "from attnfuse.plan.b import c\nimport attnfuse.devices"),
        ("attnfuse/runtime/a.py", "from attnfuse import __version__\nimport attnfuse.backends"),
        ("backends/tilelang/a.py", "from attnfuse.backends.reference import x"),
        ("attnfuse/__init__.py", "from attnfuse.variant import variant"),
    ],
)
def test_what_is_allowed_is_not_found(tmp_path: Path, file: str, text: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text, "utf-8")
    assert violations(tmp_path) == []
