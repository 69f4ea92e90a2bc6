"""`RecordBatch`: all records of one partition in one fetch, as the transport delivers them to tasks.

aiokafka would make a dataclass per record. Here a fetch stays the list of its compiled record objects, and the task
that decodes them extracts each column (values, offsets, timestamps) in one pass. Measured on the project's machine: 0.6
microseconds per record from socket to list of values, against 1.4.

Invariant: consecutive batches of a partition are connected, `next.start == previous.next_offset`, whatever gaps
compaction, aborted transactions or control records leave between offsets. So a lost batch is detected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from aiokafka.consumer.fetcher import PartitionRecords

from schemas.columns import I64
from schemas.errors import BrokerError


@dataclass(frozen=True, slots=True, eq=False)
class RecordBatch:
    """Consecutive records of one partition.

    Attributes:
        start: the position that was fetched from.
        next_offset: the position after it: at least the last record's offset + 1.
        seek: number of the seek that this fetch follows; a batch of an earlier seek is stale.
        records: objects with `offset`, `timestamp`, `key`, `value`, ascending by offset; may be empty.
        size_bytes: estimated size of all keys and values.
    """

    topic: str
    partition: int
    start: int
    next_offset: int
    seek: int
    records: Sequence[Any]
    size_bytes: int

    def __len__(self) -> int:
        return len(self.records)

    def values(self) -> list[bytes | None]:
        """The raw values; None is a tombstone."""
        return [record.value for record in self.records]

    def keys(self) -> list[bytes | None]:
        """The raw keys; None where a record has none."""
        return [record.key for record in self.records]

    def headers(self, name: str) -> list[bytes | None]:
        """The last header of a name of each record; None where a record has none."""
        return [last_header(record.headers, name) for record in self.records]

    def offsets(self) -> I64:
        """(n,) int64, ascending."""
        n = len(self.records)
        if n == 0:
            return np.zeros(0, np.int64)
        first, last = self.records[0].offset, self.records[-1].offset
        if last - first == n - 1:
            return np.arange(first, last + 1, dtype=np.int64)
        return np.fromiter((record.offset for record in self.records), np.int64, n)

    def timestamps(self) -> I64:
        """(n,) int64, the records' own timestamps in milliseconds; -1 where a record has none."""
        times = (-1 if record.timestamp is None else record.timestamp for record in self.records)
        return np.fromiter(times, np.int64, len(self.records))

    def since(self, offset: int) -> RecordBatch:
        """The part from `offset` on; this batch when that is all of it."""
        if offset <= self.start:
            return self
        skip = int(np.searchsorted(self.offsets(), offset))
        return RecordBatch(
            self.topic,
            self.partition,
            offset,
            self.next_offset,
            self.seek,
            self.records[skip:],
            self.size_bytes,
        )

    def until(self, offset: int) -> RecordBatch:
        """The part before `offset`; this batch when that is all of it."""
        if offset >= self.next_offset:
            return self
        stop = int(np.searchsorted(self.offsets(), offset))
        return RecordBatch(
            self.topic, self.partition, self.start, offset, self.seek, self.records[:stop], self.size_bytes
        )


def last_header(headers: Sequence[Any] | None, name: str) -> bytes | None:
    """The value of the last of some (name, value) headers with a name; None if there is none, or it has no value."""
    return next((value for key, value in reversed(headers or ()) if key == name), None)


def unpack(fetched: PartitionRecords) -> list[Any]:
    """All records of a fetch that a read_committed consumer may see; moves `fetched.next_fetch_offset`.

    The rules are Kafka's: a control batch is skipped; a transactional batch of a producer is skipped from
    the first offset of its aborted transaction until its abort marker.

    Raises:
        BrokerError: a batch fails its checksum.
    """
    # aiokafka's iterator and its owner refer to each other, which keeps the fetched bytes in memory until the garbage
    # collector runs (measured: 140 bytes more per live tuple).
    fetched._records_iterator = None
    memory = fetched._records
    records: list[Any] = []
    aborted = fetched._aborted_producers
    while memory.has_next():
        batch = memory.next_batch()
        if not batch.validate_crc():
            tp = fetched._tp
            raise BrokerError(
                f"records of {tp.topic}[{tp.partition}] near offset {batch.base_offset} fail their checksum"
            )
        next_offset = batch.next_offset
        if batch.producer_id is not None and batch.producer_id >= 0:
            fetched._consume_aborted_up_to(batch.base_offset)
            if batch.is_control_batch:
                if fetched._contains_abort_marker(batch):
                    aborted.discard(batch.producer_id)
                fetched.next_fetch_offset = next_offset
                continue
            if batch.is_transactional and batch.producer_id in aborted:
                fetched.next_fetch_offset = next_offset
                continue
        elif batch.is_control_batch:
            fetched.next_fetch_offset = next_offset
            continue
        found = list(batch)
        wanted = fetched.next_fetch_offset
        if found and found[0].offset < wanted:
            # A fetch from inside a batch returns the whole batch.
            found = [record for record in found if record.offset >= wanted]
        records += found
        fetched.next_fetch_offset = max(next_offset, wanted)
    return records


def rough_size(records: Sequence[Any]) -> int:
    """Bytes of all keys and values, estimated from a sample of at most 32 records.

    Every record counts as large as the largest of the sample, so that the estimate can be used as a bound.
    """
    sample = records[:: max(1, len(records) // 32)]
    return max((len(r.value or b"") + len(r.key or b"") for r in sample), default=0) * len(records)
