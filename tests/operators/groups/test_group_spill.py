"""Groups within a memory budget: every query's results are the oracle's, each once, those that were pending late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.data import slices as slicing
from operators.data.watermark import END
from operators.groups import budget, cleanup, cleanup_steps, sharing
from operators.groups.engine import GroupEngine
from operators.groups.sharing import APART, JUGGLER, group_engine
from operators.juggler.operator import Juggler
from operators.juggler.predicates.order import ADAPTIVE, ORDERS
from operators.spill.spilling import MemoryBudget
from schemas.columns import Batch, Column
from schemas.errors import UsageError
from schemas.groups import streams_of
from schemas.language.program import parse_program
from schemas.query import Query, Type
from tests import oracle
from tests.feeding import canonical, partitions_of, to_batch, to_rows
from tests.group_cases import GroupCase, feed_group, group_cases
from tests.operators.juggler.groups import eager
from tests.operators.spill.memory_blocks import MemoryBlocks
from tests.operators.stays import Stays
from tests.profiles import PROPERTY

BUDGETS = st.sampled_from([1, 150_000, 250_000, 350_000])
SIZES = st.sampled_from([(1, 2), (1, 256), (3, 256)])
"""The least tuples of a slice, and of a block."""


@contextmanager
def cramped(sizes: tuple[int, int]) -> Iterator[None]:
    """Small slices and blocks, as a budget asks for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "MIN_SLICE_TUPLES", sizes[0])
        patch.setattr(slicing, "SAMPLES_PER_SLICE", sizes[0])
        patch.setattr(cleanup, "MIN_BLOCK_TUPLES", sizes[1])
        yield


def rows_of(found: dict[str, list[Batch]]) -> dict[str, list[dict[str, Any]]]:
    """Batches of late results as rows; each ascends."""
    for batches in found.values():
        for batch in batches:
            assert (batch.ts[1:] >= batch.ts[:-1]).all()
    return {name: [row for batch in batches for row in to_rows(batch)] for name, batches in found.items()}


@PROPERTY
@given(
    st.sampled_from([ADAPTIVE, *ORDERS]),
    group_cases(aggregates=False, least_rows=8, most_rows=16, least_aliases=2, most=3),
    BUDGETS,
    SIZES,
    st.booleans(),
)
def test_within_any_budget_every_result_is_found_once(
    order: str, case: GroupCase, limit: int, sizes: tuple[int, int], feedback: bool
) -> None:
    """In whatever order predicates are evaluated, and though feedback suppresses tuples meanwhile."""
    blocks = MemoryBlocks()
    with cramped(sizes), eager(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "Juggler", partial(Juggler, order=order))
        engine = group_engine(
            case.queries,
            executor=JUGGLER,
            tables=case.batches(),
            partitions=partitions_of(case.rows),
            budget=MemoryBudget(limit, "bottom-up"),
            blocks=blocks,
            feedback=feedback,
        )
        got = feed_group(engine, case)
        engine.clean()
        late = rows_of(engine.cleaned())
    assert engine.cleaned() == {}
    for query in case.queries:
        expected = oracle.results(query, case.given(query))
        assert canonical(got[query.name] + late.get(query.name, [])) == canonical(expected)
        times = [row["_ts"] for row in got[query.name]]
        assert times == sorted(times)
    found = [*got.values(), *late.values()]
    assert sum(query.results for query in engine.statistics().queries) == sum(map(len, found))
    assert not blocks.keys("")


@PROPERTY
@given(
    group_cases(aggregates=False, least_rows=8, most_rows=16, least_aliases=2, tables=False), BUDGETS, SIZES, st.data()
)
def test_queries_come_and_go_within_a_budget(
    case: GroupCase, limit: int, sizes: tuple[int, int], data: st.DataObject
) -> None:
    come_and_go(case, limit, sizes, lambda stays, engine: stays.change(engine, data), st.integers(0, 2), data)


