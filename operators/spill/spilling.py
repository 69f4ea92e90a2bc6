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

from operators.evaluate import Resolve
from operators.join import BinaryJoin
from operators.kernels.hashing import U64
from operators.kernels.index import I32
from operators.kernels.partition import groups_of
from operators.keys import key_hashes
from operators.match import LEFT, RIGHT, Match
from operators.plan import Join
from operators.predicates import Operand
from operators.sources import Sources
from operators.spill.block_store import BlockStore
from operators.spill.cleanup import CleanupSources, Merge
from operators.spill.debt import Debt, Owing, described
from operators.spill.ledger import Ledger
from operators.spill.part import FAR_PAST, Part, Piece, Writer, alive, batch_bytes, in_memory, materialise
from operators.spill.productivity import Productivity
from operators.spill.strategies import Candidates, choose, heights_of, strategy_of
from operators.state import SideState
from operators.tree import XJoinTree
from operators.tuples import FOREVER, Tuples
from schemas.columns import I64, Batch, Mask
from schemas.spills import SpillEvent

HIGH_WATER = 0.95
LOW_WATER = 0.7
"""Above the first share of the budget states are spilled until they take the second."""

LEAVE_BYTES = 2 * 1024 * 1024
LEAVE_GROWTH = 2
"""Between two slices so many bytes leave at once, or so many times what the last slice has added: a spill is no pause,
and is faster than the input."""

LATE_BYTES = 4 * 1024 * 1024
"""Results of a cleanup that wait in memory for the join above, at most."""

Leaving = tuple[int, int, int]
"""A join's number, its group, and how many bytes that has."""

GROUPS = 64
"""Partition groups per join."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a task may use, and how it keeps to it.

    Attributes:
        limit_bytes: of all states and source tuples.
        strategy: which groups leave: one of `operators.spill.strategies.STRATEGIES`.
        groups: partition groups per join.
    """

    limit_bytes: int
    strategy: str
    groups: int = GROUPS


@dataclass(slots=True)
class SpillCounters:
    """What has been done so far."""

    spills: int = 0
    spilled_groups: int = 0
    spilled_tuples: int = 0
    spilled_bytes: int = 0
    cleanups: int = 0
    cleanup_results: int = 0
    cleanup_s: float = 0.0
    longest_spill_s: float = 0.0


