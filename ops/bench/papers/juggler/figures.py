"""`weir bench juggler`: the figures of Juggler's experiments (WPI 2004, chapter 5), redrawn, and beyond them.

What should win: a multi-way operator over binary joins in the number of intermediate results; the adaptive order over
every fixed order once data drifts; one operator over an engine per query, the more queries there are. What should lose:
the order of types that lets most tuples through first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from operators.groups.sharing import APART
from operators.juggler.operator import Juggler
from operators.juggler.predicates.order import ADAPTIVE, ORDERS
from operators.juggler.routing.tuples_in_flight import ENCODINGS
from ops.bench.measuring.figures import Figure, Panel, Points, curves, over
from ops.bench.measuring.measure import Progress
from ops.bench.measuring.report import number
from ops.bench.measuring.suites import PaperBench, Suite
from ops.bench.papers.juggler.runs import (
    Size,
    Steps,
    Trace,
    group_steps,
    in_turn,
    one_by_one,
    plan_steps,
    run_group,
    steps_with,
)
from ops.bench.papers.juggler.workloads import (
    OVERLAPS,
    STEP_MS,
    WATCHED,
    drifting,
    four_way,
    many,
    overlapping,
    reordering,
    watched,
)
from schemas.errors import UsageError
from services.process import memory

PAPER = "Multiple Continuous Query Processing with Relative Window Predicates, WPI 2004, chapter 5"

BINARY = {"BH_TK": "((B H) (T K))", "BK_TH": "((B K) (T H))", "TB_HK": "((T B) (H K))"}
MULTI = {"BHT_K": "((B H T) K)", "BKT_H": "((B K T) H)", "BHK_T": "((B H K) T)"}
"""Fig. 5.2 and 5.3."""

FIGURES = {4: "plans", 5: "plans", 6: "plans", 7: "plans", 10: "orders", 11: "orders", 12: "overlap"}
"""The runs that draw Fig. 5.x; 5.13 to 5.15 are the queries of 5.12."""

SAME = "results equal to those of every query in an engine of its own"

MANY_OVERLAP = 0.75

WATCHING = 10
"""The number of queries in the figure about feedback."""

Traces = dict[str, list[Trace]]
"""The runs of each contender."""


@dataclass(frozen=True, slots=True)
class JugglerSettings:
    """Sizes of `weir bench juggler`.

    Attributes:
        length: of the input, in units of `STEP_MS`; drift_length of the drifting input, many_length of the wide groups.
        steps: how many steps the input is divided into.
        groups: how many queries the wide groups have; up to apart_at_most of them also run standalone.
        runs: of every figure.
    """

    length: int = 2_000
    drift_length: int = 30_000
    many_length: int = 20_000
    steps: int = 20
    drift_steps: int = 90
    groups: tuple[int, ...] = (1, 10, 100, 1_000)
    apart_at_most: int = 1_000
    runs: int = 2
    seed: int = 1


QUICK = JugglerSettings(
    length=300, drift_length=6_000, many_length=4_000, drift_steps=30, groups=(1, 10, 100), apart_at_most=100, runs=1
)
FULL = JugglerSettings(length=10_000, drift_length=90_000, many_length=100_000, drift_steps=270, runs=3)


def bench_juggler(settings: JugglerSettings, progress: Progress, figure: int | None = None) -> Suite:
    """Draw all figures, or one.

    Raises:
        UsageError: the thesis has no such figure.
    """
    if figure is not None and figure not in FIGURES:
        raise UsageError(f"no figure 5.{figure}; there are 5.4 to 5.7 and 5.10 to 5.12")
    suite = Suite(
        "juggler",
        PAPER,
        {
            "workload": f"{settings.length:,} tuples per stream, one every {STEP_MS} ms; windows of 6 and 20 seconds",
            "runs, seed": f"{settings.runs}, {settings.seed}",
            "time": "processor time, contenders step by step in turn; all that is counted depends on no machine",
        },
    )
    makers: dict[str, Callable[[JugglerSettings, Progress], list[Figure]]] = {
        "plans": plans,
        "orders": orders,
        "overlap": overlap,
    }
    progress.say("loading kernels")
    run_group(reordering(), ADAPTIVE, Size(50, 2), settings.seed)
    # As workers and `weir run` do: otherwise a garbage collection of all imports, 80 ms, falls into some figure.
    memory.prepare()
    wanted = dict.fromkeys(FIGURES.values()) if figure is None else {FIGURES[figure]: None}
    for name in wanted:
        suite.figures += [f for f in makers[name](settings, progress) if figure is None or f.name == _name(figure)]
    if figure is None:
        suite.figures += [drift(settings, progress), growth(settings, progress), demand(settings, progress)]
    return suite


def _name(figure: int) -> str:
    return f"juggler-5-{figure:02d}"


def _run_all(
    settings: JugglerSettings,
    progress: Progress,
    label: str,
    contenders: dict[str, Callable[[int], Steps]],
    how: Callable[[Mapping[str, Steps]], dict[str, Trace]] = in_turn,
) -> Traces:
    """Every contender on the same data, run by run; `how` decides in which order they run."""
    traces: Traces = {name: [] for name in contenders}
    for turn in range(settings.runs):
        progress.say(f"{label}: run {turn + 1} of {settings.runs}")
        for name, trace in how({name: run(settings.seed + turn) for name, run in contenders.items()}).items():
            traces[name].append(trace)
    return traces


def _same(figure: Figure, traces: Traces, what: str = SAME) -> None:
    """Claim that every contender has the same sequence of results per query."""
    first = next(iter(traces.values()))
    equal = [
        float(all(runs[turn].digest == first[turn].digest for runs in traces.values())) for turn in range(len(first))
    ]
    figure.claim(what, "all", equal, at_least=1.0)


def _table(figure: Figure, traces: Traces) -> None:
    figure.table = [("", "tuples/s", "ms", "results", "comparisons", "intermediate", "peak KiB")]
    for name, runs in traces.items():
        last = runs[-1]
        figure.table.append(
            (
                name,
                number(last.pace),
                number(last.total_s * 1000),
                f"{sum(last.results):,}",
                f"{last.comparisons[-1]:,}",
                f"{last.intermediate[-1]:,}",
                f"{last.peak_bytes >> 10:,}",
            )
        )


def _points(traces: Traces, value: Callable[[Trace], Sequence[float]]) -> Points:
    """The runs' values by share of the input, in percent."""
    points: Points = {}
    for name, runs in traces.items():
        for trace in runs:
            values = value(trace)
            for place, y in enumerate(values, start=1):
                points.setdefault(name, {}).setdefault(100 * place / len(values), []).append(float(y))
    return points


