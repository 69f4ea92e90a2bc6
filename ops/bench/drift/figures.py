"""`weir bench drift`: tables and charts of how well plans follow data that change."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np

from ops.bench.drift.outcomes import EPOCH_MS, Outcome, same_in
from ops.bench.drift.runs import GRADUAL, DriftSettings, run_all
from ops.bench.drift.scenarios import scenarios
from ops.bench.measuring.figures import Figure, Panel, Series
from ops.bench.measuring.measure import Progress
from ops.bench.measuring.suites import PaperBench, Suite
from schemas.errors import UsageError

TITLE = "Plans of window joins under drift; the benchmark is defined in ops/docs/drift.md"

QUICK = DriftSettings(seconds=24, window_ms=1_000, phases=2, plans=4, executors=("mjoin",))
FULL = DriftSettings(seconds=1_920, window_ms=2_000, phases=8, plans=64, runs=3)

ROWS = 6
"""Of a printed curve."""

DIFFERS = 1.2
"""Phases differ where the best static plan takes this many times as long as the clairvoyant."""


def bench_drift(settings: DriftSettings, progress: Progress, figure: int | None = None) -> Suite:
    """Draw the figures of all scenarios, or of one by its number.

    Raises:
        UsageError: there is no such figure.
    """
    every = scenarios(settings.rate, settings.phases)
    if figure is not None and figure > len(every):
        raise UsageError(f"--figure {figure}: there are {len(every)}")
    chosen = every if figure is None else [every[figure - 1]]
    suite = Suite("drift", TITLE, _told(settings))
    found: dict[str, list[Outcome]] = {}
    for scenario, outcomes in run_all(chosen, settings, progress):
        found[scenario.name] = outcomes
        progress.tell(_line(scenario.name, outcomes))
        suite.figures.append(_scenario_figure(every.index(scenario) + 1, outcomes, settings))
    suite.figures.insert(0, _summary(found))
    return suite


def _line(name: str, outcomes: list[Outcome]) -> str:
    """Say what came of a scenario, as soon as it is known."""
    ratio = statistics.median(_against(outcome, "adapt") for outcome in outcomes)
    changes = statistics.median(map(_changes, outcomes))
    return f"{name}: {ratio:.2f} of the clairvoyant's time, {changes:g} changes of plans"


def _told(settings: DriftSettings) -> dict[str, object]:
    return {
        "sizes": f"{settings.seconds} s of event time, windows of {settings.window_ms / 1000:g} s, "
        f"{settings.rate:g} events/s and stream, epochs of {EPOCH_MS} ms, {settings.phases} recurring phases",
        "contenders": "static plans, the plan chosen at the start (off), Weir with --adapt on (adapt), "
        + ", ".join(settings.executors),
        "clairvoyant": "of each phase the static plan that took least, changed for free",
        "time": "processor seconds of the engines, which take turns epoch by epoch over the same events",
        "runs, seed": f"{settings.runs}, {settings.seed}",
    }


def _summary(found: dict[str, list[Outcome]]) -> Figure:
    """Compare `adapt` with everything else, scenario by scenario."""
    figure = Figure(
        "drift-00",
        "All scenarios",
        "Processor seconds, divided by those of the clairvoyant; medians over runs. Changes are those of adapt. Time "
        "to the right plan is the median over phases, in windows.",
    )
    figure.table = [
        ("scenario", "adapt", "off", "best static", "median", "worst", "changes", "to the right plan", "longest change")
    ]
    ratios: dict[str, list[float]] = {}
    for name, outcomes in found.items():
        ratios[name] = [_against(outcome, "adapt") for outcome in outcomes]
        statics = [sorted(outcome.total(plan) for plan in outcome.static) for outcome in outcomes]
        clairvoyants = [outcome.clairvoyant() for outcome in outcomes]
        waits = [wait for outcome in outcomes for wait in outcome.until_right()]
        figure.table.append(
            (
                name,
                f"{statistics.median(ratios[name]):.2f}",
                f"{statistics.median([_against(outcome, 'off') for outcome in outcomes]):.2f}",
                *(
                    f"{statistics.median([of[n] / c for of, c in zip(statics, clairvoyants, strict=True)]):.2f}"
                    for n in (0, len(statics[0]) // 2, -1)
                ),
                f"{statistics.median([_changes(outcome) for outcome in outcomes]):g}",
                f"{statistics.median(waits) / outcomes[0].window_ms:.1f}" if waits else "",
                f"{max(max(_pauses_ms(outcome), default=0.0) for outcome in outcomes):.0f} ms",
            )
        )
    _claims(figure, found, ratios)
    return figure


def _claims(figure: Figure, found: dict[str, list[Outcome]], ratios: dict[str, list[float]]) -> None:
    """Set what is asked beside what was measured."""
    ordinary = {name: values for name, values in ratios.items() if name != "adversary"}
    if ordinary:
        medians = [statistics.median(values) for values in ordinary.values()]
        figure.claim("against the clairvoyant, median of scenarios", "1.05", [statistics.median(medians)], at_most=1.05)
        figure.claim("against the clairvoyant, worst without the adversary", "1.15", [max(medians)], at_most=1.15)
        every = [outcome for name in ordinary for outcome in found[name]]
        figure.claim(
            "adapt against the best static plan, worst scenario without the adversary",
            "1.05",
            [max(o.total("adapt") / _best_static(o) for o in every)],
            at_most=1.05,
        )
    differing = [
        outcome
        for name in ordinary
        for outcome in found[name]
        if _best_static(outcome) >= DIFFERS * outcome.clairvoyant()
    ]
    if differing:
        figure.claim(
            "best static plan against adapt, where phases differ",
            "1.5",
            [_best_static(outcome) / outcome.total("adapt") for outcome in differing],
            at_least=1.5,
        )
        figure.claim(
            "worst static plan against adapt, where phases differ",
            "5",
            [max(map(outcome.total, outcome.static)) / outcome.total("adapt") for outcome in differing],
            at_least=5.0,
        )
    if alike := found.get("stationary"):
        figure.claim(
            "stationary: share of the time for measuring and deciding",
            "1%",
            [_overhead(outcome) * 100 for outcome in alike],
            "%",
            at_most=1.0,
        )
        # Engines with one plan differ by some percent, so there are two to compare with.
        same = [outcome.total("adapt") / outcome.total(name) for outcome in alike for name in ("off", _own(outcome))]
        figure.claim("stationary: adapt against the same plan without it", "1.01", same, at_most=1.01)
        figure.claim("stationary: changes", "0", [_changes(outcome) for outcome in alike], at_most=0.0)
    if fooled := found.get("adversary"):
        ratios_off = [outcome.total("adapt") / outcome.total("off") for outcome in fooled]
        figure.claim("adversary: against never changing", "1.10", ratios_off, at_most=1.10)
    _claims_of_changes(figure, found)


def _claims_of_changes(figure: Figure, found: dict[str, list[Outcome]]) -> None:
    """Set beside what was measured what is asked of single changes of plans."""
    every = [outcome for outcomes in found.values() for outcome in outcomes]
    if pauses := [pause for outcome in every for pause in _pauses_ms(outcome)]:
        figure.claim("pause of a change, 99th percentile", "50", [float(np.percentile(pauses, 99))], "ms", at_most=50)
        figure.claim("pause of a change, longest", "100", [max(pauses)], "ms", at_most=100)
    swapped = {
        name: outcomes
        for name, outcomes in found.items()
        if outcomes[0].swaps and not outcomes[0].scenario.adversary and name not in (*GRADUAL, "skew")
    }
    if swapped:
        changes = [_changes(outcome) / len(outcome.swaps) for outcomes in swapped.values() for outcome in outcomes]
        figure.claim("changes of plans for each change of data", "1", changes, at_most=1.0)
        figure.claim("the same, most", "2", [max(changes)], at_most=2.0)
        waits = [
            statistics.median(wait for outcome in outcomes for wait in outcome.until_right()) / outcomes[0].window_ms
            for outcomes in swapped.values()
        ]
        figure.claim("from a change of data to the right plan", "2", waits, "windows", at_most=2.0)
        figure.claim("the same, slowest scenario", "2", [max(waits)], "windows", at_most=2.0)


def _scenario_figure(number: int, outcomes: list[Outcome], settings: DriftSettings) -> Figure:
    outcome = outcomes[0]
    scenario = outcome.scenario
    figure = Figure(
        f"drift-{number:02d}",
        f"{scenario.name}: {scenario.says}",
        f"A {scenario.shape} of {scenario.streams} streams; the first run. Plans are numbered as they first appear. A "
        "delay is the time from the end of an epoch until its results, if events come as fast as they are dated.",
        stacked=True,
    )
    names = [*outcome.static, "adapt", "off", *settings.executors]
    figure.table = [
        ("contender", "processor seconds", "against the clairvoyant", "delay p50, ms", "p99", "most", "memory, MiB")
    ]
    for name in sorted(names, key=lambda name: outcome.total(name)):
        track = outcome.tracks[name]
        delays = track.delays_ms()[outcome.first :]
        figure.table.append(
            (
                name,
                f"{outcome.total(name):.3f}",
                f"{_against(outcome, name):.2f}",
                *(f"{np.percentile(delays, share):.2f}" for share in (50, 99, 100)),
                f"{track.memory_bytes / 2**20:.1f}",
            )
        )
    best = min(outcome.static, key=outcome.total)
    worst = max(outcome.static, key=outcome.total)
    shown = {"adapt": "adapt", f"best static {best}": best, f"worst static {worst}": worst}
    tracks = {label: outcome.tracks[name] for label, name in shown.items()}
    edges = [f"{scenario.names[a]} {scenario.names[b]}" for a, b in scenario.edges]
    rates = [[phase.rates[n] for phase in outcome.phases] for n in range(scenario.streams)]
    fan_outs = [[phase.fan_outs[n] for phase in outcome.phases] for n in range(len(edges))]
    regrets = {label: outcome.regret_s(shown[label]).tolist() for label in ("adapt", f"best static {best}")}

    def panel(title: str, unit: str, series: Sequence[Series], *, log: bool = False) -> Panel:
        return Panel(title, "seconds of event time", unit, tuple(series), log, ROWS)

    figure.panels = [
        panel("Plan of adapt", "number of the plan", [_plans(outcome)]),
        panel("Rates", "events per second", [_by_second(*of, max) for of in zip(scenario.names, rates, strict=True)]),
        panel("Fan-outs", "partners", [_by_second(*of, max) for of in zip(edges, fan_outs, strict=True)], log=True),
        panel(
            "Work",
            "processor seconds per second",
            [_by_second(label, one.seconds, sum) for label, one in tracks.items()],
            log=True,
        ),
        panel(
            "Longest delay of each second",
            "ms",
            [_by_second(label, one.delays_ms().tolist(), max) for label, one in tracks.items()],
            log=True,
        ),
        panel(
            "Regret: time beyond the clairvoyant's, added up",
            "processor seconds",
            [_by_second(label, regret, max, outcome.first) for label, regret in regrets.items()],
        ),
    ]
    return figure


def _by_second(
    label: str, epochs: Sequence[float], together: Callable[[Sequence[float]], float], first: int = 0
) -> Series:
    """Make a curve with one value for each second.

    Args:
        first: the number of the first epoch.
    """
    each = 1000 // EPOCH_MS
    starts = range(0, len(epochs) - each + 1, each)
    return Series.of(label, {(first + n) / each: [together(epochs[n : n + each])] for n in starts})


def _plans(outcome: Outcome) -> Series:
    plans = outcome.tracks["adapt"].plans
    number = {plan: float(n) for n, plan in enumerate(dict.fromkeys(plans))}
    return _by_second("plan", [number[plan] for plan in plans], max)


def _against(outcome: Outcome, name: str) -> float:
    return outcome.total(name) / outcome.clairvoyant()


def _best_static(outcome: Outcome) -> float:
    return min(map(outcome.total, outcome.static))


def _changes(outcome: Outcome) -> float:
    return float(len(outcome.tracks["adapt"].pauses_s))


def _pauses_ms(outcome: Outcome) -> list[float]:
    return [pause_s * 1000 for pause_s in outcome.tracks["adapt"].pauses_s]


def _overhead(outcome: Outcome) -> float:
    """Return the share of adapt's time that passed without working for results, beyond what reading clocks takes."""
    tracks = [outcome.tracks[name] for name in ("adapt", "off")]
    beside, clocks = (sum(track.seconds[outcome.first :]) - sum(track.answers[outcome.first :]) for track in tracks)
    return (beside - clocks) / outcome.total("adapt")


def _own(outcome: Outcome) -> str:
    """Return the name of the static plan that adapt had at the end."""
    plan = outcome.tracks["adapt"].plans[-1]
    return next((name for name in outcome.static if same_in(plan, {name})), outcome.static[0])


BENCH = PaperBench(quick=QUICK, default=DriftSettings(), full=FULL, draw=bench_drift)
