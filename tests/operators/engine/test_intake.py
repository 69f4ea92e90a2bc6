"""Clocks, lateness, watermarks, the total order, replay points: how arriving tuples become epochs.

Timelines are written as timestamps in arrival order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from operators.data.watermark import END, NEVER, PartitionClock
from operators.engine import intake
from operators.engine.intake import Intake, ReplayPoint
from schemas.columns import Batch, Column
from schemas.errors import InvariantError
from schemas.query import Stream, Type

SEEN = "seen"


def batch(ts: list[int], seen: list[int] | None = None) -> Batch:
    """Tuples with a number each, to distinguish them."""
    numbers = list(range(len(ts))) if seen is None else seen
    return Batch(np.array(ts, np.int64), {SEEN: Column.from_values(numbers, Type.BIGINT)})


def numbers(batch: Batch) -> list[object]:
    return batch.columns[SEEN].to_values()


def task(disorder_ms: int = 0, **partitions: int) -> Intake:
    """An intake of streams with so many partitions each."""
    streams = [Stream(name, (), name, disorder_ms=disorder_ms) for name in partitions]
    return Intake(streams, {name: range(count) for name, count in partitions.items()})


# --- One partition's clock ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("disorder_ms", "arrivals", "late"),
    [
        (0, [1, 2, 2, 1, 3], [1]),
        (0, [5, 4, 5, 6], [4]),
        (2, [5, 3, 2, 5, 7, 5, 4], [2, 4]),  # exactly the disorder behind is in time
        (2, [9, 3, 7], [3]),  # a late tuple does not move the clock
        (10, [5, 3, 1], []),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 100])
def test_lateness_depends_on_earlier_tuples(disorder_ms: int, arrivals: list[int], late: list[int], size: int) -> None:
    """ts < largest before it - disorder, however the arrivals are cut into pushes."""
    clock = PartitionClock(disorder_ms)
    got: list[int] = []
    for begin in range(0, len(arrivals), size):
        part = np.array(arrivals[begin : begin + size], np.int64)
        got += part[clock.observe(part)].tolist()
    assert got == late
    assert clock.max_ts == max(arrivals)


def test_watermark_of_a_partition() -> None:
    """-1 unseen, then the largest ts less the disorder but not below 0, END when closed."""
    clock = PartitionClock(3)
    assert clock.watermark() == -1
    clock.observe(np.array([2], np.int64))
    assert clock.watermark() == 0
    clock.observe(np.array([9, 8], np.int64))
    assert clock.watermark() == 6
    clock.observe(np.zeros(0, np.int64))
    assert clock.watermark() == 6
    clock.closed = True
    assert clock.watermark() == END


# --- The task's watermark ----------------------------------------------------------------------------


def test_the_slowest_partition_holds_the_watermark() -> None:
    """All partitions of all streams count, once each has shown something."""
    one = task(a=2, b=1)
    one.push("a", 0, batch([10]))
    one.push("b", 0, batch([20]))
    assert one.watermark() == -1, "a/1 has shown nothing"
    one.push("a", 1, batch([5]))
    assert one.watermark() == 5
    one.close("a", 1)
    assert one.watermark() == 10
    one.close("a", 0)
    one.close("b", 0)
    assert one.watermark() == END


def test_an_idle_partition_does_not_hold_it_until_it_speaks() -> None:
    """A push wakes it."""
    one = task(a=2)
    one.push("a", 0, batch([10]))
    one.set_idle("a", 1, True)
    assert one.watermark() == 10
    one.take(10)
    late = one.push("a", 1, batch([9, 10, 4, 11])).late
    assert late.tolist() == [True, False, True, False], "the task has passed 9; 4 is late by its own clock"
    assert one.late_tuples == 2
    assert one.watermark() == 10, "never below what was processed"
    one.push("a", 0, batch([30]))
    assert one.watermark() == 11, "awake again"


def test_the_watermark_of_idle_partitions_is_the_largest() -> None:
    """So that the last tuples before a lull are answered."""
    one = task(disorder_ms=2, a=2)
    one.push("a", 0, batch([10]))
    one.push("a", 1, batch([30]))
    one.set_idle("a", 0, True)
    one.set_idle("a", 1, True)
    assert one.watermark() == 28


def test_closed_and_idle_is_not_the_end() -> None:
    """Regression: with one partition closed and the others idle the watermark was END, so that states were
    emptied and all later tuples were late."""
    one = task(a=2)
    one.push("a", 0, batch([10]))
    one.push("a", 1, batch([5]))
    one.close("a", 0)
    one.set_idle("a", 1, True)
    assert one.watermark() == 5
    one.set_idle("a", 0, True)
    assert one.watermark() == 5
    one.push("a", 1, batch([7]))
    assert one.watermark() == 7


def test_no_partition_at_all_has_ended() -> None:
    """A task without partitions."""
    assert task(a=0).watermark() == END


def test_unknown_streams_and_partitions_are_named() -> None:
    """Not a bare KeyError."""
    with pytest.raises(InvariantError, match=r"no stream 'b'; the query reads a"):
        task(a=1).push("b", 0, batch([1]))
    with pytest.raises(InvariantError, match=r"no partition 3 of 'a'; this task reads \[0, 1\]"):
        task(a=2).close("a", 3)


# --- The total order ---------------------------------------------------------------------------------


def test_epochs_are_sorted_by_ts_then_partition_then_offset() -> None:
    """Ties keep that order however they arrived."""
    one = task(disorder_ms=10, a=2)
    one.push("a", 1, batch([3, 2, 3], [10, 11, 12]))
    one.push("a", 0, batch([3, 1], [20, 21]))
    one.push("a", 0, batch([3, 2], [22, 23]))
    assert one.pending_tuples == 7
    taken = one.take(3)["a"]
    assert taken.ts.tolist() == [1, 2, 2]
    assert numbers(taken) == [21, 23, 11]
    assert one.pending_tuples == 4
    assert (one.cut, one.take(3)) == (3, {}), "strictly below the cut"
    assert numbers(one.take(END)["a"]) == [20, 22, 10, 12]
    assert one.pending_tuples == 0


def test_an_epoch_costs_the_same_however_many_small_pushes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was looked at in every epoch, and an hour of disorder has a hundred thousand."""
    one = task(100_000, a=1)
    arrivals = [ts for n in range(3_000) for ts in (10 * n + 25, 10 * n)]

    def push(begin: int, end: int) -> None:
        for at in range(begin, end, 2):
            one.push("a", 0, batch(arrivals[at : at + 2], [at, at + 1]))

    push(0, 3_000)
    found = [one.take(1_000)["a"]]
    push(3_000, 6_000)
    calls, search = 0, np.searchsorted

    def counting(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        return search(*args, **named)

    monkeypatch.setattr(np, "searchsorted", counting)
    found += [one.take(cut)["a"] for cut in (2_000, 3_000, END)]
    assert calls < 300
    assert one.pending_tuples == 0
    expected = sorted(enumerate(arrivals), key=lambda arrived: (arrived[1], arrived[0]))
    assert [n for part in found for n in numbers(part)] == [n for n, _ in expected]


def test_streams_without_tuples_are_absent() -> None:
    """An epoch only has the streams with tuples."""
    one = task(a=1, b=1)
    one.push("b", 0, batch([1]))
    assert list(one.take(2)) == ["b"]


# --- Replay ------------------------------------------------------------------------------------------


def test_below_the_floor_only_the_clock_moves() -> None:
    """Rows below the floor are neither taken nor late.

    Regression: those late by their partition's clock were reported (and counted) a second time.
    """
    one = task(a=1)
    late = one.push("a", 0, batch([5, 3, 9, 7, 12, 10]), floor=8).late
    assert late.tolist() == [False, False, False, False, False, True]
    assert one.late_tuples == 1
    assert one.take(END)["a"].ts.tolist() == [9, 12]
    assert one.partition_watermark("a", 0) == 12


def test_replay_points() -> None:
    """The latest known offset from which all tuples with ts >= horizon are seen again."""
    one = task(disorder_ms=5, a=1)
    assert one.replay_point("a", 0, 0) == ReplayPoint(0, NEVER)
    one.push("a", 0, batch([10, 12]), np.array([100, 101]))
    one.push("a", 0, batch([11, 9]), np.array([105, 106]))
    one.push("a", 0, batch([20]), np.array([107]))
    assert one.replay_point("a", 0, 12) == ReplayPoint(100, NEVER)
    assert one.replay_point("a", 0, 13) == ReplayPoint(107, 12), "105 and 106 did not move the clock past 12"
    assert one.replay_point("a", 0, 21) == ReplayPoint(108, 20)
    one.forget("a", 13)
    assert one.replay_point("a", 0, 13) == ReplayPoint(107, 12)
    assert one.replay_point("a", 0, 0) == ReplayPoint(107, 12), "forgotten: nobody asks for less any more"


def test_offsets_default_to_a_running_count() -> None:
    """For files."""
    one = task(a=1)
    one.push("a", 0, batch([1, 2]))
    one.push("a", 0, batch([3]))
    assert one.replay_point("a", 0, 3) == ReplayPoint(2, 2)
    assert one.replay_point("a", 0, 4) == ReplayPoint(3, 3)


def test_a_long_history_is_coarsened_but_never_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded; a point may lie earlier than necessary, never later, and its clock fits."""
    monkeypatch.setattr(intake, "MAX_MARKS", 8)
    one = task(a=1)
    for ts in range(100):
        one.push("a", 0, batch([ts]))
    assert len(one._parts["a"][0].marks) <= 8
    for horizon in range(100):
        point = one.replay_point("a", 0, horizon)
        assert point.offset <= horizon
        assert point.max_ts == (point.offset - 1 if point.offset else NEVER)
    assert one.replay_point("a", 0, 99).offset >= 90, "what is recent stays fine"


def test_history_is_forgotten() -> None:
    """History that no horizon needs any more is dropped."""
    one = task(a=1)
    for ts in range(0, 1000, 2):
        one.push("a", 0, batch([ts]))
        one.forget("a", ts - 10)
        assert len(one._parts["a"][0].marks) <= 6
