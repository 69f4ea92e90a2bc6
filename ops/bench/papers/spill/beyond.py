"""Figures that the state-spill paper lacks: other data, pace compared with RocksDB, growth, pauses, process memory."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from operators.spill.strategies import DEFAULT_STRATEGY
from ops.bench.measuring.figures import Claim, Figure, Panel, Points, curves, over
from ops.bench.measuring.measure import Progress, tells_memory
from ops.bench.measuring.report import number
from ops.bench.papers.spill.memory import Footprint, Probe, footprint
from ops.bench.papers.spill.rocksdb import IN_ROCKSDB, run_in_rocksdb
from ops.bench.papers.spill.runs import ALL_IN_MEMORY, INTERARRIVAL_MS, Trace, run
from ops.bench.papers.spill.traces import (
    LONGEST_IN_MEMORY,
    SpillSettings,
    Traces,
    all_strategies,
    compare,
    longest_steps,
    over_time,
    panels,
    percentiles,
    same,
    table,
    waits,
    within,
)
from services.spill.budget import prepare_memory

OFF_AT_MOST = 5.0
"""The accounted memory may differ from the process's by so many percent."""

TENTH = 0.1
"""The budget as a share of all states."""

HALF = 0.5
"""The pace required where the state is ten times the budget, as a share of the pace with all in memory."""

POINTS = 15
"""Points on curves whose values are each measured over a part of the input."""

WIDE = (1.0, 1.0, 1.0)
"""Join ratios with which states are mostly of source tuples."""


def warm_up(settings: SpillSettings, progress: Progress) -> None:
    """Load what the first run would load otherwise, and set up the process like one with a memory budget.

    Without it Python's collector now and then walks through everything that a process has loaded: 90 ms here, in the
    middle of a step.
    """
    progress.say("loading kernels")
    workload = replace(settings.usual((3.0, 1.0, 1.0), 200), partitions=16)
    for name, budget in ((ALL_IN_MEMORY, 0), (DEFAULT_STRATEGY, 50_000)):
        run(workload, name, budget, seed=settings.seed, steps=20)
    run_in_rocksdb(workload, 1 << 20, seed=settings.seed, steps=5)
    prepare_memory()


# --- Other data --------------------------------------------------------------------------------------------


def zipf(settings: SpillSettings, progress: Progress) -> Figure:
    """Productivity that falls by a partition's rank."""
    workload = replace(settings.usual((3.0, 1.0, 1.0), settings.zipf_range), zipf=0.7)
    traces = all_strategies(workload, settings, progress, "skewed productivity")
    return _of_strategies(
        "spill-zipf",
        "Beyond the paper: skewed productivity",
        "Ratios fall with the 0.7th power of a partition's rank (Zipf). "
        f"K {workload.tuple_range:,}, {workload.partitions} partitions, join ratios {workload.name}, "
        f"{settings.share:.0%} of the memory.",
        traces,
    )


def drift(settings: SpillSettings, progress: Progress) -> Figure:
    """Productivity that changes, and windows that end, so that cleanup happens while the input runs."""
    k = settings.drift_range
    window_ms = round(settings.window_ranges * k) * INTERARRIVAL_MS
    workload = replace(settings.usual((2.0, 0.7, 0.7), k), phases=4, tuples=6 * k, partitions=settings.drift_partitions)
    window = f"RANGE {window_ms} MILLISECONDS"
    traces = all_strategies(workload, settings, progress, "drifting productivity", window=window)
    return _of_strategies(
        "spill-drift",
        "Beyond the paper: drifting productivity, windows",
        f"Partitions exchange their ratios three times; windows of {settings.window_ranges:g} K tuples per stream; "
        "cleanup produces pending results before the windows purge their tuples. "
        f"K {k:,}, {workload.partitions} partitions, join ratios {workload.name}, {settings.share:.0%} of the memory.",
        traces,
    )


def _of_strategies(name: str, title: str, how: str, traces: Traces) -> Figure:
    figure = Figure(name, title, how, panels(traces), table=table(traces))
    compare(figure, traces)
    return figure


# --- Pace --------------------------------------------------------------------------------------------------