@PROPERTY
@given(
    group_cases(aggregates=False, least_rows=8, most_rows=16, least_aliases=2, tables=False, most=2), SIZES, st.data()
)
def test_queries_are_replaced_while_results_are_pending(
    case: GroupCase, sizes: tuple[int, int], data: st.DataObject
) -> None:
    """Without memory, by queries of the same names, and often during a cleanup."""
    come_and_go(case, 1, sizes, lambda stays, engine: stays.replace(engine, data), st.integers(1, 3), data)


def come_and_go(
    case: GroupCase,
    limit: int,
    sizes: tuple[int, int],
    change: Callable[[Stays, GroupEngine], None],
    steps: st.SearchStrategy[int],
    data: st.DataObject,
) -> None:
    """Feed a group whose queries change, with so many cleanup steps between two changes, and judge its results."""
    engine = group_engine(
        case.queries[:1],
        executor=JUGGLER,
        streams=streams_of(case.queries),
        partitions=partitions_of(case.rows),
        budget=MemoryBudget(limit, "bottom-up"),
        blocks=MemoryBlocks(),
    )
    stays = Stays(case)
    late: dict[str, list[dict[str, Any]]] = {}

    def between() -> None:
        change(stays, engine)
        engine.clean(data.draw(steps))
        for name, rows in rows_of(engine.cleaned()).items():
            late.setdefault(name, []).extend(rows)

    with cramped(sizes):
        got = feed_group(engine, case, between)
        engine.clean()
        between()
    stays.judge(got, late)


DECLARED = """
CREATE STREAM a (k BIGINT, v BIGINT, s STRING, ts TIMESTAMP) WITH (topic = 'a', timestamp = 'ts');
CREATE STREAM b (k BIGINT, v BIGINT, s STRING, ts TIMESTAMP) WITH (topic = 'b', timestamp = 'ts');
CREATE STREAM c (k BIGINT, v BIGINT, s STRING, ts TIMESTAMP) WITH (topic = 'c', timestamp = 'ts');
INSERT INTO pairs SELECT A.v, B.s, A.ts FROM a A [RANGE 900 MILLISECONDS], b B [RANGE 700 MILLISECONDS]
WHERE A.k = B.k;
INSERT INTO counted SELECT A.v, B.v AS w FROM b B [ROWS 500], a A [RANGE 50 MILLISECONDS] WHERE A.k = B.k;
INSERT INTO self SELECT A.v, B.v AS w FROM a A [RANGE 600 MILLISECONDS], a B [ROWS 500] WHERE A.k = B.k AND A.v < B.v;
INSERT INTO band SELECT A.v, C.v AS w FROM a A [RANGE 300 MILLISECONDS], c C [RANGE 900 MILLISECONDS]
WHERE A.v <= C.v + 1 AND A.v >= C.v - 1 AND C.k < 9;
INSERT INTO three SELECT A.v, B.v AS w, C.v AS x FROM c C [RANGE 400 MILLISECONDS], a A [RANGE 900 MILLISECONDS],
b B [ROWS 300] WHERE A.k = B.k AND B.k = C.k;
"""
SPAN_MS = 4000


def a_long_run(engine: GroupEngine, queries: tuple[Query, ...]) -> tuple[dict[str, list[tuple[Any, ...]]], int]:
    """Every query's results in an order of their own, and how many came late."""
    rng = np.random.default_rng(3)
    got: dict[str, list[Batch]] = {query.name: [] for query in queries}
    late = 0
    for begin in range(0, SPAN_MS, 250):
        for stream in streams_of(queries):
            ts = np.sort(rng.integers(begin, begin + 250, 150))
            strings = pa.array([f"{number % 7}" for number in range(len(ts))])
            columns = {
                "k": Column(Type.BIGINT, rng.integers(0, 150, len(ts))),
                "v": Column(Type.BIGINT, rng.integers(0, 500, len(ts)), rng.random(len(ts)) < 0.95),
                "s": Column.from_arrow(strings, Type.STRING),
                "ts": Column(Type.TIMESTAMP, ts),
            }
            engine.push(stream.name, 0, Batch(ts, columns))
        for name, batch in engine.advance(END if begin + 250 == SPAN_MS else None).items():
            got[name].append(batch)
        if begin + 250 == SPAN_MS:
            engine.clean()
        for name, batches in engine.cleaned().items():
            late += sum(map(len, batches))
            got[name] += batches
    rows = {n: [tuple(row.items()) for batch in batches for row in to_rows(batch)] for n, batches in got.items()}
    return {name: sorted(found, key=repr) for name, found in rows.items()}, late


