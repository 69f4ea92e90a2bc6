"""`Run`: `weir run` of one query over files. It chooses the engine, lets an observer watch it, and cleans up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from operators.autopilot.autopilot import Autopilot, Limits, Mode, why_not
from operators.data.statistics import EngineStatistics
from operators.data.watermark import END
from operators.engine.engine import Engine
from operators.engine.executors import cheapest_executor
from operators.plan.choose import choose_plan, sample_statistics
from operators.plan.plan import Plan
from schemas.columns import Batch
from schemas.query import CLEANUP_PHASE, Query
from services.batch.file_run import COALESCED_TUPLES, FileRun, Outputs
from services.batch.plan_changes import PlanChange
from services.files.sinks import ResultWriter
from services.files.sources import SourceFile
from services.files.tables import Tables
from services.spill.budget import SpillSetup


class RunObserver(Protocol):
    """Observes the engine at event times that it chooses."""

    def stops(self, begin: int, end: int) -> Sequence[int]:
        """Ascending event times in begin < t <= end."""
        ...

    def note(self, at: int, statistics: EngineStatistics) -> None:
        """Receive the statistics of the engine when everything before `at` has been processed."""
        ...


class Run(FileRun[Engine]):
    """One run of one query over files.

    Attributes:
        autopilot: adapts the plan; None where none does.
        not_adapted: why the plan is not adapted although that was asked for; empty where it is.
    """

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
        spill: SpillSetup | None = None,
        keep_timeline: bool = False,
        cleans: bool = True,
        progress: Callable[[int], None] | None = None,
        observer: RunObserver | None = None,
        adapt: Mode | None = None,
        asked: bool = True,
        limits: Limits | None = None,
    ) -> None:
        """Args: those of `FileRun`, and
        changes: plan changes during the run.
        feedback: let operators exchange feedback about results that are not demanded.
        cleans: produce the pending results of spilled state at the end; else they stay pending.
        observer: observes the engine during the run.
        adapt: whether the plan is adapted; None for no.
        asked: whether the user asked for that. Then an executor is chosen whose plan can change.
        limits: what its changes may do.
        """
        super().__init__(
            sources,
            outputs,
            [query],
            epoch_ms=epoch_ms,
            least_tuples=least_tuples,
            spill=spill,
            keep_timeline=keep_timeline,
            progress=progress,
        )
        self.query = query
        self._plan = plan
        self._executor = executor
        self._tables = (tables or Tables()).batches
        self._changes = changes
        self._feedback = feedback
        self._cleans = cleans
        self._observer = observer
        self._adapt = adapt
        self._asked = asked
        self._limits = limits
        self.autopilot: Autopilot | None = None
        self.not_adapted = ""

    def _engine(self, samples: Mapping[str, Batch]) -> Engine:
        """Choose plan and executor, unless given, from the first blocks. A given plan runs as the tree that it is."""
        statistics = sample_statistics(self.query, {**samples, **self._tables})
        plan = self._plan or choose_plan(self.query, statistics)
        fixed = self._plan is not None or bool(self._changes) or self._spill is not None
        tree = fixed or (self._adapt is not None and self._asked)
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
        if self._adapt is not None:
            why = why_not(engine)
            self.not_adapted = why if self._asked else ""
            self.autopilot = None if why else Autopilot(engine, self._limits, mode=self._adapt)
        return engine

    def _write(self, engine: Engine, writer: ResultWriter, cut: int) -> None:
        if self._observer is not None:
            self._write_observed(self._observer, engine, writer, cut)
        if self.autopilot is not None and cut < END:
            for stop in self._looks(self.autopilot, engine, cut):
                self._step(engine, writer, stop)
        self._step(engine, writer, cut)

    def _looks(self, autopilot: Autopilot, engine: Engine, cut: int) -> range:
        """Event times before a cut at which the autopilot looks."""
        if self._feed is None or self._feed.earliest is None:
            return range(0)
        begin = max(engine.cut, self._feed.earliest)
        pieces = autopilot.looks(cut - begin, engine.pending_tuples)
        step = -(-(cut - begin) // pieces)
        return range(begin + step, cut, max(step, 1))

    def _write_observed(self, observer: RunObserver, engine: Engine, writer: ResultWriter, cut: int) -> None:
        """Advance towards a cut in the steps that the observer chooses."""
        feed = self._feed
        if feed is None or feed.earliest is None:
            return
        for stop in observer.stops(max(engine.cut, feed.earliest), min(cut, feed.latest)):
            self._step(engine, writer, stop)
            observer.note(stop, engine.statistics())

    def _step(self, engine: Engine, writer: ResultWriter, cut: int) -> None:
        writer.write(engine.advance(cut))
        self._write_cleaned(engine, writer)
        if self.autopilot is not None and cut < END:
            self.autopilot.observe()

    def _clean(self, engine: Engine, writer: ResultWriter) -> None:
        """Produce the pending results, unless another command will (`weir cleanup`)."""
        if self._cleans:
            engine.clean(between=lambda: self._write_cleaned(engine, writer))
            self._write_cleaned(engine, writer)

    def _write_cleaned(self, engine: Engine, writer: ResultWriter) -> None:
        for batch in engine.cleaned():
            # Emissions of aggregates are final, however long they have waited.
            writer.write(batch, CLEANUP_PHASE if self.query.aggregation is None else None)
