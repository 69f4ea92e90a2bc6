"""Converts predicates to one form, `divisor * x op factor * y + addend` (Juggler 3.2.1), where that changes no result.

`operators.juggler.predicates.lists` calls `normal_forms` and `value_forms`. Over whole numbers, any linear predicate of
two columns has this form, with either column as x. Over doubles, a predicate has it only if it was written that way:
moving a term to the other side would round, except for a power of two as factor. A predicate over one column becomes
`x op constant`. This is exact: over doubles, bisection finds the constant, since every step of `f * x + a` is monotone,
rounding included.

The form agrees with the predicate as written only where nothing overflows (an overflow is NULL, and a normal form has
none) and where whole numbers compared with a double fit into one. `Limits` is that range of values. Tuples with a value
outside are *odd* and evaluated as written. So a limit costs one comparison per value and changes no result.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from schemas.query import Arithmetic, ColumnRef, Compare, Expr, Literal, Negate, Query, Type, aliases_of, type_of

WHOLE = frozenset({Type.BIGINT, Type.TIMESTAMP})
MIRROR = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
SAFE = 2**62
"""Whole numbers stay below this absolute value, in the form and as written; otherwise the tuple is odd."""
LEAST_LIMIT = 2**32
"""Forms with a smaller range are not used: too many tuples would be odd."""
EXACT = 2**53
"""Doubles represent all whole numbers up to this one exactly."""
LARGEST = 1e308
SMALLEST = 1e-290
"""Doubles below this lose digits where they are halved."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The absolute values for which a form agrees with the predicate as written.

    Attributes:
        most, least: the values 0 and least .. most; all values when `most` is None.
    """

    most: float | None = None
    least: float = 0.0

    def intersect(self, other: Limits) -> Limits:
        """The limits of values that are within both."""
        most = [m for m in (self.most, other.most) if m is not None]
        return Limits(min(most, default=None), max(self.least, other.least))


@dataclass(frozen=True, slots=True)
class NormalForm:
    """The predicate `divisor * x op factor * y + addend`, or `divisor * x op addend` without y.

    Attributes:
        x: an expression; a column if there is a y.
        op: a comparison; of whole numbers, and without y, never < or >.
        y: a column or None.
        divisor: greater than 0; 1 for doubles.
        whole: whether the numbers are int64; else they are doubles.
        limits: the values for which the form agrees with the predicate as written.
    """

    x: Expr
    op: str
    y: ColumnRef | None
    factor: float
    addend: float
    divisor: int
    whole: bool
    limits: Limits

    def __str__(self) -> str:
        left = f"{self.x.alias}.{self.x.name}" if isinstance(self.x, ColumnRef) else str(self.x)
        if self.divisor != 1:
            left = f"{self.divisor} * {left}"
        if self.y is None:
            return f"{left} {self.op} {_number(self.addend)}"
        right = f"{self.y.alias}.{self.y.name}"
        if self.factor == -1:
            right = f"-{right}"
        elif self.factor != 1:
            right = f"{_number(self.factor)} * {right}"
        if self.addend:
            right += f" {'+' if self.addend > 0 else '-'} {_number(abs(self.addend))}"
        return f"{left} {self.op} {right}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else str(value)


def event_times(expr: ColumnRef, query: Query) -> ColumnRef:
    """The column itself, or `_ts` if it is its stream's event time."""
    stream = query.source(expr.alias).stream
    if expr.type in WHOLE and getattr(stream, "timestamp", None) == expr.name:
        return ColumnRef(expr.alias, "_ts", Type.TIMESTAMP)
    return expr


def normal_forms(predicate: Expr) -> Iterator[NormalForm]:
    """The forms of a predicate over one or two columns, that with the first column as x first; there may be none."""
    if not isinstance(predicate, Compare) or predicate.op == "<>":
        return
    if not {type_of(predicate.left), type_of(predicate.right)} <= WHOLE | {Type.DOUBLE}:
        return
    aliases = aliases_of(predicate)
    if len(aliases) not in (1, 2):
        return
    difference = _whole_linear(Arithmetic("-", predicate.left, predicate.right, Type.BIGINT))
    if difference is not None:
        yield from _whole_forms(predicate, *difference)
    elif len(aliases) == 1:
        yield from _constant_forms(predicate)
    else:
        yield from _double_forms(predicate)


def value_forms(predicate: Expr) -> Iterator[NormalForm]:
    """The form `x op constant` with any numeric expression over any columns as x, for predicates without a normal form.

    The expression is evaluated as written, so there are no limits.
    """
    if not isinstance(predicate, Compare) or predicate.op == "<>":
        return
    for x, op, side in (
        (predicate.left, predicate.op, predicate.right),
        (predicate.right, MIRROR[predicate.op], predicate.left),
    ):
        constant = _constant(side)
        if constant is None or isinstance(x, Literal):
            continue
        if type_of(x) in WHOLE:
            yield from _whole_against_double(x, op, constant)
        elif type_of(x) is Type.DOUBLE:
            addend = constant
            if op in ("<", ">"):
                op, addend = f"{op}=", math.nextafter(constant, -math.inf if op == "<" else math.inf)
            yield NormalForm(x, op, None, 0.0, addend, 1, False, Limits())
        return


