"""`weir bench spill`: the figures of the state-spill experiments (SIGMOD 2006, section 6), redrawn, and beyond them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from operators.spill.strategies import STRATEGIES
from ops.bench.figures import Figure, Panel, PaperBench, Points, Suite, curves, over
from ops.bench.measure import Progress
from ops.bench.paper_spill_runs import ALL_IN_MEMORY, INTERARRIVAL_MS, Trace, Workload, run
from ops.bench.report import number
from schemas.errors import UsageError

PAPER = "Run-Time Operator State Spilling for Memory Intensive Long-Running Queries, SIGMOD 2006, section 6"

THROUGHPUT = {16: (3.0, 1.0, 1.0), 19: (1.0, 3.0, 3.0), 20: (3.0, 2.0, 3.0)}
"""The paper's figures of throughput, by join ratios."""

MEMORY = (17, 18)
"""Its figures of memory use; both of the run of Fig. 16."""

PAPER_SPILLS = {"global-output": 13, "global-output-penalty": 10, "bottom-up": 7}
PAPER_CLEANUP_S = {16: {"global-output-penalty": 495.7, "global-output": 306.0},
                   19: {"global-output-penalty": 278.2, "global-output": 362.8}}  # fmt: skip

Traces = dict[str, list[Trace]]
"""Per strategy, the runs."""


@dataclass(frozen=True, slots=True)
class SpillSettings:
    """Sizes of `weir bench spill`.

    Attributes:
        tuple_range: K; see `ops.bench.paper_spill_runs`.
        ranges: so many tuple ranges come.
        share: of what all states take when nothing is spilled: the budget.
        steps: the input is given in so many, and memory looked at after each.
        partitions: of each join; the paper's, which has 300.
        window_ranges: the windows of the drifting data, in tuple ranges.
        runs: of every figure.
    """

    tuple_range: int = 5_000
    ranges: float = 1.5
    share: float = 0.12
    partitions: int = 300
    steps: int = 150
    window_ranges: float = 2.0
    runs: int = 2
    seed: int = 1

    def workload(self, ratios: tuple[float, float, float]) -> Workload:
        """The paper's, at this size."""
        tuples = round(self.tuple_range * self.ranges)
        return Workload(ratios, tuple_range=self.tuple_range, tuples=tuples, partitions=self.partitions)


QUICK = SpillSettings(tuple_range=1_500, partitions=64, steps=60, runs=1)

FULL = SpillSettings(tuple_range=40_000, steps=600, runs=3)


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
    for number_, ratios in THROUGHPUT.items():
        if figure in (None, number_) or (number_ == 16 and figure in MEMORY):
            workload = settings.workload(ratios)
            traces = all_strategies(workload, settings, progress, f"Fig. {number_}, join ratios {workload.name}")
            drawn = [throughput(number_, workload, traces, settings)]
            if number_ == 16:
                drawn += memory(workload, traces)
            suite.figures += [f for f in drawn if figure is None or f.name == f"spill-{figure}"]
    if figure is None:
        suite.figures += beyond(settings, progress)
    return suite


def all_strategies(
    workload: Workload, settings: SpillSettings, progress: Progress, label: str, window: str = "UNBOUNDED"
) -> Traces:
    """Every strategy, and all in memory; a run has one budget for all strategies."""
    traces: Traces = defaultdict(list)
    for number_ in range(settings.runs):
        progress.say(f"{label}, {ALL_IN_MEMORY}: run {number_ + 1} of {settings.runs}")
        seed = settings.seed + number_
        whole = run(workload, ALL_IN_MEMORY, 0, seed=seed, steps=settings.steps, window=window)
        traces[ALL_IN_MEMORY].append(whole)
        for strategy in STRATEGIES:
            progress.say(f"{label}, {strategy}: run {number_ + 1} of {settings.runs}")
            budget = round(max(whole.memory_bytes) * settings.share)
            traces[strategy].append(run(workload, strategy, budget, seed=seed, steps=settings.steps, window=window))
    return traces


# --- Fig. 16, 19, 20: throughput --------------------------------------------------------------------------


