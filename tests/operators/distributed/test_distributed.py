"""Plans taken apart against the oracle and the fused engine: random queries, plans, data, splits and interleavings."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.data.watermark import NEVER
from operators.distributed import edge_writer as route
from operators.distributed.decompose import decompose, without_joins_of_tables
from operators.distributed.edge_reader import EdgeReader, ReadCounts
from operators.distributed.intake import SourceIntake
from operators.distributed.operator import AGGREGATES, DistributedOperator, Edge
from operators.engine import numbered
from operators.engine.engine import Engine
from operators.engine.intake import ReplayPoint
from operators.plan.plan import parse_plan
from operators.spill.spilling import MemoryBudget
from schemas.codecs.exchange import ExchangeBlock
from schemas.columns import Batch, Column
from schemas.errors import UsageError
from schemas.language.program import parse_program
from schemas.query import Query, Type, Window
from tests import oracle
from tests.cases import Case, aggregated, cases, unnested
from tests.chains import Chain, merged
from tests.feeding import canonical, feed, partitions_of, tables_of, to_batch, to_rows
from tests.operators.spill.memory_blocks import MemoryBlocks
from tests.profiles import PROPERTY
from tests.subtractions import busy_subtractions, subtractions


def fused(case: Case) -> list[dict[str, object]]:
    """The fused engine's results."""
    engine = Engine(case.query, plan=case.plan, tables=tables_of(case), partitions=partitions_of(case.rows))
    return feed(engine, case.rows, case.push_sizes, case.epoch_ms)


