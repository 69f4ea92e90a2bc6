"""Runs the engine over a workload, and pushes tuples as a file reader does: a stretch of event time at a time."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass

from operators.data.statistics import EngineStatistics
from operators.engine.engine import Engine
from operators.plan.choose import sample_statistics
from ops.bench.measuring.measure import clocked, forget_peak, peak_bytes, resident_bytes
from ops.bench.naive import NaiveJoin
from ops.bench.workloads import Workload
from schemas.columns import Batch


@dataclass(frozen=True, slots=True)
class Outcome:
    """One timed run.

    Attributes:
        tuples: source tuples pushed while the clock ran; the window was full before.
        results: results produced meanwhile.
        all_results: with the results before and after, up to the end of the input.
        handled: source tuples, intermediate results and results of the timed stretch.
    """

    tuples: int
    results: int
    all_results: int
    handled: int
    seconds: float
    cpu_seconds: float
    statistics: EngineStatistics

    @property
    def rate(self) -> float:
        """Source tuples per second of processor time."""
        return self.tuples / self.cpu_seconds

    @property
    def wall_rate(self) -> float:
        """Source tuples per second by the wall clock."""
        return self.tuples / self.seconds


def _engine(workload: Workload, seed: int) -> Engine:
    """An engine with the plan that `weir run` would choose, from a sample of the events."""
    query = workload.query()
    return Engine(query, statistics=sample_statistics(query, workload.second(0, seed)))


def feed(engine: Engine, events: Mapping[str, Batch], start: int, stop: int, step: int) -> int:
    """Push rows start .. stop of every stream, `step` rows of each between two calls of advance; returns the
    results."""
    results = 0
    for row in range(start, stop, step):
        for stream, batch in events.items():
            engine.push(stream, 0, batch.slice(row, min(row + step, stop)))
        results += len(engine.advance())
    return results


def run_engine(
    workload: Workload,
    seconds: int,
    seed: int,
    epoch_ms: int = 1000,
    events: Mapping[str, Batch] | None = None,
) -> Outcome:
    """Fill the window twice over, then process `seconds` of event time while the clock runs.

    Args:
        events: the events of window and seconds, where the caller has made them already.
    """
    full = workload.fill_seconds
    if events is None:
        events = workload.seconds(0, full + seconds, seed)
    engine = _engine(workload, seed)
    step = max(1, workload.rate * epoch_ms // 1000)
    warm = full * workload.rate
    feed(engine, events, 0, warm, step)
    before = engine.statistics()
    with clocked() as clock:
        results = feed(engine, events, warm, warm + seconds * workload.rate, step)
    after = engine.statistics()
    for stream in events:
        engine.close(stream, 0)
    everything = after.results + len(engine.advance())
    tuples = after.input_tuples - before.input_tuples
    made = after.intermediate_results - before.intermediate_results
    return Outcome(tuples, results, everything, tuples + made + results, clock[0].seconds, clock[0].cpu_seconds, after)


def run_naive(workload: Workload, seconds: int, seed: int) -> tuple[int, float]:
    """Results and events per second of processor time of the naive program, without any parsing.

    The window is full before the clock runs; the results are those of the timed stretch.
    """
    full = -(-workload.window_ms // 1000)
    batches = workload.seconds(0, full + seconds, seed)
    rows: dict[str, list[dict[str, int]]] = {}
    for stream, batch in batches.items():
        columns = [column.values.tolist() for column in batch.columns.values()]
        names = list(batch.columns)
        rows[stream] = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    join = NaiveJoin(workload.streams, workload.window_ms)

    def run(start: int, stop: int) -> int:
        results = 0
        for row in range(start, stop):
            # One event of each stream in turn: the streams have the same timestamps.
            for stream, events in rows.items():
                results += len(join.push(stream, events[row]))
        return results

    warm = full * workload.rate
    run(0, warm)
    with clocked() as clock:
        results = run(warm, warm + seconds * workload.rate)
    return results, seconds * workload.events_per_second / clock[0].cpu_seconds


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory of a process that runs nothing but the engine.

    Attributes:
        empty_bytes: resident after the kernels were loaded and the engine had run, before the workload.
        samples: resident bytes after each second of event time, from when the window was full.
        peak_bytes: the most that was resident at any moment of the workload.
        state_bytes: what the engine reports at the end.
        live_tuples: source tuples in the window.
    """

    empty_bytes: int
    samples: tuple[int, ...]
    peak_bytes: int
    state_bytes: int
    live_tuples: int


def run_for_memory(workload: Workload, seconds: int, seed: int) -> Footprint:
    """Run a workload in this process, which should be fresh, and measure its memory.

    Events are made as they are needed, and are part of the measurement, as are results of the current epoch.
    """
    run_engine(workload.scaled(0.01), 3, seed)
    workload.second(0, seed)
    gc.collect()
    forget_peak()
    empty = resident_bytes()
    engine = _engine(workload, seed)
    full = workload.fill_seconds
    samples = []
    for number in range(full + seconds):
        for stream, batch in workload.second(number, seed).items():
            engine.push(stream, 0, batch)
        engine.advance()
        if number >= full:
            samples.append(resident_bytes())
    return Footprint(empty, tuple(samples), peak_bytes(), engine.statistics().state_bytes, workload.live_tuples)
