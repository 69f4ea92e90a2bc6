"""Keeps one plan's states within a memory budget: spills partition groups, tracks their pending results, and cleans up.

`operators.spill.plan_spilling.PlanSpilling` calls it between slices. It acts on the states of an X-Join tree that knows
nothing of it. A partition group of a join leaves as a whole, both sides, and so is self-contained: all results among
its tuples have been found. Tuples that arrive in the group afterwards are joined only with each other, until a cleanup
joins them with the spilled parts.

With windows, a cleanup must run before the states purge entries that have pending results (`operators.spill.ledger`).
Then, and at the end, groups are cleaned up from the sources to the root: a join's pending results become one more part
of the join above, which was not joined with anything yet, and the root's are late results of the query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from operators.data.tuples import FOREVER, Tuples
from operators.data.watermark import NEVER
from operators.join.binary_join import BinaryJoin
from operators.join.tree import XJoinTree
from operators.plan.plan import Join
from operators.spill.backlog import Backlog, BacklogScope, backlog_groups
from operators.spill.block_store import BlockStore
from operators.spill.cleanup.by_join import ConsumeResults, PlanCleanup
from operators.spill.cleanup.steps import CleanupSteps
from operators.spill.counters import SpillCounters
from operators.spill.eviction import CHUNK_BYTES, TAKEN_SHARE, Eviction
from operators.spill.grouped import GroupedEntries
from operators.spill.ledger import Ledger
from operators.spill.productivity import GroupProductivity, Productivity
from operators.spill.spilled_part import PieceReader, PieceWriter, SpilledPart, SpilledPiece, materialise
from operators.spill.strategies import SpillCandidates, choose, strategy_of
from operators.spill.worker_memory import WorkerMemory
from operators.state.match import LEFT, RIGHT
from operators.state.side_state import PARTITION_GROUPS, SideState
from operators.state.sources import Sources
from schemas.columns import I64, Batch
from schemas.messages.spills import SpillEvent

HIGH_WATER = 0.92
LOW_WATER = 0.7
"""Above the first share of the budget, groups are spilled until the states take the second."""

AGAIN_SHARE = 0.04
"""A task that has chosen its part of what leaves chooses again when the memory of all tasks has grown by this share of
their budget: the others may stand still, and choosing looks at all states. At the limit it spills below the first share
without them."""

LEAVE_BYTES = 1024 * 1024
LEAVE_GROWTH = 4
"""Between two slices this many bytes are evicted, or this many times the growth during the last slice: a spill causes
no pause, and is faster than the input."""

DUE_ROWS = 1 << 14
"""Parts are cleaned up because of a ROWS window after this many tuples of its stream, however small the window. Results
are correct without such a cleanup: it releases tuples that are dead but kept for pending results."""


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The memory that a task may use, and how it stays within it.

    Attributes:
        limit_bytes: of all states and source tuples, and of what cannot be spilled.
        strategy: chooses the groups to spill: one of `operators.spill.strategies.STRATEGIES`.
        groups: partition groups per join.
        due_rows: see DUE_ROWS.
        due_ms: parts are cleaned up after this event time, because an aggregate waits for their pending results; None
            if nothing waits.
        in_time: no result may come late. State beyond the limit then stays at hand in files; nothing is spilled.
        shared: the limit is that of several tasks together; None for this task alone.
    """

    limit_bytes: int
    strategy: str
    groups: int = PARTITION_GROUPS
    due_rows: int = DUE_ROWS
    due_ms: int | None = None
    in_time: bool = False
    shared: WorkerMemory | None = None


MakeProductivity = Callable[[Sources, int], GroupProductivity]
"""Makes the counts of a task's joins, given the number of partition groups of each."""


