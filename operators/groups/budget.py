"""Keeps a shared operator within a memory budget: decides when tuples are spilled and when cleanup runs.

`operators.groups.spill` moves tuples to disk and determines which results are then pending.
`operators.groups.cleanup_steps` produces them step by step. `operators.groups.shared` calls this class between two
slices of the input (`keep`), and in spare time and at the end (`clean`).

Invariants: the operator is rebuilt when rows have left its stores, before it processes another tuple. A query that has
ended stays in the operator while results from before its end are pending: its inputs are kept
(`operators.groups.shared`). After `keep`, memory is within the budget, unless nothing can be spilled.

Known limits: memory is checked between slices. A slice, or a join during cleanup, may exceed the budget until then;
statistics show the peak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from operators.data.statistics import SpillStatistics
from operators.data.tuples import Tuples
from operators.data.watermark import END
from operators.groups.cleanup import CleanupQueries
from operators.groups.cleanup_steps import GroupCleanupSteps, Output
from operators.groups.executor import GroupExecutor, MakeExecutor
from operators.groups.spill import BLOCK_SHARE, KEPT_SHARE, KEPT_SHARE_IN_CLEANUP, GroupSpill
from operators.juggler.state.sources import GroupSources
from operators.spill.plan_spilling import MIN_SLICE_TUPLES, SLICE_SHARE, TUPLE_BYTES
from schemas.columns import Batch
from schemas.groups import QueryGroup
from schemas.messages.spills import SpillEvent

OLDEST = "oldest"
"""The name in statistics of the strategy that spills the oldest tuples."""


class GroupBudget:
    """Spills the tuples of a shared operator, and cleans up.

    Every `cut` is an event time: everything before it has been processed, and nothing else has.

    Args:
        spill: the tuples on disk, with the limit in bytes.
        sources: the operator's stores.
        executor: the operator over them.
        make: makes an operator over other stores, for cleanup.
        output: turns late results of a query into its output.
        used_bytes: returns the memory of the operator and its stores.
        clock: in seconds.

    Attributes:
        spans: by query, see `CleanupQueries`.
        comparisons: predicate evaluations of operators that cleaned up.
        peak_bytes: peak memory while such an operator existed; 0 if none ever did.
    """

    def __init__(
        self,
        spill: GroupSpill,
        sources: GroupSources,
        executor: GroupExecutor,
        make: MakeExecutor,
        output: Output,
        used_bytes: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self._spill = spill
        self._sources = sources
        self._executor = executor
        self._make = make
        self._of_operator = used_bytes
        self._clock = clock
        self._steps = GroupCleanupSteps(spill, self._join, output)
        self.spans: dict[str, tuple[int, int]] = {}
        self.comparisons = self.peak_bytes = 0

    def count_beside(self, size_bytes: int) -> None:
        """Set the bytes outside the operator that count against the limit, and cannot be spilled."""
        self._spill.beside_bytes = size_bytes

    def _used_bytes(self) -> int:
        """The memory that counts against the limit."""
        return self._of_operator() + self._spill.beside_bytes

    # --- Between slices -----------------------------------------------------------------------------------

    def min_slices(self, tuples: int) -> int:
        """The minimum number of slices for an epoch of so many tuples."""
        max_tuples = min(SLICE_SHARE * self._spill.limit_bytes / TUPLE_BYTES, self._steps.slice_tuples)
        return min(int(tuples / max_tuples), tuples // MIN_SLICE_TUPLES)

    def kept_from(self, cut: int) -> int:
        """Tuples that were dead at this time may be dropped, see `GroupSpill.kept_from`."""
        return self._spill.kept_from(cut)

    def keep(self, cut: int, tuples: int) -> None:
        """After a slice of so many tuples: spill what exceeds the budget, and run some cleanup steps.

        At END nothing is done: the results that are pending then are produced by `clean`.

        Raises:
            StateError: a block cannot be read or written.
        """
        spill = self._spill
        if cut == END:
            return
        replaying = spill.replaying(cut)
        if replaying and spill.replay_to(self._sources, cut, self._used_bytes()):
            self._executor.rebuild(cut)
        room, kept_share = (1.0 - BLOCK_SHARE, KEPT_SHARE_IN_CLEANUP) if self._steps.in_progress else (1.0, KEPT_SHARE)
        while (used := self._used_bytes()) > room * spill.limit_bytes and self._spill_oldest(cut, used, kept_share):
            pass
        if replaying:
            return
        with self._timed(cut):
            self._steps.after_slice(self._queries, self._sources, cut, tuples)

    def _spill_oldest(self, cut: int, used_bytes: int, kept_share: float) -> bool:
        """Spill the oldest tuples; False where there are none."""
        began, done = self._clock(), self._spill.counters
        left = self._spill.spill_oldest(self._sources, cut, used_bytes, kept_share)
        if left:
            self._executor.rebuild(cut)
        done.longest_spill_s = max(done.longest_spill_s, self._clock() - began)
        return left

    # --- Cleanup ------------------------------------------------------------------------------------------

    def finish(self, cut: int) -> None:
        """Produce all pending results before `cut`; `take` returns them.

        Raises:
            StateError: a block cannot be read or written.
        """
        spill = self._spill
        if spill.on_disk_tuples and (used := self._used_bytes()) > KEPT_SHARE_IN_CLEANUP * spill.limit_bytes:
            self._spill_oldest(cut, used, KEPT_SHARE_IN_CLEANUP)
        with self._timed(cut):
            self._steps.finish(self._queries, self._sources, cut)

    def clean(self, cut: int, max_steps: int | None) -> bool:
        """Produce pending results, in at most `max_steps` steps, or all of them; `take` returns them.

        Returns:
            False when nothing was pending.

        Raises:
            StateError: a block cannot be read or written.
        """
        if self._spill.cleaned_to is None:
            return False
        if max_steps is None:
            self.finish(cut)
            return True
        with self._timed(cut):
            return self._steps.run_steps(self._queries, self._sources, cut, max_steps)

    def take(self) -> dict[str, list[Batch]]:
        """By query, the results found since the last call: each batch ascending by ts, and each result once."""
        return self._steps.take()

    @contextmanager
    def _timed(self, cut: int) -> Iterator[None]:
        began = self._clock()
        yield
        took, done = self._clock() - began, self._spill.counters
        done.cleanup_s += took
        if cut != END:
            done.longest_cleanup_s = max(done.longest_cleanup_s, took)

    def _join(self, sources: GroupSources, group: QueryGroup, epoch: Mapping[str, Tuples]) -> Mapping[str, Tuples]:
        """The results of tuples, found by an operator of their own."""
        operator = self._make(sources, group)
        found = operator.process(epoch, min(int(tuples.ts[0]) for tuples in epoch.values()))
        self.comparisons += operator.comparisons()
        used = sum(sized.size_bytes() for sized in (self._sources, self._executor, sources, operator))
        self.peak_bytes = max(self.peak_bytes, used)
        return found

    def least_bytes(self, cut: int) -> int:
        """About the least budget that suffices at the rates at which tuples arrive; 0 if the present budget does.

        The work to clean up for a tuple falls as the budget grows, and nothing is pending where everything fits.
        """
        share = self._steps.keeps_up
        if share >= 1.0:
            return 0
        whole = self._spill.whole_bytes(self._sources, cut, self._used_bytes())
        return max(min(int(self._spill.limit_bytes / share), whole), self._spill.limit_bytes + 1)

    # --- Changes of the queries ---------------------------------------------------------------------------

    @property
    def _queries(self) -> CleanupQueries:
        return CleanupQueries(self._executor.group, self._executor.since, self.spans)

    def has_pending(self, ts: int) -> bool:
        """Whether results before an event time may be pending."""
        return self._spill.has_pending(ts)

    def queries_changed(self) -> None:
        """Other queries run from now on: drop tuples that neither these queries nor pending results need."""
        self._spill.trim(self._sources)

    # --- Replay after a death -----------------------------------------------------------------------------

    def horizon(self, stream: str) -> int | None:
        """The smallest ts whose tuples of a stream still have pending results; None while nothing is on disk."""
        return self._spill.horizon(self._sources, stream)

    def replay(self, events: Sequence[SpillEvent], until: int) -> None:
        """Replay the spill events of an earlier incarnation up to an event time, without producing late results."""
        self._spill.replay(events, until)

    def events(self) -> list[SpillEvent]:
        """The spill events since the last call."""
        return self._spill.events()

    def needed_from(self, cut: int) -> int:
        """Events up to this time need not be replayed: what left then is dead."""
        return self._spill.needed_from(cut)

    # --- Introspection ------------------------------------------------------------------------------------

    def statistics(self, cut: int) -> SpillStatistics:
        """Counters since the start, and what is on disk and pending now."""
        spill, done = self._spill, self._spill.counters
        return SpillStatistics(
            strategy=OLDEST,
            budget_bytes=spill.limit_bytes,
            used_bytes=self._used_bytes(),
            spills=done.spills,
            spilled_tuples=done.spilled_tuples,
            spilled_bytes=spill.written_bytes,
            on_disk_tuples=spill.on_disk_tuples,
            owed=spill.on_disk_tuples * spill.behind(self._sources, cut),
            cleanups=done.cleanups,
            cleanup_results=done.results,
            cleanup_s=done.cleanup_s,
            longest_spill_s=done.longest_spill_s,
            longest_cleanup_s=done.longest_cleanup_s,
            fixed_bytes=spill.beside_bytes,
        )
