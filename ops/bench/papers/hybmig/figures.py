"""`weir bench hybmig`: the figures of HybMig's experiments (TKDE 2007, section 5), redrawn."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from operators.plan.plan import Plan
from ops.bench.measuring.figures import Figure, Panel, Points, Series, curves, over
from ops.bench.measuring.measure import Progress
from ops.bench.measuring.suites import PaperBench, Suite
from ops.bench.papers.hybmig.runs import Clique, Trace, run
from schemas.errors import UsageError

PAPER = "HybMig: A Hybrid Approach to Dynamic Plan Migration for Continuous Queries, TKDE 19(3) 2007, section 5"

CAPACITY = 10_200.0
"""Comparisons per second of the simulated processor: Moving State computes its states in 49 s at the default task,
as the paper's did (5.1)."""

ENOUGH = 1e12
"""Comparisons per second of a processor that is never busy."""

BIN_S = 10
"""Each point of a rate is the mean over so many seconds."""

MAIN = ("MS", "PT", "HybMig")


@dataclass(frozen=True, slots=True)
class HybMigSettings:
    """Sizes of `weir bench hybmig`.

    Attributes:
        minutes: the default window of the figures that count work (Fig. 16 to 20; the paper: 3).
        windows, rates, streams: the ranges of Fig. 17, of Fig. 18, and of Fig. 19 and 20.
        clock_minutes: the window of the figures by the simulated clock (Fig. 15, 21, 22).
        clock_rates: the rates of Fig. 21.
        runs: of every figure, each with other data.
    """

    minutes: float = 1.5
    windows: tuple[float, ...] = (1.0, 1.5, 2.0)
    rates: tuple[float, ...] = (0.7, 1.0, 1.3)
    streams: tuple[int, ...] = (4, 5, 6, 7)
    clock_minutes: float = 3.0
    clock_rates: tuple[float, ...] = (0.4, 0.7, 1.0, 1.3, 1.6)
    runs: int = 2
    seed: int = 1


QUICK = HybMigSettings(minutes=1.0, windows=(1.0,), rates=(1.0,), streams=(4, 6), clock_rates=(0.4, 1.6), runs=1)

FULL = HybMigSettings(
    minutes=3.0,
    windows=(1.0, 2.0, 3.0, 4.0, 5.0),
    rates=(0.4, 0.7, 1.0, 1.3, 1.6),
    runs=3,
)


def bench_hybmig(settings: HybMigSettings, progress: Progress, figure: int | None = None) -> Suite:
    """Draw all figures, or one.

    Raises:
        UsageError: the paper has no such figure.
    """
    makers: dict[int, Callable[[HybMigSettings, Progress], Figure]] = {
        15: output_rate,
        16: over_time,
        17: over_window,
        18: over_rate,
        19: over_streams,
        20: sharing,
        21: background,
        22: black_boxes,
    }
    if figure is not None and figure not in makers:
        raise UsageError(f"no figure {figure}; there are 15 to 22")
    suite = Suite(
        "hybmig",
        PAPER,
        {
            "runs, seed": f"{settings.runs}, {settings.seed}; each run has data of its own",
            "CPU": "predicate evaluations (comparisons), as in the paper",
            "memory": "living tuples in all states, one copy of shared ones, and tuples that wait",
            "simulated clock": f"{CAPACITY:,.0f} comparisons per second where a figure depends on saturation",
        },
    )
    for number, make in makers.items():
        if figure is None or figure == number:
            suite.figures.append(make(settings, progress))
    if figure is None:
        suite.figures.append(all_strategies(settings, progress))
    return suite


def _traces(
    settings: HybMigSettings,
    progress: Progress,
    label: str,
    clique: Clique,
    target: Plan,
    names: Sequence[str],
    **options: float,
) -> dict[str, list[Trace]]:
    """All runs of every strategy."""
    found: dict[str, list[Trace]] = {name: [] for name in names}
    for number in range(settings.runs):
        for name in names:
            progress.say(f"{label}, {name}: run {number + 1} of {settings.runs}")
            found[name].append(run(clique, target, name, seed=settings.seed + number, **options))
    return found


# --- Over time ------------------------------------------------------------------------------------------


