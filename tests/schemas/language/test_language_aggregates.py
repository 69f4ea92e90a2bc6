"""GROUP BY, EMIT EVERY and aggregates: what they mean, and which uses are refused."""

from __future__ import annotations

import pytest

from schemas.errors import QueryError
from schemas.language.program import parse_program
from schemas.query import (
    Aggregate,
    Arithmetic,
    Call,
    ColumnRef,
    Literal,
    Output,
    Query,
    Type,
    aggregate_column,
    group_column,
)
from services.process.fingerprint import fingerprint
from tests.schemas.language.refusals import refused

STREAMS = """CREATE STREAM temperature (mote BIGINT, room STRING, celsius DOUBLE, at TIMESTAMP, ok BOOLEAN);
CREATE STREAM light (mote BIGINT, room STRING, lux DOUBLE, at TIMESTAMP);
"""
FROM = "FROM temperature T [RANGE 5 MINUTES], light L [ROWS 5]"
END = f"{FROM} EMIT EVERY 1 SECOND"
MOTE = ColumnRef("T", "mote", Type.BIGINT)
ROOM = ColumnRef("T", "room", Type.STRING)
CELSIUS = ColumnRef("T", "celsius", Type.DOUBLE)


def query(text: str) -> Query:
    return parse_program(STREAMS + text).queries[0]


def test_so_many_expressions_are_grouped_by_at_most() -> None:
    """The 64th null of a key had no bit, and the worker failed."""
    listed = [f"T.mote + {n}" for n in range(63)]
    text = f"SELECT COUNT(*) AS n {FROM} GROUP BY {{}} EMIT EVERY 1 SECOND"
    assert len(query(text.format(", ".join(listed[:62]))).outputs) == 1
    with pytest.raises(QueryError, match="GROUP BY takes at most 62 expressions"):
        query(text.format(", ".join(listed)))


def test_a_query_with_aggregates() -> None:
    found = query(
        f"SELECT T.room, COUNT(*) AS n, AVG(T.celsius) AS mean {FROM} WHERE T.mote = L.mote "
        "GROUP BY T.room EMIT EVERY 1 MINUTE"
    )
    aggregation = found.aggregation
    assert aggregation is not None
    assert aggregation.every_ms == 60_000
    assert aggregation.group_by == (ROOM,)
    assert aggregation.aggregates == (
        Aggregate("COUNT", None, Type.BIGINT),
        Aggregate("AVG", CELSIUS, Type.DOUBLE),
    )
    assert found.outputs == (
        Output("T.room", group_column(0, Type.STRING)),
        Output("n", aggregate_column(0, Type.BIGINT)),
        Output("mean", aggregate_column(1, Type.DOUBLE)),
    )
    assert found.result_expressions() == (ROOM, CELSIUS)


def test_clauses_in_any_order() -> None:
    clauses = [
        "WHERE T.mote = L.mote",
        "GROUP BY T.mote, L.mote",
        "EMIT EVERY 5 SECONDS",
        "PARTITION BY T.mote, L.mote",
    ]
    texts = [" ".join(clauses[k:] + clauses[:k]) for k in range(4)] + [" ".join(reversed(clauses))]
    queries = [query(f"SELECT COUNT(*) AS n {FROM} {text}") for text in texts]
    assert all(q == queries[0] for q in queries)


