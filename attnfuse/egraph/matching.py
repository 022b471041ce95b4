"""E-matching: where in an e-graph a pattern fits, and what its variables stand for then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from attnfuse.egraph.engine import EGraph
from attnfuse.egraph.pattern import Kind, Node, Number, Pattern, Var
from attnfuse.egraph.rule import Rule
from attnfuse.ir.term import identity

Bindings = Mapping[str, Any]
"""E-nodes by number, numbers and attributes as they are; a rest is a tuple of e-nodes."""


class Instance(NamedTuple):
    """The e-node ``like`` with other, equal operands: (what is found there, its own operand)."""

    like: int
    operands: tuple[tuple[Found, int], ...]


_TERM, _CLOSED, _REST = Kind.term, Kind.closed, Kind.rest  # looking them up in the enum is slow

Found = int | Instance
"""What matched: an e-node, or one that is still to be entered."""


def matches(graph: EGraph, pattern: Node, number: int) -> Iterator[tuple[Found, Bindings]]:
    """Every way in which an e-node of the pattern's op matches it."""
    return _node(graph, pattern, number, {})


def enter(graph: EGraph, found: Found) -> int:
    """The number of what was found, entered where it is new."""
    if isinstance(found, int):
        return found
    pairs = [(enter(graph, each), old) for each, old in found.operands]
    return graph.congruent(found.like, pairs)


def handles(graph: EGraph, rule: Rule, given: Bindings) -> dict[str, Any]:
    """What the rule's functions are given: terms in the place of numbers."""
    values = dict(given)
    for name, value in given.items():
        kind = rule.kinds[name]
        if kind is _TERM or kind is _CLOSED:
            values[name] = graph.handle(value)
        elif kind is _REST:
            values[name] = tuple(map(graph.handle, value))
    return values


def signature(graph: EGraph, rule: Rule, number: int, given: Bindings) -> tuple[object, ...]:
    """Equal for matches that differ only in which of several equal e-nodes they name."""
    return (rule.name, graph.find(number), *(_plain(graph, rule, each) for each in given.items()))


def _plain(graph: EGraph, rule: Rule, binding: tuple[str, Any]) -> object:
    name, value = binding
    kind = rule.kinds[name]
    if kind is _TERM or kind is _CLOSED:
        return graph.find(value)
    return tuple(sorted(map(graph.find, value))) if kind is _REST else identity(value)


def _class(
    graph: EGraph, pattern: Pattern, number: int, given: Bindings
) -> Iterator[tuple[Found, Bindings]]:
    if isinstance(pattern, Node):
        for member in graph.members(number):
            if graph.node(member).op.name == pattern.op:
                yield from _node(graph, pattern, member, given)
        return
    closed = graph.closed(number)
    if isinstance(pattern, Number):
        if closed is not None and _constant(graph, closed) == pattern.value:
            yield closed, given
    elif pattern.kind is Kind.number:
        value = None if closed is None else _constant(graph, closed)
        if closed is not None and value is not None:
            for _, extended in _bind(pattern.name, value, identity, given):
                yield closed, extended
    elif pattern.kind is not _CLOSED or closed is not None:
        yield from _bind(pattern.name, number if closed is None else closed, graph.find, given)


def _bind(name: str, value: Any, same_by: Any, given: Bindings) -> Iterator[tuple[Any, Bindings]]:
    """The value that a variable stands for, when it may stand for this one."""
    if name not in given:
        yield value, {**given, name: value}
    elif same_by(given[name]) == same_by(value):
        yield given[name], given


def _constant(graph: EGraph, number: int) -> Any:
    op, attributes, _ = graph.node(number)
    return attributes[0] if op.name == "const" else None


def _node(
    graph: EGraph, pattern: Node, number: int, given: Bindings
) -> Iterator[tuple[Found, Bindings]]:
    node = graph.node(number)
    if node.op.flat and _has_itself(graph, number, node.operands):
        return
    for name, wanted in pattern.attributes:
        value = node.attributes[node.op.attributes.index(name)]
        if not isinstance(wanted, Var):
            if identity(wanted) != identity(value):
                return
        elif wanted.name not in given:
            given = {**given, wanted.name: value}
        elif identity(given[wanted.name]) != identity(value):
            return
    find = _unordered if node.op.flat else _ordered
    for operands, extended in find(graph, pattern.operands, node.operands, given):
        same = all(found == old for found, old in operands)
        yield number if same else Instance(number, operands), extended


def _has_itself(graph: EGraph, number: int, operands: tuple[int, ...]) -> bool:
    """Whether an e-node is in the class of one of its operands: x = x + y, where y is neutral.

    No term can be made of it, and rules that take sums apart would never be done with it: they
    would find x + y + y, and so on.
    """
    own = graph.find(number)
    return any(graph.find(each) == own for each in operands)


Operands = tuple[tuple[Found, int], ...]


def _ordered(
    graph: EGraph, patterns: tuple[Pattern, ...], operands: tuple[int, ...], given: Bindings
) -> Iterator[tuple[Operands, Bindings]]:
    if not patterns:
        if not operands:
            yield (), given
        return
    first, *others = patterns
    if _is_rest(first):
        yield from _rest(graph, first, operands, given)
    elif operands:
        for found, extended in _class(graph, first, operands[0], given):
            for more, last in _ordered(graph, tuple(others), operands[1:], extended):
                yield ((found, operands[0]), *more), last


def _unordered(
    graph: EGraph, patterns: tuple[Pattern, ...], operands: tuple[int, ...], given: Bindings
) -> Iterator[tuple[Operands, Bindings]]:
    if not patterns:
        if not operands:
            yield (), given
        return
    first, *others = patterns
    if _is_rest(first):
        yield from _rest(graph, first, operands, given)
        return
    for place, operand in enumerate(operands):
        left = operands[:place] + operands[place + 1 :]
        for found, extended in _class(graph, first, operand, given):
            for more, last in _unordered(graph, tuple(others), left, extended):
                yield ((found, operand), *more), last


def _is_rest(pattern: Pattern) -> bool:
    return isinstance(pattern, Var) and pattern.kind is _REST


def _rest(
    graph: EGraph, pattern: Pattern, operands: tuple[int, ...], given: Bindings
) -> Iterator[tuple[Operands, Bindings]]:
    assert isinstance(pattern, Var)
    closed = [graph.closed(each) for each in operands]
    bound = tuple(
        each if number is None else number for each, number in zip(operands, closed, strict=True)
    )
    if pattern.name not in given:
        yield tuple(zip(bound, operands, strict=True)), {**given, pattern.name: bound}
    elif sorted(map(graph.find, given[pattern.name])) == sorted(map(graph.find, operands)):
        yield _paired(graph, given[pattern.name], operands), given


def _paired(graph: EGraph, bound: tuple[int, ...], operands: tuple[int, ...]) -> Operands:
    pairs = zip(sorted(bound, key=graph.find), sorted(operands, key=graph.find), strict=True)
    return tuple(pairs)