def output_rate(settings: HybMigSettings, progress: Progress) -> Figure:
    """Fig. 15."""
    clique = Clique(settings.clock_minutes)
    w = round(clique.minutes * 60)
    saturated = _traces(settings, progress, "Fig. 15", clique, clique.right_deep(), MAIN, capacity=CAPACITY)
    one = Clique(settings.minutes, shared=True)
    idle = _traces(settings, progress, "Fig. 15", one, one.right_deep(), MAIN, capacity=ENOUGH)
    figure = Figure(
        "hybmig-15",
        "HybMig Fig. 15: output rate over time",
        f"Results per second (means of {BIN_S} s) since the migration began, P_old to right-deep. Left: an attribute "
        f"per pair, w = {clique.minutes:g} minutes, on the simulated processor. Right: one attribute, "
        f"w = {one.minutes:g} minutes, on one that is never busy. PT holds the new plan's results back, as in the "
        "paper.",
        [
            Panel(
                "an attribute per pair, simulated clock", "seconds", "results/s", _rates(saturated, 1.2 * w), rows=15
            ),
            Panel("one attribute", "seconds", "results/s", _rates(idle, 1.2 * one.minutes * 60), rows=15),
        ],
    )
    figure.claim("MS computes states for", "49 s", [t.finished_s for t in saturated["MS"]], "s")
    figure.claim("MS: first result after", "50 s", [t.silent_s for t in saturated["MS"]], "s")
    figure.claim("MS: highest rate / HybMig's", "a burst", over(_peaks(saturated["MS"]), _peaks(saturated["HybMig"])),
                 "x", at_least=1.0)  # fmt: skip
    w = round(one.minutes * 60)
    for what, said, begin, end, limit in (
        ("PT: rate in the last twentieth of w / HybMig's", "falls to 0 at w", 0.95 * w, w, {"at_most": 0.8}),
        ("PT: rate just after w / HybMig's", "a burst", w, w + 3, {"at_least": 1.2}),
    ):
        rates = [[_share(t, begin, end) for t in idle[name]] for name in ("PT", "HybMig")]
        figure.claim(what, said, over(*rates), "x", **limit)
    delays = [t.longest_delay_s for t in saturated["HybMig"]]
    figure.claim("HybMig: longest delay of a result", "< 1 s", delays, "s", at_most=1.0)
    figure.differs = DIFFERS[15]
    return figure


def over_time(settings: HybMigSettings, progress: Progress) -> Figure:
    """Fig. 16."""
    clique = Clique(settings.minutes, shared=True)
    w = round(clique.minutes * 60)
    traces = _traces(settings, progress, "Fig. 16", clique, clique.right_deep(), MAIN, capacity=ENOUGH)
    spans = range(round(1.2 * w))
    memory: Points = {
        name: {s: [t.memory[s] for t in found] for s in spans if all(s in t.memory for t in found)}
        for name, found in traces.items()
    }
    spent: Points = {
        name: {s: [t.compared.get(s, 0.0) for t in found] for s in spans} for name, found in traces.items()
    }
    figure = Figure(
        "hybmig-16",
        "HybMig Fig. 16: overhead over time",
        f"One attribute, w = {clique.minutes:g} minutes, 1 tuple per second, 6 streams, P_old to right-deep; a "
        "processor that is never busy, so that what each second asks for is seen.",
        [
            Panel("memory", "seconds", "tuples", curves(memory, MAIN), log=True),
            Panel("CPU", "seconds", "comparisons per second", curves(spent, MAIN), log=True),
        ],
    )
    seconds = range(w)
    below = [
        100.0 * sum(h.compared.get(s, 0) <= p.compared.get(s, 0) for s in seconds) / w
        for h, p in zip(traces["HybMig"], traces["PT"], strict=True)
    ]
    figure.claim("seconds of w in which HybMig compares less than PT", "all", below, "%", at_least=100.0)
    _claim_totals(figure, traces)
    figure.differs = DIFFERS[16]
    return figure


def _claim_totals(figure: Figure, traces: dict[str, list[Trace]]) -> None:
    for name in ("MS", "PT"):
        figure.claim(f"comparisons, {name} / HybMig", "> 1", over(_cpu(traces[name]), _cpu(traces["HybMig"])), "x",
                     at_least=1.0)  # fmt: skip
        figure.claim(f"peak memory, {name} / HybMig", "> 1", over(_peak(traces[name]), _peak(traces["HybMig"])), "x",
                     at_least=1.0)  # fmt: skip


# --- Over window, rate, streams -----------------------------------------------------------------------------


def over_window(settings: HybMigSettings, progress: Progress) -> Figure:
    """Fig. 17."""
    tasks = {minutes: Clique(minutes, shared=True) for minutes in settings.windows}
    return _sweep(settings, progress, 17, "window", "w (minutes)", tasks)


