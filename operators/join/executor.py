"""The interface of all executors: X-Join trees, M-Joins, eddies, and migrations between two of them.

The engine runs a query through `Executor`; `operators.engine.executors` makes one.
"""

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
"""The executor of multi-way operators. It differs from the others: it cannot execute every query, and it changes plans
as a black box (`operators.migration.black_box`)."""


class Executor(Protocol):
    """Executes the joins of one query.

    Attributes:
        sources: the stores that its tuples' row ids refer to.
        plan: the plan that it executes.
    """

    sources: Sources
    plan: Plan

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice of the input.

        Args:
            epoch: new tuples per alias, ascending by ts, none older than any processed before; aliases without new
                tuples may be absent.
            now: the slice's first instant; tuples that expired before it are dead.

        Returns:
            The query's new results, ascending by ts, in any alias order.
        """
        ...

    def purge(self, cut: int) -> None:
        """Drop the entries that no tuple with ts >= cut can meet, in every state."""
        ...

    def operators(self) -> tuple[OperatorStatistics, ...]:
        """Return counters and sizes per operator."""
        ...

    def comparisons(self) -> int:
        """Return the number of predicate evaluations so far."""
        ...

    def intermediate_results(self) -> int:
        """Return the number of results so far of all operators but the last of each path."""
        ...

    def state_tuples(self) -> int:
        """Return the number of tuples in all states."""
        ...

    def size_bytes(self) -> int:
        """Return the bytes of all states."""
        ...


def operator_statistics(
    name: str, hashed: bool, counters: MatchCounters, states: tuple[SideState, SideState]
) -> OperatorStatistics:
    """Make the statistics of one operator over two states."""
    left, right = states
    shares = left.sampled(), right.sampled()
    keys = [state.completion.progress() if state.completion is not None else (0, 0) for state in states]
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
        completed_keys=(keys[0][0], keys[1][0]),
        total_keys=(keys[0][1], keys[1][1]),
    )
