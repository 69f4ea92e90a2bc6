"""Prints the measured figures of a plan beside the expected ones, for `explain --analyze` of a running query or files.

The entry is `analyses`. One or several tasks of a query report their statistics (`EngineStatistics`). The reports of
tasks that run the same plan are summed: counters and sizes add up, and a state is complete if it is in every task.
Rates are per second of event time, so that a replay compares with declared rates. They are measured between two reports
of the same task where there are two, else since the task began; the output states which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from operators.data.statistics import (
    FILES,
    MESSAGES,
    EngineStatistics,
    MigrationStatistics,
    OperatorStatistics,
    SourceStatistics,
)
from operators.data.watermark import END
from operators.explain.explain import count, heading, tree
from operators.migration.advise import seconds
from operators.plan.choose import CostModel, Estimate, Statistics
from operators.plan.plan import Leaf, Plan, parse_plan
from schemas.query import Query
from schemas.sizes import format_size
from schemas.timestamps import format_progress

FAR_OFF = 3.0
"""An expectation that is wrong by more than this factor is pointed out."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The reports of one task of a query.

    Attributes:
        task: the task's number.
        latest: its statistics so far.
        before: its statistics `apart_s` earlier by the wall clock, of the same incarnation; None where not known.
        plan_version: how often its plan was changed in the service.
    """

    task: int
    latest: EngineStatistics
    before: EngineStatistics | None = None
    apart_s: float = 0.0
    plan_version: int = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds of event time over which rates are measured; of the wall clock if event time has stood still.

        Event time is that of tuples: a cut is 0 before the first one, and far in the future at the end of input.
        """
        known_ms = 0 if self.before is None else self.before.span_ms
        return (self.latest.span_ms - known_ms) / 1000 or max(self.apart_s, 1e-3)

    def gained(self, value: Callable[[EngineStatistics], float]) -> float:
        """Return how much a counter has gained since `before`, or since the start."""
        return max(value(self.latest) - (0.0 if self.before is None else value(self.before)), 0.0)

    def rate(self, value: Callable[[EngineStatistics], float]) -> float:
        """Return how much a counter has gained per second."""
        return self.gained(value) / self.elapsed_s


@dataclass(frozen=True, slots=True)
class OperatorFigures:
    """One operator, summed over tasks.

    Attributes:
        total: the summed statistics.
        results_per_s: results per second of event time.
        inputs_per_s: tuples taken in per second, per side.
        selectivity: share of the pairs alive together that passed; None where there was no such pair.
    """

    total: OperatorStatistics
    results_per_s: float
    inputs_per_s: tuple[float, float]
    selectivity: float | None


