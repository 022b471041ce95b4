"""Values of indices and captured tensors alone, packed into one node.

What depends on positions, heads, lengths and captured tensors only (a
relative bias, a mask's predicate) is of no interest to rewriting as long as
it stands alone, and would only make its graphs larger. Where it meets a value
that is computed from queries, keys or values, it becomes one term,
``indexed(*tensors; form)``: the form is the expression, with slot i in the
place of the i-th captured tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

from attnfuse.ir.normal import substitute
from attnfuse.ir.ops import OPS
from attnfuse.ir.term import Term, make, walk

_CLOSED_LEAVES = {"const", "index", "length", "slot"}


def is_closed(term: Term) -> bool:
    """Whether a value depends on indices, lengths and captured tensors alone."""
    name = term.op.name
    if name == "input":
        return term["role"] == "captured"
    if name in _CLOSED_LEAVES:
        return True
    return (term.op.elementwise or name == "gather") and all(map(is_closed, term.operands))


def pack(term: Term) -> Term:
    """A closed value as one ``indexed`` term; constants and what is packed stay as they are."""
    if term.op.name in ("const", "indexed"):
        return term
    tensors = [leaf for leaf in walk(term) if leaf.op.name == "input"]
    slots = {
        tensor: make(OPS["slot"], (), (place, tensor.type.dtype, tensor.type.axes))
        for place, tensor in enumerate(tensors)
    }
    return make(OPS["indexed"], tensors, (substitute(term, slots),))


def unpack(term: Term) -> Term:
    """The expression behind an ``indexed`` term; any other term stays as it is."""
    return fill(term.form(), term.operands) if term.op.name == "indexed" else term


def fill(form: Term, tensors: Sequence[Term]) -> Term:
    """``form`` with ``tensors`` in its slots."""
    slots = [leaf for leaf in walk(form) if leaf.op.name == "slot"]
    return substitute(form, {slot: tensors[slot.integer("position")] for slot in slots})


def settle(operands: Sequence[Term]) -> list[Term]:
    """The operands of one op: closed ones packed where another one is not closed."""
    opened = [unpack(operand) for operand in operands]
    if all(map(is_closed, opened)):
        return opened
    return [pack(operand) if is_closed(operand) else operand for operand in opened]
