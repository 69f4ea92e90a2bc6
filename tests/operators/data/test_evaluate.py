"""Expressions over columns have the oracle's values, row by row, over all pairs of awkward values."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.data.evaluate import Resolve, evaluate, holds, like_regex
from schemas.columns import Column
from schemas.query import And, ColumnRef, Compare, Expr, Not, Or, Type, type_of
from tests import oracle
from tests.cases import numeric
from tests.operators.tiny import query
from tests.profiles import PROPERTY

LEAST, MOST = -(2**63), 2**63 - 1
WHOLE = [None, 0, 1, -1, 2, -3, 7, 2**31, 2**53 + 1, 3037000500, LEAST, LEAST + 1, MOST, MOST - 1]
REAL = [
    None,
    0.0,
    -0.0,
    0.5,
    -0.5,
    1.5,
    -2.5,
    2.0,
    1e300,
    -1e300,
    5e-324,
    2.0**53,
    2.0**63,
    -(2.0**63),
    9.3e18,
]
TEXT = [None, "", "a", "A", "ab", "ä", "Äb", "a%b", "a_b", "100%", "x\ny", "日本語", "longer than eight"]
TRUTH = [None, True, False]
TIMES = [0, 1, 1_700_000_000_123]


def grid(first: list[Any], second: list[Any]) -> list[tuple[Any, Any]]:
    return list(product(first, second))


# k and v are combined with each other, and d with v; the other columns repeat their values.
ROWS: list[dict[str, Any]] = [
    {"k": k, "v": v, "d": d, "s": s, "f": f, "ts": t}
    for (k, v), (d, _), (s, f), t in zip(
        grid(WHOLE, WHOLE),
        grid(REAL, WHOLE),
        (grid(TEXT, TRUTH) * 6)[: len(WHOLE) ** 2],
        (TIMES * 66)[: len(WHOLE) ** 2],
        strict=False,
    )
]
ROWS += [{"k": v, "v": v, "d": d, "s": "a", "f": True, "ts": 1} for d, v in grid(REAL, WHOLE)]
TYPES = {
    "k": Type.BIGINT,
    "v": Type.BIGINT,
    "d": Type.DOUBLE,
    "s": Type.STRING,
    "f": Type.BOOLEAN,
    "ts": Type.TIMESTAMP,
}
COLUMNS = {name: Column.from_values([row[name] for row in ROWS], type) for name, type in TYPES.items()}


def resolve(column: ColumnRef) -> Column:
    return COLUMNS["ts" if column.name == "_ts" else column.name]


def expected(expr: Expr) -> list[Any]:
    return [oracle.evaluate(expr, {"A": oracle.Tuple(row["ts"], row, 0, 0, ())}) for row in ROWS]


def same(expr: Expr, by: Resolve = resolve) -> None:
    """Check that values, nulls and types are the oracle's, and for a condition the rows where it holds."""
    got = evaluate(expr, by, len(ROWS))
    assert got.type is type_of(expr)
    assert len(got) == len(ROWS)
    want = expected(expr)
    for row, a, b in zip(ROWS, got.to_values(), want, strict=True):
        assert (type(a), a) == (type(b), b), f"{row}: got {a!r}, want {b!r}"  # -0.0 is 0.0
    if type_of(expr) is Type.BOOLEAN:
        assert holds(expr, by, len(ROWS)).tolist() == [value is True for value in want]


def output(text: str) -> Expr:
    """The bound expression of a SELECT item, or of a condition."""
    return query(f"SELECT {text} AS x FROM a A [ROWS 1]").outputs[0].expr


