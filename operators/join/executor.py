"""What every way to execute a query has in common: X-Join trees, M-Joins, eddies, migrations between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from operators.data.statistics import OperatorStatistics
from operators.data.tuples import Tuples
from operators.plan.plan import Plan
from operators.state.match import MatchCounters
from operators.state.side_state import SideState
from operators.state.sources import Sources

XJOIN = "xjoin"
JUGGLER = "juggler"
"""The executor of multi-way operators. It stands apart: it cannot execute every query, and changes plans as a black box
(`operators.migration.black_box`)."""


class Executor(Protocol):
    """Executes the joins of one query.

    Attributes:
        sources: the stores its tuples' rows are of.
        plan: what it executes.
    """

    sources: Sources
    plan: Plan

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice of the input.

        Args:
            epoch: new tuples per alias, ascending by ts, none older than any processed before; aliases
                without any may be absent.
            now: the slice's beginning: what expired before it is dead.

        Returns:
            The query's new results, ascending by ts, in any alias order.
        """
        ...

    def purge(self, cut: int) -> None:
        """Drop what no tuple with ts >= cut can meet, in every state."""
        ...

    def operators(self) -> tuple[OperatorStatistics, ...]:
        """Counters and sizes per operator."""
        ...

    def comparisons(self) -> int:
        """Predicate evaluations so far."""
        ...

    def intermediate_results(self) -> int:
        """Results of all operators but the last of each path so far."""
        ...

    def state_tuples(self) -> int:
        """Tuples in all states."""
        ...

    def size_bytes(self) -> int:
        """Bytes of all states."""
        ...


def operator_statistics(
    name: str, hashed: bool, counters: MatchCounters, states: tuple[SideState, SideState]
) -> OperatorStatistics:
    """One operator over two states."""
    left, right = states
    shares = left.sampled(), right.sampled()
    owed = [state.owed.progress() if state.owed is not None else (0, 0) for state in states]
    return OperatorStatistics(
        name=name,
        kind="hash" if hashed else "nested-loop",
        input_tuples=counters.input_tuples,
        comparisons=counters.comparisons,
        candidates=counters.candidates,
        results=counters.results,
        state_tuples=(len(left), len(right)),
        state_bytes=(left.size_bytes(), right.size_bytes()),
        complete=(left.complete, right.complete),
        inputs=(counters.left_tuples, counters.input_tuples - counters.left_tuples),
        aliases=(left.aliases, right.aliases),
        living_tuples=(round(len(left) * shares[0][0]), round(len(right) * shares[1][0])),
        state_groups=(shares[0][1], shares[1][1]),
        completed_keys=(owed[0][0], owed[1][0]),
        total_keys=(owed[0][1], owed[1][1]),
    )
