"""`weir bench engine`: measures the engine without parsing and without Kafka."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from functools import partial

from ops.bench.engine_runs import Footprint, Outcome, run_engine, run_naive
from ops.bench.measuring.commands import Finished, run_command
from ops.bench.measuring.measure import Progress, growth, repeat, tells_memory
from ops.bench.measuring.report import Report, number
from ops.bench.references import duckdb_join, duckdb_version
from ops.bench.workloads import clique, three_way

EXPECTED = (
    "rates are per second of processor time, so that a neighbour on the machine counts little.",
    "should win: the three-way join, where few probes find a partner and the cost is entering and probing.",
    "should win: wider windows over proportionally more values; only the caches feel the larger states.",
    "should lose: wider windows over the same values (results per tuple grow with the square of the window)",
    "  and short epochs (the cost of a call is spread over few tuples).",
    "should lose most: the clique, where a tuple makes a hundred intermediate results for one result.",
)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Sizes of `weir bench engine`.

    Attributes:
        runs: repetitions of every figure.
        seconds: event time under the clock in each run of the three-way join.
        minutes: event time of the run that observes memory growth.
        quick: leave out the widest window and the cold start.
        share: scales the workloads' rates and values; with anything but 1 the figures mean nothing (for tests).
    """

    runs: int = 5
    seconds: int = 20
    minutes: float = 5.0
    seed: int = 1
    quick: bool = False
    share: float = 1.0


def bench_engine(settings: EngineSettings, progress: Progress) -> Report:
    """Measure everything; the report's rows contain the required figures."""
    report = Report(
        "weir bench engine",
        EXPECTED,
        {
            "workload": "A(id,ts,x,y) B(id,ts,x) C(id,ts,y), 10,000/s each, 10 s windows, x,y in [1,400000]",
            "runs, seconds of event time, minutes, seed": (
                f"{settings.runs}, {settings.seconds}, {settings.minutes:g}, {settings.seed}"
            ),
        },
    )
    _throughput(report, settings, progress)
    _windows(report, settings, progress)
    _clique(report, settings, progress)
    if tells_memory():
        _memory(report, settings, progress)
    else:
        report.skipped.append("memory (this system has no /proc/self/clear_refs)")
    _start(report, settings, progress)
    return report


def _throughput(report: Report, settings: EngineSettings, progress: Progress) -> None:
    workload = three_way().scaled(settings.share)
    run_engine(workload, 1, settings.seed)  # loads or compiles the kernels
    events = workload.seconds(0, workload.fill_seconds + settings.seconds, settings.seed)
    for epoch_ms in (1000, 100, 10):
        outcomes = repeat(
            settings.runs,
            f"three-way join, epochs of {epoch_ms} ms",
            progress,
            partial(run_engine, workload, settings.seconds, settings.seed, epoch_ms, events),
        )
        last = outcomes[-1]
        wall = statistics.median(o.wall_rate for o in outcomes)
        note = f"{_counters(last)}; {number(wall)}/s by the wall clock"
        report.add(
            f"three-way, epochs of {epoch_ms} ms",
            "source tuples/s of one core",
            [o.rate for o in outcomes],
            at_least=2_000_000 if epoch_ms == 1000 else None,
            note=note,
        )
    expected = last.all_results
    seconds = min(5, settings.seconds)
    naive = repeat(settings.runs, "naive", progress, lambda: run_naive(workload, seconds, settings.seed))
    report.add(
        "naive program, dicts, nothing to parse",
        "source tuples/s of one core",
        [rate for _, rate in naive],
        note=f"{naive[-1][0]:,} results in {seconds} s of event time",
    )
    if duckdb_version() is None:
        report.skipped.append("DuckDB (not installed: pip install 'weir-streams[bench]')")
        return
    tuples = sum(len(batch) for batch in events.values())
    batch = repeat(settings.runs, "DuckDB", progress, lambda: duckdb_join(workload, events, threads=1))
    report.add(
        "DuckDB in batch, one thread, columns in memory",
        "source tuples/s of one core",
        [tuples / seconds for _, seconds in batch],
        note=agreement(batch[-1][0], expected),
    )


def _windows(report: Report, settings: EngineSettings, progress: Progress) -> None:
    base = _per_tuple(settings, progress, 1, False)
    report.add("1x window", "ns per source tuple", [_ns(o, o.tuples) for o in base], note=_counters(base[-1]))
    for times in (4,) if settings.quick else (4, 16):
        for scaled in (True, False):
            outcomes = _per_tuple(settings, progress, times, scaled)
            values = f"{times}x values" if scaled else "same values"
            unit = statistics.median(_ns(o, o.tuples) for o in base)
            report.add(
                f"{times}x window, {values}",
                "times the cost per source tuple",
                [_ns(o, o.tuples) / unit for o in outcomes],
                at_most=1.5 if times == 4 else None,
                note=_counters(outcomes[-1]),
            )
            if not scaled:
                unit = statistics.median(_ns(o, o.handled) for o in base)
                report.add(
                    f"{times}x window, {values}, per tuple made",
                    "times the cost per source tuple, intermediate result and result",
                    [_ns(o, o.handled) / unit for o in outcomes],
                )


