"""`weir bench drift`: tables and charts of how well plans follow data that change."""

from __future__ import annotations

import statistics

from ops.bench.drift.runs import EPOCH_MS, DriftSettings, Outcome, run, same_in
from ops.bench.drift.scenarios import scenarios
from ops.bench.measuring.figures import Figure, Panel, Series
from ops.bench.measuring.measure import Progress, Spread
from ops.bench.measuring.suites import PaperBench, Suite
from schemas.errors import UsageError

TITLE = "Plans of window joins under drift; the benchmark is defined in ops/docs/drift.md"

QUICK = DriftSettings(seconds=24, window_ms=1_000, phases=2, plans=4, executors=("mjoin",))
FULL = DriftSettings(seconds=1_920, window_ms=2_000, phases=8, plans=64, runs=3)

DIFFER_IN_PHASES = ("abrupt", "recurring", "rates", "cycle", "chain", "clique", "correlation")
"""Scenarios whose phases have different best plans by far."""


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
    for scenario in chosen:
        found[scenario.name] = [run(scenario, settings, settings.seed + n, progress.say) for n in range(settings.runs)]
        suite.figures.append(_scenario_figure(every.index(scenario) + 1, found[scenario.name], settings))
    suite.figures.insert(0, _summary(found))
    return suite


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
        window = outcomes[0].contenders["adapt"].engine.query.sources[0].window.size
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
                f"{statistics.median(waits) / window:.1f}" if waits else "",
                f"{max(_longest_s(outcome) for outcome in outcomes) * 1000:.0f} ms",
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
    differing = [outcome for name in DIFFER_IN_PHASES for outcome in found.get(name, ())]
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
    every = [outcome for outcomes in found.values() for outcome in outcomes]
    figure.claim(
        "adapt against the best static plan, worst scenario",
        "1.05",
        [max(o.total("adapt") / _best_static(o) for o in every)],
        at_most=1.05,
    )
    for outcome in found.get("stationary", ()):
        own = outcome.total(_name_of(outcome, outcome.contenders["adapt"].plans[-1]))
        figure.claim("stationary: adapt against its own plan", "1.01", [outcome.total("adapt") / own], at_most=1.01)
        figure.claim("stationary: changes", "0", [_changes(outcome)], at_most=0.0)
    for outcome in found.get("adversary", ()):
        figure.claim(
            "adversary: against never changing", "1.10", [outcome.total("adapt") / outcome.total("off")], at_most=1.10
        )


def _scenario_figure(number: int, outcomes: list[Outcome], settings: DriftSettings) -> Figure:
    outcome = outcomes[0]
    scenario = outcome.scenario
    figure = Figure(
        f"drift-{number:02d}",
        f"{scenario.name}: {scenario.says}",
        f"A {scenario.shape} of {scenario.streams} streams; the first run. Plans are numbered as they first appear.",
    )
    names = [*outcome.static, "adapt", "off", *settings.executors]
    figure.table = [("contender", "processor seconds", "against the clairvoyant")]
    for name in sorted(names, key=lambda name: outcome.total(name)):
        figure.table.append((name, f"{outcome.total(name):.3f}", f"{_against(outcome, name):.2f}"))
    best = min(outcome.static, key=outcome.total)
    worst = max(outcome.static, key=outcome.total)
    shown = {"adapt": "adapt", f"best static {best}": best, f"worst static {worst}": worst}
    figure.panels = [
        Panel(
            "Work",
            "seconds of event time",
            "processor seconds per second",
            tuple(_per_second(label, outcome.contenders[name].seconds) for label, name in shown.items()),
            log=True,
        ),
        Panel("Plan of adapt", "seconds of event time", "number of the plan", (_plans(outcome),)),
    ]
    return figure


def _per_second(label: str, epochs: list[float]) -> Series:
    each = 1000 // EPOCH_MS
    points = {float(n // each): [sum(epochs[n : n + each])] for n in range(0, len(epochs) - each + 1, each)}
    return Series.of(label, points)


def _plans(outcome: Outcome) -> Series:
    each = 1000 // EPOCH_MS
    plans = outcome.contenders["adapt"].plans[::each]
    number = {plan: n for n, plan in enumerate(dict.fromkeys(plans))}
    points = tuple(Spread.of([float(number[plan])]) for plan in plans)
    return Series("plan", tuple(float(second) for second in range(len(plans))), points)


def _against(outcome: Outcome, name: str) -> float:
    return outcome.total(name) / outcome.clairvoyant()


def _best_static(outcome: Outcome) -> float:
    return min(map(outcome.total, outcome.static))


def _changes(outcome: Outcome) -> float:
    return float(len(outcome.contenders["adapt"].engine.migrations))


def _longest_s(outcome: Outcome) -> float:
    return max((record.longest_silence_s for record in outcome.contenders["adapt"].engine.migrations), default=0.0)


def _name_of(outcome: Outcome, plan: str) -> str:
    return next((name for name in outcome.static if same_in(plan, {name})), outcome.static[0])


BENCH = PaperBench(quick=QUICK, default=DriftSettings(), full=FULL, draw=bench_drift)
