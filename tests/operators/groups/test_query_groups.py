"""The engine of a query group: every query's results are those that it finds alone, and the oracle's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.engine.engine import Engine
from operators.engine.executors import EXECUTORS
from operators.groups import shared as shared_part
from operators.groups.engine import GroupEngine
from operators.groups.shared import SharedQueries
from operators.groups.sharing import APART, JUGGLER, QueryRunners, group_engine
from operators.juggler import operator
from operators.juggler.routing import probe
from schemas.errors import UsageError
from schemas.groups import query_group, streams_of
from schemas.language.program import parse_program
from schemas.query import Query
from tests import oracle
from tests.feeding import canonical, feed, partitions_of, to_batch, to_rows
from tests.group_cases import GroupCase, feed_group, group_cases
from tests.operators.engine.test_engine_properties import cramped
from tests.operators.juggler.groups import eager
from tests.operators.nested_loops import NestedLoops
from tests.operators.stays import Stays
from tests.profiles import PROPERTY


class LoopRunners(QueryRunners):
    """Nested loops in place of the operator."""

    def shared(self, queries: Sequence[Query], cut: int = 0) -> SharedQueries:
        """The queries in one operator."""
        return SharedQueries(query_group(queries), NestedLoops, name="loops", tables=self.tables, cut=cut)


def shared(case: GroupCase) -> GroupEngine:
    """A group's engine with one runner, whose operator is nested loops."""
    maker = LoopRunners(JUGGLER, None, case.batches(), lambda: 0.0)
    return GroupEngine(case.queries, streams_of(case.queries), maker, partitions_of(case.rows))


def engine_of_all(case: GroupCase, executor: str | None, feedback: bool) -> GroupEngine:
    """A group's engine by an executor's name."""
    return group_engine(
        case.queries,
        executor=executor,
        tables=case.batches(),
        partitions=partitions_of(case.rows),
        feedback=feedback,
    )


def check(case: GroupCase, engine: GroupEngine) -> None:
    """Compare every query's results with those of its own engine, in order, and with the oracle's."""
    got = feed_group(engine, case)
    for query in case.queries:
        rows, tables = case.rows_of(query), case.batches()
        alone = Engine(query, partitions=partitions_of(rows), tables=tables)
        assert got[query.name] == feed(alone, rows, case.push_sizes, case.epoch_ms)
        assert canonical(got[query.name]) == canonical(oracle.results(query, case.given(query)))
    statistics = engine.statistics()
    assert {q.name: q.results for q in statistics.queries} == {name: len(rows) for name, rows in got.items()}
    assert statistics.input_tuples == sum(len(part) for parts in case.rows.values() for part in parts)
    late = [oracle.late(query, case.rows_of(query)) for query in case.queries]
    assert statistics.late == sum(len(rows) for rows in {k: v for of in late for k, v in of.items()}.values())


@PROPERTY
@given(group_cases(most=3, most_rows=8), st.sampled_from([None, APART, *sorted(EXECUTORS)]), st.booleans())
def test_standalone_queries_over_one_intake_find_what_each_finds_alone(
    case: GroupCase, executor: str | None, feedback: bool
) -> None:
    check(case, engine_of_all(case, executor, feedback))


@PROPERTY
@given(group_cases(most_aliases=2, most_rows=6), st.booleans())
def test_queries_that_share_an_operator_find_what_each_finds_alone(case: GroupCase, tiny: bool) -> None:
    with cramped() if tiny else nullcontext():
        check(case, shared(case))


@PROPERTY
@given(group_cases(most_rows=10), st.booleans(), st.booleans())
def test_juggler_finds_for_every_query_what_it_finds_alone(case: GroupCase, tiny: bool, feedback: bool) -> None:
    with cramped() if tiny else nullcontext(), eager(), pytest.MonkeyPatch.context() as patch:
        if tiny:
            patch.setattr(shared_part, "WAITING_TUPLES", 6)
            patch.setattr(shared_part, "MIN_WINDOW_SLICE_TUPLES", 2)
            patch.setattr(probe, "CANDIDATES_PER_BATCH", 5)
            patch.setattr(operator, "CANDIDATES_PER_BATCH", 5)
        check(case, engine_of_all(case, JUGGLER, feedback))


@PROPERTY
@given(group_cases(most_rows=14, tables=False), st.data(), st.sampled_from([None, APART]), st.booleans())
def test_queries_come_and_go(case: GroupCase, data: st.DataObject, executor: str | None, feedback: bool) -> None:
    """Adding and dropping queries changes nothing for the others."""
    engine = group_engine(
        case.queries[:1],
        executor=executor,
        streams=streams_of(case.queries),
        partitions=partitions_of(case.rows),
        feedback=feedback,
    )
    stays = Stays(case)
    with eager():
        stays.judge(feed_group(engine, case, lambda: stays.change(engine, data)))


