"""A task of an ending plan takes only the source records before its end, in this incarnation or a later one; and when
it calls its changes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from schemas.columns import Batch
from services.kafka.records import RecordBatch
from services.kafka.topics import Lane
from services.process.metrics import WorkerMetrics
from services.program.migrations import PlanChanges
from services.task.spec import TaskOutcome
from tests.services.one_task import LANES, Kafka, Row, open_task

BEGIN = 1_700_000_000_000
CUT = BEGIN + 1_000
DEADLINE_S = 30.0


class Ending(PlanChanges):
    """Another plan takes over at `CUT`."""

    def __init__(self) -> None:
        self.concluded = threading.Event()
        self.made = 0
        self.observed: list[tuple[int, int]] = []
        self.kafka: Kafka | None = None

    def advanced(self, results: Batch, now: float) -> None:
        """Count the results that the engine has made."""
        self.made += len(results)

    def limit(self, watermark: int, now: float) -> int:
        """The cut, which no epoch passes."""
        return min(watermark, CUT)

    def ends_at(self, cut: int) -> bool:
        """Whether the task has reached the cut."""
        return cut >= CUT

    def observe(self) -> None:
        """Note how many results have been made, and how many delivered."""
        assert self.kafka is not None
        self.observed.append((self.made, delivered(self.kafka)))

    def conclude(self, now: float) -> None:
        """Note that the task has ended."""
        self.concluded.set()


def records(lane: Lane, begin: int, *values: dict[str, Any] | None) -> RecordBatch:
    """Records as a consumer reads them; None stands for garbage."""
    rows = [Row(begin + n, b"garbage" if v is None else orjson.dumps(v)) for n, v in enumerate(values)]
    return RecordBatch(*lane, begin, begin + len(rows), 0, rows, 40 * len(rows))


def delivered(kafka: Kafka) -> int:
    """How many results have been delivered."""
    return sum(len(found.offsets) - 1 for delivery in kafka.deliveries for _, found in delivery.results)


def live(kafka: Kafka, *batches: RecordBatch, changes: Ending | None = None) -> TaskOutcome:
    """Run one incarnation of the task, which is offered these batches before it starts."""
    outcomes: list[TaskOutcome] = []
    changes = changes or Ending()
    changes.kafka = kafka
    with ThreadPoolExecutor(1) as executor:
        task = open_task(
            kafka,
            executor,
            WorkerMetrics("out"),
            threading.Event(),
            lambda task, outcome: outcomes.append(outcome),
            changes=changes,
        )
        for batch in batches:
            task.offer((batch.topic, batch.partition), batch)
        task.start()
        assert changes.concluded.wait(DEADLINE_S)
        assert task.join(DEADLINE_S)
    return outcomes[0]


def test_a_later_life_takes_nothing_that_comes_after_its_end() -> None:
    """The next plan's tasks may have started where the first incarnation ended: both would report the same records."""
    kafka = Kafka()
    left, right = LANES
    live(
        kafka,
        *(records(lane, 0, {"k": 1, "at": BEGIN + 10}, None, {"k": 1, "at": CUT + 500}) for lane in LANES),
    )
    ended = {lane: found.offset for lane, found in kafka.offsets.items()}
    assert ended == {left: 3, right: 3}
    # The plan that takes over waits for the end of every partition, so the last epoch commits it.
    assert [len(delivery.rejected) for delivery in kafka.deliveries if delivery.offsets][-1] > 0
    assert kafka.deliveries[-1].offsets.keys() == set(LANES)
    assert sum(len(delivery.rejected) for delivery in kafka.deliveries) == 2
    kafka.deliveries.clear()
    # A worker that has not left the plan yet opens the task again; it replays its windows and then reads new records.
    whole = ({"k": 1, "at": BEGIN + 10}, None, {"k": 1, "at": CUT + 500}, None, {"k": 1, "at": CUT + 600}, None)
    live(kafka, *(records(lane, 0, *whole) for lane in LANES))
    assert {lane: found.offset for lane, found in kafka.offsets.items()} == ended
    assert [list(delivery.rejected) for delivery in kafka.deliveries] == [[]]


def test_results_do_not_wait_for_measurements() -> None:
    """A measurement takes some milliseconds, which would delay the results of its epoch."""
    kafka, changes = Kafka(), Ending()
    values = [{"k": 1, "at": BEGIN + 10}, {"k": 2, "at": BEGIN + 20}, {"k": 1, "at": CUT + 500}]
    live(kafka, *(records(lane, 0, *values) for lane in LANES), changes=changes)
    assert changes.observed[-1] == (2, 2)
    assert all(made == sent for made, sent in changes.observed)