@pytest.fixture(autouse=True, scope="module")
def small_sweeps() -> Iterator[None]:
    """States with numbered tuples are purged although they are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbered, "SWEEP_TUPLES", 1)
        yield


def joins(most_aliases: int = 4) -> st.SearchStrategy[Case]:
    """Joins that can be taken apart, some of elements of arrays."""
    plain = cases(most_aliases=most_aliases).filter(lambda case: len(case.query.sources) > 1)
    return st.one_of(plain, unnested(plain))


def decomposable() -> st.SearchStrategy[Case]:
    """Joins, aggregates of joins, and set differences that can be taken apart."""
    differences = st.one_of(subtractions(), busy_subtractions())
    return st.one_of(joins(), aggregated(joins()), differences, unnested(differences))


def drive(chain: Chain, data: st.DataObject, *, deaths: bool = False) -> None:
    """Let tasks take turns at random, some write snapshots and die, then finish."""
    for _ in range(data.draw(st.integers(0, 25))):
        task = data.draw(st.sampled_from(chain.tasks))
        what = data.draw(st.integers(0, 3)) if deaths else 3
        if what == 0:
            task.die(keeps=data.draw(st.booleans()))
        else:
            chain.turn(task, data.draw(st.integers(1, 4)), commits=what > 1)
        if deaths and data.draw(st.booleans()):
            task.save()
    chain.finish()


@PROPERTY
@given(decomposable(), st.data())
def test_a_chain_gives_the_fused_engines_sequence(case: Case, data: st.DataObject) -> None:
    """Unsplit: the same results in the same order, ties included, whatever the turns."""
    chain = Chain(case.query, case.plan, case.rows, 1, tables=tables_of(case))
    drive(chain, data)
    (got,) = chain.results()
    assert got == fused(case)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))
    assert not any(task.repeated for task in chain.tasks)


@PROPERTY
@given(decomposable(), st.integers(2, 3), st.booleans(), st.data())
def test_a_split_chain_gives_the_oracles_results(case: Case, split: int, tiny: bool, data: st.DataObject) -> None:
    """Split by keys: each result in one task, in order of time there; also when blocks are of one row."""
    with pytest.MonkeyPatch.context() as patch:
        if tiny:
            patch.setattr(route, "BLOCK_BYTES", 1)
        chain = Chain(case.query, case.plan, case.rows, split, tables=tables_of(case))
        drive(chain, data)
    assert canonical(merged(chain.results())) == canonical(oracle.results(case.query, case.given))
    for part in chain.results():
        times = [row["_ts"] for row in part]
        assert times == sorted(times)


@PROPERTY
@given(decomposable(), st.integers(1, 2), st.data())
def test_tasks_die_and_blocks_come_twice(case: Case, split: int, data: st.DataObject) -> None:
    """A task that reads everything again, or what its snapshot lacks, sends nothing twice. A block that is there twice
    changes nothing, nor does an epoch that is written again with another end."""
    chain = Chain(case.query, case.plan, case.rows, split, tables=tables_of(case))
    drive(chain, data, deaths=True)
    lanes = [(lane, log) for lane, log in chain.topics.logs.items() if log and isinstance(log[0], bytes)]
    if lanes:
        _, log = data.draw(st.sampled_from(lanes))
        log.append(data.draw(st.sampled_from(log)))
        chain.finish()
    assert canonical(merged(chain.results())) == canonical(oracle.results(case.query, case.given))


def test_joins_of_tables_alone_are_resolved() -> None:
    text = "CREATE TABLE r (k BIGINT) WITH (path = 'r.csv'); CREATE TABLE t (k BIGINT) WITH (path = 't.csv');"
    found = "SELECT A.s FROM a A [RANGE 1 SECOND], r R, t T, b B [RANGE 1 SECOND] WHERE A.k = R.k AND R.k = T.k"
    (bound,) = parse_program(f"{STREAMS} {text} INSERT INTO 'out' {found}").queries
    for plan, resolved in (
        ("((A B) (R T))", "(((A B) R) T)"),
        ("((T R) (A B))", "(((A B) T) R)"),
        ("(((R T) A) B)", "(((A R) T) B)"),
        ("((R A) (T B))", "((R A) (T B))"),
    ):
        assert str(without_joins_of_tables(bound, parse_plan(plan, bound))) == resolved


STREAMS = """
CREATE STREAM a (k BIGINT, x BIGINT, s STRING, at TIMESTAMP) WITH (topic = 'ta', timestamp = 'at');
CREATE STREAM b (k BIGINT, x BIGINT, s STRING, at TIMESTAMP) WITH (topic = 'tb', timestamp = 'at');
CREATE STREAM c (k BIGINT, x BIGINT, s STRING, at TIMESTAMP) WITH (topic = 'tc', timestamp = 'at');
"""
THREE = "SELECT A.s FROM a A [RANGE 1 SECOND], b B [RANGE 2 SECONDS], c C [RANGE 3 SECONDS] "
COUNTS = {"ta": 4, "tb": 4, "tc": 4}


def query(text: str) -> Query:
    """A query over the three streams."""
    return parse_program(f"{STREAMS} INSERT INTO 'out' {text}").queries[0]


def operators(text: str, plan: str, split: int | None = None) -> tuple[DistributedOperator, ...]:
    """A query taken apart."""
    bound = query(text)
    return decompose(bound, parse_plan(plan, bound), COUNTS, split)


def edge(operator: DistributedOperator) -> Edge:
    """The one edge that an operator feeds."""
    (found,) = operator.outputs
    return found


def test_only_what_is_read_later_travels() -> None:
    """Times and positions of the components, what the rest of the plan reads, and the expiry."""
    top, low, *intakes = operators(THREE + "WHERE A.k = B.k AND B.x = C.x AND A.x > 3", "((A B) C)", 1)
    assert not intakes
    assert [str(c) for c in (top.name, low.name)] == ["((A B) C)", "(A B)"]
    names = [(c.alias, c.name) for c in edge(low).columns]
    assert names == [
        ("A", "_ts"), ("A", "@position"), ("B", "_ts"), ("B", "@position"), ("B", "x"), ("A", "s"),
    ]  # fmt: skip
    assert edge(low).expires
    assert [s.window.size for s in top.query.sources] == [1000, 3000]


def test_implied_equalities_are_keys() -> None:
    """A and C are joined by what A.k = B.k and B.k = C.k say together, so that the join can be split."""
    found = operators(THREE + "WHERE A.k = B.k AND B.k = C.k", "((A C) B)")
    assert [(o.name, o.tasks) for o in found] == [("((A C) B)", 4), ("(A C)", 4), ("a", 1), ("b", 1), ("c", 1)]
    assert [(e.partitions, e.channels) for o in found for e in o.outputs] == [(4, 4), (4, 1), (4, 1), (4, 1)]


def test_a_join_without_key_is_one_task() -> None:
    """Its sources are read as they are; what comes from a split join below comes by as many channels."""
    top, low, *intakes = operators(THREE + "WHERE A.k = B.k AND B.x < C.x", "((A B) C)", 3)
    assert (top.tasks, low.tasks) == (1, 3)
    assert [o.name for o in intakes] == ["a", "b"]
    assert (edge(low).partitions, edge(low).channels) == (1, 3)
    assert edge(low).keys == ()


def test_partition_by_needs_no_intake() -> None:
    """Partition p of every source belongs to task p of every join already."""
    found = operators(THREE + "WHERE A.k = B.k AND B.k = C.k PARTITION BY A.k, B.k, C.k", "((A B) C)", 2)
    assert [(o.name, o.tasks, o.forward) for o in found] == [("((A B) C)", 4, True), ("(A B)", 4, True)]
    assert (edge(found[1]).partitions, edge(found[1]).channels) == (4, 1)


def test_a_stream_of_two_joins_is_read_once() -> None:
    """Under two aliases a stream is read by an intake, with what each alias selects."""
    text = "SELECT A.s FROM a A [RANGE 1 SECOND], b B [RANGE 1 SECOND], a C [RANGE 1 SECOND] "
    *_, intake = operators(text + "WHERE A.k = B.k AND B.x = C.x AND C.x > 3", "((A B) C)", 1)
    assert intake.name == "a"
    assert [(e.aliases, len(e.predicates)) for e in intake.outputs] == [(("A",), 0), (("C",), 1)]


def test_a_result_expires_with_its_first_component() -> None:
    """Of a at 0 and b at 800 (ms, both live 1 s) c at 1000 still makes a result, c at 1001 does not."""
    text = "SELECT C.at AS at FROM a A [RANGE 1 SECOND], b B [RANGE 1 SECOND], c C [RANGE 1 SECOND] "
    bound = query(text + "WHERE A.k = B.k AND B.k = C.k")
    rows = {name: [[{"k": 1, "x": 1, "s": "s", "at": at} for at in times]] for name, times in
            {"a": [0], "b": [800], "c": [1000, 1001]}.items()}  # fmt: skip
    for plan in ("((A B) C)", "(C (B A))"):
        chain = Chain(bound, parse_plan(plan, bound), rows, 1)
        chain.finish()
        assert chain.results() == [[{"at": 1000, "_ts": 1000}]]


def test_a_repeated_block_moves_nothing() -> None:
    """Not even its channel's clock, back to where it was."""
    bound = query(THREE + "WHERE A.k = B.k AND B.k = C.k")
    rows = {name: [[{"k": 1, "x": 1, "s": "s", "at": at} for at in (1, 2, 3, 9)]] for name in "abc"}
    chain = Chain(bound, parse_plan("((A B) C)", bound), rows, 1)
    for _ in range(4):
        for task in reversed(chain.tasks):
            chain.turn(task, 1)
    top = chain.tasks[0]
    ((lane, channels),) = top.channels.items()
    before = top.engine.partition_watermark(lane[0], 0)
    block = next(b for raw in chain.topics.log(lane) if len((b := channels.decode(raw, "a block")).batch))
    assert channels.take(top.engine, block, 0).repeated == len(block.batch) > 0
    assert top.engine.partition_watermark(lane[0], 0) == before > block.watermark


