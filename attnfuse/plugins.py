"""The rules in force: AttnFuse's own, those of installed packages, and those that were asked for.

A package brings rules by an entry point of the group ``attnfuse.rules``::

    [project.entry-points."attnfuse.rules"]
    my_rules = "my_package.rules"

It names a module, whose rules are meant, or a rule set in one. Packages are
only looked at when rules are first needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

from attnfuse.egraph.rule import Rule
from attnfuse.egraph.ruleset import RuleSet
from attnfuse.errors import BrokenRules, NoRules

GROUP = "attnfuse.rules"
"""The group of entry points."""

Source = RuleSet | ModuleType | str | Path
"""Where rules come from: a rule set, a module, or a Python file."""


def rules_of(source: Source) -> RuleSet:
    """The rules of a source: a module's ``RULES``, or else all that it defines, in order.

    Raises:
        BrokenRules: when the file doesn't exist, or raises an error when it is run.
        NoRules: when there is none.
        RuleClash: when two have one name.
    """
    if isinstance(source, RuleSet):
        return source
    module = source if isinstance(source, ModuleType) else load(Path(source))
    listed = getattr(module, "RULES", None)
    if listed is None:
        listed = [each for each in vars(module).values() if _is_of(each, module)]
    rules = RuleSet(tuple(listed))
    if not len(rules):
        raise NoRules(source=_name(source))
    return rules


def _is_of(value: object, module: ModuleType) -> TypeGuard[Rule]:
    return isinstance(value, Rule) and value.module == module.__name__


def load(path: Path) -> ModuleType:
    """Run a Python file as a module.

    Raises:
        BrokenRules: when it doesn't exist, or raises an error.
    """
    name = f"attnfuse_rules_{path.stem}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise BrokenRules(source=path, problem="there is no such Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module  # as for any module: dataclasses and pickles look there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise BrokenRules(source=path, problem=f"{type(error).__name__}: {error}") from error
    return module


class Registry:
    """Sources of rules, in the order in which they were added.

    Args:
        installed: finds the entry points of installed packages; called once, when needed.
    """

    def __init__(self, installed: Callable[[], Iterable[EntryPoint]]) -> None:
        self._installed = installed
        self._sources: dict[str, RuleSet] | None = None

    def rules(self) -> RuleSet:
        """All rules.

        Raises:
            BrokenRules: when the rules of an installed package can't be loaded.
            NoRules: when it has none.
            RuleClash: naming both parties, when rules of two sources have one name.
        """
        return _joined(self._known())

    def use(self, source: Source) -> RuleSet:
        """Add the rules of a source; once more replaces what it brought before.

        Raises:
            BrokenRules: when the file doesn't exist, or raises an error.
            NoRules: when there is none.
            RuleClash: naming both parties; nothing is added then.
        """
        added = rules_of(source)
        sources = {**self._known(), _name(source): added}
        _joined(sources)
        self._sources = sources
        return added

    def _known(self) -> dict[str, RuleSet]:
        if self._sources is None:
            from attnfuse.rewrites import RULES

            sources = {"attnfuse.rewrites": RULES}
            for entry in self._installed():
                sources[f"entry point {entry.name} = {entry.value}"] = _loaded(entry)
            self._sources = sources
        return self._sources


def _loaded(entry: EntryPoint) -> RuleSet:
    try:
        source = entry.load()
    except Exception as error:
        of = entry.dist.name if entry.dist else "an installed package"
        name = f"{entry.name} = {entry.value} of {of}"
        raise BrokenRules(source=name, problem=f"{type(error).__name__}: {error}") from error
    return rules_of(source)


def _joined(sources: dict[str, RuleSet]) -> RuleSet:
    joined = RuleSet()
    for rules in sources.values():
        joined += rules
    return joined


def _name(source: Source) -> str:
    if isinstance(source, RuleSet):
        return f"rules {', '.join(rule.name for rule in source)}"
    return source.__name__ if isinstance(source, ModuleType) else str(Path(source).resolve())


@cache
def _registry() -> Registry:
    return Registry(lambda: entry_points(group=GROUP))


def active_rules() -> RuleSet:
    """The rules in force in this process; raises what `Registry.rules` raises."""
    return _registry().rules()


def use_rules(source: Source) -> RuleSet:
    """Put the rules of a module or a Python file in force, for all later compilations.

    Args:
        source: a module, the path of a Python file, or a rule set.

    Returns:
        The rules that it brought.

    Raises:
        BrokenRules: when the file doesn't exist, or raises an error.
        NoRules: when there is none.
        RuleClash: naming both parties, when a rule of that name is in force already.
    """
    return _registry().use(source)
