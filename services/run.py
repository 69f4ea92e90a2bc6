"""The driver of `weir run`: files in, one engine, results out, on a laptop's threads.

Three kinds of threads, joined by short queues: one per source decodes ahead (`services.readers`), the
calling one runs the engine, one encodes and writes results (`services.sinks`). The first and the last do
their work without the GIL.

Invariants:

- The next block is taken from the source whose watermark is lowest, so that no source runs ahead of the
  others in event time and what waits in the engine stays small.
- Which block comes next and where epochs are cut depends on the files alone, never on timing; so does every
  output byte. Only for a live source (a pipe) is the engine advanced early, when there is nothing to read:
  then the epochs, and with them the timeline, depend on timing; the results do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import orjson

from operators.choose import choose_plan, sample_statistics
from operators.engine import Engine
from operators.executors import cheapest_executor
from operators.plan import Plan
from operators.statistics import EngineStatistics
from operators.watermark import END
from schemas.codecs.encode import CLEANUP_PHASE
from schemas.query import Query
from services.files import SourceBlock, SourceFile
from services.plan_changes import PlanChange
from services.readers import SourceReader
from services.run_statistics import RunStatistics
from services.sinks import LineSink, ResultWriter
from services.spilling import Spill
from services.tables import Tables

PARTITION: Final = 0
"""A file is one partition of its stream."""

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
        first_dead: the first dead letter as `file:line: reason`, for a message.
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
        self.first_dead = ""
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
        self._earliest: int | None = None
        self._positions = dict.fromkeys(sources, 0)
        self._latest = 0

    def run(self) -> Engine:
        """Read every source to its end; returns the engine as it is then.

        Raises:
            DataError: a source cannot be read further.
            StateError: an output cannot be written.
            BrokenPipeError: nobody reads standard output any more.
        """
        began = time.perf_counter()
        readers = {name: SourceReader(source) for name, source in self._sources.items()}
        writer = ResultWriter(self._outputs.results)
        try:
            with writer:
                engine = self._feed(readers, writer)
        finally:
            self.written = writer.written
            for reader in readers.values():
                reader.stop()
            self.statistics.seconds = time.perf_counter() - began
        return engine

    def _feed(self, readers: dict[str, SourceReader], writer: ResultWriter) -> Engine:
        blocks = {name: reader.next() for name, reader in readers.items()}
        self.engine = engine = self._engine(blocks)
        open_ = list(readers)
        for name, block in blocks.items():
            self._take(engine, open_, name, block)
        while open_:
            name = min(open_, key=lambda name: engine.partition_watermark(name, PARTITION))
            reader = readers[name]
            waiting = reader.source.live and not reader.ready()
            self._advance(engine, writer, 0 if waiting else self._least_tuples)
            self._take(engine, open_, name, reader.next())
        self._look(engine, writer, self._latest)
        self._write(engine, writer, END)
        if self._spill is not None and self._cleans:
            engine.clean()
            self._write_cleaned(engine, writer)
        self.statistics.advanced(self._boundary(self._latest) + self._epoch_ms, engine.statistics())
        return engine

    def _engine(self, blocks: dict[str, SourceBlock | None]) -> Engine:
        """What was not asked for is chosen from the first blocks; a plan that was given is run as the tree it is."""
        samples = {name: block.decoded.batch for name, block in blocks.items() if block is not None}
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

    def _advance(self, engine: Engine, writer: ResultWriter, least_tuples: int) -> None:
        """Process the whole epochs before the watermark, once enough tuples wait."""
        if engine.pending_tuples < least_tuples:
            return
        cut = self._boundary(engine.watermark())
        if cut > engine.cut:
            self._look(engine, writer, cut)
            self._write(engine, writer, cut)
            self.statistics.advanced(cut, engine.statistics())

    def _write(self, engine: Engine, writer: ResultWriter, cut: int) -> None:
        """Process everything before a cut, and write what comes of it."""
        writer.write(engine.advance(cut))
        self._write_cleaned(engine, writer)

    def _write_cleaned(self, engine: Engine, writer: ResultWriter) -> None:
        for batch in engine.cleaned():
            writer.write(batch, CLEANUP_PHASE)

    def _look(self, engine: Engine, writer: ResultWriter, cut: int) -> None:
        """Go towards a cut in the steps of who watches."""
        if self._watch is None or self._earliest is None:
            return
        for stop in self._watch.stops(max(engine.cut, self._earliest), cut):
            self._write(engine, writer, stop)
            self._watch.note(stop, engine.statistics())

    def _take(self, engine: Engine, open_: list[str], name: str, block: SourceBlock | None) -> None:
        """Push a block, or close the partition of a source that has ended."""
        if block is None:
            engine.close(name, PARTITION)
            open_.remove(name)
            return
        batch = block.decoded.batch
        if len(batch):
            late = engine.push(name, PARTITION, batch)
            if self._outputs.late is not None and late.any():
                self._outputs.late.write(block.records(late))
            self._latest = max(self._latest, int(batch.ts.max()))
            self._earliest = min(int(batch.ts.min()), self._latest if self._earliest is None else self._earliest)
        if block.decoded.dead:
            self._bury(name, block)
        if self._progress is not None:
            self._positions[name] = block.position
            self._progress(sum(self._positions.values()))

    def _bury(self, name: str, block: SourceBlock) -> None:
        """Count dead letters and write them to their file."""
        dead = block.decoded.dead
        self.statistics.dead_letters += len(dead)
        by_stream = self.statistics.dead_by_stream
        by_stream[name] = by_stream.get(name, 0) + len(dead)
        if not self.first_dead:
            self.first_dead = f"{self._sources[name].name}:{block.lines[0]}: {dead[0].reason}"
        if self._outputs.dead_letters is None:
            return
        letters = [
            orjson.dumps(
                {
                    "reason": letter.reason,
                    "source": name,
                    "file": self._sources[name].name,
                    "line": line,
                    # Bytes that are no UTF-8 are shown as \xff; everything else is as it was.
                    "raw": letter.raw.decode("utf-8", "backslashreplace"),
                },
                option=orjson.OPT_APPEND_NEWLINE,
            )
            for letter, line in zip(dead, block.lines, strict=True)
        ]
        self._outputs.dead_letters.write(b"".join(letters))