def throughput(number_: int, workload: Workload, traces: Traces, settings: SpillSettings) -> Figure:
    """Results over time by each strategy."""
    figure = Figure(
        f"spill-{number_}",
        f"State spill Fig. {number_}: run-time throughput, join ratios {workload.name}",
        f"Results while the input runs, {workload.minutes:.0f} minutes of it, with {settings.share:.0%} of the memory "
        "that all states would take. What spilling misses, cleanup delivers at the end.",
        _panels(traces),
    )
    figure.table = table(traces)
    _compare(figure, traces)
    cleanup = PAPER_CLEANUP_S.get(number_)
    if cleanup is not None:
        ratio = cleanup["global-output-penalty"] / cleanup["global-output"]
        took = _ratios(traces, "global-output-penalty", "global-output", lambda trace: trace.cleanup_seconds)
        figure.claim("cleanup: global-output-penalty against global-output", f"{ratio:.2f}x the time", took, "x")
    took = _ratios(traces, "bottom-up", "global-output-penalty", lambda trace: trace.cleanup_seconds)
    figure.claim("cleanup: bottom-up against global-output-penalty", "much longer", took, "x")
    figure.differs = DIFFERS
    return figure


DIFFERS = (
    "Cleanup takes time by the part here, a block read and joined, more than by the results that it delivers. So who "
    "spills least often cleans up soonest: bottom-up is not behind, and the penalty makes cleanup shorter, not longer. "
    "Spills of bottom-up are even fewer than the paper's: its Join1 is two joins here, both emptied at once."
)
"""How shapes differ from the paper's, and why."""


def _panels(traces: Traces) -> list[Panel]:
    spilling = tuple(name for name in traces if name != ALL_IN_MEMORY)
    results = _over_time(traces, lambda trace: trace.results)
    return [
        Panel("throughput", "minutes", "results", curves(results, spilling)),
        Panel("beside all in memory", "minutes", "results", curves(results, (ALL_IN_MEMORY, *spilling)), log=True),
    ]


def _compare(figure: Figure, traces: Traces) -> None:
    for better, worse, said in (
        ("global-output", "bottom-up", "much more"),
        ("global-output", "local-output", "much more"),
        ("global-output-penalty", "bottom-up", "much more"),
        ("global-output-penalty", "local-output", "much more"),
        ("global-output-penalty", "global-output", "always at least"),
    ):
        values = _ratios(traces, better, worse, lambda trace: trace.results[-1])
        figure.claim(f"results at run time: {better} against {worse}", said, values, "x", at_least=1.0)
    fewer = _ratios(traces, "global-output-penalty", "global-output", lambda trace: trace.spills)
    figure.claim("spills: global-output-penalty against global-output", "fewer (10 against 13)", fewer, "x",
                 at_most=1.0)  # fmt: skip
    fewest = _ratios(traces, "bottom-up", "global-output-penalty", lambda trace: trace.spills)
    figure.claim("spills: bottom-up against global-output-penalty", "fewest (7 against 10)", fewest, "x", at_most=1.0)


def table(traces: Traces) -> list[tuple[str, ...]]:
    """A line per strategy: medians."""

    def median(runs: list[Trace], value: Callable[[Trace], float]) -> str:
        return number(statistics.median(value(trace) for trace in runs))

    lines: list[tuple[str, ...]] = [
        ("strategy", "results at run time", "of all", "spills", "groups", "tuples spilled", "results of cleanup",
         "run, s", "cleanup, s", "longest spill, s"),
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
                median(runs, lambda t: t.longest_spill_s),
            )
        )
    return lines


# --- Fig. 17 and 18: memory -------------------------------------------------------------------------------


def memory(workload: Workload, traces: Traces) -> list[Figure]:
    """Memory over time: each fall is a spill. The first run of each, since spills of several do not coincide."""
    first: Traces = {name: runs[:1] for name, runs in traces.items()}
    used = _over_time(first, lambda trace: [size / 2**20 for size in trace.memory_bytes])
    figures = []
    for number_, names in zip(
        MEMORY, (("global-output", "global-output-penalty"), ("global-output-penalty", "bottom-up")), strict=True
    ):
        figure = Figure(
            f"spill-{number_}",
            f"State spill Fig. {number_}: memory use, {names[0]} and {names[1]}",
            f"Join ratios {workload.name}, the first run. Each fall is a spill.",
            [Panel("memory", "minutes", "MiB", curves(used, names))],
        )
        for name in names:
            figure.claim(f"spills: {name}", str(PAPER_SPILLS[name]), [trace.spills for trace in traces[name]])
        figures.append(figure)
    return figures