def tenth(settings: SpillSettings, progress: Progress) -> Figure:
    """The pace of a task whose state is ten times its budget, compared with one that keeps all of it in RocksDB."""
    workload = settings.usual((1.0, 3.0, 3.0), settings.pace_range)
    traces: Traces = defaultdict(list)
    for number_ in range(settings.runs):
        progress.say(f"a state of ten times the budget: run {number_ + 1} of {settings.runs}")
        seed = settings.seed + number_
        whole = run(workload, ALL_IN_MEMORY, 0, seed=seed, steps=settings.steps)
        budget = round(max(whole.memory_bytes) * TENTH)
        traces[ALL_IN_MEMORY].append(whole)
        traces[DEFAULT_STRATEGY].append(run(workload, DEFAULT_STRATEGY, budget, seed=seed, steps=settings.steps))
        traces[IN_ROCKSDB].append(run_in_rocksdb(workload, budget, seed=seed, steps=settings.steps))
    names = tuple(traces)
    results = over_time(traces, lambda trace: trace.results)
    figure = Figure(
        "spill-tenth",
        "Beyond the paper: a state ten times the budget, and all of it in RocksDB",
        f"Join ratios {workload.name}, K {workload.tuple_range:,}, {workload.partitions} partitions. "
        f"{DEFAULT_STRATEGY} delivers a part of the results while the input runs and the others after a cleanup. In "
        "RocksDB every state is read and written slice by slice, with cache and buffers of the same budget; all its "
        "results come at once. Its files are in the system's page cache.",
        [
            Panel("pace", "minutes", "source tuples per second", curves(_pace(traces), names), log=True),
            Panel("results", "minutes", "results", curves(results, names)),
        ],
        table=table(traces),
    )

    def pace(of: str, against: str, *, cleanup: bool) -> list[float]:
        def seconds(name: str) -> list[float]:
            return [trace.seconds + (trace.cleanup_seconds if cleanup else 0.0) for trace in traces[name]]

        return over(seconds(against), seconds(of))

    running = pace(DEFAULT_STRATEGY, ALL_IN_MEMORY, cleanup=False)
    figure.claim("pace while input runs, against all in memory", "asked: half", running, "x", at_least=HALF)
    whole_time = pace(DEFAULT_STRATEGY, ALL_IN_MEMORY, cleanup=True)
    figure.claim("pace with cleanup, against all in memory", "asked: half", whole_time, "x", at_least=HALF)
    figure.claim("pace while input runs, against all in RocksDB", "no such run",
                 pace(DEFAULT_STRATEGY, IN_ROCKSDB, cleanup=False), "x", at_least=1.0)  # fmt: skip
    figure.claim("pace with cleanup, against all in RocksDB", "no such run",
                 pace(DEFAULT_STRATEGY, IN_ROCKSDB, cleanup=True), "x", at_least=1.0)  # fmt: skip
    figure.claim("pace of all in RocksDB, against all in memory", "no such run",
                 pace(IN_ROCKSDB, ALL_IN_MEMORY, cleanup=False), "x")  # fmt: skip
    within(figure, traces)
    same(figure, traces)
    return figure


def _pace(traces: Traces) -> Points:
    """Source tuples per processor second in each part of the input."""
    points: Points = defaultdict(lambda: defaultdict(list))
    for name, runs in traces.items():
        for trace in runs:
            for part in np.array_split(np.arange(len(trace.minutes)), POINTS):
                if len(part):
                    tuples = trace.input_tuples * len(part) / len(trace.minutes)
                    spent = sum(trace.step_seconds[k] for k in part)
                    points[name][trace.minutes[part[-1]]].append(tuples / max(spent, 1e-9))
    return points


