"""The driver of `weir run`: files in, one engine, results out, on a laptop's threads.

Three kinds of threads, joined by short queues: one per source decodes ahead (`services.readers`), the
calling one runs the engine, one encodes and writes results (`services.sinks`). The first and the last do
their work without the GIL.

Invariants:

- What comes next is `services.source_feed`'s to say: the source that is behind in event time.
- Which block comes next and where epochs are cut depends on the files alone, never on timing; so does every
  output byte. Only for a live source (a pipe) is the engine advanced early, when there is nothing to read:
  then the epochs, and with them the timeline, depend on timing; the results do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from operators.choose import choose_plan, sample_statistics
from operators.engine import Engine
from operators.executors import cheapest_executor
from operators.plan import Plan
from operators.statistics import EngineStatistics
from operators.watermark import END
from schemas.codecs.encode import CLEANUP_PHASE
from schemas.columns import Batch
from schemas.query import Query
from services.files import SourceFile
from services.plan_changes import PlanChange
from services.run_statistics import RunStatistics
from services.sinks import LineSink, ResultWriter
from services.source_feed import SourceFeed
from services.spilling import Spill
from services.tables import Tables

COALESCED_TUPLES: Final = 100_000
"""Epochs that are ready at once are processed as one when they hold fewer tuples than this."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a run writes; None where the option was not given."""

    results: LineSink
    late: LineSink | None = None
    dead_letters: LineSink | None = None


class Watch(Protocol):
    """Looks at the engine at event times of its choice."""

    def stops(self, begin: int, end: int) -> Sequence[int]:
        """Ascending event times in begin < t <= end."""
        ...

    def note(self, at: int, statistics: EngineStatistics) -> None:
        """What the engine is like when everything before `at` has been processed."""
        ...


class Run:
    """One run of one query over files.

    Attributes:
        statistics: counters, filled while it runs.
        engine: None until the first block of every source has been seen.
        written: results written.
    """

    def __init__(
        self,
        query: Query,
        sources: dict[str, SourceFile],
        outputs: Outputs,
        *,
        epoch_ms: int,
        least_tuples: int = COALESCED_TUPLES,
        plan: Plan | None = None,
        executor: str | None = None,
        tables: Tables | None = None,
        changes: Sequence[PlanChange] = (),
        feedback: bool = False,
        spill: Spill | None = None,
        cleans: bool = True,
        progress: Callable[[int], None] | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Args:
        sources: by stream name, one per stream of the query.
        least_tuples: epochs that are ready at once are joined up to so many waiting tuples.
        changes: plans to change to while it runs.
        feedback: let operators tell each other what is not demanded.
        spill: keep within a memory budget.
        cleans: find in the end what is owed for that; else it stays owed.
        progress: called with the bytes read so far.
        watch: looks at the engine now and then.
        """
        self.query = query
        self.statistics = RunStatistics()
        self.engine: Engine | None = None
        self.written = 0
        self._sources = sources
        self._outputs = outputs
        self._epoch_ms = epoch_ms
        self._least_tuples = least_tuples if spill is None else min(least_tuples, spill.waiting_tuples)
        self._plan = plan
        self._executor = executor
        self._tables = (tables or Tables()).batches
        self._changes = changes
        self._feedback = feedback
        self._spill = spill
        self._cleans = cleans
        self._progress = progress
        self._watch = watch
        self._feed: SourceFeed | None = None

    @property
    def first_dead(self) -> str:
        """The first dead letter as `file:line: reason`, for a message."""
        return "" if self._feed is None else self._feed.first_dead

    def run(self) -> Engine:
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
        writer = ResultWriter(self._outputs.results)
        try:
            with writer:
                engine = self._run(feed, writer)
        finally:
            self.written = writer.written
            feed.stop()
            self.statistics.seconds = time.perf_counter() - began
        return engine

    def _run(self, feed: SourceFeed, writer: ResultWriter) -> Engine:
        self.engine = engine = self._engine(feed.samples())
        feed.begin(engine)
        while (name := feed.next_source(engine)) is not None:
            self._advance(engine, feed, writer, 0 if feed.waiting(name) else self._least_tuples)
            feed.take(engine, name)
        self._look(engine, feed, writer, feed.latest)
        self._write(engine, writer, END)
        if self._spill is not None and self._cleans:
            engine.clean()
            self._write_cleaned(engine, writer)
        self.statistics.advanced(self._boundary(feed.latest) + self._epoch_ms, engine.statistics())
        return engine

    def _engine(self, samples: Mapping[str, Batch]) -> Engine:
        """What was not asked for is chosen from the first blocks; a plan that was given is run as the tree it is."""
        statistics = sample_statistics(self.query, {**samples, **self._tables})
        plan = self._plan or choose_plan(self.query, statistics)
        tree = self._plan is not None or bool(self._changes) or self._spill is not None
        executor = self._executor or ("xjoin" if tree else cheapest_executor(self.query, plan, statistics))
        engine = Engine(
            self.query,
            plan=plan,
            executor=executor,
            statistics=statistics,
            tables=self._tables,
            feedback=self._feedback,
            budget=None if self._spill is None else self._spill.budget,
            blocks=None if self._spill is None else self._spill.blocks,
            clock=time.perf_counter,
        )
        for change in self._changes:
            engine.migrate(change.plan, change.strategy, change.cut, change.goal)
        return engine

    def _boundary(self, ts: int) -> int:
        """The start of the epoch that holds `ts`."""
        return ts // self._epoch_ms * self._epoch_ms

    def _advance(self, engine: Engine, feed: SourceFeed, writer: ResultWriter, least_tuples: int) -> None:
        """Process the whole epochs before the watermark, once enough tuples wait."""
        if engine.pending_tuples < least_tuples:
            return
        cut = self._boundary(engine.watermark())
        if cut > engine.cut:
            self._look(engine, feed, writer, cut)
            self._write(engine, writer, cut)
            self.statistics.advanced(cut, engine.statistics())

    def _write(self, engine: Engine, writer: ResultWriter, cut: int) -> None:
        """Process everything before a cut, and write what comes of it."""
        writer.write(engine.advance(cut))
        self._write_cleaned(engine, writer)

    def _write_cleaned(self, engine: Engine, writer: ResultWriter) -> None:
        for batch in engine.cleaned():
            writer.write(batch, CLEANUP_PHASE)

    def _look(self, engine: Engine, feed: SourceFeed, writer: ResultWriter, cut: int) -> None:
        """Go towards a cut in the steps of who watches."""
        if self._watch is None or feed.earliest is None:
            return
        for stop in self._watch.stops(max(engine.cut, feed.earliest), cut):
            self._write(engine, writer, stop)
            self._watch.note(stop, engine.statistics())
