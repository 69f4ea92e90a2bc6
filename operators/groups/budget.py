"""Keeps a shared operator within a memory budget: when tuples leave, and when what they owe is settled.

What leaves and what it owes then is said by `operators.groups.spill`, how debts are settled in instalments by
`operators.groups.cleanup_steps`. This drives both, between two slices of the input (`keep`), when there is nothing
else to do (`clean`), and at the end (`settle`).

Invariants: the operator is built anew when rows have left its stores, before it sees another tuple. Who has ended stays
in it while anything is owed of before its end: what it reads is kept (`operators.groups.shared`). After `keep` memory
is within the budget, unless there is nothing that could leave.

Known limits: memory is looked at between slices. What one slice brings, or what is joined to settle debts, may be
beyond the budget until then; statistics show the peak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from operators.data.statistics import SpillStatistics
from operators.data.tuples import Tuples
from operators.data.watermark import END
from operators.groups.cleanup import Queries
from operators.groups.cleanup_steps import Output, Rounds
from operators.groups.executor import GroupExecutor, MakeExecutor
from operators.groups.spill import BLOCK_SHARE, STAYS, STAYS_BESIDE, GroupSpill
from operators.juggler.state.sources import GroupSources
from operators.spill.plan_spilling import SLICE_LEAST, SLICE_SHARE, TUPLE_BYTES
from schemas.columns import Batch
from schemas.groups import QueryGroup
from schemas.messages.spills import SpillEvent

OLDEST = "oldest"
"""What statistics call the way that tuples leave a shared operator."""


class WithinBudget:
    """Drives what is on disk of a shared operator, and the settling of what that owes.

    Every `cut` is an event time before which everything has been processed, and nothing else has.

    Args:
        spill: what is on disk, with the limit in bytes.
        sources: the operator's stores.
        executor: the operator over them.
        make: makes an operator over other stores, to settle debts.
        output: a query's results of what was found late.
        used_bytes: what counts against the limit, as of now.
        clock: in seconds.

    Attributes:
        spans: by query, see `Queries`.
        comparisons: predicate evaluations of operators that settled debts.
        peak_bytes: the most that was in memory while one of them was there; 0 if none ever was.
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
        self._used_bytes = used_bytes
        self._clock = clock
        self._rounds = Rounds(spill, self._join, output)
        self.spans: dict[str, tuple[int, int]] = {}
        self.comparisons = self.peak_bytes = 0

    # --- Between slices -----------------------------------------------------------------------------------

    def least_slices(self, tuples: int) -> int:
        """How many slices an epoch of so many tuples is to be cut into at least."""
        most = min(SLICE_SHARE * self._spill.limit_bytes / TUPLE_BYTES, self._rounds.slice_tuples)
        return min(int(tuples / most), tuples // SLICE_LEAST)

    def kept_from(self, cut: int) -> int:
        """What was dead at this time may be forgotten, see `GroupSpill.kept_from`."""
        return self._spill.kept_from(cut)

    def keep(self, cut: int, tuples: int) -> None:
        """A slice of so many tuples has been processed: let leave what memory has no room for, and settle some debts.

        At END nothing is done: what is owed then is settled by `clean`.

        Raises:
            StateError: a block cannot be read or written.
        """
        spill = self._spill
        if cut == END:
            return
        playing = spill.playing(cut)
        if playing and spill.played(self._sources, cut, self._used_bytes()):
            self._executor.rebuild(cut)
        room, stays = (1.0 - BLOCK_SHARE, STAYS_BESIDE) if self._rounds.going_on else (1.0, STAYS)
        while (used := self._used_bytes()) > room * spill.limit_bytes and self._leave(cut, used, stays):
            pass
        if playing:
            return
        with self._settling(cut):
            self._rounds.go_on(self._queries, self._sources, cut, tuples)

    def _leave(self, cut: int, used_bytes: int, stays: float) -> bool:
        """Let the oldest tuples leave memory; False where there are none."""
        began, done = self._clock(), self._spill.counters
        left = self._spill.leave(self._sources, cut, used_bytes, stays)
        if left:
            self._executor.rebuild(cut)
        done.longest_spill_s = max(done.longest_spill_s, self._clock() - began)
        return left

    # --- Debts --------------------------------------------------------------------------------------------

    def settle(self, cut: int) -> None:
        """Find all that is owed of results before `cut`; `take` has it.

        Raises:
            StateError: a block cannot be read or written.
        """
        spill = self._spill
        if spill.on_disk_tuples and (used := self._used_bytes()) > STAYS_BESIDE * spill.limit_bytes:
            self._leave(cut, used, STAYS_BESIDE)
        with self._settling(cut):
            self._rounds.finish(self._queries, self._sources, cut)

    def clean(self, cut: int, most: int | None) -> bool:
        """Find results that are owed, by so many steps at most, or all; `take` has them.

        Returns:
            False when nothing was owed.

        Raises:
            StateError: a block cannot be read or written.
        """
        if self._spill.settled is None:
            return False
        if most is None:
            self.settle(cut)
            return True
        with self._settling(cut):
            return self._rounds.some(self._queries, self._sources, cut, most)

    def take(self) -> dict[str, list[Batch]]:
        """By query, what was found since this was last asked: each ascending by ts, and each result once."""
        return self._rounds.take()

    @contextmanager
    def _settling(self, cut: int) -> Iterator[None]:
        began = self._clock()
        yield
        took, done = self._clock() - began, self._spill.counters
        done.settling_s += took
        if cut != END:
            done.longest_settling_s = max(done.longest_settling_s, took)

    def _join(self, sources: GroupSources, group: QueryGroup, epoch: Mapping[str, Tuples]) -> Mapping[str, Tuples]:
        """The results of tuples by an operator of their own."""
        operator = self._make(sources, group)
        found = operator.process(epoch, min(int(tuples.ts[0]) for tuples in epoch.values()))
        self.comparisons += operator.comparisons()
        used = sum(one.size_bytes() for one in (self._sources, self._executor, sources, operator))
        self.peak_bytes = max(self.peak_bytes, used)
        return found

    def least_bytes(self, cut: int) -> int:
        """The least budget that would do at the rates at which tuples come, about; 0 where the one that there is does.

        What is looked at to settle a tuple's debts falls as the budget grows, and nothing is owed where all fits."""
        share = self._rounds.keeps_up
        if share >= 1.0:
            return 0
        whole = self._spill.whole_bytes(self._sources, cut, self._used_bytes())
        return max(min(int(self._spill.limit_bytes / share), whole), self._spill.limit_bytes + 1)

    # --- Queries that come and go -------------------------------------------------------------------------

    @property
    def _queries(self) -> Queries:
        return Queries(self._executor.group, self._executor.since, self.spans)

    def owes(self, ts: int) -> bool:
        """Whether results of before an event time may be owed."""
        return self._spill.owes(ts)

    def regrouped(self) -> None:
        """Other queries run from here on: forget what none of them needs, nor is owed."""
        self._spill.trim(self._sources)

    # --- What a successor is told -------------------------------------------------------------------------

    def horizon(self, stream: str) -> int | None:
        """The smallest ts whose tuples of a stream are still owed something; None while nothing is on disk."""
        return self._spill.horizon(self._sources, stream)

    def play(self, events: Sequence[SpillEvent], until: int) -> None:
        """Do up to an event time again what was done to spilled state in a former life, and give nothing late."""
        self._spill.play(events, until)

    def events(self) -> list[SpillEvent]:
        """What has happened to spilled state since this was last asked."""
        return self._spill.events()

    def needed_from(self, cut: int) -> int:
        """Events up to this time need not be done again: what left then is dead."""
        return self._spill.needed_from(cut)

    # --- Introspection ------------------------------------------------------------------------------------

    def statistics(self, cut: int) -> SpillStatistics:
        """Counters since the start, and what is on disk and owed as of now."""
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
            cleanups=done.settlements,
            cleanup_results=done.results,
            cleanup_s=done.settling_s,
            longest_spill_s=done.longest_spill_s,
            longest_cleanup_s=done.longest_settling_s,
        )
