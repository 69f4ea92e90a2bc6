"""What a task commits of the partitions that it reads."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import orjson
import pytest

from operators.engine.engine import Engine
from operators.state.checkpoint import Checkpoint
from services.kafka.records import RecordBatch
from services.kafka.topics import Lane
from services.process.metrics import WorkerMetrics
from services.process.settings import Start
from services.program.migrations import PlanChanges
from services.recovery.starting_point import Snapshot
from tests.broker_fixture import wait_until
from tests.services.one_task import LANES, QUERY, Kafka, Row, open_task

BEGIN = 1_700_000_000_000
WINDOW = 10_000


class FurtherBack(PlanChanges):
    """A task that needs an earlier horizon than before, as after a query has begun in a group."""

    def __init__(self, engine: Engine) -> None:
        self.hold: int | None = None
        self._engine = engine

    def look(self, committed: float, now: float) -> None:
        """Move the horizon back."""
        if self.hold is not None:
            self._engine.hold = self.hold


def batch(lane: Lane, begin: int, *times: int) -> RecordBatch:
    """Records with these times, which join with nothing."""
    rows = [Row(begin + n, orjson.dumps({"k": hash(lane), "at": BEGIN + at})) for n, at in enumerate(times)]
    return RecordBatch(*lane, begin, begin + len(rows), 0, rows, 40 * len(rows))


def test_an_earlier_horizon_commits_all_partitions() -> None:
    """A query began in a group, and only one partition moved in that commit. The next incarnation used to read the
    other partitions from their old starting points, and the new query lacked tuples."""
    kafka, engine = Kafka(), Engine(QUERY)
    changes = FurtherBack(engine)
    left, right = LANES
    with ThreadPoolExecutor(1) as executor:
        task = open_task(
            kafka,
            executor,
            WorkerMetrics("out"),
            threading.Event(),
            lambda task, outcome: None,
            changes=changes,
            engine=engine,
        )
        task.start()
        for n in range(5):
            for lane in LANES:
                task.offer(lane, batch(lane, n, n * WINDOW))
            wait_until(lambda n=n: all(committed(kafka, lane) > n for lane in LANES), "both are committed")
        assert needed(kafka, left) > 0 < needed(kafka, right), "the first record is not needed any more"
        count = len(kafka.deliveries)
        task.offer(left, batch(left, 5, 4 * WINDOW + 1))
        wait_until(lambda: len(kafka.deliveries) > count, "the left one is committed")
        assert kafka.deliveries[-1].offsets.keys() == {left}
        changes.hold = BEGIN + 1
        count = len(kafka.deliveries)
        task.offer(left, batch(left, 6, 4 * WINDOW + 2))
        wait_until(lambda: len(kafka.deliveries) > count, "the left one is committed once more")
        assert kafka.deliveries[-1].offsets.keys() == set(LANES)
        task.abandon()
        assert task.join(30)


class Epochs(PlanChanges):
    """Counts the task's epochs."""

    def __init__(self) -> None:
        self.count = 0

    def observe(self) -> None:
        """One more is over."""
        self.count += 1


@pytest.mark.parametrize("start", [Start.LATEST, Start.EARLIEST])
def test_a_start_at_the_end_of_the_log_is_recorded(start: Start) -> None:
    """Nothing was committed before the first record. Whatever arrived while such a task died or moved to another worker
    was never read, and nobody was told. A start at the beginning needs no record: it does not move."""
    kafka, latest = Kafka(), start is Start.LATEST
    with ThreadPoolExecutor(1) as executor:
        for life in range(2):
            changes, before = Epochs(), len(kafka.deliveries)
            task = open_task(
                kafka,
                executor,
                WorkerMetrics("out"),
                threading.Event(),
                lambda task, outcome: None,
                changes=changes,
                start=start,
            )
            assert task.recovery.source == ("window" if latest and life else "fresh")
            first = {lane: lane_start.offset for lane, lane_start in task.recovery.lanes.items()}
            assert first == dict.fromkeys(LANES, 1_000 if latest else 0)
            task.start()
            wait_until(lambda changes=changes: changes.count > 5, "some epochs are over")
            task.abandon()
            assert task.join(30)
            assert len(kafka.deliveries) - before == (latest and not life), "nothing is committed twice"
            kafka.end += 500
    assert {lane: committed(kafka, lane) for lane in LANES} == dict.fromkeys(LANES, 1_000 if latest else 0)


class Due:
    """A writer for which a snapshot is due at random; notes by how much each is ahead of the commits (ms)."""

    ready = True
    failed = False

    def __init__(self, kafka: Kafka) -> None:
        self.ahead: list[int] = []
        self._kafka = kafka
        self._random = random.Random(1)

    @property
    def due(self) -> bool:
        """Asked after each epoch, also where the epoch was not committed."""
        return self._random.random() < 0.3

    def write(self, snapshot: Snapshot, checkpoint: Checkpoint) -> None:
        """Compare it with the newest commit."""
        newest = max(found.message.cut for found in self._kafka.offsets.values())
        self.ahead.append(snapshot.cut - newest)

    def add(self, checkpoint: Checkpoint) -> None:
        """Blocks before the next snapshot."""

    def close(self) -> None:
        """Nothing to close."""


def test_no_snapshot_is_ahead_of_the_commits() -> None:
    """Epochs without results are shorter than commits are apart. A recovery could not use such a snapshot."""
    kafka = Kafka()
    due = Due(kafka)
    with ThreadPoolExecutor(1) as executor:
        task = open_task(
            kafka,
            executor,
            WorkerMetrics("out"),
            threading.Event(),
            lambda task, outcome: None,
            snapshots=cast(Any, due),
        )
        task.start()
        for n in range(100):
            for lane in LANES:
                task.offer(lane, batch(lane, n, n))
            time.sleep(0.01)
        wait_until(lambda: len(due.ahead) > 3, "snapshots are written")
        task.abandon()
        assert task.join(30)
    assert set(due.ahead) == {0}


def committed(kafka: Kafka, lane: Lane) -> int:
    """The partition's next record."""
    return kafka.offsets[lane].offset if lane in kafka.offsets else 0


def needed(kafka: Kafka, lane: Lane) -> int:
    """The offset from which a recovery would read the partition."""
    return min(point.offset for point in kafka.offsets[lane].message.points)
