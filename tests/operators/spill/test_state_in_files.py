"""State beyond a memory budget that stays at hand in files: same results, none late, and memory within the budget."""

from __future__ import annotations

import contextlib
import gc
import mmap
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from operators.data.statistics import FILES, SpillStatistics
from operators.engine.engine import Engine
from operators.kernels.pages import MAPPED_FROM, RingMemory, zeroed
from operators.spill.spilling import MemoryBudget
from operators.spill.worker_memory import WorkerMemory
from schemas.columns import Batch, Column
from schemas.errors import StateError
from schemas.query import Query, Type
from tests.operators.spill.memory_blocks import MemoryBlocks
from tests.operators.spill.test_worker_memory import many_switches
from tests.operators.tiny import query

LIMIT = 600_000
EPOCHS = 12
TUPLES = 4_000
"""Of each stream in an epoch of a second."""

THREE = "SELECT A.v FROM a A [RANGE 9000 ms], b B [RANGE 4000 ms], c C [RANGE 3000 ms] WHERE A.k = B.k AND A.k = C.k"
CASES = {
    "EXCEPT": ("SELECT A.v FROM a A [RANGE 9000 ms] EXCEPT b B [RANGE 4000 ms] ON A.k = B.k", "xjoin"),
    "aggregates over ROWS": (
        "SELECT COUNT(*) AS n FROM a A [ROWS 20000], b B [RANGE 5000 ms] WHERE A.k = B.k EMIT EVERY 1 SECONDS",
        "xjoin",
    ),
    "in time": ("SELECT A.v FROM a A [RANGE 9000 ms], b B [RANGE 4000 ms] WHERE A.k = B.k", "xjoin"),
    **{name: (THREE, name) for name in ("mjoin", "eddy", "stairs", "juggler")},
}


def batches(bound: Query, at: int) -> Iterator[tuple[str, Batch]]:
    """The tuples of one epoch, by stream."""
    for number, stream in enumerate(bound.streams()):
        draw = np.random.default_rng(100 * at + number)
        ts = np.sort(draw.integers(1000 * at, 1000 * (at + 1), TUPLES))
        values = {name: draw.integers(0, 60_000, TUPLES) for name in "kv"}
        yield stream.name, Batch(ts, {name: Column(Type.BIGINT, found) for name, found in values.items()})


def results(task: Engine, bound: Query) -> list[tuple[list[int], list[list[object]]]]:
    """Per epoch, the ts and the columns of the results."""
    found = []
    for at in range(1, EPOCHS):
        for name, batch in batches(bound, at):
            task.push(name, 0, batch)
        out = task.advance(1000 * (at + 1))
        found.append((out.ts.tolist(), [column.values.tolist() for column in out.columns.values()]))
    return found


def spill_of(task: Engine) -> SpillStatistics:
    """Its use of memory."""
    found = task.statistics().spill
    assert found is not None
    return found


@pytest.mark.parametrize("name", CASES)
def test_results_come_in_time_and_memory_stays_within_the_budget(name: str) -> None:
    text, executor = CASES[name]
    bound = query(text)
    budget = MemoryBudget(LIMIT, "bottom-up", in_time=name == "in time")
    plain = Engine(bound, executor=executor)
    task = Engine(bound, executor=executor, budget=budget, blocks=MemoryBlocks())
    assert results(task, bound) == results(plain, bound)
    used = spill_of(task)
    assert plain.statistics().state_bytes > 2 * LIMIT
    assert used.strategy == FILES
    assert LIMIT / 4 < used.used_bytes <= LIMIT
    assert used.file_bytes > LIMIT
    assert (used.owed, task.clean(), task.spill_events(), task.complete) == (0, False, [], task.cut)


def test_a_smaller_state_needs_no_file() -> None:
    bound = query(CASES["EXCEPT"][0])
    task = Engine(bound, budget=MemoryBudget(1 << 30, "bottom-up"), blocks=MemoryBlocks())
    results(task, bound)
    assert spill_of(task).file_bytes == 0