@dataclass(frozen=True, slots=True)
class Analysis:
    """The measured figures of the tasks of a query that run the same plan.

    Attributes:
        query: the query.
        plan: the plan.
        observations: the reports, one per task.
        operators: in the order of the plan's joins; while two plans run, the old plan's come first.
        sources: summed over tasks.
        sources_per_s: input tuples per second of event time, by alias.
        living: tuples alive of each sub-plan, where a state shows it.
        expected: by sub-plan; empty where nothing is known about the input.
        recent: True where rates are measured between two reports, False where since the beginning.
        finished: True for a finished run: tuples alive are averages, and states are at their peak.
    """

    query: Query
    plan: Plan
    observations: tuple[Observation, ...]
    operators: tuple[OperatorFigures, ...]
    sources: tuple[SourceStatistics, ...]
    sources_per_s: Mapping[str, float]
    living: Mapping[frozenset[str], float]
    expected: Mapping[frozenset[str], Estimate]
    recent: bool
    finished: bool

    def document(self) -> dict[str, Any]:
        """Return the analysis as values that JSON can encode."""
        return {
            "query": self.query.name,
            "plan": str(self.plan),
            "rates": "lately" if self.recent else "since the beginning",
            "operators": [
                asdict(figures.total)
                | {
                    "results_per_s": figures.results_per_s,
                    "inputs_per_s": figures.inputs_per_s,
                    "selectivity": figures.selectivity,
                }
                for figures in self.operators
            ],
            "sources": [asdict(s) | {"input_per_s": self.sources_per_s[s.alias]} for s in self.sources],
            "expected": [
                {"aliases": sorted(aliases), "per_s": estimate.rate, "living_tuples": estimate.alive}
                for aliases, estimate in self.expected.items()
            ],
            "tasks": [
                {"task": one.task, "plan_version": one.plan_version, "elapsed_s": one.elapsed_s} | one.latest.document()
                for one in self.observations
            ],
        }

    def lines(self) -> list[str]:
        """Return the lines to print."""
        shown = tree(self.query, self.plan, _Measured(self, "new"))
        lines = [*heading(self.query, str(self.plan)), "", *shown]
        migrations = self.observations[0].latest.migrations
        old = next((m.from_plan for m in migrations if m.began_at is not None and m.finished_at is None), None)
        if old is not None and any(figures.total.track == "old" for figures in self.operators):
            plan = parse_plan(old, self.query)
            lines += ["", f"still running: {old}", *tree(self.query, plan, _Measured(self, "old"))]
        # Half joins of M-Joins and eddies are not nodes of the plan.
        joined = [figures for figures in self.operators if "->" in figures.total.name]
        if joined:
            lines += ["", *(line for figures in joined for line in _step(figures))]
        period = ", lately" if self.recent else _FINISHED if self.finished else ""
        lines += ["", f"rates per second of event time{period}"]
        lines += self._feedback()
        lines += self._spill()
        for number, one in enumerate(migrations):
            same = [o.latest.migrations[number] for o in self.observations if len(o.latest.migrations) > number]
            lines.append(_migration(one, same))
        return lines + [_task(one) for one in self.observations]

    def _feedback(self) -> list[str]:
        """Return a line per edge with feedback."""
        edges = [edge for one in self.observations for edge in one.latest.feedback]
        lines: list[str] = []
        for consumer, producer in dict.fromkeys((edge.consumer, edge.producer) for edge in edges):
            same = [edge for edge in edges if (edge.consumer, edge.producer) == (consumer, producer)]
            total = {f: sum(getattr(edge, f) for edge in same) for f in (*MESSAGES, *_EDGE_COUNTS)}
            messages = ", ".join(f"{total[message]:,} {message}" for message in MESSAGES if total[message])
            made, late, not_made = total["demanded"], total["late"], total["suppressed"]
            detecting = seconds(sum(edge.detecting_s for edge in same))
            lines.append(
                f"feedback {consumer} to {producer}: {messages or 'no messages'}; {made:,} results made, {late:,} of "
                f"them late, about {not_made:,} not; {total['kept_back']:,} tuples kept back now; detecting took "
                f"{detecting}" + ("" if any(edge.watching for edge in same) else "; resting")
            )
        return lines

    def _spill(self) -> list[str]:
        """Return a line about spilled state and pending results, where there is a memory budget."""
        tasks = [one.latest.spill for one in self.observations if one.latest.spill is not None]
        if not tasks:
            return []
        used, budget = (sum(getattr(task, name) for task in tasks) for name in ("used_bytes", "budget_bytes"))
        total = {name: sum(getattr(task, name) for task in tasks) for name in _SPILL_COUNTS}
        memory = f"memory {format_size(used)} of {format_size(budget)}"
        if total["fixed_bytes"]:
            memory += f", of which {format_size(total['fixed_bytes'])} cannot be spilled"
        if all(task.strategy == FILES for task in tasks):
            return [f"{memory}; {format_size(total['file_bytes'])} in files"]
        pending = f"results of at most {total['owed']:,} pairs are pending" if total["owed"] else "nothing is pending"
        return [
            f"{memory}; {total['spills']:,} spills of "
            f"{total['spilled_groups']:,} groups by {tasks[0].strategy}, the longest "
            f"{seconds(max(task.longest_spill_s for task in tasks))}; {total['on_disk_tuples']:,} tuples on disk now, "
            f"{pending}; {total['cleanups']:,} cleanups in {seconds(sum(task.cleanup_s for task in tasks))} found "
            f"{total['cleanup_results']:,} late results"
        ]