def _ratio(traces: Traces, one: str, other: str, value: Callable[[Trace], float]) -> list[float]:
    return over([value(t) for t in traces[one]], [value(t) for t in traces[other]])


def _mean_ratio(
    traces: Traces, some: Sequence[str], others: Sequence[str], value: Callable[[Trace], float]
) -> list[float]:
    """Run by run, the mean over some contenders divided by that over others."""
    count = len(traces[some[0]])
    return [
        (sum(value(traces[name][turn]) for name in some) / len(some))
        / (sum(value(traces[name][turn]) for name in others) / len(others))
        for turn in range(count)
    ]


def _comparisons(trace: Trace) -> float:
    return float(trace.comparisons[-1])


def _intermediate(trace: Trace) -> float:
    return float(trace.intermediate[-1])


def _seconds(trace: Trace) -> float:
    return trace.total_s


# --- Fig. 5.4 to 5.7: binary plans and multi-way operators ---------------------------------------------------


def plans(settings: JugglerSettings, progress: Progress) -> list[Figure]:
    """One query of four inputs, executed by six plans."""
    group = four_way()
    size = Size(settings.length, settings.steps)
    contenders: dict[str, Callable[[int], Steps]] = {}
    for name, plan in {**BINARY, **MULTI}.items():
        executor = "xjoin" if name in BINARY else "juggler"
        contenders[name] = partial(plan_steps, group, plan, executor, size)
    traces = _run_all(settings, progress, "Fig. 5.4", contenders)
    how = "One query over four streams, by the thesis' three plans of binary joins and three with a multi-way operator."
    drawn = []
    for place, title, unit, value in (
        (4, "output", "results", lambda t: list(accumulate(t.results))),
        (5, "intermediate tuples", "tuples", lambda t: t.intermediate),
        (6, "processor time", "ms", lambda t: [s * 1000 for s in accumulate(t.seconds)]),
        (7, "comparisons", "comparisons", lambda t: t.comparisons),
    ):
        points = _points(traces, value)
        figure = Figure(
            _name(place),
            f"Juggler Fig. 5.{place}: {title}, binary and multi-way plans",
            how,
            [Panel(title, "% of the input", unit, curves(points, list(points)))],
        )
        drawn.append(figure)
    output, made, time, compared = drawn
    _table(output, traces)
    _same(output, traces)
    made.claim("intermediate tuples: multi-way plans against binary ones, means", "fewer for most",
               _mean_ratio(traces, list(MULTI), list(BINARY), _intermediate), "x", at_most=1.0)  # fmt: skip
    made.claim("intermediate tuples: the best multi-way plan against the best binary one", "no number",
               _best(traces, list(MULTI), list(BINARY), _intermediate), "x", at_most=1.0)  # fmt: skip
    time.claim("time: multi-way plans against binary ones, means", "less on average",
               _mean_ratio(traces, list(MULTI), list(BINARY), _seconds), "x", at_most=1.0)  # fmt: skip
    compared.claim("comparisons: the best multi-way plan against the best binary one", "no number",
                   _best(traces, list(MULTI), list(BINARY), _comparisons), "x", at_most=1.0)  # fmt: skip
    return drawn


