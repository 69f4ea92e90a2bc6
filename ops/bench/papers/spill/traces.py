"""Runs one workload by every strategy, and makes the curves, tables and claims about the runs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from operators.spill.strategies import STRATEGIES
from operators.state.side_state import PARTITION_GROUPS
from ops.bench.measuring.figures import Figure, Panel, Points, curves, over
from ops.bench.measuring.measure import Progress
from ops.bench.measuring.report import number
from ops.bench.papers.spill.runs import ALL_IN_MEMORY, Trace, Workload, run

Traces = dict[str, list[Trace]]
"""The runs of each strategy."""

WELL_ABOVE = 1.2
"""The factor that counts as "well above"; the paper names no number."""

PAUSE_MS = 100.0
"""No step in which a group is spilled or cleaned up may take longer."""

LONGEST_IN_MEMORY = "longest step, all in memory"

SAME = "results of run time and cleanup, equal to those of all in memory"


@dataclass(frozen=True, slots=True)
class SpillSettings:
    """Sizes of `weir bench spill`.

    Attributes:
        tuple_range: K; see `ops.bench.papers.spill.runs`.
        ranges: the length of the input in tuple ranges.
        share: the budget as a share of what all states take when nothing is spilled.
        steps: how many steps the input is divided into; memory is sampled after each.
        partitions: of each join in the paper's figures; the paper has 300.
        zipf_range: K of the skewed data, whose results are many.
        drift_range, drift_partitions, window_ranges: K of the drifting data, its partitions, and its windows in tuple
            ranges: its groups are cleaned up again and again, and each part costs a block read.
        pace_range: K of the runs whose pace is compared.
        growth_range: K where the state is as large as the budget; it grows from there.
        growth: the largest state as a multiple of the budget.
        wide_range: K of the runs that watch pauses and the process's memory, whose states are of source tuples mostly.
        wide_share: the budget there.
        runs: of every figure.
    """

    tuple_range: int = 4_000
    ranges: float = 1.5
    share: float = 0.12
    partitions: int = 300
    steps: int = 150
    zipf_range: int = 1_000
    drift_range: int = 600
    drift_partitions: int = 32
    window_ranges: float = 2.0
    pace_range: int = 10_000
    growth_range: int = 1_000
    growth: tuple[int, ...] = (1, 4, 16)
    wide_range: int = 40_000
    wide_share: float = 0.25
    runs: int = 2
    seed: int = 1

    def workload(self, ratios: tuple[float, float, float]) -> Workload:
        """The paper's workload, at this size."""
        return self._of(ratios, self.tuple_range, self.partitions)

    def usual(self, ratios: tuple[float, float, float], tuple_range: int) -> Workload:
        """A workload of another size, with as many partitions as a query has."""
        return self._of(ratios, tuple_range, PARTITION_GROUPS)

    def _of(self, ratios: tuple[float, float, float], k: int, partitions: int) -> Workload:
        return Workload(ratios, tuple_range=k, tuples=round(k * self.ranges), partitions=partitions)


def all_strategies(
    workload: Workload,
    settings: SpillSettings,
    progress: Progress,
    label: str,
    *,
    window: str = "UNBOUNDED",
    share: float | None = None,
) -> Traces:
    """Run every strategy, and all in memory; the strategies of a run share one budget.

    Args:
        share: the budget; None for that of the settings.
    """
    traces: Traces = defaultdict(list)
    for number_ in range(settings.runs):
        progress.say(f"{label}, {ALL_IN_MEMORY}: run {number_ + 1} of {settings.runs}")
        seed = settings.seed + number_
        whole = run(workload, ALL_IN_MEMORY, 0, seed=seed, steps=settings.steps, window=window)
        traces[ALL_IN_MEMORY].append(whole)
        for strategy in STRATEGIES:
            progress.say(f"{label}, {strategy}: run {number_ + 1} of {settings.runs}")
            budget = round(max(whole.memory_bytes) * (share or settings.share))
            traces[strategy].append(run(workload, strategy, budget, seed=seed, steps=settings.steps, window=window))
    return traces


def panels(traces: Traces) -> list[Panel]:
    """Results over time by each strategy, and as a share of all in memory."""
    spilling = tuple(name for name in traces if name != ALL_IN_MEMORY)
    results = over_time(traces, lambda trace: trace.results)
    return [
        Panel("throughput", "minutes", "results", curves(results, spilling)),
        Panel("beside all in memory", "minutes", "results", curves(results, (ALL_IN_MEMORY, *spilling)), log=True),
    ]


def compare(figure: Figure, traces: Traces) -> None:
    """Claim what the paper says about its strategies, next to the measurements."""
    for better, worse, said, limit in (
        ("global-output", "bottom-up", "well above", WELL_ABOVE),
        ("global-output", "local-output", "well above", WELL_ABOVE),
        ("global-output-penalty", "bottom-up", "well above", WELL_ABOVE),
        ("global-output-penalty", "local-output", "well above", WELL_ABOVE),
        ("global-output-penalty", "global-output", "always at least", 1.0),
    ):
        values = ratios(traces, better, worse, lambda trace: trace.results[-1])
        figure.claim(f"results at run time: {better} against {worse}", said, values, "x", at_least=limit)
    fewer = ratios(traces, "global-output-penalty", "global-output", lambda trace: trace.spills)
    figure.claim("spills: global-output-penalty against global-output", "fewer (10 against 13)", fewer, "x",
                 at_most=1.0)  # fmt: skip
    fewest = ratios(traces, "bottom-up", "global-output-penalty", lambda trace: trace.spills)
    figure.claim("spills: bottom-up against global-output-penalty", "fewest (7 against 10)", fewest, "x", at_most=1.0)
    took = ratios(traces, "bottom-up", "global-output-penalty", lambda trace: trace.cleanup_seconds)
    figure.claim("cleanup: bottom-up against global-output-penalty", "much longer", took, "x", at_least=WELL_ABOVE)
    longest_steps(figure, traces)
    within(figure, traces)
    same(figure, traces)