_SPILL_COUNTS = (
    "file_bytes",
    "fixed_bytes",
    "spills",
    "spilled_groups",
    "on_disk_tuples",
    "owed",
    "cleanups",
    "cleanup_results",
)

_EDGE_COUNTS = ("demanded", "late", "suppressed", "kept_back")

_FINISHED = "; alive on average, states at their largest"


def analyses(
    query: Query,
    observations: Sequence[Observation],
    expected: Statistics,
    *,
    averages: Mapping[frozenset[str], float] | None = None,
) -> list[Analysis]:
    """Make one analysis per plan that runs; there are several while tasks change plans.

    Args:
        observations: one per task, at least one.
        expected: the statistics that expectations are computed from.
        averages: for a finished run, the average number of tuples alive of each sub-plan.
    """
    by_plan: dict[str, list[Observation]] = {}
    for observation in sorted(observations, key=lambda observation: observation.task):
        by_plan.setdefault(observation.latest.plan, []).append(observation)
    model = CostModel(query, expected)
    return [_analysis(query, parse_plan(plan, query), tuple(some), model, averages) for plan, some in by_plan.items()]


def _analysis(
    query: Query,
    plan: Plan,
    observations: tuple[Observation, ...],
    model: CostModel,
    averages: Mapping[frozenset[str], float] | None,
) -> Analysis:
    totals: list[OperatorStatistics] = []
    living: dict[frozenset[str], float] = {}
    for number, operator in enumerate(observations[0].latest.operators):
        identity = operator.track, operator.name
        same = [o.latest.operators[number] for o in observations if _identity(o.latest, number) == identity]
        total = _summed(same)
        for side in (0, 1):
            if total.aliases[side] and operator.track != "old":
                living[frozenset(total.aliases[side])] = total.living_tuples[side]
        totals.append(total)
    sources = tuple(
        replace(
            source,
            input_tuples=sum(o.latest.sources[k].input_tuples for o in observations),
            selected_tuples=sum(o.latest.sources[k].selected_tuples for o in observations),
            living_tuples=sum(o.latest.sources[k].living_tuples for o in observations),
            per_second=sum(o.latest.sources[k].per_second for o in observations),
        )
        for k, source in enumerate(observations[0].latest.sources)
    )
    living |= {frozenset({source.alias}): source.living_tuples for source in sources}
    living |= averages or {}
    figures = tuple(_figures(total, observations, number, living) for number, total in enumerate(totals))
    rates = {
        source.alias: 0.0
        if query.source(source.alias).is_static
        else sum(o.rate(lambda s, k=k: s.sources[k].input_tuples) for o in observations)  # type: ignore[misc]
        for k, source in enumerate(sources)
    }
    recent = all(o.before is not None for o in observations)
    known = model.statistics
    estimates = model.estimates(plan) if known.sampled or known.rates or known.distinct else {}
    finished = averages is not None
    return Analysis(query, plan, observations, figures, sources, rates, living, estimates, recent, finished)


def _identity(statistics: EngineStatistics, number: int) -> tuple[str, str] | None:
    """Return the track and name of the operator at an index; None where there is none."""
    if number >= len(statistics.operators):
        return None
    operator = statistics.operators[number]
    return operator.track, operator.name


def _figures(
    total: OperatorStatistics, observations: Sequence[Observation], number: int, living: Mapping[frozenset[str], float]
) -> OperatorFigures:
    """Return the rates of the operator at an index; counters restart where a plan has changed between two reports."""
    gained = [0.0, 0.0, 0.0]
    for task in observations:
        identity = _identity(task.latest, number)
        if identity != (total.track, total.name):
            continue
        now = task.latest.operators[number]
        before = task.before
        had = before.operators[number] if before is not None and _identity(before, number) == identity else None
        for k, value in enumerate((now.results, *now.inputs)):
            first = 0 if had is None else (had.results, *had.inputs)[k]
            gained[k] += max(value - first, 0) / task.elapsed_s
    results, left, right = gained
    alive = [living.get(frozenset(aliases), 0.0) for aliases in total.aliases]
    # Where each join of the plan runs in tasks of its own, tasks of other joins do not count.
    known = (task.latest for task in observations if _identity(task.latest, number) is not None)
    shares = sum(statistics.operators[number].input_tuples > 0 for statistics in known)
    pairs = (left * alive[1] + right * alive[0]) / max(shares, 1)
    return OperatorFigures(total, results, (left, right), min(results / pairs, 1.0) if pairs > 0 else None)