class StateSpiller:
    """Spills and cleans up the states of one plan.

    Args:
        on_event: called with each event of spilled groups.
        delivered: results before this event time were delivered under an earlier plan.
        consume: see `PlanCleanup`.
        productivity: makes the counts; None for those of a plan whose joins are all in this task.
        fixed: returns the bytes that count against the budget and cannot be spilled.

    Attributes:
        counters: shared with the spillers of earlier and later plans.
    """

    def __init__(
        self,
        tree: XJoinTree,
        budget: MemoryBudget,
        blocks: BlockStore,
        writer: PieceWriter,
        counters: SpillCounters,
        on_event: Callable[[SpillEvent], None],
        *,
        delivered: int = NEVER,
        consume: ConsumeResults | None = None,
        productivity: MakeProductivity | None = None,
        fixed: Callable[[], int] = int,
    ) -> None:
        self._on_event = on_event
        self._fixed = fixed
        self._sources = tree.sources
        self._budget = budget
        self._blocks = blocks
        self.counters = counters
        self._nodes: list[Join] = [node for node, _ in tree.joins]
        self._joins: list[BinaryJoin] = [join for _, join in tree.joins]
        self._ledger = Ledger(self._nodes, [min(s.life for s in join.states) for join in self._joins])
        self._writer = writer
        self._strategy = strategy_of(budget.strategy)
        self._productivity: GroupProductivity = (
            Productivity.of_plan(tree.sources, self._joins, budget.groups)
            if productivity is None
            else productivity(tree.sources, budget.groups)
        )
        self._heights = self._productivity.heights
        self._share = None if budget.shared is None else budget.shared.enter()
        self._parents = [self._parent(j) for j in range(len(self._nodes))]
        self._aged_to: int | None = None
        self._eviction = Eviction(
            tree.sources,
            self._joins,
            self._ledger,
            writer,
            counters,
            budget.groups,
            max(CHUNK_BYTES, int(budget.limit_bytes * TAKEN_SHARE)),
            lambda cut, j, groups: self._report_event(cut, "leave", {j: groups}),
        )
        self._used_bytes = self.used_bytes()
        self._growth_bytes = 0
        self._choose_above = HIGH_WATER * budget.limit_bytes
        # What expired before this can match nothing, and its source tuples may be gone.
        self._kept_from = NEVER
        self._purged_to = [NEVER] * len(self._joins)
        self._cleanup = PlanCleanup(
            tree.sources, self._joins, self._parents, self._ledger, blocks, writer, counters, delivered, consume
        )
        self._steps = CleanupSteps(
            self._cleanup,
            self._ledger,
            len(self._joins),
            min(tree.sources.life.values()),
            lambda cut, groups: self._report_event(cut, "clean", groups),
        )
        tree.produced = self._produced

    def _parent(self, j: int) -> tuple[int, int] | None:
        """The join that reads this join's results, and on which side."""
        for k, node in enumerate(self._nodes):
            for side, child in enumerate((node.left, node.right)):
                if child is self._nodes[j]:
                    return k, side
        return None

    # --- Calls by the engine --------------------------------------------------------------------------

    def __bool__(self) -> bool:
        """Whether there are parts."""
        return bool(self._ledger)

    def hold(self, cut: int) -> int:
        """What expired before this has no pending results when everything before `cut` has been processed: its entries
        may be removed from the states, and its source tuples released. No pending result has a smaller ts. The value
        never falls: late results of a join are made with tuples that are newer than the part they belong to."""
        since = [self._ledger.since(j) for j in range(len(self._joins))]
        return max(self._kept_from, min([cut, self._ledger.input_complete, *since]))

    def enter_late(self, side: int, tuples: Batch) -> None:
        """Take in tuples of one side of the root, results of a cleanup in another task, in any order.

        Args:
            tuples: materialised (`operators.spill.spilled_part`).
        """
        self._cleanup.enter_late(len(self._joins) - 1, side, tuples)

    def set_input_complete(self, ts: int) -> None:
        """Set the event time before which other tasks below have no pending results."""
        self._ledger.input_complete = ts

    def used_bytes(self) -> int:
        """Memory that the states, the stores, the chunks on their way to disk, and what cannot be spilled use now."""
        states = sum(state.touched_bytes() for join in self._joins for state in join.states)
        stores = sum(store.touched_bytes() for store in self._sources.stores.values())
        return states + stores + self._eviction.waiting_bytes + self._fixed()

    def purge(self, cut: int, *, clean: bool = True) -> None:
        """Drop what no tuple with ts >= cut can match, when everything before it has been processed. Entries with
        pending results are first cleaned up, one step at a time, and stay until then.

        Args:
            clean: False to skip the cleanup and keep all entries with pending results.

        Raises:
            StateError: a block could not be written or read.
        """
        self._age(cut)
        if self._ledger and clean:
            if not self._steps:
                due = [set(self._ledger.due(j, cut, self._overdue_since(j, cut))) for j in range(len(self._joins))]
                self._steps.begin(due, cut)
            self._steps.step(cut, self._kept_from)
        self._kept_from = self.hold(cut)
        for j, join in enumerate(self._joins):
            self._purged_to[j] = max(self._purged_to[j], min(cut, self._ledger.hold(j)))
            join.purge(self._purged_to[j], self._kept_from)

    def needs_spill(self) -> bool:
        """Whether groups have to leave memory; to be called after every slice."""
        used = self.used_bytes()
        self._growth_bytes, self._used_bytes = used - self._used_bytes, used
        counted, high_water = self._counted_bytes(), HIGH_WATER * self._budget.limit_bytes
        if counted <= high_water:
            self._choose_above = high_water
        return bool(self._eviction) or counted > self._choose_above

    def _counted_bytes(self) -> int:
        """What counts against the limit: `_used_bytes`, and what other tasks use that share it."""
        if self._share is None:
            return self._used_bytes
        self._share.used_bytes = self._used_bytes
        return self._share.memory.used_bytes()

    def spill(self, cut: int) -> None:
        """When memory is short, choose groups down to the low-water mark, and evict them some at a time.

        Args:
            cut: everything before it has been processed, and purged.

        Raises:
            StateError: a block could not be written.
        """
        max_bytes = max(LEAVE_BYTES, LEAVE_GROWTH * self._growth_bytes)
        while True:
            if not self._eviction:
                self._choose()
            evicting = bool(self._eviction)
            self._eviction.step(cut, self._kept_from, max_bytes)
            self._used_bytes = self.used_bytes()
            # A pause is better than exceeding the budget.
            if not evicting or self._counted_bytes() <= self._budget.limit_bytes:
                return

    def _choose(self) -> None:
        """Choose the groups to evict."""
        for join in self._joins:
            join.sort_late()
        candidates = SpillCandidates.of(
            self._productivity, self._sizes(), self._heights, spill_number=self.counters.spills
        )
        limit, counted = self._budget.limit_bytes, self._counted_bytes()
        wanted_bytes = int(counted - LOW_WATER * limit)
        if self._share is not None:
            self._share.candidates = self._strategy.score(candidates), candidates.size_bytes
            wanted_bytes = self._share.part_of(wanted_bytes)
            if counted > limit:
                # Beyond the limit itself, this task does not wait for others to spill their part.
                wanted_bytes = max(wanted_bytes, int(counted - HIGH_WATER * limit))
        chosen = choose(self._strategy, candidates, wanted_bytes)
        freed = int(candidates.size_bytes[chosen].sum())
        if self._share is not None:
            self._choose_above = min(limit, max(HIGH_WATER * limit, counted - freed + AGAIN_SHARE * limit))
        if not freed:
            return
        # All of them leave, so the order is free. Join by join is cheapest: taking groups out scans the states of
        # their join.
        chosen = np.sort(chosen)[::-1]
        self._eviction.choose(
            list(
                zip(
                    candidates.joins[chosen].tolist(),
                    candidates.groups[chosen].tolist(),
                    candidates.size_bytes[chosen].tolist(),
                    strict=True,
                )
            )
        )
        self.counters.spills += 1
        share = freed / int(candidates.size_bytes.sum())
        self._productivity.spilled(candidates.joins[chosen], candidates.groups[chosen], share)

    def evict(self, groups_by_join: Mapping[int, Sequence[int]], cut: int) -> None:
        """Evict groups, by join, and release their source tuples.

        Raises:
            StateError: a block could not be written.
        """
        for j, groups in groups_by_join.items():
            self._eviction.evict(j, groups, cut, self._kept_from)

    def _report_event(self, cut: int, kind: Literal["leave", "clean"], groups: Mapping[int, Sequence[int]]) -> None:
        named = tuple((j, tuple(own)) for j, own in groups.items() if own)
        if named:
            self._on_event(SpillEvent(cut, kind, named))

    def clean_all(self, cut: int, between: Callable[[], None] | None = None) -> None:
        """Clean up everything that is pending.

        Args:
            between: called now and then; it may take the results found so far.

        Raises:
            StateError: a block could not be written or read.
        """
        self._steps.begin([set(self._ledger.groups(j)) for j in range(len(self._joins))], cut)
        self._steps.finish(cut, self._kept_from, between)

    def clean_groups(self, groups: Mapping[int, Sequence[int]], cut: int) -> None:
        """Clean up these groups, by join, and no others. Results for joins above stay pending.

        Raises:
            StateError: a block could not be written or read.
        """
        for j in range(len(self._joins)):
            own = sorted(set(groups.get(j, ())) & set(self._ledger.groups(j)))
            if own:
                self._cleanup.clean(j, own, cut, self._kept_from)

    def clean_some(self, max_groups: int, cut: int) -> bool:
        """Run one step of a cleanup of at most `max_groups` groups, those that have waited longest, and of all results
        that they cause above.

        Returns:
            False when no group has waited.

        Raises:
            StateError: a block could not be written or read.
        """
        if not self._steps:
            chosen: list[set[int]] = [set() for _ in self._joins]
            for _, (j, g) in [oldest for oldest in self._ledger.oldest() if oldest[0] < cut][:max_groups]:
                chosen[j].add(g)
            if not any(chosen):
                return False
            self._steps.begin(chosen, cut)
        self._steps.step(cut, self._kept_from)
        return True

    def delivered_before(self, ts: int) -> None:
        """Set the event time before which results are already delivered."""
        self._cleanup.delivered = ts

    def close(self) -> None:
        """The plan, or its task, has ended: its memory no longer counts."""
        if self._share is not None:
            self._share.leave()

    def take(self) -> list[Batch]:
        """Return the results of cleanups since the last call."""
        return self._cleanup.take()

    def withdraw(self) -> Callable[[int, int], list[Batch]]:
        """Remove all parts from the ledger.

        Returns:
            A function that reads the spilled tuples of one side of a join, if the side is a source, and deletes their
                blocks.
        """
        reader = PieceReader(self._blocks)
        pieces: dict[tuple[int, int], list[SpilledPiece]] = {}
        for (j, _), parts in list(self._ledger.items()):
            for part in parts:
                for side in (LEFT, RIGHT):
                    if len(self._joins[j].match.sides[side]) > 1:
                        self._writer.forget(part.pieces[side])
                    else:
                        pieces.setdefault((j, side), []).extend(part.pieces[side])
        self._ledger.clear()
        self._eviction.discard()

        def read(j: int, side: int) -> list[Batch]:
            own = pieces.get((j, side), [])
            batches = reader.read(own)
            self._writer.forget(tuple(own))
            return batches

        return read

    def stored_tuples(self, state: SideState) -> Tuples:
        """The tuples in a state's memory that can still be matched, by later tuples or by pending results."""
        return state.living(self._kept_from)[1]

    def pending_pairs(self) -> int:
        """Upper bound of the pairs of tuples that were not compared yet; 0 when nothing is pending."""
        if not self._ledger:
            return 0
        memory: dict[int, tuple[I64, I64]] = {}
        for j, since in self._ledger.unjoined_since(self._budget.groups).items():
            left, right = (state.newer_in_groups(since) for state in self._joins[j].states)
            memory[j] = left, right
        return self._ledger.pending_pairs(memory)

    def spilled_tuples(self) -> int:
        """Tuples that are on disk now."""
        return self._ledger.tuples()

    # --- Measurements ---------------------------------------------------------------------------------

    def _produced(self, j: int, found: Tuples) -> None:
        self._productivity.note(j, found, final=self._parents[j] is None)

    def _overdue_since(self, j: int, cut: int) -> int:
        """The age from which a join's parts are due because of `due_ms` or of ROWS windows. In the latter case one of
        its streams has since received as many tuples as its window counts, and at least `due_rows`."""
        overdue_since = NEVER if self._budget.due_ms is None else cut - self._budget.due_ms
        for alias in self._joins[j].aliases:
            if alias in self._sources.rows_windows:
                store = self._sources.store(alias)
                row = store.hi - 1 - max(self._sources.rows_windows[alias], self._budget.due_rows)
                if row >= store.lo:
                    overdue_since = max(overdue_since, int(store.gather("_ts", np.array([row])).values[0]))
        numbered = self._sources.numbered
        if numbered is not None and (since := numbered.overdue_since(self._budget.due_rows)) is not None:
            overdue_since = max(overdue_since, since)
        return overdue_since

    def _age(self, cut: int) -> None:
        """Report to `Productivity` how much of the windows is new."""
        longest = max(life for alias, life in self._sources.life.items() if alias not in self._sources.tables)
        if self._aged_to is not None and longest < FOREVER:
            self._productivity.age((cut - self._aged_to) / max(longest, 1))
        self._aged_to = cut

    def _sizes(self) -> I64:
        """(joins, groups) bytes, source tuples included."""
        sizes = np.zeros((len(self._joins), self._budget.groups), np.int64)
        for own, join in zip(sizes, self._joins, strict=True):
            own += sum(state.group_bytes(self._source_tuple_bytes(state)) for state in join.states)
        return sizes

    def _source_tuple_bytes(self, state: SideState) -> int:
        """Bytes of a source tuple, if the state's entries are source tuples; else 0."""
        if len(state.aliases) > 1:
            return 0
        store = self._sources.store(state.aliases[0])
        return store.touched_bytes() // max(len(store), 1)

    # --- Backlog --------------------------------------------------------------------------------------

    def write_backlog(self, cut: int) -> Backlog:
        """Write all parts to disk, and the entries in memory that have pending results with them. Afterwards this
        object finds none of those results.

        Args:
            cut: everything before it has been processed, and no input follows.

        Raises:
            StateError: a block could not be written.
        """
        self._eviction.write_all()
        self._cleanup.write_late()
        covers = [frozenset(node.aliases) for node in self._nodes]
        scope = BacklogScope(covers, frozenset(group for group, _ in self._ledger.items()))
        for j, join in enumerate(self._joins):
            groups = scope.groups(j, self._budget.groups)
            memory = [GroupedEntries(state, self._kept_from) for state in join.states] if groups else []
            for g in groups:
                left, right = (self._on_disk(f"{j}/{g}/{side}", memory[side].tuples([g])) for side in (LEFT, RIGHT))
                if left or right:
                    self._ledger.add((j, g), SpilledPart((left, right), cut))
        backlog = Backlog(
            plan=str(self._nodes[-1]),
            partitions=self._budget.groups,
            hashed=self._sources.hashed,
            delivered=self._cleanup.delivered,
            cut=cut,
            groups=backlog_groups(self._ledger.items()),
        )
        self._ledger.clear()
        return backlog

    def _on_disk(self, name: str, tuples: Tuples) -> tuple[SpilledPiece, ...]:
        return self._writer.write(name, materialise(self._sources, tuples), tuples.expiry)
