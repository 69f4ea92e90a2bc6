"""`GroupExecutor`: the interface of an operator that runs the joins of several queries. Juggler implements it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from operators.data.statistics import EdgeStatistics
from operators.data.tuples import Tuples
from operators.juggler.state.sources import GroupSources
from schemas.columns import Batch, Mask
from schemas.groups import QueryGroup
from schemas.query import Query


class GroupExecutor(Protocol):
    """Executes the joins of all queries of a group.

    Attributes:
        group: the queries that run.
    """

    group: QueryGroup

    def add(self, query: Query, *, from_now: bool, cut: int) -> dict[str, int]:
        """Register a query when everything before `cut` has been processed; see `SharedQueries.add`."""
        ...

    def drop(self, name: str, *, cut: int) -> None:
        """Remove a query when everything before `cut` has been processed."""
        ...

    def rename(self, name: str, other: str, *, cut: int) -> None:
        """Rename a query when everything before `cut` has been processed."""
        ...

    def wanted(self, batches: Mapping[str, Batch]) -> Mapping[str, Mask]:
        """Masks, (n,) by stream, of the tuples of the next slice to store and process; for absent streams all of
        them."""
        ...

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Mapping[str, Tuples]:
        """Run one slice of the input.

        Args:
            epoch: new tuples per input, ascending by ts, none older than any processed before; inputs without any may
                be absent.
            now: the slice's beginning: what expired before it is dead.

        Returns:
            The new results of every query by its name, over its inputs in FROM order, ascending by (ts, rows); queries
            without any may be absent.
        """
        ...

    @property
    def since(self) -> Mapping[str, Mapping[str, int]]:
        """By query and input, the least ts of tuples that a query may see."""
        ...

    def rebuild(self, cut: int) -> None:
        """Rebuild the states from the stores, when everything before `cut` has been processed and rows have left the
        stores."""
        ...

    def purge(self, cut: int) -> None:
        """Drop what no tuple with ts >= cut can match, in every state."""
        ...

    def comparisons(self) -> int:
        """Predicate evaluations so far."""
        ...

    def intermediate_results(self) -> int:
        """Combinations made so far that were not results yet."""
        ...

    def state_tuples(self) -> int:
        """Tuples in all states."""
        ...

    def size_bytes(self) -> int:
        """Bytes of all states."""
        ...

    def touched_bytes(self) -> int:
        """Bytes of memory that the states use."""
        ...

    def feedback(self) -> tuple[EdgeStatistics, ...]:
        """Statistics of the feedback between inputs; empty without feedback."""
        ...


MakeExecutor = Callable[[GroupSources, QueryGroup], GroupExecutor]
"""Makes an operator over a group's stores that has not processed anything yet."""