@pytest.mark.parametrize(
    ("written", "function", "argument", "type"),
    [
        ("COUNT(*)", "COUNT", None, Type.BIGINT),
        ("count(T.room)", "COUNT", ROOM, Type.BIGINT),
        ("SUM(T.mote)", "SUM", MOTE, Type.BIGINT),
        ("SUM(T.celsius)", "SUM", CELSIUS, Type.DOUBLE),
        ("MIN(T.at)", "MIN", ColumnRef("T", "at", Type.TIMESTAMP), Type.TIMESTAMP),
        ("MAX(T.mote)", "MAX", MOTE, Type.BIGINT),
        ("AVG(T.mote)", "AVG", MOTE, Type.DOUBLE),
        ("Median(T.mote)", "MEDIAN", MOTE, Type.DOUBLE),
    ],
)
def test_types_of_aggregates(written: str, function: str, argument: ColumnRef | None, type: Type) -> None:
    found = query(f"SELECT {written} AS x {END}")
    assert found.aggregation is not None
    (aggregate,) = found.aggregation.aggregates
    assert (aggregate.function, aggregate.argument, aggregate.type) == (function, argument, type)


def test_expressions_over_groups_and_aggregates() -> None:
    found = query(
        "SELECT ROUND(SUM(T.celsius) / COUNT(*)) AS mean, COUNT(*) + T.mote % 3 AS x "
        f"{FROM} GROUP BY T.mote % 3 EMIT EVERY 1 SECOND"
    )
    assert found.aggregation is not None
    assert len(found.aggregation.aggregates) == 2, "each aggregate is computed once"
    total, count = aggregate_column(0, Type.DOUBLE), aggregate_column(1, Type.BIGINT)
    mean, x = (output.expr for output in found.outputs)
    assert mean == Call("ROUND", (Arithmetic("/", total, count, Type.DOUBLE),), Type.DOUBLE)
    assert x == Arithmetic("+", count, group_column(0, Type.BIGINT), Type.BIGINT)
    assert found.aggregation.group_by == (Arithmetic("%", MOTE, Literal(3, Type.BIGINT), Type.BIGINT),)


def test_words_of_the_clauses_are_names_elsewhere() -> None:
    text = "CREATE STREAM s (every BIGINT, emit BIGINT, count BIGINT);"
    found = parse_program(f"{text} SELECT s.every, emit, s.count FROM s [ROWS 1] WHERE every = emit").queries[0]
    assert [output.name for output in found.outputs] == ["s.every", "emit", "s.count"]


def test_a_changed_aggregation_is_another_query() -> None:
    def of(clauses: str, items: str = "COUNT(*) AS n") -> str:
        return fingerprint(query(f"SELECT {items} {FROM} {clauses}"))

    known = of("EMIT EVERY 1 SECOND")
    assert known == of("EMIT  EVERY 1000 MILLISECONDS")
    assert known != of("EMIT EVERY 2 SECONDS")
    assert known != of("EMIT EVERY 1 SECOND GROUP BY T.room")
    assert known != of("EMIT EVERY 1 SECOND", "COUNT(T.room) AS n")


