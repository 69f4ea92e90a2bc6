"""The transaction log: one record per transaction of a task, so that what Kafka completes in part can be completed.

Each task has a partition of `<group>.transactions`. Its transactions write a record there that says what else they
write and commit (`schemas.messages.prepared`). `TransactionLog` makes these records while the task runs; `read_back`
finds out at the beginning of the next incarnation what became of the last ones, for `services.delivery.completion` to
decide what is missing.

Cost while running: one small record per transaction, sent together with the others. Records are deleted once their
transactions are seen to be complete everywhere (`TransactionLog.stable`), which is every half minute.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from schemas.errors import StateError
from schemas.messages.prepared import Prepared, Written, decode_prepared
from services.delivery.completion import Fate, Stretch, Transaction, fate
from services.kafka.partition_log import GoneError, PartitionLogs, StoredBatch
from services.kafka.topics import Lane


class TransactionLog:
    """What one incarnation of a task writes.

    Args:
        lane: the task's partition of the log.
        name: the transactional id, the records' key.
        end: asks Kafka for a partition's end.

    Attributes:
        incarnation: a name for this one.
        ends: the offset behind its last record of each partition that it has written to.
        blind: True once Kafka has confirmed a record without saying where it is: what follows could not be found
            again.
    """

    def __init__(self, lane: Lane, name: str, end: Callable[[Lane], int]) -> None:
        self.lane = lane
        self.key = name.encode()
        self.incarnation = uuid.uuid4().hex[:8]
        self.blind = False
        self.ends: dict[Lane, int] = {}
        self._end = end
        self._since: dict[Lane, int] = {}
        self._records: Counter[Lane] = Counter()

    def begin(self) -> None:
        """A transaction begins."""
        self._since, self._records = {}, Counter()

    def writes(self, lane: Lane, records: int) -> None:
        """The transaction is about to write records to a partition."""
        if lane not in self.ends:
            self.ends[lane] = self._end(lane)
        if lane not in self._since:
            self._since[lane] = self.ends[lane]
        self._records[lane] += records

    def written(self, lane: Lane, offset: int | None) -> None:
        """Kafka has confirmed a record, the last of those that the transaction wrote there so far."""
        if offset is None or offset < 0:
            self.blind = True
            return
        self.ends[lane] = max(self.ends[lane], offset + 1)

    def prepared(self, offsets: Mapping[Lane, tuple[int, str]]) -> bytes:
        """The record of the transaction, with the offsets that it commits."""
        written = {lane: Written(self._since[lane], records) for lane, records in self._records.items() if records}
        return Prepared(self.incarnation, written, offsets).encode()


def read_back(
    logs: PartitionLogs, lane: Lane, first: int, key: bytes, until: Mapping[Lane, int]
) -> list[Transaction]:
    """The last transactions of a task, in order, with what became of them.

    Args:
        first: the first offset of the task's partition of the log.
        key: of the task's records.
        until: by partition, up to where it is read: see `PartitionLogs.batches`.

    Raises:
        BrokerError: Kafka does not answer, or refuses.
        StateError: the log holds something else.
    """
    own = list(logs.batches(lane, first, until.get(lane)))
    found: list[tuple[Prepared, tuple[int, int], int]] = []
    for batch in own:
        for record in batch.records():
            if record.key == key:
                prepared = decode_prepared(record.value or b"", f"{lane[0]}[{lane[1]}]@{record.offset}")
                found.append((prepared, batch.producer, record.offset))
    stretches = [_stretch(batch) for batch in own]
    offsets = [stretch.offset for stretch in stretches]
    fates: list[dict[Lane, Fate]] = []
    for _, producer, offset in found:
        # A batch may hold records of one transaction only, and a transaction has one.
        behind = islice(stretches, max(0, bisect_left(offsets, offset + 1) - 1), None)
        fates.append({lane: fate(behind, producer, Written(offset, 1))})
    for written in {each for prepared, _, _ in found for each in prepared.written}:
        touching = [i for i, (prepared, _, _) in enumerate(found) if written in prepared.written]
        of = [(found[i][0].written[written], found[i][1]) for i in touching]
        for i, became in _fates_in(logs, written, of, until.get(written)):
            fates[touching[i]][written] = became
    return [
        Transaction(prepared, producer, became)
        for (prepared, producer, _), became in zip(found, fates, strict=True)
    ]


def records_of(logs: PartitionLogs, lane: Lane, transaction: Transaction) -> list[Any]:
    """The records of a transaction in a partition, in order: objects with `key`, `value`, `headers` and `timestamp`.

    Raises:
        BrokerError: Kafka does not answer, or refuses.
        StateError: they are not there any more.
    """
    written = transaction.prepared.written[lane]
    found: list[Any] = []
    for batch in logs.batches(lane, written.since):
        if batch.producer == transaction.producer and batch.marker is None:
            found += batch.records()
            if len(found) >= written.records:
                return found[: written.records]
    raise StateError(
        f"{lane[0]}[{lane[1]}] holds {len(found)} of the {written.records} records from offset {written.since} on that "
        "a committed transaction wrote; give the query a new group (--group) and sink to start anew"
    )


def _fates_in(
    logs: PartitionLogs, lane: Lane, transactions: Sequence[tuple[Written, tuple[int, int]]], until: int | None
) -> list[tuple[int, Fate]]:
    """What became of transactions in a partition, by their position.

    The newest are looked at first: where one is committed, so are those before it, since a producer's marker counts for
    all that it has left open. So a few records are read, and not all that the log tells of.
    """
    became = [Fate.COMMITTED] * len(transactions)
    looked, more = len(transactions), 1
    while looked > 0:
        begin = max(0, looked - more)
        for i, found in _fates_since(logs, lane, transactions[:looked], begin, until):
            became[i] = found
        if Fate.COMMITTED in became[begin:looked]:
            break
        looked, more = begin, more * 2
    return list(enumerate(became))


def _fates_since(
    logs: PartitionLogs,
    lane: Lane,
    transactions: Sequence[tuple[Written, tuple[int, int]]],
    begin: int,
    until: int | None,
) -> Iterator[tuple[int, Fate]]:
    """What became of the transactions from one position on."""
    stretches: list[Stretch] = []
    while begin < len(transactions):
        try:
            stretches = [_stretch(batch) for batch in logs.batches(lane, transactions[begin][0].since, until)]
            break
        except GoneError:
            yield begin, Fate.GONE
            begin += 1
    offsets = [stretch.offset for stretch in stretches]
    for i in range(begin, len(transactions)):
        written, producer = transactions[i]
        behind = islice(stretches, bisect_left(offsets, written.since), None)
        yield i, fate(behind, producer, written)


def _stretch(batch: StoredBatch) -> Stretch:
    number, epoch = batch.producer
    return Stretch(number, epoch, batch.offset, batch.size, batch.marker is True)
