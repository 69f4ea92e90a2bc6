"""What a task makes of its engine's results: records for the sink, or blocks for the next operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from operators.distributed.edge_writer import Finish, Route
from schemas.codecs.encode import CLEANUP_PHASE, Encoded, encode_results, encode_upserts, key_names
from schemas.columns import Batch
from schemas.query import Query
from services.delivery.epoch_output import BlockRecord
from services.placement.distributed import Part

RESULT_CHUNK = 100_000


class Outlet(Protocol):
    """Encodes what an epoch delivers."""

    def owes(self, cut: int) -> bool:
        """True when somebody waits to hear that the task has come to `cut`, even without results."""
        ...

    def encode(self, results: Batch | None, cut: int) -> tuple[list[tuple[str, Encoded]], list[BlockRecord]]:
        """The records, each piece with its topic, and blocks of an epoch that ends at `cut`."""
        ...


class SinkOutlet:
    """The query's results as JSON, with keys where they are upserts."""

    def __init__(
        self, topic: str, query: Query, finish: Callable[[Batch], Batch] | None = None, since: int = 0
    ) -> None:
        """Args: `since`: results with a smaller ts are another plan's."""
        self._topic = topic
        self._keys = key_names(query)
        self._finish = finish
        self._since = since

    def owes(self, cut: int) -> bool:
        """Nobody waits for a watermark at the sink."""
        return False

    def encode(self, results: Batch | None, cut: int) -> tuple[list[tuple[str, Encoded]], list[BlockRecord]]:
        """In pieces of bounded size."""
        if results is not None and len(results) and int(results.ts[0]) < self._since:
            results = results.slice(int(np.searchsorted(results.ts, self._since)), len(results))
        if results is None or len(results) == 0:
            return [], []
        results = results if self._finish is None else self._finish(results)
        return [(self._topic, piece) for piece in pieces(results, self._keys)], []


class BlockOutlet:
    """Intermediate results, and watermarks.

    Args:
        announced: the watermark that was committed last.
    """

    def __init__(self, routes: Sequence[Route], announced: int, nothing: Batch) -> None:
        self._routes = list(routes)
        self._announced = announced
        self._nothing = nothing

    def owes(self, cut: int) -> bool:
        """Readers wait for every step."""
        return cut > self._announced

    def encode(self, results: Batch | None, cut: int) -> tuple[list[tuple[str, Encoded]], list[BlockRecord]]:
        """Blocks for every partition that the task writes to; the last of each carries the watermark."""
        if not self.owes(cut):
            return [], []
        self._announced = cut
        batch = self._nothing if results is None else results
        blocks = [
            BlockRecord(route.edge.topic, partition, raw, tuples)
            for route in self._routes
            for partition, raw, tuples in route.blocks(batch, cut)
        ]
        return [], blocks


def outlet_of(
    topic: str, query: Query, part: Part | None, announced: int, nothing: Batch, since: int = 0
) -> Outlet:
    """The outlet of a task.

    Args:
        topic: of the query's results.
        since: where the plan that it is a part of begins.
        part: what it runs; None for a whole query.
        nothing: results of its engine, none of them.
    """
    if part is None:
        return SinkOutlet(topic, query)
    if not part.operator.outputs:
        return SinkOutlet(topic, query, Finish(part.operator), since)
    return BlockOutlet([Route(edge, part.share) for edge in part.operator.outputs], announced, nothing)


def late_records(results: Batch) -> list[Encoded]:
    """Results that come late for want of memory, marked as such."""
    return [encode_results(piece, CLEANUP_PHASE) for piece in _slices(results)]


def pieces(results: Batch, keys: Sequence[str] | None) -> Iterator[Encoded]:
    """Results as JSON in pieces of bounded size, with keys where they are upserts."""
    for piece in _slices(results):
        yield encode_results(piece) if keys is None else encode_upserts(piece, keys)


def _slices(results: Batch) -> Iterator[Batch]:
    for begin in range(0, len(results), RESULT_CHUNK):
        yield results.slice(begin, min(begin + RESULT_CHUNK, len(results)))
