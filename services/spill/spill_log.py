"""The log of what a task has spilled and cleaned up: one partition of the query's spill topic.

`services.task.spill` writes it; `read_log` reads it when a task starts. What is in memory, on disk and pending is a
function of the input and of these events (`schemas.messages.spills`). The events are delivered with the results and
offsets that they were processed with. So the blocks on disk need not outlive a task: its next incarnation reads the
input again and repeats what the log records.

A record holds events of one commit. A commit names the records that a recovery from it needs (`Commit.spilled`). For
their numbers see `services.delivery.numbered_records`.

**At least once.** Without transactions, the log also holds what was written after the last commit, and a former
incarnation that hangs may still write when the next has begun. So a record names its writer. A new incarnation writes
what it still needs again, under its own name, before anything else. Its commits carry that name
(`Commit.incarnation`), and a reader takes no other writer's records. Events that were not committed are forgotten like
the input that they belong to: both are processed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from schemas.messages.spills import SpillEvent, WrittenRecord, decode_events, encode_events
from services.delivery.epoch_output import BlockRecord
from services.delivery.numbered_records import NumberedLog, NumberedRecord, read_span
from services.kafka.topics import Lane
from services.process.security import KafkaClients

RECORD_EVENTS = 200
"""Upper limit of events in one record, so that the record stays within Kafka's usual limit, a megabyte."""


@dataclass(slots=True)
class LogRecord(NumberedRecord):
    """A record of the log.

    Attributes:
        plan, writer: see `WrittenRecord`.
    """

    events: tuple[SpillEvent, ...]
    plan: str
    writer: str = ""


class SpillLog(NumberedLog[LogRecord]):
    """The spill log of one task.

    Args:
        groups: partition groups per join.
        known, following: see `NumberedLog`.
        writer: of the records to write; see `WrittenRecord`.
    """

    def __init__(
        self, lane: Lane, groups: int, known: Iterable[LogRecord] = (), following: int = 0, writer: str = ""
    ) -> None:
        super().__init__(lane, known, following)
        self._groups = groups
        self._writer = writer
        self._adopted = all(record.writer == writer for record in self._records)

    @property
    def events(self) -> list[SpillEvent]:
        """The events of all known records, in order."""
        return [event for logged in self._records for event in logged.events]

    @property
    def plan(self) -> str:
        """The plan whose groups the newest events name; empty without events, or if the plan is unknown."""
        return self._records[-1].plan if self._records else ""

    def add(self, events: Sequence[SpillEvent], plan: str) -> list[BlockRecord]:
        """Append events; returns the records to write with the next commit.

        Args:
            plan: the plan that runs now.
        """
        records = []
        if not self._adopted:
            # What is known must be written again, as this writer's.
            self._adopted = True
            records = [self._write(former.events, former.plan) for former in self._drop_while(lambda _: True)]
        for begin in range(0, len(events), RECORD_EVENTS):
            records.append(self._write(tuple(events[begin : begin + RECORD_EVENTS]), plan))
        return records

    def _write(self, events: tuple[SpillEvent, ...], plan: str) -> BlockRecord:
        record = LogRecord(self._following, events, plan, self._writer)
        return self._append(record, encode_events(events, self._groups, plan, self._writer))

    def forget(self, until: int) -> None:
        """Drop the first records that hold only events at `until` or before, which no recovery needs."""
        self._drop_while(lambda record: all(event.at <= until for event in record.events))


def read_log(
    clients: KafkaClients,
    lane: Lane,
    groups: int,
    span: tuple[int, int],
    marked: int = 0,
    *,
    former: str = "",
    writer: str = "",
) -> SpillLog:
    """Read the log of a task that starts at a commit.

    Args:
        groups: partition groups per join.
        span: the record numbers in the commit; see `SpillLog.span`.
        marked: an offset behind everything that the task has written (`services.delivery.sink.Sink.mark_end`).
        former: the incarnation that made the commit.
        writer: of the records to write; see `WrittenRecord`.

    Raises:
        BrokerError: Kafka does not answer.
        StateError: a record is missing or cannot be read.
    """

    def decode(raw: bytes, place: str) -> WrittenRecord:
        return decode_events(raw, groups, place)

    read = read_span(clients, lane, span, marked, former, decode, "what is pending")
    known = [LogRecord(n, record.events, record.plan, record.writer, offset=offset) for n, offset, record in read]
    return SpillLog(lane, groups, known, span[1], writer)
