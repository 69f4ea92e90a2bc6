"""Records that are read back while Kafka, or the reader, is slow. The test plays Kafka."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from schemas.errors import BrokerError
from services.kafka.readback import TIMEOUT_S, Readback


class Clock:
    """Time that passes only when something takes it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Consumer:
    """Brings events of partition 0, each after some seconds, and then nothing any more.

    Args:
        events: the seconds that each takes, its offset, and whether it is the end of the partition.
    """

    def __init__(self, clock: Clock, events: list[tuple[float, int, bool]]) -> None:
        self._clock = clock
        self._events = events

    def assign(self, partitions: list[Any]) -> None:
        assert [(one.topic, one.partition, one.offset) for one in partitions] == [("log", 0, 0)]

    def poll(self, seconds: float) -> Any:
        if not self._events or self._events[0][0] > seconds:
            self._clock.now += seconds
            if self._events:
                waits, offset, at_end = self._events[0]
                self._events[0] = waits - seconds, offset, at_end
            return None
        waits, offset, at_end = self._events.pop(0)
        self._clock.now += waits
        error = KafkaError(KafkaError._PARTITION_EOF) if at_end else None
        return SimpleNamespace(offset=lambda: offset, error=lambda: error)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("services.kafka.readback.time", made)
    return made


@pytest.mark.parametrize("read_s", [0.0, TIMEOUT_S + 1])
@pytest.mark.parametrize("wait_s", [0.0, TIMEOUT_S - 1])
def test_a_long_log_is_read_to_its_end(clock: Clock, wait_s: float, read_s: float) -> None:
    """The time limit covered the whole log and what the reader did with it: a task whose log took longer never started
    again."""
    events = [(wait_s, offset, False) for offset in range(5)] + [(wait_s, 7, True), (wait_s, 8, False)]
    found = []
    for offset, _ in Readback(Consumer(clock, events), "log").between(0, 0, 9):  # type: ignore[arg-type]
        found.append(offset)
        clock.now += read_s
    assert found == [0, 1, 2, 3, 4, 8]


def test_a_log_that_stalls_is_given_up(clock: Clock) -> None:
    """Also when Kafka reports again and again that nothing follows."""
    events = [(1.0, 0, False), *((20.0, 1, True) for _ in range(100))]
    records = Readback(Consumer(clock, events), "log").between(0, 0, 2)  # type: ignore[arg-type]
    assert next(records)[0] == 0
    with pytest.raises(BrokerError, match=r"topic log\[0\] brought nothing more for 60 s before offset 2"):
        next(records)
    assert clock.now < 1.0 + TIMEOUT_S + 21