def test_a_long_run_cleans_up_again_and_again() -> None:
    """Windows of both kinds, of which many pass; dead tuples leave the disk."""
    queries = parse_program(DECLARED).queries
    whole, late = a_long_run(group_engine(queries, executor=JUGGLER), queries)
    assert not late
    assert all(whole.values())
    blocks = MemoryBlocks()
    engine = group_engine(queries, executor=JUGGLER, budget=MemoryBudget(600_000, "bottom-up"), blocks=blocks)
    got, late = a_long_run(engine, queries)
    assert got == whole
    assert late > 1000
    (runner,) = engine.statistics().runners
    assert runner.spill is not None
    assert runner.spill.cleanups >= 3
    assert runner.spill.spilled_tuples >= 3000
    assert runner.spill.cleanup_results == late
    assert (runner.spill.on_disk_tuples, runner.spill.owed) == (0, 0)
    assert not blocks.keys("")


class CountedBlocks(MemoryBlocks):
    """The number of reads is the time: an engine's clock that measures how much work a step was."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def get(self, key: str) -> bytes:
        self.reads += 1
        return super().get(key)


def test_pending_results_are_found_in_steps() -> None:
    """No step between two slices reads more than a small part of all blocks, and results are found step by step. A
    regression: a run of 800,000 tuples stopped for seconds."""
    queries = parse_program(DECLARED).queries[:1]
    blocks = CountedBlocks()
    engine = group_engine(
        queries, executor=JUGGLER, budget=MemoryBudget(60_000, "bottom-up"), blocks=blocks, clock=lambda: blocks.reads
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleanup_steps, "SLICE_WORK_TUPLES", 1000)
        got, late = a_long_run(engine, queries)
    whole, _ = a_long_run(group_engine(queries, executor=JUGGLER), queries)
    assert got == whole
    assert late
    (runner,) = engine.statistics().runners
    assert runner.spill is not None
    assert runner.spill.cleanup_s == blocks.reads > 100
    assert 0 < runner.spill.longest_cleanup_s < blocks.reads / 10


CHAIN = """
CREATE STREAM a (k BIGINT, v BIGINT, ts TIMESTAMP) WITH (topic = 'a', timestamp = 'ts');
CREATE STREAM b (k BIGINT, v BIGINT, ts TIMESTAMP) WITH (topic = 'b', timestamp = 'ts');
CREATE STREAM c (k BIGINT, v BIGINT, ts TIMESTAMP) WITH (topic = 'c', timestamp = 'ts');
CREATE STREAM d (k BIGINT, v BIGINT, ts TIMESTAMP) WITH (topic = 'd', timestamp = 'ts');
INSERT INTO chain SELECT A.ts AS a, B.ts AS b, C.ts AS c, D.ts AS d FROM a A, b B, c C, d D WINDOW RANGE 1 SECOND
WHERE A.k = B.k AND B.v = C.v AND C.k = D.k;
INSERT INTO others SELECT A.ts AS a, B.ts AS b, C.ts AS c, D.ts AS d FROM a A, b B, c C, d D
WINDOW RANGE 500 MILLISECONDS
WHERE A.k = B.k AND A.v = C.v AND D.v = B.v;
"""


def work_of_a_chain(each: int) -> tuple[int, GroupEngine]:
    """The number of blocks read for 4 streams of so many tuples a second, and the engine; the memory is the same for
    any number."""
    queries = parse_program(CHAIN).queries
    rng = np.random.default_rng(each)
    blocks = CountedBlocks()
    whole = group_engine(queries)
    tight = group_engine(queries, budget=MemoryBudget(20_000, "bottom-up"), blocks=blocks)
    found: list[dict[str, list[Batch]]] = []
    batches = []
    for stream in streams_of(queries):
        ts = np.sort(rng.integers(0, 2000, 2 * each))
        values = {name: Column(Type.BIGINT, rng.integers(0, each, len(ts))) for name in ("k", "v")}
        batches.append((stream, Batch(ts, {**values, "ts": Column(Type.TIMESTAMP, ts)})))
    for engine in (whole, tight):
        got: dict[str, list[Batch]] = {query.name: [] for query in queries}
        for cut in range(500, 2001, 500):
            for stream, batch in batches:
                engine.push(stream.name, 0, batch.take((batch.ts >= cut - 500) & (batch.ts < cut)))
            for name, one in engine.advance(cut).items():
                got[name].append(one)
        engine.clean()
        for name, late in engine.cleaned().items():
            got[name] += late
        found.append(got)
    rows = [{name: canonical(row for one in of for row in to_rows(one)) for name, of in got.items()} for got in found]
    assert rows[0] == rows[1]
    assert all(len(of) > 20 for of in rows[0].values())
    return blocks.reads, tight


@pytest.mark.deep
def test_cleanup_costs_the_sum_of_blocks_not_their_product() -> None:
    """With twice the tuples per window there are twice the blocks, each of which matches twice as many. A regression:
    every choice of one block of each of four streams was joined: 8 times as many for twice as many blocks, and a group
    of which a quarter fitted stopped for minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleanup, "MIN_BLOCK_TUPLES", 32)
        small, _ = work_of_a_chain(80)
        large, engine = work_of_a_chain(160)
    (runner,) = engine.statistics().runners
    assert runner.spill is not None
    assert runner.spill.spilled_tuples > 600
    assert large < 6 * small


