"""How `weir run` drives an engine, on a laptop's threads: what is read when, where epochs end, what is written.

Three kinds of threads, joined by short queues: one per source decodes ahead (`services.files.readers`), the
calling one runs the engine, one encodes and writes results (`services.files.sinks`). The first and the last do
their work without the GIL.

Invariants:

- What comes next is `services.batch.source_feed`'s to say: the source that is behind in event time.
- Which block comes next and where epochs are cut depends on the files alone, never on timing; so does every
  output byte. Only for a live source (a pipe) is the engine advanced early, when there is nothing to read:
  then the epochs, and with them the timeline, depend on timing; the results do not.
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
from services.batch.run_statistics import RunStatistics
from services.batch.source_feed import SourceFeed
from services.files.sinks import LineSink, ResultWriter
from services.files.sources import SourceFile
from services.spill.budget import Spill

COALESCED_TUPLES: Final = 100_000
"""Epochs that are ready at once are processed as one when they hold fewer tuples than this."""


E = TypeVar("E", Engine, GroupEngine)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a run writes: results by their query's number; None where the option was not given."""

    results: Sequence[LineSink]
    late: LineSink | None = None
    dead_letters: LineSink | None = None


class FileRun(ABC, Generic[E]):
    """One run over files.

    Attributes:
        statistics: counters, filled while it runs.
        engine: None until the first block of every source has been seen.
        written: results written.
    """

    def __init__(
        self,
        sources: Mapping[str, SourceFile],
        outputs: Outputs,
        *,
        epoch_ms: int,
        least_tuples: int,
        spill: Spill | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        """Args:
        sources: by stream name, one per stream that is read.
        least_tuples: epochs that are ready at once are joined up to so many waiting tuples.
        spill: the memory budget, if there is one, and where what leaves it goes.
        progress: called with the bytes read so far.
        """
        self.statistics = RunStatistics()
        self.engine: E | None = None
        self.written = 0
        self._sources = sources
        self._outputs = outputs
        self._epoch_ms = epoch_ms
        self._least_tuples = least_tuples if spill is None else min(least_tuples, spill.waiting_tuples)
        self._spill = spill
        self._progress = progress
        self._feed: SourceFeed | None = None

    @property
    def first_dead(self) -> str:
        """The first dead letter as `file:line: reason`, for a message."""
        return "" if self._feed is None else self._feed.first_dead

    def run(self) -> E:
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
        writer = ResultWriter(*self._outputs.results)
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
        self.statistics.advanced(self._boundary(feed.latest) + self._epoch_ms, engine.statistics())
        return engine

    def _boundary(self, ts: int) -> int:
        """The start of the epoch that holds `ts`."""
        return ts // self._epoch_ms * self._epoch_ms

    def _advance(self, engine: E, writer: ResultWriter, least_tuples: int) -> None:
        """Process the whole epochs before the watermark, once enough tuples wait."""
        if engine.pending_tuples < least_tuples:
            return
        cut = self._boundary(engine.watermark())
        if cut > engine.cut:
            self._write(engine, writer, cut)
            self.statistics.advanced(cut, engine.statistics())

    @abstractmethod
    def _engine(self, samples: Mapping[str, Batch]) -> E:
        """The engine, whose sources begin with these tuples."""

    @abstractmethod
    def _write(self, engine: E, writer: ResultWriter, cut: int) -> None:
        """Process everything before a cut, and write what comes of it."""

    @abstractmethod
    def _clean(self, engine: E, writer: ResultWriter) -> None:
        """In the end, find what is owed for want of memory, and write it."""