DECLARED = """
CREATE STREAM a (k BIGINT, ts TIMESTAMP) WITH (topic = 'a', timestamp = 'ts');
CREATE STREAM b (k BIGINT, ts TIMESTAMP) WITH (topic = 'b', timestamp = 'ts');
CREATE STREAM c (k BIGINT, ts TIMESTAMP) WITH (topic = 'c', timestamp = 'ts');
CREATE TABLE t (k BIGINT) WITH (path = 't.csv');
"""
PAIRS = "SELECT A.ts AS a, B.ts AS b FROM a A [RANGE {0} MILLISECONDS], b B [RANGE {0} MILLISECONDS]"


def queries(*selects: str) -> tuple[Query, ...]:
    """The queries q0, q1, ..."""
    return parse_program(DECLARED + "".join(f"INSERT INTO q{n} {s};\n" for n, s in enumerate(selects))).queries


def push_and_advance(engine: GroupEngine, a: list[int], b: list[int]) -> dict[str, list[str]]:
    """Push tuples with these times, advance to the watermark, and show each query's results, as `a-b`."""
    streams = {stream.name: stream for stream in queries(PAIRS.format(1))[0].streams()}
    for name, times in (("a", a), ("b", b)):
        if times:
            engine.push(name, 0, to_batch(streams[name], [{"k": 1, "ts": ts} for ts in times]))
    return {name: [f"{row['a']}-{row['b']}" for row in to_rows(found)] for name, found in engine.advance().items()}


def test_an_added_query_sees_stored_tuples_or_nothing_from_before() -> None:
    first, second, third, fourth = queries(*(PAIRS.format(size) for size in (5, 5, 5, 20)))
    engine = group_engine([first])
    assert push_and_advance(engine, [1, 4], [3, 6]) == {"q0": ["1-3"]}  # up to the watermark, 4
    assert engine.add(second) == {}
    assert engine.add(third, from_now=True) == {"A": 4, "B": 4}
    # The group has stored tuples for 5 ms, and no longer.
    assert engine.add(fourth) == {"A": -1, "B": -1}
    assert push_and_advance(engine, [9], [9]) == {
        "q0": ["4-3", "1-6", "4-6"],
        "q1": ["4-3", "1-6", "4-6"],
        "q2": ["4-6"],
        "q3": ["4-3", "1-6", "4-6"],
    }
    engine.drop("q0")
    engine.drop("q3")
    assert push_and_advance(engine, [30], [30]) == {"q1": ["4-9", "9-6", "9-9"], "q2": ["4-9", "9-6", "9-9"]}
    # A name that is free may be taken again, by whatever query.
    assert engine.add(replace(fourth, name="q0"), from_now=True) == {"A": 30, "B": 30}
    assert [query.results for query in engine.statistics().queries] == [6, 4, 0]


COUNTS = "SELECT A.ts AS a, B.ts AS b FROM {1}a A [ROWS {0}]{2}"


def test_windows_count_tuples_by_the_order_of_their_own_query() -> None:
    """Of the tuples of one ts, those of the stream that a query names first come first."""
    streams = "", ", b B [UNBOUNDED]"
    first, second, third, fourth = queries(
        COUNTS.format(2, *streams),
        COUNTS.format(2, "b B [UNBOUNDED], ", ""),
        COUNTS.format(3, *streams),
        PAIRS.format(20),
    )
    engine = group_engine([first, second], executor=JUGGLER)
    push_and_advance(engine, [1, 2, 5, 5, 6], [5, 6])
    # Two are stored before the cut, 6, and the third query needs three.
    assert engine.add(third) == {"A": 5}
    assert engine.add(fourth, from_now=True) == {"A": 6, "B": 6}
    assert push_and_advance(engine, [9], [9]) == {
        "q0": ["5-6", "6-5", "6-6"],
        "q1": ["6-5", "5-6", "5-6", "6-6"],
        "q2": ["5-6", "5-6", "6-5", "6-6"],
        "q3": ["6-6"],
    }
    engine.drop("q0")
    engine.drop("q1")
    engine.drop("q2")
    assert engine.add(first) == {"B": -11}
    assert push_and_advance(engine, [30], [29]) == {"q3": ["6-9", "9-6", "9-9"], "q0": ["6-9", "9-5", "9-6", "9-9"]}


