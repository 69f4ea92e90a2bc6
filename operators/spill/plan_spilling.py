"""Which plan's states are kept within the budget now: plans change, and while they do nothing is spilled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from operators.data.statistics import SpillStatistics
from operators.join.executor import Executor
from operators.join.tree import XJoinTree
from operators.spill.backlog import Debt
from operators.spill.block_store import BlockStore
from operators.spill.counters import SpillCounters
from operators.spill.replay import Script
from operators.spill.spilled_part import FAR_PAST, ROW, Writer, materialise
from operators.spill.spilling import Budget, Spilling
from operators.state.store import SourceStore
from schemas.columns import I64, Batch, Column
from schemas.errors import InvariantError, UsageError
from schemas.messages.spills import SpillEvent
from schemas.query import Query, Type

SLICE_SHARE = 0.1
"""Of the budget: what a slice adds to the memory at most, about."""

SLICE_BYTES = 512 * 1024
"""And at most so much: what leaves between two slices has to keep pace, and must not take long."""

TUPLE_BYTES = 100
"""A tuple and its entry in a state, about."""

SLICE_LEAST = 64
"""Slices are made no smaller than this for a budget's sake."""


def check_spillable(query: Query, executor: str) -> None:
    """Refuse what cannot be kept within a memory budget.

    Raises:
        UsageError: the message says why.
    """
    why = ""
    if executor != "xjoin":
        why = f"executor {executor} has no partition groups that could leave; leave it away, or give xjoin"
    elif query.aggregation is not None:
        why = "an aggregate's values at an instant need all results of before, and some would be owed"
    elif query.subtracted:
        why = "EXCEPT answers with what has no match, which takes all of the state"
    if why:
        raise UsageError(f"this query cannot run with a memory budget: {why}")


VOID = " void"
"""A column of source tuples that are processed again: True where one only counts for ROWS windows."""


