"""Evaluates SQL expressions over whole columns, with SQL's three-valued logic.

Selections, joins and outputs call `evaluate` for values and `holds` for predicates. Internally a value is a pair
`(array or scalar, valid)`; `valid` is None when nothing is null. The value of a null row is arbitrary. The exactness
rules are those of `schemas.query`: BIGINT overflow, division by zero and DOUBLE results that are not finite produce
NULL; BIGINT and DOUBLE compare by exact value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.columns import DTYPES, Batch, Column, Mask, numbers_of
from schemas.nested.json_values import json_values
from schemas.query import (
    And,
    Arithmetic,
    Call,
    ColumnRef,
    Compare,
    Expr,
    InList,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Type,
    type_of,
)

Resolve = Callable[[ColumnRef], Column]
"""Returns the (n,) values of a column reference."""

Valid = Mask | np.bool_ | bool | None

_INT_MIN = -(2**63)
_TWO63 = 9223372036854775808.0


def batch_reader(batch: Batch) -> Resolve:
    """Return a function that reads columns of a source batch; `_ts` is its event time."""

    def resolve(column: ColumnRef) -> Column:
        if column.name == "_ts":
            return Column(column.type, batch.ts)
        return batch.columns[column.name]

    return resolve


def evaluate(expr: Expr, resolve: Resolve, n: int) -> Column:
    """Compute the (n,) values of an expression of any type.

    Args:
        resolve: reads the columns that the expression refers to.
        n: number of rows.

    Returns:
        The values. Except for strings and plain column references, the value of a null row is zero.
    """
    if isinstance(expr, ColumnRef):
        return resolve(expr)
    kind = type_of(expr)
    if kind is Type.STRING:
        text = _text(expr, resolve, n)
        if not isinstance(text, pa.Array):
            text = pa.array([text.as_py()] * n, pa.large_string())
        return Column.from_arrow(text, kind)
    value, valid = _value(expr, resolve, n)
    values = np.broadcast_to(np.asarray(value, DTYPES[kind]), (n,))
    if valid is None:
        return Column(kind, np.ascontiguousarray(values))
    mask = np.broadcast_to(np.asarray(valid, np.bool_), (n,))
    if mask.all():
        return Column(kind, np.ascontiguousarray(values))
    return Column(kind, np.where(mask, values, np.zeros(1, values.dtype)), np.ascontiguousarray(mask))


def holds(predicate: Expr, resolve: Resolve, n: int) -> Mask:
    """Return (n,) bool: True where the predicate is true, neither false nor unknown."""
    value, valid = _value(predicate, resolve, n)
    truth = value if valid is None else np.logical_and(value, valid)
    return np.array(np.broadcast_to(truth, (n,)), np.bool_)


def _both(a: Valid, b: Valid) -> Valid:
    if a is None:
        return b
    return a if b is None else np.logical_and(a, b)


def _value(expr: Expr, resolve: Resolve, n: int) -> tuple[Any, Valid]:
    match expr:
        case ColumnRef():
            column = resolve(expr)
            return column.values, column.valid
        case Literal():
            if expr.value is None:
                return DTYPES.get(expr.type, np.dtype(np.int64)).type(0), False
            return DTYPES[expr.type].type(expr.value), None
        case Negate():
            value, valid = _value(expr.operand, resolve, n)
            if expr.type is Type.DOUBLE:
                return -value, valid
            value = np.asarray(value, np.int64)
            with np.errstate(over="ignore"):
                return -value, _both(valid, value != _INT_MIN)
        case Arithmetic():
            return _arithmetic(expr, resolve, n)
        case Call():
            return _call(expr, resolve, n)
        case Compare():
            return _compare(expr, resolve, n)
        case IsNull():
            valid = _validity(expr.operand, resolve, n)
            null = np.logical_not(True if valid is None else valid)
            return np.logical_not(null) if expr.negated else null, None
        case Like():
            text = _text(expr.operand, resolve, n)
            found = pc.match_substring_regex(text, pattern=like_regex(expr.pattern))
            truth, valid = _truth(found)
            return (np.logical_not(truth) if expr.negated else truth), valid
        case InList():
            terms = tuple(Compare("=", expr.operand, item) for item in expr.items)
            found_in, valid = _any(terms, resolve, n)
            return (np.logical_not(found_in) if expr.negated else found_in), valid
        case Not():
            value, valid = _value(expr.operand, resolve, n)
            return np.logical_not(value), valid
        case And():
            value, valid = _any(tuple(Not(term) for term in expr.terms), resolve, n)
            return np.logical_not(value), valid
        case Or():
            return _any(expr.terms, resolve, n)


def _any(terms: tuple[Expr, ...], resolve: Resolve, n: int) -> tuple[Any, Valid]:
    """OR: true if any term is true; otherwise unknown if any is unknown."""
    found: Any = np.False_
    unknown: Any = np.False_
    for term in terms:
        value, valid = _value(term, resolve, n)
        if valid is None:
            found = np.logical_or(found, value)
        else:
            found = np.logical_or(found, np.logical_and(value, valid))
            unknown = np.logical_or(unknown, np.logical_not(valid))
    return found, np.logical_or(found, np.logical_not(unknown))


def _validity(expr: Expr, resolve: Resolve, n: int) -> Valid:
    if type_of(expr) is Type.STRING:
        return np.asarray(_truth(pc.is_valid(_text(expr, resolve, n)))[0], np.bool_)
    return _value(expr, resolve, n)[1]


def _as_double(value: Any, kind: Type) -> Any:
    return value if kind is Type.DOUBLE else np.asarray(value, np.float64)


def _arithmetic(expr: Arithmetic, resolve: Resolve, n: int) -> tuple[Any, Valid]:
    a, a_valid = _value(expr.left, resolve, n)
    b, b_valid = _value(expr.right, resolve, n)
    valid = _both(a_valid, b_valid)
    with np.errstate(all="ignore"):
        if expr.type is Type.DOUBLE:
            a, b = _as_double(a, type_of(expr.left)), _as_double(b, type_of(expr.right))
            match expr.op:
                case "+":
                    out = a + b
                case "-":
                    out = a - b
                case "*":
                    out = a * b
                case "/":
                    out = np.divide(a, b)
                case "%":
                    out = np.fmod(a, b)
            return out, _both(valid, np.isfinite(out))
        a, b = np.asarray(a, np.int64), np.asarray(b, np.int64)
        match expr.op:
            case "+":
                out = a + b
                good = ((a ^ out) & (b ^ out)) >= 0
            case "-":
                out = a - b
                good = ((a ^ b) & (a ^ out)) >= 0
            case "*":
                out = a * b
                near = np.multiply(a, b, dtype=np.float64)
                wide = np.abs(near) >= 2.0**62
                good = np.logical_not(wide)
                if np.any(wide):
                    good = _product_fits(a, b)
            case "/" | "%":
                zero = b == 0
                over = (a == _INT_MIN) & (b == -1)
                safe = np.where(zero | over, 1, b)
                remainder = np.fmod(a, safe)
                out = (a - remainder) // safe if expr.op == "/" else np.where(over, 0, remainder)
                good = ~(zero | over) if expr.op == "/" else ~zero
    if np.all(good):
        return out, valid
    return out, _both(valid, good)


def _product_fits(a: Any, b: Any) -> Any:
    """Decide with Python integers whether int64 products fit. Only called when some product is huge."""
    a, b = np.broadcast_arrays(a, b)
    exact = [_INT_MIN <= int(x) * int(y) < 2**63 for x, y in zip(a.ravel(), b.ravel(), strict=True)]
    return np.array(exact, np.bool_).reshape(a.shape)


def _call(expr: Call, resolve: Resolve, n: int) -> tuple[Any, Valid]:
    """Functions whose result is not a string.

    SIGN comes before the others, since its result is a BIGINT even where its argument is a DOUBLE.
    """
    if expr.name == "COALESCE":
        value, valid = _value(expr.args[0], resolve, n)
        value = _as_double(value, type_of(expr.args[0])) if expr.type is Type.DOUBLE else value
        for arg in expr.args[1:]:
            if valid is None:
                break
            other, other_valid = _value(arg, resolve, n)
            other = _as_double(other, type_of(arg)) if expr.type is Type.DOUBLE else other
            value = np.where(valid, value, other)
            valid = None if other_valid is None else np.logical_or(valid, other_valid)
        return value, valid
    if expr.name == "LENGTH":
        lengths = pc.utf8_length(_text(expr.args[0], resolve, n))
        return _truth(lengths, np.int64)
    if expr.name == "JSON_VALUE":
        column = _json_values(expr, resolve, n)
        return column.values, column.valid
    value, valid = _value(expr.args[0], resolve, n)
    with np.errstate(all="ignore"):
        if expr.name == "SIGN":
            return np.asarray(np.sign(value), np.int64), valid
        if expr.type is not Type.DOUBLE:
            value = np.asarray(value, np.int64)
            if expr.name == "ABS":
                return np.abs(value), _both(valid, value != _INT_MIN)
            if expr.name not in ("FLOOR", "CEIL", "ROUND"):
                raise ValueError(f"no such function: {expr.name}")
            return value, valid
        value = _as_double(value, type_of(expr.args[0]))
        match expr.name:
            case "ABS":
                return np.abs(value), valid
            case "FLOOR":
                return np.floor(value), valid
            case "CEIL":
                return np.ceil(value), valid
            case "ROUND":
                return np.round(value), valid
            case "SQRT":
                root = np.sqrt(value)
                return root, _both(valid, np.isfinite(root))
    raise ValueError(f"no such function: {expr.name}")


def _compare(expr: Compare, resolve: Resolve, n: int) -> tuple[Any, Valid]:
    left, right = type_of(expr.left), type_of(expr.right)
    if left is Type.STRING or right is Type.STRING:
        a_text, b_text = _text(expr.left, resolve, n), _text(expr.right, resolve, n)
        return _truth(_TEXT_COMPARE[expr.op](a_text, b_text))
    a, a_valid = _value(expr.left, resolve, n)
    b, b_valid = _value(expr.right, resolve, n)
    valid = _both(a_valid, b_valid)
    if left is Type.DOUBLE and right is not Type.DOUBLE:
        return _compare_mixed(_MIRROR[expr.op], b, a), valid
    if right is Type.DOUBLE and left is not Type.DOUBLE:
        return _compare_mixed(expr.op, a, b), valid
    return _COMPARE[expr.op](a, b), valid


def _compare_mixed(op: str, whole: Any, real: Any) -> Any:
    """`whole op real` by exact value: int64 against float64, which float64 alone would round."""
    whole, real = np.asarray(whole, np.int64), np.asarray(real, np.float64)
    low, high = real < -_TWO63, real >= _TWO63
    inside = np.where(low | high, 0.0, real)
    floor = np.floor(inside)
    with np.errstate(invalid="ignore"):  # the value of a null is arbitrary and may be NaN
        floored = floor.astype(np.int64)
    fraction = inside > floor
    less = (whole < floored) | ((whole == floored) & fraction)
    unequal = np.isnan(real)  # NaN is neither equal to, less than nor greater than anything
    equal = (whole == floored) & ~fraction & ~(low | high) & ~unequal
    less = np.where(high, True, np.where(low | unequal, False, less))
    match op:
        case "=":
            return equal
        case "<>":
            return ~equal
        case "<":
            return less
        case "<=":
            return less | equal
        case ">":
            return ~(less | equal | unequal)
        case _:
            return ~(less | unequal)


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": np.equal, "<>": np.not_equal, "<": np.less,
    "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip
_TEXT_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal, "<>": pc.not_equal, "<": pc.less,
    "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip
_MIRROR = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _truth(result: Any, dtype: Any = np.bool_) -> tuple[Any, Valid]:
    """Convert an Arrow result (array or scalar) to (values, valid)."""
    if isinstance(result, pa.Scalar):
        value = result.as_py()
        return (dtype(0), False) if value is None else (dtype(value), None)
    valid = None
    if result.null_count:
        valid = numbers_of(result.is_valid())
    return numbers_of(result).astype(dtype, copy=False), valid


def _text(expr: Expr, resolve: Resolve, n: int) -> Any:
    """Evaluate a string expression to an Arrow large_string array or scalar."""
    match expr:
        case ColumnRef():
            return resolve(expr).to_arrow()
        case Literal():
            return pa.scalar(expr.value, pa.large_string())
        case Call(name="COALESCE"):
            args = [_text(arg, resolve, n) for arg in expr.args]
            return pc.coalesce(*args)
        case Call(name="CONCAT"):
            args = [_text(arg, resolve, n) for arg in expr.args]
            return pc.binary_join_element_wise(*args, pa.scalar("", pa.large_string()))
        case Call(name="LOWER"):
            return pc.utf8_lower(_text(expr.args[0], resolve, n))
        case Call(name="UPPER"):
            return pc.utf8_upper(_text(expr.args[0], resolve, n))
        case Call(name="SUBSTRING"):
            return _substring(expr, resolve, n)
        case Call(name="JSON_VALUE"):
            return _json_values(expr, resolve, n).to_arrow()
        case _:
            raise TypeError(f"not a string expression: {expr!r}")


def _json_values(expr: Call, resolve: Resolve, n: int) -> Column:
    texts, path = expr.args
    if not isinstance(path, Literal):
        raise TypeError(f"not a literal: {path!r}")
    return json_values(evaluate(texts, resolve, n), str(path.value), expr.type)


def _substring(expr: Call, resolve: Resolve, n: int) -> Any:
    """Evaluate SUBSTRING row by row, since start and count may differ per row. This is slow."""
    texts = evaluate(expr.args[0], resolve, n).to_values()
    starts = evaluate(expr.args[1], resolve, n).to_values()
    counts: list[Any] = [None] * n
    if len(expr.args) > 2:
        counts = evaluate(expr.args[2], resolve, n).to_values()
    out: list[str | None] = []
    for text, start, count in zip(texts, starts, counts, strict=True):
        if text is None or start is None or (len(expr.args) > 2 and count is None):
            out.append(None)
            continue
        first: Any = start
        stop = len(str(text)) + 1 if count is None else first + max(count, 0)
        out.append(str(text)[max(first, 1) - 1 : max(stop, 1) - 1])
    return pa.array(out, pa.large_string())


def like_regex(pattern: str) -> str:
    """Translate a LIKE pattern to an anchored RE2 expression.

    `%` matches any run of characters, `_` one code point; a backslash escapes.
    """
    out = []
    chars = iter(pattern)
    for char in chars:
        if char == "%":
            out.append(".*")
        elif char == "_":
            out.append(".")
        else:
            literal = next(chars, "\\") if char == "\\" else char
            out.append(literal if literal.isalnum() else f"\\x{{{ord(literal):x}}}")
    return "(?s)\\A" + "".join(out) + "\\z"
