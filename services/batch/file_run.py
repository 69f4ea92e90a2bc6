"""`FileRun`: how `weir run` drives an engine over files. It decides what is read when, where epochs end, and writes.

`query_run.Run` and `group_run.GroupRun` are its two forms. It uses three kinds of threads, connected by short queues:
one per source decodes ahead (`services.files.readers`), the calling thread runs the engine, and one encodes and writes
results (`services.files.sinks`). The first and the last work without the GIL.

Invariants:

- `services.batch.source_feed` chooses the next block: that of the source that is behind in event time.
- The order of blocks and the ends of epochs depend on the files alone, never on timing; so does every output byte. Only
  if a live source (a pipe) has nothing to read is the engine advanced early: then the epochs, and with them the
  timeline, depend on timing; the results do not.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from operators.data.watermark import END
from operators.engine.engine import Engine
from operators.groups.engine import GroupEngine
from schemas.columns import Batch
from schemas.query import Query
from services.batch.run_statistics import RunStatistics
from services.batch.source_feed import SourceFeed
from services.files.sinks import LineSink, ResultWriter
from services.files.sources import SourceFile
from services.spill.budget import SpillSetup

COALESCED_TUPLES: Final = 100_000
"""Epochs that are ready at the same time are processed as one while they have fewer tuples than this."""


E = TypeVar("E", Engine, GroupEngine)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a run writes.

    Attributes:
        results: the sinks of results, by the query's number.
        late: of late records; None to write none.
        dead_letters: of dead letters; None to write none.
    """

    results: Sequence[LineSink]
    late: LineSink | None = None
    dead_letters: LineSink | None = None


class FileRun(ABC, Generic[E]):
    """One run over files.

    Attributes:
        statistics: counters, filled during the run.
        engine: None until the first block of every source has been seen.
        written: how many results have been written.
    """

    def __init__(
        self,
        sources: Mapping[str, SourceFile],
        outputs: Outputs,
        queries: Sequence[Query],
        *,
        epoch_ms: int,
        least_tuples: int,
        spill: SpillSetup | None,
        keep_timeline: bool,
        progress: Callable[[int], None] | None,
    ) -> None:
        """Args:
        sources: by stream name, one per stream that is read.
        queries: in the order of the sinks of their results.
        least_tuples: epochs that are ready at the same time are processed as one up to so many waiting tuples.
        spill: the memory budget and the store of spilled blocks; None without a budget.
        keep_timeline: keep the timeline of the statistics, which grows with every advance of the engine.
        progress: called with the bytes read so far.
        """
        self.statistics = RunStatistics()
        self.engine: E | None = None
        self.written = 0
        self._sources = sources
        self._outputs = outputs
        self._queries = queries
        self._epoch_ms = epoch_ms
        self._least_tuples = least_tuples if spill is None else min(least_tuples, spill.waiting_tuples)
        self._spill = spill
        self._keep_timeline = keep_timeline
        self._progress = progress
        self._feed: SourceFeed | None = None

    @property
    def first_dead(self) -> str:
        """The first dead letter as `file:line: reason`, for a message."""
        return "" if self._feed is None else self._feed.first_dead

    def run(self) -> E:
        """Read every source to its end; returns the engine in its final state.

        Raises:
            DataError: a source cannot be read further.
            StateError: an output cannot be written.
            BrokenPipeError: the reader of standard output has closed it.
        """
        began = time.perf_counter()
        self._feed = feed = SourceFeed(
            self._sources,
            self.statistics,
            late=self._outputs.late,
            dead_letters=self._outputs.dead_letters,
            progress=self._progress,
        )
        writer = ResultWriter(self._outputs.results, self._queries)
        try:
            with writer:
                engine = self._run(feed, writer)
        finally:
            self.written = writer.written
            feed.stop()
            self.statistics.seconds = time.perf_counter() - began
        return engine

    def _run(self, feed: SourceFeed, writer: ResultWriter) -> E:
        self.engine = engine = self._engine(feed.samples())
        feed.begin(engine)
        while (name := feed.next_source(engine)) is not None:
            self._advance(engine, writer, 0 if feed.waiting(name) else self._least_tuples)
            feed.take(engine, name)
        self._write(engine, writer, END)
        self._clean(engine, writer)
        self.statistics.latest = None if feed.earliest is None else feed.latest
        self._note(self._boundary(feed.latest) + self._epoch_ms, engine)
        return engine

    def _boundary(self, ts: int) -> int:
        """The start of the epoch that contains `ts`."""
        return ts // self._epoch_ms * self._epoch_ms

    def _advance(self, engine: E, writer: ResultWriter, least_tuples: int) -> None:
        """Process the complete epochs before the watermark, if enough tuples wait."""
        if engine.pending_tuples < least_tuples:
            return
        cut = self._boundary(engine.watermark())
        if cut > engine.cut:
            self._write(engine, writer, cut)
            self._note(cut, engine)

    def _note(self, event_time: int, engine: E) -> None:
        if self._keep_timeline:
            self.statistics.advanced(event_time, engine.statistics())

    @abstractmethod
    def _engine(self, samples: Mapping[str, Batch]) -> E:
        """Make the engine.

        Args:
            samples: the first tuples of each source, by stream name.
        """

    @abstractmethod
    def _write(self, engine: E, writer: ResultWriter, cut: int) -> None:
        """Process everything before a cut, and write the results."""

    @abstractmethod
    def _clean(self, engine: E, writer: ResultWriter) -> None:
        """At the end of the run, produce and write the pending results of spilled state."""
