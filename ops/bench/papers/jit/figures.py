"""`weir bench jit`: the figures of JIT's experiments (ICDE 2008, section VI), redrawn, and further figures."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ops.bench.measuring.figures import Figure, Panel, Points, Series, curves, over
from ops.bench.measuring.measure import Progress
from ops.bench.measuring.suites import PaperBench, Suite
from ops.bench.papers.jit.runs import REPEATED_S, Clique, Cost, GeneratedQuery, compare
from ops.bench.papers.jit.tasks import AllMatch, FromEngineBench
from ops.bench.workloads import clique, three_way
from schemas.errors import UsageError

PAPER = "JIT: Just-In-Time Processing of Continuous Queries, ICDE 2008, section VI"

BUSHY = Clique()
LEFT_DEEP = Clique("left-deep", 10.0, 1.0, 4, 50)
"""The defaults of Table III."""

AXES: dict[int, tuple[Clique, str, str, tuple[float, ...]]] = {
    10: (BUSHY, "minutes", "window (minutes)", (10, 15, 20, 25, 30)),
    11: (BUSHY, "rate", "tuples per second and source", (0.4, 0.7, 1.0, 1.3, 1.6)),
    12: (BUSHY, "streams", "sources", (4, 5, 6, 7, 8)),
    13: (BUSHY, "values", "d_max", (100, 150, 200, 250, 300)),
    14: (LEFT_DEEP, "minutes", "window (minutes)", (5, 7.5, 10, 12.5, 15)),
    15: (LEFT_DEEP, "rate", "tuples per second and source", (0.4, 0.7, 1.0, 1.3, 1.6)),
    16: (LEFT_DEEP, "streams", "sources", (3, 4, 5, 6)),
    17: (LEFT_DEEP, "values", "d_max", (30, 40, 50, 60, 70)),
}
"""What each figure varies, and the values of Table III."""

SKEWED = Clique("bushy", 5.0, 1.0, 4, 200)
"""Zipf's law makes ten times as many pairs, so this has a smaller window, and four sources, which have results."""

HOURS = 5.0
"""Application time of the paper's runs."""

LOSS_AT_MOST = 1.03
"""JIT may cost at most so many times as much as REF with hash joins, on any workload."""

SPARSE_WINDOWS = 4
"""With hash joins at the paper's rates, so many times as many windows are counted: each takes milliseconds."""

PAIR = ("REF", "JIT")


@dataclass(frozen=True, slots=True)
class JitSettings:
    """Sizes of `weir bench jit`.

    Attributes:
        windows: counted in each run, after one that fills the states; None for the paper's five hours in all.
        points: how many values each axis has, the first and the last among them.
        scale: multiple of the paper's rates for hash joins (`ops.bench.papers.jit.runs`).
        skews: Zipf's exponents; drifts: how many windows a phase lasts.
        skew_scale: `scale` for skewed values, which make many pairs.
        slices: into how many pieces a window is cut, for nested loops and for hash joins; feedback acts between pieces.
        share: scales the paper's windows, for tests.
        runs: of every figure, each with other data; short runs are repeated at most `repeats` times on the same data.
    """

    windows: float | None = 1.0
    points: int = 3
    scale: float = 30.0
    skews: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    drifts: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)
    skew_scale: float = 10.0
    slices: tuple[int, int] = (30, 20)
    share: float = 1.0
    runs: int = 2
    repeats: int = 7
    seed: int = 1


QUICK = JitSettings(windows=0.5, scale=10.0, skews=(0.0, 0.5, 1.0), drifts=(0.3, 1.0), runs=1, repeats=3)
FULL = JitSettings(windows=None, points=5, runs=3)


