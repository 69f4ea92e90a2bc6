"""When a task's health problem is over, and when it is reported."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from faust.types import TP

from schemas.errors import BrokerError, SpillError, WeirError
from schemas.language.program import parse_program
from services.delivery.sink import Aborted, Fenced
from services.kafka.topics import Lane, OutputTopics
from services.placement.tasks import Layout
from services.process.metrics import WorkerMetrics
from services.process.security import KafkaClients
from services.process.settings import WorkerSettings
from services.task.spec import TaskSpec, streams_by_topic
from services.task.task import Task
from services.worker import task_manager as manager
from services.worker.assignment import PartitionReader, TaskProgress
from services.worker.health_problem import ANY_COMMIT, HealthProblem
from services.worker.task_manager import SETTLE_S, TaskManager
from services.worker.worker import Worker

PATIENCE_S = 60.0


def test_a_task_that_waits_for_a_schema_makes_no_progress() -> None:
    """Other partitions of its are read on, and their positions are committed."""
    progress = TaskProgress()
    task: Any = SimpleNamespace(
        commit_progress=(0, 0), committed_pending=0, read=0, running=True, has_work=True, missing_schema=""
    )
    for now in range(1, 4):
        task.commit_progress, task.missing_schema = (now, 0), "schema 7 is unknown" if now == 3 else ""
        progress.update(task, failing=False, now=float(now))
    assert progress.since_s == 2.0


def test_it_lasts_until_the_task_has_come_further() -> None:
    problem = HealthProblem(100.0, 1_700_000_000.5, "no room", 40)
    assert not problem.is_over(39, 0.0, 0.0, PATIENCE_S)
    problem.failed_again("still no room", 30)
    assert (problem.failures, problem.reason, problem.over_at) == (2, "still no room", 40)
    assert not problem.is_over(39, PATIENCE_S, 0.0, PATIENCE_S)
    assert problem.is_over(40, 0.0, 0.0, PATIENCE_S)
    assert problem.is_over(ANY_COMMIT, PATIENCE_S + 0.1, 0.0, PATIENCE_S)
    assert not problem.is_over(ANY_COMMIT, PATIENCE_S + 0.1, PATIENCE_S + 0.1, PATIENCE_S), "it runs without progress"
    assert problem.since == "2023-11-14T22:13:20Z"


def test_it_is_reported_when_it_has_lasted() -> None:
    problem = HealthProblem(100.0, 0.0, "no room", 40)
    assert not problem.lasts_too_long(100.0 + PATIENCE_S, PATIENCE_S)
    assert problem.lasts_too_long(100.1 + PATIENCE_S, PATIENCE_S)


FULL = "spill folder x: block 'b' cannot be written: No space left; the disk is full: free some room"

QUERY = """
CREATE STREAM l (k BIGINT, at TIMESTAMP) WITH (topic = 'l', format = 'json', timestamp = 'at');
INSERT INTO 'out' SELECT A.k FROM l A [RANGE 1 SECOND], l B [RANGE 1 SECOND] WHERE A.k = B.k
"""


class Member:
    """A consumer that is in the group, and reads nothing; `asked` is how often it asked for another assignment."""

    asked = 0

    async def seek_to(self, positions: object) -> None:
        """Nothing to read."""

    async def rejoin(self) -> None:
        """Noted."""
        self.asked += 1

    def generation(self) -> tuple[str, int]:
        """It has joined."""
        return "member", 1

    def caught_up_ms(self, tp: TP, offset: int) -> int | None:
        """Nothing is known."""
        return None


def fail(error: BaseException) -> None:
    raise error


def task_manager_of(
    open_task: Callable[..., Task],
    fatal: Callable[[BaseException], None] = fail,
    partitions: int = 1,
    idle_timeout_ms: int | None = None,
) -> TaskManager:
    """A task manager that may get a task per partition."""
    (query,) = parse_program(QUERY).queries
    settings = WorkerSettings(KafkaClients("localhost:1"), "g", idle_timeout_ms=idle_timeout_ms)
    outputs = OutputTopics("out", "out.late", "out.dead", {}, {})
    streams = streams_by_topic(query.streams())
    spec = TaskSpec(query, None, streams, "f", "c", outputs, settings)
    layout, metrics = Layout({"l": partitions}, partitions > 1), WorkerMetrics("out")
    task_manager = TaskManager(spec, layout, metrics, open_task, lambda number: None, fatal)
    task_manager.consumer = Member()
    return task_manager


async def failing(shown: float) -> tuple[str, dict[str, Any]]:
    """What is said of a task that could not be opened three times, for want of room."""

    def open_task(*given: object) -> Task:
        raise SpillError(FULL)

    task_manager = task_manager_of(open_task)
    await task_manager.assigned([TP("l", 0)])
    (assignment,) = task_manager.assignments()
    began = time.monotonic()
    while assignment.health_problem is None or assignment.health_problem.failures < 3:
        assert time.monotonic() - began < 60, "it fails three times"
        await asyncio.sleep(0.01)
    assignment.health_problem.first_failure_s -= shown
    found = task_manager.unhealthy_reason(), assignment.status()
    await task_manager.close()
    return found


@pytest.mark.parametrize("lasted_s", [0.0, PATIENCE_S + 2.0])
def test_the_task_manager_reports_what_keeps_a_task_from_running(lasted_s: float) -> None:
    """Of the task at once, and of the worker when it has lasted."""
    unhealthy_reason, task = asyncio.run(failing(lasted_s))
    assert (task["state"], task["problem"]) == ("opening", FULL)
    assert task["failures"] >= 3
    since = task["since"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", since)
    if lasted_s:
        assert re.fullmatch(re.escape(f"task 0: {FULL} (since {since}, failed ") + r"\d+ times\)", unhealthy_reason)
    else:
        assert unhealthy_reason == ""


def test_a_task_that_is_taken_over_while_it_is_opened() -> None:
    """What another worker fences is left to it, and what Kafka refuses to end is tried again: it ended the worker."""

    async def opened() -> None:
        errors: list[WeirError] = [Aborted("not yet"), Aborted("not yet"), Fenced("by a newer one")]

        def open_task(*given: object) -> Task:
            raise errors.pop(0)

        task_manager = task_manager_of(open_task)
        member = cast(Member, task_manager.consumer)
        await task_manager.assigned([TP("l", 0)])
        (assignment,) = task_manager.assignments()
        began = time.monotonic()
        while not member.asked:
            assert time.monotonic() - began < 60, "the group is asked whose the task is"
            await asyncio.sleep(0.01)
        assert (assignment.fenced, assignment.failures, errors) == (True, 2, [])
        await task_manager.close()

    asyncio.run(opened())


def test_an_error_that_nobody_expects_ends_the_worker() -> None:
    """asyncio kept it to itself: the task was never opened, and nothing said so. Found by torture."""

    async def opened() -> list[BaseException]:
        def open_task(*given: object) -> Task:
            raise IndexError("of the opening")

        told: list[BaseException] = []
        task_manager = task_manager_of(open_task, told.append)
        await task_manager.assigned([TP("l", 0)])
        began = time.monotonic()
        while not told:
            assert time.monotonic() - began < 60, "the worker is told"
            await asyncio.sleep(0.01)
        await task_manager.close()
        return told

    (error,) = asyncio.run(opened())
    assert repr(error) == "IndexError('of the opening')"


class EndingTask:
    """A task that has been asked to end, and ends when the test lets it."""

    outcome = None

    def __init__(self, number: int, asked: threading.Event, may_end: threading.Event) -> None:
        self.number = number
        self._asked = asked
        self._may_end = may_end

    def finish(self) -> None:
        """It is asked to end."""
        self._asked.set()

    def join(self, seconds: float) -> bool:
        """It ends when it may."""
        return self._may_end.wait(seconds)


def test_partitions_may_move_while_the_worker_ends() -> None:
    """While the first of two tasks ended, `close` took the second: a KeyError, shown as Faust's traceback. Found by
    torture."""
    asked, may_end = threading.Event(), threading.Event()

    def open_task(*given: object) -> Task:
        raise BrokerError("not yet")

    async def moved() -> None:
        task_manager = task_manager_of(open_task, partitions=3)
        await task_manager.assigned([TP("l", number) for number in range(3)])
        for assignment in task_manager.assignments():
            assignment.task = cast(Task, EndingTask(assignment.number, asked, may_end))
        moving = asyncio.create_task(task_manager.assigned([TP("l", 0)]))
        while not asked.is_set():
            await asyncio.sleep(0)
        closing = asyncio.create_task(task_manager.close())
        while task_manager.assignments():
            await asyncio.sleep(0)
        may_end.set()
        await asyncio.gather(moving, closing)
        assert task_manager.assignments() == []

    asyncio.run(moved())


class SettlingTask:
    """One of several tasks, none of which delivers before all have been asked to.

    Args:
        unasked: the numbers of the others that have not been asked.
    """

    outcome = None

    def __init__(self, number: int, unasked: set[int]) -> None:
        self.number = number
        self._unasked = unasked
        unasked.add(number)

    def flush(self) -> Callable[[], bool]:
        """It is asked to deliver."""
        self.finish()
        return lambda: self.join(0)

    def finish(self) -> None:
        """It is asked to end."""
        self._unasked.discard(self.number)

    def join(self, seconds: float) -> bool:
        """Whether all have been asked."""
        return not self._unasked


def test_tasks_settle_though_asyncios_threads_are_busy() -> None:
    """asyncio has 6 threads on two cores, also for questions to Kafka. A task waited for one of them before its 10 s
    began, so the rebalance of a worker with many tasks could take longer than its group waits for."""
    may_end = threading.Event()

    def open_task(*given: object) -> Task:
        raise BrokerError("not yet")

    async def settled() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, may_end.wait, 2 * SETTLE_S)
        unasked: set[int] = set()
        task_manager = task_manager_of(open_task, partitions=20)
        await task_manager.assigned([TP("l", number) for number in range(20)])
        for assignment in task_manager.assignments():
            assignment.task = cast(Task, SettlingTask(assignment.number, unasked))
        began = time.monotonic()
        await task_manager.settle()
        await task_manager.close()
        assert time.monotonic() - began < SETTLE_S / 2
        assert not busy.done()
        may_end.set()
        await busy

    asyncio.run(settled())


class OpenedTask(EndingTask):
    """A task that was opened too late; it releases what it holds when it runs."""

    def __init__(self, number: int, asked: threading.Event, may_end: threading.Event) -> None:
        super().__init__(number, asked, may_end)
        self.calls: list[str] = []

    def abandon(self) -> None:
        """It must deliver nothing."""
        self.calls.append("abandon")

    def start(self) -> None:
        """It runs, and ends."""
        self.calls.append("start")
        self._may_end.set()


@pytest.mark.parametrize("closes", [True, False])
def test_a_task_that_is_opened_too_late_releases_what_it_holds(closes: bool) -> None:
    """The worker ends, or its group takes the task away and gives it back, while a thread opens the task. The thread
    wrote where the worker had just deleted, and the state table stayed locked. Found by torture."""
    opening, may_open = threading.Event(), threading.Event()
    tasks: list[OpenedTask] = []

    def open_task(number: int, give_up: threading.Event, *given: object) -> Task:
        assert not tasks or tasks[-1].calls, "the former task has been ended before"
        opening.set()
        if not tasks:
            assert give_up.wait(60), "the thread is told"
            assert may_open.wait(60)
        tasks.append(OpenedTask(number, threading.Event(), threading.Event()))
        if len(tasks) == 1:
            return cast(Task, tasks[0])
        raise Aborted("enough")

    async def moved() -> None:
        task_manager = task_manager_of(open_task)
        await task_manager.assigned([TP("l", 0)])
        while not opening.is_set():
            await asyncio.sleep(0)
        if closes:
            ending = asyncio.create_task(task_manager.close())
            await asyncio.sleep(0.1)
            assert not ending.done(), "it waits for the thread"
            may_open.set()
            await ending
        else:
            await task_manager.assigned([])
            await task_manager.assigned([TP("l", 0)])
            await asyncio.sleep(0.1)
            may_open.set()
            while len(tasks) < 2:
                await asyncio.sleep(0)
            await task_manager.close()
        assert tasks[0].calls == ["abandon", "start"]

    asyncio.run(moved())


def test_a_task_that_is_taken_away_meanwhile_is_not_opened_again() -> None:
    """While its table was emptied."""
    opened: list[int] = []
    wiping, may_wipe = threading.Event(), threading.Event()

    def open_task(number: int, *given: object) -> Task:
        opened.append(number)
        raise BrokerError("not yet")

    def wipe(number: int) -> None:
        wiping.set()
        assert may_wipe.wait(60)

    async def moved() -> None:
        task_manager = task_manager_of(open_task)
        task_manager._wipe = wipe
        await task_manager.assigned([TP("l", 0)])
        (assignment,) = task_manager.assignments()
        while not opened:
            await asyncio.sleep(0)
        emptying = asyncio.create_task(task_manager._wipe_and_reopen(assignment))
        while not wiping.is_set():
            await asyncio.sleep(0)
        await task_manager.assigned([])
        before = len(opened)
        may_wipe.set()
        await emptying
        await asyncio.sleep(0.2)
        assert len(opened) == before
        await task_manager.close()

    asyncio.run(moved())


class AtTheEnd(Member):
    """A consumer that has read the partition to its end, offset 5."""

    def caught_up_ms(self, tp: TP, offset: int) -> int | None:
        """The broker has just said so."""
        return int(time.time() * 1000) if offset == 5 else None


def test_a_partition_is_not_idle_while_its_records_are_on_their_way() -> None:
    """The consumer had read on to the end, and the task had yet to be given the records. They were late by then."""
    idle: list[Lane] = []
    task: Any = SimpleNamespace(paused=frozenset(), mark_idle=idle.append)

    def open_task(*given: object) -> Task:
        raise BrokerError("not yet")

    async def checked() -> None:
        task_manager = task_manager_of(open_task, idle_timeout_ms=1_000)
        task_manager.consumer = AtTheEnd()
        reader = PartitionReader(3, last_record_s=100.0)
        task_manager._check_idle(task, ("l", 0), reader, 102.0)
        assert idle == []
        reader.offset = 5
        task_manager._check_idle(task, ("l", 0), reader, 102.0)
        assert idle == [("l", 0)]
        await task_manager.close()

    asyncio.run(checked())


class StuckTask(EndingTask):
    """A task that computes, and looks for nothing meanwhile."""

    recovery = SimpleNamespace(lanes={})

    def start(self) -> None:
        """It runs."""

    def abandon(self) -> None:
        """It does not notice."""


def test_a_task_waits_for_the_thread_of_its_former_incarnation(monkeypatch: pytest.MonkeyPatch) -> None:
    """After twice SETTLE_S it was opened beside it: it found the state table locked, and had no disk until the next
    restart."""
    monkeypatch.setattr(manager, "SETTLE_S", 0.05)
    may_end = threading.Event()
    ended_before: list[bool] = []

    def open_task(number: int, *given: object) -> Task:
        ended_before.append(may_end.is_set())
        if len(ended_before) == 1:
            return cast(Task, StuckTask(number, threading.Event(), may_end))
        raise Aborted("enough")

    async def until(condition: Callable[[], bool]) -> None:
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < 60
            await asyncio.sleep(0)

    async def moved() -> None:
        task_manager = task_manager_of(open_task)
        await task_manager.assigned([TP("l", 0)])
        (first,) = task_manager.assignments()
        await until(lambda: first.task is not None)
        await task_manager.assigned([])
        await task_manager.assigned([TP("l", 0)])
        (second,) = task_manager.assignments()
        await until(lambda: "former incarnation" in second.waits_for())
        assert ended_before == [False]
        may_end.set()
        await until(lambda: len(ended_before) > 1)
        assert ended_before[1]
        await task_manager.close()

    asyncio.run(moved())


@pytest.mark.parametrize("member", ["member", "another"])
def test_a_rebalance_does_not_wait_for_tasks_to_end(monkeypatch: pytest.MonkeyPatch, member: str) -> None:
    """No heartbeats are sent before the group's assignment has been taken: a task that took longer than the session to
    end, or many one after the other, put the worker out of its group, with all its other tasks."""
    monkeypatch.setattr(manager, "SETTLE_S", 2.0)
    may_end = threading.Event()
    opened: list[int] = []

    def open_task(number: int, *given: object) -> Task:
        opened.append(number)
        return cast(Task, StuckTask(number, threading.Event(), may_end))

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0)

    async def moved() -> None:
        task_manager = task_manager_of(open_task, partitions=3)
        await task_manager.assigned([TP("l", number) for number in range(3)])
        await until(lambda: all(one.task is not None for one in task_manager.assignments()))
        consumer: Any = task_manager.consumer
        consumer.generation = lambda: (member, 2)
        began = time.monotonic()
        await task_manager.assigned([TP("l", 0)])
        assert time.monotonic() - began < 1.0
        (left,) = task_manager.assignments()
        assert (left.task is None) == (member == "another"), "another worker may have run it"
        closing = asyncio.create_task(task_manager.close())
        await asyncio.sleep(0.2)
        assert not closing.done(), "their open epochs are delivered, if Kafka answers"
        may_end.set()
        await closing
        assert not task_manager.has_threads
        assert sorted(opened) == [0, 1, 2]

    asyncio.run(moved())


def test_tasks_begin_anew_once_all_threads_have_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """When partitions were added, or the group did not answer, the worker's next tasks did not wait for a thread that
    was computing: they had no disk until the next restart."""
    monkeypatch.setattr(manager, "SETTLE_S", 0.05)
    may_end = threading.Event()
    ended_before: list[bool] = []
    (query,) = parse_program(QUERY).queries
    worker: Any = Worker(query, WorkerSettings(KafkaClients("localhost:1"), "g"))

    def open_task(number: int, *given: object) -> Task:
        return cast(Task, StuckTask(number, threading.Event(), may_end))

    async def next_runner(patient: bool) -> Any:
        ended_before.append(may_end.is_set())
        return SimpleNamespace(task_manager=task_manager_of(open_task))

    async def until_begun_anew(runner: Any) -> str:
        if len(ended_before) == 1:
            await runner.task_manager.assigned([TP("l", 0)])
            while runner.task_manager.assignments()[0].task is None:
                await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(1.0, may_end.set)
        else:
            worker._stop.set()
        return ""

    async def end(runner: Any) -> None:
        await runner.task_manager.close()

    worker._next_runner, worker._until_stopped, worker._end = next_runner, until_begun_anew, end
    asyncio.run(worker._main(tmp_path))
    assert ended_before == [False, True]
