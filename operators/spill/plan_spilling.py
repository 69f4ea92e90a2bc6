"""Keeps the states of a task's current plan within the memory budget. The engine calls it between slices.

Plans change. During a change nothing is spilled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush

import numpy as np

from operators.data.statistics import SpillStatistics
from operators.data.watermark import END, NEVER
from operators.join.executor import Executor
from operators.join.tree import XJoinTree
from operators.spill.backlog import Backlog
from operators.spill.block_store import BlockStore
from operators.spill.cleanup.by_join import ConsumeResults
from operators.spill.counters import SpillCounters
from operators.spill.replay import SpillReplay
from operators.spill.spilled_part import ROW, PieceWriter, materialise
from operators.spill.spilling import MakeProductivity, MemoryBudget, StateSpiller
from operators.state.store import SourceStore
from schemas.columns import I64, Batch, Column
from schemas.errors import InvariantError
from schemas.messages.spills import SpillEvent
from schemas.query import OWN_PREFIX, Type, qualified

SLICE_SHARE = 0.1
"""Share of the budget that a slice may add to the memory, about."""

SLICE_BYTES = 512 * 1024
"""Upper bound of what a slice may add: eviction between two slices has to keep pace, and must not take long."""

TUPLE_BYTES = 100
"""A tuple and its entry in a state, about."""

MIN_SLICE_TUPLES = 64
"""The budget makes no slice smaller than this."""


VOID = OWN_PREFIX + "void"
"""A column of source tuples that are processed again: True where a tuple only counts for ROWS windows."""


class PlanSpilling:
    """The spilled state of one task, over all of its plans.

    Args:
        clock: seconds.
        consume: see `operators.spill.cleanup.by_join.PlanCleanup`.
        productivity, fixed: see `StateSpiller`.

    Attributes:
        pending_replay: events of an earlier incarnation. Up to their end they decide what happens, instead of the
            memory.
        active: spills the plan that runs; None while plans change.
    """

    def __init__(
        self,
        budget: MemoryBudget,
        blocks: BlockStore,
        clock: Callable[[], float],
        consume: ConsumeResults | None = None,
        productivity: MakeProductivity | None = None,
        fixed: Callable[[], int] = int,
    ) -> None:
        self._budget = budget
        self._fixed = fixed
        self._consume = consume
        self._productivity = productivity
        self._blocks = blocks
        self._writer = PieceWriter(blocks)
        self._clock = clock
        self._counters = SpillCounters()
        self._results: list[Batch] = []
        self._events: list[SpillEvent] = []
        self._tree: XJoinTree | None = None
        self._replaying = False
        self.pending_replay = SpillReplay()
        self.active: StateSpiller | None = None
        self._input_complete = END
        # Read again by a task that recovers, by side and offset; they enter when their events are replayed. And the
        # least ts of each, in a heap.
        self._late_read_again: dict[tuple[int, int], Batch] = {}
        self._least_read_again: list[tuple[int, tuple[int, int]]] = []
        # Of late tuples that have entered: the event time of their event, and the largest ts.
        self._late: list[tuple[int, int]] = []

    @property
    def has_backlog(self) -> bool:
        """Whether there are spilled parts that later tuples can still match."""
        return bool(self.active)

    def start_replay(self, events: Sequence[SpillEvent], until: int) -> None:
        """Replay exactly these events, up to an event time. The results of the replayed cleanups were delivered before,
        unless `consume` takes them: it needs them again.

        The plan must not have processed anything yet.
        """
        self.pending_replay = SpillReplay(events, until)
        self._events = []
        if self.active is not None and self._consume is None:
            self.active.delivered_before(self.pending_replay.delivered)

    def events(self) -> list[SpillEvent]:
        """Return the events since the last call."""
        found, self._events = self._events, []
        return found

    def enter_late(self, side: int, offset: int, tuples: Batch, cut: int, *, again: bool) -> None:
        """See `StateSpiller.enter_late`.

        Args:
            side: of the plan's only join.
            offset: of the record in its log.
            cut: everything before it has been processed.
            again: an earlier incarnation has taken the record.
        """
        if again:
            if self.pending_replay.has_late(side, offset):
                self._late_read_again[side, offset] = tuples
                heappush(self._least_read_again, (int(tuples.ts.min()), (side, offset)))
                self._limit_purges()
                self._replay_beginning(cut)
            return
        if self.active is None:
            raise InvariantError("late tuples of other tasks for a plan without states")
        self._enter_late(side, tuples, cut)
        self._record_event(SpillEvent(cut, "late", ((side, (offset,)),)))

    def _enter_late(self, side: int, tuples: Batch, at: int) -> None:
        assert self.active is not None
        self._late.append((at, int(tuples.ts.max())))
        self.active.enter_late(side, tuples)

    def needed_from(self, expired: int) -> int:
        """Return the event time up to which events need not be repeated, if tuples up to `expired` have expired. Late
        tuples may be newer than their event: the task that they come from has processed more than this one."""
        self._late = [(at, newest) for at, newest in self._late if newest > expired]
        return min([expired, *(at - 1 for at, _ in self._late)])

    def set_input_complete(self, ts: int) -> None:
        """See `StateSpiller.set_input_complete`."""
        self._input_complete = ts
        self._limit_purges()

    def _limit_purges(self) -> None:
        """Tell the spiller from when on late tuples may still enter: new ones, and those that have been read again. A
        replay reads far ahead of what it processes."""
        if self.active is not None:
            self.active.set_input_complete(self._late_from())

    def _late_from(self) -> int:
        least = self._least_read_again
        while least and least[0][1] not in self._late_read_again:
            heappop(least)
        return min(self._input_complete, least[0][0]) if least else self._input_complete

    def _replay_late(self, cut: int) -> None:
        while self.pending_replay.due("late", cut):
            self._replay_arrival(self.pending_replay.take())

    def _replay_arrival(self, event: SpillEvent) -> None:
        for side, offsets in event.groups:
            for offset in offsets:
                if (tuples := self._late_read_again.pop((side, offset), None)) is not None:
                    self._enter_late(side, tuples, event.at)
        self._limit_purges()

    def _replay_beginning(self, cut: int) -> None:
        """Replay what happened before anything was processed as soon as it can be: no slice ends then."""
        with self._replay_at(cut):
            while self.pending_replay.is_ready(cut, self._late_read_again.keys()):
                event = self.pending_replay.take()
                if event.kind == "late":
                    self._replay_arrival(event)
                else:
                    self._replay_cleanup(event)

    def purge(self, cut: int) -> None:
        """See `StateSpiller.purge`."""
        if self.active is None:
            return
        self._replay_late(cut)
        began, before = self._clock(), self._counters.cleanups
        with self._replay_at(cut) as replayed:
            if replayed:
                self._replay_cleanups(cut)
            self.active.purge(cut, clean=not replayed)
        if self._counters.cleanups > before:
            took = self._clock() - began
            self._counters.cleanup_s += took
            self._counters.longest_cleanup_s = max(self._counters.longest_cleanup_s, took)

    def spill(self, cut: int) -> None:
        """See `StateSpiller.spill`."""
        if self.active is None:
            return
        began = self._clock()
        with self._replay_at(cut) as replayed:
            if not replayed:
                self.active.spill(cut)
            while replayed and self.pending_replay.due("leave", cut):
                event = self.pending_replay.take()
                self.active.evict(dict(event.groups), event.at)
                self._replay_cleanups(cut)
        self._counters.longest_spill_s = max(self._counters.longest_spill_s, self._clock() - began)

    @contextmanager
    def _replay_at(self, cut: int) -> Iterator[bool]:
        """Whether replayed events determine what happens at this cut. What happens inside the context is then not
        recorded again."""
        self._replaying = self.pending_replay.covers(cut)
        try:
            yield self._replaying
        finally:
            self._replaying = False

    def _replay_cleanups(self, cut: int) -> None:
        self._replay_late(cut)
        while self.pending_replay.due("clean", cut):
            self._replay_cleanup(self.pending_replay.take())
            self._replay_late(cut)

    def _replay_cleanup(self, event: SpillEvent) -> None:
        assert self.active is not None
        self.active.clean_groups(dict(event.groups), event.at)
        self.active.take()

    def _record_event(self, event: SpillEvent) -> None:
        if not self._replaying:
            self._events.append(event)

    def attach(self, executor: Executor, cut: int, *, delivered: int = NEVER) -> None:
        """Spill this executor's plan from now on; the plan before it must have no pending results.

        Args:
            cut: everything before it has been processed.
            delivered: results before this event time are known.
        """
        if executor is self._tree:
            return
        if self.active is not None:
            self._results += self.active.take()
            self.active.close()
            self._record_event(SpillEvent(cut, "plan"))
        self._tree, self.active = None, None
        if isinstance(executor, XJoinTree):
            self._tree = executor
            self._record_event(SpillEvent(cut, "plan"))
            self.active = StateSpiller(
                executor,
                self._budget,
                self._blocks,
                self._writer,
                self._counters,
                self._record_event,
                delivered=delivered,
                consume=self._consume,
                productivity=self._productivity,
                fixed=self._fixed,
            )
            self._limit_purges()

    def close(self) -> None:
        """See `StateSpiller.close`."""
        if self.active is not None:
            self.active.close()

    def hold(self, cut: int) -> int:
        """See `StateSpiller.hold`."""
        return min(cut, self._late_from()) if self.active is None else self.active.hold(cut)

    def needs_spill(self, cut: int) -> bool:
        """Whether groups have to leave memory, and can: none leaves while a plan's states are being completed."""
        if self.pending_replay.covers(cut):
            return self.pending_replay.due("leave", cut)
        if self._tree is None or self.active is None:
            return False
        if not all(state.complete for _, join in self._tree.joins for state in join.states):
            return False
        return self.active.needs_spill()

    def min_slices(self, tuples: int, made_per_tuple: float) -> int:
        """The minimum number of slices for this many source tuples, so that the budget is not exceeded by much between
        two checks of the memory.

        Args:
            made_per_tuple: intermediate results per source tuple.
        """
        slice_bytes = min(self._budget.limit_bytes * SLICE_SHARE, SLICE_BYTES)
        slice_tuples = slice_bytes / (TUPLE_BYTES * (1.0 + made_per_tuple))
        return int(tuples / max(slice_tuples, MIN_SLICE_TUPLES))

    def clean(self, cut: int, max_groups: int | None = None, between: Callable[[], None] | None = None) -> bool:
        """Run `StateSpiller.clean_all`, or `StateSpiller.clean_some` if `max_groups` is given.

        Returns:
            False when there was nothing to clean up.
        """
        if self.active is None or not self.active:
            return False
        began, cleaned, elsewhere_s = self._clock(), True, 0.0

        def pause() -> None:
            nonlocal elsewhere_s
            left = self._clock()
            if between is not None:
                between()
            elsewhere_s += self._clock() - left

        if max_groups is None:
            self.active.clean_all(cut, pause)
        else:
            cleaned = self.active.clean_some(max_groups, cut)
        self._counters.cleanup_s += self._clock() - began - elsewhere_s
        return cleaned

    def write_backlog(self, cut: int) -> Backlog | None:
        """See `StateSpiller.write_backlog`; None when there are no pending results."""
        return self.active.write_backlog(cut) if self.active else None

    def take(self) -> list[Batch]:
        """Return the results of cleanups since the last call."""
        found, self._results = self._results, []
        return found if self.active is None else found + self.active.take()

    def stored_tuples(self) -> dict[str, tuple[int, Batch]]:
        """All source tuples of the plan, in memory and on disk. What is on disk is read and deleted.

        Returns:
            By stream, the number of the first row, and all tuples from that row on, so that they keep their row
                numbers. Column VOID marks tuples that nothing refers to; they have the values of another tuple.

        Raises:
            InvariantError: plans are changing.
        """
        tree = self._tree
        if tree is None or self.active is None:
            raise InvariantError("no plan's states are within the budget now")
        parts = self.active.withdraw()
        found: dict[str, list[tuple[I64, Batch]]] = {}
        for j, (_, join) in enumerate(tree.joins):
            for side, state in enumerate(join.states):
                alias = state.aliases[0]
                if len(state.aliases) > 1 or alias in tree.sources.tables:
                    continue
                in_memory = materialise(tree.sources, self.active.stored_tuples(state))
                for batch in (*parts(j, side), in_memory):
                    numbers = batch.columns[qualified(alias, ROW)].values.astype(np.int64, copy=False)
                    stored = tree.sources.store(alias).columns
                    columns = {name: batch.columns[qualified(alias, name)] for name in stored}
                    name = tree.sources.query.source(alias).stream.name
                    found.setdefault(name, []).append((numbers, Batch(batch.ts, columns)))
        batches = {name: _in_order(pieces, tree.sources.stores[name]) for name, pieces in found.items()}
        return {name: rows for name, rows in batches.items() if len(rows[1])}

    def statistics(self) -> SpillStatistics:
        """Statistics of what has been spilled and is pending."""
        counters = self._counters
        return SpillStatistics(
            strategy=self._budget.strategy,
            budget_bytes=self._budget.limit_bytes,
            used_bytes=self._fixed() if self.active is None else self.active.used_bytes(),
            spills=counters.spills,
            spilled_groups=counters.spilled_groups,
            spilled_tuples=counters.spilled_tuples,
            spilled_bytes=self._writer.written_bytes,
            on_disk_tuples=0 if self.active is None else self.active.spilled_tuples(),
            owed=0 if self.active is None else self.active.pending_pairs(),
            cleanups=counters.cleanups,
            cleanup_results=counters.cleanup_results,
            cleanup_s=counters.cleanup_s,
            longest_spill_s=counters.longest_spill_s,
            longest_cleanup_s=counters.longest_cleanup_s,
            fixed_bytes=self._fixed(),
        )


def _in_order(pieces: list[tuple[I64, Batch]], store: SourceStore) -> tuple[int, Batch]:
    """Tuples by their row numbers, each once, since aliases of one stream may store the same tuple. Dead tuples that
    the store has purged are left out."""
    numbers, first = np.unique(np.concatenate([own for own, _ in pieces]), return_index=True)
    first = first[numbers >= store.lo].astype(np.int64)
    numbers = numbers[numbers >= store.lo]
    batch = Batch.concat([batch for _, batch in pieces])
    if len(numbers) == 0:
        return store.hi, batch.slice(0, 0)
    rows = np.arange(numbers[0], store.hi, dtype=np.int64)
    at = np.searchsorted(numbers, rows, side="right") - 1
    found = batch.take(first[at])
    return int(numbers[0]), Batch(found.ts, {**found.columns, VOID: Column(Type.BOOLEAN, numbers[at] != rows)})
