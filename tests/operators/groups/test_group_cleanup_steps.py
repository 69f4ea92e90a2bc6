"""When and how fast a shared operator cleans up: cleanups and their steps, by themselves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from operators.data.tuples import Tuples
from operators.groups import cleanup_steps
from operators.groups.cleanup import STEP_TUPLES, CleanupQueries
from operators.groups.cleanup_steps import DEAD_SHARE, MOST_WORK, RATE, SLICE_WORK_TUPLES, GroupCleanupSteps
from operators.groups.spill import GroupSpill
from operators.juggler.state.sources import GroupSources
from schemas.columns import Batch
from schemas.groups import Member, QueryGroup, query_group
from schemas.language.program import parse_program
from tests.feeding import to_batch
from tests.operators.spill.memory_blocks import MemoryBlocks

DECLARED = """
CREATE STREAM a (k BIGINT, ts TIMESTAMP) WITH (topic = 'a', timestamp = 'ts');
CREATE STREAM b (k BIGINT, ts TIMESTAMP) WITH (topic = 'b', timestamp = 'ts');
INSERT INTO pairs SELECT A.ts AS a, B.ts AS b FROM a A [RANGE 1 SECOND], b B [RANGE 1 SECOND] WHERE A.k = B.k;
"""
EACH = 512
"""Tuples of a stream that arrive in a second: two blocks."""


class SpillingStreams:
    """Tuples of two streams that are spilled second by second. Every join of them finds the pair of the last ones.

    Attributes:
        cut: everything before it has arrived.
        joined: tuples in every join of blocks so far.
    """

    def __init__(self) -> None:
        self.group = query_group(parse_program(DECLARED).queries)
        self.queries = CleanupQueries(self.group, {}, {})
        self.sources = GroupSources(self.group)
        self.spill = GroupSpill(1, MemoryBlocks())
        self.steps = GroupCleanupSteps(self.spill, self._join, self._output)
        self.cut = 0
        self.joined: list[int] = []

    def _join(self, sources: GroupSources, group: QueryGroup, epoch: Mapping[str, Tuples]) -> Mapping[str, Tuples]:
        self.joined.append(sum(map(len, epoch.values())))
        (member,) = group.members
        rows = np.concatenate([epoch[name].rows[:, -1:] for name in member.inputs])
        ts = np.array([max(int(tuples.ts[-1]) for tuples in epoch.values())])
        return {member.name: Tuples(member.inputs, rows, ts, ts)}

    def _output(self, member: Member, found: Tuples, sources: GroupSources) -> Batch:
        return Batch(found.ts, {})

    def arrive(self, seconds: int, *, leave: bool = True, ms: int = 1000) -> None:
        """So many seconds pass, and at the end of each all tuples are spilled."""
        for begin in range(self.cut, self.cut + ms * seconds, ms):
            batches = {}
            for stream in self.group.query.streams():
                rows = [{"k": n, "ts": begin + n * ms // EACH} for n in range(EACH)]
                batches[stream.name] = to_batch(stream, rows)
            self.sources.enter(batches)
            self.cut = self.sources.cut = begin + ms
            if leave:
                assert self.spill.spill_oldest(self.sources, self.cut, 10**9)

    def taken(self) -> list[int]:
        """The times of the results that are delivered."""
        return [int(ts) for batches in self.steps.take().values() for batch in batches for ts in batch.ts]

    def after_slice(self, tuples: float) -> int:
        """As after a slice of so many tuples; return how many choices of blocks were joined."""
        before = len(self.joined)
        self.steps.after_slice(self.queries, self.sources, self.cut, tuples)  # type: ignore[arg-type]
        return len(self.joined) - before

    def run_steps(self, max_steps: int) -> bool:
        """As in spare time."""
        return self.steps.run_steps(self.queries, self.sources, self.cut, max_steps)


CHOICES = 4
"""Joins to clean up a second: its two blocks of either stream, each with the tuples of the second before that can match
it; those of its own second it has been joined with in time."""
CHOICE_TUPLES = 2 * EACH / CHOICES / RATE * (1 + 1e-9)
"""The number of incoming tuples for which one of these joins is made."""


@pytest.fixture(autouse=True)
def _unlimited_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work per tuple is unlimited."""
    monkeypatch.setattr(cleanup_steps, "MOST_WORK", 1e12)


def begun(seconds: int = 4) -> SpillingStreams:
    """It is time to clean up, and the first join was made."""
    run = SpillingStreams()
    run.arrive(seconds)
    assert run.after_slice(1e-6) == 1
    return run


