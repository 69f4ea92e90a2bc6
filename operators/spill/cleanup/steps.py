"""Cleanup in steps: limits the work of a cleanup between two slices, so that it causes no pause.

`operators.spill.spilling.StateSpiller` runs one step per slice. A cleanup processes the joins from the sources to the
root. At each join it takes the groups that were due when the cleanup began, and those that joins below have produced
results for. It may stop after any group and continue when more tuples have been processed. Results found so far wait as
late parts of the joins above, and no tuple that can match them is purged meanwhile (`Ledger.hold`). When the cleanup
has reached the root, the next one begins. It takes all groups that are due by then together.

Steps grow when they would otherwise keep memory for too long: each takes the share of the remaining tuples that ends
the cleanup within DEADLINE_SHARE of the shortest window. If that was not enough, the deadline is extended by as much
again.

Limits: a group is cleaned up in a single step, however large it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from operators.spill.cleanup.by_join import PlanCleanup
from operators.spill.ledger import Ledger

CLEAN_TUPLES = 1 << 13
"""A step merges at least this many tuples, of parts and in memory, if there are so many."""

DEADLINE_SHARE = 1.0 / 4.0
"""The time that a cleanup may take, as a share of the shortest window."""


class CleanupSteps:
    """The cleanup in progress of one plan.

    Args:
        joins: the number of joins in the plan.
        shortest_window_ms: the length of the shortest window, in ms.
        report: called with the cut and the groups, by join, that have been cleaned up.
    """

    def __init__(
        self,
        cleanup: PlanCleanup,
        ledger: Ledger,
        joins: int,
        shortest_window_ms: int,
        report: Callable[[int, Mapping[int, Sequence[int]]], None],
    ) -> None:
        self._cleanup = cleanup
        self._ledger = ledger
        self._cleanup_ms = max(1, int(shortest_window_ms * DEADLINE_SHARE))
        self._report = report
        self._due: list[set[int]] = [set() for _ in range(joins)]
        # The join that the cleanup has reached; `joins` when no cleanup is in progress.
        self._join = joins
        self._deadline = self._last_cut = 0

    def __bool__(self) -> bool:
        """Whether a cleanup has begun and not ended."""
        return self._join < len(self._due)

    def begin(self, due: Sequence[set[int]], cut: int) -> None:
        """Begin a cleanup of these groups, per join. It includes what an earlier cleanup has left."""
        if not any(due) and not self:
            return
        self._due = [own | more for own, more in zip(self._due, due, strict=True)]
        self._join = 0
        self._last_cut, self._deadline = cut, cut + self._cleanup_ms

    def step(self, cut: int, kept_from: int) -> None:
        """Run one step.

        Args:
            cut: everything before it has been processed.
            kept_from: what expired before this has no pending results, and its source tuples may be gone.

        Raises:
            StateError: a block could not be written or read.
        """
        if not self:
            return
        if self._last_cut >= self._deadline:
            self._deadline = self._last_cut + self._cleanup_ms
        share = min((cut - self._last_cut) / (self._deadline - self._last_cut), 1.0)
        self._last_cut = cut
        self._clean(cut, kept_from, max(CLEAN_TUPLES, int(share * self._remaining_tuples())))

    def finish(self, cut: int, kept_from: int, between: Callable[[], None] | None = None) -> None:
        """Run all that is left of the cleanup.

        Args:
            between: called after each merge; it may take the results found so far.

        Raises:
            StateError: a block could not be written or read.
        """
        self._clean(cut, kept_from, None, between)

    def _clean(
        self, cut: int, kept_from: int, max_tuples: int | None, between: Callable[[], None] | None = None
    ) -> None:
        done: dict[int, list[int]] = {}
        merged = 0
        while self and (max_tuples is None or merged < max_tuples):
            j = self._join
            groups = sorted(self._due[j] | self._ledger.late(j))
            if not groups:
                self._join += 1
                continue
            room = None if max_tuples is None else max_tuples - merged
            cleaned, tuples = self._cleanup.clean(j, groups, cut, kept_from, room, between)
            merged += tuples
            self._due[j].difference_update(cleaned)
            done.setdefault(j, []).extend(cleaned)
        self._report(cut, done)

    def _remaining_tuples(self) -> int:
        """About how many tuples remain to be merged. Results from below may be for any group above, so all groups with
        parts count there."""
        return sum(
            self._ledger.size((j, g))
            for j in range(self._join, len(self._due))
            for g in (self._due[j] | self._ledger.late(j) if j == self._join else self._ledger.groups(j))
        )
