"""Translates bound expressions to Spark SQL text, with the rules of `schemas.query`.

Spark decides joins and selections of the batch answer by itself, so that an audit compares two implementations; this
module only expresses in Spark SQL what Weir's expressions mean. Where Spark's own operator means something else, the
text uses other operators:

- BIGINT arithmetic gives NULL on overflow (`try_add`), DOUBLE arithmetic where the result is not finite. A value that
  is not finite stays so through + - * and as the left side of / and %, so it is looked for only at the end of such a
  chain: looking at every step would double the text each time.
- BIGINT compares with DOUBLE by exact value; Spark would round the BIGINT. `join_key` is the rounded equality, which
  follows from the exact one and which Spark can join by.
- FLOOR, CEIL and ROUND of DOUBLE stay DOUBLE: Spark's `rint`, adjusted.
- LIKE becomes a regular expression of Java's; LOWER and UPPER are Arrow's, as in the engine, because Java maps some
  letters otherwise (`ß` to `SS`): they are functions that `register_functions` adds to a session. So is JSON_VALUE, by
  Python's json: Spark's own reads texts that are no JSON, and writes numbers anew.

The session must have `spark.sql.ansi.enabled` off (`ops.spark.session`).

Limits: text of more than MAX_TEXT characters is refused; only divisions nested some twenty deep make it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from schemas.errors import UsageError
from schemas.paths import parse_json_path
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_TYPES = {
    Type.BIGINT: "BIGINT",
    Type.DOUBLE: "DOUBLE",
    Type.STRING: "STRING",
    Type.BOOLEAN: "BOOLEAN",
    Type.TIMESTAMP: "BIGINT",
}
MAX_TEXT = 1_000_000

_LOWER, _UPPER, _JSON = "weir_lower", "weir_upper", "weir_json_value"
_MIN = "CAST('-9223372036854775808' AS BIGINT)"
_MAX = "9223372036854775807L"
_LARGEST = "CAST('1.7976931348623157E308' AS DOUBLE)"
_TWO63 = "CAST('9223372036854775808' AS DOUBLE)"
_INTEGER = {"+": "try_add", "-": "try_subtract", "*": "try_multiply"}
_MIRROR = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _.,:-/")

NameOf = Callable[[ColumnRef], str]
"""Returns the name of a column in the SQL text."""


def register_functions(spark: SparkSession) -> None:
    """Add the functions that the texts of `sql_of` may call."""
    from pyspark.sql.types import StringType

    # Defined within a function, so that Spark sends them to executors by value: those need Arrow, not Weir.
    def mapped(name: str) -> Callable[[str | None], str | None]:
        def apply(text: str | None) -> str | None:
            import pyarrow as pa
            import pyarrow.compute as pc

            found: str | None = getattr(pc, name)(pa.scalar(text, pa.large_string())).as_py()
            return found

        return apply

    def json_value(text: str | None, steps: str, kind: str) -> str | None:
        """The scalar at a place of a JSON text, as a text: of another type than STRING, one that can be cast to it.

        Args:
            steps: a JSON array of names and places.
        """
        import json

        class Number(str):
            pass

        def refused(constant: str) -> None:
            raise ValueError(constant)

        try:
            found = json.loads(text or "", parse_int=Number, parse_float=Number, parse_constant=refused)
            for step in json.loads(steps):
                inside = isinstance(found, dict) if isinstance(step, str) else isinstance(found, list)
                found = found[step] if inside else None
            if isinstance(found, bool):
                return str(found).lower() if kind in ("STRING", "BOOLEAN") else None
            if not isinstance(found, str) or kind == "BOOLEAN":
                return None
            if kind == "STRING":
                return found.encode().decode()  # half of a surrogate pair is refused
            if not isinstance(found, Number):
                return None
            whole = not set(found) & set(".eE")
            if kind == "BIGINT":
                fits = whole and len(found) < 21 and -(2**63) <= int(found) < 2**63
                return str(int(found)) if fits else None
            number = float(found) + 0.0 if whole else float(found)
            return repr(number) if abs(number) < float("inf") else None
        except (ValueError, LookupError, RecursionError):
            return None

    spark.udf.register(_JSON, json_value, StringType())
    spark.udf.register(_LOWER, mapped("utf8_lower"), StringType())
    spark.udf.register(_UPPER, mapped("utf8_upper"), StringType())


def sql_of(expr: Expr, name_of: NameOf) -> str:
    """The SQL text of an expression.

    Raises:
        UsageError: it would be longer than MAX_TEXT.
    """
    return _Writer(name_of).value(expr)


def join_key(predicate: Expr, name_of: NameOf) -> str | None:
    """An equality in SQL that follows from a predicate of another form; None where there is no such equality."""
    if isinstance(predicate, Compare) and predicate.op == "=":
        kinds = {type_of(predicate.left), type_of(predicate.right)}
        if Type.DOUBLE in kinds and len(kinds) == 2:
            left, right = (f"CAST({sql_of(side, name_of)} AS DOUBLE)" for side in (predicate.left, predicate.right))
            return f"({left} = {right})"
    return None


def string_literal(text: str) -> str:
    """A string as an SQL literal, whatever characters it has."""
    if _PLAIN.issuperset(text):
        return f"'{text}'"
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


class _Writer:
    def __init__(self, name_of: NameOf) -> None:
        self._name_of = name_of

    def value(self, expr: Expr) -> str:
        """The text of an expression; for a DOUBLE, its value is finite or NULL."""
        text = self._raw(expr)
        if isinstance(expr, Arithmetic) and expr.type is Type.DOUBLE:
            # NaN is above all numbers in Spark's order.
            text = f"CASE WHEN abs({text}) <= {_LARGEST} THEN {text} END"
        if len(text) > MAX_TEXT:
            raise UsageError(
                f"the batch answer of this query needs an expression of more than {MAX_TEXT:,} characters: "
                "its divisions are nested too deep for Spark"
            )
        return text

    def _raw(self, expr: Expr) -> str:
        """The text; the value of DOUBLE arithmetic may not be finite."""
        match expr:
            case ColumnRef():
                return self._name_of(expr)
            case Literal():
                return _literal(expr)
            case Negate():
                operand = self.value(expr.operand)
                return f"(- {operand})" if expr.type is Type.DOUBLE else f"try_subtract(0L, {operand})"
            case Arithmetic():
                return self._arithmetic(expr)
            case Call():
                return self._call(expr)
            case Compare():
                return self._compare(expr)
            case IsNull():
                return f"({self.value(expr.operand)} IS {'NOT ' if expr.negated else ''}NULL)"
            case Like():
                found = f"rlike({self.value(expr.operand)}, {string_literal(like_regex(expr.pattern))})"
                return f"(NOT {found})" if expr.negated else found
            case InList():
                found = self._any(tuple(Compare("=", expr.operand, item) for item in expr.items))
                return f"(NOT {found})" if expr.negated else found
            case Not():
                return f"(NOT {self.value(expr.operand)})"
            case And():
                return f"({' AND '.join(self.value(term) for term in expr.terms)})"
            case Or():
                return self._any(expr.terms)

    def _any(self, terms: tuple[Expr, ...]) -> str:
        return f"({' OR '.join(self.value(term) for term in terms)})"

    def _double(self, expr: Expr, *, finite: bool = True) -> str:
        """The text of a number as DOUBLE."""
        if type_of(expr) is not Type.DOUBLE:
            return f"CAST({self.value(expr)} AS DOUBLE)"
        return self.value(expr) if finite else self._raw(expr)

    def _arithmetic(self, expr: Arithmetic) -> str:
        op = expr.op
        if expr.type is Type.DOUBLE:
            left = self._double(expr.left, finite=False)
            return f"({left} {op} {self._double(expr.right, finite=op in '/%')})"
        left, right = self.value(expr.left), self.value(expr.right)
        if op in _INTEGER:
            return f"{_INTEGER[op]}({left}, {right})"
        if op == "%":
            return f"({left} % {right})"
        # The one quotient that overflows; a division by zero is NULL anyway.
        return f"CASE WHEN {left} = {_MIN} AND {right} = -1L THEN NULL ELSE {left} div {right} END"

    def _json_value(self, expr: Call) -> str:
        text, path = expr.args
        if not isinstance(path, Literal):
            raise UsageError("JSON_VALUE takes a path in quotes")
        steps = json.dumps(parse_json_path(str(path.value)))
        found = f"{_JSON}({self.value(text)}, {string_literal(steps)}, '{expr.type}')"
        return found if expr.type is Type.STRING else f"CAST({found} AS {SPARK_TYPES[expr.type]})"

    def _call(self, expr: Call) -> str:
        if expr.type is Type.DOUBLE:
            args = [self._double(arg) for arg in expr.args]
        else:
            args = [self.value(arg) for arg in expr.args]
        whole = expr.type is Type.BIGINT
        match expr.name:
            case "COALESCE":
                return f"coalesce({', '.join(args)})"
            case "ABS" if whole:
                return f"CASE WHEN {args[0]} = {_MIN} THEN NULL ELSE abs({args[0]}) END"
            case "ABS":
                return f"abs({args[0]})"
            case "FLOOR" | "CEIL" | "ROUND" if whole:
                return args[0]
            case "ROUND":
                return f"rint({args[0]})"
            case "FLOOR":
                return _floor(args[0])
            case "CEIL":
                return f"(- {_floor(f'(- {args[0]})')})"
            case "SQRT":
                return f"CASE WHEN {args[0]} >= 0 THEN sqrt({args[0]}) END"
            case "SIGN":
                return f"CAST(signum({args[0]}) AS BIGINT)"
            case "LOWER":
                return f"{_LOWER}({args[0]})"
            case "UPPER":
                return f"{_UPPER}({args[0]})"
            case "LENGTH":
                return f"CAST(char_length({args[0]}) AS BIGINT)"
            case "CONCAT":
                return f"concat({', '.join(args)})"
            case "SUBSTRING":
                return _substring(*args)
            case "JSON_VALUE":
                return self._json_value(expr)
        raise UsageError(f"the function {expr.name} is not known to the batch answer")

    def _compare(self, expr: Compare) -> str:
        left, right = type_of(expr.left), type_of(expr.right)
        if left is Type.DOUBLE and right is not Type.DOUBLE:
            return _mixed(_MIRROR[expr.op], self.value(expr.right), self.value(expr.left))
        if right is Type.DOUBLE and left is not Type.DOUBLE:
            return _mixed(expr.op, self.value(expr.left), self.value(expr.right))
        return f"({self.value(expr.left)} {expr.op} {self.value(expr.right)})"


def _literal(expr: Literal) -> str:
    value = expr.value
    if value is None:
        return f"CAST(NULL AS {SPARK_TYPES[expr.type]})"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return string_literal(value)
    if expr.type is Type.DOUBLE:
        return f"CAST('{float(value)!r}' AS DOUBLE)"
    return _MIN if value == -(2**63) else f"({value}L)"


def _floor(text: str) -> str:
    return f"CASE WHEN rint({text}) > {text} THEN rint({text}) - 1D ELSE rint({text}) END"


def _substring(text: str, start: str, count: str | None = None) -> str:
    """The characters whose 1-based position is in [start, start + count)."""
    begin = f"greatest({start}, 1L)"
    known = f"{text} IS NOT NULL AND {start} IS NOT NULL"
    end = f"CAST(char_length({text}) AS BIGINT) + 1L"
    if count is not None:
        end = f"least({end}, greatest(coalesce(try_add({start}, greatest({count}, 0L)), {_MAX}), 1L))"
        known += f" AND {count} IS NOT NULL"
    # Until the comparison with `end`, `begin` may be beyond what fits 32 bits.
    return (
        f"CASE WHEN {known} THEN CASE WHEN {begin} < {end} "
        f"THEN substring({text}, CAST({begin} AS INT), CAST({end} - {begin} AS INT)) ELSE '' END END"
    )


def _mixed(op: str, whole: str, real: str) -> str:
    """`whole op real` by exact value, BIGINT against DOUBLE.

    Within the range of BIGINT a DOUBLE's floor is a BIGINT, and `whole <= real` if `whole <= floor(real)`.
    """
    floor, integral = f"floor({real})", f"{real} = rint({real})"
    inside = {
        "=": f"{whole} = {floor} AND {integral}",
        "<>": f"NOT ({whole} = {floor} AND {integral})",
        "<": f"NOT ({whole} > {floor} OR ({whole} = {floor} AND {integral}))",
        "<=": f"{whole} <= {floor}",
        ">": f"{whole} > {floor}",
        ">=": f"{whole} > {floor} OR ({whole} = {floor} AND {integral})",
    }[op]
    below, above = str(op in ("<", "<=", "<>")).lower(), str(op in (">", ">=", "<>")).lower()
    return (
        f"CASE WHEN {whole} IS NULL OR {real} IS NULL THEN NULL WHEN {real} >= {_TWO63} THEN {below} "
        f"WHEN {real} < - {_TWO63} THEN {above} ELSE {inside} END"
    )


def like_regex(pattern: str) -> str:
    """A LIKE pattern as a Java regular expression over the whole string; `.` is a code point there."""
    out = []
    escaped = False
    for char in pattern:
        if not escaped and char == "\\":
            escaped = True
        elif not escaped and char in "%_":
            out.append(".*" if char == "%" else ".")
        else:
            out.append(f"\\x{{{ord(char):x}}}")
            escaped = False
    return f"(?s)\\A{''.join(out)}\\z"
