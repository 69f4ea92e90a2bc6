"""What the engine of a query group says of its queries and of what executes them."""

from __future__ import annotations

from dataclasses import dataclass

from operators.data.statistics import EdgeStatistics, SpillStatistics


@dataclass(frozen=True, slots=True)
class QueryStatistics:
    """One query of a group.

    Attributes:
        executor, plan: what executes it; the plan is empty where an operator is shared.
        shared: whether it shares that with others; then the part's counters are not its own.
    """

    name: str
    results: int
    executor: str
    plan: str
    shared: bool


@dataclass(frozen=True, slots=True)
class PartStatistics:
    """What is executed together: counters since the start, sizes now and at their peak; `spill` with a budget,
    `feedback` with that."""

    queries: tuple[QueryStatistics, ...]
    comparisons: int
    intermediate_results: int
    state_tuples: int
    state_bytes: int
    peak_state_tuples: int
    peak_state_bytes: int
    busy_s: float
    spill: SpillStatistics | None = None
    feedback: tuple[EdgeStatistics, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """A whole group; sizes are sums over its parts, peaks those of the parts, each at its own time.

    Attributes:
        input_tuples: each counted once, whoever reads it.
        cut: everything with a smaller ts has been processed.
    """

    input_tuples: int
    late: int
    pending_tuples: int
    cut: int
    parts: tuple[PartStatistics, ...]

    @property
    def queries(self) -> tuple[QueryStatistics, ...]:
        """All queries, part by part."""
        return tuple(query for part in self.parts for query in part.queries)

    @property
    def results(self) -> int:
        """Of all queries."""
        return sum(query.results for query in self.queries)

    @property
    def comparisons(self) -> int:
        """Predicate evaluations."""
        return sum(part.comparisons for part in self.parts)

    @property
    def intermediate_results(self) -> int:
        """What joins made that was no result yet."""
        return sum(part.intermediate_results for part in self.parts)

    @property
    def state_tuples(self) -> int:
        """Entries of states now."""
        return sum(part.state_tuples for part in self.parts)

    @property
    def state_bytes(self) -> int:
        """Bytes of states and stores now."""
        return sum(part.state_bytes for part in self.parts)

    @property
    def peak_state_tuples(self) -> int:
        """Entries of states at most."""
        return sum(part.peak_state_tuples for part in self.parts)

    @property
    def peak_state_bytes(self) -> int:
        """Bytes of states and stores at most."""
        return sum(part.peak_state_bytes for part in self.parts)

    @property
    def busy_s(self) -> float:
        """Seconds spent processing."""
        return sum(part.busy_s for part in self.parts)

    @property
    def feedback(self) -> tuple[EdgeStatistics, ...]:
        """What was said in all parts."""
        return tuple(edge for part in self.parts for edge in part.feedback)
