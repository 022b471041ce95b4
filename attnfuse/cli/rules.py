"""`attnfuse rules list|show|check|docs`: the rules in force, what they say, whether they hold.

`docs/rules.md` holds the catalogue that `catalogue` makes.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from attnfuse.egraph.rule import Rule
from attnfuse.egraph.ruleset import RuleSet
from attnfuse.plugins import active_rules, rules_of, use_rules

Parsers = Any  # argparse has no public name for what add_subparsers returns


def configure(verbs: Parsers) -> None:
    """Add the verb."""
    verb = verbs.add_parser("rules", help="list, show and check rewrite rules")
    actions = verb.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="all rules in force, in order")
    listing.set_defaults(run=_list)
    showing = actions.add_parser("show", help="one rule in full")
    showing.add_argument("name", help="the rule's name")
    showing.set_defaults(run=_show)
    checking = actions.add_parser("check", help="try rules on random examples")
    checking.add_argument("file", nargs="?", help="a Python file: check its rules, else all")
    checking.add_argument("--rule", action="append", help="only the rule called so (repeatable)")
    checking.add_argument("--count", type=_count, default=300, help="examples a rule (300)")
    checking.add_argument("--seed", type=int, default=0, help="where the examples begin (0)")
    checking.set_defaults(run=_check)
    documenting = actions.add_parser("docs", help="the catalogue of all rules, as Markdown")
    documenting.set_defaults(run=_docs)
    for action in (listing, showing, checking):
        action.add_argument("--json", action="store_true", help="print JSON")
    for action in (listing, showing, checking, documenting):
        text = "put the rules of a Python file in force, too (repeatable)"
        action.add_argument("--use", action="append", default=[], metavar="FILE", help=text)


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return count


def _active(given: argparse.Namespace) -> RuleSet:
    for file in given.use:
        use_rules(file)
    return active_rules()


def described(rule: Rule) -> dict[str, Any]:
    """A rule as plain values, for JSON."""
    return {
        "name": rule.name,
        "algebra": rule.algebra,
        "exact": rule.exact,
        "left": str(rule.left),
        "condition": None if rule.when is None else rule.reason,
        "doc": rule.doc,
        "module": rule.module,
        "where": rule.where,
    }


def _list(given: argparse.Namespace) -> int:
    rules = _active(given)
    if given.json:
        print(json.dumps([described(rule) for rule in rules], indent=2, ensure_ascii=False))
        return 0
    wide = max(len(rule.name) for rule in rules)
    for rule in rules:
        print(f"{rule.name:{wide}}  {rule.exact:6}  {rule.algebra}  ({rule.module})")
    return 0


def _show(given: argparse.Namespace) -> int:
    rule = _active(given)[given.name]
    if given.json:
        print(json.dumps(described(rule), indent=2, ensure_ascii=False))
        return 0
    print(f"{rule.name} [{rule.exact}]  {rule.where}\n\n{rule.doc}\n\nmatches  {rule.left}")
    if rule.when is not None:
        print(f"declines when  {rule.reason}")
    return 0


def _docs(given: argparse.Namespace) -> int:
    print(catalogue(_active(given)), end="")
    return 0


def catalogue(rules: RuleSet) -> str:
    """The rules by family, as Markdown made of the docstrings of modules and rules."""
    families = groupby(rules, key=lambda rule: rule.module)
    return "\n".join("\n".join(_family(module, list(members))) for module, members in families)


def _family(module: str, rules: list[Rule]) -> Iterator[str]:
    yield f"## {module.rpartition('.')[2]}\n"
    doc = getattr(sys.modules.get(module), "__doc__", None)
    if doc:
        yield re.sub(r"^``(.+)``\n +", r"* `\1`: ", doc.strip(), flags=re.MULTILINE) + "\n"
    for rule in rules:
        yield from _entry(rule)


def _entry(rule: Rule) -> Iterator[str]:
    explained = "\n".join(line for line in rule.doc.splitlines() if line.strip() != rule.algebra)
    yield f"### {rule.name}\n"
    yield f"    {rule.algebra}\n"
    if explained.strip():
        yield f"{explained.strip()}\n"
    facts = [f"`{rule.exact}`", f"matches `{rule.left}`"]
    if rule.when is not None:
        facts.append(f"on condition: {rule.reason.removeprefix('not so: ').removeprefix('not ')}")
    yield f"({'; '.join(facts)})\n"


def _check(given: argparse.Namespace) -> int:
    from attnfuse.testing import check  # torch takes a second to load; list and show don't need it

    rules = rules_of(given.file) if given.file else _active(given)
    chosen = rules.only(given.rule) if given.rule else rules
    results = [check(rule, given.count, given.seed) for rule in chosen]
    if given.json:
        print(json.dumps([each.data() for each in results], indent=2, ensure_ascii=False))
    else:
        print("\n".join(map(str, results)))
    return 0 if all(each.passed for each in results) else 1
