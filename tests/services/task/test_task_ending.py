"""A task of a plan that ends takes of the sources what comes before its end, in this life or a later one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from services.kafka.records import RecordBatch
from services.kafka.topics import Lane
from services.process.metrics import WorkerMetrics
from services.task.spec import Outcome
from tests.services.one_task import LANES, Kafka, NoChanges, Row, open_task

BEGIN = 1_700_000_000_000
CUT = BEGIN + 1_000
DEADLINE_S = 30.0


class Ending(NoChanges):
    """Another plan takes over at `CUT`."""

    def __init__(self) -> None:
        self.concluded = threading.Event()

    def limit(self, watermark: int, now: float) -> int:
        """No epoch passes the cut."""
        return min(watermark, CUT)

    def ended(self, cut: int) -> bool:
        """At the cut."""
        return cut >= CUT

    def conclude(self, now: float) -> None:
        """It has come to its end."""
        self.concluded.set()


def records(lane: Lane, begin: int, *values: dict[str, Any] | None) -> RecordBatch:
    """Records as they are read; None is garbage."""
    rows = [Row(begin + n, b"garbage" if v is None else orjson.dumps(v)) for n, v in enumerate(values)]
    return RecordBatch(*lane, begin, begin + len(rows), 0, rows, 40 * len(rows))


def live(kafka: Kafka, *batches: RecordBatch) -> Outcome:
    """One life of the task, which is offered these batches before it begins."""
    outcomes: list[Outcome] = []
    changes = Ending()
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
    """The next plan's tasks may have begun where the first life ended: what both took would be told twice."""
    kafka = Kafka()
    left, right = LANES
    live(
        kafka,
        *(records(lane, 0, {"k": 1, "at": BEGIN + 10}, None, {"k": 1, "at": CUT + 500}) for lane in LANES),
    )
    ended = {lane: found.offset for lane, found in kafka.offsets.items()}
    assert ended == {left: 3, right: 3}
    assert sum(len(delivery.letters) for delivery in kafka.deliveries) == 2
    kafka.deliveries.clear()
    # It is opened again by a worker that has not left the plan yet: it reads its windows again, and then what is new.
    whole = ({"k": 1, "at": BEGIN + 10}, None, {"k": 1, "at": CUT + 500}, None, {"k": 1, "at": CUT + 600}, None)
    live(kafka, *(records(lane, 0, *whole) for lane in LANES))
    assert {lane: found.offset for lane, found in kafka.offsets.items()} == ended
    assert [list(delivery.letters) for delivery in kafka.deliveries] == [[]]