# --- Beyond the paper -------------------------------------------------------------------------------------


def beyond(settings: SpillSettings, progress: Progress) -> list[Figure]:
    """Skewed and drifting productivity, and a state ten times the budget."""
    figures = []
    window_ms = round(settings.window_ranges * settings.tuple_range) * INTERARRIVAL_MS
    plain = settings.workload((3.0, 1.0, 1.0))
    for name, title, how, workload, window in (
        (
            "zipf",
            "skewed productivity",
            "Ratios fall with the 0.7th power of a partition's rank (Zipf).",
            replace(plain, zipf=0.7),
            "UNBOUNDED",
        ),
        (
            "drift",
            "drifting productivity, windows",
            f"Partitions exchange their ratios three times; windows of {settings.window_ranges:g} K tuples per stream.",
            replace(plain, ratios=(2.0, 0.7, 0.7), phases=4, tuples=round(6 * settings.tuple_range)),
            f"RANGE {window_ms} MILLISECONDS",
        ),
    ):
        traces = all_strategies(workload, settings, progress, title, window)
        figure = Figure(
            f"spill-{name}",
            f"Beyond the paper: {title}",
            f"{how} Join ratios {workload.name}, {settings.share:.0%} of the memory.",
            _panels(traces),
        )
        figure.table = table(traces)
        _compare(figure, traces)
        figures.append(figure)
    figures.append(tenth(settings, progress))
    return figures


TENTH = 0.1
"""Of what all states would take."""


def tenth(settings: SpillSettings, progress: Progress) -> Figure:
    """The pace of a task whose state is ten times its budget."""
    workload = settings.workload((1.0, 3.0, 3.0))
    traces: Traces = defaultdict(list)
    for number_ in range(settings.runs):
        progress.say(f"a state of ten times the budget: run {number_ + 1} of {settings.runs}")
        seed = settings.seed + number_
        whole = run(workload, ALL_IN_MEMORY, 0, seed=seed, steps=settings.steps)
        budget = round(max(whole.memory_bytes) * TENTH)
        traces[ALL_IN_MEMORY].append(whole)
        spilled = run(workload, "global-output-penalty", budget, seed=seed, steps=settings.steps)
        traces["global-output-penalty"].append(spilled)
    figure = Figure(
        "spill-tenth",
        "Beyond the paper: a state ten times the budget",
        f"Join ratios {workload.name}. Both give the same results in the end, the one after a cleanup.",
        _panels(traces),
    )
    figure.table = table(traces)
    spilling, whole_runs = traces["global-output-penalty"], traces[ALL_IN_MEMORY]
    taken = over([t.seconds for t in whole_runs], [t.seconds for t in spilling])
    figure.claim("source tuples per second while input runs, against all in memory", "no such run", taken, "x",
                 at_least=0.5)  # fmt: skip
    whole_time = over([t.seconds for t in whole_runs], [t.seconds + t.cleanup_seconds for t in spilling])
    figure.claim("the same, cleanup included", "no such run", whole_time, "x", at_least=0.5)
    return figure


# --- Curves -----------------------------------------------------------------------------------------------


def _over_time(traces: Mapping[str, list[Trace]], value: Callable[[Trace], list[int] | list[float]]) -> Points:
    points: Points = defaultdict(lambda: defaultdict(list))
    for name, runs in traces.items():
        for trace in runs:
            for minute, figure in zip(trace.minutes, value(trace), strict=True):
                points[name][minute].append(figure)
    return points


def _ratios(traces: Traces, above: str, below: str, value: Callable[[Trace], float]) -> list[float]:
    return over([value(trace) for trace in traces[above]], [value(trace) for trace in traces[below]])


BENCH = PaperBench(quick=QUICK, default=SpillSettings(), full=FULL, draw=bench_spill)