def over_rate(settings: HybMigSettings, progress: Progress) -> Figure:
    """Fig. 18."""
    tasks = {rate: Clique(settings.minutes, rate, shared=True) for rate in settings.rates}
    return _sweep(settings, progress, 18, "stream rate", "tuples per second", tasks)


def over_streams(settings: HybMigSettings, progress: Progress) -> Figure:
    """Fig. 19."""
    tasks = {float(n): Clique(settings.minutes, streams=n, shared=True) for n in settings.streams}
    return _sweep(settings, progress, 19, "number of streams", "streams", tasks)


def _sweep(
    settings: HybMigSettings, progress: Progress, number: int, title: str, axis: str, tasks: dict[float, Clique]
) -> Figure:
    memory: Points = defaultdict(dict)
    spent: Points = defaultdict(dict)
    for x, clique in tasks.items():
        for shape, target in (("right-deep", clique.right_deep()), ("bushy", clique.bushy())):
            label = f"Fig. {number}, {axis} {x:g}, {shape}"
            for name, found in _traces(settings, progress, label, clique, target, MAIN, capacity=ENOUGH).items():
                memory[f"{name} {shape}"][x] = _peak(found)
                spent[f"{name} {shape}"][x] = _cpu(found)
    names = tuple(memory)
    figure = Figure(
        f"hybmig-{number}",
        f"HybMig Fig. {number}: overhead over {title}",
        f"One attribute; where not varied w = {settings.minutes:g} minutes, 1 tuple per second, 6 streams. Peak "
        "memory, and all comparisons of 1.2 w since the migration began.",
        [
            Panel("memory", axis, "tuples", curves(memory, names), log=True),
            Panel("CPU", axis, "comparisons", curves(spent, names), log=True),
        ],
    )
    for what, points in (("peak memory", memory), ("comparisons", spent)):
        for shape in ("right-deep", "bushy"):
            for name in ("MS", "PT"):
                # The smallest lead over all settings, run by run.
                leads = [over(points[f"{name} {shape}"][x], points[f"HybMig {shape}"][x]) for x in tasks]
                least = [min(lead[k] for lead in leads) for k in range(settings.runs)]
                figure.claim(f"{what}, {shape}: {name} / HybMig, least", "> 1", least, "x", at_least=1.0)
    figure.differs = DIFFERS[number]
    return figure


# --- Optimizations --------------------------------------------------------------------------------------------


def sharing(settings: HybMigSettings, progress: Progress) -> Figure:
    """Fig. 20."""
    names = ("HybMig without sharing", "HybMig")
    memory: Points = defaultdict(dict)
    spent: Points = defaultdict(dict)
    for n in settings.streams:
        clique = Clique(settings.minutes, streams=n, shared=True)
        traces = _traces(settings, progress, f"Fig. 20, {n} streams", clique, clique.sharing(), names, capacity=ENOUGH)
        for name, found in traces.items():
            memory[name][n], spent[name][n] = _peak(found), _cpu(found)
    figure = Figure(
        "hybmig-20",
        "HybMig Fig. 20: effect of subquery sharing",
        f"One attribute, w = {settings.minutes:g} minutes, 1 tuple per second; to the plan that joins the last two "
        "streams first and is otherwise the old one.",
        [
            Panel("memory", "streams", "tuples", curves(memory, names), log=True),
            Panel("CPU", "streams", "comparisons", curves(spent, names), log=True),
        ],
    )
    for what, points in (("memory", memory), ("comparisons", spent)):
        gains = [over(points[names[0]][n], points[names[1]][n]) for n in settings.streams]
        best = [max(gain[k] for gain in gains) for k in range(settings.runs)]
        figure.claim(f"{what}: sharing saves up to", "2x", best, "x")
        worst = [min(gain[k] for gain in gains) for k in range(settings.runs)]
        figure.claim(f"{what}: sharing saves at least", "> 1", worst, "x", at_least=1.0)
    figure.differs = DIFFERS[20]
    return figure