def bench_jit(settings: JitSettings, progress: Progress, figure: int | None = None) -> Suite:
    """Draw all figures, or one of the paper.

    Raises:
        UsageError: the paper has no such figure.
    """
    if figure is not None and figure not in AXES:
        raise UsageError(f"no figure {figure}; there are 10 to 17")
    long = f"{settings.windows:g} windows" if settings.windows is not None else f"all but one window of {HOURS:g} hours"
    suite = Suite(
        "jit",
        PAPER,
        {
            "workload": "clique joins (Table II, Table III); the first window, which fills the states, is not counted",
            "counted": f"{long} in each run; per hour of event time",
            "runs, seed": f"{settings.runs}, {settings.seed}; each run has data of its own",
            "time": "processor seconds of the engine; REF and JIT take turns on the same tuples; what takes less than "
            f"{REPEATED_S:g} s is done up to {settings.repeats} times, and each turn counts at its fastest",
            "memory": "bytes of all states, stores and blacklists at their peak",
            "hash joins": f"at the paper's rates, and at {settings.scale:g} times them with d_max to match",
        },
    )
    bench = _Bench(settings, progress)
    bench.warm_up()
    for number in AXES:
        if figure is None or figure == number:
            suite.figures.append(bench.sweep(number))
    if figure is None:
        suite.figures += [bench.skew(), bench.drift(), bench.losses()]
    return suite


Runs = list[tuple[Cost, Cost]]
"""The costs of REF and JIT, run by run."""


