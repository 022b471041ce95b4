"""What is installed is what stands in the folders, under one name each; importing it is cheap."""

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections import Counter
from pathlib import Path

import pytest

import attnfuse

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PACKAGES: list[str] = PROJECT["tool"]["setuptools"]["packages"]
FOLDERS = {"attnfuse": "attnfuse", "attnfuse/rewrites": "rewrites", "attnfuse/backends": "backends"}
NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".venv", ".gpu", ".hypothesis", "*_cache", "out", "build", "dist", "*.egg-info"
)


def run(*command: str | Path, cwd: Path, path: Path | None = None) -> str:
    """Run a command with nothing on PYTHONPATH but `path`, and give what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def source_files(root: Path) -> set[str]:
    """Every file of the package in the tree at `root`, by the path it is installed under."""
    return {
        f"{installed}/{Path(place, file).relative_to(root / folder).as_posix()}"
        for installed, folder in FOLDERS.items()
        for place, _, files in os.walk(root / folder)  # which does not follow the links
        for file in files
        if not file.endswith(".pyc")
    }


def packages_in(root: Path) -> set[str]:
    """The folders that are Python packages, by dotted name."""
    folders = {Path(file).parent for file in source_files(root) if file.endswith(".py")}
    return {".".join(folder.parts) for folder in folders}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to build from: an earlier build's leftovers would find their way into a wheel."""
    copy = tmp_path_factory.mktemp("source") / "attnfuse"
    return shutil.copytree(ROOT, copy, symlinks=True, ignore=NOT_SOURCE)


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps")
    run(*pip, "--wheel-dir", folder, source, cwd=folder)
    (built,) = folder.iterdir()
    return built


def test_every_folder_is_listed() -> None:
    """A package that `pyproject.toml` does not list works here and is missing once installed."""
    assert packages_in(ROOT) == set(PACKAGES)


def test_a_new_folder_is_seen(tmp_path: Path) -> None:
    for folder in ("attnfuse/ir", "rewrites", "backends/novel"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "some.py").touch()
    assert packages_in(tmp_path) == {
        "attnfuse.ir",
        "attnfuse.rewrites",
        "attnfuse.backends.novel",
    }


def test_every_package_has_its_init() -> None:
    files = source_files(ROOT)
    assert [name for name in PACKAGES if f"{name.replace('.', '/')}/__init__.py" not in files] == []


def test_wheel_holds_every_file_once(wheel: Path) -> None:
    names = Counter(zipfile.ZipFile(wheel).namelist())
    assert set(names.values()) == {1}
    held = {name for name in names if ".dist-info/" not in name}
    assert held == source_files(ROOT)


def test_wheel_owns_one_name(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "attnfuse",
        f"attnfuse-{attnfuse.__version__}.dist-info",
    }


def test_installed_wheel_works_elsewhere(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet")
    run(*pip, "--target", target, wheel, cwd=tmp_path)
    code = (
        "import importlib, importlib.util, sys\n"
        "for name in sys.argv[1:]: print(importlib.import_module(name).__file__)\n"
        "assert not any(map(importlib.util.find_spec, ('rewrites', 'backends', 'tests')))\n"
    )
    printed = run(sys.executable, "-c", code, *PACKAGES, cwd=tmp_path, path=target)
    assert printed.split("\n")[:-1] == [
        str(target / name.replace(".", "/") / "__init__.py") for name in PACKAGES
    ]


def test_source_archive_holds_package_and_tests(source: Path, tmp_path: Path) -> None:
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", code, tmp_path, cwd=source)
    (built,) = tmp_path.iterdir()
    with tarfile.open(built) as archive:
        files = [name.partition("/")[2] for name in archive.getnames()]
    wanted = {f"{FOLDERS[where]}/{name}" for where, name in map(_split, source_files(ROOT))}
    tests = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").glob("*.py")}
    assert wanted | tests | {"pyproject.toml", "LICENSE", "constraints.txt"} <= set(files)
    assert not any(name.startswith(("attnfuse/rewrites", "attnfuse/backends")) for name in files)


def _split(installed: str) -> tuple[str, str]:
    where = max((place for place in FOLDERS if installed.startswith(f"{place}/")), key=len)
    return where, installed.removeprefix(f"{where}/")


@pytest.mark.parametrize("name", ["rewrites", "backends"])
def test_links_are_relative(name: str) -> None:
    assert os.readlink(ROOT / "attnfuse" / name) == f"../{name}"


@pytest.mark.parametrize("name", ["rewrites", "backends"])
def test_second_name_is_refused(name: str) -> None:
    code = f"""
try:
    import {name}
except ImportError as error:
    print(error)
"""
    printed = run(sys.executable, "-c", code, cwd=ROOT)
    assert printed == f"import attnfuse.{name}, not {name}\n"


def test_import_is_cheap() -> None:
    code = (
        "import attnfuse, sys; dir(attnfuse); attnfuse.errors; attnfuse.get_settings()\n"
        "print({'torch', 'tilelang', 'tvm', 'networkx', 'numpy'} & set(sys.modules))"
    )
    assert run(sys.executable, "-c", code, cwd=ROOT) == "set()\n"


def test_public_names_are_told_alike() -> None:
    """To type checkers (imports that never run), to `import *`, and to Python."""
    tree = ast.parse(Path(attnfuse.__file__).read_text("utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    shown = {
        alias.name: node.module
        for node in imports
        if node.module and node.module.startswith("attnfuse.")
        for alias in node.names
    }
    table: dict[str, str] = vars(attnfuse)["_MODULES"]
    assert shown == table
    assert set(attnfuse.__all__) == {*table, "__version__", "errors"}
    assert set(attnfuse.__all__) <= set(dir(attnfuse))


@pytest.mark.parametrize("name", attnfuse.__all__)
def test_public_name_exists(name: str) -> None:
    assert getattr(attnfuse, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'attnfuse' has no attribute 'novel'"):
        getattr(attnfuse, "novel")  # noqa: B009 - a type checker would refuse attnfuse.novel


def test_a_module_does_not_replace_the_name_it_defines() -> None:
    code = """
import sys, types, attnfuse
module = types.ModuleType("attnfuse.variant")
module.variant = "the decorator"
sys.modules["attnfuse.variant"] = attnfuse.variant = module  # as importing it does
print(attnfuse.variant)
"""
    assert run(sys.executable, "-c", code, cwd=ROOT) == "the decorator\n"
