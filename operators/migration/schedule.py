"""The migrations of one engine: those asked for, the one that runs, those that are over."""

from __future__ import annotations

from dataclasses import dataclass, field

from operators.executor import Executor
from operators.migration.migration import Migration, MigrationCounters
from operators.migration.strategies import Make, strategy_of
from operators.plan import Plan
from operators.tuples import FOREVER


@dataclass(slots=True)
class MigrationRecord:
    """One migration, from when it was asked for.

    Attributes:
        cut: the event time asked for.
        from_plan: None while it has not begun.
        began_at, finished_at: event times; None until then. END when the input ended first.
        longest_silence_s: the longest that processing stood still for it, in seconds; filled by who has a clock.
    """

    cut: int
    plan: Plan
    strategy: str
    from_plan: Plan | None = None
    began_at: int | None = None
    finished_at: int | None = None
    longest_silence_s: float = 0.0
    counters: MigrationCounters = field(default_factory=MigrationCounters)

    @property
    def open(self) -> bool:
        """True until it has finished."""
        return self.finished_at is None


class Schedule:
    """Begins migrations at their cuts and ends them when they have finished.

    Attributes:
        records: all migrations, in the order of their cuts.
    """

    def __init__(self, make: Make, longest: int) -> None:
        """Args: `longest` window of the query in ms, FOREVER where one has no end in time."""
        self._make = make
        self._longest = longest
        self.records: list[MigrationRecord] = []
        self._active: tuple[MigrationRecord, Migration] | None = None
        self._met: list[MigrationRecord] = []

    def add(self, record: MigrationRecord) -> None:
        """Ask for a migration.

        Raises:
            UsageError: there is no such strategy.
        """
        strategy_of(record.strategy)
        self.records.append(record)
        self.records.sort(key=lambda known: known.cut)

    def cuts(self, begin: int, end: int) -> list[int]:
        """Event times in begin <= t < end at which slices must end: where a migration is to begin, and where its old
        tuples will have left their windows."""
        times = {r.cut for r in self.records if r.began_at is None}
        if self._longest < FOREVER:
            times |= {(r.cut if r.began_at is None else r.began_at) + self._longest for r in self.records if r.open}
        return sorted(t for t in times if begin <= t < end)

    def step(self, executor: Executor, cut: int) -> Executor:
        """What to go on with when everything before `cut` has been processed.

        A migration whose cut has come begins, unless another is running that it may not overlap with: then it
        waits for that one's end.
        """
        self._met = [self._active[0]] if self._active is not None else []
        executor = self._ended(executor, cut)
        for record in self.records:
            if record.began_at is not None or record.cut > cut:
                continue
            strategy = strategy_of(record.strategy)
            if self._active is not None:
                running, migration = self._active
                if not (strategy.overlaps and running.strategy == record.strategy):
                    break
                running.finished_at = cut
                executor = migration.current
            record.from_plan, record.began_at = executor.plan, cut
            migration = strategy.begin(executor, record.plan, cut, self._make)
            record.counters = migration.counters
            self._active = record, migration
            self._met.append(record)
            executor = self._ended(migration, cut)
        return executor

    def stood_still(self, seconds: float) -> None:
        """Note how long the last slice took, with what `step` did after it, for the migrations that it met."""
        for record in self._met:
            record.longest_silence_s = max(record.longest_silence_s, seconds)

    def _ended(self, executor: Executor, cut: int) -> Executor:
        if self._active is not None and self._active[1].finished:
            record, migration = self._active
            record.finished_at = cut
            self._active = None
            return migration.current
        return executor