def test_reading_again_starts_no_later_than_each_channels_last_epoch() -> None:
    """Readers delete what lies before. From there on, a task that has died must see what has become of its last
    transaction."""
    bound = query(THREE + "WHERE A.k = B.k AND B.k = C.k")
    rows = {name: [[{"k": at % 5, "x": 1, "s": "s", "at": at} for at in range(20)]] for name in "abc"}
    chain = Chain(bound, parse_plan("((A B) C)", bound), rows, 2)
    top, _, first, _, *intakes = chain.tasks
    for _ in range(3):
        for task in (*intakes, first, top):
            chain.turn(task, 4)
    ((lane, channels),) = [(lane, channels) for lane, channels in top.channels.items() if channels.edge.channels == 2]
    assert top.at[lane] == 3
    assert [channels.point(channel, 1_000_000).offset for channel in range(2)] == [2, 0]


def test_a_condition_without_columns_acts_at_every_join() -> None:
    found = operators(THREE + "WHERE A.k = B.k AND B.k = C.k AND 1 = 2", "((A B) C)", 1)
    rows = {name: [[{"k": 1, "x": 1, "s": "s", "at": 5}]] for name in "abc"}
    assert [len(o.query.predicates) for o in found] == [3, 2]
    bound = query(THREE + "WHERE A.k = B.k AND B.k = C.k AND 1 = 2")
    chain = Chain(bound, parse_plan("((A B) C)", bound), rows, 1)
    chain.finish()
    assert chain.results() == [[]]


GROUPED = (
    "SELECT A.k, COUNT(*) AS n, MAX(B.x) AS most FROM a A [RANGE 1 SECOND], b B [RANGE 2 SECONDS] WHERE A.k = B.k "
)


