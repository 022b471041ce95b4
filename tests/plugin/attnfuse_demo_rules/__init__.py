"""One rule for differential attention (Ye et al., 2024), brought by an entry point."""

from attnfuse.egraph.pattern import op, variables
from attnfuse.egraph.rule import rule
from attnfuse.ir.term import Term

p, r, v, dtype = variables("p r v dtype")


def have_keys(p: Term, r: Term) -> bool:
    """Both parts are weights of keys, and neither is broadcast over them."""
    return "k" in p.type.names and "k" in r.type.names


@rule(
    op.contract(op.add(p, r), v, over="k", dtype=dtype),
    to=op.add(
        op.contract(p, v, over="k", dtype=dtype),
        op.contract(r, v, over="k", dtype=dtype),
    ),
    when=have_keys,
)
def weights_apart() -> None:
    """(p + r)·v → p·v + r·v"""