class Spills:
    """The spilled state of one task.

    Args:
        clock: seconds.

    Attributes:
        script: what to do up to an instant instead of what the memory asks for.
        active: what watches over the plan that runs; None while plans change.
    """

    def __init__(
        self,
        budget: Budget,
        blocks: BlockStore,
        clock: Callable[[], float],
    ) -> None:
        self._budget = budget
        self._blocks = blocks
        self._writer = Writer(blocks)
        self._clock = clock
        self._counters = SpillCounters()
        self._results: list[Batch] = []
        self._events: list[SpillEvent] = []
        self._tree: XJoinTree | None = None
        self._playing = False
        self.script = Script()
        self.active: Spilling | None = None

    @property
    def owing(self) -> bool:
        """Whether anything has left memory that later tuples can still meet."""
        return bool(self.active)

    def play(self, events: Sequence[SpillEvent], until: int) -> None:
        """Do up to an event time exactly this; the results of cleanups are out already.

        To be called on a plan that has processed nothing.
        """
        self.script = Script(events, until)
        self._events = []
        if self.active is not None:
            self.active.delivered_before(self.script.delivered)

    def events(self) -> list[SpillEvent]:
        """What has happened since this was last asked."""
        found, self._events = self._events, []
        return found

    def purge(self, cut: int) -> None:
        """See `Spilling.purge`."""
        if self.active is None:
            return
        began, before = self._clock(), self._counters.cleanups
        with self._script_of(cut) as scripted:
            if scripted:
                self._play_cleanups(cut)
            self.active.purge(cut, clean=not scripted)
        if self._counters.cleanups > before:
            took = self._clock() - began
            self._counters.cleanup_s += took
            self._counters.longest_cleanup_s = max(self._counters.longest_cleanup_s, took)

    def spill(self, cut: int) -> None:
        """See `Spilling.spill`."""
        if self.active is None:
            return
        began = self._clock()
        with self._script_of(cut) as scripted:
            if not scripted:
                self.active.spill(cut)
            while scripted and self.script.due("leave", cut):
                event = self.script.take()
                self.active.leave(dict(event.groups), event.at)
                self._play_cleanups(cut)
        self._counters.longest_spill_s = max(self._counters.longest_spill_s, self._clock() - began)

    @contextmanager
    def _script_of(self, cut: int) -> Iterator[bool]:
        """Whether what happens at this cut is written; what is done meanwhile has then happened before."""
        self._playing = self.script.covers(cut)
        try:
            yield self._playing
        finally:
            self._playing = False

    def _play_cleanups(self, cut: int) -> None:
        assert self.active is not None
        while self.script.due("clean", cut):
            event = self.script.take()
            self.active.clean_groups(dict(event.groups), event.at)
            self.active.take()

    def _note(self, event: SpillEvent) -> None:
        if not self._playing:
            self._events.append(event)

    def follow(self, executor: Executor, cut: int, *, delivered: int = FAR_PAST) -> None:
        """This runs from here on; nothing may be owed by what ran before.

        Args:
            cut: everything before it has been processed.
            delivered: results of before this are known.
        """
        if executor is self._tree:
            return
        if self.active is not None:
            self._results += self.active.take()
            self._note(SpillEvent(cut, "plan"))
        self._tree, self.active = None, None
        if isinstance(executor, XJoinTree):
            self._tree = executor
            self._note(SpillEvent(cut, "plan"))
            self.active = Spilling(
                executor,
                self._budget,
                self._blocks,
                self._writer,
                self._counters,
                self._note,
                delivered=delivered,
            )

    def hold(self, cut: int) -> int:
        """See `Spilling.hold`."""
        return cut if self.active is None else self.active.hold(cut)

    def short(self, cut: int) -> bool:
        """Whether something has to leave, and can: while a plan's states are being completed nothing does."""
        if self.script.covers(cut):
            return self.script.due("leave", cut)
        if self._tree is None or self.active is None:
            return False
        if not all(state.complete for _, join in self._tree.joins for state in join.states):
            return False
        return self.active.short()

    def pieces(self, tuples: int, made: float) -> int:
        """Into how many slices to cut so many source tuples at least, so that the budget is not exceeded by much
        between two looks at the memory.

        Args:
            made: intermediate results per source tuple.
        """
        most = min(self._budget.limit_bytes * SLICE_SHARE, SLICE_BYTES) / (TUPLE_BYTES * (1.0 + made))
        return int(tuples / max(most, SLICE_LEAST))

    def clean(self, cut: int, most: int | None = None, between: Callable[[], None] | None = None) -> bool:
        """See `Spilling.clean_all`, or with `most` `Spilling.clean_some`; False when there was nothing to do."""
        if self.active is None or not self.active:
            return False
        began, found, elsewhere = self._clock(), True, 0.0

        def pause() -> None:
            nonlocal elsewhere
            left = self._clock()
            if between is not None:
                between()
            elsewhere += self._clock() - left

        if most is None:
            self.active.clean_all(cut, pause)
        else:
            found = self.active.clean_some(most, cut)
        self._counters.cleanup_s += self._clock() - began - elsewhere
        return found

    def debt(self, cut: int) -> Debt | None:
        """See `Spilling.debt`; None when nothing is owed."""
        return self.active.debt(cut) if self.active else None

    def take(self) -> list[Batch]:
        """The results of cleanups since this was last asked."""
        found, self._results = self._results, []
        return found if self.active is None else found + self.active.take()

    def living(self) -> dict[str, tuple[int, Batch]]:
        """All source tuples that the plan holds, in memory and on disk: by stream the number of the first row and from
        it on every one, so that they keep their numbers. Column VOID marks those that nothing refers to, whose values
        are another's. What is on disk is read and forgotten."""
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
                in_memory = materialise(tree.sources, self.active.living(state))
                for batch in (*parts(j, side), in_memory):
                    numbers = batch.columns[f"{alias}.{ROW}"].values.astype(np.int64, copy=False)
                    columns = {name: batch.columns[f"{alias}.{name}"] for name in tree.sources.store(alias).columns}
                    name = tree.sources.query.source(alias).stream.name
                    found.setdefault(name, []).append((numbers, Batch(batch.ts, columns)))
        batches = {name: _in_order(pieces, tree.sources.stores[name]) for name, pieces in found.items()}
        return {name: one for name, one in batches.items() if len(one[1])}

    def statistics(self) -> SpillStatistics:
        """What has been spilled and is owed."""
        counters = self._counters
        return SpillStatistics(
            strategy=self._budget.strategy,
            budget_bytes=self._budget.limit_bytes,
            used_bytes=0 if self.active is None else self.active.used_bytes(),
            spills=counters.spills,
            spilled_groups=counters.spilled_groups,
            spilled_tuples=counters.spilled_tuples,
            spilled_bytes=self._writer.written_bytes,
            on_disk_tuples=0 if self.active is None else self.active.spilled_tuples(),
            owed=0 if self.active is None else self.active.owed(),
            cleanups=counters.cleanups,
            cleanup_results=counters.cleanup_results,
            cleanup_s=counters.cleanup_s,
            longest_spill_s=counters.longest_spill_s,
            longest_cleanup_s=counters.longest_cleanup_s,
        )


def _in_order(pieces: list[tuple[I64, Batch]], store: SourceStore) -> tuple[int, Batch]:
    """Tuples by their row numbers, each once: aliases of one stream may hold the same. Dead ones that the store has
    purged are left out."""
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