def background(settings: HybMigSettings, progress: Progress) -> Figure:
    """Fig. 21."""
    names = (*MAIN, "HybMig+BSC")
    duration: Points = defaultdict(dict)
    spent: Points = defaultdict(dict)
    w = settings.clock_minutes * 60
    for rate in settings.clock_rates:
        clique = Clique(settings.clock_minutes, rate)
        label = f"Fig. 21, {rate:g} tuples per second"
        traces = _traces(settings, progress, label, clique, clique.right_deep(), names, capacity=CAPACITY)
        for name, found in traces.items():
            duration[name][rate] = [min(t.caught_up_s, max(t.memory)) for t in found] if name == "MS" else [
                min(t.finished_s, max(t.memory)) for t in found
            ]  # fmt: skip
            spent[name][rate] = _cpu(found)
    figure = Figure(
        "hybmig-21",
        "HybMig Fig. 21: effect of background state computation",
        f"An attribute per pair, w = {settings.clock_minutes:g} minutes, 6 streams, P_old to right-deep, on the "
        "simulated processor. MS lasts until no input waits any more, the others until the old plan is gone. "
        "Background work is done when nothing else is to do.",
        [
            Panel("duration", "tuples per second", "seconds", curves(duration, names)),
            Panel("CPU", "tuples per second", "comparisons", curves(spent, names), log=True),
        ],
    )
    low, high = min(settings.clock_rates), max(settings.clock_rates)
    figure.claim(f"BSC at {low:g}: duration / w", "negligible", over(duration["HybMig+BSC"][low], [w] * settings.runs),
                 "", at_most=0.1)  # fmt: skip
    figure.claim(f"MS at {high:g}: duration / w", "about 5", over(duration["MS"][high], [w] * settings.runs), "")
    figure.claim(f"PT at {high:g}: duration / w", "> 1, overloaded", over(duration["PT"][high], [w] * settings.runs),
                 "", at_least=1.05)  # fmt: skip
    figure.claim(f"HybMig at {high:g}: duration / w", "1", over(duration["HybMig"][high], [w] * settings.runs), "",
                 at_most=1.05)  # fmt: skip
    for name in ("MS", "PT"):
        least = [
            min(spent[name][rate][k] / spent["HybMig+BSC"][rate][k] for rate in settings.clock_rates)
            for k in range(settings.runs)
        ]
        figure.claim(f"comparisons, {name} / HybMig+BSC, least", "> 1", least, "x", at_least=1.0)
    figure.differs = DIFFERS[21]
    return figure


def black_boxes(settings: HybMigSettings, progress: Progress) -> Figure:
    """Fig. 22."""
    names = ("GMS", "GPT", "GHM")
    clique = Clique(settings.clock_minutes, median=True)
    w = round(clique.minutes * 60)
    traces = _traces(settings, progress, "Fig. 22", clique, clique.right_deep(), names, capacity=2 * CAPACITY)
    spent: Points = {
        name: {
            float(s): [sum(t.compared.get(x, 0.0) for x in range(s, s + BIN_S)) / BIN_S for t in found]
            for s in range(0, round(1.2 * w), BIN_S)
        }
        for name, found in traces.items()
    }
    figure = Figure(
        "hybmig-22",
        "HybMig Fig. 22: plans as black boxes",
        f"As Fig. 15 with a sliding median above the join, EMIT EVERY 1 SECOND; w = {clique.minutes:g} minutes, on a "
        "simulated processor of twice the speed, so that the background gets a turn. A median is given out when it has "
        "changed.",
        [
            Panel("output rate", "seconds", "medians/s", _rates(traces, 1.2 * w), rows=15),
            Panel("CPU", "seconds", "comparisons per second", curves(spent, names), log=True, rows=15),
        ],
    )
    for name, said in (("GMS", "silent until its end"), ("GPT", "steady"), ("GHM", "steady")):
        figure.claim(f"{name}: longest delay of a result", said, [t.longest_delay_s for t in traces[name]], "s")
    ends = {name: [min(t.finished_s, max(t.memory)) / w for t in traces[name]] for name in names}
    figure.claim("GPT: duration / w", "1", ends["GPT"])
    for name in ("GMS", "GHM"):
        figure.claim(f"{name}: duration / w", "much earlier than GPT", ends[name], at_most=1.0)
    figure.differs = DIFFERS[22]
    return figure


# --- Beyond the paper -------------------------------------------------------------------------------------------