def growth(settings: SpillSettings, progress: Progress) -> Figure:
    """The cost of a source tuple while the state grows and the budget does not."""
    ways: dict[str, Callable[[Trace], float]] = {
        ALL_IN_MEMORY: lambda trace: trace.seconds,
        f"{DEFAULT_STRATEGY}, while input runs": lambda trace: trace.seconds,
        f"{DEFAULT_STRATEGY}, with cleanup": lambda trace: trace.seconds + trace.cleanup_seconds,
        IN_ROCKSDB: lambda trace: trace.seconds,
    }
    cost: Points = defaultdict(lambda: defaultdict(list))
    budgets: list[int] = []
    for times in settings.growth:
        workload = settings.usual((1.0, 2.0, 2.0), settings.growth_range * times)
        # Slices of one size, whatever the state, so that the slice size does not influence a step's cost.
        steps = max(1, workload.tuples // 50)
        for number_ in range(settings.runs):
            progress.say(f"a state of {times} times the budget: run {number_ + 1} of {settings.runs}")
            seed = settings.seed + number_
            whole = run(workload, ALL_IN_MEMORY, 0, seed=seed, steps=steps)
            if len(budgets) <= number_:
                budgets.append(max(whole.memory_bytes))
            budget = budgets[number_]
            spilled = run(workload, DEFAULT_STRATEGY, budget, seed=seed, steps=steps)
            stored = run_in_rocksdb(workload, budget, seed=seed, steps=steps)
            for (name, seconds), trace in zip(ways.items(), (whole, spilled, spilled, stored), strict=True):
                cost[name][times].append(1e6 * seconds(trace) / trace.input_tuples)
    least, most = settings.growth[0], settings.growth[-1]
    figure = Figure(
        "spill-growth",
        "Beyond the paper: the state grows, the budget does not",
        f"The budget is what all states take at {least}x. Tuple range and number of tuples grow together, so that a "
        "tuple has as many results at every size. Join ratios 1-2-2, 50 tuples per stream and step.",
        [
            Panel(
                "cost", "state / budget", "processor microseconds per source tuple", curves(cost, tuple(ways)), log=True
            )
        ],
    )
    for name in ways:
        grown = over(cost[name][most], cost[name][least])
        figure.claim(f"cost of a tuple at {most}x over that at {least}x: {name}", "no such run", grown, "x")
    return figure


# --- Pauses ------------------------------------------------------------------------------------------------


def pauses(settings: SpillSettings, progress: Progress) -> Figure:
    """How long the steps take in which a group leaves memory."""
    workload = settings.usual(WIDE, settings.wide_range)
    steps = 2 * settings.steps
    traces = all_strategies(workload, replace(settings, steps=steps), progress, "pauses", share=settings.wide_share)
    size = statistics.median(max(trace.memory_bytes) for trace in traces[ALL_IN_MEMORY]) / 2**20
    shares = np.linspace(0.0, 100.0, 101)
    points: Points = defaultdict(dict)
    for name, runs in traces.items():
        own = waits(runs, moved=name != ALL_IN_MEMORY)
        if own:
            points[name] = {float(x): [float(y)] for x, y in zip(shares, np.percentile(own, shares), strict=True)}
    figure = Figure(
        "spill-pauses",
        "Beyond the paper: pauses",
        f"What a tuple waits at most: the wall time of a step, of {workload.tuples * 5 // steps:,} source tuples, in "
        "which something left memory; of all in memory every step. A machine with other work to do adds its own to it, "
        f"which processor time does not know. Join ratios {workload.name}; all states take "
        f"{size:.0f} MiB, the budget is {settings.wide_share:.0%} of it.",
        [Panel("steps that spill", "percentile", "ms", curves(points, tuple(points)), log=True)],
        table=[("strategy", "steps that spill", "p50, ms", "p99, ms", "max, ms", "other steps", "p50, ms", "p99, ms",
                "max, ms", "most processor time of a step that spills, ms")],
    )  # fmt: skip
    for name, runs in traces.items():
        cells: list[str] = []
        for moved in (True, False):
            own = waits(runs, moved=moved)
            cells += [number(len(own)), *(number(ms) for ms in percentiles(own) or (0.0, 0.0, 0.0))]
        spent = [s for t in runs for s, moved in zip(t.step_seconds, t.moved, strict=True) if moved]
        figure.table.append((name, *cells, number(1e3 * max(spent, default=0.0))))
    longest_steps(figure, traces)
    within(figure, traces)
    same(figure, traces)
    return figure


# --- The process's memory ------------------------------------------------------------------------------------


def accounting(settings: SpillSettings, progress: Progress) -> Figure:
    """The memory that the engine accounts for, next to the memory of the process."""
    workload = settings.usual(WIDE, settings.wide_range)
    figure = Figure(
        "spill-accounting",
        "Beyond the paper: the account of memory",
        "Bytes of states and source tuples as the engine counts them, which is what the budget bounds, and how much "
        "the process has grown since before the first tuple (resident memory). The process holds RocksDB's buffers and "
        f"what is being worked on besides. Join ratios {workload.name}.",
    )
    if not tells_memory():
        figure.table = [("not measured",), ("this system does not tell what a process has in memory",)]
        return figure
    probe = Probe(
        workload.ratios,
        workload.tuple_range,
        workload.tuples,
        workload.partitions,
        DEFAULT_STRATEGY,
        None,
        settings.seed,
        settings.steps,
    )
    progress.say("the process's memory, all in it")
    whole = footprint(probe)
    budget = round(max(whole.accounted_bytes) * settings.wide_share)
    progress.say("the process's memory, with a budget")
    spilled = footprint(replace(probe, budget_bytes=budget))
    for title, seen in (("all in memory", whole), (f"budget {budget / 2**20:.0f} MiB", spilled)):
        lines = _lines(seen)
        figure.panels.append(Panel(title, "minutes", "MiB", curves(lines, tuple(lines)), rows=8))
    for how, seen, sizes in (
        ("the account, all in memory", whole, whole.accounted_bytes),
        ("the account, with a budget", spilled, spilled.accounted_bytes),
        ("the account and RocksDB's buffers, with a budget", spilled, _buffered(spilled)),
    ):
        what = f"the process's memory against {how}, last quarter"
        figure.claim(what, "asked: a few percent", [_off(seen, sizes)], "% off", at_most=OFF_AT_MOST)
    most = max(spilled.resident_bytes) - budget
    figure.claim("the process's most above the budget", "no such run", [most / 2**20], "MiB")
    return figure


def _buffered(seen: Footprint) -> list[int]:
    return [accounted + beside for accounted, beside in zip(seen.accounted_bytes, seen.buffers_bytes, strict=True)]


def _lines(seen: Footprint) -> Points:
    found = {"process": seen.resident_bytes, "account": seen.accounted_bytes}
    return {
        name: {minute: [size / 2**20] for minute, size in zip(seen.minutes, sizes, strict=True)}
        for name, sizes in (*found.items(), ("account and RocksDB's buffers", _buffered(seen)))
    }


def _off(seen: Footprint, sizes: Sequence[int]) -> float:
    """By how many percent the process's growth differs from these sizes: the median of the last quarter."""
    begin = len(sizes) * 3 // 4
    pairs = zip(seen.resident_bytes[begin:], sizes[begin:], strict=True)
    return statistics.median(abs(100.0 * real / max(accounted, 1) - 100.0) for real, accounted in pairs)


# --- All required figures --------------------------------------------------------------------------------------


def asked(figures: Sequence[Figure]) -> Figure:
    """One table of all figures with a limit: what was required, what was measured, and where it falls short."""
    found: dict[str, list[tuple[str, Claim]]] = {}
    for figure in figures:
        for claim in figure.claims:
            if claim.limit is not None or claim.what == LONGEST_IN_MEMORY:
                found.setdefault(claim.what, []).append((figure.name.removeprefix("spill-"), claim))
    lines: list[tuple[str, ...]] = [("what", "asked", "seen", "")]
    for what, claims in found.items():
        seen = [f"{number(c.measured.median)}{_unit(c)}" for _, c in claims]
        if len(set(seen)) == 1:
            seen = seen[:1]
        else:
            seen = [f"{where}: {value}" for (where, _), value in zip(claims, seen, strict=True)]
        limit = claims[0][1].limit
        if limit is None:
            lines.append((what, claims[0][1].paper, ", ".join(seen), ""))
            continue
        sign = "at least" if limit.at_least else "at most"
        missed = [where for where, claim in claims if not claim.met]
        mark = "met" if not missed else "MISSED" if len(missed) == len(claims) else f"MISSED in {', '.join(missed)}"
        lines.append((what, f"{sign} {number(limit.value)}{_unit(claims[0][1])}", ", ".join(seen), mark))
    return Figure(
        "spill-asked",
        "Asked and seen",
        "Every figure that is asked for, by the names of the figures above where several show it; medians of all runs, "
        "of longest steps the longest. "
        f"For Spark's cleanup of ten million tuples see {SPARK}.",
        table=lines,
    )


SPARK = "`weir bench cleanup`"
"""The comparison of Spark's cleanup with the local one is there: it takes minutes, and Spark."""


def _unit(claim: Claim) -> str:
    return claim.unit if claim.unit == "x" else f" {claim.unit}" if claim.unit else ""
