"""The rewrite rules, one family a file; imported as `attnfuse.rewrites`."""

# The folder stands at the top of the checkout, where Python would also find it as `rewrites`.
# Under two names every rule would exist twice, so the second name is refused.
if __name__ != "attnfuse.rewrites":
    raise ImportError(f"import attnfuse.rewrites, not {__name__}")

from attnfuse.egraph.ruleset import RuleSet
from attnfuse.rewrites import contractions, masks, norms, rope, scale, shifts, storage

FAMILIES = (scale, masks, shifts, contractions, rope, norms, storage)
"""The modules that hold the rules, in the order in which they are applied."""

RULES = sum((family.RULES for family in FAMILIES), RuleSet())
"""All families."""
