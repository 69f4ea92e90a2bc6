"""What cannot be spilled counts against a memory budget: tables in topics, and what is remembered of deduplicated
streams. The rest of the state has less room, and results are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from operators.data.statistics import FILES, SpillStatistics
from operators.distributed.intake import SourceIntake
from operators.engine.engine import Engine
from operators.groups.engine import GroupEngine
from operators.groups.sharing import APART, group_engine
from operators.kernels.pages import MAPPED_FROM, RingMemory
from operators.spill.spilling import MemoryBudget
from operators.spill.worker_memory import WorkerMemory
from schemas.columns import Batch, Column
from schemas.language.program import parse_program
from schemas.query import GONE, Query, Stream, Type
from tests.operators.spill.memory_blocks import MemoryBlocks

LIMIT = 3_000_000
EPOCHS, TUPLES, KEYS = 8, 4_000, 8_000
"""Epochs of a second each, and tuples of each stream in one; rows of a table."""

STREAM = "CREATE STREAM {0} (k BIGINT, v BIGINT, at TIMESTAMP) WITH (topic = '{0}', timestamp = 'at'{1});"
ONCE = ", deduplicate = 'v', deduplicate_within = '1 HOUR'"
TABLE = "CREATE TABLE t (k BIGINT PRIMARY KEY, v BIGINT, at TIMESTAMP) WITH (topic = 't', timestamp = 'at');"
JOIN = "SELECT A.v AS a, B.v AS b FROM a A [RANGE 2 SECONDS]{0}, b B [RANGE 2 SECONDS] WHERE A.k = B.k{1}"
DIFFERENCE = "SELECT A.v AS a FROM a A [RANGE 2 SECONDS]{0} EXCEPT b B [RANGE 2 SECONDS] ON A.k = B.k{1}"
LOOKED_UP = " LEFT JOIN t FOR SYSTEM_TIME AS OF A._ts AS T ON T.k = A.v"
KINDS = {"firsts": (ONCE, "", ""), "tables": ("", LOOKED_UP, " AND (T.v IS NULL OR T.v >= 0)")}
"""Options of the first stream, what looks its tuples up, and a condition that is always true."""


def queries(kind: str, *selects: str) -> list[Query]:
    once, lookup, condition = KINDS[kind] if kind else ("", "", "")
    declared = STREAM.format("a", once) + STREAM.format("b", "") + TABLE
    into = (f"INSERT INTO q{n} {select.format(lookup, condition)};" for n, select in enumerate(selects))
    return list(parse_program(declared + "".join(into)).queries)


def batch(stream: Stream, number: int, at: int) -> Batch:
    """An epoch's tuples; every `v` of a stream is another. A table has its rows from the first epoch on."""
    draw = np.random.default_rng(10 * at + number)
    n = TUPLES if not stream.is_versioned else KEYS if at == 0 else 1
    ts = np.sort(draw.integers(1000 * at, 1000 * (at + 1), n))
    columns = {"k": draw.integers(0, 5_000, n), "v": np.arange(n) + TUPLES * at}
    if stream.is_versioned:
        ts, columns["k"] = np.full(n, 1000 * at), np.arange(n)
    found = {name: Column(Type.BIGINT, values) for name, values in columns.items()} | {"at": Column(Type.TIMESTAMP, ts)}
    if stream.is_versioned:
        found[GONE] = Column(Type.BOOLEAN, np.zeros(n, np.bool_))
    return Batch(ts, found)


def push(task: Engine | GroupEngine | SourceIntake, streams: Sequence[Stream], at: int) -> None:
    for number, stream in enumerate(streams):
        task.push(stream.name, 0, batch(stream, number, at))


def as_rows(batches: Sequence[Batch]) -> list[tuple[int, ...]]:
    """All results, ascending."""
    rows: list[tuple[int, ...]] = []
    for one in batches:
        columns = [one.columns[name].values.tolist() for name in ("a", "b") if name in one.columns]
        rows += zip(one.ts.tolist(), *columns, strict=True)
    return sorted(rows)


def fed(task: Engine, bound: Query) -> tuple[list[tuple[int, ...]], SpillStatistics]:
    """All results, and the use of memory before the last are cleaned up."""
    found = []
    for at in range(EPOCHS):
        push(task, bound.streams(), at)
        found.append(task.advance(1000 * (at + 1)))
        found += task.cleaned()
    spill = task.statistics().spill
    assert spill is not None
    task.clean()
    return as_rows([*found, *task.cleaned()]), spill


def spilling(bound: Query, limit: int = LIMIT) -> Engine:
    return Engine(bound, budget=MemoryBudget(limit, "bottom-up"), blocks=MemoryBlocks())


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_spilled_takes_room_from_states(kind: str) -> None:
    """It was beside the budget."""
    (plain,), (bound,) = queries("", JOIN), queries(kind, JOIN)
    expected, before = fed(spilling(plain), plain)
    found, spill = fed(spilling(bound), bound)
    assert found == expected
    assert (before.fixed_bytes, before.spills) == (0, 0)
    assert before.used_bytes < 0.9 * LIMIT
    assert spill.fixed_bytes > LIMIT / 4
    assert spill.fixed_bytes < spill.used_bytes <= LIMIT
    assert spill.spills > 0


