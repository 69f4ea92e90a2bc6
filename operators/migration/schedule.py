"""The migrations of one engine: requested, running and finished ones.

The engine calls `Schedule.step` between slices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from operators.data.statistics import MigrationStatistics, PredictedStatistics
from operators.data.tuples import FOREVER
from operators.join.executor import Executor
from operators.migration.advise import Advice, Goal
from operators.migration.migration import Migration, MigrationCounters
from operators.migration.strategies import AUTO, Make, begin, strategy_of
from operators.plan.plan import Plan


@dataclass(slots=True)
class MigrationRecord:
    """One migration, from its request on.

    Attributes:
        cut: The event time at which it was requested to start.
        plan: The plan to change to.
        strategy: The strategy that runs; `auto` until one has been chosen.
        goal: What to choose by.
        asked: The strategy that was requested.
        advice: Why the strategy was chosen, and what was predicted; None if it was named.
        from_plan: The plan before; None until it has started.
        began_at: The event time of its start; None until then.
        finished_at: The event time of its end; None until then. END if the input ended first.
        longest_silence_s: The longest that it halted processing, in seconds. The component that has a clock fills it
            in.
        comparisons: Predicate evaluations beyond those of the new plan: for missing states, checks, and the old plan.
        counters: The cost so far.
    """

    cut: int
    plan: Plan
    strategy: str
    goal: Goal = field(default_factory=Goal)
    asked: str = field(init=False)
    advice: Advice | None = None
    from_plan: Plan | None = None
    began_at: int | None = None
    finished_at: int | None = None
    longest_silence_s: float = 0.0
    comparisons: int = 0
    counters: MigrationCounters = field(default_factory=MigrationCounters)

    def __post_init__(self) -> None:
        self.asked = self.strategy

    @property
    def open(self) -> bool:
        """True until it has finished."""
        return self.finished_at is None


Choose = Callable[[Executor, Plan, Goal, str | None], Advice]
"""Chooses a strategy to migrate an executor to a plan, given the strategy of a migration that has not finished."""


class Schedule:
    """Starts migrations at their cuts and ends them when they have finished.

    Attributes:
        records: All migrations, in the order of their cuts.
    """

    def __init__(self, make: Make, longest: int, choose: Choose) -> None:
        """Args: `make` returns a new executor for a plan. `longest` is the query's longest window in ms, FOREVER if one
        has no end in time. `choose` decides for `auto`."""
        self._make = make
        self._choose = choose
        self._longest = longest
        self.records: list[MigrationRecord] = []
        self._active: tuple[MigrationRecord, Migration] | None = None
        self._measured: list[MigrationRecord] = []
        self._ended_comparisons = 0
        self._ended_intermediate_results = 0

    def add(self, record: MigrationRecord) -> None:
        """Request a migration.

        Raises:
            UsageError: The strategy does not exist.
        """
        if record.strategy != AUTO:
            strategy_of(record.strategy)
        self.records.append(record)
        self.records.sort(key=lambda known: known.cut)

    def cuts(self, begin: int, end: int) -> list[int]:
        """Return the event times in begin <= t < end at which slices must end: where a migration is to start, and where
        its old tuples will have left their windows."""
        times = {r.cut for r in self.records if r.began_at is None}
        if self._longest < FOREVER:
            times |= {(r.cut if r.began_at is None else r.began_at) + self._longest for r in self.records if r.open}
        return sorted(t for t in times if begin <= t < end)

    @property
    def migrating(self) -> bool:
        """True while a migration runs."""
        return self._active is not None

    def due(self, cut: int) -> bool:
        """Return whether `step` may start a migration at this cut."""
        return any(record.began_at is None and record.cut <= cut for record in self.records)

    def rebuild(self, executor: Executor, cut: int) -> None:
        """Let migrations that may start at this cut rebuild all states, whatever strategy was requested, because the
        present states are incomplete. The work of the executor that is replaced stays counted."""
        if self._active is None:
            self._ended_comparisons += executor.comparisons()
            self._ended_intermediate_results += executor.intermediate_results()
        for record in self.records:
            if record.began_at is None and record.cut <= cut:
                record.strategy = "moving-state"

    def step(self, executor: Executor, cut: int) -> Executor:
        """Return the executor to continue with when everything before `cut` has been processed.

        A migration starts when its cut is reached. If another one is running that it may not overlap, it waits for the
        end of that one.
        """
        self._measured = [self._active[0]] if self._active is not None else []
        executor = self._ended(executor, cut)
        self._note()
        for record in self.records:
            if record.began_at is not None or record.cut > cut:
                continue
            if record.strategy == AUTO:
                running_now = None if self._active is None else self._active[0].strategy
                if running_now is not None and not strategy_of(running_now).overlaps:
                    break
                record.advice = self._choose(executor, record.plan, record.goal, running_now)
                record.strategy = record.advice.strategy
            strategy = strategy_of(record.strategy)
            if self._active is not None:
                running, migration = self._active
                if not (strategy.overlaps and running.strategy == record.strategy):
                    break
                executor = self._release(running, migration, cut)
            record.from_plan, record.began_at = executor.plan, cut
            migration = begin(record.strategy, executor, record.plan, cut, self._make)
            record.counters = migration.counters
            self._active = record, migration
            self._measured.append(record)
            self._note()
            executor = self._ended(migration, cut)
        return executor

    def comparisons(self, executor: Executor) -> int:
        """Predicate evaluations of all plans so far; `executor` is what `step` returned last."""
        return self._ended_comparisons + executor.comparisons()

    def intermediate_results(self, executor: Executor) -> int:
        """Intermediate results of all plans so far."""
        return self._ended_intermediate_results + executor.intermediate_results()

    def statistics(self, cut: int) -> tuple[MigrationStatistics, ...]:
        """The state of each migration when everything before `cut` has been processed."""
        return tuple(self._statistics(record, cut) for record in self.records)

    def _statistics(self, record: MigrationRecord, cut: int) -> MigrationStatistics:
        done, total, unit = 0, 0, ""
        if self._active is not None and self._active[0] is record:
            done, total, unit = self._active[1].progress()
            if not unit and record.began_at is not None and self._longest < FOREVER:
                done, total, unit = min(cut - record.began_at, self._longest), self._longest, "ms"
        return MigrationStatistics(
            strategy=record.strategy,
            asked=record.asked,
            from_plan=None if record.from_plan is None else str(record.from_plan),
            to_plan=str(record.plan),
            cut=record.cut,
            began_at=record.began_at,
            finished_at=record.finished_at,
            longest_silence_s=record.longest_silence_s,
            comparisons=record.comparisons,
            extra_tuples=record.counters.extra_tuples if record.open else 0,
            peak_extra_tuples=record.counters.peak_extra_tuples,
            completed_keys=record.counters.completed_keys,
            done=done,
            total=total,
            unit=unit,
            predicted=_predicted(record.advice),
            reason="" if record.advice is None else record.advice.reason,
        )

    def stood_still(self, seconds: float) -> None:
        """Record how long the last slice and the `step` after it took, for the migrations that ran in them."""
        for record in self._measured:
            record.longest_silence_s = max(record.longest_silence_s, seconds)

    def _ended(self, executor: Executor, cut: int) -> Executor:
        if self._active is not None and self._active[1].finished:
            return self._release(*self._active, cut)
        return executor

    def _note(self) -> None:
        if self._active is not None:
            record, migration = self._active
            record.comparisons = migration.spent()

    def _release(self, record: MigrationRecord, migration: Migration, cut: int) -> Executor:
        """End a migration; the work of it and its old plan stays counted."""
        self._note()
        self._ended_comparisons += migration.comparisons() - migration.current.comparisons()
        self._ended_intermediate_results += migration.intermediate_results() - migration.current.intermediate_results()
        record.finished_at = cut
        self._active = None
        return migration.current


def _predicted(advice: Advice | None) -> PredictedStatistics | None:
    if advice is None:
        return None
    found = advice.predicted
    return PredictedStatistics(found.silence_s, found.comparisons, found.extra_tuples, found.duration_ms)