def test_aggregates_are_above_the_top_join() -> None:
    """Their tasks share the groups; nulls are a group. Only what they read travels, and when a result dies."""
    top, join, *intakes = operators(f"{GROUPED} GROUP BY A.s, A.k EMIT EVERY 1 SECOND", "(A B)", 3)
    assert (top.name, top.tasks, top.outputs, top.ranks) == (AGGREGATES, 3, (), 0)
    given = edge(join)
    assert [(c.alias, c.name) for c in given.columns] == [
        ("A", "_ts"), ("B", "_ts"), ("A", "s"), ("A", "k"), ("B", "x")
    ]  # fmt: skip
    assert given.expires
    assert given.keeps_nulls
    assert (given.channels, given.partitions) == (3, 3)
    # What was emitted last is a matter of what lived then.
    assert [str(o.query.sources[0].window) for o in intakes] == ["[RANGE 2 SECONDS]", "[RANGE 3 SECONDS]"]
    (top, join) = operators(f"{GROUPED} EMIT EVERY 1 SECOND".replace("A.k, ", ""), "(A B)", 1)
    assert (top.tasks, join.tasks, edge(join).keys) == (1, 1, ())


@PROPERTY
@given(st.integers(1, 2), st.booleans(), st.data())
def test_an_aggregate_counts_each_result_once(split: int, tiny: bool, data: st.DataObject) -> None:
    """Also where it reads results again that its snapshot has, and where a join sends results again, in an epoch with
    another end. It took in every block that had some new result as a whole."""
    bound = query(f"{GROUPED} GROUP BY A.k EMIT EVERY 100 MILLISECONDS")
    rows = {
        name: [[{"k": at % 3 % 2, "x": at % 7, "s": "s", "at": 20 * at} for at in range(50)]] for name in ("a", "b")
    }
    with pytest.MonkeyPatch.context() as patch:
        if tiny:
            patch.setattr(route, "BLOCK_BYTES", 1)
        chain = Chain(bound, parse_plan("(A B)", bound), rows, split)
        for size in data.draw(st.lists(st.integers(1, 9), max_size=8)):
            for task in reversed(chain.tasks):
                what = data.draw(st.integers(0, 4))
                chain.turn(task, size, commits=what > 0)
                if what == 4:
                    task.save()
                elif what < 3:
                    task.die(keeps=what > 0)
        chain.finish()
    assert canonical(merged(chain.results())) == canonical(oracle.results(bound, rows))


def test_an_aggregate_knows_what_it_has_read_before_it_can_take_it() -> None:
    """Its clock waits for late results; what came in time has come further. What comes twice counts once, but for late
    results that it still waits for."""
    top, join = operators(f"{GROUPED} GROUP BY A.k EMIT EVERY 100 MILLISECONDS", "(A B)", 1)
    (source,) = top.inputs
    engine = Engine(top.query, plan=top.plan, partitions={source.stream.name: [0]})
    reader = EdgeReader(source, [ReplayPoint(0, NEVER)])
    reader.restore_clocks(engine)

    def take(times: list[int], watermark: int, complete: int, *, late: bool = False, floor: int = 0) -> ReadCounts:
        columns = {field.name: Column.from_values([7] * len(times), field.type) for field in edge(join).fields}
        batch = Batch(np.array(times, np.int64), columns)
        return reader.take(engine, ExchangeBlock(0, watermark, not late, batch, complete, late), 0, floor)

    assert take([50, 99], 100, 40) == ReadCounts(2, 0)
    assert take([50, 99, 110], 120, 40) == ReadCounts(1, 2), "another end"
    assert take([45, 60], 120, 40, late=True) == ReadCounts(2, 0)
    assert engine.pending_tuples == 5
    assert take([], 130, 70) == ReadCounts(0, 0)
    assert take([45, 60, 80], 130, 70, late=True) == ReadCounts(1, 2)
    assert take([120, 135, 145], 150, 70, floor=140) == ReadCounts(3, 0), "a snapshot has two, and none came twice"
    assert engine.pending_tuples == 7
    assert engine.watermark() == 70


def test_a_set_difference_is_one_operator() -> None:
    """Its tasks share the keys by which all streams are subtracted."""
    text = "SELECT A.s FROM a A [RANGE 1 SECOND] EXCEPT b B [RANGE 1 SECOND] ON A.k = B.k AND B.x > A.x AND B.s = 'b' "
    top, *intakes = operators(text + "EXCEPT c C [RANGE 1 SECOND] ON C.x = A.k AND C.s = A.s", "((A C) B)", 3)
    assert (top.name, top.tasks, top.ranks) == ("((A C) B)", 3, 0)
    edges = [edge(intake) for intake in intakes]
    assert [[(o.expr.alias, o.expr.name) for o in e.keys] for e in edges] == [  # type: ignore[union-attr]
        [("A", "k")], [("B", "k")], [("C", "x")]
    ]  # fmt: skip
    assert [e.keeps_nulls for e in edges] == [True, False, False]
    assert [len(e.predicates) for e in edges] == [0, 1, 0]
    assert [part.alias for part in top.query.subtracted] == ["C", "B"]
    (top,) = operators(text + "EXCEPT c C [RANGE 1 SECOND] ON C.s = A.s", "((A C) B)", 3)
    assert (top.tasks, top.inputs[0].edge) == (1, None)