def _best(traces: Traces, some: Sequence[str], others: Sequence[str], value: Callable[[Trace], float]) -> list[float]:
    count = len(traces[some[0]])
    return [
        min(value(traces[name][turn]) for name in some) / min(value(traces[name][turn]) for name in others)
        for turn in range(count)
    ]


# --- Fig. 5.10 and 5.11: the order of predicate types --------------------------------------------------------


def orders(settings: JugglerSettings, progress: Progress) -> list[Figure]:
    """One query, by the adaptive order and by the six fixed ones."""
    size = Size(settings.length, settings.steps)
    contenders: dict[str, Callable[[int], Steps]] = {
        name: partial(group_steps, reordering(), name, size) for name in (ADAPTIVE, *ORDERS)
    }
    traces = _run_all(settings, progress, "Fig. 5.10", contenders)
    how = "The query of Fig. 5.8 in one operator; A: attribute, J: join, W: window predicates, in the order evaluated."
    time, compared = (
        Figure(
            _name(place),
            f"Juggler Fig. 5.{place}: adaptive and fixed orders, {title}",
            how,
            [Panel(title, "% of the input", unit, curves(_points(traces, value), list(traces)))],
        )
        for place, title, unit, value in (
            (10, "processor time", "ms", lambda t: [s * 1000 for s in accumulate(t.seconds)]),
            (11, "comparisons", "comparisons", lambda t: t.comparisons),
        )
    )
    _table(time, traces)
    _same(time, traces)
    time.claim("time: adaptive against the best fixed order", "as fast",
               _best(traces, [ADAPTIVE], ORDERS, _seconds), "x", at_most=1.05)  # fmt: skip
    compared.claim("comparisons: adaptive against the best fixed order", "fewer",
                   _best(traces, [ADAPTIVE], ORDERS, _comparisons), "x", at_most=1.0)  # fmt: skip
    return [time, compared]


# --- Fig. 5.12: overlap --------------------------------------------------------------------------------------


def overlap(settings: JugglerSettings, progress: Progress) -> list[Figure]:
    """Five queries in one operator, whose predicates overlap by a quarter, a half, three quarters."""
    points: Points = {}
    figure = Figure(
        _name(12),
        "Juggler Fig. 5.12: comparisons, five queries whose predicates overlap",
        "The queries of Fig. 5.13 to 5.15 in one operator by either encoding, and each in an engine of its own.",
    )
    falls: dict[int, list[float]] = {}
    size = Size(settings.length, settings.steps)
    for percent in OVERLAPS:
        group = overlapping(percent)
        contenders: dict[str, Callable[[int], Steps]] = {
            encoding: partial(group_steps, group, ADAPTIVE, size, encoding=encoding) for encoding in ENCODINGS
        }
        contenders[APART] = partial(group_steps, group, APART, size)
        traces = _run_all(settings, progress, f"Fig. 5.12, {percent} %", contenders)
        for name, runs in traces.items():
            points.setdefault(name, {})[float(percent)] = [_comparisons(t) for t in runs]
        falls[percent] = [_comparisons(t) for t in traces[ENCODINGS[0]]]
        _same(figure, traces)
    figure.panels = [Panel("comparisons", "% of overlap", "comparisons", curves(points, list(points)))]
    figure.claim("comparisons: 75 % of overlap against 25 %", "fewer", over(falls[75], falls[25]), "x", at_most=1.0)
    return [figure]


# --- Beyond --------------------------------------------------------------------------------------------------


