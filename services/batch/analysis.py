"""`weir explain --analyze` over files: runs the query, drops its results, and reports what its operators did.

Entry: `analyze_files`. States are empty at the end of a run. So the engine is observed during the run, at least LOOKS
times per shortest window: the number of live tuples is averaged over event time, and the largest states are reported.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from operators.data.statistics import EngineStatistics
from operators.explain.analyze import Analysis, Observation, analyses
from operators.plan.choose import Statistics
from operators.plan.plan import Plan
from schemas.query import Query
from services.batch.file_run import Outputs
from services.batch.query_run import Run
from services.files.sinks import LineSink
from services.files.sources import SourceFile
from services.files.tables import Tables

LOOKS = 4
"""Observations per shortest window, at least."""

MOST_LOOKS = 64
"""Observations per advance of the engine, at most, so that a sparse year takes no longer than a busy hour."""


class SizeObserver:
    """Averages and peaks of an engine's sizes; a `RunObserver` of a run."""

    def __init__(self, window_ms: int) -> None:
        self._step = max(1, window_ms // LOOKS)
        self._last_ts: int | None = None
        self._weight = 0
        self._living: dict[frozenset[str], float] = {}
        self._peaks: list[OperatorPeaks] = []

    def stops(self, begin: int, end: int) -> Sequence[int]:
        """Evenly spaced."""
        step = max(self._step, -(-(end - begin) // MOST_LOOKS))
        return range(begin + step, end + 1, step)

    def note(self, at: int, statistics: EngineStatistics) -> None:
        """Count the live tuples, weighted by the event time since the last observation."""
        weight = 1 if self._last_ts is None else max(at - self._last_ts, 1)
        self._last_ts = at
        self._weight += weight
        living: dict[frozenset[str], int] = {}
        self._peaks = self._peaks or [((0, 0), (0, 0), (0, 0))] * len(statistics.operators)
        for number, operator in enumerate(statistics.operators):
            tuples, sizes, groups = self._peaks[number]
            self._peaks[number] = (
                _most(tuples, operator.state_tuples),
                _most(sizes, operator.state_bytes),
                _most(groups, operator.state_groups),
            )
            living |= {frozenset(operator.aliases[k]): operator.living_tuples[k] for k in (0, 1) if operator.aliases[k]}
        living |= {frozenset({source.alias}): source.living_tuples for source in statistics.sources}
        for aliases, count in living.items():
            self._living[aliases] = self._living.get(aliases, 0.0) + weight * count

    def living(self) -> dict[frozenset[str], float]:
        """Average number of live tuples, by the aliases that they cover."""
        return {aliases: total / self._weight for aliases, total in self._living.items()}

    def with_peaks(self, last: EngineStatistics) -> EngineStatistics:
        """The last statistics, with the largest states in place of those at the end."""
        if not self._peaks:
            return last
        operators = tuple(
            replace(operator, state_tuples=peaks[0], state_bytes=peaks[1], state_groups=peaks[2])
            for operator, peaks in zip(last.operators, self._peaks, strict=True)
        )
        sizes = {"state_tuples": last.peak_state_tuples, "state_bytes": last.peak_state_bytes}
        return replace(last, operators=operators, **sizes)


OperatorPeaks = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
"""Of tuples, bytes and groups, per side."""


def _most(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return max(a[0], b[0]), max(a[1], b[1])


def analyze_files(
    query: Query, plan: Plan, files: dict[str, SourceFile], tables: Tables, expected: Statistics, executor: str
) -> Analysis:
    """Run a plan over files.

    Args:
        files: by stream name, one per stream.

    Raises:
        DataError: a source cannot be read.
    """
    windows = [source.window.size for source in query.sources if source.window.kind == "RANGE"]
    observer = SizeObserver(min((size for size in windows if size), default=10_000))
    sink = LineSink("--analyze", os.devnull)
    try:
        run = Run(
            query, files, Outputs([sink]), epoch_ms=1000, plan=plan, executor=executor, tables=tables, observer=observer
        )
        engine = run.run()
    finally:
        sink.close()
    statistics = observer.with_peaks(engine.statistics())
    (analysis,) = analyses(query, [Observation(0, statistics)], expected, averages=observer.living())
    return analysis
