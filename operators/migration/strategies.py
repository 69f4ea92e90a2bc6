"""The migration strategies by name.

`operators.migration.schedule` starts them by `begin`; `check_strategy` validates a user's choice. Every strategy
migrates every executor of joins. X-Join trees and STAIRs keep intermediate states, and the strategies differ in how
they treat them: `moving-state` on STAIRs is their own eager promote and demote, `jisc` the lazy one (JISC 4.6). M-Joins
and eddies with SteMs keep none. There `moving-state`, `hybmig`, `hybmig-bsc` and `jisc` are all the same change of
order at the cut, which costs nothing (HybMig 2.3); the others run the two plans as always. Only the black-box
strategies change plans of multi-way operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from operators.join.executor import JUGGLER, Executor
from operators.join.tree import XJoinTree
from operators.migration.black_box import GeneralizedHybrid, GeneralizedMovingState, GeneralizedParallelTrack
from operators.migration.difference import STRATEGIES_OF_DIFFERENCE
from operators.migration.hybmig import HybMig
from operators.migration.jisc.strategy import Jisc
from operators.migration.migration import Migration
from operators.migration.moving_state import MovingState
from operators.migration.parallel_track import ParallelTrack
from operators.migration.reordering import Reordering
from operators.plan.plan import Plan
from schemas import refusals
from schemas.errors import UsageError
from schemas.query import Query

Make = Callable[[Plan], Executor]
"""Returns a new executor of the engine's kind for a plan."""


Begin = Callable[[Executor, Plan, int, Make], Migration]
"""Starts a migration, given the old executor, the new plan, the cut, and a function that makes executors of new
plans."""


def _moving(strategy: Callable[[XJoinTree, Plan, int], Migration]) -> Begin:
    """A strategy that moves intermediate states; for executors without them it is a change of order."""

    def begin(old: Executor, plan: Plan, cut: int, make: Make) -> Migration:
        return strategy(old, plan, cut) if isinstance(old, XJoinTree) else Reordering(old, plan, cut)

    return begin


def _running(strategy: Callable[[Executor, Executor, int], Migration]) -> Begin:
    """A strategy that starts with a new executor of the new plan."""

    def begin(old: Executor, plan: Plan, cut: int, make: Make) -> Migration:
        return strategy(old, make(plan), cut)

    return begin


@dataclass(frozen=True, slots=True)
class Strategy:
    """How to migrate.

    Attributes:
        begin: Starts a migration.
        source: The section of the paper that describes it.
        outlasts: True if a migration lasts until all old tuples have left their windows. It never ends where a window
            is [UNBOUNDED].
        overlaps: True if a migration may start while another one of this strategy runs. It continues from the states of
            that one, which then counts as finished.
    """

    begin: Begin
    source: str
    outlasts: bool = False
    overlaps: bool = False


STRATEGIES: dict[str, Strategy] = {
    "moving-state": Strategy(_moving(MovingState), "HybMig 2.2"),
    "parallel-track": Strategy(_running(ParallelTrack), "HybMig 2.2", outlasts=True),
    "hybmig": Strategy(_moving(partial(HybMig, background=False)), "HybMig 3", outlasts=True),
    "hybmig-bsc": Strategy(_moving(partial(HybMig, background=True)), "HybMig 3.4"),
    "jisc": Strategy(_moving(Jisc), "JISC 4", overlaps=True),
    "gms": Strategy(_running(GeneralizedMovingState), "HybMig 4.1"),
    "gpt": Strategy(_running(GeneralizedParallelTrack), "HybMig 4.2", outlasts=True),
    "ghm": Strategy(_running(GeneralizedHybrid), "HybMig 4.3"),
}


BLACK_BOX = ("gms", "gpt", "ghm")
"""The strategies that need nothing of an executor except to run it."""

AUTO = "auto"
"""Requests the strategy that the cost model chooses at the cut; see `operators.migration.advise`."""


def strategy_of(name: str) -> Strategy:
    """Return the strategy of a name.

    Raises:
        UsageError: There is none.
    """
    found = STRATEGIES.get(name)
    if found is None:
        raise UsageError(f"unknown migration strategy {name!r}; there are {', '.join((AUTO, *STRATEGIES))}")
    return found


def begin(name: str, old: Executor, plan: Plan, cut: int, make: Make) -> Migration:
    """Start a migration by the strategy of a name."""
    if old.sources.query.subtracted:
        return STRATEGIES_OF_DIFFERENCE[name](old, plan, cut, make)
    return strategy_of(name).begin(old, plan, cut, make)


def check_strategy(name: str, executor: str, query: Query) -> None:
    """Check, before anything runs, whether a strategy can migrate a query's plans.

    Raises:
        UsageError: It does not exist, would never end, or moves states that the executor does not keep.
    """
    if name == AUTO and executor != JUGGLER:
        return  # moving-state always can
    if name != AUTO:
        strategy_of(name)

    def settings(strategy: str) -> tuple[str, str]:
        return refusals.migration(strategy), refusals.executor(executor)

    if objection := refusals.objection(query, *settings(name)):
        usable = [other for other in STRATEGIES if not refusals.objection(query, *settings(other))]
        raise UsageError(f"{objection}: one of {', '.join(usable)}")