def _summed(operators: Sequence[OperatorStatistics]) -> OperatorStatistics:
    """Sum the statistics of one operator over tasks."""
    first = operators[0]
    if len(operators) == 1:
        return first

    def both(name: str) -> tuple[int, int]:
        values = [getattr(operator, name) for operator in operators]
        return sum(value[0] for value in values), sum(value[1] for value in values)

    single = ("input_tuples", "comparisons", "candidates", "results")
    pairs = ("state_tuples", "state_bytes", "inputs", "living_tuples", "state_groups", "completed_keys", "total_keys")
    changed: dict[str, Any] = {name: sum(getattr(operator, name) for operator in operators) for name in single}
    changed |= {name: both(name) for name in pairs}
    complete = all(o.complete[0] for o in operators), all(o.complete[1] for o in operators)
    return replace(first, complete=complete, **changed)


class _Measured:
    """Notes with the measured figures of one track of an analysis."""

    def __init__(self, analysis: Analysis, track: str) -> None:
        self._analysis = analysis
        self._figures = {f.total.name: f for f in analysis.operators if f.total.track in (track, "")}
        self._sources = {source.alias: source for source in analysis.sources}

    def size(self, plan: Plan) -> str:
        """Return the measured sizes, and the expected ones."""
        key = frozenset(plan.aliases)
        if isinstance(plan, Leaf):
            rate = self._analysis.sources_per_s[plan.alias] * self._passing(plan.alias)
        elif str(plan) in self._figures:
            rate = self._figures[str(plan)].results_per_s
        else:
            return ""
        living = self._analysis.living.get(key)
        if isinstance(plan, Leaf) and self._analysis.query.source(plan.alias).is_static:
            return "" if living is None else f"{count(living)} rows"
        found = f"{count(rate)}/s" + (f", {count(living)} alive" if living is not None else "")
        estimate = self._analysis.expected.get(key)
        if estimate is None:
            return found
        wanted = f"~{count(estimate.rate)}/s" + (f", ~{count(estimate.alive)} alive" if living is not None else "")
        return f"{found}  (expected {wanted}{_off(rate, estimate.rate)})"

    def above(self) -> str:
        """Return the number and rate of emissions."""
        observations = self._analysis.observations
        emitted = sum(one.latest.results for one in observations)
        rate = sum(one.rate(lambda statistics: statistics.results) for one in observations)
        return f"  {count(rate)}/s, {emitted:,} emitted"

    def _passing(self, alias: str) -> float:
        source = self._sources[alias]
        return source.selected_tuples / max(source.input_tuples, 1)

    def details(self, plan: Plan) -> list[str]:
        """Return the tuples taken in, and for an operator its results and states."""
        if isinstance(plan, Leaf):
            source = self._sources[plan.alias]
            some = source.selected_tuples < source.input_tuples
            share = f", {self._passing(plan.alias):.3g} of them selected" if some else ""
            return [f"in    {source.input_tuples:,} tuples{share}"]
        figures = self._figures.get(str(plan))
        return [] if figures is None else _details(figures)


def _details(figures: OperatorFigures) -> list[str]:
    total = figures.total
    left, right = total.inputs
    per = total.results / max(left + right, 1)
    share = "" if figures.selectivity is None else f", selectivity {figures.selectivity:.3g}"
    lines = [
        f"in    {left:,} + {right:,} tuples, {total.comparisons:,} comparisons",
        f"out   {total.results:,} results, {per:.3g} per tuple{share}",
        f"state {total.state_tuples[0]:,} + {total.state_tuples[1]:,} tuples, {format_size(total.state_bytes[0])} + "
        f"{format_size(total.state_bytes[1])}, in {total.state_groups[0]} + {total.state_groups[1]} partition groups",
    ]
    for side, name in enumerate(("left", "right")):
        if not total.complete[side]:
            keys = total.total_keys[side]
            done = f": {total.completed_keys[side]:,} of {keys:,} keys completed" if keys else ""
            lines.append(f"incomplete {name} state{done}")
    return lines


