"""What a task takes of its partitions while the former plan version still runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from schemas.columns import Batch
from services.kafka.records import RecordBatch
from services.kafka.topics import Lane
from services.process.metrics import WorkerMetrics
from services.task.context import TaskContext
from tests.services.one_task import Kafka, Row, make_context


class Former:
    """The former version, of whose commits the test decides."""

    def __init__(self) -> None:
        self.committed, self.is_over = 0, False

    def offset(self, lane: Lane) -> int:
        """What has been committed."""
        return self.committed

    def is_final(self, lane: Lane) -> bool:
        """Whether that is all."""
        return self.is_over


class Feedback:
    """Notes what it is shown."""

    foresees = False

    def __init__(self) -> None:
        self.seen: list[int] = []

    def foresee(self, stream: str, batch: Batch) -> None:
        """The keys."""
        self.seen += batch.columns["k"].values.tolist()


def arrive(context: TaskContext, first: int, stop: int) -> None:
    """Records of these offsets, whose keys are their offsets, arrive in a batch."""
    records = [Row(offset, b'{"k": %d, "at": %d}' % (offset, 1_000 + offset)) for offset in range(first, stop)]
    lane = context.lanes["l", 0]
    lane.retained.append(RecordBatch("l", 0, first, stop, 0, records, 1))
    context.take(lane)


def test_feedback_sees_each_record_that_may_not_be_taken_yet_once() -> None:
    feedback: Any = Feedback()
    former: Any = Former()
    with ThreadPoolExecutor(1) as executor:
        context = make_context(Kafka(), executor, WorkerMetrics("q"))
    context.predecessor, context.feedback = former, feedback
    lane = context.lanes["l", 0]
    former.committed = 3
    arrive(context, 0, 5)
    assert (lane.position, feedback.seen) == (3, []), "the cut is not known"
    feedback.foresees = True
    arrive(context, 5, 8)
    assert (lane.position, feedback.seen) == (3, [3, 4, 5, 6, 7])
    former.committed = 6
    arrive(context, 8, 10)
    assert (lane.position, feedback.seen) == (6, [3, 4, 5, 6, 7, 8, 9])
    former.is_over = True
    context.take(lane)
    assert (lane.position, len(feedback.seen)) == (10, 7)