def longest_steps(figure: Figure, traces: Traces) -> None:
    """Claim that no step in which a group left memory, or was cleaned up, takes long; the worst of all runs."""
    for name, runs in traces.items():
        if name == ALL_IN_MEMORY:
            figure.claim(LONGEST_IN_MEMORY, "to compare", [max(waits(runs, moved=False))], "ms")
        else:
            longest = max(waits(runs, moved=True), default=0.0)
            figure.claim(f"longest step that spills: {name}", "asked: 100 ms", [longest], "ms", at_most=PAUSE_MS)


def within(figure: Figure, traces: Traces) -> None:
    """Claim that memory stays within the budget, sampled after every step."""
    spilling = [trace for runs in traces.values() for trace in runs if trace.budget_bytes]
    most = [max(trace.memory_bytes) / trace.budget_bytes for trace in spilling]
    figure.claim("memory at its most against the budget, worst run", "at most all of it", [max(most)], "x", at_most=1.0)


def same(figure: Figure, traces: Traces) -> None:
    """Claim that every contender's results are those of all in memory, by number and digest."""
    wholes = [(t.digest, t.results[-1] + t.cleanup_results) for t in traces[ALL_IN_MEMORY]]
    equal = [
        float((trace.digest, trace.results[-1] + trace.cleanup_results) == whole)
        for runs in traces.values()
        for trace, whole in zip(runs, wholes, strict=True)
    ]
    figure.claim(SAME, "all runs", [100.0 * sum(equal) / len(equal)], "% of runs", at_least=100.0)


def table(traces: Traces) -> list[tuple[str, ...]]:
    """A line per strategy: medians."""

    def median(runs: list[Trace], value: Callable[[Trace], float]) -> str:
        return number(statistics.median(value(trace) for trace in runs))

    lines: list[tuple[str, ...]] = [
        ("strategy", "results at run time", "of all", "spills", "groups", "tuples spilled", "results of cleanup",
         "run, s", "cleanup, s", "steps that spill, ms: p50 / p99 / max", "spill alone, ms: max",
         "other steps, ms: p50 / p99 / max"),
    ]  # fmt: skip
    for name, runs in traces.items():
        lines.append(
            (
                name,
                median(runs, lambda t: t.results[-1]),
                median(runs, lambda t: 100.0 * t.results[-1] / max(t.results[-1] + t.cleanup_results, 1)) + "%",
                median(runs, lambda t: t.spills),
                median(runs, lambda t: t.spilled_groups),
                median(runs, lambda t: t.spilled_tuples),
                median(runs, lambda t: t.cleanup_results),
                median(runs, lambda t: t.seconds),
                median(runs, lambda t: t.cleanup_seconds),
                " / ".join(number(ms) for ms in percentiles(waits(runs, moved=True))),
                number(1e3 * max(trace.longest_spill_s for trace in runs)),
                " / ".join(number(ms) for ms in percentiles(waits(runs, moved=False))),
            )
        )
    return lines


def waits(runs: Sequence[Trace], *, moved: bool) -> list[float]:
    """Milliseconds of all runs' steps in which a group left memory, or of the other steps."""
    return [1e3 * s for trace in runs for s, moves in zip(trace.waits, trace.moved, strict=True) if moves == moved]


def percentiles(values: Sequence[float]) -> tuple[float, ...]:
    """The median, the 99th percentile and the largest; empty for no values."""
    return tuple(float(x) for x in np.percentile(values, (50, 99, 100))) if values else ()


PAPER_SPILLS = {"global-output": 13, "global-output-penalty": 10, "bottom-up": 7}


def memory_figure(name: str, title: str, how: str, traces: Traces, strategies: tuple[str, str]) -> Figure:
    """Draw the memory over time of two strategies: of the first run only, since spills of several do not coincide."""
    first: Traces = {strategy: runs[:1] for strategy, runs in traces.items()}
    used = over_time(first, lambda trace: [size / 2**20 for size in trace.memory_bytes])
    figure = Figure(
        name, title, f"{how} Each fall is a spill.", [Panel("memory", "minutes", "MiB", curves(used, strategies))]
    )
    for strategy in strategies:
        figure.claim(f"spills: {strategy}", str(PAPER_SPILLS[strategy]), [trace.spills for trace in traces[strategy]])
    return figure


def over_time(traces: Mapping[str, list[Trace]], value: Callable[[Trace], list[int] | list[float]]) -> Points:
    """Curves by strategy and minute."""
    points: Points = defaultdict(lambda: defaultdict(list))
    for name, runs in traces.items():
        for trace in runs:
            for minute, figure in zip(trace.minutes, value(trace), strict=True):
                points[name][minute].append(figure)
    return points


def ratios(traces: Traces, above: str, below: str, value: Callable[[Trace], float]) -> list[float]:
    """The ratios run by run."""
    return over([value(trace) for trace in traces[above]], [value(trace) for trace in traces[below]])
