"""The e-graph: terms and what is known of their equality.

Every term that enters gets a number. E-nodes are (op, attributes, numbers of
the operands); a union-find says which numbers are equal, and congruence
closure (Willsey et al., "egg", 2021) keeps equal e-nodes in one e-class.
Unlike in egg, an e-node also keeps the operands that it was made with: so
each number stands for one concrete term, and a derivation can be read off.

Pure Python, and meant for graphs of at most a few thousand e-nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from attnfuse.egraph.facts import Choice, Fact, Known, Promises
from attnfuse.egraph.proof import Assertion, Congruence, Forest, Reason
from attnfuse.errors import UnequalFacts
from attnfuse.ir.axes import Axis, DType, Type
from attnfuse.ir.normal import construct
from attnfuse.ir.op import Op
from attnfuse.ir.packing import is_closed
from attnfuse.ir.term import Attribute, Term, identity, make

Key = tuple[object, ...]


class ENode(NamedTuple):
    """An op over numbers. Operands of a flat op are sorted, since their order means nothing."""

    op: Op
    attributes: tuple[Attribute, ...]
    operands: tuple[int, ...]


@dataclass(slots=True)
class _Class:
    nodes: dict[Key, int]
    users: list[int]
    known: Known
    closed: int | None


def _infer_leaf(term: Term) -> Type:
    _, dtype, axes = term.attributes
    assert isinstance(dtype, DType) and isinstance(axes, tuple)
    return Type(dtype, tuple(axis for axis in axes if isinstance(axis, Axis)))


def _no_meaning(*_: object) -> Any:
    raise AssertionError("a leaf that stands for an e-class was evaluated")


LEAF = Op("eclass", 0, ("number", "dtype", "axes"), _infer_leaf, _no_meaning)
"""An opaque leaf: what a rule is given for an operand. It is in no op table."""


class EGraph:
    """Terms, their equalities, and the reasons for these.

    Args:
        facts: what to know of each e-class besides its type.
        promises: what is promised of input tensors.
    """

    def __init__(self, facts: Sequence[Fact] = (), promises: Promises | None = None) -> None:
        self.forest = Forest()
        self.touched: set[int] = set()
        self._facts = tuple(facts)
        self._promises: Mapping[Term, frozenset[str]] = promises or {}
        self._nodes: list[ENode] = []
        self._parent: list[int] = []
        self._made: dict[Key, int] = {}  # e-nodes as they were made
        self._memo: dict[Key, int] = {}  # canonical e-nodes, one for each of equal ones
        self._keys: dict[int, Key] = {}  # the inverse of the latter
        self._classes: dict[int, _Class] = {}
        self._by_op: dict[str, dict[int, None]] = {}
        self._ids: dict[Term, int] = {}
        self._terms: dict[int, Term] = {}
        self._leaves: dict[int, Term] = {}
        self._pending: list[int] = []

    # -- reading -------------------------------------------------------------

    def find(self, number: int) -> int:
        """The number that stands for the e-class of ``number``."""
        parent = self._parent
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    def classes(self) -> list[int]:
        """All e-classes."""
        return list(self._classes)

    def members(self, number: int) -> list[int]:
        """The e-nodes of an e-class, of equal ones the first."""
        return list(self._classes[self.find(number)].nodes.values())

    def users(self, number: int) -> list[int]:
        """The e-nodes that have an e-class among their operands."""
        return self._classes[self.find(number)].users

    def having(self, op: str) -> list[int]:
        """All e-nodes of an op, of equal ones the first."""
        return list(self._by_op.get(op, ()))

    def node(self, number: int) -> ENode:
        """The e-node as it was made."""
        return self._nodes[number]

    def choice(self, number: int) -> Choice:
        """The e-node as facts and costs see it."""
        op, attributes, operands = self._nodes[number]
        return Choice(op, attributes, tuple(map(self.known, operands)), self.known(number))

    def known(self, number: int) -> Known:
        """What is known of an e-class."""
        return self._classes[self.find(number)].known

    def known_of(self, term: Term) -> Known:
        """What is known of a term that a rule was given, or of an input; else just its type."""
        number = self._ids.get(term)
        return Known(term.type) if number is None else self.known(number)

    def closed(self, number: int) -> int | None:
        """The e-node of a term of indices, lengths and captured tensors alone, if there is one."""
        return self._classes[self.find(number)].closed

    def handle(self, number: int) -> Term:
        """What a rule is given for an operand: a closed term, or a leaf for the e-class."""
        known = self.known(number)
        if known.closed is not None:
            return known.closed
        if number not in self._leaves:
            leaf = make(LEAF, (), (number, known.type.dtype, known.type.axes))
            self._leaves[number], self._ids[leaf] = leaf, number
        return self._leaves[number]

    def term(self, number: int) -> Term:
        """The concrete term that ``number`` stands for."""
        if number not in self._terms:
            op, attributes, operands = self._nodes[number]
            self._terms[number] = arranged(op, tuple(map(self.term, operands)), attributes)
        return self._terms[number]

    @property
    def size(self) -> int:
        """The number of e-nodes that differ."""
        return len(self._memo)

    # -- writing -------------------------------------------------------------

    def add(self, root: Term) -> int:
        """The number of a term, which is entered unless it is known. Leaves stand for classes."""
        todo = [root]
        while todo:
            term = todo[-1]
            missing = [each for each in term.operands if each not in self._ids]
            if missing:
                todo += missing
                continue
            if term not in self._ids:
                self._ids[term] = self._enter(term)
            todo.pop()
        return self._ids[root]

    def union(self, one: int, other: int, reason: Reason | str) -> bool:
        """Equate two e-nodes; False where they were equal already. Then call `rebuild`.

        Raises:
            UnequalFacts: when their types or facts contradict each other.
        """
        reason = Assertion(reason) if isinstance(reason, str) else reason
        kept, lost = self.find(one), self.find(other)
        if kept == lost:
            return False
        if len(self._classes[kept].users) < len(self._classes[lost].users):
            kept, lost = lost, kept
        a, b = self._classes[kept], self._classes[lost]
        self._join(a, b.known, (one, other, reason))
        a.closed = b.closed if a.closed is None else a.closed
        self.forest.link(one, other, reason)
        self._parent[lost] = kept
        a.nodes.update(b.nodes)
        a.users += b.users
        del self._classes[lost]
        self._pending.append(kept)
        self.touched.add(kept)
        return True

    def congruent(self, like: int, pairs: Sequence[tuple[int, int]]) -> int:
        """The e-node ``like`` with other, equal operands; pairs of (new, old) operand."""
        op, attributes, _ = self._nodes[like]
        node = _node(op, attributes, [new for new, _ in pairs])
        number = self._made.get(_key(node))
        if number is None:
            number = self._number(node)
            self._parent[number] = self.find(like)
            self.forest.link(number, like, Congruence(tuple(pairs)))
        return number

    def rebuild(self) -> None:
        """Close under congruence, and bring facts up to date."""
        while self._pending:
            todo = dict.fromkeys(map(self.find, self._pending))
            self._pending = []
            for number in todo:
                self._repair(number)

    # -- inside ----------------------------------------------------------------

    def _enter(self, term: Term) -> int:
        node = _node(term.op, term.attributes, [self._ids[each] for each in term.operands])
        number = self._made.get(_key(node))
        if number is None:
            number = self._number(node)
            key = self._canonical(number)
            same = self._memo.get(key)
            if same is None:
                self._new_class(number, key, term)
            else:
                self._parent[number] = self.find(same)
                self.forest.link(number, same, Congruence(self._pairs(number, same)))
        if all(self._terms.get(self._ids[each]) is each for each in term.operands):
            self._terms.setdefault(number, term)
        return number

    def _number(self, node: ENode) -> int:
        number = len(self._nodes)
        self._nodes.append(node)
        self._parent.append(number)
        self._made[_key(node)] = number
        return number

    def _new_class(self, number: int, key: Key, term: Term) -> None:
        closed = term.op.name == "indexed" or is_closed(term)
        known = Known(term.type, term if closed else None, self._promises.get(term, frozenset()))
        self._classes[number] = _Class({}, [], known, number if closed else None)
        self._represent(number, key)
        for operand in dict.fromkeys(map(self.find, self._nodes[number].operands)):
            self._classes[operand].users.append(number)
        self.touched.add(number)
        self._infer(number)

    def _represent(self, number: int, key: Key) -> None:
        self._memo[key] = number
        self._keys[number] = key
        self._classes[self.find(number)].nodes[key] = number
        self._by_op.setdefault(self._nodes[number].op.name, {})[number] = None

    def _retire(self, number: int) -> None:
        key = self._keys.pop(number)
        del self._by_op[self._nodes[number].op.name][number]
        if self._memo.get(key) == number:
            del self._memo[key]
        nodes = self._classes[self.find(number)].nodes
        if nodes.get(key) == number:
            del nodes[key]

    def _repair(self, number: int) -> None:
        """Find anew which of a changed class's users are equal, and what is known of them."""
        number = self.find(number)
        users = dict.fromkeys(self._classes[number].users)
        self._classes[number].users = []
        for user in users:
            if user not in self._keys:
                continue
            key = self._canonical(user)
            if key != self._keys[user]:
                self._retire(user)
                same = self._memo.get(key)
                if same is not None:
                    self.union(user, same, Congruence(self._pairs(user, same)))
                    continue
                self._represent(user, key)
            self._classes[self.find(number)].users.append(user)
            self._infer(user)

    def _canonical(self, number: int) -> Key:
        op, attributes, operands = self._nodes[number]
        return _key(_node(op, attributes, list(map(self.find, operands))))

    def _pairs(self, one: int, other: int) -> tuple[tuple[int, int], ...]:
        """Equal operands of two equal e-nodes."""
        sides = [list(self._nodes[each].operands) for each in (one, other)]
        if self._nodes[one].op.flat:
            sides = [sorted(side, key=self.find) for side in sides]
        return tuple(zip(*sides, strict=True))

    def _infer(self, number: int) -> None:
        if self._facts:
            choice = self.choice(number)
            values = {fact.name: fact.infer(choice) for fact in self._facts}
            found = {name: value for name, value in values.items() if value is not None}
            known = Known(choice.known.type, facts=found)
            of = self._classes[self.find(number)]
            if self._join(of, known, (number, number, Assertion("an inference of facts"))):
                self._pending.append(number)
                self.touched.add(self.find(number))

    def _join(self, into: _Class, new: Known, blame: tuple[int, int, Reason]) -> bool:
        """Learn what another e-node of the class knows; whether anything was new."""
        old, changed = into.known, False
        self._agree("type", old.type, new.type, blame)
        old.closed = old.closed or new.closed
        old.promises |= new.promises
        for fact in self._facts:
            if fact.name in new.facts:
                value, have = new.facts[fact.name], old.facts.get(fact.name)
                if have is None:
                    have = value
                elif fact.join is None:
                    self._agree(fact.name, have, value, blame)
                else:
                    have = fact.join(have, value)
                changed |= fact.name not in old.facts or have != old.facts[fact.name]
                old.facts[fact.name] = have
        return changed

    def _agree(self, fact: str, one: object, other: object, blame: tuple[int, int, Reason]) -> None:
        if one != other:
            before, after, cause = blame
            raise UnequalFacts(
                cause=cause,
                fact=fact,
                one=one,
                other=other,
                before=self.term(before),
                after=self.term(after),
            )


def _node(op: Op, attributes: tuple[Attribute, ...], operands: list[int]) -> ENode:
    return ENode(op, attributes, tuple(sorted(operands) if op.flat else operands))


def _key(node: ENode) -> Key:
    return (node.op.name, node.operands, tuple(map(identity, node.attributes)))


def arranged(op: Op, operands: Sequence[Term], attributes: Sequence[Attribute]) -> Term:
    """The term as it stands; the operands of a flat op in the order of its normal form."""
    if op.flat:
        normal = construct(op, operands, attributes)
        if normal.op is op and sorted(map(id, normal.operands)) == sorted(map(id, operands)):
            return normal
        operands = sorted(operands, key=lambda term: (term.op.name, term.digest))
    return make(op, operands, attributes)
