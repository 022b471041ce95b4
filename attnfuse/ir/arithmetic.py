"""Constructors of arithmetic: sums and products are n-ary, flattened, sorted, folded.

Sums of integers are affine, Σ cᵢ·xᵢ + c, with like terms collected. Floats
are not collected (x + x stays), since only reordering is free of surprises
there; their constants are folded in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from attnfuse.errors import DoesNotFit
from attnfuse.ir.axes import DType
from attnfuse.ir.elementwise import UNARY, check_kinds
from attnfuse.ir.normal import normal
from attnfuse.ir.ops import OPS
from attnfuse.ir.packing import is_closed, pack, settle, unpack
from attnfuse.ir.term import Term, make

Number = bool | int | float


def const(value: Number) -> Term:
    """The constant ``value``: bool, int32 or float32 by its Python type."""
    return make(OPS["const"], (), (value,))


def value_of(term: Term) -> Number | None:
    """The number behind a constant, or None."""
    value = term["value"] if term.op.name == "const" else None
    assert value is None or isinstance(value, Number)
    return value


@normal("cast")
def cast(x: Term, dtype: DType) -> Term:
    """``x`` with element type ``dtype``."""
    (x,) = settle([x])
    number = value_of(x)
    if x.type.dtype is dtype:
        return x
    if number is not None and dtype is DType.float32:
        return const(float(number))
    return make(OPS["cast"], (x,), (dtype,))


def alike(operands: Iterable[Term]) -> list[Term]:
    """Operands with integers made float32 where a float is among them."""
    terms = list(operands)
    if not any(term.type.dtype.is_float for term in terms):
        return terms
    return [cast(term, DType.float32) if term.type.dtype.is_int else term for term in terms]


# -- sums ------------------------------------------------------------------


@normal("add")
def add(*operands: Term) -> Term:
    """The sum."""
    terms = _numbers("add", operands)
    if all(term.type.dtype.is_int for term in terms):
        return affine(*_collect(terms))
    return _float_nary("add", terms, 0.0, _total)


def sub(x: Term, y: Term) -> Term:
    """``x − y``."""
    return add(x, neg(y))


def neg(x: Term) -> Term:
    """``−x``."""
    return mul(const(-1.0 if x.type.dtype.is_float else -1), x)


def affine_parts(term: Term) -> tuple[dict[Term, int], int]:
    """The coefficients and the constant of an integer term: Σ cᵢ·xᵢ + c."""
    return _collect(_flat("add", (term,)))


def affine(coefficients: dict[Term, int], constant: int) -> Term:
    """The integer term Σ cᵢ·xᵢ + c."""
    kept = [(term, factor) for term, factor in coefficients.items() if factor]
    kept.sort(key=lambda part: (part[1] < 0, part[0].op.name, part[0].digest))
    parts = [term if factor == 1 else _scaled(factor, term) for term, factor in kept]
    if constant or not parts:
        parts.append(const(constant))
    return parts[0] if len(parts) == 1 else make(OPS["add"], parts)


def _scaled(factor: int, atom: Term) -> Term:
    factors = atom.operands if atom.op.name == "mul" else (atom,)
    return make(OPS["mul"], (const(factor), *factors))


def _total(numbers: list[float]) -> float:
    """The sum, rounded once; infinite or no number where that is what floats make of it."""
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):
        return sum(sorted(numbers))


def _collect(terms: Iterable[Term]) -> tuple[dict[Term, int], int]:
    coefficients: dict[Term, int] = {}
    constant = 0
    for term in terms:
        number = value_of(term)
        if isinstance(number, int):
            constant += number
            continue
        factor, atom = _split(term)
        coefficients[atom] = coefficients.get(atom, 0) + factor
    return coefficients, constant


def _split(term: Term) -> tuple[int, Term]:
    """An integer term as factor · atom."""
    if term.op.name == "mul":
        number = value_of(term.operands[0])
        if isinstance(number, int):
            rest = term.operands[1:]
            return number, rest[0] if len(rest) == 1 else make(OPS["mul"], rest)
    return 1, term


# -- products ---------------------------------------------------------------


@normal("mul")
def mul(*operands: Term) -> Term:
    """The product."""
    terms = _numbers("mul", operands)
    if all(term.type.dtype.is_int for term in terms):
        return _int_product(terms)
    return _float_nary("mul", terms, 1.0, math.prod)


def _int_product(terms: list[Term]) -> Term:
    numbers = [value for term in terms if isinstance(value := value_of(term), int)]
    factor, rest = math.prod(numbers), [term for term in terms if value_of(term) is None]
    if not rest or factor == 0:
        return const(factor)
    if len(rest) == 1:
        coefficients, constant = affine_parts(rest[0])
        return affine(
            {term: factor * each for term, each in coefficients.items()}, factor * constant
        )
    parts = [_primitive(term) for term in rest]
    product = make(OPS["mul"], sorted((term for _, term in parts), key=_place))
    return affine({product: factor * math.prod(scale for scale, _ in parts)}, 0)


def _primitive(term: Term) -> tuple[int, Term]:
    """A sum as a number times a sum without common factor, of two signs the one with fewer −."""
    if term.op.name != "add":
        return 1, term
    coefficients, constant = affine_parts(term)
    scale = math.gcd(constant, *coefficients.values())
    signs = [
        (each, affine({t: c // each for t, c in coefficients.items()}, constant // each))
        for each in (scale, -scale)
    ]
    return min(signs, key=lambda sign: (_negatives(sign[1]), sign[1].digest))


def _negatives(total: Term) -> int:
    coefficients, constant = affine_parts(total)
    return sum(number < 0 for number in (constant, *coefficients.values()))


@normal("div")
def div(x: Term, y: Term) -> Term:
    """``x / y`` in floats; dividing by a constant is multiplying by its reciprocal."""
    x, y = settle([cast(t, DType.float32) if t.type.dtype.is_int else t for t in (x, y)])
    number = value_of(y)
    if number:
        return mul(const(1.0 / number), x)
    return make(OPS["div"], (x, y))


@normal("floordiv")
def floordiv(x: Term, y: Term) -> Term:
    """``x // y`` for integers, towards minus infinity; y is a positive constant."""
    divisor, number = _divisor("floordiv", y), value_of(x)
    if isinstance(number, int):
        return const(number // divisor)
    return x if divisor == 1 else make(OPS["floordiv"], settle([x, y]))


@normal("mod")
def mod(x: Term, y: Term) -> Term:
    """``x % y`` for integers, never negative; y is a positive constant."""
    divisor, number = _divisor("mod", y), value_of(x)
    if isinstance(number, int):
        return const(number % divisor)
    return const(0) if divisor == 1 else make(OPS["mod"], settle([x, y]))


def _divisor(op: str, y: Term) -> int:
    number = value_of(y)
    if not isinstance(number, int) or isinstance(number, bool) or number <= 0:
        raise DoesNotFit(
            op=op, problem=f"its divisor is {y}", remedy="divide integers by a positive constant"
        )
    return number


# -- the rest ----------------------------------------------------------------


@normal("minimum")
def minimum(*operands: Term) -> Term:
    """The least of the operands."""
    return _lattice("minimum", operands, 1)


@normal("maximum")
def maximum(*operands: Term) -> Term:
    """The greatest of the operands."""
    return _lattice("maximum", operands, -1)


@normal("abs")
def abs_(x: Term) -> Term:
    """``|x|``."""
    check_kinds("abs", [x], "float", "int")
    number = value_of(x)
    return make(OPS["abs"], settle([x])) if number is None else const(abs(number))


def _unary(name: str) -> Callable[[Term], Term]:
    @normal(name)
    def constructor(x: Term) -> Term:
        folded = _folded(name, value_of(x))
        return make(OPS[name], settle(alike([x, const(0.0)])[:1])) if folded is None else folded

    return constructor


def _folded(name: str, number: Number | None) -> Term | None:
    """A function of a constant, where it is a number: so a masked score's sigmoid is 0."""
    if number is None or isinstance(number, bool) or name not in _FOLDS:
        return None
    try:
        return const(_FOLDS[name](float(number)))
    except (OverflowError, ValueError):
        return None


_FOLDS: dict[str, Callable[[float], float]] = {
    "exp": math.exp,
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "sqrt": math.sqrt,
}


unary = {name: _unary(name) for name in UNARY}
"""The constructors of functions of one float, by name."""


@normal("random")
def random(seed: Term, *indices: Term) -> Term:
    """A float32, uniform in [0, 1), that is a function of integers: Philox (Salmon et al., 2011).

    The key is the seed, the counter the indices, four of them at most.
    """
    return make(OPS["random"], settle([seed, *indices]))


def _lattice(op: str, operands: Iterable[Term], sign: int) -> Term:
    terms = list(dict.fromkeys(settle(_numbers(op, operands))))
    numbers = [value for term in terms if (value := value_of(term)) is not None]
    rest = sorted((term for term in terms if value_of(term) is None), key=_place)
    if numbers:
        rest.append(const(min(numbers, key=lambda number: _standing(number, sign))))
    return rest[0] if len(rest) == 1 else make(OPS[op], rest)


def _standing(number: Number, sign: int) -> tuple[bool, float, float]:
    """A key for minima, or maxima by sign −1: no number wins, as in torch, and −0 lies below 0."""
    return (number == number, sign * number, sign * math.copysign(1.0, number))


def _flat(op: str, operands: Iterable[Term]) -> list[Term]:
    flat: list[Term] = []
    for operand in map(unpack, operands):
        flat += _flat(op, operand.operands) if operand.op.name == op else [operand]
    return flat


def _numbers(op: str, operands: Iterable[Term]) -> list[Term]:
    """The operands, flattened, all of them integers or all floats."""
    terms = alike(_flat(op, operands))
    check_kinds(op, terms, "float", "int")
    return terms


def _float_nary(
    op: str, terms: list[Term], neutral: float, fold: Callable[[list[float]], float]
) -> Term:
    """A sum or product of floats: constants folded, closed operands gathered into one."""
    number = float(fold([float(value) for term in terms if (value := value_of(term)) is not None]))
    rest = [term for term in terms if value_of(term) is None]
    if not all(map(is_closed, rest)):
        closed = [term for term in rest if is_closed(term)]
        rest = [term for term in rest if not is_closed(term)]
        rest += [pack(_float_nary(op, closed, neutral, fold))] if closed else []
    rest.sort(key=_place)
    if number != neutral or not rest:
        rest.insert(0 if op == "mul" else len(rest), const(number))
    return rest[0] if len(rest) == 1 else make(OPS[op], rest)


def _place(term: Term) -> tuple[bool, str, str]:
    """Computed values before packed ones; otherwise any order that every process finds again."""
    return (term.op.name == "indexed", term.op.name, term.digest)