def drift(settings: JugglerSettings, progress: Progress) -> Figure:
    """The best order changes twice during the run."""
    size = Size(settings.drift_length, settings.drift_steps)
    contenders: dict[str, Callable[[int], Steps]] = {
        name: partial(group_steps, drifting(), name, size) for name in (ADAPTIVE, *ORDERS)
    }
    traces = _run_all(settings, progress, "drift", contenders)
    figure = Figure(
        "juggler-drift",
        "Drift: another order of predicate types is the best one in each third of the run",
        "The query of Fig. 5.8; in turn the attribute, the join and the window predicates refuse nearly all.",
        [Panel("processor time", "% of the input", "ms",
               curves(_points(traces, lambda t: [s * 1000 for s in accumulate(t.seconds)]), list(traces)))],
    )  # fmt: skip
    _table(figure, traces)
    _same(figure, traces)
    for name in ORDERS:
        figure.claim(f"time: {name} against adaptive", "every order at least 1.3",
                     _ratio(traces, name, ADAPTIVE, _seconds), "x", at_least=1.3)  # fmt: skip
    for phase in range(3):

        def within(trace: Trace, phase: int = phase) -> float:
            third = settings.drift_steps // 3
            return sum(trace.seconds[phase * third : (phase + 1) * third])

        figure.claim(f"time in phase {phase + 1}: adaptive against the best order", "within 5 %",
                     _best(traces, [ADAPTIVE], ORDERS, within), "x", at_most=1.05)  # fmt: skip
    return figure


def growth(settings: JugglerSettings, progress: Progress) -> Figure:
    """More and more queries in one operator, and each in an engine of its own."""
    figure = Figure(
        "juggler-queries",
        f"Many queries, {MANY_OVERLAP:.0%} of whose predicates overlap: one operator against an engine per query",
        "Two streams of 40 patients; every query joins a patient's readings within limits of its own.",
    )
    pace: Points = {"one operator": {}, APART: {}}
    memory: Points = {"one operator": {}, APART: {}}
    per_query: Points = {"one operator": {}, APART: {}}
    size = Size(settings.many_length, settings.steps)
    for count in settings.groups:
        group = many(count, MANY_OVERLAP, settings.seed)
        contenders: dict[str, Callable[[int], Steps]] = {"one operator": partial(group_steps, group, ADAPTIVE, size)}
        if count <= settings.apart_at_most:
            contenders[APART] = partial(group_steps, group, APART, size)
        # Step by step, an operator and hundreds of engines would evict each other's data from the caches.
        traces = _run_all(settings, progress, f"{count} queries", contenders, one_by_one)
        for name, runs in traces.items():
            pace[name][float(count)] = [t.pace for t in runs]
            memory[name][float(count)] = [t.peak_bytes / 2**20 for t in runs]
            per_query[name][float(count)] = [t.total_s * 1000 / count for t in runs]
        if APART in traces:
            _same(figure, traces)
            ratio = _ratio(traces, APART, "one operator", _seconds)
            asked = 10.0 if count == 100 else None
            figure.claim(
                f"{count} queries: pace of one operator against apart", "no figure", ratio, "x", at_least=asked
            )
    figure.panels = [
        Panel(title, "queries", unit, curves(points, [n for n in points if points[n]]), log=True)
        for title, unit, points in (
            ("pace", "source tuples/s", pace),
            ("processor time per query", "ms", per_query),
            ("memory", "MiB", memory),
        )
    ]
    return figure


def demand(settings: JugglerSettings, progress: Progress) -> Figure:
    """Feedback in one operator, and without it."""
    figure = Figure(
        "juggler-demand",
        f"What {WATCHING} queries of three streams spare by setting aside what has no partner",
        "A patient's readings of blood and heart, and the temperature of the heart's room: few rooms have one, or few "
        "at a time, or most.",
    )
    size = Size(settings.many_length, settings.steps)
    points: Points = {}
    for place, (title, rooms) in enumerate(WATCHED.items()):
        group = watched(*rooms, WATCHING, settings.seed)
        contenders: dict[str, Callable[[int], Steps]] = {
            name: partial(steps_with, group, partial(Juggler, feedback=feedback), size)
            for name, feedback in (("without feedback", False), ("with feedback", True))
        }
        traces = _run_all(settings, progress, title, contenders)
        _same(figure, traces, f"{title}: results with feedback equal to those without")
        for name, runs in traces.items():
            points.setdefault(name, {})[float(place)] = [t.total_s * 1000 for t in runs]
        limit = 1.03 if place == len(WATCHED) - 1 else 1.0
        for what, value in (("time", _seconds), ("comparisons", _comparisons), ("intermediate tuples", _intermediate)):
            figure.claim(f"{title}: {what} with feedback against without", "no figure",
                         _ratio(traces, "with feedback", "without feedback", value), "x", at_most=limit)  # fmt: skip
    figure.panels = [Panel("processor time", ", ".join(WATCHED), "ms", curves(points, list(points)))]
    return figure


BENCH = PaperBench(quick=QUICK, default=JugglerSettings(), full=FULL, draw=bench_juggler)