COUNTED = THREE.replace("[RANGE 2 SECONDS]", "[ROWS 5]") + "WHERE A.k = B.k AND B.k = C.k"


def test_one_intake_counts_for_all_joins() -> None:
    """It reads all streams; numbers travel as far as a join compares them or purges by them."""
    top, join, intake = operators(COUNTED, "((A B) C)", 2)
    assert intake.is_intake
    assert not join.is_intake
    assert (intake.name, intake.tasks, len(intake.outputs)) == ("a, b, c", 1, 3)
    assert [str(source.window) for source in intake.query.sources] == [
        "[RANGE 1 SECOND]", "[ROWS 5]", "[RANGE 3 SECONDS]"
    ]  # fmt: skip
    for travelling, columns in zip((*intake.outputs, edge(join)), (["A"], ["B"], ["C"], ["B"]), strict=True):
        assert [c.alias for c in travelling.columns if c.name == "#b"] == columns
    assert [[c.size for c in columns] for columns in join.numbered.values()] == [[None], [5]]
    assert [[c.size for c in columns] for columns in top.numbered.values()] == [[5], [None]]


def test_states_of_counted_tuples_stay_small() -> None:
    """And so does what a restart reads again, although the windows of RANGE are long."""
    text = THREE.replace("1 SECOND]", "1000 SECONDS]").replace("[RANGE 2 SECONDS]", "[ROWS 5]")
    bound = query(text + "WHERE A.k = B.k")
    few = [{"k": 0, "x": 1, "s": "s", "at": at} for at in range(0, 4000, 1000)]
    rows = {"a": [few], "c": [few], "b": [[{"k": at % 2, "x": 1, "s": "s", "at": at} for at in range(0, 4000, 4)]]}
    chain = Chain(bound, parse_plan("((A B) C)", bound), rows, 1)
    for _ in range(500):
        for task in reversed(chain.tasks):
            chain.turn(task, 4)
    chain.finish()
    _, join, intake = chain.tasks
    stored = {name: len(store) for name, store in join.engine._sources.stores.items()}
    assert [count < 40 for count in stored.values()] == [True, True], stored
    assert join.engine.horizon(next(reversed(stored))) > 3900
    assert intake.engine.horizon("b") == 3980
    assert intake.numbers == (1000,)


def test_a_commit_does_not_copy_a_counted_window() -> None:
    """The time of the window's first tuple is at hand. It was found in a copy of the times of all its tuples, which was
    made for every stream in every epoch, and for every partition in every commit."""
    *_, intake = operators(COUNTED.replace("[ROWS 5]", "[ROWS 50000]"), "((A B) C)", 1)
    engine = SourceIntake(intake.query, {name: [0] for name in "abc"})
    (stream,) = [stream for stream in intake.query.streams() if stream.name == "b"]
    for name in "ac":
        engine.close(name, 0)
    sizes = np.random.default_rng(7).integers(1, 3000, 60).tolist()
    begin = 0
    tracemalloc.start()
    try:
        for size in sizes:
            columns = {field.name: Column.from_values([None] * size, field.type) for field in stream.fields}
            engine.push("b", 0, Batch(np.arange(begin, begin + size), columns))
            begin += size
            engine.advance()
            taken = engine.numbers[0]
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            # `a` and `c` have windows of 1 s and 3 s, but `b` has none by time.
            assert engine.horizon("b") == max(taken - 50_000, 0)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 5_000
    finally:
        tracemalloc.stop()
    assert begin > 60_000


@pytest.mark.parametrize(
    "text",
    [
        GROUPED.replace("[RANGE 1 SECOND]", "[ROWS 5]") + "GROUP BY A.k EMIT EVERY 1 SECOND",
        "SELECT A.s FROM a A [ROWS 3] EXCEPT b B [RANGE 1 SECOND] ON A.k = B.k",
    ],
)
def test_what_dies_by_count_without_a_match_is_one_operator(text: str) -> None:
    (only,) = operators(text, "(A B)", 2)
    assert (only.name, only.tasks, only.outputs, only.ranks) == ("(A B)", 1, (), 0)
    assert only.query.aggregation == query(text).aggregation
    assert not only.is_intake


