"""What a group stores of its streams, and how much of it an added query sees."""

from __future__ import annotations

import pytest

from operators.juggler.state.available_past import implied
from schemas.groups import query_group
from schemas.language.program import parse_program
from schemas.query import Query
from tests.feeding import canonical
from tests.operators.juggler.groups import Rows, Runner, expected, seen_since

STREAMS = """
CREATE STREAM S0 (k BIGINT, v BIGINT, d DOUBLE, ts TIMESTAMP) WITH (topic = 'S0', timestamp = 'ts');
CREATE STREAM S1 (k BIGINT, v BIGINT, d DOUBLE, ts TIMESTAMP) WITH (topic = 'S1', timestamp = 'ts');
"""
ROWS: Rows = {
    name: [{"ts": ts, "k": 1, "v": ts % 10, "d": 0.5} for ts in range(begin, 40, 2)]
    for name, begin in (("S0", 0), ("S1", 1))
}


def pairs(name: str, where: str, *, select: str = "A.ts", window: str = "[RANGE 8 MILLISECONDS]") -> Query:
    """A query over both streams."""
    text = f"{STREAMS} INSERT INTO {name} SELECT {select} FROM S0 A {window}, S1 B {window} WHERE A.k = B.k {where};"
    return parse_program(text).queries[0]


def test_what_nobody_reads_or_selects_is_not_stored() -> None:
    queries = [pairs("p", "AND A.v = 4"), pairs("q", "AND A.v < 2 AND B.v < 9", select="A.v, B.ts")]
    runner = Runner(query_group(queries), ROWS, "AJW")
    runner.to(10)
    runner.to(20)
    stores = runner.sources.stores
    assert stores["S0"].columns == ("k", "v", "ts", "_ts")
    assert stores["S1"].columns == ("k", "v", "ts", "_ts")
    assert list(stores["S0"].gather("_ts", stores["S0"].stored_rows()).values) == [10, 14]
    # Of B one query takes all, whatever the other asks; they were purged by windows alone.
    assert len(stores["S1"]) >= 5
    runner.to(41)
    for query in queries:
        assert canonical(runner.found[query.name]) == canonical(expected(query, ROWS))


@pytest.mark.parametrize(
    ("comes", "seen"),
    [
        (pairs("new", "AND A.v < 5"), {}),
        (pairs("new", "AND A.v < 5", window="[RANGE 20 MILLISECONDS]"), {"A": 12, "B": 12}),
        (pairs("new", "AND A.v < 3 AND B.k = 1"), {}),
        (pairs("new", "AND A.v < 3 AND B.v = 1"), {"B": 20}),
        (pairs("new", "AND A.v < 6"), {"A": 20}),
        (pairs("new", "AND 1 < 2"), {"A": 20}),
        (pairs("new", "AND A.v < 5", select="B.d"), {"B": 20}),
        (pairs("new", "AND A.v < 5", window="[ROWS 2]"), {"A": 20}),
        (pairs("new", "AND A.v < 5", window="[ROWS 9]"), {"A": 20, "B": 12}),
    ],
)
def test_who_comes_sees_what_was_kept(comes: Query, seen: dict[str, int]) -> None:
    """It sees tuples as far back as its columns, and all tuples that it selects, have been stored."""
    runner = Runner(query_group([pairs("old", "AND A.v < 5")]), ROWS)
    runner.to(20)
    assert runner.juggler.add(comes, from_now=False, cut=20) == seen
    runner.to(30)
    # Who reads and selects as it does sees the same.
    again = pairs("again", "AND A.v < 3", select="A.v")
    assert runner.juggler.add(again, from_now=False, cut=30) == {}
    runner.juggler.drop("old", cut=30)
    runner.to(41)
    for query, since, begin in ((comes, seen, 20), (again, {}, 30)):
        wanted = [row for row in expected(seen_since(query, since), ROWS) if row["_ts"] >= begin]
        assert canonical(runner.found[query.name]) == canonical(wanted)


@pytest.mark.parametrize(
    ("more", "less", "answer"),
    [
        ("A.v < 5", "A.v < 5", True),
        ("A.v < 5", "A.v <= 5", True),
        ("A.v <= 5", "A.v < 5", False),
        ("A.v < 4", "A.v < 5", True),
        ("A.v < 5", "A.v < 4", False),
        ("A.v > 5 AND A.k = 1", "A.v >= 4", True),
        ("A.v >= 4", "A.v > 5", False),
        ("A.v > 5", "A.v < 9", False),
        ("A.k > 5", "A.v > 5", False),
        ("A.v = 5", "A.v = 5 AND A.v > 4", False),
        ("A.v + 1 < 3", "A.v + 1 < 4", False),
        ("A.d < 0.5", "A.d < 1", True),
    ],
)
def test_what_one_selection_says_of_another(more: str, less: str, answer: bool) -> None:
    first, second = (pairs("q", f"AND {text}").predicates[1:] for text in (less, more))
    assert implied(first, second) is answer


def test_who_comes_sees_no_more_than_the_one_that_covers_it() -> None:
    runner = Runner(query_group([pairs("old", "AND A.v < 5")]), ROWS)
    runner.to(20)
    wide = pairs("wide", "AND A.v < 9")
    assert runner.juggler.add(wide, from_now=False, cut=20) == {"A": 20}
    runner.to(24)
    again = pairs("again", "AND A.v < 8")
    assert runner.juggler.add(again, from_now=False, cut=24) == {"A": 20}
    runner.to(41)
    wanted = [row for row in expected(seen_since(again, {"A": 20}), ROWS) if row["_ts"] >= 24]
    assert canonical(runner.found["again"]) == canonical(wanted)


def test_a_query_that_selects_nothing_covers_nobody() -> None:
    runner = Runner(query_group([pairs("old", "AND 1 > 2")]), ROWS)
    runner.to(20)
    assert runner.juggler.add(pairs("new", ""), from_now=False, cut=20) == {"A": 20, "B": 20}


def test_what_either_of_two_inputs_selects_is_stored() -> None:
    window = "[RANGE 8 MILLISECONDS]"
    text = f"SELECT A.ts, B.ts AS other FROM S0 A {window}, S0 B {window} WHERE A.k = B.k AND A.v = 4 AND B.v = 8"
    (query,) = parse_program(f"{STREAMS} INSERT INTO q {text};").queries
    runner = Runner(query_group([query]), ROWS, "AJW")
    assert canonical(runner.all(3)["q"]) == canonical(expected(query, ROWS))
    assert runner.found["q"]
