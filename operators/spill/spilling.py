"""Keeps a plan's states within a memory budget: spills, remembers what is owed, and cleans up.

It acts between slices, on the states of an X-Join tree that knows nothing of it. A partition group of a join leaves as
a whole, both sides, and so is self-contained: everything that its tuples make with each other has been found. What
gathers in the group afterwards makes results with itself only, until a cleanup joins it with what has left.

With windows a cleanup must come before the states forget what is still owed something (`operators.spill.ledger`).
Then, and at the end, groups are cleaned up from the sources to the root: what a join owed comes to the join above as
one more part of it, one that was joined with nothing yet, and what the root owed is a late result of the query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from operators.data.tuples import FOREVER, Tuples
from operators.join.binary_join import BinaryJoin
from operators.join.tree import XJoinTree
from operators.plan.plan import Join
from operators.spill.backlog import Debt, Owing, described
from operators.spill.block_store import BlockStore
from operators.spill.cleanup.by_join import Cleaning
from operators.spill.cleanup.steps import Instalments
from operators.spill.counters import SpillCounters
from operators.spill.eviction import CHUNK_BYTES, TAKEN_SHARE, Leaving
from operators.spill.grouped import Grouped
from operators.spill.ledger import Ledger
from operators.spill.productivity import Productivity
from operators.spill.spilled_part import FAR_PAST, Part, Piece, Reader, Writer, materialise
from operators.spill.strategies import Candidates, choose, heights_of, strategy_of
from operators.state.match import LEFT, RIGHT
from operators.state.side_state import PARTITION_GROUPS, SideState
from schemas.columns import I64, Batch
from schemas.messages.spills import SpillEvent

HIGH_WATER = 0.92
LOW_WATER = 0.7
"""Above the first share of the budget states are spilled until they take the second."""

LEAVE_BYTES = 1024 * 1024
LEAVE_GROWTH = 4
"""Between two slices so many bytes leave at once, or so many times what the last slice has added: a spill is no pause,
and is faster than the input."""

DUE_ROWS = 1 << 14
"""Parts are cleaned up for the sake of a ROWS window when so many tuples of its stream have come since, however few it
counts. It needs no cleanup to be right: one lets tuples go that are dead, but are held for what is owed."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a task may use, and how it keeps to it.

    Attributes:
        limit_bytes: of all states and source tuples.
        strategy: which groups leave: one of `operators.spill.strategies.STRATEGIES`.
        groups: partition groups per join.
        due_rows: see DUE_ROWS.
    """

    limit_bytes: int
    strategy: str
    groups: int = PARTITION_GROUPS
    due_rows: int = DUE_ROWS


class Spilling:
    """The spilled parts of one plan, and what becomes of them.

    Args:
        note: told what happens to groups.
        delivered: results of before this have been delivered already, by a plan before this one.

    Attributes:
        counters: shared with who came before and comes after, on other plans.
    """

    def __init__(
        self,
        tree: XJoinTree,
        budget: Budget,
        blocks: BlockStore,
        writer: Writer,
        counters: SpillCounters,
        note: Callable[[SpillEvent], None],
        *,
        delivered: int = FAR_PAST,
    ) -> None:
        self._note = note
        self._sources = tree.sources
        self._budget = budget
        self._blocks = blocks
        self.counters = counters
        self._nodes: list[Join] = [node for node, _ in tree.joins]
        self._joins: list[BinaryJoin] = [join for _, join in tree.joins]
        self._ledger = Ledger(self._nodes, [min(s.life for s in join.states) for join in self._joins])
        self._writer = writer
        self._strategy = strategy_of(budget.strategy)
        self._productivity = Productivity(tree.sources, self._joins, budget.groups)
        self._heights = heights_of([node.aliases for node in self._nodes])
        self._parents = [self._parent(j) for j in range(len(self._nodes))]
        self._aged_to: int | None = None
        self._leaving = Leaving(
            tree.sources,
            self._joins,
            self._ledger,
            writer,
            counters,
            budget.groups,
            max(CHUNK_BYTES, int(budget.limit_bytes * TAKEN_SHARE)),
            lambda cut, j, groups: self._tell(cut, "leave", {j: groups}),
        )
        self._used_bytes = self.used_bytes()
        self._grown = 0
        # What expired before this nothing can meet, and its source tuples may be gone.
        self._kept_from = FAR_PAST
        self._purged_to = [FAR_PAST] * len(self._joins)
        self._cleaning = Cleaning(
            tree.sources, self._joins, self._parents, self._ledger, blocks, writer, counters, delivered
        )
        self._cleanup = Instalments(
            self._cleaning,
            self._ledger,
            len(self._joins),
            min(tree.sources.life.values()),
            lambda cut, groups: self._tell(cut, "clean", groups),
        )
        tree.produced = self._produced

    def _parent(self, j: int) -> tuple[int, int] | None:
        """The join that reads this one's results, and on which side."""
        for k, node in enumerate(self._nodes):
            for side, child in enumerate((node.left, node.right)):
                if child is self._nodes[j]:
                    return k, side
        return None

    # --- What the engine asks -------------------------------------------------------------------------

    def __bool__(self) -> bool:
        """Whether anything is owed."""
        return bool(self._ledger)

    def hold(self, cut: int) -> int:
        """What expired before this is owed nothing when everything before `cut` has been processed: it may make room in
        the states, and its source tuples may go. Never less than before: what a join owes late is made with tuples of
        after the part that owed it."""
        return max(self._kept_from, min([cut, *(self._ledger.since(j) for j in range(len(self._joins)))]))

    def used_bytes(self) -> int:
        """What the states, the stores and what is on its way to disk take of the machine's memory now."""
        states = sum(state.touched_bytes() for join in self._joins for state in join.states)
        stores = sum(store.touched_bytes() for store in self._sources.stores.values())
        return states + stores + self._leaving.waiting_bytes

    def purge(self, cut: int, *, clean: bool = True) -> None:
        """Drop what no tuple with ts >= cut can meet, when everything before it has been processed; where that is owed
        something clean up first, an instalment of it, and keep what still is.

        Args:
            clean: False to keep what is owed something.

        Raises:
            StateError: a block could not be written or read.
        """
        self._age(cut)
        if self._ledger and clean:
            if not self._cleanup:
                due = [set(self._ledger.due(j, cut, self._overtaken(j))) for j in range(len(self._joins))]
                self._cleanup.begin(due, cut)
            self._cleanup.go_on(cut, self._kept_from)
        self._kept_from = self.hold(cut)
        for j, join in enumerate(self._joins):
            self._purged_to[j] = max(self._purged_to[j], min(cut, self._ledger.hold(j)))
            join.purge(self._purged_to[j], self._kept_from)

    def short(self) -> bool:
        """Whether something has to leave; to be asked after every slice."""
        used = self.used_bytes()
        self._grown, self._used_bytes = used - self._used_bytes, used
        return bool(self._leaving) or used > HIGH_WATER * self._budget.limit_bytes

    def spill(self, cut: int) -> None:
        """When memory is short choose what leaves, down to the low water mark, and let it leave a part at a time.

        Args:
            cut: everything before it has been processed, and purged.

        Raises:
            StateError: a block could not be written.
        """
        most = max(LEAVE_BYTES, LEAVE_GROWTH * self._grown)
        while True:
            if not self._leaving:
                self._choose(int(self._used_bytes - LOW_WATER * self._budget.limit_bytes))
            anything = bool(self._leaving)
            self._leaving.go_on(cut, self._kept_from, most)
            self._used_bytes = self.used_bytes()
            # A pause is better than more memory than there is.
            if not anything or self._used_bytes <= self._budget.limit_bytes:
                return

    def _choose(self, wanted_bytes: int) -> None:
        """Decide which groups leave."""
        for join in self._joins:
            join.sort_late()
        candidates = Candidates.of(self._productivity, self._sizes(), self._heights, turn=self.counters.spills)
        if len(candidates) == 0:
            return
        chosen = choose(self._strategy, candidates, wanted_bytes)
        # All of them leave: join by join, since to take groups out looks through the states of their join.
        chosen = np.sort(chosen)[::-1]
        self._leaving.choose(
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
        share = candidates.size_bytes[chosen].sum() / candidates.size_bytes.sum()
        self._productivity.spilled(candidates.joins[chosen], candidates.groups[chosen], float(share))

    def leave(self, leaving: Mapping[int, Sequence[int]], cut: int) -> None:
        """Groups, by join, leave memory, and their source tuples too.

        Raises:
            StateError: a block could not be written.
        """
        for j, groups in leaving.items():
            self._leaving.leave(j, groups, cut, self._kept_from)

    def _tell(self, cut: int, kind: Literal["leave", "clean"], groups: Mapping[int, Sequence[int]]) -> None:
        named = tuple((j, tuple(own)) for j, own in groups.items() if own)
        if named:
            self._note(SpillEvent(cut, kind, named))

    def clean_all(self, cut: int, between: Callable[[], None] | None = None) -> None:
        """Clean up all that is owed.

        Args:
            between: called now and then; may take what was found.

        Raises:
            StateError: a block could not be written or read.
        """
        self._cleanup.begin([set(self._ledger.groups(j)) for j in range(len(self._joins))], cut)
        self._cleanup.finish(cut, self._kept_from, between)

    def clean_groups(self, groups: Mapping[int, Sequence[int]], cut: int) -> None:
        """Clean up these groups, by join, and no others; what that makes owed above goes on to be.

        Raises:
            StateError: a block could not be written or read.
        """
        for j in range(len(self._joins)):
            own = sorted(set(groups.get(j, ())) & set(self._ledger.groups(j)))
            if own:
                self._cleaning.clean(j, own, cut, self._kept_from)

    def clean_some(self, most: int, cut: int) -> bool:
        """An instalment of a cleanup of so many groups at most, those that have waited longest, and of all that this
        makes owed above; False when none has waited.

        Raises:
            StateError: a block could not be written or read.
        """
        if not self._cleanup:
            chosen: list[set[int]] = [set() for _ in self._joins]
            for _, (j, g) in [one for one in self._ledger.oldest() if one[0] < cut][:most]:
                chosen[j].add(g)
            if not any(chosen):
                return False
            self._cleanup.begin(chosen, cut)
        self._cleanup.go_on(cut, self._kept_from)
        return True

    def delivered_before(self, ts: int) -> None:
        """Results of before this have been delivered already."""
        self._cleaning.delivered = ts

    def take(self) -> list[Batch]:
        """The results of cleanups since this was last asked."""
        return self._cleaning.take()

    def withdraw(self) -> Callable[[int, int], list[Batch]]:
        """Forget all parts; reads what was in them of a join's side that is a source, and forgets that too."""
        reader = Reader(self._blocks)
        pieces: dict[tuple[int, int], list[Piece]] = {}
        for (j, _), parts in list(self._ledger.items()):
            for part in parts:
                for side in (LEFT, RIGHT):
                    if len(self._joins[j].match.sides[side]) > 1:
                        self._writer.forget(part.pieces[side])
                    else:
                        pieces.setdefault((j, side), []).extend(part.pieces[side])
        self._ledger.clear()
        self._leaving.forget()

        def read(j: int, side: int) -> list[Batch]:
            own = pieces.get((j, side), [])
            batches = reader.read(own)
            self._writer.forget(tuple(own))
            return batches

        return read

    def living(self, state: SideState) -> Tuples:
        """What a state has in memory that can be met, now or by what is owed."""
        return state.living(self._kept_from)[1]

    def owed(self) -> int:
        """Pairs of tuples that were not compared yet, at most; 0 when nothing is owed."""
        if not self._ledger:
            return 0
        memory: dict[int, tuple[I64, I64]] = {}
        for j, since in self._ledger.unmet_since(self._budget.groups).items():
            left, right = (state.newer_in_groups(since) for state in self._joins[j].states)
            memory[j] = left, right
        return self._ledger.owed_pairs(memory)

    def spilled_tuples(self) -> int:
        """Tuples that are on disk now."""
        return self._ledger.tuples()

    # --- What is told ---------------------------------------------------------------------------------

    def _produced(self, j: int, found: Tuples) -> None:
        self._productivity.note(j, found, final=self._parents[j] is None)

    def _overtaken(self, j: int) -> int:
        """Of a join's parts those are due for the sake of ROWS windows that have been owed since this or longer: of a
        stream of theirs as many tuples have come since as its window counts, and `due_rows` at least."""
        overtaken = FAR_PAST
        for alias in self._joins[j].aliases:
            if alias in self._sources.rows_windows:
                store = self._sources.store(alias)
                row = store.hi - 1 - max(self._sources.rows_windows[alias], self._budget.due_rows)
                if row >= store.lo:
                    overtaken = max(overtaken, int(store.gather("_ts", np.array([row])).values[0]))
        return overtaken

    def _age(self, cut: int) -> None:
        """Tell how much of the windows is new."""
        longest = max(life for alias, life in self._sources.life.items() if alias not in self._sources.tables)
        if self._aged_to is not None and longest < FOREVER:
            self._productivity.age((cut - self._aged_to) / max(longest, 1))
        self._aged_to = cut

    def _sizes(self) -> I64:
        """(joins, groups) bytes, source tuples included."""
        sizes = np.zeros((len(self._joins), self._budget.groups), np.int64)
        for own, join in zip(sizes, self._joins, strict=True):
            own += sum(state.group_bytes(self._beside(state)) for state in join.states)
        return sizes

    def _beside(self, state: SideState) -> int:
        """Bytes of a source tuple, where the state's entries are such."""
        if len(state.aliases) > 1:
            return 0
        store = self._sources.store(state.aliases[0])
        return store.touched_bytes() // max(len(store), 1)

    # --- Debts ----------------------------------------------------------------------------------------

    def debt(self, cut: int) -> Debt:
        """Put all that is owed on disk, what it is owed with in memory too; nothing of it is found here any more.

        Args:
            cut: everything before it has been processed, and nothing comes any more.

        Raises:
            StateError: a block could not be written.
        """
        self._leaving.write_all()
        self._cleaning.write_late()
        covers = [frozenset(node.aliases) for node in self._nodes]
        owing = Owing(covers, frozenset(group for group, _ in self._ledger.items()))
        for j, join in enumerate(self._joins):
            groups = owing.groups(j, self._budget.groups)
            memory = [Grouped(state, self._kept_from) for state in join.states] if groups else []
            for g in groups:
                left, right = (self._on_disk(f"{j}/{g}/{side}", memory[side].tuples([g])) for side in (LEFT, RIGHT))
                if left or right:
                    self._ledger.add((j, g), Part((left, right), cut))
        debt = Debt(
            plan=str(self._nodes[-1]),
            partitions=self._budget.groups,
            hashed=self._sources.hashed,
            delivered=self._cleaning.delivered,
            cut=cut,
            owed=described(self._ledger.items()),
        )
        self._ledger.clear()
        return debt

    def _on_disk(self, name: str, tuples: Tuples) -> tuple[Piece, ...]:
        return self._writer.write(name, materialise(self._sources, tuples), tuples.expiry)