def test_one_intake_reads_the_streams_of_a_topic() -> None:
    """A partition is read by one task. Here two streams read every record, each with its own columns."""
    text = STREAMS + "CREATE STREAM twin (x BIGINT, at TIMESTAMP) WITH (topic = 'ta', timestamp = 'at');"
    select = "SELECT A.s, T.x FROM a A [RANGE 1 SECOND], twin T [RANGE 1 SECOND], b B [RANGE 1 SECOND] WHERE A.k = T.x"
    (bound,) = parse_program(f"{text} INSERT INTO 'out' {select} AND B.k = A.k").queries
    plan = parse_plan("((A B) T)", bound)
    found = decompose(bound, plan, COUNTS, 1)
    assert [(o.name, o.is_intake) for o in found] == [("((A B) T)", False), ("(A B)", False), ("a, twin", True)]
    shared = [{"k": k, "x": k, "s": "s", "at": at} for at, k in enumerate([1, 2, 1, 2])]
    rows = {"a": [shared], "twin": [shared], "b": [[{"k": 1, "x": 0, "s": "s", "at": 1}]]}
    for split in (1, 2):
        chain = Chain(bound, plan, rows, split)
        chain.finish()
        assert canonical(merged(chain.results())) == canonical(oracle.results(bound, rows))


RATES = """
CREATE TABLE t (k BIGINT PRIMARY KEY, v BIGINT, at TIMESTAMP) WITH (topic = 'tt', timestamp = 'at');
CREATE TABLE u (v BIGINT PRIMARY KEY, w BIGINT, at TIMESTAMP) WITH (topic = 'tu', timestamp = 'at');
"""
LOOKED_UP = (
    "SELECT A.s, T.v AS v FROM a A [RANGE 1 SECOND], t FOR SYSTEM_TIME AS OF A._ts AS T, b B [RANGE 2 SECONDS], "
    "c C [RANGE 3 SECONDS] WHERE T.k = A.k AND T.v = B.x AND B.k = C.k AND T.v > 3 "
)


def looked_up(select: str) -> Query:
    """A query over the streams and tables in topics."""
    return parse_program(f"{STREAMS} {RATES} INSERT INTO 'out' {select}").queries[0]


def test_an_intake_looks_tuples_up() -> None:
    """It reads the table, too. What is looked up travels, is a key, and selects; only what is read above is looked
    up. How often the table's topic is partitioned says nothing about the joins."""
    bound = looked_up(LOOKED_UP)
    counts = {**COUNTS, "tt": 7, "tu": 1}
    top, low, *intakes = decompose(bound, parse_plan("((A B) C)", bound), counts)
    assert (top.tasks, low.tasks) == (4, 4)
    assert [(one.name, one.tasks, one.is_intake) for one in intakes] == [
        ("a, t", 1, True), ("b", 1, True), ("c", 1, True)
    ]  # fmt: skip
    intake = intakes[0]
    assert [(given.stream.topic, given.position) for given in intake.streams] == [("ta", "@position"), ("tt", "")]
    assert [(c.alias, c.name) for c in edge(intake).columns] == [("A", "@position"), ("A", "T.v"), ("A", "s")]
    assert [str(key.expr.name) for key in edge(intake).keys] == ["T.v"]  # type: ignore[union-attr]
    assert len(edge(intake).predicates) == 2  # the row is there, and T.v > 3
    assert not any(join.query.lookups for join in (top, low))
    # Also where nothing is split, and a join could read the stream itself.
    assert [one.name for one in decompose(bound, parse_plan("((A B) C)", bound), counts, 1)] == [
        "((A B) C)", "(A B)", "a, t"
    ]  # fmt: skip


def test_streams_that_are_looked_up_in_one_table_have_one_intake() -> None:
    """A partition is read by one task. A chain of tables brings further streams in."""
    first = "a A [RANGE 1 SECOND], t FOR SYSTEM_TIME AS OF A._ts AS T, c C [RANGE 1 SECOND], "
    second = "u FOR SYSTEM_TIME AS OF C._ts AS U, b B [RANGE 1 SECOND]"
    sources = f"{first} {second}, t FOR SYSTEM_TIME AS OF B._ts AS V, u FOR SYSTEM_TIME AS OF B._ts AS W "
    where = "WHERE T.k = A.k AND U.v = C.x AND V.k = B.k AND W.v = V.v AND A.k = B.k AND B.k = C.k"
    counts = {**COUNTS, "tt": 2, "tu": 1}
    bound = looked_up(f"SELECT A.s, T.v AS t, U.w AS u, V.v AS v, W.w AS w FROM {sources} {where}")
    assert [one.name for one in decompose(bound, parse_plan("((A B) C)", bound), counts, 1) if one.is_intake] == [
        "a, c, b, t, u"
    ]
    two = looked_up(f"SELECT A.s, T.v AS t, U.w AS u FROM {first} {second} WHERE T.k = A.k AND U.v = C.x AND A.k = B.k")
    assert [one.name for one in decompose(two, parse_plan("((A B) C)", two), counts, 1) if one.is_intake] == [
        "a, t", "c, u"
    ]  # fmt: skip
    partitioned = looked_up(f"{LOOKED_UP} AND A.k = B.k PARTITION BY A.k, B.k, C.k, T.k")
    found = decompose(partitioned, parse_plan("((A B) C)", partitioned), {**COUNTS, "tt": 4})
    assert [(one.name, one.tasks) for one in found] == [("((A B) C)", 4), ("(A B)", 4), ("a, t", 4)]


