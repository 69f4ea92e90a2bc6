"""Produces the pending results of a shared operator in steps, so that cleanup causes no pause between two slices.

`operators.groups.budget` calls it. It is time to clean up when half of the tuples on disk are dead, in spare time
(`run_steps`), and at the end. Each cleanup finds the pending results up to some time, step by step
(`operators.groups.cleanup`). When it is over they are delivered, all at once, and `GroupSpill.cleaned_to` moves. So two
things determine what has been delivered: when tuples left memory, and `cleaned_to`. A successor that reads the same
tuples again can continue from these two.

If possible, a cleanup ends where spilled tuples end: its tuples left memory together, blocks are full, and tuples in
memory are not read. For every n incoming tuples, cleanup produces the pending results of RATE * n tuples. So the disk
has at most two and a half times the tuples of the windows. Slices are made so small that the steps after one of them
are never too much.

Timely results do not wait for pending ones: for each incoming tuple, cleanup scans at most MOST_WORK tuples, whatever
results that produces. If more is pending than that, it stays on disk until there is time.

Limits: a step cannot be interrupted. The results of a cleanup wait in memory for its end.
"""

from __future__ import annotations

from collections.abc import Callable

from operators.data.tuples import Tuples
from operators.groups.cleanup import CleanupQueries, GroupCleanup, JoinTuples
from operators.groups.spill import GroupSpill
from operators.juggler.state.sources import GroupSources
from schemas.columns import Batch
from schemas.groups import Member

DEAD_SHARE = 0.5
"""It is time to clean up when this share of the tuples on disk is dead."""

RATE = 2.0
"""Number of tuples whose pending results are produced per incoming tuple."""

MOST_WORK = 128.0
"""Maximum number of tuples that are scanned per incoming tuple: timely results do not wait for pending ones."""

SLICE_WORK_TUPLES = 1 << 15
"""About how many tuples the steps after a slice scan, if that takes no smaller slices than a budget may ask for."""

Output = Callable[[Member, Tuples, GroupSources], Batch]
"""Turns results that were found late, which are rows of those stores, into a query's output."""


class GroupCleanupSteps:
    """Schedules the cleanups of a shared operator.

    Args:
        join: see `GroupCleanup.step`.
    """

    def __init__(self, spill: GroupSpill, join: JoinTuples, output: Output) -> None:
        self._spill = spill
        self._join = join
        self._output = output
        self._cleanup: GroupCleanup | None = None
        # The event time up to which to clean up; None while it is not time. And the number of tuples whose pending
        # results may be produced now.
        self._target_ts: int | None = None
        self._results_budget = 0.0
        # How many tuples may be scanned before more arrive; below 0 too many have been.
        self._work_budget = 0.0
        # How many were scanned to produce the pending results of one tuple, in the latest cleanup.
        self._work_per_tuple = 0.0
        self._found: dict[str, list[Batch]] = {}
        self._results: dict[str, list[Batch]] = {}

    @property
    def in_progress(self) -> bool:
        """Whether steps read blocks after each slice."""
        return self._target_ts is not None

    @property
    def slice_tuples(self) -> int:
        """The maximum number of tuples in a slice, so that the steps after it scan about SLICE_WORK_TUPLES."""
        return max(1, int(SLICE_WORK_TUPLES / min(max(RATE * self._work_per_tuple, 1.0), MOST_WORK)))

    @property
    def keeps_up(self) -> float:
        """The ratio of the rate at which pending results can be produced to the rate at which tuples arrive. Below 1
        the backlog grows."""
        return MOST_WORK / max(self._work_per_tuple, 1.0)

    def take(self) -> dict[str, list[Batch]]:
        """By query, the results found since the last call: each batch ascending by ts."""
        results, self._results = self._results, {}
        return results

    def after_slice(self, queries: CleanupQueries, sources: GroupSources, cut: int, tuples: int) -> None:
        """Run the steps after a slice, if it is time to clean up.

        Args:
            cut: everything before it has been processed.
            tuples: the number of tuples since the last call.

        Raises:
            StateError: a block cannot be read.
        """
        spill = self._spill
        if self._target_ts is None:
            if not spill.on_disk_tuples or spill.dead_tuples(sources, cut) < DEAD_SHARE * spill.on_disk_tuples:
                return
            self._target_ts = spill.spilled_until(cut)
        self._results_budget += RATE * tuples
        self._work_budget = min(self._work_budget, 0.0) + MOST_WORK * tuples
        while self._target_ts is not None and self._results_budget > 0 and self._work_budget > 0:
            self._work_budget -= self._step(queries, sources, cut, self._target_ts)

    def run_steps(self, queries: CleanupQueries, sources: GroupSources, cut: int, max_steps: int) -> bool:
        """Run at most `max_steps` steps, even if it is not time yet; False where nothing is pending.

        Raises:
            StateError: a block cannot be read.
        """
        if self._target_ts is None:
            if self._spill.cleaned_to is None or self._spill.cleaned_to.ts >= cut:
                return False
            self._target_ts = self._spill.spilled_until(cut)
        for _ in range(max_steps):
            if self._target_ts is not None:
                self._step(queries, sources, cut, self._target_ts)
        self._results_budget = max(self._results_budget, 0.0)
        return True

    def finish(self, queries: CleanupQueries, sources: GroupSources, cut: int) -> None:
        """Find all pending results before `cut`, up to which everything has been processed.

        Raises:
            StateError: a block cannot be read.
        """
        self._target_ts = cut
        while self._target_ts is not None:
            self._step(queries, sources, cut, cut)

    def _step(self, queries: CleanupQueries, sources: GroupSources, cut: int, target_ts: int) -> int:
        """Begin a cleanup if there is none, run a step of it, and end it if that was the last; return the tuples
        scanned."""
        if self._cleanup is None:
            self._cleanup = self._spill.next_cleanup(queries, sources, cut, target_ts)
            if self._cleanup is None:
                self._target_ts, self._results_budget = None, 0.0
                return 0
            self._estimate(self._cleanup)
        scanned = 0
        if self._cleanup:
            before = self._cleanup.done_tuples
            found, scanned = self._cleanup.step(sources, self._join)
            self._results_budget -= self._cleanup.done_tuples - before
            for own, member, tuples in found:
                self._found.setdefault(member.name, []).append(self._output(member, tuples, own))
        if not self._cleanup:
            for name, batches in self._found.items():
                self._results.setdefault(name, []).extend(batches)
            self._spill.forget(sources, self._cleanup.end, cut)
            self._estimate(self._cleanup)
            self._cleanup, self._found = None, {}
        return scanned

    def _estimate(self, cleanup: GroupCleanup) -> None:
        self._work_per_tuple = cleanup.work / max(cleanup.tuples, 1)