class Spilling:
    """The spilled parts of one plan, and what becomes of them.

    Args:
        finish: makes results of the query's root into the query's results.
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
        finish: Callable[[Sources, Tuples], Batch],
        counters: SpillCounters,
        note: Callable[[SpillEvent], None],
        *,
        delivered: int = FAR_PAST,
    ) -> None:
        self.delivered = delivered
        self._note = note
        self._sources = tree.sources
        self._budget = budget
        self._blocks = blocks
        self._finish = finish
        self.counters = counters
        self._results: list[Batch] = []
        self._nodes: list[Join] = [node for node, _ in tree.joins]
        self._joins: list[BinaryJoin] = [join for _, join in tree.joins]
        self._ledger = Ledger(self._nodes, [min(s.life for s in join.states) for join in self._joins])
        self._writer = writer
        self._strategy = strategy_of(budget.strategy)
        self._productivity = Productivity(tree.sources, self._joins, budget.groups)
        self._heights = heights_of([node.aliases for node in self._nodes])
        self._parents = [self._parent(j) for j in range(len(self._nodes))]
        self._late: list[list[tuple[int, Batch]]] = [[] for _ in self._nodes]
        self._late_bytes = 0
        self._aged_to: int | None = None
        self._leaving: list[Leaving] = []
        self._used_bytes = self.used_bytes()
        self._grown = 0
        # What expired before this nothing can meet, and its source tuples may be gone.
        self._kept_from = FAR_PAST
        self._cleaning: CleanupSources | None = None
        self._matches: dict[int, Match] = {}
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
        the states, and its source tuples may go."""
        return min([cut, *(self._ledger.since(j) for j in range(len(self._joins)))])

    def used_bytes(self) -> int:
        """What the states and the stores take of the machine's memory now."""
        states = sum(state.touched_bytes() for join in self._joins for state in join.states)
        return states + sum(store.touched_bytes() for store in self._sources.stores.values())

    def purge(self, cut: int, *, clean: bool = True) -> None:
        """Drop what no tuple with ts >= cut can meet, when everything before it has been processed; clean up first
        where that is owed something.

        Args:
            clean: False to keep what is owed something.

        Raises:
            StateError: a block could not be written or read.
        """
        self._age(cut)
        if self._ledger and clean:
            self._clean(cut, [set(self._ledger.due(j, cut)) for j in range(len(self._joins))])
        for j, join in enumerate(self._joins):
            join.purge(min(cut, self._ledger.hold(j)))
        self._kept_from = self.hold(cut)

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
        if not self._leaving:
            self._choose(int(self._used_bytes - LOW_WATER * self._budget.limit_bytes))
        if self._leaving:
            self._let_leave(cut, max(LEAVE_BYTES, LEAVE_GROWTH * self._grown))
            self._used_bytes = self.used_bytes()

    def _choose(self, wanted_bytes: int) -> None:
        """Decide which groups leave, the first of them last."""
        for join in self._joins:
            join.sort_late()
        candidates = Candidates.of(self._productivity, self._sizes(), self._heights, turn=self.counters.spills)
        if len(candidates) == 0:
            return
        chosen = choose(self._strategy, candidates, wanted_bytes)[::-1]
        self._leaving = list(
            zip(
                candidates.joins[chosen].tolist(),
                candidates.groups[chosen].tolist(),
                candidates.size_bytes[chosen].tolist(),
                strict=True,
            )
        )
        self.counters.spills += 1
        share = candidates.size_bytes[chosen].sum() / candidates.size_bytes.sum()
        self._productivity.spilled(candidates.joins[chosen], candidates.groups[chosen], float(share))

    def _let_leave(self, cut: int, most_bytes: int) -> None:
        """As many of the groups that were chosen leave as free so many bytes."""
        leaving: dict[int, list[int]] = {}
        freed = 0
        while self._leaving and freed < most_bytes:
            j, g, size = self._leaving.pop()
            leaving.setdefault(j, []).append(g)
            freed += size
        self.leave({j: sorted(groups) for j, groups in sorted(leaving.items())}, cut)

    def leave(self, leaving: Mapping[int, Sequence[int]], cut: int) -> None:
        """Groups, by join, leave memory.

        Raises:
            StateError: a block could not be written.
        """
        self._tell(cut, "leave", leaving)
        for j, groups in leaving.items():
            self._spill_groups(j, np.array(groups, np.int64), cut)
        self._release()

    def _tell(self, cut: int, kind: Literal["leave", "clean"], groups: Mapping[int, Sequence[int]]) -> None:
        named = tuple((j, tuple(own)) for j, own in groups.items() if own)
        if named:
            self._note(SpillEvent(cut, kind, named))

    def clean_all(self, cut: int) -> None:
        """Clean up all that is owed.

        Raises:
            StateError: a block could not be written or read.
        """
        self._clean(cut, [set(self._ledger.groups(j)) for j in range(len(self._joins))], everything=True)

    def clean_groups(self, groups: Mapping[int, Sequence[int]], cut: int) -> None:
        """Clean up these groups, by join, and whatever that makes owed above.

        Raises:
            StateError: a block could not be written or read.
        """
        self._clean(cut, [set(groups.get(j, ())) & set(self._ledger.groups(j)) for j in range(len(self._joins))])

    def take(self) -> list[Batch]:
        """The results of cleanups since this was last asked."""
        found, self._results = self._results, []
        return found

    def withdraw(self) -> Callable[[int, int], list[Batch]]:
        """Forget all parts; reads what was in them of a join's side that is a source, and forgets that too."""
        pieces: dict[tuple[int, int], list[Piece]] = {}
        for (j, _), parts in list(self._ledger.items()):
            for part in parts:
                for side in (LEFT, RIGHT):
                    if len(self._joins[j].match.sides[side]) > 1:
                        self._writer.forget(part.pieces[side])
                    else:
                        pieces.setdefault((j, side), []).extend(part.pieces[side])
        self._ledger.clear()

        def read(j: int, side: int) -> list[Batch]:
            own = pieces.get((j, side), [])
            batches = [piece.read(self._blocks) for piece in own]
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
        sizes = {j: [_sizes(state, self._budget.groups) for state in self._joins[j].states] for j in self._indebted()}
        memory = (((j, g), (int(sizes[j][LEFT][g]), int(sizes[j][RIGHT][g]))) for (j, g), _ in self._ledger.items())
        return self._ledger.owed_pairs(memory)

    def spilled_tuples(self) -> int:
        """Tuples that are on disk now."""
        return self._ledger.tuples()

    # --- Spilling -------------------------------------------------------------------------------------

    def _produced(self, j: int, found: Tuples) -> None:
        self._productivity.note(j, found, final=self._parents[j] is None)

    def _indebted(self) -> list[int]:
        return sorted({j for (j, _), _ in self._ledger.items()})

    def _age(self, cut: int) -> None:
        """Tell how much of the windows is new."""
        longest = max(life for alias, life in self._sources.life.items() if alias not in self._sources.tables)
        if self._aged_to is not None and longest < FOREVER:
            self._productivity.age((cut - self._aged_to) / max(longest, 1))
        self._aged_to = cut

    def _sizes(self) -> I64:
        """(joins, groups) bytes, source tuples included."""
        sizes = np.zeros((len(self._joins), self._budget.groups), np.int64)
        for j, join in enumerate(self._joins):
            for state in join.states:
                sizes[j] += _sizes(state, self._budget.groups) * self._entry_bytes(state)
        return sizes

    def _entry_bytes(self, state: SideState) -> int:
        if len(state.aliases) > 1:
            return state.entry_bytes()
        store = self._sources.store(state.aliases[0])
        return state.entry_bytes() + store.touched_bytes() // max(len(store), 1)

    def _spill_groups(self, j: int, groups: I64, cut: int) -> None:
        """The groups' entries leave memory, each group as one part."""
        join = self._joins[j]
        pieces: list[dict[int, tuple[Piece, ...]]] = [{}, {}]
        for side in (LEFT, RIGHT):
            state = join.states[side]
            memory = _Sorted(state, self._budget.groups, self._kept_from)
            entries = [memory.entries(g) for g in groups.tolist()]
            tuples = state.tuples_of(np.concatenate(entries))
            batch, ends = materialise(self._sources, tuples), np.cumsum([len(own) for own in entries])
            for g, begin, end in zip(groups.tolist(), [0, *ends.tolist()], ends.tolist(), strict=False):
                bound = self._ledger.kept_from((j, g), cut)
                own, expiry = alive(batch.slice(begin, end), tuples.expiry[begin:end], bound)
                if len(own):
                    pieces[side][g] = self._write(j, g, side, own, expiry)
                    self.counters.spilled_tuples += len(own)
            state.take_out(memory.within(groups))
        for g in groups.tolist():
            part = Part((pieces[LEFT].get(g, ()), pieces[RIGHT].get(g, ())), cut)
            if any(part.pieces):
                self._ledger.add((j, g), part)
                self.counters.spilled_groups += 1

    def _write(self, j: int, g: int, side: int, batch: Batch, expiry: I64) -> tuple[Piece, ...]:
        before = self._writer.written_bytes
        pieces = self._writer.write(f"{j}/{g}/{side}", batch, expiry)
        self.counters.spilled_bytes += self._writer.written_bytes - before
        return pieces

    def _release(self) -> None:
        """Give back the source tuples that no state refers to any more: mark and sweep."""
        held: dict[str, Mask] = {name: np.zeros(s.hi - s.lo, np.bool_) for name, s in self._sources.stores.items()}
        for join in self._joins:
            for state in join.states:
                for alias, own in zip(state.aliases, self.living(state).rows, strict=True):
                    name = self._sources.query.source(alias).stream.name
                    held[name][own - self._sources.stores[name].lo] = True
        for name, mask in held.items():
            self._sources.stores[name].release(~mask)

    # --- Cleanup --------------------------------------------------------------------------------------

    def _clean(self, cut: int, due: Sequence[set[int]], *, everything: bool = False) -> None:
        """Clean up groups per join, and whatever that makes owed above, from the sources to the root."""
        cleaned: dict[int, list[int]] = {}
        for j in range(len(self._joins)):
            self._enter_late(j)
            owing = set(self._ledger.groups(j)) if everything else due[j]
            owing |= {g for (k, g), parts in self._ledger.items() if k == j and any(part.late for part in parts)}
            if not owing:
                continue
            memory = [_Sorted(state, self._budget.groups, self._kept_from) for state in self._joins[j].states]
            cleaned[j] = sorted(owing)
            for g in cleaned[j]:
                self._clean_group(j, g, cut, memory)
        self._tell(cut, "clean", cleaned)

    def _clean_group(self, j: int, g: int, cut: int, memory: Sequence[_Sorted]) -> None:
        if self._cleaning is None:
            self._cleaning = CleanupSources(self._sources.query, hashed=self._sources.hashed)
        match = self._match(j)
        merge = Merge(self._cleaning, match, self._blocks)
        parts = self._ledger.pop((j, g))
        for part in parts:
            merge.add(part)
            self._deliver(j, merge)
        merge.add(Part(self._in_memory(j, g, memory), cut), last=True)
        self._deliver(j, merge)
        self.counters.cleanups += 1
        bound = self._ledger.bound(j, cut)
        left, right = (self._living(j, g, side, parts, bound) for side in (LEFT, RIGHT))
        if left or right:
            self._ledger.add((j, g), Part((left, right), cut))

    def _match(self, j: int) -> Match:
        if j not in self._matches:
            assert self._cleaning is not None
            left, right = self._joins[j].match.sides
            self._matches[j] = Match(self._cleaning, left, right, implied=True)
        return self._matches[j]

    def _in_memory(self, j: int, g: int, memory: Sequence[_Sorted]) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
        """The group's part that is in memory."""
        sides: list[tuple[Piece, ...]] = []
        for side in (LEFT, RIGHT):
            state = self._joins[j].states[side]
            tuples = state.tuples_of(memory[side].entries(g))
            sides.append(in_memory(materialise(self._sources, tuples), tuples.expiry))
        return sides[0], sides[1]

    def _living(self, j: int, g: int, side: int, parts: Sequence[Part], bound: int) -> tuple[Piece, ...]:
        """The pieces of merged parts that can still be met, all on disk; the others are deleted."""
        living: list[Piece] = []
        for part in parts:
            dead = []
            for piece in part.pieces[side]:
                if piece.last < bound:
                    dead.append(piece)
                elif piece.batch is None:
                    living.append(piece)
                else:
                    expiry = self._expiry(self._joins[j].match.sides[side], piece.batch)
                    living += self._write(j, g, side, *alive(piece.batch, expiry, bound))
            self._writer.forget(tuple(dead))
        return tuple(living)

    def _expiry(self, aliases: tuple[str, ...], batch: Batch) -> I64:
        """(n,) when materialised tuples expire."""
        ends = []
        for alias in aliases:
            ts = batch.columns[f"{alias}._ts"].values.astype(np.int64, copy=False)
            ends.append(np.minimum(ts + self._sources.life[alias], FOREVER))
        return np.asarray(np.minimum.reduce(ends), np.int64)

    def _deliver(self, j: int, merge: Merge) -> None:
        """Hand what a cleanup has found to the join above, or out."""
        found = Tuples.concat(merge.found, self._match(j).aliases) if merge.found else None
        merge.found = []
        if found is None or len(found) == 0:
            return
        assert self._cleaning is not None
        parent = self._parents[j]
        if parent is None:
            found = found.take(found.ts >= self.delivered)
            self._results.append(self._finish(self._cleaning, found))
            self.counters.cleanup_results += len(found)
            return
        batch = materialise(self._cleaning, found)
        self._late[parent[0]].append((parent[1], batch))
        self._late_bytes += batch_bytes(batch)
        if self._late_bytes > LATE_BYTES:
            self._enter_late(parent[0], on_disk=True)

    def _enter_late(self, j: int, *, on_disk: bool = False) -> None:
        """What cleanups below have found becomes parts of the join's groups."""
        for side in (LEFT, RIGHT):
            batches = [batch for own, batch in self._late[j] if own == side]
            if not batches:
                continue
            aliases, key = self._joins[j].match.sides[side], self._joins[j].match.key(side)
            batch, hashes = _keyed(Batch.concat(batches), key)
            groups, expiry = _split(hashes, len(batch), self._budget.groups), self._expiry(aliases, batch)
            order = np.argsort(groups, kind="stable").astype(np.int64)
            bounds = np.searchsorted(groups[order], np.arange(self._budget.groups + 1))
            for g in np.unique(groups).tolist():
                chosen = order[bounds[g] : bounds[g + 1]]
                own, ends = batch.take(chosen), expiry[chosen]
                pieces = self._write(j, g, side, own, ends) if on_disk else in_memory(own, ends)
                sides = (pieces, ()) if side == LEFT else ((), pieces)
                self._ledger.add((j, g), Part(sides, FAR_PAST, late=True))
        self._late[j] = []
        self._late_bytes = sum(batch_bytes(batch) for late in self._late for _, batch in late)

    # --- Debts ----------------------------------------------------------------------------------------

    def debt(self, cut: int) -> Debt:
        """Put all that is owed on disk, what it is owed with in memory too; nothing of it is found here any more.

        Args:
            cut: everything before it has been processed, and nothing comes any more.

        Raises:
            StateError: a block could not be written.
        """
        for j in range(len(self._joins)):
            self._enter_late(j, on_disk=True)
        covers = [frozenset(node.aliases) for node in self._nodes]
        owing = Owing(covers, frozenset(group for group, _ in self._ledger.items()))
        for j, join in enumerate(self._joins):
            groups = owing.groups(j, self._budget.groups)
            memory = [_Sorted(state, self._budget.groups, self._kept_from) for state in join.states] if groups else []
            for g in groups:
                left, right = (self._on_disk(j, g, side, memory[side]) for side in (LEFT, RIGHT))
                if left or right:
                    self._ledger.add((j, g), Part((left, right), cut))
        debt = Debt(
            plan=str(self._nodes[-1]),
            partitions=self._budget.groups,
            hashed=self._sources.hashed,
            delivered=self.delivered,
            cut=cut,
            owed=described(self._ledger.items()),
        )
        self._ledger.clear()
        return debt

    def _on_disk(self, j: int, g: int, side: int, memory: _Sorted) -> tuple[Piece, ...]:
        """What is in memory of a group's side, written to disk."""
        tuples = self._joins[j].states[side].tuples_of(memory.entries(g))
        return self._write(j, g, side, materialise(self._sources, tuples), tuples.expiry)


