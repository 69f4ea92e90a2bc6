"""The log of what a task has spilled and cleaned up: one partition of the query's spill topic.

What is in memory, on disk and owed is a function of the input and of these events (`schemas.messages.spills`), and
they are written in the transaction of the results and offsets that they have been processed with. So the blocks on
disk need not
outlive a task: whoever takes it over reads the input again, and does again what the log says.

A record holds events of one commit. Records are numbered in the order of a task's lives, in their keys, and a
commit says which ones a recovery from it needs (`Commit.spilled`): a log that was deleted or cut is noticed. Records
before those are deleted by and by. A number can be there twice where a group has begun anew: the later one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from schemas.errors import StateError
from schemas.messages.spills import SpillEvent, decode_events, encode_events
from services.delivery.epoch_output import BlockRecord
from services.kafka.readback import reading
from services.kafka.topics import Lane
from services.process.security import KafkaClients

UNKNOWN = -1
"""The offset of a record that Kafka has not confirmed yet."""


RECORD_EVENTS = 200
"""In one record at most, so that it stays within Kafka's usual limit, a megabyte."""


@dataclass(slots=True)
class Logged:
    """A record of the log.

    Attributes:
        plan: see `SpillRecord`.
        offset: where it is.
    """

    number: int
    events: tuple[SpillEvent, ...]
    plan: str
    offset: int = UNKNOWN

    def is_at(self, offset: int) -> None:
        """Kafka has confirmed it."""
        self.offset = offset


class SpillLog:
    """One task's log, as far as a recovery from its last commit needs it.

    Args:
        groups: partition groups per join.
        known: records of earlier lives, in order.
        following: number of the next record.

    Attributes:
        lane: where they are written.
    """

    def __init__(self, lane: Lane, groups: int, known: Iterable[Logged] = (), following: int = 0) -> None:
        self.lane = lane
        self._groups = groups
        self._known = list(known)
        self._following = following
        self._needless: int | None = None

    @property
    def events(self) -> list[SpillEvent]:
        """What is known, in order."""
        return [event for logged in self._known for event in logged.events]

    @property
    def plan(self) -> str:
        """The plan whose groups the newest events name; empty when there are none, or it is not known."""
        return self._known[-1].plan if self._known else ""

    @property
    def span(self) -> tuple[int, int]:
        """The numbers of the first record that is known and of the next one to come."""
        return self._following - len(self._known), self._following

    def add(self, events: Sequence[SpillEvent], plan: str) -> list[BlockRecord]:
        """What has happened, as records to be written with the next commit.

        Args:
            plan: that runs now.
        """
        topic, partition = self.lane
        records = []
        for begin in range(0, len(events), RECORD_EVENTS):
            logged = Logged(self._following, tuple(events[begin : begin + RECORD_EVENTS]), plan)
            self._known.append(logged)
            self._following += 1
            raw, key = encode_events(logged.events, self._groups, plan), str(logged.number).encode()
            records.append(BlockRecord(topic, partition, raw, 0, key, logged.is_at))
        return records

    def forget(self, until: int) -> None:
        """No recovery needs events of `until` or before: records at the beginning that have no others are dropped."""
        while self._known and all(event.at <= until for event in self._known[0].events):
            offset = self._known.pop(0).offset
            if offset != UNKNOWN:
                self._needless = offset + 1

    def trimming(self) -> dict[Lane, int]:
        """Up to which offset records can be deleted, if more of them than when this was last asked."""
        offset, self._needless = self._needless, None
        return {} if offset is None else {self.lane: offset}


def read_log(clients: KafkaClients, lane: Lane, groups: int, span: tuple[int, int], marked: int = 0) -> SpillLog:
    """The log of a task that begins at a commit.

    Args:
        span: what the commit says of it, see `SpillLog.span`.
        marked: behind all that the task has written (`services.delivery.sink.Sink.mark_end`).

    Raises:
        BrokerError: Kafka does not answer.
        StateError: a record is missing or cannot be read.
    """
    first, following = span
    found: dict[int, Logged] = {}
    if first < following:
        found = {one.number: one for one in _read(clients, lane, groups, span, marked)}
    missing = [number for number in range(first, following) if number not in found]
    if missing:
        raise StateError(
            f"topic {lane[0]}[{lane[1]}] has no record {missing[0]}, and those up to {following - 1} tell which "
            "results are still owed: the topic was deleted or cut; give the query a new group (--group) to start anew"
        )
    return SpillLog(lane, groups, [found[number] for number in range(first, following)], following)


def _read(
    clients: KafkaClients, lane: Lane, groups: int, span: tuple[int, int], marked: int
) -> Iterator[Logged]:
    """The records of a span, in the order in which they were written."""
    topic, partition = lane
    with reading(clients, topic) as readback:
        low, high = readback.ends(partition, marked)
        for offset, message in readback.between(partition, low, high):
            place = f"{topic}[{partition}]@{offset}"
            number = _number(message.key(), place)
            if span[0] <= number < span[1]:
                record = decode_events(message.value() or b"", groups, place)
                yield Logged(number, record.events, record.plan, offset)


def _number(key: bytes | str | None, place: str) -> int:
    try:
        return int(key or b"")
    except ValueError:
        raise StateError(f"record {place} has key {key!r}, no number: who else writes there?") from None