def test_results_are_the_same_where_nothing_has_room() -> None:
    (plain,), (bound,) = queries("", JOIN), queries("tables", JOIN)
    expected, _ = fed(spilling(plain), plain)
    found, spill = fed(spilling(bound, 500_000), bound)
    assert found == expected
    assert spill.fixed_bytes > spill.budget_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_in_no_file_takes_room_from_states_in_files(kind: str) -> None:
    """Rows of tables are in files like states; what finds them is not."""
    (plain,), (bound,) = queries("", DIFFERENCE), queries(kind, DIFFERENCE)
    _, before = fed(spilling(plain), plain)
    limit = before.used_bytes + before.used_bytes // 10
    expected, before = fed(spilling(plain, limit), plain)
    found, spill = fed(spilling(bound, limit), bound)
    assert found == expected
    assert before.file_bytes == 0
    assert spill.strategy == FILES
    assert spill.fixed_bytes > limit / 4
    assert spill.file_bytes > 0
    assert spill.used_bytes < before.used_bytes + spill.fixed_bytes


def test_a_ring_has_what_is_left() -> None:
    shared: dict[int, int] = {}
    first, second = (RingMemory(4 * MAPPED_FROM, lambda size: np.zeros(size, np.uint8), shared) for _ in range(2))
    first.fixed_bytes = 3 * MAPPED_FROM
    with second.used():
        kept = [second.take(MAPPED_FROM) for _ in range(2)]
    assert (second.in_memory, second.in_files, second.fixed_bytes) == (MAPPED_FROM, MAPPED_FROM, 0)
    assert (first.in_memory, first.fixed_bytes) == (3 * MAPPED_FROM, 3 * MAPPED_FROM)
    del first
    assert sum(shared.values()) == MAPPED_FROM, "an engine that is gone uses nothing"
    del kept


@pytest.mark.parametrize("executor", [None, APART])
@pytest.mark.parametrize("kind", KINDS)
def test_queries_of_a_group_have_what_is_left(kind: str, executor: str | None) -> None:
    def run(bound: list[Query]) -> tuple[Mapping[str, list[tuple[int, ...]]], SpillStatistics]:
        budget = MemoryBudget(2 * LIMIT, "bottom-up")
        engine = group_engine(bound, executor=executor, budget=budget, blocks=MemoryBlocks())
        found: dict[str, list[Batch]] = {query.name: [] for query in bound}
        streams = bound[0].streams()
        for at in range(EPOCHS):
            push(engine, streams, at)
            for name, one in engine.advance(1000 * (at + 1)).items():
                found[name].append(one)
        spill = engine.statistics().spill
        assert spill is not None
        engine.clean()
        for name, late in engine.cleaned().items():
            found[name] += late
        tables = engine.statistics().lookup_bytes
        assert spill.fixed_bytes >= 0.9 * tables
        return {name: as_rows(batches) for name, batches in found.items()}, spill

    selects = JOIN, JOIN.replace("A.k = B.k", "A.k = B.k AND A.v > B.v")
    expected, before = run(queries("", *selects))
    found, spill = run(queries(kind, *selects))
    assert found == expected
    assert (before.fixed_bytes, before.spills) == (0, 0)
    assert LIMIT / 3 < spill.fixed_bytes < spill.used_bytes <= spill.budget_bytes == 2 * LIMIT
    assert spill.spills or spill.used_bytes > before.used_bytes + 0.9 * spill.fixed_bytes, "it counts"


@pytest.mark.parametrize("in_time", [False, True])
def test_an_intake_takes_room_from_the_joins_of_its_worker(in_time: bool) -> None:
    (bound,) = queries("tables", JOIN)
    memory = WorkerMemory(LIMIT)
    budget = MemoryBudget(LIMIT, "bottom-up", in_time=in_time, shared=memory)
    intake = SourceIntake(bound_to_intake(bound), {stream.name: [0] for stream in bound.streams()}, budget=budget)
    assert (memory.used_bytes(), sum(memory.rings.values())) == (0, 0)
    push(intake, bound.streams(), 0)
    intake.advance(1000)
    found = intake.statistics()
    assert found.spill is not None
    assert found.spill.strategy == (FILES if in_time else "bottom-up")
    assert found.spill.fixed_bytes == found.spill.used_bytes > LIMIT / 4
    assert memory.used_bytes() == sum(memory.rings.values()) == found.spill.used_bytes
    intake.leave_budget()
    assert (memory.used_bytes(), sum(memory.rings.values())) == (0, 0)


def bound_to_intake(bound: Query) -> Query:
    """The query without what an intake does not do."""
    return Query("intake", None, bound.sources, (), (), lookups=bound.lookups)
