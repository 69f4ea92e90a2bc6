"""Encodes the results of a task's engine: as records for the sink, or as blocks for the next operator.

`services.program.query_program` and `services.program.group_program` call it. Entry: `encoder_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from operators.data.watermark import NEVER
from operators.distributed.edge_writer import EdgeWriter, ResultOrder
from schemas.codecs.encode import Encoded
from schemas.codecs.results import ResultRecords
from schemas.columns import Batch
from schemas.query import CLEANUP_PHASE
from services.delivery.epoch_output import BlockRecord
from services.placement.distributed import Part

RESULT_CHUNK = 100_000


class ResultEncoder(Protocol):
    """Encodes the output of an epoch."""

    def must_announce(self, cut: int) -> bool:
        """True if readers wait for the task to announce `cut`, even without results."""
        ...

    def encode(self, results: Batch | None, cut: int) -> tuple[list[tuple[str, Encoded]], list[BlockRecord]]:
        """Encode an epoch that ends at `cut`: pieces of records with their topics, and blocks."""
        ...

    def encode_late(self, batches: Sequence[Batch]) -> list[tuple[str, Encoded]]:
        """Encode late results of cleanups, or keep them for the next blocks."""
        ...


class SinkEncoder:
    """The query's results, with keys if they are upserts.

    Args:
        topic: that receives the results.
        records: encodes them.
        finish: turns the last operator's results into the query's; None for a whole query.
        since: returns the event time before which results belong to a former plan, and are dropped.
    """

    def __init__(
        self,
        topic: str,
        records: ResultRecords,
        finish: Callable[[Batch], Batch] | None = None,
        since: Callable[[], int] = int,
    ) -> None:
        self._topic = topic
        self._records = records
        self._finish = finish
        self._since = since

    def must_announce(self, cut: int) -> bool:
        """Never: no reader of the sink waits for a watermark."""
        return False

    def encode(self, results: Batch | None, cut: int) -> tuple[list[tuple[str, Encoded]], list[BlockRecord]]:
        """Encode in pieces of bounded size."""
        if results is None or len(results) == 0:
            return [], []
        return encode_pieces(self._topic, self._records, [self._finished(results)]), []

    def _finished(self, results: Batch) -> Batch:
        """The query's results, without those that belong to a former plan."""
        since = self._since()
        if len(results) and int(results.ts[0]) < since:
            results = results.slice(int(np.searchsorted(results.ts, since)), len(results))
        return results if self._finish is None else self._finish(results)

    def encode_late(self, batches: Sequence[Batch]) -> list[tuple[str, Encoded]]:
        """Encode them marked as late; emissions of aggregates are not, since they are final."""
        late = [self._finished(batch) for batch in batches]
        return encode_pieces(self._topic, self._records, late, None if self._records.upserts else CLEANUP_PHASE)


class BlockEncoder:
    """Intermediate results and watermarks, as blocks.

    Args:
        routes: one per reader.
        announced: the watermark that was committed last.
        nothing: an empty batch of results.
        complete: for a task with a memory budget, returns the event time before which no results are pending.
    """

    def __init__(
        self,
        routes: Sequence[EdgeWriter],
        announced: int,
        nothing: Batch,
        complete: Callable[[], int] | None = None,
    ) -> None:
        self._routes = list(routes)
        self._announced = announced
        self._nothing = nothing
        self._complete = complete
        self._announced_complete = NEVER
        self._late: list[Batch] = []

    def must_announce(self, cut: int) -> bool:
        """Always for a new cut: readers wait for each watermark, and for late results."""
        return cut > self._announced or bool(self._late) or self._completed()

    def _completed(self) -> bool:
        return self._complete is not None and self._complete() > self._announced_complete

    def encode_late(self, batches: Sequence[Batch]) -> list[tuple[str, Encoded]]:
        """Keep them for the next blocks."""
        self._late += batches
        return []

    def encode(self, results: Batch | None, cut: int) -> tuple[list[tuple[str, Encoded]], list[BlockRecord]]:
        """Make blocks for every partition that the task writes to; the last block of each carries the watermark."""
        if not self.must_announce(cut):
            return [], []
        late, self._late = self._late, []
        before, complete = self._announced_complete, None
        if self._complete is not None:
            self._announced_complete = complete = self._complete()
        self._announced = cut
        batch = self._nothing if results is None else results
        blocks = [
            BlockRecord(route.edge.topic, partition, raw, tuples)
            for route in self._routes
            for partition, raw, tuples in (
                *(block for found in late for block in route.blocks(found, cut, complete=before, late=True)),
                *route.blocks(batch, cut, complete=complete),
            )
        ]
        return [], blocks


def encoder_of(
    topic: str,
    records: ResultRecords,
    part: Part | None,
    announced: int,
    nothing: Batch,
    since: Callable[[], int] = int,
    complete: Callable[[], int] | None = None,
) -> ResultEncoder:
    """Make the encoder of a task.

    Args:
        topic: of the query's results.
        records: encodes the query's results.
        part: the operator that the task runs; None for a whole query.
        announced: the watermark that was committed last.
        nothing: an empty batch of the engine's results.
        since: returns the event time at which the task's plan begins.
        complete: see `BlockEncoder`.
    """
    if part is None:
        return SinkEncoder(topic, records)
    if not part.operator.outputs:
        return SinkEncoder(topic, records, ResultOrder(part.operator), since)
    routes = [EdgeWriter(edge, part.share) for edge in part.operator.outputs]
    return BlockEncoder(routes, announced, nothing, complete)


def encode_pieces(
    topic: str, records: ResultRecords, batches: Iterable[Batch], phase: str | None = None
) -> list[tuple[str, Encoded]]:
    """Encode results in pieces of bounded size, each with its topic.

    Args:
        phase: what late results say of themselves.
    """
    return [(topic, records.encode(piece, phase)) for batch in batches for piece in _slices(batch)]


def _slices(results: Batch) -> Iterator[Batch]:
    for begin in range(0, len(results), RESULT_CHUNK):
        yield results.slice(begin, min(begin + RESULT_CHUNK, len(results)))
