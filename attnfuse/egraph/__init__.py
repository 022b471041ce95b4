"""The rewrite core: patterns, rules, the e-graph, extraction, explanations.

It knows ops, types and normal forms, but nothing of attention. What the author
of a rule needs can be had from here; the rest from the modules.
"""

from attnfuse.egraph.pattern import closed, number, op, rest, var, variables
from attnfuse.egraph.rule import Declined, Facts, Rule, rule
from attnfuse.egraph.ruleset import RuleSet, Schedule

__all__ = [
    "Declined",
    "Facts",
    "Rule",
    "RuleSet",
    "Schedule",
    "closed",
    "number",
    "op",
    "rest",
    "rule",
    "var",
    "variables",
]