PAIRS = "SELECT A.ts AS a, B.ts AS b FROM a A [RANGE 20 MILLISECONDS], b B [RANGE 20 MILLISECONDS];"


def test_the_least_budget_that_would_do_is_known() -> None:
    """When cleaning up for a tuple takes more work than is done while one arrives. The least budget is between the
    present budget and the memory for everything."""
    queries = parse_program(DECLARED).queries[:1]
    limit = MemoryBudget(60_000, "bottom-up")
    for most, short in ((1e9, False), (1.0, True)):
        engine = group_engine(queries, executor=JUGGLER, budget=limit, blocks=MemoryBlocks())
        assert engine.least_budget() == 0, "there was no cleanup yet"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cleanup_steps, "MOST_WORK", most)
            a_long_run(engine, queries)
            least = engine.least_budget()
        assert (least > 60_000) == short
        assert least < 10 * engine.statistics().peak_state_bytes


def push_and_advance(
    engine: GroupEngine, queries: tuple[Query, ...], a: list[int], b: list[int]
) -> dict[str, list[str]]:
    """Push tuples with these times, advance to the watermark, and show each query's results, as `a-b`."""
    for stream, times in zip(queries[0].streams(), (a, b), strict=True):
        rows = [{"k": 1, "v": 1, "s": "", "ts": ts} for ts in times]
        engine.push(stream.name, 0, to_batch(stream, rows))
    return {name: shown([batch]) for name, batch in engine.advance().items()}


def shown(batches: list[Batch]) -> list[str]:
    """Results as `a-b`."""
    return [f"{row['a']}-{row['b']}" for batch in batches for row in to_rows(batch)]


def late_of(engine: GroupEngine) -> dict[str, list[str]]:
    """Late results, as `a-b`."""
    return {name: sorted(shown(batches)) for name, batches in engine.cleaned().items()}


