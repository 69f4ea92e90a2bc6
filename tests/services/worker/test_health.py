"""What /healthz says of tasks: real ones in a task manager; what Kafka does, the test says."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest
from faust.types import TP

from services.kafka.records import RecordBatch
from services.kafka.topics import Lane
from services.placement.tasks import Layout
from services.process.metrics import WorkerMetrics
from services.task.spec import TaskOutcome
from services.task.task import Task
from services.worker.assignment import SILENT_S, TaskAssignment
from services.worker.task_manager import SILENCE_WARNING_S, TaskManager
from tests.services.one_task import LANES, SETTINGS, SPEC, Kafka, Row, open_task

DEADLINE_S = 30.0
LONG_S = 3 * SETTINGS.patience_ms / 1000
"""Three times as long as a task may stand still."""


class Worker:
    """A task manager of one task."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self._executor = ThreadPoolExecutor(1)
        self._metrics = WorkerMetrics("out")
        layout = Layout({"l": 1, "r": 1}, False)
        self.task_manager = TaskManager(SPEC, layout, self._metrics, self._open, lambda number: None, self._fatal)
        self.task_manager.consumer = kafka
        self._watcher = asyncio.get_running_loop().create_task(self.task_manager.watch())

    def _fatal(self, error: BaseException) -> None:
        raise error

    def _open(
        self,
        number: int,
        give_up: threading.Event,
        ended: Callable[[Task, TaskOutcome], None],
        changed: Callable[[], None],
    ) -> Task:
        return open_task(self.kafka, self._executor, self._metrics, give_up, ended, changed)

    @property
    def assignment(self) -> TaskAssignment:
        """The task's."""
        (assignment,) = self.task_manager.assignments()
        return assignment

    def feed(self, lane: Lane, *times: int) -> None:
        """The next records of a partition."""
        reader = self.assignment.readers[lane]
        rows = [
            Row(reader.offset + n, orjson.dumps({"k": 1, "at": 1_700_000_000_000 + at})) for n, at in enumerate(times)
        ]
        end = reader.offset + len(rows)
        self.task_manager.deliver(RecordBatch(*lane, reader.offset, end, reader.seek, rows, 40 * len(rows)))

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < DEADLINE_S, f"waited in vain: {what}; {self.task_manager.status()}"
            await asyncio.sleep(0.01)

    async def stays_healthy(self, tick: Callable[[], None] = lambda: None) -> None:
        """For longer than a task may stand still."""
        began = time.monotonic()
        while time.monotonic() - began < LONG_S:
            tick()
            assert self.task_manager.unhealthy_reason() == ""
            await asyncio.sleep(0.05)

    async def start(self) -> None:
        """Until the task is there."""
        await self.task_manager.assigned([TP(*lane) for lane in LANES])
        await self.until(lambda: self.assignment.task is not None and self.assignment.readers, "a task")

    async def run(self) -> None:
        """Until the task runs."""
        await self.start()
        await self.until(lambda: self.assignment.task is not None and self.assignment.task.running, "a running task")

    async def close(self) -> None:
        """End it."""
        self._watcher.cancel()
        self.kafka.open_.set()
        await self.task_manager.close()
        self._executor.shutdown()


def live(story: Callable[[Worker], Awaitable[None]], kafka: Kafka | None = None) -> None:
    """One life of a worker."""

    async def lives() -> None:
        worker = Worker(kafka or Kafka())
        try:
            await story(worker)
        finally:
            await worker.close()

    asyncio.run(lives())


def test_a_task_without_input_is_healthy() -> None:
    async def story(worker: Worker) -> None:
        await worker.run()
        await worker.stays_healthy()

    live(story)


def test_a_task_that_commits_nothing_of_its_input_is_ill(caplog: pytest.LogCaptureFixture) -> None:
    """It answered 200 for as long as the task ran, whatever came of it."""

    async def story(worker: Worker) -> None:
        await worker.run()
        await worker.stays_healthy()
        worker.kafka.open_.clear()
        worker.feed(("l", 0), 0, 10)
        began = time.monotonic()
        await worker.until(worker.task_manager.unhealthy_reason, "the task is ill")
        # It looks every 50 ms, and counts from when it last saw that nothing waits.
        assert time.monotonic() - began > SETTINGS.patience_ms / 1000 - 0.1, "since the input came, not before"
        assert "task 0: input waits, and nothing was committed: the task is delivering to Kafka; " in (
            worker.task_manager.unhealthy_reason()
        )
        assert "(since 20" in worker.task_manager.unhealthy_reason()
        await worker.until(lambda: "makes no progress" in caplog.text, "the log says so")
        worker.kafka.open_.set()
        await worker.until(lambda: not worker.task_manager.unhealthy_reason(), "the task is well again")
        await worker.until(lambda: "makes progress again" in caplog.text, "the log says so")
        assert caplog.text.count("makes no progress") == 1

    caplog.set_level("INFO", "weir")
    live(story)


