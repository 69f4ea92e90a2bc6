"""A query of a group that shares no operator: an engine of its own, fed from the group's intake."""

from __future__ import annotations

from collections.abc import Mapping

from operators.engine.engine import Engine
from operators.groups.statistics import PartStatistics, QueryStatistics
from schemas.columns import Batch

PARTITION = 0
"""The intake has put a stream's partitions into one order already."""


class ApartQuery:
    """A part of one query.

    The engine is a fresh one with one partition, 0, of each of its streams. Its tuples come in the total order of the
    group's intake, which among its own streams is that of its own.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
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
        """Find results that are owed for want of memory; `cleaned` has them."""
        return self.engine.clean(most)

    def cleaned(self) -> dict[str, list[Batch]]:
        """What was found late since this was last asked."""
        found = self.engine.cleaned()
        return {self.name: found} if found else {}

    def horizon(self, stream: str) -> int | None:
        """The smallest ts whose tuples of the stream the query still needs; None where it does not read it."""
        return self.engine.horizon(stream) if stream in self._streams else None

    def statistics(self) -> PartStatistics:
        """Counters and sizes as of now."""
        one = self.engine.statistics()
        return PartStatistics(
            queries=(QueryStatistics(self.name, one.results, one.executor, one.plan, shared=False),),
            comparisons=one.comparisons,
            intermediate_results=one.intermediate_results,
            state_tuples=one.state_tuples,
            state_bytes=one.state_bytes,
            peak_state_tuples=one.peak_state_tuples,
            peak_state_bytes=one.peak_state_bytes,
            busy_s=one.busy_s,
            spill=one.spill,
            feedback=one.feedback,
        )
