"""The migration strategies by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from operators.executor import Executor
from operators.migration.black_box import GeneralizedHybrid, GeneralizedMovingState, GeneralizedParallelTrack
from operators.migration.hybmig import HybMig
from operators.migration.jisc import Jisc
from operators.migration.migration import Migration
from operators.migration.moving_state import MovingState
from operators.migration.parallel_track import ParallelTrack
from operators.plan import Plan
from schemas.errors import UsageError
from schemas.query import Query

Make = Callable[[Plan], Executor]
"""A fresh executor of the engine's kind for a plan."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """How to migrate.

    Attributes:
        begin: from the old executor, the new plan and the cut; the last argument makes executors for strategies
            that know plans only as black boxes.
        source: where it is described.
        moves_states: it looks into plans, so they must be X-Join trees.
        outlasts: it ends when all old tuples have left their windows.
        overlaps: it may begin while a migration of the same strategy has not finished.
    """

    begin: Callable[[Executor, Plan, int, Make], Migration]
    source: str
    moves_states: bool = False
    outlasts: bool = False
    overlaps: bool = False


STRATEGIES: dict[str, Strategy] = {
    "moving-state": Strategy(lambda old, plan, cut, make: MovingState(old, plan, cut), "HybMig 2.2", moves_states=True),
    "parallel-track": Strategy(
        lambda old, plan, cut, make: ParallelTrack(old, plan, cut), "HybMig 2.2", moves_states=True, outlasts=True
    ),
    "hybmig": Strategy(
        lambda old, plan, cut, make: HybMig(old, plan, cut, background=False),
        "HybMig 3",
        moves_states=True,
        outlasts=True,
    ),
    "hybmig-bsc": Strategy(
        lambda old, plan, cut, make: HybMig(old, plan, cut, background=True), "HybMig 3.4", moves_states=True
    ),
    "jisc": Strategy(lambda old, plan, cut, make: Jisc(old, plan, cut), "JISC 4", moves_states=True, overlaps=True),
    "gms": Strategy(lambda old, plan, cut, make: GeneralizedMovingState(old, make(plan), cut), "HybMig 4.1"),
    "gpt": Strategy(
        lambda old, plan, cut, make: GeneralizedParallelTrack(old, make(plan), cut), "HybMig 4.2", outlasts=True
    ),
    "ghm": Strategy(lambda old, plan, cut, make: GeneralizedHybrid(old, make(plan), cut), "HybMig 4.3"),
}


def strategy_of(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        UsageError: there is none.
    """
    found = STRATEGIES.get(name)
    if found is None:
        raise UsageError(f"unknown migration strategy {name!r}; there are {', '.join(STRATEGIES)}")
    return found


def check_strategy(name: str, executor: str, query: Query) -> None:
    """Say before anything runs whether a strategy can migrate a query's plans.

    Raises:
        UsageError: it does not exist, cannot move this executor's states, or would never end.
    """
    strategy = strategy_of(name)
    if strategy.moves_states and executor != "xjoin":
        raise UsageError(f"{name} moves the states of X-Join trees, and this query runs as {executor}: use gms or ghm")
    if strategy.outlasts:
        for source in query.sources:
            if source.window.kind == "UNBOUNDED":
                raise UsageError(
                    f"{name} ends when all old tuples have left their windows, and that of {source.alias} is "
                    f"[UNBOUNDED]: use moving-state, jisc, gms or ghm"
                )
