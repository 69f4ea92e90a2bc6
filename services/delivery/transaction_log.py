"""The transaction log: one record per transaction of a task, so that a transaction can be repaired after a Kafka fault.

`services.delivery.transactional` writes and reads it. Each task has a partition of `<group>.transactions`. Each
transaction writes a record there that lists what else it writes and commits (`schemas.messages.prepared`).
`TransactionLog` makes these records while the task runs. `read_back` determines the fate of the last transactions when
the next incarnation starts; `services.delivery.completion` then decides what is missing.

Cost while running: one small record per transaction, sent together with its other records. Every half minute the task
checks whether its transactions are complete everywhere (`services.delivery.sink.Sink.completion_check`), and deletes
the records of those that are.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from schemas.errors import StateError
from schemas.messages.prepared import PreparedTransaction, WrittenRecords, decode_prepared
from services.delivery.completion import Fate, RecordRun, Transaction, fate
from services.kafka.partition_log import GoneError, PartitionLogs, StoredBatch
from services.kafka.topics import Lane

FirstOffset = Callable[[Lane], int]

ATTEMPTS = 5
"""How often a partition is read anew while records are being deleted at its beginning."""


class TransactionLog:
    """Tracks what one incarnation of a task writes, and makes its log records.

    Args:
        lane: the task's partition of the log.
        name: the transactional id, which is the key of the log records.
        end: asks Kafka for the end offset of a partition.

    Attributes:
        key: the key of the log records.
        incarnation: a random name of this incarnation.
        ends: by partition that the task writes to, the offset behind its last record there.
        offsets_unknown: True once Kafka has confirmed a record without its offset. Later records could not be found
            again.
    """

    def __init__(self, lane: Lane, name: str, end: Callable[[Lane], int]) -> None:
        self.lane = lane
        self.key = name.encode()
        self.incarnation = uuid.uuid4().hex[:8]
        self.offsets_unknown = False
        self.ends: dict[Lane, int] = {}
        self._end = end
        self._since: dict[Lane, int] = {}
        self._records: Counter[Lane] = Counter()

    def begin(self) -> None:
        """Start a new transaction."""
        self._since, self._records = {}, Counter()

    def writes(self, lane: Lane, records: int) -> None:
        """Note that the transaction is about to write records to a partition."""
        if lane not in self.ends:
            self.ends[lane] = self._end(lane)
        if lane not in self._since:
            self._since[lane] = self.ends[lane]
        self._records[lane] += records

    def written(self, lane: Lane, offset: int | None) -> None:
        """Note the offset of the last record that the transaction wrote to a partition so far; Kafka confirmed it."""
        if offset is None or offset < 0:
            self.offsets_unknown = True
            return
        self.ends[lane] = max(self.ends[lane], offset + 1)

    def prepared(self, offsets: Mapping[Lane, tuple[int, str]]) -> bytes:
        """Encode the log record of the transaction, with the offsets that it commits."""
        written = {
            lane: WrittenRecords(self._since[lane], records) for lane, records in self._records.items() if records
        }
        return PreparedTransaction(self.incarnation, written, offsets).encode()


def read_back(
    logs: PartitionLogs, lane: Lane, first: FirstOffset, key: bytes, until: Mapping[Lane, int]
) -> list[Transaction]:
    """Read the last transactions of a task, in order, with their fates.

    Args:
        lane: the task's partition of the log.
        first: asks Kafka for the first offset of a partition.
        key: the key of the task's records.
        until: by partition, the offset up to which to read; see `PartitionLogs.batches`.

    Raises:
        BrokerError: Kafka does not answer, or refuses.
        StateError: the log holds something else.
    """
    own = list(logs.batches(lane, first(lane), until.get(lane)))
    found: list[tuple[PreparedTransaction, tuple[int, int], int]] = []
    for batch in own:
        for record in batch.records():
            if record.key == key:
                prepared = decode_prepared(record.value or b"", f"{lane[0]}[{lane[1]}]@{record.offset}")
                found.append((prepared, batch.producer, record.offset))
    runs = [_record_run(batch) for batch in own]
    offsets = [run.offset for run in runs]
    fates: list[dict[Lane, Fate]] = []
    for _, producer, offset in found:
        # All records of a batch belong to one transaction, and a transaction has one log record.
        behind = islice(runs, max(0, bisect_left(offsets, offset + 1) - 1), None)
        fates.append({lane: fate(behind, producer, WrittenRecords(offset, 1))})
    for written in {each for prepared, _, _ in found for each in prepared.written}:
        touching = [i for i, (prepared, _, _) in enumerate(found) if written in prepared.written]
        of = [(found[i][0].written[written], found[i][1]) for i in touching]
        for i, became in _fates_in(logs, written, of, until.get(written), first):
            fates[touching[i]][written] = became
    return [
        Transaction(prepared, producer, became)
        for (prepared, producer, _), became in zip(found, fates, strict=True)
    ]


def records_of(logs: PartitionLogs, lane: Lane, transaction: Transaction, first: FirstOffset) -> list[Any]:
    """Read a transaction's records in a partition, in order: objects with `key`, `value`, `headers` and `timestamp`.

    Args:
        first: asks Kafka for the first offset of a partition.

    Raises:
        BrokerError: Kafka does not answer, or refuses.
        StateError: the records are not there any more.
    """
    written = transaction.prepared.written[lane]
    found: list[Any] = []
    _, batches = _since(logs, lane, written.since, None, first)
    for batch in batches:
        if batch.producer == transaction.producer and batch.marker is None:
            found += batch.records()
            if len(found) >= written.records:
                return found[: written.records]
    raise StateError(
        f"{lane[0]}[{lane[1]}] holds {len(found)} of the {written.records} records from offset {written.since} on that "
        "a committed transaction wrote; give the query a new group (--group) and sink to start anew"
    )


def _since(
    logs: PartitionLogs, lane: Lane, offset: int, until: int | None, first: FirstOffset
) -> tuple[int, list[StoredBatch]]:
    """Read a partition from an offset on, or from its first offset if that is later; return where it was, and the
    batches.

    The offset behind a task's last record may be gone, although its next records are there: a marker was at that
    offset, and the partition's reader has deleted it.

    Raises:
        GoneError: the partition ends before the offset.
    """
    for _ in range(ATTEMPTS):
        try:
            return offset, list(logs.batches(lane, offset, until))
        except GoneError:
            begin = first(lane)
            if begin <= offset:
                raise
            offset = begin
    raise GoneError(lane, offset)


def _fates_in(
    logs: PartitionLogs,
    lane: Lane,
    transactions: Sequence[tuple[WrittenRecords, tuple[int, int]]],
    until: int | None,
    first: FirstOffset,
) -> list[tuple[int, Fate]]:
    """Determine the fates of transactions in a partition, with their positions.

    The search starts with the newest transactions. If one is committed, so are those before it, because a producer's
    marker ends everything that the producer has left open. So this reads a few records, not all that the log mentions.
    """
    became = [Fate.COMMITTED] * len(transactions)
    looked, more = len(transactions), 1
    while looked > 0:
        begin = max(0, looked - more)
        for i, found in _fates_between(logs, lane, transactions, begin, looked, until, first):
            became[i] = found
        if Fate.COMMITTED in became[begin:looked]:
            break
        looked, more = begin, more * 2
    return list(enumerate(became))


def _fates_between(
    logs: PartitionLogs,
    lane: Lane,
    transactions: Sequence[tuple[WrittenRecords, tuple[int, int]]],
    begin: int,
    end: int,
    until: int | None,
    first: FirstOffset,
) -> Iterator[tuple[int, Fate]]:
    """Determine the fates of the transactions at the positions begin .. end - 1."""
    runs: list[RecordRun] = []
    known_from = 0
    while begin < end:
        try:
            known_from, batches = _since(logs, lane, transactions[begin][0].since, until, first)
            runs = [_record_run(batch) for batch in batches]
            break
        except GoneError:
            yield begin, Fate.GONE
            begin += 1
    offsets = [run.offset for run in runs]
    for i in range(begin, end):
        written, producer = transactions[i]
        behind = runs[bisect_left(offsets, written.since) :]
        if written.since < known_from:
            # Its records may have been deleted, and those of the next transaction must not be taken for them.
            next_since = transactions[i + 1][0].since if i + 1 < len(transactions) else None
            own = [run for run in behind if (run.producer, run.epoch) == producer]
            left = sum(run.records for run in own if next_since is None or run.offset < next_since)
            if left < written.records:
                yield i, Fate.GONE
                continue
        yield i, fate(behind, producer, written)


def _record_run(batch: StoredBatch) -> RecordRun:
    number, epoch = batch.producer
    return RecordRun(number, epoch, batch.offset, batch.size, batch.marker is True)