VALUES = [
    *(f"A.k {op} A.v" for op in "+-*/%"),
    *(f"A.d {op} A.v" for op in "+-*/%"),
    *(f"A.v {op} A.d" for op in "+-*/%"),
    *(f"A.k {op} 3" for op in "+-*/%"),
    *(f"7 {op} A.v" for op in "+-*/%"),
    *(f"A.d {op} 0.0" for op in "+-*/%"),
    "-A.v",
    "-A.d",
    "-(A.k - A.v)",
    "A.k + A.v + A.k",
    "A.ts - A.ts",
    "A.ts + 5",
    "9223372036854775807 + A.v",
    "1 + 2 * 3",
    "1 / 0",
    "ABS(A.v)",
    "ABS(A.d)",
    "FLOOR(A.d)",
    "CEIL(A.d)",
    "ROUND(A.d)",
    "FLOOR(A.v)",
    "SQRT(A.d)",
    "SQRT(A.v)",
    "SIGN(A.d)",
    "SIGN(A.v)",
    "SIGN(A.d / A.v)",
    "SIGN(A.d * 1e308)",
    "SIGN(SQRT(A.d))",
    "SIGN(A.v) * A.d",
    "SIGN(-0.5)",
    "LENGTH(A.s)",
    "LENGTH('äb')",
    "COALESCE(A.k, A.v)",
    "COALESCE(A.k, A.v, 5)",
    "COALESCE(A.d, A.v)",
    "COALESCE(A.v, A.d)",
    "COALESCE(A.s, 'none')",
    "COALESCE(A.f, TRUE)",
    "LOWER(A.s)",
    "UPPER(A.s)",
    "CONCAT(A.s, '-', A.s)",
    "CONCAT('a', 'b')",
    "JSON_VALUE(CONCAT('[\"', A.s, '\"]'), '$[0]')",
    "JSON_VALUE(A.s, '$' RETURNING BIGINT) + A.v",
    "LENGTH(JSON_VALUE(CONCAT('{\"a\": [1, ', A.s, ']}'), '$.a[0]'))",
    "COALESCE(JSON_VALUE('{\"a\": 1.5}', '$.a' RETURNING DOUBLE), A.d)",
    "JSON_VALUE('{\"a\": false}', '$.a' RETURNING BOOLEAN)",
    "SUBSTRING(A.s, 2)",
    "SUBSTRING(A.s, 2, 1)",
    "SUBSTRING(A.s, A.v, 3)",
    "SUBSTRING(A.s, 1, A.v)",
    "SUBSTRING(A.s, -1, 3)",
    "'fixed'",
    "5",
    "2.5",
    "A.s",
    "A.f",
    "A.ts",
    "A._ts",
]
CONDITIONS = [
    *(f"A.k {op} A.v" for op in ("=", "<>", "<", "<=", ">", ">=")),
    *(f"A.d {op} A.v" for op in ("=", "<>", "<", "<=", ">", ">=")),
    *(f"A.v {op} A.d" for op in ("=", "<>", "<", "<=", ">", ">=")),
    *(f"A.s {op} 'a'" for op in ("=", "<>", "<", "<=", ">", ">=")),
    *(f"A.d {op} 0.0" for op in ("=", "<>", "<", "<=", ">", ">=")),
    "'a' < A.s",
    "A.f = TRUE",
    "A.f",
    "NOT A.f",
    "A.f AND A.k = A.v",
    "A.f OR A.k = A.v",
    "NOT (A.f AND A.k < A.v)",
    "A.k IS NULL",
    "A.k + A.v IS NULL",
    "A.k / A.v IS NOT NULL",
    "A.s IS NULL",
    "A.s IS NOT NULL",
    "CONCAT(A.s, 'x') IS NULL",
    "(A.k < A.v) IS NULL",
    "A.k IN (1, 2, -3)",
    "A.k NOT IN (1, 2, -3)",
    "A.k IN (1, NULL)",
    "A.k NOT IN (1, NULL)",
    "A.s IN ('a', 'ab')",
    "A.s NOT IN ('a', NULL)",
    "A.d IN (0.5, 2.0)",
    "A.d IN (0, 2)",
    "A.k BETWEEN -1 AND A.v",
    "A.k NOT BETWEEN 0 AND 7",
    "A.s LIKE 'a%'",
    "A.s NOT LIKE 'a%'",
    "A.s LIKE '%b'",
    "A.s LIKE 'a_b'",
    "A.s LIKE 'a\\_b'",
    "A.s LIKE 'a\\%b'",
    "A.s LIKE '_'",
    "A.s LIKE '%'",
    "A.s LIKE ''",
    "A.s LIKE 'x%y'",
    "A.s LIKE '.*'",
    "A.s LIKE '日_語'",
    "'abc' LIKE 'a%'",
    "1 < 2",
    "1 = 1.0",
    "9223372036854775807 = A.v",
    "SIGN(A.d) = SIGN(A.v)",
    "SIGN(A.d) < A.d",
    "SIGN(A.d) IS NULL",
]


@pytest.mark.parametrize("text", VALUES)
def test_values(text: str) -> None:
    """Arithmetic, functions, literals."""
    same(output(text))


@pytest.mark.parametrize("text", CONDITIONS)
def test_conditions(text: str) -> None:
    """Comparisons and three-valued logic."""
    same(query(f"SELECT A.k FROM a A [ROWS 1] WHERE COALESCE({text}, {text})").predicates[0])
    for predicate in query(f"SELECT A.k FROM a A [ROWS 1] WHERE {text}").predicates:
        same(predicate)


@PROPERTY
@given(st.data())
def test_nested(data: st.DataObject) -> None:
    """Random comparisons of random arithmetic, under random logic."""
    some = numeric(["A"])
    op = st.sampled_from(["=", "<", "<=", ">", ">=", "<>"])
    compared = st.builds(Compare, op, some, some)
    logic = st.recursive(
        compared,
        lambda inner: st.one_of(
            st.builds(Not, inner),
            st.builds(And, st.tuples(inner, inner)),
            st.builds(Or, st.tuples(inner, inner)),
        ),
        max_leaves=4,
    )
    same(data.draw(logic))


def test_no_rows() -> None:
    """Every expression evaluates over no rows."""

    def none(column: ColumnRef) -> Column:
        return Column.from_values([], column.type)

    for text in VALUES:
        assert len(evaluate(output(text), none, 0)) == 0
    for text in CONDITIONS:
        for predicate in query(f"SELECT A.k FROM a A [ROWS 1] WHERE {text}").predicates:
            assert holds(predicate, none, 0).tolist() == []


def test_under_a_null_the_value_is_zero() -> None:
    """The rule of `schemas.columns`: written bytes never depend on what was computed under a null."""
    got = evaluate(output("A.k + A.v"), resolve, len(ROWS))
    assert got.valid is not None
    assert not np.asarray(got.values)[~got.valid].any()


@pytest.mark.parametrize(
    ("pattern", "regex"),
    [
        ("a%b", r"(?s)\Aa.*b\z"),
        ("_", r"(?s)\A.\z"),
        ("1.5", r"(?s)\A1\x{2e}5\z"),
        (r"\%\\", r"(?s)\A\x{25}\x{5c}\z"),
        ("\\", r"(?s)\A\x{5c}\z"),
    ],
)
def test_like_regex(pattern: str, regex: str) -> None:
    """Everything but % and _ stands for itself."""
    assert like_regex(pattern) == regex
