"""The one node class of AttnFuse: an immutable, interned term.

Equal terms are one object, so that comparing and hashing cost nothing and
shared work is shared by construction. A term has an op (a row of the op
table), operands (terms), attributes (plain values, named by its op) and the
type that the op's rule infers from these.

Whatever names a tensor is an operand, never an attribute: a rewrite must see
it. An attribute may hold a *form*: a term whose only leaves are indices,
lengths, constants and slots, where slot i stands for an operand.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Container, Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Union

from attnfuse.errors import WrongArity
from attnfuse.ir.axes import Axis, DType, Symbol, Type

if TYPE_CHECKING:
    from attnfuse.ir.op import Op

Attribute = Union[None, bool, int, float, str, DType, Symbol, Axis, "Term", tuple["Attribute", ...]]


class Term:
    """A node of the dataflow graph. Made by `make`, or better by `attnfuse.ir.build`.

    Attributes:
        op: the row of the op table that says what the term means.
        operands: the terms it is computed from.
        attributes: its attribute values, in the order of ``op.attributes``.
        type: element type and axes of its value.
        digest: a hash of the term that is the same in every process.
    """

    __slots__ = ("__weakref__", "attributes", "digest", "op", "operands", "type")

    op: Op
    operands: tuple[Term, ...]
    attributes: tuple[Attribute, ...]
    type: Type
    digest: str

    def __getitem__(self, name: str) -> Attribute:
        """The attribute called ``name``."""
        return self.attributes[self.op.attributes.index(name)]

    def form(self, name: str = "form") -> Term:
        """The form held by the attribute ``name``."""
        value = self[name]
        assert isinstance(value, Term)
        return value

    def text(self, name: str) -> str:
        """The string held by the attribute ``name``."""
        return str(self[name])

    def integer(self, name: str) -> int:
        """The integer held by the attribute ``name``."""
        value = self[name]
        assert isinstance(value, int)
        return value

    def __str__(self) -> str:
        from attnfuse.ir.printing import expression

        return expression(self)

    def __repr__(self) -> str:
        return f"<{self.op.name}: {self.type}>"

    def __reduce__(self) -> tuple[object, ...]:
        return (_restore, (self.op.name, self.operands, self.attributes))

    def __copy__(self) -> Term:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Term:
        return self


_interned: weakref.WeakValueDictionary[object, Term] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def make(op: Op, operands: Sequence[Term] = (), attributes: Sequence[Attribute] = ()) -> Term:
    """The term of ``op`` over ``operands``, as it stands: no normal form is applied.

    Raises WrongArity, or what the op's type rule raises.
    """
    operands, attributes = tuple(operands), tuple(attributes)
    key = (op.name, operands, tuple(map(identity, attributes)))
    with _lock:
        found = _interned.get(key)
    if found is not None:
        return found
    if op.arity is not None and len(operands) != op.arity:
        raise WrongArity(op=op.name, allowed=op.arity, given=len(operands))
    if op.flat and not operands:
        raise WrongArity(op=op.name, allowed="one or more", given=0)
    term = Term.__new__(Term)
    term.op, term.operands, term.attributes = op, operands, attributes
    term.type = op.infer(term)
    term.digest = _digest(term)
    with _lock:
        return _interned.setdefault(key, term)


def walk(*roots: Term, down_to: Container[Term] = ()) -> Iterator[Term]:
    """Every term below ``roots``, each once, operands before their users.

    What is below the terms in ``down_to`` is left out, unless it is needed otherwise, too.
    """
    seen: set[Term] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        term, ready = stack.pop()
        if ready:
            yield term
        elif term not in seen:
            seen.add(term)
            stack.append((term, True))
            if term not in down_to:
                stack.extend((operand, False) for operand in reversed(term.operands))


def identity(value: Attribute) -> object:
    """A key that tells 1, 1.0 and True apart, and 0.0 from -0.0."""
    if isinstance(value, tuple):
        return tuple(map(identity, value))
    return (type(value), value.hex()) if isinstance(value, float) else (type(value), value)


def _digest(term: Term) -> str:
    parts = [term.op.name, *(operand.digest for operand in term.operands)]
    parts += [_spell(value) for value in term.attributes]
    return blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def _spell(value: Attribute) -> str:
    if isinstance(value, Term):
        return value.digest
    if isinstance(value, tuple):
        return f"({','.join(map(_spell, value))})"
    return repr(value)


def _restore(op: str, operands: tuple[Term, ...], attributes: tuple[Attribute, ...]) -> Term:
    from attnfuse.ir.ops import OPS

    return make(OPS[op], operands, attributes)
