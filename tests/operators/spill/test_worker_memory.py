"""A budget that several tasks share: which of them has to spill how much."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from operators.data.statistics import SpillStatistics
from operators.engine.engine import Engine
from operators.spill.spilling import HIGH_WATER, MemoryBudget, StateSpiller
from operators.spill.worker_memory import MemoryShare, WorkerMemory
from schemas.columns import Batch, Column
from schemas.query import Type
from tests.operators.spill.memory_blocks import MemoryBlocks
from tests.operators.tiny import query


def shares(*candidates: tuple[list[float], list[int]]) -> list[MemoryShare]:
    """Tasks with these scores and sizes of their groups."""
    memory = WorkerMemory(1_000)
    found = [memory.enter() for _ in candidates]
    for share, (scores, sizes) in zip(found, candidates, strict=True):
        share.candidates = np.array(scores, np.float64), np.array(sizes, np.int64)
        share.used_bytes = sum(sizes)
    return found


@pytest.mark.parametrize(
    ("wanted", "parts"),
    [
        (1, [1, 0]),  # the groups of score 1 alone, of which there is one
        (10, [10, 0]),
        (15, [10, 5]),
        (30, [10, 20]),
        (60, [40, 20]),
        (75, [40, 35]),
        (500, [40, 60]),
    ],
)
def test_the_lowest_scores_of_all_tasks_leave_first(wanted: int, parts: list[int]) -> None:
    first, second = shares(([3.0, 1.0], [30, 10]), ([2.0, 4.0], [20, 40]))
    assert [first.part_of(wanted), second.part_of(wanted)] == parts


def test_of_equal_scores_every_task_spills_its_share() -> None:
    first, second = shares(([0.0] * 3, [10, 10, 10]), ([0.0, 5.0], [10, 1]))
    assert [first.part_of(20), second.part_of(20)] == [15, 5]


def test_a_task_without_candidates_spills_nothing() -> None:
    first, second = shares(([], []), ([1.0], [10]))
    assert [first.part_of(5), second.part_of(5)] == [0, 5]
    assert [first.part_of(50), second.part_of(50)] == [0, 10]


def test_memory_counts_until_a_task_leaves() -> None:
    first, second = shares(([1.0], [10]), ([1.0], [20]))
    assert first.memory.used_bytes() == 30
    second.leave()
    assert first.memory.used_bytes() == 10
    assert first.part_of(5) == 5


@contextmanager
def many_switches() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def test_tasks_may_begin_and_end_at_once() -> None:
    """Two tasks that ended together could bring back a share that had left, or lose one that was in use."""
    memory = WorkerMemory(1_000)
    lasting = memory.enter()
    lasting.used_bytes = 1

    def come_and_go() -> None:
        for _ in range(10_000):
            share = memory.enter()
            share.used_bytes = 1_000
            share.leave()

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    with many_switches():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert memory.used_bytes() == 1
    lasting.leave()
    assert memory.used_bytes() == 0


def test_a_task_that_has_left_counts_its_own_groups() -> None:
    """No task was left: there was nothing to rank."""
    first, second = shares(([1.0, 2.0], [10, 10]), ([1.0], [30]))
    assert first.part_of(20) == 5
    for share in (first, second, first):
        share.leave()
    assert (first.part_of(5), first.part_of(15), first.part_of(50)) == (5, 15, 20)


def test_a_task_that_waits_for_another_one_seldom_looks_at_its_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other task has the groups that should leave, and stands still. This one looked after every slice, and at the
    limit it spilled no more than the last slice had added."""
    limit, looks = 4_000_000, 0
    memory = WorkerMemory(limit)
    other = memory.enter()
    other.used_bytes = limit // 2
    other.candidates = np.array([-1.0]), np.array([limit // 2])
    choose = StateSpiller._choose

    def counted(spiller: StateSpiller) -> None:
        nonlocal looks
        looks += 1
        choose(spiller)

    monkeypatch.setattr(StateSpiller, "_choose", counted)
    bound = query("SELECT A.v FROM a A [UNBOUNDED], b B [UNBOUNDED] WHERE A.k = B.k")
    task = Engine(bound, budget=MemoryBudget(limit, "global-output", shared=memory), blocks=MemoryBlocks())

    def step(at: int) -> SpillStatistics:
        for number, stream in enumerate(bound.streams()):
            draw = np.random.default_rng(2 * at + number)
            keys = Column(Type.BIGINT, draw.integers(0, 1_000_000, 100))
            task.push(stream.name, 0, Batch(np.full(100, at), {"k": keys, "v": keys}))
        task.advance(at + 1)
        used = task.statistics().spill
        assert used is not None
        return used

    short = full = looks_when_short = 0
    for at in range(400):
        used = step(at)
        assert memory.used_bytes() <= limit
        if used.spills:
            full += 1
        elif memory.used_bytes() > HIGH_WATER * limit:
            short, looks_when_short = short + 1, looks
    assert short > 15
    assert 2 <= looks_when_short <= 3
    assert full > 200
    assert looks - looks_when_short < full / 8
    # The other one spills, and memory is short again: this one looks at once, and takes part if its groups rank lowest.
    looks, spills = 0, []
    for at, (share, score) in enumerate([(0.97, -1.0), (0.95, -1.0), (0.95, 1e9)]):
        other.used_bytes, other.candidates = 0, (np.array([score]), np.array([limit // 2]))
        own = step(400 + 2 * at).used_bytes
        other.used_bytes = int(share * limit) - own
        spills.append(step(401 + 2 * at).spills)
    assert looks == 3
    assert spills == [spills[0], spills[0], spills[0] + 1]
