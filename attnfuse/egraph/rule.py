"""Rewrite rules: one decorated function each.

::

    @rule(op.mask(op.mul(c, x), p), when=lambda c: c > 0, exact="bits")
    def scale_over_mask(c, x, p):
        \"\"\"mask(c·x, p) → c·mask(x, p)\"\"\"
        return ir.mul(ir.const(c), ir.mask(x, p))

The parameters of the function and of the condition are variables of the left
side, by name. Terms of indices, lengths and captured tensors are given as
they are; any other operand is given as an opaque leaf that has the operand's
type. Either way, the ordinary constructors of `attnfuse.ir.build` apply. A
parameter called ``facts`` is given a function from such a term to what is
`Known` of it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args

from attnfuse.egraph.facts import Known
from attnfuse.egraph.pattern import Kind, Node, Number, Pattern, Var, bound, nodes
from attnfuse.errors import MalformedRule
from attnfuse.ir.build import const
from attnfuse.ir.normal import construct
from attnfuse.ir.ops import OPS
from attnfuse.ir.term import Term

Exactness = Literal["bits", "real", "approx"]
"""Same bits in every float type; equal over the reals, so rounding may differ; or close."""

Facts = Callable[[Term], Known]
"""What a rule's parameter ``facts`` is."""

_FACTS = "facts"


@dataclass(frozen=True)
class Declined:
    """What a rule or its condition returns when it doesn't apply after all."""

    reason: str


Right = Callable[..., Term | Declined | None]
Verdict = bool | Declined
Condition = (
    Callable[[Any], Verdict]
    | Callable[[Any, Any], Verdict]
    | Callable[[Any, Any, Any], Verdict]
    | Callable[[Any, Any, Any, Any], Verdict]
)
"""A function of some variables; spelled out so that the parameters of a lambda have a type."""


@dataclass(frozen=True, eq=False)
class Rule:
    """A rewrite rule; made by `rule`.

    Attributes:
        name: how reports, derivations and the command line call it.
        left: the pattern that it applies to.
        right: what the term becomes; a function of some of the pattern's variables.
        when: the condition; a function like ``right``, or None.
        exact: how equal the two sides are.
        algebra: the line of its docstring that says before → after.
        doc: its whole docstring.
        where: file and line of its definition.
        module: the name of the module that defines it.
        kinds: what each variable of the pattern stands for.
    """

    name: str
    left: Node
    right: Right
    when: Callable[..., Verdict] | None
    exact: Exactness
    algebra: str
    doc: str
    where: str
    module: str
    kinds: Mapping[str, Kind]
    right_parameters: tuple[str, ...]
    when_parameters: tuple[str, ...]
    reason: str

    def holds(self, given: Mapping[str, Any], facts: Facts) -> bool | Declined:
        """What the condition says of the values of the variables."""
        if self.when is None:
            return True
        return self.when(**_select(given, facts, self.when_parameters))

    def apply(self, given: Mapping[str, Any], facts: Facts) -> Term | Declined | None:
        """The right side for the values of the variables."""
        return self.right(**_select(given, facts, self.right_parameters))

    def __repr__(self) -> str:
        return f"<rule {self.name}>"


def _select(given: Mapping[str, Any], facts: Facts, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: facts if name == _FACTS else given[name] for name in names}


def rule(
    left: Pattern,
    to: Pattern | None = None,
    *,
    when: Condition | None = None,
    exact: Exactness = "real",
    name: str | None = None,
) -> Callable[[Right], Rule]:
    """Make a rule of a function.

    Args:
        left: the pattern to look for.
        to: the right side as a pattern; the function has no parameters then and isn't called.
        when: a condition on the variables. It returns whether it holds, or Declined with a reason.
        exact: ``bits`` where both sides have the same bits in every float type, ``real`` where
            they are equal over the reals, ``approx`` where they are only close.
        name: the rule's name, when it isn't that of the function.

    Raises:
        MalformedRule: naming file, line and rule, for an unknown op or attribute, a wrong number
            of operands, a variable that the left side doesn't bind, or a docstring that has no
            line ``before → after``.
    """

    def decorate(function: Right) -> Rule:
        return _Definition(name or function.__name__, function, left, to, when, exact).rule()

    return decorate