def test_commits_that_fail_again_and_again_are_no_progress() -> None:
    """Every life reads again what the last one read."""

    async def story(worker: Worker) -> None:
        await worker.run()
        worker.feed(("l", 0), 0, 10)
        worker.feed(("r", 0), 0, 10)
        await worker.until(lambda: len(worker.kafka.offsets) == 2, "a commit")
        worker.kafka.refuses = True
        refused_s = time.monotonic()
        worker.feed(("l", 0), 20)
        lives: set[Task] = set()

        def unhealthy_reason() -> str:
            """Reads again what each life asks for."""
            assignment = worker.assignment
            if assignment.task is not None and assignment.task.outcome is None and assignment.task not in lives:
                lives.add(assignment.task)
                for lane in LANES:
                    if assignment.readers[lane].offset < 2:
                        worker.feed(lane, *[0, 10][assignment.readers[lane].offset :])
                worker.feed(("l", 0), 20)
            return worker.task_manager.unhealthy_reason()

        await worker.until(lambda: unhealthy_reason() and len(lives) > 1, "it is ill, and has lived again")
        assert "epoch not committed: not enough replicas" in worker.task_manager.unhealthy_reason()
        assert "failed" in worker.task_manager.unhealthy_reason()
        # The end of a life looked like having nothing to do.
        assert worker.assignment.progress.since_s <= refused_s + 0.4  # on a busy machine

    live(story)


def test_waiting_for_a_silent_partition_is_healthy_and_said() -> None:
    async def story(worker: Worker) -> None:
        await worker.run()
        worker.feed(("r", 0), 5)
        at = 0

        def more() -> None:
            nonlocal at
            at += 10
            worker.feed(("l", 0), at)

        await worker.stays_healthy(more)
        await worker.stays_healthy()
        worker.assignment.readers["r", 0].last_record_s -= SILENT_S
        (task,) = worker.task_manager.status()
        assert task["state"] == "running"
        assert task["waits_for"].startswith("held back by r[0], silent since 20")

    live(story)


def test_partitions_that_fall_silent_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """At the end of the input there was one for each."""

    async def story(worker: Worker) -> None:
        await worker.run()
        for lane in LANES:
            worker.feed(lane, 0, 10)
        await worker.until(
            lambda: worker.assignment.task and worker.assignment.task.slowest == set(LANES), "both are the last"
        )
        for n, lane in enumerate(LANES):
            worker.assignment.readers[lane].last_record_s -= 1.1 * SILENCE_WARNING_S - n
        await worker.until(lambda: "are silent" in caplog.text, "a line")
        await worker.stays_healthy()
        (line,) = [record for record in caplog.records if "silent" in record.getMessage()]
        assert line.fields["partitions"] == "l[0], r[0]"  # type: ignore[attr-defined]

    caplog.set_level("INFO", "weir")
    live(story)


def test_a_recovery_that_reads_is_healthy_and_one_that_does_not_is_ill() -> None:
    async def first(worker: Worker) -> None:
        await worker.run()
        for at in range(0, 400, 10):
            worker.feed(("l", 0), at)
        worker.feed(("r", 0), 400)
        await worker.until(lambda: worker.assignment.task and worker.assignment.task.committed > 0, "a commit")
        await worker.until(lambda: worker.kafka.offsets.keys() == set(LANES), "of both")

    async def second(worker: Worker) -> None:
        await worker.start()
        assert worker.assignment.task is not None
        at = 0

        def slowly() -> None:
            nonlocal at
            if at < 390:
                worker.feed(("l", 0), at)
                at += 10

        await worker.stays_healthy(slowly)
        (task,) = worker.task_manager.status()
        assert task["state"] == "recovering"
        assert "records of l[0], r[0] that are to be read again" in task["waits_for"]
        await worker.until(worker.task_manager.unhealthy_reason, "it is ill")
        assert "the recovery makes no progress: it waits for" in worker.task_manager.unhealthy_reason()

    kafka = Kafka()
    live(first, kafka)
    assert kafka.offsets["l", 0].offset == 40
    live(second, kafka)


def test_nothing_read_yet_is_no_event_time() -> None:
    """/healthz said "cut": 0, and the metrics a watermark of 1970 that was 56 years late."""

    async def story(worker: Worker) -> None:
        await worker.run()
        await worker.stays_healthy()
        (task,) = worker.task_manager.status()
        assert task["cut"] is None
        assert b"weir_watermark_milliseconds{" not in worker._metrics.page()
        assert b"weir_watermark_lag_seconds{" not in worker._metrics.page()
        for lane in LANES:
            worker.feed(lane, 0, 10)
        await worker.until(lambda: b"weir_watermark_milliseconds{" in worker._metrics.page(), "a watermark")
        (task,) = worker.task_manager.status()
        assert task["cut"] == 1_700_000_000_010

    live(story)


def test_an_event_loop_that_stands_still_is_ill() -> None:
    async def story(worker: Worker) -> None:
        await worker.run()
        assert worker.task_manager.unhealthy_reason() == ""
        told = threading.Event()

        def ask() -> None:
            # The task may be reported unhealthy first: its output is not committed while the loop stands still.
            until = time.monotonic() + DEADLINE_S
            while time.monotonic() < until and not told.is_set():
                if worker.task_manager.unhealthy_reason().startswith("the worker's event loop has stood still for "):
                    told.set()

        asker = threading.Thread(target=ask)
        asker.start()
        assert told.wait(DEADLINE_S)  # on the loop's thread
        asker.join()

    live(story)