class _Bench:
    """Measures every workload once, whichever figures it is in."""

    def __init__(self, settings: JitSettings, progress: Progress) -> None:
        self._settings = settings
        self._progress = progress
        self._found: dict[tuple[GeneratedQuery, bool], Runs] = {}

    def runs(self, task: GeneratedQuery, *, hashed: bool) -> Runs:
        """All runs of a workload."""
        if (task, hashed) not in self._found:
            runs: Runs = []
            for number in range(self._settings.runs):
                how = "hash joins" if hashed else "nested loops"
                self._progress.say(f"{task.label}, {how}: run {number + 1} of {self._settings.runs}")
                seed = self._settings.seed + number
                slices, windows = self._settings.slices[hashed], self._windows(task)
                if hashed and isinstance(task, Clique) and task.scale == 1.0:
                    windows *= SPARSE_WINDOWS
                repeats = self._settings.repeats
                runs.append(compare(task, hashed=hashed, windows=windows, seed=seed, slices=slices, repeats=repeats))
            self._found[task, hashed] = runs
        return self._found[task, hashed]

    def warm_up(self) -> None:
        """Load the kernels: they would be a large part of the cost of the first workload that needs them."""
        for hashed in (False, True):
            task = self._sized(replace(LEFT_DEEP, scale=self._settings.scale if hashed else 1.0))
            compare(task, hashed=hashed, windows=1.0, seed=self._settings.seed, slices=self._settings.slices[hashed])

    def scaled(self, task: Clique) -> Runs:
        """All runs of a clique with hash joins, and with enough tuples to measure them."""
        return self.runs(replace(task, scale=self._settings.scale), hashed=True)

    def _windows(self, task: GeneratedQuery) -> float:
        if self._settings.windows is not None:
            # Some phases of a drifting workload.
            phases = 3.0 * task.drift if isinstance(task, Clique) else 0.0
            return max(self._settings.windows, phases)
        minutes = task.minutes if isinstance(task, Clique) else BUSHY.minutes
        return HOURS * 60 / minutes - 1

    def _sized(self, task: Clique) -> Clique:
        return replace(task, minutes=task.minutes * self._settings.share)

    def hours(self, task: GeneratedQuery) -> float:
        """Event time that is counted, in hours."""
        return self._windows(task) * task.window_ms / 3_600_000

    # --- The paper's figures --------------------------------------------------------------------------------

    def tasks(self, number: int) -> dict[float, Clique]:
        """A figure's cliques."""
        base, attribute, _, values = AXES[number]
        chosen = round((len(values) - 1) / (self._settings.points - 1)) if self._settings.points > 1 else len(values)
        values = tuple(x for k, x in enumerate(values) if k % max(1, chosen) == 0 or x == getattr(base, attribute))
        varied: dict[float, dict[str, Any]] = {x: {attribute: x} for x in values}
        return {x: self._sized(replace(base, **change)) for x, change in varied.items()}

    def sweep(self, number: int) -> Figure:
        """One figure: REF and JIT along an axis."""
        base, attribute, axis, _ = AXES[number]
        tasks = self.tasks(number)
        looped = {x: self.runs(task, hashed=False) for x, task in tasks.items()}
        hashed = {x: self.scaled(task) for x, task in tasks.items()}
        hours = {x: self.hours(task) for x, task in tasks.items()}
        scale = self._settings.scale
        figure = Figure(
            f"jit-{number}",
            f"JIT Fig. {number}: overhead over {axis}, {base.shape} plans",
            f"Where not varied w = {base.minutes:g} minutes, {base.rate:g} tuple per second and source, "
            f"N = {base.streams}, d_max = {base.values}. Nested loops at the paper's rates; hash joins at {scale:g} "
            f"times these, d_max times {scale ** (2 / 3):.3g}.",
            [
                Panel("CPU, nested loops", axis, "seconds per hour", _pair(looped, _cpu, hours), log=True),
                Panel("comparisons, nested loops", axis, "per hour", _pair(looped, _compared, hours), log=True),
                Panel("peak memory, nested loops", axis, "KiB", _pair(looped, _kib)),
                Panel(f"CPU, hash joins, rates x {scale:g}", axis, "seconds per hour", _pair(hashed, _cpu, hours)),
                Panel(f"peak memory, hash joins, rates x {scale:g}", axis, "KiB", _pair(hashed, _kib)),
            ],
            table=[("REF / JIT", "CPU", "comparisons", "intermediate", "tuples held", "bytes", "CPU hashed",
                    "bytes hashed", "told")],
        )  # fmt: skip
        for x, runs in looped.items():
            told = statistics.median(jit.messages for _, jit in runs) / hours[x]
            figure.table.append(
                (f"{axis} = {x:g}", *(f"{statistics.median(_ratios(runs, of)):.3g}x" for of in _SHOWN),
                 *(f"{statistics.median(_ratios(hashed[x], of)):.3g}x" for of in (_cpu, _bytes)),
                 f"{told:,.0f} messages per hour")
            )  # fmt: skip
        self._claim(figure, base.shape, getattr(base, attribute), looped, hashed)
        figure.differs = DIFFERS.get(number, "")
        return figure

    def _claim(
        self, figure: Figure, shape: str, default: float, looped: dict[float, Runs], hashed: dict[float, Runs]
    ) -> None:
        bushy = shape == "bushy"
        cpu = {x: _ratios(runs, _cpu) for x, runs in looped.items()}
        figure.claim("nested loops, CPU at the default, REF / JIT",
                     "more than 10x" if bushy else "a clear advantage", cpu[default], "x",
                     at_least=10.0 if bushy else 1.0)  # fmt: skip
        figure.claim("nested loops, CPU, REF / JIT, least", "never a loss", _worst(cpu), "x", at_least=1.0)
        compared = {x: _ratios(runs, _compared) for x, runs in looped.items()}
        figure.claim("nested loops, comparisons at the default, REF / JIT", "", compared[default], "x")
        saved = {x: [100.0 - 100.0 / r for r in _ratios(runs, _bytes)] for x, runs in looped.items()}
        figure.claim("nested loops, memory saved, most", "up to 62%" if bushy else "less", _best(saved), "%")
        figure.claim("nested loops, memory saved, least", "never a loss", _worst(saved), "%", at_least=0.0)
        first, last = min(looped), max(looped)
        if "d_max" in figure.title:
            for k, said in enumerate(("much more", "stable above 200" if bushy else "handled well")):
                low, usual = ([run[k].cpu_s for run in looped[x]] for x in (first, default))
                figure.claim(f"nested loops, CPU of {PAIR[k]} at d_max {first:g} over that at {default:g}", said,
                             over(low, usual), "x")  # fmt: skip
        else:
            grown = over(compared[last], compared[first])
            figure.claim(f"nested loops: the lead in comparisons at {last:g} over that at {first:g}", "it grows", grown,
                         "x", at_least=1.0)  # fmt: skip
        gains = {x: _ratios(runs, _cpu) for x, runs in hashed.items()}
        figure.claim("hash joins, CPU at the default, REF / JIT", "", gains[default], "x")
        figure.claim("hash joins, CPU, REF / JIT, least", "no loss above 3%", _worst(gains), "x",
                     at_least=1 / LOSS_AT_MOST)  # fmt: skip
        kept = {x: [100.0 - 100.0 / r for r in _ratios(runs, _bytes)] for x, runs in hashed.items()}
        figure.claim("hash joins, memory saved, most", "", _best(kept), "%")

    # --- Beyond the paper -------------------------------------------------------------------------------------

    def skewed(self) -> dict[float, Clique]:
        """The cliques by Zipf's exponent."""
        return {x: self._sized(replace(SKEWED, zipf=x)) for x in self._settings.skews}

    def drifting(self) -> dict[float, Clique]:
        """The cliques by the number of windows that a phase lasts."""
        return {x: self._sized(replace(BUSHY, drift=x)) for x in self._settings.drifts}

    def skew(self) -> Figure:
        """Values by Zipf's law."""
        return self._beyond(
            "jit-skew",
            "Beyond the paper: skewed values",
            f"Values by Zipf's law; bushy plan, w = {SKEWED.minutes:g} minutes, N = {SKEWED.streams}, "
            f"d_max = {SKEWED.values}.",
            "Zipf's exponent",
            self.skewed(),
            self._settings.skew_scale,
        )

    def drift(self) -> Figure:
        """Pairs of sources that match in some phases only."""
        return self._beyond(
            "jit-drift",
            "Beyond the paper: drifting values",
            "The defaults of the bushy plans; half of the pairs of sources match, others in every phase.",
            "windows that a phase lasts",
            self.drifting(),
            self._settings.scale,
        )

    def _beyond(self, name: str, title: str, how: str, axis: str, tasks: dict[float, Clique], scale: float) -> Figure:
        looped = {x: self.runs(task, hashed=False) for x, task in tasks.items()}
        hashed = {x: self.runs(replace(task, scale=scale), hashed=True) for x, task in tasks.items()}
        hours = {x: self.hours(task) for x, task in tasks.items()}
        figure = Figure(
            name,
            title,
            f"{how} Hash joins at {scale:g} times the rates.",
            [
                Panel("CPU, nested loops", axis, "seconds per hour", _pair(looped, _cpu, hours), log=True),
                Panel("peak memory, nested loops", axis, "KiB", _pair(looped, _kib), log=True),
                Panel(f"CPU, hash joins, rates x {scale:g}", axis, "seconds per hour", _pair(hashed, _cpu, hours)),
            ],
        )
        for way, found in (("nested loops", looped), ("hash joins", hashed)):
            gains = {x: _ratios(runs, _cpu) for x, runs in found.items()}
            figure.claim(f"{way}, CPU, REF / JIT, least", "", _worst(gains), "x", at_least=1 / LOSS_AT_MOST)
            figure.claim(f"{way}, CPU, REF / JIT, most", "", _best(gains), "x")
        figure.differs = DIFFERS.get(name, "")
        return figure

    def losses(self) -> Figure:
        """Every workload, and the cost of JIT there."""
        figure = Figure(
            "jit-losses",
            "What JIT costs at most",
            "Processor time of JIT over that of REF, for every workload above and some where little or nothing can be "
            "saved. Both take turns on the same tuples.",
            table=[("JIT / REF", "nested loops", "hash joins, as in the paper", "hash joins, scaled", "made of REF's")],
        )
        worst = {"at the paper's rates": [0.0], "scaled": [0.0]}
        for label, looped, plain, scaled in self._everything():
            cells = []
            for way, runs in (("", looped), ("at the paper's rates", plain), ("scaled", scaled)):
                shares = over([jit.cpu_s for _, jit in runs], [ref.cpu_s for ref, _ in runs])
                cells.append(_spread(shares))
                if way and shares and statistics.median(shares) > statistics.median(worst[way]):
                    worst[way] = shares
            made = statistics.median(jit.intermediate_results / max(ref.intermediate_results, 1) for ref, jit in scaled)
            figure.table.append((label, *cells, f"{made:.2f}"))
        for way, shares in worst.items():
            figure.claim(f"hash joins {way}: JIT / REF, worst workload", "", shares, "x", at_most=LOSS_AT_MOST)
        figure.differs = DIFFERS.get("jit-losses", "")
        return figure

    def _everything(self) -> Iterator[tuple[str, Runs, Runs, Runs]]:
        """Each workload: its name, nested loops, hash joins at the paper's rates, and at higher ones."""
        settings = self._settings
        cliques = dict.fromkeys(task for number in AXES for task in self.tasks(number).values())
        scales = dict.fromkeys(cliques, settings.scale)
        scales |= dict.fromkeys(self.skewed().values(), settings.skew_scale)
        scales |= dict.fromkeys(self.drifting().values(), settings.scale)
        scales |= dict.fromkeys((self._sized(replace(task, events=5)) for task in (BUSHY, LEFT_DEEP)), settings.scale)
        for task, scale in scales.items():
            looped, plain = (self.runs(task, hashed=hashed) for hashed in (False, True))
            yield task.label, looped, plain, self.runs(replace(task, scale=scale), hashed=True)
        others: list[GeneratedQuery] = [AllMatch(joins, round(30_000 * settings.share)) for joins in (4, 8)]
        others += [FromEngineBench(one.scaled(settings.share)) for one in (three_way(), clique())]
        for other in others:
            yield other.label, [], [], self.runs(other, hashed=True)


