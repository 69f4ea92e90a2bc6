"""`weir bench spill`: the figures of the state-spill experiments (SIGMOD 2006, section 6), redrawn, and beyond them.

What should win: the global strategies over the local ones, most clearly where joins make many intermediate results; no
spilling over any spilling. What should lose: bottom-up, which ignores a group's output.
"""

from __future__ import annotations

from ops.bench.measuring.figures import Figure
from ops.bench.measuring.measure import Progress
from ops.bench.measuring.suites import PaperBench, Suite
from ops.bench.papers.spill.across import memory_across, runs_across, throughput_across
from ops.bench.papers.spill.beyond import accounting, asked, drift, growth, pauses, tenth, warm_up, zipf
from ops.bench.papers.spill.runs import INTERARRIVAL_MS, Workload
from ops.bench.papers.spill.traces import (
    SpillSettings,
    Traces,
    all_strategies,
    compare,
    memory_figure,
    panels,
    ratios,
    table,
)
from schemas.errors import UsageError

PAPER = "Run-Time Operator State Spilling for Memory Intensive Long-Running Queries, SIGMOD 2006, section 6"

THROUGHPUT = {16: (3.0, 1.0, 1.0), 19: (1.0, 3.0, 3.0), 20: (3.0, 2.0, 3.0)}
"""The paper's figures of throughput, by join ratios."""

MEMORY = {17: ("global-output", "global-output-penalty"), 18: ("global-output-penalty", "bottom-up")}
"""The paper's figures of memory use, by strategies; both are of the run of Fig. 16."""

PAPER_CLEANUP_S = {16: {"global-output-penalty": 495.7, "global-output": 306.0},
                   19: {"global-output-penalty": 278.2, "global-output": 362.8}}  # fmt: skip

QUICK = SpillSettings(
    tuple_range=700,
    partitions=64,
    steps=60,
    zipf_range=300,
    drift_range=200,
    drift_partitions=16,
    pace_range=1_500,
    growth_range=300,
    growth=(1, 4),
    wide_range=6_000,
    runs=1,
)

FULL = SpillSettings(
    tuple_range=40_000,
    steps=600,
    drift_range=4_000,
    drift_partitions=64,
    pace_range=40_000,
    growth_range=4_000,
    wide_range=250_000,
    runs=3,
)


def bench_spill(settings: SpillSettings, progress: Progress, figure: int | None = None) -> Suite:
    """Draw all figures, or one.

    Raises:
        UsageError: the paper has no such figure.
    """
    if figure is not None and figure not in (*THROUGHPUT, *MEMORY):
        raise UsageError(f"no figure {figure}; there are 16 to 20")
    suite = Suite(
        "spill",
        PAPER,
        {
            "workload": f"five streams, three joins, {settings.partitions} partitions; K {settings.tuple_range:,}, "
            f"{settings.ranges:g} K tuples per stream, one every {INTERARRIVAL_MS} ms",
            "budget": f"{settings.share:.0%} of what the states take when all is in memory",
            "runs, seed": f"{settings.runs}, {settings.seed}",
            "time": "minutes of the input's time; results and spills do not depend on the machine, seconds do",
        },
    )
    warm_up(settings, progress)
    for number_, join_ratios in THROUGHPUT.items():
        if figure in (None, number_) or (number_ == 16 and figure in MEMORY):
            workload = settings.workload(join_ratios)
            traces = all_strategies(workload, settings, progress, f"Fig. {number_}, join ratios {workload.name}")
            drawn = [throughput(number_, workload, traces, settings)]
            if number_ == 16:
                drawn += memory(workload, traces)
            suite.figures += [f for f in drawn if figure is None or f.name == f"spill-{figure}"]
    if figure is None:
        for number_, join_ratios in THROUGHPUT.items():
            suite.figures += in_workers(number_, settings.workload(join_ratios), settings, progress)
        suite.figures += [make(settings, progress) for make in (zipf, drift, tenth, growth, pauses, accounting)]
        suite.figures.append(asked(suite.figures))
    return suite


# --- Fig. 16, 19, 20: throughput --------------------------------------------------------------------------


def throughput(number_: int, workload: Workload, traces: Traces, settings: SpillSettings) -> Figure:
    """Results over time, by each strategy."""
    figure = Figure(
        f"spill-{number_}",
        f"State spill Fig. {number_}: run-time throughput, join ratios {workload.name}",
        f"Results while the input runs, {workload.minutes:.0f} minutes of it, with {settings.share:.0%} of the memory "
        "that all states would take. What spilling misses, cleanup delivers at the end.",
        panels(traces),
    )
    figure.table = table(traces)
    compare(figure, traces)
    cleanup = PAPER_CLEANUP_S.get(number_)
    if cleanup is not None:
        ratio = cleanup["global-output-penalty"] / cleanup["global-output"]
        took = ratios(traces, "global-output-penalty", "global-output", lambda trace: trace.cleanup_seconds)
        figure.claim("cleanup: global-output-penalty against global-output", f"{ratio:.2f}x the time", took, "x")
    figure.differs = DIFFERS
    return figure


DIFFERS = (
    "Global output is above local by less than in the paper: the columns of a stream have nothing to do with each "
    "other here, so what a group makes spreads over all groups above it, and its own results tell nearly as much as "
    "the query's. Cleanup merges the groups of a join side by side and takes time by the results that it delivers, so "
    "that strategies differ by less. Spills of bottom-up are even fewer than the paper's: its Join1 is two joins here, "
    "both emptied at once, and joins above then get little."
)
"""How shapes differ from the paper's, and why."""


# --- Fig. 17 and 18: memory -------------------------------------------------------------------------------


def memory(workload: Workload, traces: Traces) -> list[Figure]:
    """Memory over time, two strategies to a figure."""
    return [
        memory_figure(
            f"spill-{number_}",
            f"State spill Fig. {number_}: memory use, {names[0]} and {names[1]}",
            f"Join ratios {workload.name}, the first run.",
            traces,
            names,
        )
        for number_, names in MEMORY.items()
    ]


# --- The same with joins in workers of their own ----------------------------------------------------------


def in_workers(number_: int, workload: Workload, settings: SpillSettings, progress: Progress) -> list[Figure]:
    """A figure of throughput with joins in three workers; with Fig. 16, those of memory."""
    runs = runs_across(workload, settings, progress, f"Fig. {number_} across workers")
    drawn = [throughput_across(number_, workload, runs, settings)]
    if number_ == 16:
        drawn += [memory_across(other, workload, runs, names) for other, names in MEMORY.items()]
    return drawn


BENCH = PaperBench(quick=QUICK, default=SpillSettings(), full=FULL, draw=bench_spill)