def test_a_query_that_is_added_costs_no_work_on_stored_tuples() -> None:
    """Others pause for as long as that takes. The operator keeps its structures if windows do not become longer."""
    join = PAIRS.format(50) + " WHERE A.k = B.k AND A.ts > {}"
    first, second, longer = queries(join.format(3), join.format(40), (join.format(3)).replace("50", "60"))
    engine = group_engine([first])
    push_and_advance(engine, list(range(100)), list(range(100)))
    before = engine.statistics().comparisons
    assert before > 0
    engine.add(second)
    engine.drop("q0")
    assert engine.statistics().comparisons == before
    engine.add(longer)
    assert engine.statistics().comparisons > before


def test_stored_tuples_live_longer_for_a_query_with_longer_windows() -> None:
    first, longer = queries(PAIRS.format(5), PAIRS.format(50))
    engine = group_engine([first])
    assert push_and_advance(engine, [1, 4], [3, 4]) == {"q0": ["1-3"]}
    engine.add(longer)
    push_and_advance(engine, [20], [20])
    found = push_and_advance(engine, [30, 31], [31])
    assert found["q0"] == ["20-20"]
    assert {"30-3", "30-4", "30-20"} < {*found["q1"]}


def test_the_last_query_may_be_dropped_and_another_added() -> None:
    first, second = queries(PAIRS.format(5), PAIRS.format(5))
    engine = group_engine([first])
    assert push_and_advance(engine, [1, 4], [3, 6]) == {"q0": ["1-3"]}
    engine.drop("q0")
    assert engine.runners == ()
    assert push_and_advance(engine, [5], [7]) == {}
    assert engine.add(second) == {"A": 5, "B": 5}
    # Nor does the next query see tuples from before the operator.
    assert engine.add(first) == {"A": 5, "B": 5}
    assert push_and_advance(engine, [9], [9]) == {"q0": ["5-6", "5-7"], "q1": ["5-6", "5-7"]}


def test_rows_of_a_table_meet_the_first_tuple_of_all() -> None:
    (query,) = queries("SELECT A.ts, T.k FROM a A [RANGE 1 SECOND], t T WHERE A.k = T.k")
    engine = group_engine([query], executor=JUGGLER, tables={"t": to_batch(query.tables()[0], [{"k": 1}])})
    engine.push("a", 0, to_batch(query.streams()[0], [{"k": 1, "ts": 0}, {"k": 1, "ts": 1}]))
    assert to_rows(engine.advance()["q0"]) == [{"A.ts": 0, "T.k": 1, "_ts": 0}]


def test_results_of_standalone_queries_come_with_the_watermark() -> None:
    (query,) = queries(PAIRS.format(5))
    assert push_and_advance(group_engine([query], executor=APART), [1, 4], [3, 6]) == {"q0": ["1-3"]}


def test_dead_tuples_are_dropped() -> None:
    """Stores and states contain a window, however long the group has run."""
    (query,) = queries(PAIRS.format(5))
    engine = group_engine([query], executor=JUGGLER)
    sizes = []
    for epoch in range(8):
        push_and_advance(engine, list(range(epoch * 2000, epoch * 2000 + 2000)), [epoch * 2000 + 1999])
        sizes.append((engine.statistics().state_tuples, engine.statistics().state_bytes))
    assert sizes[-1] == sizes[2]
    assert sizes[-1][0] <= 16