@pytest.mark.parametrize(
    ("text", "underlined", "message"),
    [
        (f"SELECT COUNT(*) AS n {FROM}", "COUNT(*)", "write EMIT EVERY 1 MINUTE at the end"),
        (f"SELECT T.room, COUNT(*) AS n {END}", "T.room", "T.room is neither in GROUP BY nor inside an aggregate"),
        (f"SELECT T.mote, COUNT(*) AS n {END} GROUP BY T.mote + 1", "T.mote", "write GROUP BY T.mote"),
        (f"SELECT *, COUNT(*) AS n {END}", "*", "'*' has no meaning beside aggregates"),
        (f"SELECT SUM(COUNT(*)) AS n {END}", "COUNT(*)", "aggregates do not nest: this one stands inside SUM"),
        (f"SELECT SUM(ABS(MAX(T.mote))) AS n {END}", "MAX(T.mote)", "stands inside SUM"),
        (f"SELECT SUM(T.room) AS n {END}", "T.room", "SUM takes a number (BIGINT or DOUBLE), but T.room is STRING"),
        (f"SELECT MIN(T.ok) AS n {END}", "T.ok", "MIN takes a number (BIGINT or DOUBLE) or a TIMESTAMP"),
        (f"SELECT AVG(T.at) AS n {END}", "T.at", "AVG takes a number (BIGINT or DOUBLE), but T.at is TIMESTAMP"),
        (f"SELECT SUM(*) AS n {END}", "SUM(*)", "only COUNT takes *"),
        (f"SELECT SUM(T.mote, 1) AS n {END}", "SUM(T.mote, 1)", "SUM takes one argument, got 2"),
        (f"SELECT COUNT(NULL) AS n {END}", "NULL", "always unknown"),
        (f"SELECT SUM(T.mote) {END}", "SUM(T.mote)", "give this expression a name"),
        (f"SELECT T.mote {END}", "EMIT", "EMIT EVERY goes with an aggregate in the SELECT list"),
        (f"SELECT T.mote {FROM} GROUP BY T.mote", "GROUP", "GROUP BY goes with an aggregate"),
        (f"SELECT COUNT(*) AS n {END} WHERE COUNT(*) > 1", "COUNT", "COUNT is an aggregate, which belongs in"),
        (f"SELECT COUNT(*) AS n {END} WHERE MAX(T.mote) > 1", "MAX", "MAX is an aggregate, which belongs in"),
        (f"SELECT COUNT(*) AS n {END} GROUP BY COUNT(*)", "COUNT", "COUNT is an aggregate, which belongs in"),
        (f"SELECT COUNT(*) AS n {END} GROUP BY T.mote, T.mote", "T.mote", "GROUP BY names T.mote twice"),
        (f"SELECT COUNT(*) AS n {END} GROUP BY 1", "1", "GROUP BY takes expressions that read a column; got 1"),
        (f"SELECT COUNT(*) AS n {FROM} EMIT EVERY 0 SECONDS", "0 SECONDS", "EMIT EVERY must be > 0, got 0 SECONDS"),
        (f"SELECT COUNT(*) AS n {FROM} EMIT EVERY -1 DAY", "-1 DAY", "EMIT EVERY must be > 0, got -1 DAY"),
        (f"SELECT COUNT(*) AS n {FROM} EMIT EVERY 0.1 MS", "0.1 MS", "a whole number of milliseconds"),
        (f"SELECT COUNT(*) AS n {END} EMIT EVERY 1 DAY", "EMIT", "EMIT EVERY is given twice"),
        (f"SELECT COUNT(*) AS n {END} GROUP BY T.mote GROUP BY T.room", "GROUP", "GROUP BY is given twice"),
        (f"SELECT COUNT(*) AS n {FROM} EMIT 1 SECOND", "1", "expected EVERY; got '1'"),
        (f"SELECT COUNT(*) AS n {FROM} EMIT EVRY 1 SECOND", "EVRY", "did you mean EVERY?"),
        (f"SELECT COUNT(*) AS n {FROM} EMIT EVERY 5", "", "expected a unit"),
        (f"SELECT COUNT(*) AS n {FROM} GRUOP BY T.mote", "GRUOP", "did you mean GROUP?"),
        (f"SELECT COUNT(*) AS n {FROM} GROUP T.mote", "T", "expected BY; got 'T'"),
        (f"SELECT COUNT(*) AS n, COUNT(*) AS n {END}", "COUNT(*) AS n", "two results are called 'n'"),
        (f"SELECT COUNT(T.rom) AS n {END}", "rom", "did you mean room?"),
        (
            f"SELECT COUNT(*) AS n {END} WHERE T.mote = L.mote PARTITION BY T.mote, L.mote GROUP BY T.room",
            "T.room",
            "with PARTITION BY a group must lie in one partition: name T.mote in GROUP BY",
        ),
        (
            f"SELECT COUNT(*) AS n {END} WHERE T.mote = L.mote PARTITION BY T.mote, L.mote",
            "T.mote",
            "with PARTITION BY a group must lie in one partition",
        ),
    ],
)
def test_refused(text: str, underlined: str, message: str) -> None:
    assert refused(STREAMS + text, underlined, message).line == 3