def _per_tuple(settings: EngineSettings, progress: Progress, times: int, scaled: bool) -> list[Outcome]:
    workload = three_way(times, scale_values=scaled).scaled(settings.share)
    seconds = max(2, settings.seconds // max(2, times))
    events = workload.seconds(0, workload.fill_seconds + seconds, settings.seed)
    return repeat(
        settings.runs,
        f"{times}x window",
        progress,
        lambda: run_engine(workload, seconds, settings.seed, events=events),
    )


def _clique(report: Report, settings: EngineSettings, progress: Progress) -> None:
    workload = clique().scaled(settings.share)
    seconds = max(2, settings.seconds // 4)
    events = workload.seconds(0, workload.fill_seconds + seconds, settings.seed)
    outcomes = repeat(
        settings.runs,
        "clique",
        progress,
        lambda: run_engine(workload, seconds, settings.seed, events=events),
    )
    report.add(
        "4-way clique, 1,000/s each, 10 s, values in [1,100]",
        "source tuples/s of one core",
        [o.rate for o in outcomes],
        note=_counters(outcomes[-1]),
    )
    naive = repeat(settings.runs, "clique, naive", progress, lambda: run_naive(workload, 2, settings.seed))
    report.add("4-way clique, naive program", "source tuples/s of one core", [rate for _, rate in naive])


def _memory(report: Report, settings: EngineSettings, progress: Progress) -> None:
    seconds = max(4, round(settings.minutes * 60))
    prints: list[Footprint] = []
    for run in range(1, settings.runs + 1):
        # One long run observes growth; the others only need a full window.
        length = seconds if run == 1 else min(seconds, 20)
        progress.say(f"memory: run {run} of {settings.runs}, {length} s of event time")
        prints.append(_footprint(str(settings.share), str(length), str(settings.seed)))
    live = prints[0].live_tuples
    report.add(
        "resident memory of the process",
        "bytes per live source tuple",
        [(statistics.median(p.samples) - p.empty_bytes) / live for p in prints],
        at_most=120,
        note=f"{live:,} live; beyond {prints[0].empty_bytes / 1e6:.0f} MB of an idle process; "
        f"results and input of the epoch included",
    )
    report.add(
        "at the highest moment",
        "bytes per live source tuple",
        [(p.peak_bytes - p.empty_bytes) / live for p in prints],
    )
    report.add("the engine's own count", "bytes per live source tuple", [p.state_bytes / live for p in prints])
    report.add(
        f"growth over {seconds / 60:g} minutes of event time",
        "% from the second to the last quarter",
        [100 * growth(prints[0].samples)],
        at_most=1.0,
        note=f"{prints[0].samples[-1] / 1e6:.1f} MB at the end, {seconds * 30_000:,} source tuples",
    )


def _footprint(*arguments: str) -> Footprint:
    found = json.loads(run_probe("memory", *arguments).output)
    return Footprint(**{**found, "samples": tuple(found["samples"])})


def run_probe(*arguments: str, cache: str | None = None) -> Finished:
    """`ops.bench.probe` in a process of its own, with a kernel cache of its own if one is given."""
    environment = None if cache is None else {"NUMBA_CACHE_DIR": cache}
    return run_command([sys.executable, "-m", "ops.bench.probe", *arguments], environment)


def _start(report: Report, settings: EngineSettings, progress: Progress) -> None:
    def cold() -> float:
        with tempfile.TemporaryDirectory(prefix="weir-cold-") as cache:
            return run_probe("first", cache=cache).seconds

    run_probe("first")
    report.add(
        "warm start to first result",
        "s, whole process",
        repeat(settings.runs, "warm start", progress, lambda: run_probe("first").seconds),
        at_most=6,
    )
    if settings.quick:
        report.skipped.append("cold start (--quick)")
        return
    report.add(
        "cold start to first result",
        "s, whole process, kernels compiled",
        repeat(settings.runs, "cold start", progress, cold),
        at_most=40,
        note="engine only; `weir bench files` has the whole command",
    )


def agreement(others: int, ours: int) -> str:
    """A note on two counts that should be equal."""
    if others == ours:
        return f"{ours:,} results, the same"
    return f"DIFFERENT: {others:,} results against {ours:,}"


def _ns(outcome: Outcome, count: int) -> float:
    return outcome.cpu_seconds * 1e9 / count


def _counters(outcome: Outcome) -> str:
    made = outcome.handled - outcome.tuples - outcome.results
    per = outcome.tuples
    return f"{made / per:.2g} intermediate, {outcome.results / per:.2g} results per tuple"