def all_strategies(settings: HybMigSettings, progress: Progress) -> Figure:
    """The cost of each strategy on one and the same task."""
    clique = Clique(settings.clock_minutes)
    w = round(clique.minutes * 60)
    figure = Figure(
        "hybmig-strategies",
        "All strategies on one task",
        f"The task of Fig. 15 (an attribute per pair, w = {w} s, P_old to right-deep) on a simulated processor that "
        "one plan keeps half busy. Medians. The delay is that of a result after its timestamp; comparisons and tuples "
        "in states are those of 1.2 w since the cut; over means that the new plan stands alone.",
        table=[("strategy", "longest delay", "comparisons", "peak tuples", "over after")],
    )
    names = {
        "jisc": "JISC",
        "hybmig-bsc": "HybMig+BSC",
        "hybmig": "HybMig",
        "moving-state": "MS",
        "parallel-track": "PT",
        "gms": "GMS",
        "gpt": "GPT",
        "ghm": "GHM",
    }
    traces = _traces(
        settings, progress, "all", clique, clique.right_deep(), tuple(names.values()), capacity=2 * CAPACITY
    )
    for strategy, name in names.items():
        found = traces[name]
        over = statistics.median(min(trace.finished_s, max(trace.memory)) for trace in found)
        figure.table.append(
            (
                strategy,
                f"{statistics.median(trace.longest_delay_s for trace in found):.1f} s",
                f"{statistics.median(_cpu(found)):,.0f}",
                f"{statistics.median(_peak(found)):,.0f}",
                f"{over:.1f} s",
            )
        )
    figure.differs = (
        "Parallel Track holds results back here, as in the paper; `--strategy parallel-track` does not, and delays as "
        "little as gpt."
    )
    return figure


# --- Curves ---------------------------------------------------------------------------------------------------


def _rates(traces: dict[str, list[Trace]], seconds: float) -> tuple[Series, ...]:
    """Results per second, the mean of each bin."""
    return tuple(
        Series.of(
            name,
            {
                float(s): [sum(t.outputs.get(x, 0) for x in range(s, s + BIN_S)) / BIN_S for t in found]
                for s in range(0, round(seconds), BIN_S)
            },
        )
        for name, found in traces.items()
    )


def _cpu(traces: Sequence[Trace]) -> list[float]:
    return [trace.comparisons for trace in traces]


def _peak(traces: Sequence[Trace]) -> list[float]:
    return [float(trace.peak_tuples) for trace in traces]


def _peaks(traces: Sequence[Trace]) -> list[float]:
    """The highest rate over a bin."""
    return [
        max(sum(t.outputs.get(x, 0) for x in range(s, s + BIN_S)) for s in range(0, int(max(t.memory)), BIN_S))
        / BIN_S
        for t in traces
    ]  # fmt: skip


def _share(trace: Trace, begin: float, end: float) -> float:
    """Results per second between two times."""
    return sum(count for second, count in trace.outputs.items() if begin <= second < end) / (end - begin)


_COUNTED = (
    "Parallel Track is above HybMig in every setting, as in the paper, but not in every second: at first its new plan "
    "has empty states and costs nothing, while HybMig's, which shares the sources' states, already makes results. "
)

_BUSHY = (
    "HybMig is below Parallel Track everywhere, as in the paper, and below Moving State with right-deep plans. With "
    "bushy ones Moving State compares about a tenth less: few and small states are missing, and nobody has to wait for "
    "them on a processor that is never busy. "
)

DIFFERS: dict[int, str] = {
    15: "HybMig delays results by up to two or three seconds where the paper says less than one: with an attribute per "
    "pair the load reaches the capacity for some seconds. Moving State needs longer than the paper's 11 seconds to "
    "work off what has waited, because its new plan still has the old, frequent values of the last stream in it. "
    "Parallel Track falls late in w rather than steadily: a result leaves the old plan only when all its components "
    "are new. The rates are lower than the paper's, which does not say how many results its data give.",
    16: _COUNTED + "Moving State shows its cost as one peak in the first second instead of 49 saturated ones, since "
    "nothing saturates here.",
    17: _BUSHY,
    18: _BUSHY,
    19: _BUSHY + "That of four streams lacks two small states only, so Moving State also holds less there.",
    20: "",
    21: "With an attribute per pair HybMig compares a little more than Parallel Track: most of the work lies in the "
    "lowest joins of the old plan, which HybMig cannot prune, so that it is overloaded from 1.3 tuples per second on, "
    "where the paper's was not; with one attribute (Fig. 18) it compares less at every rate. Background computation "
    "wins as in the paper: seconds at low rates, w at high ones.",
    22: "",
}
"""How a figure's shape differs from the paper's, and why."""

BENCH = PaperBench(quick=QUICK, default=HybMigSettings(), full=FULL, draw=bench_hybmig)
