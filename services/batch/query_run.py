"""One query over files, as `weir run` runs it: how its engine is chosen, watched, and made to pay what it owes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from operators.data.statistics import EngineStatistics
from operators.engine.engine import Engine
from operators.engine.executors import cheapest_executor
from operators.plan.choose import choose_plan, sample_statistics
from operators.plan.plan import Plan
from schemas.codecs.encode import CLEANUP_PHASE
from schemas.columns import Batch
from schemas.query import Query
from services.batch.file_run import COALESCED_TUPLES, FileRun, Outputs
from services.batch.plan_changes import PlanChange
from services.files.sinks import ResultWriter
from services.files.sources import SourceFile
from services.files.tables import Tables
from services.spill.budget import Spill


class Watch(Protocol):
    """Looks at the engine at event times of its choice."""

    def stops(self, begin: int, end: int) -> Sequence[int]:
        """Ascending event times in begin < t <= end."""
        ...

    def note(self, at: int, statistics: EngineStatistics) -> None:
        """What the engine is like when everything before `at` has been processed."""
        ...


class Run(FileRun[Engine]):
    """One run of one query over files."""

    def __init__(
        self,
        query: Query,
        sources: Mapping[str, SourceFile],
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
        """Args: those of `FileRun`, and
        changes: plans to change to while it runs.
        feedback: let operators tell each other what is not demanded.
        cleans: find in the end what is owed for want of memory; else it stays owed.
        watch: looks at the engine now and then.
        """
        super().__init__(
            sources, outputs, epoch_ms=epoch_ms, least_tuples=least_tuples, spill=spill, progress=progress
        )
        self.query = query
        self._plan = plan
        self._executor = executor
        self._tables = (tables or Tables()).batches
        self._changes = changes
        self._feedback = feedback
        self._cleans = cleans
        self._watch = watch

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

    def _write(self, engine: Engine, writer: ResultWriter, cut: int) -> None:
        if self._watch is not None:
            self._watched(self._watch, engine, writer, cut)
        self._step(engine, writer, cut)

    def _watched(self, watch: Watch, engine: Engine, writer: ResultWriter, cut: int) -> None:
        """Go towards a cut in the steps of who watches."""
        feed = self._feed
        if feed is None or feed.earliest is None:
            return
        for stop in watch.stops(max(engine.cut, feed.earliest), min(cut, feed.latest)):
            self._step(engine, writer, stop)
            watch.note(stop, engine.statistics())

    def _step(self, engine: Engine, writer: ResultWriter, cut: int) -> None:
        writer.write(engine.advance(cut))
        self._write_cleaned(engine, writer)

    def _clean(self, engine: Engine, writer: ResultWriter) -> None:
        """Unless somebody else is to find it."""
        if self._cleans:
            engine.clean(between=lambda: self._write_cleaned(engine, writer))
            self._write_cleaned(engine, writer)

    def _write_cleaned(self, engine: Engine, writer: ResultWriter) -> None:
        for batch in engine.cleaned():
            writer.write(batch, CLEANUP_PHASE)