# --- Curves ---------------------------------------------------------------------------------------------------


def _cpu(cost: Cost) -> float:
    return cost.cpu_s


def _compared(cost: Cost) -> float:
    return float(cost.comparisons)


def _made(cost: Cost) -> float:
    return float(cost.intermediate_results)


def _held(cost: Cost) -> float:
    return float(cost.peak_tuples)


def _bytes(cost: Cost) -> float:
    return float(cost.peak_bytes)


def _kib(cost: Cost) -> float:
    return cost.peak_bytes / 1024


_SHOWN = (_cpu, _compared, _made, _held, _bytes)


def _pair(
    found: dict[float, Runs], of: Callable[[Cost], float], hours: dict[float, float] | None = None
) -> tuple[Series, ...]:
    points: Points = defaultdict(dict)
    for x, runs in found.items():
        for k, name in enumerate(PAIR):
            points[name][x] = [of(run[k]) / (hours[x] if hours else 1.0) for run in runs]
    return curves(points, PAIR)


def _ratios(runs: Runs, of: Callable[[Cost], float]) -> list[float]:
    """REF over JIT."""
    return over([of(ref) for ref, _ in runs], [of(jit) for _, jit in runs])


def _worst(values: dict[float, list[float]]) -> list[float]:
    """The runs' values at the x with the least median."""
    return min(values.values(), key=statistics.median)