def _step(figures: OperatorFigures) -> list[str]:
    """Return lines about an operator that is not a node of the plan: a half join of an M-Join or an eddy."""
    old = "old plan: " if figures.total.track == "old" else ""
    head = f"{old}{figures.total.kind} {figures.total.name}  {count(figures.results_per_s)}/s"
    return [head, *(f"   {line}" for line in _details(figures))]


def _off(found: float, expected: float) -> str:
    """Return by what factor an expectation is wrong, if it is more than FAR_OFF."""
    if expected > 0 and found > expected * FAR_OFF:
        return f": {count(found / expected)} times as much"
    if found > 0 and found * FAR_OFF < expected:
        return f": {count(found / expected)} of it"
    return ""


def _migration(one: MigrationStatistics, same: Sequence[MigrationStatistics]) -> str:
    """Return a line about one migration over all tasks."""
    name = one.strategy if one.strategy == one.asked else f"{one.strategy} ({one.asked})"
    text = f"migration to {one.to_plan} by {name}"
    began = [m for m in same if m.began_at is not None]
    if not began:
        return f"{text}: begins at {format_progress(one.cut)}"
    first = began[0]
    text = f"migration {first.from_plan} -> {one.to_plan} by {name} at {format_progress(first.began_at or 0)}"
    over = [m for m in same if m.finished_at is not None]
    going = [m for m in began if m.finished_at is None]
    where = f"done in {len(over)} of {len(same)} tasks" if len(same) > 1 else "done" if over else "in progress"
    total = sum(m.total for m in going)
    if total:
        unit = going[0].unit
        done = sum(m.done for m in going)
        progress = f"{done / 1000:.3g} of {total / 1000:.3g} s" if unit == "ms" else f"{done:,} of {total:,} {unit}"
        where += f", {progress} ({done / total:.0%})"
    return (
        f"{text}: {where}, {sum(m.comparisons for m in began):,} comparisons, "
        f"{sum(m.extra_tuples for m in began):,} extra tuples (at most {sum(m.peak_extra_tuples for m in began):,}), "
        f"{sum(m.completed_keys for m in began):,} keys completed, "
        f"silence {seconds(max(m.longest_silence_s for m in began))}{_predicted(began)}"
    )


def _predicted(same: Sequence[MigrationStatistics]) -> str:
    """Return the predicted costs, where the strategy was chosen."""
    known = [m.predicted for m in same if m.predicted is not None]
    if not known:
        return ""
    comparisons, extra = sum(p.comparisons for p in known), sum(p.extra_tuples for p in known)
    silence = seconds(max(p.silence_s for p in known))
    return f" (predicted: {comparisons:,.0f} comparisons, {extra:,.0f} extra tuples, silence {silence})"


def _task(one: Observation) -> str:
    now = one.latest
    busy = f"busy {seconds(now.busy_s)}"
    if one.before is not None and one.apart_s > 0:
        speed = one.gained(lambda statistics: statistics.input_tuples) / one.apart_s
        share = one.gained(lambda statistics: statistics.busy_s) / one.apart_s
        busy = f"{count(speed)} tuples/s, {share:.0%} of a core"
    when = "the end" if now.cut == END else format_progress(now.cut)
    if not now.input_tuples and now.cut != END:
        return f"task {one.task}: nothing read yet"
    version = f" version {one.plan_version}" if one.plan_version else ""
    repeats = f"{now.deduplicated:,} repeats, " if now.deduplicated else ""
    return (
        f"task {one.task}{version} at {when}: {now.input_tuples:,} tuples in, {now.pending_tuples:,} waiting, "
        f"{now.late:,} late, {repeats}{now.results:,} results, {now.comparisons:,} comparisons, "
        f"{now.state_tuples:,} tuples in states ({format_size(now.state_bytes)} with sources), {busy}"
    )