def test_spilled_tuples_are_joined_late_for_the_queries_that_see_them() -> None:
    """Without any memory: tuples leave after each slice. A query is added and dropped while others have pending
    results, and so is one of the same name while the former has. A regression: all results were found first, in one
    pause."""
    streams, _, _ = DECLARED.partition("INSERT")
    queries = parse_program(streams + "".join(f"INSERT INTO {name} {PAIRS}" for name in ("first", "second"))).queries
    engine = group_engine(
        queries[:1],
        streams=streams_of(queries),
        executor=JUGGLER,
        budget=MemoryBudget(1, "bottom-up"),
        blocks=MemoryBlocks(),
    )
    assert push_and_advance(engine, queries, [1, 4], [2, 6]) == {"first": ["1-2"]}
    assert push_and_advance(engine, queries, [9], [9]) == {"first": ["4-6"]}
    assert engine.cleaned() == {}
    assert engine.add(queries[1], from_now=True) == {"A": 9, "B": 9}
    assert late_of(engine) == {}
    assert push_and_advance(engine, queries, [12], [12]) == {"first": ["9-9"], "second": ["9-9"]}
    engine.drop("first")
    assert engine.names == ("second",)
    assert engine.add(queries[0], from_now=True) == {"A": 12, "B": 12}
    assert push_and_advance(engine, queries, [30], [30]) == {"second": ["12-12"], "first": ["12-12"]}
    engine.drop("second")
    engine.drop("first")
    assert (engine.names, late_of(engine)) == ((), {})
    assert engine.clean()
    of_first = ["1-6", "1-9", "4-2", "4-9", "9-2", "9-6"]
    assert late_of(engine) == {"first": of_first, "second": ["12-9", "9-12"]}
    assert engine.runners == ()


def test_a_query_is_replaced_by_one_of_its_name_during_a_cleanup() -> None:
    """A regression: the results that the cleanup had not found yet were taken for those of the new query, before whose
    begin they are, and lost. Found by kills of workers with a budget."""
    streams, _, _ = DECLARED.partition("INSERT")
    queries = parse_program(f"{streams} INSERT INTO first {PAIRS}").queries
    engine = group_engine(
        queries, executor=JUGGLER, budget=MemoryBudget(1, "bottom-up"), blocks=MemoryBlocks()
    )  # fmt: skip
    assert push_and_advance(engine, queries, [1, 4], [2, 6]) == {"first": ["1-2"]}
    assert push_and_advance(engine, queries, [9], [9]) == {"first": ["4-6"]}
    assert engine.clean(1)
    assert late_of(engine) == {}, "the cleanup is in progress"
    engine.drop("first")
    assert engine.add(queries[0], from_now=True) == {"A": 9, "B": 9}
    assert engine.clean()
    assert late_of(engine) == {"first": ["1-6", "4-2"]}


def test_a_query_sees_tuples_on_disk_but_not_dropped_ones() -> None:
    """A query that needs more tuples of a stream than were stored is notified, wherever the stored ones are."""
    streams, _, _ = DECLARED.partition("INSERT")
    text = "INSERT INTO r{0} SELECT A.ts AS a, B.ts AS b FROM a A [ROWS {0}], b B [UNBOUNDED];"
    queries = parse_program(streams + "".join(text.format(size) for size in (2, 4, 3))).queries
    engine = group_engine(
        queries[:1],
        streams=streams_of(queries),
        executor=JUGGLER,
        budget=MemoryBudget(1, "bottom-up"),
        blocks=MemoryBlocks(),
    )
    for ts in range(0, 12, 2):
        push_and_advance(engine, queries, [ts, ts + 1], [ts])
        engine.clean()
    assert engine.cut == 10
    assert engine.add(queries[1], from_now=False) == {"A": 10}
    push_and_advance(engine, queries, [12, 13], [13])
    assert engine.add(queries[2], from_now=False) == {"A": 10}
    push_and_advance(engine, queries, [20], [20])
    engine.cleaned()
    engine.drop("r2")
    engine.drop("r4")
    assert engine.add(queries[1], from_now=False).keys() == {"A"}


def test_a_query_that_cannot_be_added_causes_no_cleanup() -> None:
    """A set difference does not go with the executor that was named for the group."""
    streams, _, _ = DECLARED.partition("INSERT")
    without = "SELECT A.k FROM a A [RANGE 1 SECOND] EXCEPT b B [RANGE 1 SECOND] ON A.k = B.k"
    text = f"{streams} INSERT INTO p {PAIRS} INSERT INTO x {without};"
    queries = parse_program(text).queries
    engine = group_engine(
        queries[:1],
        streams=streams_of(queries),
        executor=JUGGLER,
        budget=MemoryBudget(1, "bottom-up"),
        blocks=MemoryBlocks(),
    )
    assert not engine.clean(), "nothing is pending"
    push_and_advance(engine, queries, [1, 4], [2, 6])
    push_and_advance(engine, queries, [9], [9])
    with pytest.raises(UsageError):
        engine.add(queries[1])
    assert engine.names == ("p",)
    assert engine.cleaned() == {}
    before = engine.statistics()
    assert engine.clean()
    assert late_of(engine) == {"p": ["1-6", "4-2"]}
    assert engine.statistics().comparisons > before.comparisons, "cleanup is work"
    assert engine.statistics().peak_state_bytes > before.peak_state_bytes


