"""Statistics of a query group: per query, per runner, and for the whole group. `GroupEngine` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from operators.data.statistics import EdgeStatistics, SpillStatistics, read_document


@dataclass(frozen=True, slots=True)
class QueryStatistics:
    """Statistics of one query of a group.

    Attributes:
        executor, plan: of its runner; the plan is empty where an operator is shared.
        shared: whether its operator is shared with other queries; then the runner's counters are not its own.
    """

    name: str
    results: int
    executor: str
    plan: str
    shared: bool


@dataclass(frozen=True, slots=True)
class RunnerStatistics:
    """Statistics of queries that are executed together: counters since the start, sizes now and at their peak.

    Attributes:
        spill: None without a memory budget.
        feedback: empty without feedback.
    """

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
    """Statistics of a whole group. Sizes are sums over its runners; peaks are sums of the runners' peaks, each at its
    own time.

    Attributes:
        input_tuples: each counted once, however many queries read it.
        cut: everything with a smaller ts has been processed.
        deduplicated: tuples dropped as repeats of others.
        lookup_bytes: of the tables in topics, which no runner has.
    """

    input_tuples: int
    late: int
    pending_tuples: int
    cut: int
    runners: tuple[RunnerStatistics, ...]
    deduplicated: int = 0
    lookup_bytes: int = 0

    @property
    def queries(self) -> tuple[QueryStatistics, ...]:
        """All queries, runner by runner."""
        return tuple(query for runner in self.runners for query in runner.queries)

    @property
    def results(self) -> int:
        """Of all queries."""
        return sum(query.results for query in self.queries)

    @property
    def comparisons(self) -> int:
        """Predicate evaluations."""
        return sum(runner.comparisons for runner in self.runners)

    @property
    def intermediate_results(self) -> int:
        """Combinations made by joins that were not results yet."""
        return sum(runner.intermediate_results for runner in self.runners)

    @property
    def state_tuples(self) -> int:
        """Entries of states now."""
        return sum(runner.state_tuples for runner in self.runners)

    @property
    def state_bytes(self) -> int:
        """Bytes of states, stores and tables in topics now."""
        return self.lookup_bytes + sum(runner.state_bytes for runner in self.runners)

    @property
    def peak_state_tuples(self) -> int:
        """Entries of states at most."""
        return sum(runner.peak_state_tuples for runner in self.runners)

    @property
    def peak_state_bytes(self) -> int:
        """Bytes of states and stores at most."""
        return sum(runner.peak_state_bytes for runner in self.runners)

    @property
    def busy_s(self) -> float:
        """Seconds spent processing."""
        return sum(runner.busy_s for runner in self.runners)

    @property
    def feedback(self) -> tuple[EdgeStatistics, ...]:
        """The feedback in all runners."""
        return tuple(edge for runner in self.runners for edge in runner.feedback)

    @property
    def spill(self) -> SpillStatistics | None:
        """Of all runners with a memory budget: sums, and the longest spill and cleanup; None without a budget."""
        found = [runner.spill for runner in self.runners if runner.spill is not None]
        if not found:
            return None
        names = [field.name for field in fields(SpillStatistics) if field.name != "strategy"]
        total = {
            name: (max if name.startswith("longest") else sum)(getattr(spill, name) for spill in found)
            for name in names
        }
        return SpillStatistics(found[0].strategy, **total)

    def document(self) -> dict[str, Any]:
        """Return the statistics as dictionaries and tuples that JSON can encode."""
        return dict(msgspec.to_builtins(self))

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> GroupStatistics:
        """Read what `document` made, in this or another version of the software; unknown keys are ignored.

        Raises:
            DataError: a key is missing or has another type; the message names it.
        """
        return read_document(document, GroupStatistics)