class _Sorted:
    """A state's entries by partition group, those that nothing can meet left out."""

    def __init__(self, state: SideState, groups: int, kept_from: int) -> None:
        """Args: `kept_from`: what expired before this is left out: its source tuples may be gone."""
        self._entries = state.living(kept_from)[0]
        self._lo, self._n = state.lo, state.hi - state.lo
        self._groups = _groups(state, self._entries, groups)
        self._order: I64 = np.argsort(self._groups, kind="stable").astype(np.int64)
        self._bounds = np.searchsorted(self._groups[self._order], np.arange(groups + 1))

    def entries(self, group: int) -> I64:
        """The numbers of a group's entries, ascending."""
        return self._entries[self._order[self._bounds[group] : self._bounds[group + 1]]]

    def within(self, groups: I64) -> Mask:
        """(hi - lo,) True for the entries of these groups."""
        mask = np.zeros(self._n, np.bool_)
        mask[self._entries[np.isin(self._groups, groups)] - self._lo] = True
        return mask


def _sizes(state: SideState, groups: int) -> I64:
    """(groups,) entries per partition group."""
    return np.bincount(_groups(state, state.entries(), groups), minlength=groups).astype(np.int64)


def _groups(state: SideState, entries: I64, groups: int) -> I32:
    hashes = state.keys[entries & (state.capacity - 1)] if state.hashed else None
    return _split(hashes, len(entries), groups)


def _keyed(batch: Batch, key: Sequence[Operand]) -> tuple[Batch, U64 | None]:
    """Materialised tuples without those that a null keeps from ever matching, and their keys' hashes."""
    if not key:
        return batch, None
    hashes, valid = key_hashes([operand.values(_reader(batch), len(batch)) for operand in key])
    return (batch, hashes) if valid is None or valid.all() else (batch.take(valid), hashes[valid])


def _reader(batch: Batch) -> Resolve:
    return lambda column: batch.columns[f"{column.alias}.{column.name}"]


def _split(hashes: U64 | None, n: int, groups: int) -> I32:
    """(n,) the partition groups of keys; what has no key is all of group 0."""
    return np.zeros(n, np.int32) if hashes is None else groups_of(hashes, groups)
