"""What the guards of executors without intermediate results have in common (JIT V).

`operators.feedback.stem_guard` and `operators.juggler.feedback.guards` extend `PathGuard`: they find the tuples without
a partner. `operators.feedback.payoff.path_controller` starts and stops these guards.
"""

from __future__ import annotations

from collections.abc import Callable

from operators.data.statistics import EdgeStatistics
from operators.data.tuples import Tuples
from operators.feedback.counters import EdgeCounters
from operators.feedback.payoff.guard import Guard, GuardWork
from operators.feedback.payoff.tuple_cost import PATH_PRICES, PathTupleCost
from operators.feedback.stopwatch import Stopwatch
from operators.kernels.hashing import U64


class PathGuard(Guard):
    """Observes one input and keeps back the tuples of another that have no partner in it.

    Args:
        alias: The guarded input.
        observed_alias: The observed input.
        states: The number of states that a guarded tuple is entered into.
        clock: Returns seconds.
        static: The observed input is a table, whose rows never change.

    Attributes:
        counters: Counts of suspended and resumed signatures and tuples.
        admitted: Arriving tuples that the guard let through for all queries.
        pruned: Arriving tuples that the guard kept back for some queries or for all.
        refused: Those of them that entered nowhere.
        detecting: The time spent on detection.
    """

    tuple_cost: PathTupleCost

    def __init__(
        self, alias: str, observed_alias: str, states: int, clock: Callable[[], float], *, static: bool
    ) -> None:
        super().__init__((alias,), PATH_PRICES)
        self.alias = alias
        self.observed_alias = observed_alias
        self.static = static
        self.counters = EdgeCounters()
        self.admitted = self.pruned = self.refused = 0
        self.tuple_cost = PathTupleCost(states)
        self.detecting = Stopwatch(clock)

    def take(self, signatures: U64 | None, now: int) -> Tuples:
        """Remove and return the living tuples kept back under some signatures; under all if None."""
        before = self.blacklist.signatures
        back = self.blacklist.take_all(now) if signatures is None else self.blacklist.take(signatures, now)
        self.counters.resume += before - self.blacklist.signatures
        return back

    def done(self) -> GuardWork:
        """Return what the guard has done so far."""
        return GuardWork(self.refused, self.counters.returned, self.counters.checked, self.swept)

    def statistics(self) -> EdgeStatistics:
        """The guard's statistics. A suppressed result is a tuple that started no probe path, or one for fewer
        queries."""
        return EdgeStatistics(
            consumer=f"{self.alias} -> {self.observed_alias}",
            producer=self.alias,
            watching=self.watching,
            suspend=self.counters.suspend,
            resume=self.counters.resume,
            demanded=self.admitted,
            suppressed=self.pruned,
            kept_back=len(self.blacklist),
            returned=self.counters.returned,
            forgotten=self.counters.forgotten,
            checked=self.counters.checked + self.swept,
            detecting_s=self.detecting.seconds,
        )