def test_a_slice_does_not_look_at_all_rows_of_the_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long windows are, a few new rows cost the same. The numbers of all rows were listed for each slice."""
    (query,) = queries(PAIRS.format(100_000) + " WHERE A.k = B.k AND A.ts < B.ts - 99000")
    engine = group_engine([query], executor=JUGGLER)
    push_and_advance(engine, list(range(20_000)), list(range(20_000)))
    listed, arange = [0], np.arange

    def listing(*args: Any, **named: Any) -> Any:
        found = arange(*args, **named)
        listed.append(len(found))
        return found

    monkeypatch.setattr(np, "arange", listing)
    for at in range(20_000, 20_100, 10):
        push_and_advance(engine, list(range(at, at + 10)), list(range(at, at + 10)))
    assert max(listed) < 1_000


def test_a_query_that_cannot_be_added_changes_nothing() -> None:
    pairs, counted, other, joined = queries(
        PAIRS.format(5),
        "SELECT COUNT(*) AS n FROM a A [RANGE 5 MILLISECONDS] EMIT EVERY 2 MILLISECONDS",
        "SELECT C.k FROM c C [RANGE 1 SECOND]",
        "SELECT A.k FROM a A [RANGE 1 SECOND], t T WHERE A.k = T.k",
    )
    engine = group_engine([pairs])
    assert push_and_advance(engine, [1, 4], [3, 6]) == {"q0": ["1-3"]}
    for query, message in (
        (pairs, "the group has a query 'q0' already"),
        (other, "query 'q2' reads stream 'c', and the group reads a, b"),
        (joined, "query 'q3' reads table 't', which no query of the group has read so far"),
    ):
        with pytest.raises(UsageError, match=message):
            engine.add(query)
    with pytest.raises(UsageError, match="the group has no query 'q1', it has 'q0'"):
        engine.drop("q1")
    assert engine.names == ("q0",)
    # A query that shares no operator is standalone.
    assert engine.add(counted) == {"A": 4}
    engine.push("b", 0, to_batch(pairs.streams()[1], [{"k": 1, "ts": 20}]))
    engine.push("a", 0, to_batch(pairs.streams()[0], [{"k": 1, "ts": 20}]))
    found = engine.advance()
    assert [(row["n"], row["_ts"]) for row in to_rows(found["q1"])] == [(1, 4), (0, 10)]
    assert len(found["q0"]) == 3


def test_a_column_that_cancels_out_is_null_all_the_same() -> None:
    """`A.k = A.k + A.v` holds where v is 0 and there is a k."""
    declared = DECLARED.replace("a (k BIGINT,", "a (k BIGINT, v BIGINT,")
    text = "INSERT INTO q0 SELECT A.ts AS a FROM a A [RANGE 1 SECOND] WHERE A.k = A.k + A.v;"
    (query,) = parse_program(declared + text).queries
    engine = group_engine([query], executor=JUGGLER)
    rows = [{"k": 1, "v": 0, "ts": 1}, {"k": None, "v": 0, "ts": 2}, {"k": 1, "v": 3, "ts": 3}]
    engine.push("a", 0, to_batch(query.streams()[0], rows))
    engine.close("a", 0)
    assert [row["a"] for row in to_rows(engine.advance()["q0"])] == [1]


LOOKING_UP = """
CREATE STREAM a (k BIGINT, ts TIMESTAMP) WITH (topic = 'a', timestamp = 'ts');
CREATE STREAM b (k BIGINT, ts TIMESTAMP) WITH (topic = 'b', timestamp = 'ts');
CREATE TABLE v (k BIGINT PRIMARY KEY, n BIGINT, ts TIMESTAMP) WITH (topic = 'v', timestamp = 'ts');
"""
ROW = "a A [RANGE 9 MILLISECONDS] LEFT JOIN v FOR SYSTEM_TIME AS OF A._ts AS V ON V.k = {0}"


@pytest.mark.parametrize("executor", [None, APART])
def test_an_added_query_finds_all_rows_of_a_table(executor: str | None) -> None:
    """Also those that came before any query looked something up, in columns that no query has read."""
    first, joined, rest = parse_program(
        LOOKING_UP
        + "INSERT INTO q0 SELECT A.ts AS a FROM a A [RANGE 9 MILLISECONDS]; "
        + f"INSERT INTO q1 SELECT A.ts AS a, V.n AS n FROM {ROW.format('A.k')}; "
        + f"INSERT INTO q2 SELECT A.ts AS a, V.n AS n FROM {ROW.format(1)} "
        + "EXCEPT b B [RANGE 1 MILLISECOND] ON B.k = A.k AND B.ts > V.n;"
    ).queries
    engine = group_engine([first], streams=streams_of([first, joined, rest]), executor=executor)
    a, b, v = streams_of([joined, rest])[0], streams_of([rest])[1], streams_of([joined])[1]

    def advance(a_ts: int, b_ts: int, versions: list[tuple[int, int, int]]) -> dict[str, list[tuple[object, ...]]]:
        engine.push("a", 0, to_batch(a, [{"k": 2, "ts": a_ts}]))
        engine.push("b", 0, to_batch(b, [{"k": 2, "ts": b_ts}]))
        engine.push("v", 0, to_batch(v, [dict(zip(("k", "n", "ts"), one, strict=True)) for one in versions]))
        return {name: [tuple(row.values()) for row in to_rows(found)] for name, found in engine.advance().items()}

    assert advance(5, 9, [(1, 10, 3), (2, 20, 4), (3, 0, 9)]) == {"q0": []}
    for query in (joined, rest):
        assert engine.add(query, from_now=True) == {source.alias: 5 for source in query.sources}
    assert engine.statistics().lookup_bytes > 0
    found = advance(12, 15, [(2, 21, 12), (3, 0, 15)])
    assert found["q1"] == [(5, 20, 5)]
    assert found["q2"] == [(5, 10, "+", 5)]
    engine.drop("q1")
    assert advance(20, 22, [(3, 0, 30)])["q0"] == [(12, 12)]
    assert engine.horizon("v") == 0
    assert engine.horizon("a") > 0