def _best(values: dict[float, list[float]]) -> list[float]:
    return max(values.values(), key=statistics.median)


def _spread(shares: Sequence[float]) -> str:
    if not shares:
        return ""
    middle = f"{statistics.median(shares):.3f}"
    return middle + (f" ({min(shares):.3f} - {max(shares):.3f})" if len(shares) > 1 else "")


_SLICES = (
    "CPU gains less than comparisons do: a slice costs about a millisecond in the interpreter, with feedback or "
    "without, which is more than the comparisons of a small window. "
)

_BYTES = "Bytes move in steps, since states grow by doubling, and feedback's tables have a least size. "

_ONE_SIDE = (
    "Of two joins' outputs one is observed and runs in full, where the paper suppresses both and loses results by it. "
)

DIFFERS: dict[int | str, str] = {
    **dict.fromkeys(AXES, _SLICES + _BYTES),
    **dict.fromkeys((10, 11, 12, 13), _SLICES + _BYTES + _ONE_SIDE),
    "jit-skew": "The paper has no skew. The more skewed the values, the more of the tuples have a partner: there is "
    "less that is not demanded, and with hash joins guards rest.",
    "jit-drift": "The paper has no drift. While nothing of an input can be used, what feeds it waits; when the phase "
    "ends it comes back at once and late, so that only phases of more than a window save for good.",
    "jit-losses": "A workload with hash joins takes milliseconds to seconds; REF against itself differs by two or "
    "three percent in a run on two shared cores, and the worst of many workloads is the tail of that as well.",
}
"""How a figure's shape differs from the paper's, and why."""

BENCH = PaperBench(quick=QUICK, default=JitSettings(), full=FULL, draw=bench_jit)
