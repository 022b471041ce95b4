"""The rewrite rules, one family a file; imported as `attnfuse.rewrites`."""

# The folder stands at the top of the checkout, where Python would also find it as `rewrites`.
# Under two names every rule would exist twice, so the second name is refused.
if __name__ != "attnfuse.rewrites":
    raise ImportError(f"import attnfuse.rewrites, not {__name__}")

from attnfuse.rewrites import masks, rope, scale

RULES = scale.RULES + masks.RULES + rope.RULES
"""All families, in the order in which they are applied."""