def test_it_is_time_when_half_of_what_is_on_disk_is_dead() -> None:
    run = SpillingStreams()
    assert run.after_slice(1e9) == 0, "nothing is pending"
    run.arrive(1)
    assert run.after_slice(1e9) == 0
    assert not run.steps.in_progress
    run.arrive(1, leave=False, ms=400)
    assert run.spill.behind(run.sources, run.cut)
    assert run.spill.dead_tuples(run.sources, run.cut) < DEAD_SHARE * run.spill.on_disk_tuples
    assert run.after_slice(1e9) == 0, "pending results can wait"
    run = SpillingStreams()
    run.arrive(2)
    assert run.spill.dead_tuples(run.sources, run.cut) == DEAD_SHARE * run.spill.on_disk_tuples
    assert run.after_slice(1e9) == CHOICES
    assert not run.steps.in_progress
    assert run.spill.on_disk_tuples == 2 * EACH, "what is dead has left the disk"


def test_incoming_tuples_allow_so_many_joins() -> None:
    """Incoming tuples add up, each join uses up its share, and nothing is left over when it is not time any more."""
    run = begun(9)
    assert [run.after_slice(CHOICE_TUPLES) for _ in range(4)] == [1, 1, 1, 1]
    assert [run.after_slice(CHOICE_TUPLES / 4) for _ in range(8)] == [0, 0, 0, 1, 0, 0, 0, 1]
    assert run.after_slice(3 * CHOICE_TUPLES) == 3
    assert run.after_slice(1e9) == 8 * CHOICES - 10
    assert not run.steps.in_progress
    run.arrive(2)
    assert run.after_slice(1e-6) == 1


def test_incoming_tuples_wait_for_no_more_than_so_much_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tuples arrived. A step that took more is made up for, and what is left is done in spare time. A
    regression: an epoch that was expensive to clean up stopped the task for minutes."""
    run = begun(9)
    monkeypatch.setattr(cleanup_steps, "MOST_WORK", STEP_TUPLES / 1e6)
    steps = [run.after_slice(1e6) for _ in range(20)]
    assert 4 < sum(steps) < 10, "a search and a join both take more than is allowed"
    assert max(steps) == 1
    while run.run_steps(1):
        pass
    assert len(run.joined) == 8 * CHOICES


def test_joins_in_spare_time_are_free() -> None:
    run = begun()
    assert run.run_steps(4)
    assert len(run.joined) == 3, "a search and a join are two steps"
    assert run.after_slice(CHOICE_TUPLES / 2) == 1
    assert run.run_steps(100)
    assert len(run.joined) == 3 * CHOICES
    assert not run.steps.in_progress
    assert not run.run_steps(100), "nothing is pending"


def test_cleanups_end_where_spilled_tuples_end() -> None:
    """One after the other, each with full blocks; tuples in memory are left alone."""
    run = SpillingStreams()
    run.arrive(4)
    run.arrive(1, leave=False)
    run.after_slice(1e-6)
    cleaned_to = []
    while run.steps.in_progress:
        run.after_slice(CHOICE_TUPLES)
        assert run.spill.cleaned_to is not None
        cleaned_to.append(run.spill.cleaned_to.ts)
    assert list(dict.fromkeys(cleaned_to)) == [1000, 2000, 3000, 4000]
    idle = SpillingStreams()
    idle.arrive(4)
    idle.arrive(1, leave=False)
    assert idle.run_steps(100)
    assert idle.spill.cleaned_to is not None
    assert idle.spill.cleaned_to.ts == 4000


def test_results_of_a_cleanup_are_delivered_at_its_end() -> None:
    """And once: `cleaned_to` determines which were delivered before."""
    run = begun()
    for begin in (1000, 2000, 3000):
        assert run.spill.cleaned_to is not None
        while run.spill.cleaned_to.ts == begin:
            assert run.taken() == []
            assert run.after_slice(CHOICE_TUPLES) == 1
        results = run.taken()
        assert results
        assert all(begin <= ts < begin + 1000 for ts in results)


def test_slices_are_so_small_that_their_steps_are_not_large() -> None:
    run = SpillingStreams()
    assert run.steps.slice_tuples == SLICE_WORK_TUPLES
    run.arrive(2)
    run.after_slice(1e9)
    work = 2 * EACH * SLICE_WORK_TUPLES / RATE / run.steps.slice_tuples
    steps = 2 * CHOICES * STEP_TUPLES
    assert steps + sum(run.joined) < work < steps + 4 * sum(run.joined)
    run.steps._work_per_tuple = 1e9
    assert run.steps.slice_tuples == max(1, int(SLICE_WORK_TUPLES / cleanup_steps.MOST_WORK))
    assert MOST_WORK < SLICE_WORK_TUPLES