def test_tasks_share_the_budget_of_their_worker() -> None:
    """Each took the whole budget for itself."""
    bound = query(CASES["EXCEPT"][0])
    budget = MemoryBudget(LIMIT, "bottom-up", shared=WorkerMemory(LIMIT))
    tasks = [Engine(bound, budget=budget, blocks=MemoryBlocks()) for _ in range(3)]
    expected = results(Engine(bound), bound)
    assert [results(task, bound) for task in tasks] == [expected] * 3
    used = [spill_of(task).used_bytes for task in tasks]
    assert LIMIT / 2 < sum(used) <= LIMIT


def test_memory_is_counted_until_nothing_refers_to_it() -> None:
    memory = RingMemory(2 * MAPPED_FROM, lambda size: mmap.mmap(-1, size))
    with memory.used():
        rings = [zeroed(MAPPED_FROM // 8, np.int64) for _ in range(5)]
        small = zeroed(10, np.int64)
    beside = zeroed(MAPPED_FROM, np.uint8)
    assert (memory.in_memory, memory.in_files) == (2 * MAPPED_FROM, 3 * MAPPED_FROM)
    assert not any(ring.any() for ring in (*rings, small, beside))
    part = rings[0][3:5]
    del rings[:3]
    gc.collect()
    assert (memory.in_memory, memory.in_files) == (MAPPED_FROM, 2 * MAPPED_FROM)
    assert not part.any()
    del part, rings[:]
    gc.collect()
    assert (memory.in_memory, memory.in_files) == (0, 0)


def test_memory_that_other_engines_use_counts() -> None:
    shared: dict[int, int] = {}
    first, second = (RingMemory(4 * MAPPED_FROM, lambda size: mmap.mmap(-1, size), shared) for _ in range(2))
    with first.used():
        rings = [zeroed(3 * MAPPED_FROM, np.uint8)]
    with second.used():
        kept = [zeroed(pages * MAPPED_FROM, np.uint8) for pages in (2, 1)]
        assert (first.in_memory, first.in_files) == (3 * MAPPED_FROM, 0)
        assert (second.in_memory, second.in_files) == (MAPPED_FROM, 2 * MAPPED_FROM)
        rings.clear()
        gc.collect()
        kept.append(zeroed(3 * MAPPED_FROM, np.uint8))
    assert (first.in_memory, second.in_memory, second.in_files) == (0, 4 * MAPPED_FROM, 2 * MAPPED_FROM)
    with first.used():
        rings.append(zeroed(MAPPED_FROM, np.uint8))
    assert first.in_files == MAPPED_FROM


def test_engines_that_take_memory_at_once_stay_within_the_limit() -> None:
    limit = 40 * MAPPED_FROM
    for _ in range(20):
        shared: dict[int, int] = {}
        memories = [RingMemory(limit, lambda size: mmap.mmap(-1, size), shared) for _ in range(4)]
        kept: list[object] = []

        def take(memory: RingMemory, kept: list[object] = kept) -> None:
            with memory.used():
                kept.extend(zeroed(MAPPED_FROM, np.uint8) for _ in range(20))

        threads = [threading.Thread(target=take, args=(memory,)) for memory in memories]
        with many_switches():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert limit / 2 < sum(memory.in_memory for memory in memories) <= limit
        assert sum(memory.in_memory + memory.in_files for memory in memories) == 2 * limit


def test_contexts_nest_and_end() -> None:
    outer, inner = (RingMemory(1 << 30, lambda size: mmap.mmap(-1, size)) for _ in range(2))
    with outer.used():
        with inner.used():
            kept = [zeroed(MAPPED_FROM, np.uint8)]
        with contextlib.suppress(StateError), inner.used():
            raise StateError
        kept.append(zeroed(2 * MAPPED_FROM, np.uint8))
    kept.append(zeroed(MAPPED_FROM, np.uint8))
    assert (inner.in_memory, outer.in_memory) == (MAPPED_FROM, 2 * MAPPED_FROM)


def test_a_full_disk_ends_the_epoch() -> None:
    class Full(MemoryBlocks):
        def map_file(self, size: int) -> mmap.mmap:
            raise StateError(f"no room for {size} bytes")

    bound = query(CASES["EXCEPT"][0])
    task = Engine(bound, budget=MemoryBudget(LIMIT, "bottom-up"), blocks=Full())
    with pytest.raises(StateError, match="no room for"):
        results(task, bound)
