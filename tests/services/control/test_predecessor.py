"""What the tasks of a version that is prepared may do while the former version runs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from io import BytesIO
from typing import Any

import pytest

from operators.data.watermark import END, NEVER
from operators.plan.plan import Leaf
from schemas.messages.commits import Commit
from schemas.messages.control import Cut, Opened, Propose
from services.control import predecessor
from services.control.barrier import Barrier
from services.control.plan_versions import PlanVersion
from services.control.predecessor import Predecessor
from services.kafka.topics import Lane
from services.recovery.starting_point import Committed

OLD, NEW = PlanVersion(0, "g", Leaf("A")), PlanVersion(1, "g.v1.a", Leaf("A"), "a", True, None)
A0, A1, INNER, B0 = ("a", 0), ("a", 1), ("g.1.A", 0), ("b", 0)


class Layout:
    """Tasks by the partitions that they read."""

    def __init__(self, *lanes: tuple[Lane, ...], sinks: int = 1) -> None:
        self._lanes = lanes
        self.tasks, self.sinks = len(lanes), sinks

    def lanes(self, task: int) -> tuple[Lane, ...]:
        return self._lanes[task]


class Versions:
    """Commits of both versions, instead of Kafka's."""

    def __init__(self) -> None:
        self.found: dict[str, dict[Lane, Committed]] = {"g": {}, NEW.group: {}}

    def commit(self, group: str, lane: Lane, offset: int, cut: int) -> None:
        self.found[group][lane] = Committed(offset, Commit("f", 1, cut, 0, 1, ()))

    def version(self, number: int, view: Any) -> PlanVersion:
        assert number == 0
        return OLD

    def layout(self, version: PlanVersion) -> Layout:
        return Layout((INNER, B0), (A0, A1)) if version is OLD else Layout((("g.v1.1.B", 0), A0, A1), (B0,))

    def reader(self) -> None:
        return None

    def commits(self, version: PlanVersion, lanes: Iterable[Lane], reader: None) -> dict[Lane, Committed]:
        return {lane: found for lane, found in self.found[version.group].items() if lane in lanes}


def following(versions: Versions, barrier: Barrier) -> Predecessor:
    found: Any = versions
    return Predecessor(found, NEW, barrier.view, lambda error: pytest.fail(str(error)))


def decided(cut: int) -> tuple[Any, ...]:
    proposal = Propose(id="a", plan="A", strategy="hybmig-bsc", fingerprint="f", tasks=0)
    return Opened(task=0, incarnation="t"), proposal, Cut(id="a", cut=cut)


def test_what_the_former_version_has_committed_bounds_the_next() -> None:
    versions, barrier = Versions(), Barrier()
    found = following(versions, barrier)
    found._look()
    assert (found.offset(A0), found.is_final(A0), found.limit, found.over) == (0, False, NEVER, False)
    versions.commit("g", A0, 7, 50)
    versions.commit("g", A1, 9, 60)  # the newest commit of a task counts
    found._look()
    assert (found.offset(A0), found.limit) == (7, NEVER)
    versions.commit("g", INNER, 3, 40)
    found._look()
    assert (found.offset(B0), found.limit, found.cut) == (0, 40, None)


def test_a_partition_is_final_when_its_task_has_reached_the_cut() -> None:
    versions, barrier = Versions(), Barrier()
    for lane, offset, cut in ((A0, 7, 100), (A1, 9, 99), (INNER, 3, 40), (B0, 5, 40)):
        versions.commit("g", lane, offset, cut)
    found = following(versions, barrier)
    found._look()
    assert not found.is_final(A0)
    for message in decided(100):
        barrier.apply(message)
    found._look()
    assert [found.is_final(lane) for lane in (A0, A1, B0)] == [True, False, False]
    assert (found.cut, found.limit, found.over) == (100, 40, False)
    for lane, offset in ((A1, 9), (INNER, 6), (B0, 8)):
        versions.commit("g", lane, offset, 100)
    found._look()
    assert (found.offset(B0), found.is_final(B0), found.limit, found.over) == (8, True, END, True)


def test_the_next_version_is_ready_when_its_results_have_caught_up(monkeypatch: Any) -> None:
    now = [0.0]
    monkeypatch.setattr(predecessor.time, "monotonic", lambda: now[0])
    versions, barrier = Versions(), Barrier()
    found = following(versions, barrier)

    def at(seconds: float, old: int, new: int) -> bool:
        now[0] = seconds
        for lane in (A0, A1, INNER, B0):
            versions.commit("g", lane, 1, old)
        versions.commit(NEW.group, B0, 1, 1_000_000)  # a task without results
        versions.commit(NEW.group, A0, 1, new)
        found._look()
        return found.ready

    assert not at(0.0, 1_000, 1_000), "nothing is known of a second ago"
    assert at(1.0, 2_000, 1_000)
    assert not at(1.5, 2_500, 999)
    assert not at(2.0, 3_000, 1_999)
    assert at(2.1, 3_100, 2_000)


def test_haste_ends_where_a_former_task_has_died(monkeypatch: Any) -> None:
    """Once the cut is known Kafka is asked often, but not for ever: a task that does not reach it has died."""
    now, pauses = [0.0], []

    class Stop:
        def wait(self, seconds: float) -> bool:
            pauses.append(seconds)
            now[0] += seconds
            return now[0] > 10

    monkeypatch.setattr(predecessor.time, "monotonic", lambda: now[0])
    versions, barrier = Versions(), Barrier()
    found: Any = following(versions, barrier)
    found._stop, found._reader = Stop(), BytesIO()
    for message in decided(100):
        barrier.apply(message)
    found._run()
    hurried = round(predecessor.SOON_S / predecessor.POLL_SOON_S)
    assert abs(pauses.count(predecessor.POLL_SOON_S) - hurried) <= 1
    assert pauses[-1] == predecessor.POLL_S


def test_each_commit_on_the_way_to_the_cut_wakes_the_tasks() -> None:
    """A task below may go on when its predecessor has come to the cut, before the former version is over."""
    versions, barrier = Versions(), Barrier()
    found: Any = following(versions, barrier)
    steps = [partial(versions.commit, "g", lane, 9, 100) for lane in (A0, A1, INNER, B0)]
    woken: list[int] = []

    class Stop:
        """Commits something in every second pause."""

        looks = 0

        def wait(self, seconds: float) -> bool:
            self.looks += 1
            if self.looks == 4:
                for message in decided(100):
                    barrier.apply(message)
            if self.looks % 2 == 0:
                steps[self.looks // 2 - 1]()
            return False

    stop = found._stop = Stop()
    found._reader = BytesIO()
    found.listen(lambda: woken.append(stop.looks))
    found._run()
    assert found.over
    assert woken == [4, 6, 8, 8]  # not while the cut is unknown