def _whole_linear(expr: Expr) -> tuple[dict[ColumnRef, int], int, int] | None:
    """An expression's factors, constant, and the largest absolute value of columns for which no step overflows."""
    match expr:
        case ColumnRef() if expr.type in WHOLE:
            return {expr: 1}, 0, SAFE
        case Literal(value=int() as value) if not isinstance(value, bool):
            return {}, value, SAFE
        case Negate():
            inner = _whole_linear(expr.operand)
            if inner is None:
                return None
            factors, constant = {c: -f for c, f in inner[0].items()}, -inner[1]
            return factors, constant, min(inner[2], _largest_safe(factors, constant))
        case Arithmetic(op="+" | "-" | "*") if expr.type in WHOLE:
            a, b = _whole_linear(expr.left), _whole_linear(expr.right)
            if a is None or b is None:
                return None
            if expr.op == "*":
                if a[0] and b[0]:
                    return None
                many, scale = (a[0], b[1]) if a[0] else (b[0], a[1])
                factors, constant = {c: f * scale for c, f in many.items()}, a[1] * b[1]
            else:
                sign = 1 if expr.op == "+" else -1
                factors, constant = dict(a[0]), a[1] + sign * b[1]
                for column, factor in b[0].items():
                    factors[column] = factors.get(column, 0) + sign * factor
            # Terms that cancel out here count in the limits of the operands.
            return factors, constant, min(a[2], b[2], _largest_safe(factors, constant))
        case _:
            return None


def _largest_safe(factors: dict[ColumnRef, int], constant: int) -> int:
    """The largest absolute value of columns for which the sum stays below SAFE."""
    return max(0, SAFE - abs(constant)) // max(1, sum(abs(f) for f in factors.values()))


