"""The log of what a task has spilled and cleaned up: one partition of the query's spill topic.

`services.task.spill` writes it; `read_log` reads it when a task starts. What is in memory, on disk and pending is a
function of the input and of these events (`schemas.messages.spills`). The events are delivered with the results and
offsets that they were processed with. So the blocks on disk need not outlive a task: its next incarnation reads the
input again and repeats what the log records.

A record holds events of one commit. Keys number the records in order, across incarnations. A commit names the records
that a recovery from it needs (`Commit.spilled`), so a deleted or truncated log is noticed. Older records are deleted in
the background. A number can occur twice if a consumer group was restarted; the later record counts.

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
from services.delivery.numbered_records import read_span
from services.kafka.topics import Lane
from services.process.security import KafkaClients

UNKNOWN = -1
"""The offset of a record that Kafka has not confirmed yet."""


RECORD_EVENTS = 200
"""Upper limit of events in one record, so that the record stays within Kafka's usual limit, a megabyte."""


@dataclass(slots=True)
class LogRecord:
    """A record of the log.

    Attributes:
        number: its position in the log, which is its key.
        plan, writer: see `WrittenRecord`.
        offset: where Kafka has stored it; UNKNOWN before Kafka's confirmation.
    """

    number: int
    events: tuple[SpillEvent, ...]
    plan: str
    offset: int = UNKNOWN
    writer: str = ""

    def set_offset(self, offset: int) -> None:
        """Store the offset at which Kafka has confirmed the record."""
        self.offset = offset


class SpillLog:
    """One task's log, limited to the records that a recovery from its last commit needs.

    Args:
        groups: partition groups per join.
        known: records of earlier incarnations, in order.
        next_number: number of the next record.
        writer: of the records to write; see `WrittenRecord`.

    Attributes:
        lane: the partition of the spill topic.
    """

    def __init__(
        self, lane: Lane, groups: int, known: Iterable[LogRecord] = (), next_number: int = 0, writer: str = ""
    ) -> None:
        self.lane = lane
        self._groups = groups
        self._known = list(known)
        self._next_number = next_number
        self._writer = writer
        self._adopted = all(record.writer == writer for record in self._known)
        self._deletable: int | None = None

    @property
    def events(self) -> list[SpillEvent]:
        """The events of all known records, in order."""
        return [event for logged in self._known for event in logged.events]

    @property
    def plan(self) -> str:
        """The plan whose groups the newest events name; empty without events, or if the plan is unknown."""
        return self._known[-1].plan if self._known else ""

    @property
    def span(self) -> tuple[int, int]:
        """The number of the first known record, and that of the next record to write."""
        return self._next_number - len(self._known), self._next_number

    def add(self, events: Sequence[SpillEvent], plan: str) -> list[BlockRecord]:
        """Append events; returns the records to write with the next commit.

        Args:
            plan: the plan that runs now.
        """
        records = [] if self._adopted else self._adopt()
        for begin in range(0, len(events), RECORD_EVENTS):
            records.append(self._append(tuple(events[begin : begin + RECORD_EVENTS]), plan))
        return records

    def _adopt(self) -> list[BlockRecord]:
        """Write the known records again, as this writer's."""
        self._adopted = True
        former, self._known = self._known, []
        self._deletable = max(record.offset for record in former) + 1
        return [self._append(record.events, record.plan) for record in former]

    def _append(self, events: tuple[SpillEvent, ...], plan: str) -> BlockRecord:
        logged = LogRecord(self._next_number, events, plan, writer=self._writer)
        self._known.append(logged)
        self._next_number += 1
        raw = encode_events(events, self._groups, plan, self._writer)
        return BlockRecord(*self.lane, raw, 0, str(logged.number).encode(), logged.set_offset)

    def forget(self, until: int) -> None:
        """Drop the first records that hold only events at `until` or before, which no recovery needs."""
        while self._known and all(event.at <= until for event in self._known[0].events):
            offset = self._known.pop(0).offset
            if offset != UNKNOWN:
                self._deletable = offset + 1

    def deletable(self) -> dict[Lane, int]:
        """The offset before which records may be deleted, by partition; empty if unchanged since the last call."""
        offset, self._deletable = self._deletable, None
        return {} if offset is None else {self.lane: offset}


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
    known = [LogRecord(number, record.events, record.plan, offset, record.writer) for number, offset, record in read]
    return SpillLog(lane, groups, known, span[1], writer)
