from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from attnfuse.egraph.ruleset import RuleSet
from attnfuse.errors import BrokenRules, NoRules, RuleClash
from attnfuse.plugins import GROUP, Registry, load, rules_of
from attnfuse.rewrites import RULES, masks

PLUGIN = Path(__file__).parent / "plugin"

RULE = '''
from attnfuse.egraph.pattern import op, variables
from attnfuse.egraph.rule import rule

x, = variables("x")

@rule(op.stored(op.stored(x)), to=op.stored(x), exact="bits")
def {name}():
    """stored(stored(x)) → stored(x)"""
'''


def write(folder: Path, name: str, file: str = "mine.py") -> Path:
    path = folder / file
    path.write_text(RULE.format(name=name), "utf-8")
    return path


@pytest.fixture
def registry() -> Registry:
    return Registry(list)


def names(rules: RuleSet) -> list[str]:
    return [rule.name for rule in rules]


def test_without_plugins_there_are_our_own_rules(registry: Registry) -> None:
    assert registry.rules() == RULES


def test_a_file_brings_rules(registry: Registry, tmp_path: Path) -> None:
    path = write(tmp_path, "stores_once")
    assert names(registry.use(path)) == ["stores_once"]
    assert names(registry.rules()) == [*names(RULES), "stores_once"]
    assert registry.rules()["stores_once"].where == f"{path}:7"


def test_a_file_that_is_used_again_replaces_what_it_brought(
    registry: Registry, tmp_path: Path
) -> None:
    registry.use(write(tmp_path, "stores_once"))
    registry.use(str(write(tmp_path, "stores_a_single_time")))
    assert names(registry.rules())[len(RULES) :] == ["stores_a_single_time"]


def test_a_module_brings_the_rules_that_it_defines_or_lists(tmp_path: Path) -> None:
    module = load(write(tmp_path, "stores_once"))
    module.imported = masks.masks_merge  # type: ignore[attr-defined]  # pyright: ignore
    assert names(rules_of(module)) == ["stores_once"]
    assert rules_of(masks) == masks.RULES
    assert rules_of(masks.RULES) is masks.RULES


def test_a_clash_names_both_parties_and_adds_nothing(registry: Registry, tmp_path: Path) -> None:
    path = write(tmp_path, "masks_merge")
    with pytest.raises(RuleClash) as caught:
        registry.use(path)
    text = str(caught.value)
    assert "rule masks_merge is defined by attnfuse.rewrites.masks (" in text
    assert "rewrites/masks.py:" in text
    assert f"by attnfuse_rules_mine ({path}:7)" in text
    assert registry.rules() == RULES


def test_files_that_bring_nothing_are_errors(registry: Registry, tmp_path: Path) -> None:
    empty, broken = tmp_path / "empty.py", tmp_path / "broken.py"
    empty.write_text("x = 1", "utf-8")
    broken.write_text("1 / 0", "utf-8")
    with pytest.raises(NoRules, match=r"empty\.py defines no rules"):
        registry.use(empty)
    with pytest.raises(BrokenRules, match=r"broken\.py can't be loaded: ZeroDivisionError"):
        registry.use(broken)
    assert "attnfuse_rules_broken" not in sys.modules
    for missing in (tmp_path / "missing.py", tmp_path):
        with pytest.raises(BrokenRules, match="there is no such Python file"):
            registry.use(missing)
    with pytest.raises(NoRules, match="json defines no rules"):
        registry.use(json)


def _entry(module: ModuleType | None, name: str = "theirs") -> EntryPoint:
    value = "attnfuse_no_such_module" if module is None else module.__name__
    return EntryPoint(name, value, GROUP)


def test_entry_points_are_loaded_when_rules_are_first_needed(tmp_path: Path) -> None:
    module = load(write(tmp_path, "stores_once"))
    calls: list[str] = []

    def installed() -> list[EntryPoint]:
        calls.append("asked")
        return [_entry(module)]

    registry = Registry(installed)
    assert calls == []
    assert names(registry.rules())[len(RULES) :] == ["stores_once"]
    registry.rules()
    assert calls == ["asked"]


def test_two_packages_that_clash_are_both_named(tmp_path: Path) -> None:
    modules = [load(write(tmp_path, "stores_once", f"{file}.py")) for file in ("one", "two")]
    registry = Registry(lambda: [_entry(module, module.__name__) for module in modules])
    with pytest.raises(RuleClash, match=r"attnfuse_rules_one \(.*attnfuse_rules_two \("):
        registry.rules()


def test_an_entry_point_that_leads_nowhere_is_named() -> None:
    registry = Registry(lambda: [_entry(None)])
    with pytest.raises(BrokenRules, match=r"theirs = attnfuse_no_such_module of .*No module named"):
        registry.rules()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package under tests/plugin is installed."""
    folder = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "plugin"
    _copy(PLUGIN, source)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--target", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def _copy(source: Path, target: Path) -> None:
    """Only the sources: building leaves files behind."""
    for file in source.rglob("*"):
        if file.suffix in (".py", ".toml"):
            place = target / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.read_bytes())


def _attnfuse(site: Path, *arguments: str) -> str:
    program = f"import sys; sys.path.append({str(site)!r}); from attnfuse.cli import main; "
    program += f"sys.exit(main({list(arguments)!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_installed_package_is_found_and_its_rules_hold(site: Path) -> None:
    listed = json.loads(_attnfuse(site, "rules", "list", "--json"))
    assert [each["name"] for each in listed] == [*names(RULES), "weights_apart"]
    assert listed[-1]["module"] == "attnfuse_demo_rules"
    arguments = ("rules", "check", "--rule", "weights_apart", "--count", "300", "--json")
    (checked,) = json.loads(_attnfuse(site, *arguments))
    assert checked["passed"]
    assert checked["applied"] >= 300
