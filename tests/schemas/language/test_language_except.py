"""EXCEPT: what it means, and which uses are refused."""

from __future__ import annotations

import pytest

from schemas.language.program import parse_program
from schemas.query import ColumnRef, Compare, Literal, Query, Subtraction, Type, Window
from services.process.fingerprint import fingerprint
from tests.schemas.language.refusals import refused

STREAMS = """CREATE STREAM a (k BIGINT, x DOUBLE, s STRING);
CREATE STREAM b (k BIGINT, y DOUBLE, s STRING, at TIMESTAMP);
"""
A_K, A_X, A_S = ColumnRef("A", "k", Type.BIGINT), ColumnRef("A", "x", Type.DOUBLE), ColumnRef("A", "s", Type.STRING)
B_K, B_Y = ColumnRef("B", "k", Type.BIGINT), ColumnRef("B", "y", Type.DOUBLE)
C_S = ColumnRef("C", "s", Type.STRING)


def query(text: str) -> Query:
    return parse_program(STREAMS + text).queries[0]


def test_a_set_difference() -> None:
    found = query(
        "SELECT A.k FROM a A [RANGE 1 SECOND] WHERE A.x > 3 "
        "EXCEPT b B [ROWS 3] ON A.k = B.k AND B.y > 2 EXCEPT b C [UNBOUNDED] ON C.s = A.s"
    )
    assert [(s.alias, s.stream.name, s.window) for s in found.sources] == [
        ("A", "a", Window("RANGE", 1000)),
        ("B", "b", Window("ROWS", 3)),
        ("C", "b", Window("UNBOUNDED")),
    ]
    assert found.predicates == (Compare(">", A_X, Literal(3, Type.BIGINT)),)
    assert found.subtracted == (
        Subtraction("B", (Compare("=", A_K, B_K), Compare(">", B_Y, Literal(2, Type.BIGINT)))),
        Subtraction("C", (Compare("=", C_S, A_S),)),
    )
    assert found.aggregation is None


def test_what_follows_may_come_in_any_order() -> None:
    clauses = ["WHERE A.x > 3", "EXCEPT b B ON A.k = B.k", "WINDOW RANGE 1 SECOND", "PARTITION BY A.k, B.k"]
    queries = [query(f"SELECT * FROM a A {' '.join(clauses[k:] + clauses[:k])}") for k in range(4)]
    assert all(q == queries[0] for q in queries)
    assert [s.window for s in queries[0].sources] == [Window("RANGE", 1000)] * 2
    assert [output.name for output in queries[0].outputs] == ["A.k", "A.x", "A.s"]
    assert queries[0].partition_by == (A_K, B_K)


def test_names_without_alias_are_the_first_streams() -> None:
    found = query("SELECT k FROM a [ROWS 1] WHERE s = 'x' EXCEPT b AS c [ROWS 1] ON x = y")
    assert found.outputs[0].expr == ColumnRef("a", "k", Type.BIGINT)
    assert found.subtracted[0].on == (Compare("=", ColumnRef("a", "x", Type.DOUBLE), ColumnRef("c", "y", Type.DOUBLE)),)


def test_what_is_subtracted_is_part_of_the_query() -> None:
    text = "SELECT k FROM a [ROWS 1] EXCEPT b [ROWS 1] ON a.x = b.y"
    assert fingerprint(query(text)) == fingerprint(query(text.replace("SELECT k", "SELECT x")))
    assert fingerprint(query(text)) != fingerprint(query(text.replace("a.x", "a.k")))
    assert fingerprint(query(text)) != fingerprint(query("SELECT a.k FROM a [ROWS 1], b [ROWS 1] WHERE a.x = b.y"))


END = "EXCEPT b B [ROWS 1] ON A.k = B.k"


@pytest.mark.parametrize(
    ("text", "underlined", "message"),
    [
        (f"SELECT * FROM a A [ROWS 1], b C [ROWS 1] {END}", "b C [ROWS 1]", "EXCEPT takes from one stream"),
        (f"SELECT * FROM a A [ROWS 1] JOIN b C [ROWS 1] ON A.k = C.k {END}", "b C [ROWS 1]", "takes from one stream"),
        (f"SELECT B.k FROM a A [ROWS 1] {END}", "B.k", "this reads A only, not B"),
        (f"SELECT B.* FROM a A [ROWS 1] {END}", "B", "unknown alias 'B'; the query has A"),
        (f"SELECT A.k FROM a A [ROWS 1] WHERE B.y > 3 {END}", "B.y", "this reads A only, not B"),
        (f"SELECT A.k FROM a A [ROWS 1] {END} WHERE A.k = B.k", "B.k", "this reads A only, not B"),
        (f"SELECT A.k FROM a A [ROWS 1] {END} WINDOW A.ts < B.ts", "B.ts", "this reads A only, not B"),
        (f"SELECT A.k FROM a A [ROWS 1] {END} EXCEPT b C [ROWS 1] ON B.k = C.k", "B.k", "compares A with C, not B"),
        (f"SELECT A.k FROM a A [ROWS 1] {END} EXCEPT b B [ROWS 1] ON A.k = 1", "B", "alias 'B' stands for two"),
        ("SELECT a.k FROM a [ROWS 1] EXCEPT a [ROWS 1] ON a.k = 1", "a", "alias 'a' stands for two streams"),
        ("SELECT A.k FROM a A [ROWS 1] EXCEPT b B [ROWS 1]", "", "expected ON"),
        ("SELECT A.k FROM a A [ROWS 1] EXCEPT b B ON A.k = B.k", "b B", "B has no window"),
        ("SELECT A.k FROM a A [ROWS 1] EXCEPT ON A.k = 1", "ON", "expected a stream's name; got 'ON'"),
        ("SELECT A.k FROM a A [ROWS 1] EXCEPT SELECT k FROM b", "SELECT", "expected a stream's name; got 'SELECT'"),
        ("SELECT A.k FROM a A [ROWS 1] EXCEPT c [ROWS 1] ON A.k = c.k", "c", "unknown stream 'c'"),
        ("SELECT A.k FROM a A [ROWS 1] EXCEPT b B [ROWS 1] ON A.k", "A.k", "expected a condition"),
        ("SELECT k FROM a [ROWS 1] EXCEPT b [ROWS 1] ON k = k", "k", "column 'k' is ambiguous; write a.k or b.k"),
        (f"SELECT COUNT(*) AS n FROM a A [ROWS 1] {END} EMIT EVERY 1 DAY", "EXCEPT", "aggregates above EXCEPT are not"),
        (f"SELECT A.k FROM a A [ROWS 1] {END} PARTITION BY A.k", "A.k", "none is given of B"),
        (f"SELECT A.k FROM a A [ROWS 1] {END} PARTITION BY A.k, B.y", "B.y", "no condition says A.k = B.y"),
        (f"INSERT INTO 'b' SELECT A.k FROM a A [ROWS 1] {END}", "'b'", "would read its own results"),
    ],
)
def test_refused(text: str, underlined: str, message: str) -> None:
    refused(STREAMS + text, underlined, message)
