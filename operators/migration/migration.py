"""What every migration strategy is: an executor that begins as the old plan's and ends as the new one's.

A migration has a cut T. Tuples with ts < T are old: all of them have gone through the old plan when it starts
(JISC 4.1, buffer clearing). From then on the engine runs the migration instead of the old executor, until
`finished` says that the new plan can go on alone.
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
from operators.join.tables import loaded
from operators.join.tree import XJoinTree
from operators.plan.plan import Plan
from operators.state.match import RIGHT, Match
from operators.state.side_state import SideState
from operators.state.sources import Sources
from schemas.columns import Mask
from schemas.errors import UsageError


@dataclass(slots=True)
class MigrationCounters:
    """What a migration has cost so far, beside the work that the new plan would have done anyway.

    Attributes:
        comparisons: predicate evaluations for states that the new plan lacked, and checks of the strategy's own.
        extra_tuples, peak_extra_tuples: tuples in states beyond those of the new plan alone.
        made_tuples: state entries computed for the new plan; STAIRs call it promoting (JISC 4.6).
        dropped_tuples: entries of states that only the old plan had; demoting.
        completed_keys: join keys whose entries were completed on demand (JISC 4.3).
    """

    comparisons: int = 0
    extra_tuples: int = 0
    peak_extra_tuples: int = 0
    made_tuples: int = 0
    dropped_tuples: int = 0
    completed_keys: int = 0


class Migration:
    """Base of the strategies; itself an `Executor`.

    Attributes:
        plan: the new plan.
        cut: T.
        first_new_row: the rows from which on each alias's tuples are new. A table's rows are new as well as old: every
            plan has them.
        current: what the new plan's results will come from when the migration has finished.
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
        """True when `current` can go on alone."""
        return True

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        return self.current.process(epoch, now)

    def purge(self, cut: int) -> None:
        """Drop what no tuple with ts >= cut can meet."""
        self.current.purge(cut)

    def executors(self) -> tuple[Executor, ...]:
        """All that keep states at the moment."""
        return (self.current,)

    def operators(self) -> tuple[OperatorStatistics, ...]:
        """Counters and sizes per operator of all plans that run."""
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
        """True while the new plan's state over these aliases, beside which the old plan runs, lacks old tuples."""
        return bool(aliases)

    def comparisons(self) -> int:
        """Predicate evaluations so far, those of the old plan included: a count never falls."""
        return self.counters.comparisons + self.old.comparisons() + self.current.comparisons()

    def intermediate_results(self) -> int:
        """Intermediate results so far, those of the old plan included."""
        return self.old.intermediate_results() + self.current.intermediate_results()

    def spent(self) -> int:
        """Predicate evaluations beyond the new plan's own: missing states, checks, and the old plan since the cut."""
        return self.counters.comparisons + self.old.comparisons() - self._compared_before

    def progress(self) -> tuple[int, int, str]:
        """How much of what has been done, and its unit; 0 of 0 where only time tells."""
        return 0, 0, ""

    def state_tuples(self) -> int:
        """Tuples in all states."""
        return sum(executor.state_tuples() for executor in self.executors())

    def size_bytes(self) -> int:
        """Bytes of all states."""
        return sum(executor.size_bytes() for executor in self.executors())

    def expired(self, cut: int) -> bool:
        """True when no old tuple can meet one at or after `cut`."""
        sources = self.sources
        return all(
            sources.first_live_row(alias) >= self.first_new_row[alias]
            if alias in sources.rows_windows
            else cut >= self.cut + sources.life[alias]
            for alias in self.plan.aliases
            if alias not in sources.tables
        )

    def all_new(self, tuples: Tuples) -> Mask:
        """(n,) True where every component arrived after the cut. Row ids are the lineage."""
        good = np.ones(len(tuples), np.bool_)
        for k, alias in enumerate(tuples.aliases):
            good &= tuples.rows[k] >= self.first_new_row[alias]
        return good


def all_states(executor: Executor) -> list[SideState]:
    """Every state that an executor keeps."""
    if isinstance(executor, XJoinTree):
        return [state for _, join in executor.joins for state in join.states]
    if isinstance(executor, MJoin | Eddy):
        return list(executor.states().values())
    raise UsageError(f"this strategy looks into states, and {type(executor).__name__} does not show them")


def tree_like(old: Executor, plan: Plan) -> XJoinTree:
    """An executor of the same kind as `old`, which keeps intermediate states: an X-Join tree or STAIRs. It has the rows
    of tables and nothing else."""
    return loaded((Stairs if isinstance(old, Stairs) else XJoinTree)(old.sources, plan))


def states_by_aliases(executor: Executor) -> dict[frozenset[str], tuple[Match, int, SideState]]:
    """The states of a tree by what they cover, each with its match and side."""
    if not isinstance(executor, XJoinTree):
        raise UsageError(f"this strategy moves intermediate states, and {type(executor).__name__} keeps none")
    return {
        frozenset(join.match.sides[side]): (join.match, side, join.states[side])
        for _, join in executor.joins
        for side in (0, RIGHT)
    }