def test_a_task_that_died_reads_the_table_from_its_beginning() -> None:
    """A row may have changed long before what windows need."""
    bound = looked_up("SELECT A.s, T.v AS v FROM a A [RANGE 1 SECOND], t FOR SYSTEM_TIME AS OF A._ts AS T, "
                      "b B [RANGE 1 SECOND] WHERE T.k = A.k AND A.k = B.k")  # fmt: skip
    tuples = [{"k": 1, "x": 1, "s": "s", "at": at} for at in range(0, 20_000, 500)]
    versions = [{"k": n % 2, "v": n, "at": 100 * n} for n in (1, 2, 100, 150, 200)]
    rows = {"a": [tuples], "b": [tuples], "t": [versions]}
    chain = Chain(bound, parse_plan("(A B)", bound), rows, 1)
    intake = chain.tasks[-1]
    for _ in range(3):
        for task in reversed(chain.tasks):
            chain.turn(task, 5 if task is intake else 100)
        assert intake.cut > 0
        assert intake.engine.horizon("a") > 0
        assert intake.engine.horizon("t") == 0
        intake.die()
    chain.finish()
    assert canonical(merged(chain.results())) == canonical(oracle.results(bound, rows))


def test_tables_and_streams_of_one_topic() -> None:
    """Every record is a tuple, and a version of a row."""
    text = RATES.replace("'tt'", "'ta'").replace("v BIGINT, at", "x BIGINT, at")
    select = "SELECT A.s, T.x AS x FROM b B [RANGE 1 SECOND], a A [RANGE 1 SECOND], t FOR SYSTEM_TIME AS OF B._ts AS T "
    (bound,) = parse_program(f"{STREAMS} {text} INSERT INTO 'out' {select} WHERE T.k = B.k AND A.k = B.k").queries
    shared = [{"k": k, "x": 10 * k, "s": f"s{at}", "at": at} for at, k in enumerate([1, 2, 1, 2, 1])]
    rows = {"a": [shared], "t": [shared], "b": [[{"k": at % 3, "x": 0, "s": "", "at": at} for at in range(6)]]}
    for split in (1, 2):
        chain = Chain(bound, parse_plan("(A B)", bound), rows, split)
        assert [o.name for o in chain.operators if o.is_intake] == ["b, a, t"]
        chain.finish()
        expected = oracle.results(bound, rows)
        assert canonical(merged(chain.results())) == canonical(expected)
        assert expected


def test_a_long_table_takes_no_memory_for_what_is_superseded() -> None:
    """Where a plan takes over, its intake reads the whole table before anything is looked up. What was superseded when
    no tuple lived yet that still lives is of no use. The windows, at most 3 s, say what that is."""
    bound = looked_up("SELECT A.s, T.v AS v FROM a A [RANGE 3 SECONDS], t FOR SYSTEM_TIME AS OF A._ts AS T, "
                      "b B [RANGE 1 SECOND] WHERE T.k = A.k AND A.k = B.k")  # fmt: skip
    *_, operator = decompose(bound, parse_plan("(A B)", bound), {**COUNTS, "tt": 1}, 1)
    a, table = operator.query.streams()

    def read(former: int) -> tuple[list[int], list[dict[str, object]]]:
        engine = SourceIntake(operator.query, {"a": [0], "t": [0]}, former=former)
        pending = []
        for begin in range(0, 12_000, 1000):
            versions = [{"k": n % 7, "v": begin + n, "at": begin + n} for n in range(0, 1000, 10)]
            engine.push("t", 0, to_batch(table, versions), floor=0)
            engine.take_versions()
            pending.append(engine.pending_tuples)
        tuples = [{"k": k, "x": 0, "s": "", "at": at, "@position": at} for k, at in ((0, 7000), (5, 9000), (6, 11_990))]
        engine.push("a", 0, to_batch(a, tuples), floor=0)
        return pending, to_rows(engine.advance()["a"])

    pending, found = read(10_000)
    assert max(pending[:7]) <= 1
    assert pending[-1] == 500
    everything, same = read(0)
    assert everything[-1] == 1200
    assert found == same
    # A tuple that one of ROWS still has may be of any age.
    bound = replace(bound, sources=(replace(bound.sources[0], window=Window("ROWS", 3)), bound.sources[1]))
    *_, operator = decompose(bound, parse_plan("(A B)", bound), {**COUNTS, "tt": 1}, 1)
    engine = SourceIntake(operator.query, {"a": [0], "b": [0], "t": [0]}, former=10_000)
    engine.push("t", 0, to_batch(table, [{"k": 1, "v": at, "at": at} for at in (1, 2, 3)]), floor=0)
    assert engine.take_versions() == 0