def _whole_forms(predicate: Compare, factors: dict[ColumnRef, int], constant: int, limit: int) -> Iterator[NormalForm]:
    """The forms of `fx * x + fy * y + constant op 0`, solved for either column."""
    if 0 in factors.values():
        # Where a column that cancels out is null, the predicate does not hold.
        return
    columns = list(factors)
    if len(columns) not in (1, 2) or frozenset(c.alias for c in columns) != aliases_of(predicate):
        return
    sides = (predicate.left, predicate.right)
    plain = all(isinstance(side, ColumnRef | Literal) for side in sides)
    if plain and (predicate.op in ("=", "<=", ">=") or any(isinstance(side, Literal) for side in sides)):
        limits = Limits()
    else:
        # The change from < to <= takes one from the range.
        limits = Limits(limit - 1)
        if limit < LEAST_LIMIT:
            return
    for x in columns:
        divisor, op = factors[x], str(predicate.op)
        others = [c for c in columns if c != x]
        factor, addend = -factors[others[0]] if others else 0, -constant
        if divisor < 0:
            divisor, factor, addend, op = -divisor, -factor, -addend, MIRROR[op]
        if op in ("<", ">"):
            op, addend = f"{op}=", addend - 1 if op == "<" else addend + 1
        common = math.gcd(divisor, factor)
        if not others:
            yield from _solved(x, op, addend, divisor, limits)
        elif op == "=" and addend % common:
            return
        else:
            # After division by the common factor, the addend is rounded towards fewer solutions; none is lost.
            addend = -(-addend // common) if op == ">=" else addend // common
            yield NormalForm(x, op, others[0], factor // common, addend, divisor // common, True, limits)


def _solved(x: ColumnRef, op: str, bound: int, divisor: int, limits: Limits) -> Iterator[NormalForm]:
    """The form of `divisor * x op bound` without the divisor; none if no value or every value solves it."""
    if op == "=" and bound % divisor:
        return
    addend = -(-bound // divisor) if op == ">=" else bound // divisor
    if abs(addend) < SAFE:
        yield NormalForm(x, op, None, 0, addend, 1, True, limits)


# --- Doubles -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Steps:
    """The expression `factor * column + addend`, each step rounded; `bare` if it is the column alone."""

    column: ColumnRef
    factor: float
    addend: float
    bare: bool

    @property
    def limits(self) -> Limits:
        most = None if self.bare else (LARGEST - abs(self.addend)) / max(1.0, abs(self.factor))
        if self.column.type in WHOLE:
            most = min(EXACT, LARGEST if most is None else most)
        return Limits(most)

    def of(self, value: float) -> float:
        return self.factor * value + self.addend if not self.bare else value


def _steps(expr: Expr) -> _Steps | None:
    """The expression as steps in the order written; None if it has another shape."""
    match expr:
        case ColumnRef() if expr.type in WHOLE or expr.type is Type.DOUBLE:
            return _Steps(expr, 1.0, 0.0, True)
        case Negate() if expr.type is Type.DOUBLE:
            inner = _steps(expr.operand)
            return None if inner is None else _Steps(inner.column, -inner.factor, -inner.addend, False)
        case Arithmetic(op="*") if expr.type is Type.DOUBLE:
            for literal, other in ((expr.left, expr.right), (expr.right, expr.left)):
                factor, inner = _constant(literal), _steps(other)
                if factor and inner is not None and inner.bare:
                    return _Steps(inner.column, factor, 0.0, False)
            return None
        case Arithmetic(op="+" | "-") if expr.type is Type.DOUBLE:
            sign = 1.0 if expr.op == "+" else -1.0
            first, last = _steps(expr.left), _constant(expr.right)
            if first is not None and last is not None and first.addend == 0:
                return _Steps(first.column, first.factor, sign * last, False)
            begin, inner = _constant(expr.left), _steps(expr.right)
            if begin is not None and inner is not None and inner.addend == 0:
                return _Steps(inner.column, sign * inner.factor, begin, False)
            return None
        case _:
            return None


def _constant(expr: Expr) -> float | None:
    """The value of a literal that is finite and exact as a double; else None."""
    if isinstance(expr, Negate):
        inner = _constant(expr.operand)
        return None if inner is None else -inner
    if not isinstance(expr, Literal) or isinstance(expr.value, bool | str) or expr.value is None:
        return None
    try:
        value = float(expr.value)
    except OverflowError:
        return None
    return value if math.isfinite(value) and value == expr.value else None


def _double_forms(predicate: Compare) -> Iterator[NormalForm]:
    left, right = _steps(predicate.left), _steps(predicate.right)
    if left is None or right is None:
        return
    for x, op, y in ((left, predicate.op, right), (right, MIRROR[predicate.op], left)):
        limits = x.limits.intersect(y.limits)
        if x.bare:
            yield NormalForm(x.column, op, y.column, y.factor, y.addend, 1, False, limits)
        elif y.bare and x.addend == 0 and abs(math.frexp(x.factor)[0]) == 0.5 and 2**-30 < abs(x.factor) < 2**30:
            # 0.5 * x > y is x > 2 * y: multiplying by a power of two rounds nothing, except for the smallest doubles.
            solved = op if x.factor > 0 else MIRROR[op]
            both = limits.intersect(Limits(LARGEST * min(1.0, abs(x.factor)), SMALLEST))
            yield NormalForm(x.column, solved, y.column, 1.0 / x.factor, 0.0, 1, False, both)


def _constant_forms(predicate: Compare) -> Iterator[NormalForm]:
    """The forms of `factor * x + addend op constant`."""
    for side, op, other in (
        (predicate.left, predicate.op, predicate.right),
        (predicate.right, MIRROR[predicate.op], predicate.left),
    ):
        steps, constant = _steps(side), _constant(other)
        if steps is None or constant is None:
            continue
        limits = steps.limits
        if steps.column.type in WHOLE:
            if steps.bare:
                yield from _whole_against_double(steps.column, op, constant)
            return
        if op == "=":
            first, last = _boundary(steps, ">=", constant, limits), _boundary(steps, "<=", constant, limits)
            if first is not None and last is not None and first[1] == last[1]:
                yield NormalForm(steps.column, "=", None, 0.0, first[1], 1, False, limits)
            return
        found = _boundary(steps, op, constant, limits)
        if found is not None:
            yield NormalForm(steps.column, found[0], None, 0.0, found[1], 1, False, limits)
        return


def _whole_against_double(x: Expr, op: str, constant: float) -> Iterator[NormalForm]:
    """The form of `x op constant` with x a whole number."""
    low, high = math.floor(constant), math.ceil(constant)
    if op == "=" and low != high:
        return
    bound = {"=": low, "<=": low, "<": high - 1, ">=": high, ">": low + 1}[op]
    if abs(bound) < SAFE:
        yield NormalForm(x, op if op == "=" else op[0] + "=", None, 0, bound, 1, True, Limits())


_OPS: dict[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _boundary(steps: _Steps, op: str, constant: float, limits: Limits) -> tuple[str, float] | None:
    """The boundary of the x that satisfy the predicate, as `x <= last` or `x >= last`; None where all or none do."""
    most = LARGEST if limits.most is None else limits.most
    low, high = _code(-most), _code(most)
    holds = _OPS[op]
    first, last = holds(steps.of(-most), constant), holds(steps.of(most), constant)
    if first == last:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if holds(steps.of(_double(middle)), constant) == first:
            low = middle
        else:
            high = middle
    return ("<=", _double(low)) if first else (">=", _double(high))


def _code(value: float) -> int:
    """A whole number per double, in the order of the doubles; 0 for both zeros."""
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits if bits >= 0 else -(bits & (2**63 - 1))


def _double(code: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<q", abs(code)))[0]
    return value if code >= 0 else -value
