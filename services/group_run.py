"""The driver of `weir run` for several queries: files in, one engine of all, results of every query to its own sink.

As `services.run` for one query, and with the same bytes per query as that writes for it alone: epochs end at the same
event times for all, and depend on the files alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from operators.groups.engine import GroupEngine
from operators.groups.parts import group_engine
from operators.watermark import END
from schemas.codecs.encode import CLEANUP_PHASE
from schemas.columns import Batch
from schemas.query import Query
from services.files import SourceFile
from services.run import COALESCED_TUPLES
from services.run_statistics import RunStatistics
from services.sinks import LineSink, ResultWriter
from services.source_feed import SourceFeed
from services.spilling import Spill
from services.tables import Tables


@dataclass(frozen=True, slots=True)
class GroupOutputs:
    """Where a run writes: results by the query's name; None where the option was not given."""

    results: Mapping[str, LineSink]
    late: LineSink | None = None
    dead_letters: LineSink | None = None


class GroupRun:
    """One run of several queries over files.

    Attributes:
        statistics: counters, filled while it runs.
        written: results written, of all queries.
    """

    def __init__(
        self,
        queries: Sequence[Query],
        sources: Mapping[str, SourceFile],
        outputs: GroupOutputs,
        *,
        epoch_ms: int,
        executor: str | None = None,
        least_tuples: int = COALESCED_TUPLES,
        tables: Tables | None = None,
        spill: Spill | None = None,
        feedback: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Args:
        sources: by stream name, one per stream that some query reads.
        executor: see `operators.groups.parts`; None for what suits the queries.
        least_tuples: epochs that are ready at once are joined up to so many waiting tuples.
        spill: the memory budget, if there is one, and where what leaves it goes.
        feedback: see `operators.groups.parts.group_engine`.
        progress: called with the bytes read so far.
        """
        self.queries = tuple(queries)
        self.statistics = RunStatistics()
        self.written = 0
        self._sources = sources
        self._outputs = outputs
        self._epoch_ms = epoch_ms
        self._executor = executor
        self._least_tuples = least_tuples if spill is None else min(least_tuples, spill.waiting_tuples)
        self._spill = spill
        self._feedback = feedback
        self._tables = (tables or Tables()).batches
        self._progress = progress
        self._feed: SourceFeed | None = None

    @property
    def first_dead(self) -> str:
        """The first dead letter as `file:line: reason`, for a message."""
        return "" if self._feed is None else self._feed.first_dead

    def run(self) -> GroupEngine:
        """Read every source to its end; returns the engine as it is then.

        Raises:
            DataError: a source cannot be read further.
            StateError: an output cannot be written.
            BrokenPipeError: nobody reads standard output any more.
        """
        began = time.perf_counter()
        self._feed = feed = SourceFeed(
            self._sources,
            self.statistics,
            late=self._outputs.late,
            dead_letters=self._outputs.dead_letters,
            progress=self._progress,
        )
        writer = ResultWriter(*(self._outputs.results[query.name] for query in self.queries))
        try:
            with writer:
                engine = self._run(feed, writer)
        finally:
            self.written = writer.written
            feed.stop()
            self.statistics.seconds = time.perf_counter() - began
        return engine

    def _run(self, feed: SourceFeed, writer: ResultWriter) -> GroupEngine:
        engine = self._engine(feed.samples())
        feed.begin(engine)
        while (name := feed.next_source(engine)) is not None:
            self._advance(engine, writer, 0 if feed.waiting(name) else self._least_tuples)
            feed.take(engine, name)
        self._write(engine, writer, END)
        engine.clean()
        self._write_cleaned(engine, writer)
        self.statistics.advanced(self._boundary(feed.latest) + self._epoch_ms, engine.statistics())
        return engine

    def _engine(self, samples: Mapping[str, Batch]) -> GroupEngine:
        return group_engine(
            self.queries,
            executor=self._executor,
            samples=samples,
            tables=self._tables,
            clock=time.perf_counter,
            budget=None if self._spill is None else self._spill.budget,
            blocks=None if self._spill is None else self._spill.blocks,
            feedback=self._feedback,
        )

    def _boundary(self, ts: int) -> int:
        """The start of the epoch that holds `ts`."""
        return ts // self._epoch_ms * self._epoch_ms

    def _advance(self, engine: GroupEngine, writer: ResultWriter, least_tuples: int) -> None:
        """Process the whole epochs before the watermark, once enough tuples wait."""
        if engine.pending_tuples < least_tuples:
            return
        cut = self._boundary(engine.watermark())
        if cut > engine.cut:
            self._write(engine, writer, cut)
            self.statistics.advanced(cut, engine.statistics())

    def _write(self, engine: GroupEngine, writer: ResultWriter, cut: int) -> None:
        """Process everything before a cut, and write what comes of it."""
        results = engine.advance(cut)
        for number, query in enumerate(self.queries):
            writer.write(results[query.name], sink=number)
        self._write_cleaned(engine, writer)

    def _write_cleaned(self, engine: GroupEngine, writer: ResultWriter) -> None:
        found = engine.cleaned()
        for number, query in enumerate(self.queries):
            for batch in found.get(query.name, ()):
                writer.write(batch, CLEANUP_PHASE, sink=number)