def test_too_many_channels_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 64 tasks, not 65"):
        operators(THREE + "WHERE A.k = B.k AND B.k = C.k", "((A B) C)", 65)


@pytest.mark.parametrize("budget", [None, MemoryBudget(1, "bottom-up", 4)])
def test_an_alias_with_a_dot_does_not_take_the_column_of_another_source(budget: MemoryBudget | None) -> None:
    """A."b.v" and "A.b".v had one name in results that travel and in spilled tuples: both had the value of one."""
    fields = "at TIMESTAMP) WITH (timestamp = 'at');"
    (query,) = parse_program(
        f'CREATE STREAM a (id BIGINT, "b.v" BIGINT, {fields} CREATE STREAM b (id BIGINT, v BIGINT, {fields} '
        f"CREATE STREAM c (id BIGINT, {fields} "
        'SELECT A."b.v" AS x, "A.b".v AS y, C.id AS n FROM a A, b "A.b", c C WINDOW RANGE 1 HOUR '
        'WHERE A.id = "A.b".id AND A.id = C.id'
    ).queries
    rows = {
        "a": [[{"id": 1, "b.v": 10, "at": 0}]],
        "b": [[{"id": 1, "v": 20, "at": 1}]],
        "c": [[{"id": 1, "at": n} for n in range(2, 5)]],
    }
    plan = parse_plan("((A A.b) C)", query)
    expected = [{"x": 10, "y": 20, "n": 1, "_ts": n} for n in range(2, 5)]
    chain = Chain(query, plan, rows, 1, budget=budget)
    chain.finish()
    assert canonical([*merged(chain.results()), *chain.late()]) == canonical(expected)
    engine = Engine(query, plan=plan, budget=budget, blocks=None if budget is None else MemoryBlocks())
    found = feed(engine, rows, [1], 1)
    if budget is not None:
        engine.clean()
        found += [row for batch in engine.cleaned() for row in to_rows(batch)]
    assert canonical(found) == canonical(expected)


@pytest.mark.parametrize("split", [1, 2])
def test_a_declared_column_may_be_called_as_that_of_positions(split: int) -> None:
    """A result had a record's position in the log instead of the value of a column "@position", whether a join reads
    the stream itself or an intake does."""
    fields = "at TIMESTAMP) WITH (timestamp = 'at');"
    (query,) = parse_program(
        f'CREATE STREAM a (id BIGINT, "@position" BIGINT, {fields} '
        f'CREATE STREAM b (id BIGINT, "@position" STRING, "@position@" BIGINT, {fields} '
        f"CREATE STREAM c (id BIGINT, {fields} "
        'SELECT A."@position" AS x, B."@position" AS y, B."@position@" AS z, C.id AS n FROM a A, b B, c C '
        'WINDOW RANGE 1 HOUR WHERE A.id = B.id AND A.id = C.id AND A."@position" > 5'
    ).queries
    rows = {
        "a": [[{"id": 1, "@position": 10, "at": 0}]],
        "b": [[{"id": 1, "@position": "ten", "@position@": 20, "at": 1}]],
        "c": [[{"id": 1, "at": n} for n in range(2, 5)]],
    }
    chain = Chain(query, parse_plan("((A B) C)", query), rows, split)
    chain.finish()
    expected = [{"x": 10, "y": "ten", "z": 20, "n": 1, "_ts": n} for n in range(2, 5)]
    assert canonical(merged(chain.results())) == canonical(expected)


def test_blocks_are_cut_where_their_rows_fill_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """They had as many rows as fit on average: a few long ones together exceeded what Kafka takes."""
    monkeypatch.setattr(route, "BLOCK_BYTES", 100)
    texts = ["x" * 10] * 6 + ["y" * 90, "z" * 300] + ["x"]
    batch = Batch(np.arange(9), {"s": Column.from_values(texts, Type.STRING)})
    assert route.block_bounds(batch) == [(0, 3), (3, 6), (6, 7), (7, 8), (8, 9)]
    assert route.block_bounds(batch.slice(4, 8)) == [(0, 2), (2, 3), (3, 4)]
    assert route.block_bounds(batch.slice(0, 0)) == [(0, 0)]
