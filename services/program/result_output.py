"""Encodes the results of a task's engine: as records for the sink, or as blocks for the next operator.

`services.program.query_program` and `services.program.group_program` call it. Entry: `encoder_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from operators.distributed.edge_writer import EdgeWriter, ResultOrder
from schemas.codecs.encode import CLEANUP_PHASE, Encoded, encode_results, encode_upserts, key_names
from schemas.columns import Batch
from schemas.query import Query
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


class SinkEncoder:
    """The query's results as JSON, with keys if they are upserts.

    Args:
        topic: that receives the results.
        keys: names of a group's values in the keys of upserts; None if results are no upserts.
        finish: turns the last operator's results into the query's; None for a whole query.
        since: results with a smaller ts belong to a former plan and are dropped.
    """

    def __init__(
        self,
        topic: str,
        keys: tuple[str, ...] | None,
        finish: Callable[[Batch], Batch] | None = None,
        since: int = 0,
    ) -> None:
        self._topic = topic
        self._keys = keys
        self._finish = finish
        self._since = since

    def must_announce(self, cut: int) -> bool:
        """Never: no reader of the sink waits for a watermark."""
        return False

    def encode(self, results: Batch | None, cut: int) -> tuple[list[tuple[str, Encoded]], list[BlockRecord]]:
        """Encode in pieces of bounded size."""
        if results is not None and len(results) and int(results.ts[0]) < self._since:
            results = results.slice(int(np.searchsorted(results.ts, self._since)), len(results))
        if results is None or len(results) == 0:
            return [], []
        results = results if self._finish is None else self._finish(results)
        return [(self._topic, piece) for piece in pieces(results, self._keys)], []


class BlockEncoder:
    """Intermediate results and watermarks, as blocks.

    Args:
        routes: one per reader.
        announced: the watermark that was committed last.
        nothing: an empty batch of results.
    """

    def __init__(self, routes: Sequence[EdgeWriter], announced: int, nothing: Batch) -> None:
        self._routes = list(routes)
        self._announced = announced
        self._nothing = nothing

    def must_announce(self, cut: int) -> bool:
        """Always for a new cut: readers wait for each watermark."""
        return cut > self._announced

    def encode(self, results: Batch | None, cut: int) -> tuple[list[tuple[str, Encoded]], list[BlockRecord]]:
        """Make blocks for every partition that the task writes to; the last block of each carries the watermark."""
        if not self.must_announce(cut):
            return [], []
        self._announced = cut
        batch = self._nothing if results is None else results
        blocks = [
            BlockRecord(route.edge.topic, partition, raw, tuples)
            for route in self._routes
            for partition, raw, tuples in route.blocks(batch, cut)
        ]
        return [], blocks


def encoder_of(
    topic: str, query: Query, part: Part | None, announced: int, nothing: Batch, since: int = 0
) -> ResultEncoder:
    """Make the encoder of a task.

    Args:
        topic: of the query's results.
        part: the operator that the task runs; None for a whole query.
        announced: the watermark that was committed last.
        nothing: an empty batch of the engine's results.
        since: event time at which the task's plan begins.
    """
    if part is None:
        return SinkEncoder(topic, key_names(query))
    if not part.operator.outputs:
        return SinkEncoder(topic, part.operator.keys, ResultOrder(part.operator), since)
    return BlockEncoder([EdgeWriter(edge, part.share) for edge in part.operator.outputs], announced, nothing)


def late_results(topic: str, batches: Iterable[Batch], query: Query | None = None) -> list[tuple[str, Encoded]]:
    """Encode the late results of cleanups, marked as such, each piece with its topic.

    Args:
        query: if it has aggregates, the batches are emissions, which are final and not marked.
    """
    if query is not None and query.aggregation is not None:
        return [(topic, piece) for batch in batches for piece in pieces(batch, key_names(query))]
    return [(topic, encode_results(piece, CLEANUP_PHASE)) for batch in batches for piece in _slices(batch)]


def pieces(results: Batch, keys: Sequence[str] | None) -> Iterator[Encoded]:
    """Encode results as JSON in pieces of bounded size, with keys if they are upserts."""
    for piece in _slices(results):
        yield encode_results(piece) if keys is None else encode_upserts(piece, keys)


def _slices(results: Batch) -> Iterator[Batch]:
    for begin in range(0, len(results), RESULT_CHUNK):
        yield results.slice(begin, min(begin + RESULT_CHUNK, len(results)))