class _Definition:
    """The checks that a definition has to pass."""

    def __init__(
        self,
        name: str,
        function: Right,
        left: Pattern,
        to: Pattern | None,
        when: Condition | None,
        exact: Exactness,
    ) -> None:
        self.name, self.function = name, function
        self.exact: Exactness = exact
        self.when: Callable[..., Verdict] | None = when
        self.left, self.to = left, to
        code = function.__code__
        self.where = f"{code.co_filename}:{code.co_firstlineno}"

    def rule(self) -> Rule:
        if not isinstance(self.left, Node):
            self.fail("its left side is not a term", "start it with an op: op.mask(…)")
        if self.exact not in get_args(Exactness):
            self.fail(f"exact is {self.exact!r}", f"give one of {', '.join(get_args(Exactness))}")
        self.check_pattern(self.left)
        self.kinds = self.variables(self.left)
        parameters = self.parameters(self.function, "its right side")
        right = self.function if self.to is None else self.instantiate(self.to, parameters)
        doc = inspect.cleandoc(self.function.__doc__ or "")
        return Rule(
            self.name,
            self.left,
            right,
            self.when,
            self.exact,
            self.algebra(doc),
            doc,
            self.where,
            self.function.__module__,
            self.kinds,
            parameters if self.to is None else tuple(bound(self.to)),
            self.parameters(self.when, "its condition") if self.when else (),
            _reason(self.function, self.when),
        )

    def fail(self, problem: str, remedy: str) -> NoReturn:
        raise MalformedRule(where=self.where, rule=self.name, problem=problem, remedy=remedy)

    def check_pattern(self, pattern: Pattern) -> None:
        for node in nodes(pattern):
            self.check_node(node)

    def check_node(self, node: Node) -> None:
        row = OPS.get(node.op)
        if row is None:
            self.fail(f"no op is called {node.op!r}", f"there are {', '.join(OPS)}")
        for name, _ in node.attributes:
            if name not in row.attributes:
                known = ", ".join(row.attributes) or "none"
                self.fail(f"{node.op} has no attribute {name!r}", f"it has {known}")
        rests = [each for each in node.operands if isinstance(each, Var) and each.kind is Kind.rest]
        if rests and (row.arity is not None or len(rests) > 1 or node.operands[-1] != rests[0]):
            remedy = "put one at the end of the operands of an op that takes any number of them"
            self.fail(f"a rest can't stand there in {node}", remedy)
        if row.arity not in (None, len(node.operands)):
            self.fail(f"{node} has {len(node.operands)} operands", f"{node.op} takes {row.arity}")

    def variables(self, pattern: Pattern) -> dict[str, Kind]:
        for name, kinds in bound(pattern).items():
            if len(kinds) > 1 or name == _FACTS:
                meanings = " and ".join(kind.value for kind in kinds)
                self.fail(f"{name!r} stands for {meanings}", "use two names; `facts` is taken")
        return {name: next(iter(kinds)) for name, kinds in bound(pattern).items()}

    def parameters(self, function: Callable[..., Any], what: str) -> tuple[str, ...]:
        parameters = inspect.signature(function).parameters
        self.check_bound([name for name in parameters if name != _FACTS], what)
        for parameter in parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                remedy = "wrap it in a lambda whose parameters are variables"
                self.fail(f"{what} can't be given {parameter.name!r} by name", remedy)
        return tuple(parameters)

    def check_bound(self, names: list[str], what: str) -> None:
        for name in names:
            if name not in self.kinds:
                problem = f"{what} uses {name!r}, which the left side doesn't bind"
                self.fail(problem, f"it binds {', '.join(self.kinds) or 'nothing'}")

    def instantiate(self, to: Pattern, parameters: tuple[str, ...]) -> Right:
        if parameters:
            self.fail("it has both `to` and parameters", "keep one: `to` needs no function body")
        self.check_pattern(to)
        self.variables(to)
        self.check_bound(list(bound(to)), "its right side")

        def fill(**given: Any) -> Any:
            return _filled(to, given)

        return fill

    def algebra(self, doc: str) -> str:
        for line in doc.splitlines():
            before, arrow, after = line.partition("→")
            if arrow and before.strip() and after.strip():
                return line.strip()
        self.fail("its docstring doesn't say what it does", "add a line: before → after")


def _filled(pattern: Pattern, given: Mapping[str, Any]) -> Any:
    """A pattern with values for its variables, in normal form."""
    if isinstance(pattern, Number):
        return const(pattern.value)
    if isinstance(pattern, Var):
        value = given[pattern.name]
        return const(value) if pattern.kind is Kind.number else value
    operands: list[Term] = []
    for each in pattern.operands:
        value = _filled(each, given)
        operands += value if isinstance(value, tuple) else [value]
    row, named = OPS[pattern.op], dict(pattern.attributes)
    values = (named[name] for name in row.attributes)
    filled = [given[each.name] if isinstance(each, Var) else each for each in values]
    return construct(row, operands, filled)


def _reason(function: Right, when: Callable[..., Verdict] | None) -> str:
    """Why the rule declines when its condition is false: the condition in words or as written."""
    if when is None:
        return "its right side declined"
    if when.__name__ != "<lambda>":
        words = (when.__doc__ or when.__name__).splitlines()[0].rstrip(".")
        return f"not so: {words[:1].lower()}{words[1:]}"
    return f"not {_written(function) or 'its condition'}"


def _written(function: Right) -> str | None:
    """The lambda after ``when=`` in the decorator of a function, where the source can be read."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return None
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.keyword)
            and node.arg == "when"
            and isinstance(node.value, ast.Lambda)
        ):
            return ast.unparse(node.value.body)
    return None
