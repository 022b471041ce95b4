"""Normal forms within the e-graph: a sum of a sum is one sum, and so for all flat ops.

The constructors of terms see to that, but they can't look into an e-class
that a rule is given as a leaf. These rules look into it.
"""

from __future__ import annotations

from attnfuse.egraph.pattern import Node, rest
from attnfuse.egraph.rule import Rule, rule
from attnfuse.egraph.ruleset import RuleSet
from attnfuse.ir.normal import construct
from attnfuse.ir.op import Op
from attnfuse.ir.ops import OPS
from attnfuse.ir.term import Term


def _flattening(row: Op) -> Rule:
    pattern = Node(row.name, (Node(row.name, (rest("inner"),), ()), rest("outer")), ())

    @rule(pattern, name=f"flatten_{row.name}", exact="real")
    def flatten(inner: tuple[Term, ...], outer: tuple[Term, ...]) -> Term:
        """Take the operands of an operand of the same op: f(f(*x), *y) → f(*x, *y)."""
        return construct(row, inner + outer)

    return flatten


FLATTEN = RuleSet(tuple(_flattening(row) for row in OPS.values() if row.flat))
"""One rule for each flat op; `saturate` runs them with every rule set."""