def test_queries_whose_results_must_come_in_time_are_added_to_a_group_with_a_budget() -> None:
    """They run standalone, beside a query with pending results, and end at once when they are dropped."""
    streams, _, _ = DECLARED.partition("INSERT")
    counted = "SELECT COUNT(*) AS n FROM a A [RANGE 1 SECOND] EMIT EVERY 2 MILLISECONDS"
    without = "SELECT A.k FROM a A [RANGE 1 SECOND] EXCEPT b B [RANGE 1 SECOND] ON A.k = B.k"
    text = f"{streams} INSERT INTO p {PAIRS} INSERT INTO n {counted}; INSERT INTO x {without};"
    queries = parse_program(text).queries
    found = []
    within: dict[str, Any] = {"budget": MemoryBudget(1, "bottom-up"), "blocks": MemoryBlocks()}
    for options in ({}, within):
        engine = group_engine(queries[:1], streams=streams_of(queries), **options)
        push_and_advance(engine, queries, [1, 4], [2, 6])
        for query in queries[1:]:
            engine.add(query)
        got: list[dict[str, list[dict[str, Any]]]] = []
        for at in range(9, 30, 3):
            for stream, times in zip(queries[0].streams(), ([at, at + 1], [at + 2]), strict=True):
                rows = [{"k": ts % 2, "v": 1, "s": "", "ts": ts} for ts in times]
                engine.push(stream.name, 0, to_batch(stream, rows))
            got.append({name: to_rows(batch) for name, batch in engine.advance().items()})
        engine.drop("n")
        engine.drop("x")
        assert engine.names == ("p",)
        engine.clean()
        assert set(engine.cleaned()) <= {"p"}
        found.append([{name: rows for name, rows in one.items() if name != "p"} for one in got])
    assert found[0] == found[1]
    assert any(one.get("n") for one in found[0])
    assert any(one.get("x") for one in found[0])


def test_a_dropped_query_takes_the_tuples_that_it_alone_needs_from_the_disk() -> None:
    streams, _, _ = DECLARED.partition("INSERT")
    texts = PAIRS, PAIRS.replace("20 MILLI", "20000 MILLI"), PAIRS.replace("b B", "c B")
    queries = parse_program(streams + "".join(f"INSERT INTO q{n} {text}" for n, text in enumerate(texts))).queries
    engine = group_engine(queries, executor=JUGGLER, budget=MemoryBudget(1, "bottom-up"), blocks=MemoryBlocks())
    for begin in range(0, 1000, 100):
        for stream in streams_of(queries):
            rows = [{"k": 1, "v": 1, "s": "", "ts": begin + n} for n in range(100)]
            engine.push(stream.name, 0, to_batch(stream, rows))
        engine.advance()

    def on_disk() -> int:
        (runner,) = engine.statistics().runners
        assert runner.spill is not None
        return runner.spill.on_disk_tuples

    before = on_disk()
    engine.drop("q1")
    assert on_disk() == before, "it has pending results"
    engine.clean()
    assert on_disk() < before / 2
    # Nor are the third stream's tuples sought any more.
    engine.drop("q2")
    push_and_advance(engine, queries, [2000, 2500], [2000, 2500])


@pytest.mark.parametrize("executor", [None, APART])
def test_standalone_queries_have_a_share_each(executor: str | None) -> None:
    queries = parse_program(DECLARED).queries[:2]
    whole, _ = a_long_run(group_engine(queries), queries)
    blocks = MemoryBlocks()
    engine = group_engine(queries, executor=executor, budget=MemoryBudget(200_000, "bottom-up"), blocks=blocks)
    got, late = a_long_run(engine, queries)
    assert got == whole
    assert late
    assert not blocks.keys("")
