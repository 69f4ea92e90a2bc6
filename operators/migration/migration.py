"""The base class of all migration strategies: an executor that starts as the old plan's and ends as the new plan's.

`operators.migration.schedule` starts migrations. A migration has a cut T. Tuples with ts < T are old: all of them have
passed through the old plan when the migration starts (JISC 4.1, buffer clearing). From then on the engine runs the
migration instead of the old executor, until `finished` reports that the new plan can continue alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from operators.data.statistics import OperatorStatistics
from operators.data.tuples import Tuples
from operators.join.eddy import Eddy
from operators.join.executor import Executor
from operators.join.mjoin import MJoin
from operators.join.stairs import Stairs
from operators.join.tables import load_tables
from operators.join.tree import XJoinTree
from operators.plan.plan import Plan
from operators.state.match import RIGHT, Match
from operators.state.side_state import SideState
from operators.state.sources import Sources
from schemas.columns import Mask
from schemas.errors import UsageError


@dataclass(slots=True)
class MigrationCounters:
    """The cost of a migration so far, beyond the work that the new plan would have done anyway.

    Attributes:
        comparisons: Predicate evaluations for states that the new plan lacked, and for the strategy's own checks.
        extra_tuples: Tuples in states beyond those of the new plan alone.
        peak_extra_tuples: The greatest value of `extra_tuples`.
        made_tuples: State entries computed for the new plan; STAIRs call it promoting (JISC 4.6).
        dropped_tuples: Entries of states that only the old plan had; STAIRs call it demoting.
        completed_keys: Join keys whose entries were completed on demand (JISC 4.3).
    """

    comparisons: int = 0
    extra_tuples: int = 0
    peak_extra_tuples: int = 0
    made_tuples: int = 0
    dropped_tuples: int = 0
    completed_keys: int = 0


class Migration:
    """Base class of the strategies; it is itself an `Executor`.

    Attributes:
        old: The old plan's executor.
        current: The executor whose results remain when the migration has finished.
        plan: The new plan.
        cut: The cut T, an event time.
        counters: The cost so far.
        first_new_row: Per alias, the first row id of its new tuples. A table's rows are both new and old: every plan
            has them.
    """

    def __init__(self, old: Executor, new: Executor, cut: int) -> None:
        self.sources: Sources = old.sources
        self.plan: Plan = new.plan
        self.cut = cut
        self.old = old
        self.current: Executor = new
        self.counters = MigrationCounters()
        self._compared_before = old.comparisons()
        tables = self.sources.tables
        self.first_new_row = {a: 0 if a in tables else self.sources.store(a).hi for a in self.plan.aliases}

    @property
    def finished(self) -> bool:
        """True when `current` can continue alone."""
        return True

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        return self.current.process(epoch, now)

    def purge(self, cut: int) -> None:
        """Drop what no tuple with ts >= cut can match."""
        self.current.purge(cut)

    def executors(self) -> tuple[Executor, ...]:
        """All executors that keep states at the moment."""
        return (self.current,)

    def operators(self) -> tuple[OperatorStatistics, ...]:
        """Counters and sizes per operator of all running plans."""
        running = self.executors()
        if len(running) == 1:
            return running[0].operators()
        old, new = self.old.operators(), self.current.operators()
        return tuple(
            [replace(operator, track="old") for operator in old]
            + [
                replace(
                    operator,
                    track="new",
                    complete=(
                        operator.complete[0] and not self.lacks(frozenset(operator.aliases[0])),
                        operator.complete[1] and not self.lacks(frozenset(operator.aliases[1])),
                    ),
                )
                for operator in new
            ]
        )

    def lacks(self, aliases: frozenset[str]) -> bool:
        """Return True while the new plan's state over these aliases lacks old tuples and the old plan runs beside
        it."""
        return bool(aliases)

    def comparisons(self) -> int:
        """Predicate evaluations so far, including those of the old plan: the count never falls."""
        return self.counters.comparisons + self.old.comparisons() + self.current.comparisons()

    def intermediate_results(self) -> int:
        """Intermediate results so far, including those of the old plan."""
        return self.old.intermediate_results() + self.current.intermediate_results()

    def spent(self) -> int:
        """Predicate evaluations beyond the new plan's own: missing states, checks, and the old plan since the cut."""
        return self.counters.comparisons + self.old.comparisons() - self._compared_before

    def progress(self) -> tuple[int, int, str]:
        """How much is done, of how much, and the unit; 0 of 0 where only time tells."""
        return 0, 0, ""

    def state_tuples(self) -> int:
        """Tuples in all states."""
        return sum(executor.state_tuples() for executor in self.executors())

    def size_bytes(self) -> int:
        """Bytes of all states."""
        return sum(executor.size_bytes() for executor in self.executors())

    def expired(self, cut: int) -> bool:
        """Return True when no old tuple can match one at or after `cut`."""
        sources = self.sources
        return all(
            sources.first_live_row(alias) >= self.first_new_row[alias]
            if alias in sources.rows_windows
            else cut >= self.cut + sources.life[alias]
            for alias in self.plan.aliases
            if alias not in sources.tables
        )

    def all_new(self, tuples: Tuples) -> Mask:
        """Return (n,) True where every component arrived after the cut. Row ids are the lineage."""
        good = np.ones(len(tuples), np.bool_)
        for k, alias in enumerate(tuples.aliases):
            good &= tuples.rows[k] >= self.first_new_row[alias]
        return good


def all_states(executor: Executor) -> list[SideState]:
    """Return every state that an executor keeps."""
    if isinstance(executor, XJoinTree):
        return [state for _, join in executor.joins for state in join.states]
    if isinstance(executor, MJoin | Eddy):
        return list(executor.states().values())
    raise UsageError(f"this strategy looks into states, and {type(executor).__name__} does not show them")


def tree_like(old: Executor, plan: Plan) -> XJoinTree:
    """Return an executor of the same kind as `old`, with intermediate states: an X-Join tree or STAIRs. It contains the
    rows of tables and nothing else."""
    return load_tables((Stairs if isinstance(old, Stairs) else XJoinTree)(old.sources, plan))


def states_by_aliases(executor: Executor) -> dict[frozenset[str], tuple[Match, int, SideState]]:
    """Return the states of a tree by their aliases, each with its match and side."""
    if not isinstance(executor, XJoinTree):
        raise UsageError(f"this strategy moves intermediate states, and {type(executor).__name__} keeps none")
    return {
        frozenset(join.match.sides[side]): (join.match, side, join.states[side])
        for _, join in executor.joins
        for side in (0, RIGHT)
    }
