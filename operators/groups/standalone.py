"""Runs a query of a group that shares no operator: it has an engine of its own, fed from the group's intake.

`operators.groups.sharing` creates it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from operators.engine.engine import Engine
from operators.groups.statistics import QueryStatistics, RunnerStatistics
from schemas.columns import Batch
from schemas.query import Query, Stream

PARTITION = 0
"""The intake has merged a stream's partitions into one order already."""


def merged(query: Query) -> Query:
    """The query over streams as the group gives them: without repeats, and with what has been looked up.

    Args:
        query: with the group's names for its lookups (`schemas.shared_lookups`).
    """
    sources = tuple(
        replace(
            source,
            stream=replace(
                source.stream,
                fields=tuple(dict.fromkeys(query.fields_of(source.stream))),
                deduplicate=(),
                deduplicate_within_ms=0,
            ),
        )
        if isinstance(source.stream, Stream)
        else source
        for source in query.sources
    )
    return replace(query, sources=sources, lookups=())


class StandaloneQuery:
    """Runs one query of a group.

    The engine is a fresh one with one partition, 0, of each of its streams. Its tuples arrive in the total order of the
    group's intake. Among the query's own streams, that is the order of its own intake.

    Args:
        query: with the group's names for its lookups; the engine runs `merged(query)`.
    """

    def __init__(self, engine: Engine, query: Query) -> None:
        self.engine = engine
        self.queries: tuple[Query, ...] = (query,)
        self.name = engine.query.name
        self.names: tuple[str, ...] = (self.name,)
        self._streams = tuple(stream.name for stream in engine.query.streams())

    def process(self, epoch: Mapping[str, Batch], cut: int) -> dict[str, Batch]:
        """Process an epoch up to the event time `cut`."""
        for stream in self._streams:
            if stream in epoch:
                self.engine.insert(stream, PARTITION, epoch[stream])
        return {self.name: self.engine.advance(cut)}

    def nothing(self) -> dict[str, Batch]:
        """No results."""
        return {self.name: self.engine.advance(self.engine.cut)}

    def clean(self, most: int | None = None) -> bool:
        """Produce pending results; `cleaned` returns them."""
        return self.engine.clean(most)

    def cleaned(self) -> dict[str, list[Batch]]:
        """The late results found since the last call."""
        found = self.engine.cleaned()
        return {self.name: found} if found else {}

    def horizon(self, stream: str) -> int | None:
        """The smallest ts whose tuples of the stream the query still needs; None where it does not read it."""
        return self.engine.horizon(stream) if stream in self._streams else None

    def count_beside(self, size_bytes: int) -> None:
        """Set the bytes outside the engine that count against its budget."""
        self.engine.beside_bytes = size_bytes

    def statistics(self) -> RunnerStatistics:
        """Counters and sizes as of now."""
        own = self.engine.statistics()
        return RunnerStatistics(
            queries=(QueryStatistics(self.name, own.results, own.executor, own.plan, shared=False),),
            comparisons=own.comparisons,
            intermediate_results=own.intermediate_results,
            state_tuples=own.state_tuples,
            state_bytes=own.state_bytes,
            peak_state_tuples=own.peak_state_tuples,
            peak_state_bytes=own.peak_state_bytes,
            busy_s=own.busy_s,
            spill=own.spill,
            feedback=own.feedback,
        )
