"""The state of one side of a join: its tuples, their keys and the index over those.

Joins, migration, feedback, spill and statistics all work on `SideState`. It has the aliases of the side, the hash index
of the keys, the partition groups, the size, and whether the state is complete (JISC 4). Entries ascend by ts. Entries
that no later tuple can meet leave in two ways: the oldest by moving `lo`; and, when the ring is full, all dead entries
by compaction. When few are dead the ring is doubled instead. Both ways cost O(1) per tuple.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from operators.data.tuples import FOREVER, Tuples
from operators.data.watermark import END
from operators.kernels.combine import combine_pairs
from operators.kernels.hashing import U64
from operators.kernels.index import I32, has_keys, index_ring, insert_keys, probe_keys
from operators.kernels.pages import GIVE_BACK_SHARE, GIVES_BACK, give_back, zeroed
from operators.kernels.partition import (
    entries_by_group,
    group_sizes,
    groups_in_ring,
    groups_of,
    in_groups,
    newer_in_groups,
)
from operators.kernels.ring import (
    compact_ring,
    first_at_least,
    fitting_capacity,
    live_mask,
    mark_rows,
    ring_grow,
    ring_read,
    ring_thinned,
    ring_write,
    touched_bytes,
)
from operators.kernels.scan import scan_terms
from schemas.columns import I64, Mask

FIRST_CAPACITY = 1024
SMALL_FIRST_CAPACITY = 64
"""First capacity of a state that starts small; FIRST_CAPACITY is that of the others."""

PARTITION_GROUPS = 64
"""Default number of partition groups of a state (state-spill 2.1); see `kernels.partition`."""

SAMPLED_TUPLES = 512
"""Entries examined where an estimated share is enough."""

MAX_RETRACTED_SHARE = 0.25
"""A ring is compacted when a larger share of its entries has been retracted."""

RETRACTED = -(2**63)
"""The expiry of an entry that was retracted."""

COMPACT_BELOW = 0.75
"""A full ring of intermediate results is compacted when less than this share is alive, else doubled."""

GIVE_BACK_MIN_CAPACITY = 1 << 14
"""Rings of at least this many entries span several pages, so that their memory can be given back page by page."""

MAX_EXCESS_FACTOR = 8
"""Rings that are more than this many times too large are replaced: the index's heads take memory by the capacity."""

CANDIDATES_AT_ONCE = 1 << 18
"""Candidate pairs materialised at a time."""


class Scratch:
    """Room for candidate pairs, shared by all operators of a task. Its size bounds the memory of a probe that explodes.

    Attributes:
        probe_idx: (CANDIDATES_AT_ONCE,) positions among the probing tuples.
        entries: (CANDIDATES_AT_ONCE,) entries of the probed state.
    """

    def __init__(self) -> None:
        self.probe_idx: I64 = np.empty(CANDIDATES_AT_ONCE, np.int64)
        self.entries: I64 = np.empty(CANDIDATES_AT_ONCE, np.int64)

    def part(self, most: int) -> Scratch:
        """Return room for at most `most` pairs, in the same memory."""
        part = copy(self)
        part.probe_idx, part.entries = self.probe_idx[:most], self.entries[:most]
        return part


@dataclass(frozen=True, slots=True, eq=False)
class ProbeTerms:
    """Nested-loop terms of n probing tuples.

    Attributes:
        int_ops: (t,) operator codes of the terms over whole numbers.
        ints: (t, n) their values.
        float_ops: (t,) operator codes of the terms over doubles.
        floats: (t, n) their values.
    """

    int_ops: I64
    ints: I64
    float_ops: I64
    floats: npt.NDArray[np.float64]


class StateCompletion(Protocol):
    """Completes an incomplete state where it is read (JISC 4)."""

    def demand(self, probing: Any, now: int) -> None:
        """Ensure that the state has every tuple that the probing tuples can meet at or after `now`.

        Args:
            probing: tuples prepared to probe the state (`operators.state.match.Prepared`); None for any tuples.
        """
        ...

    def progress(self) -> tuple[int, int]:
        """Return how many keys have been completed, of how many; (0, 0) where keys are not counted, or not yet."""
        ...


class SideState:
    """Tuples of one join input. An entry e is at slot e % capacity of the rings; k is the number of aliases.

    Attributes:
        aliases: the aliases its tuples cover, in the order of their rows.
        life: the longest lifetime of a tuple after its ts: the smallest RANGE of the aliases, or FOREVER.
        completion: computes what a migration left out of the state (JISC 4); None when the state is complete.
        older: tuples from before a migration that were computed after it, in any order; they are probed too.
        older_until: from this ts on no tuple can meet a tuple of `older`.
        hashed: whether the state has a hash index over join keys.
        partition_groups: number of groups that its keys are divided into.
        purged_to: the last cut of `purge`.
        lo: the first entry.
        hi: the entry after the last.
        capacity: the length of the rings, a power of two.
        rows: (k, capacity) int64 component row ids.
        ts: (capacity,) int64.
        expiry: (capacity,) int64, RETRACTED for retracted entries; empty while it follows from ts and `life`.
        keys: (capacity,) hashes of the join keys; empty unless `hashed`.
        int_terms: (t, capacity) int64 values of nested-loop terms (`operators.kernels.scan`).
        float_terms: (t, capacity) float64 values of nested-loop terms.
    """

    def __init__(
        self,
        aliases: tuple[str, ...],
        life: int,
        *,
        hashed: bool,
        int_terms: int = 0,
        float_terms: int = 0,
        exact_expiry: bool = False,
        partition_groups: int = PARTITION_GROUPS,
        few: bool = False,
    ) -> None:
        """Make an empty state.

        Args:
            int_terms: number of nested-loop terms over whole numbers.
            float_terms: number of nested-loop terms over doubles.
            exact_expiry: every tuple expires at its ts + life, so that expiry is only stored from the first
                retraction on.
            few: start with room for few tuples.
        """
        self.aliases = aliases
        self.life = life
        self.completion: StateCompletion | None = None
        self.older: SideState | None = None
        self.older_until = FOREVER
        self.hashed = hashed
        self.partition_groups = partition_groups
        self.purged_to = 0
        self.lo = 0
        self.hi = 0
        self._exact_expiry = exact_expiry
        self._dead_rows: dict[str, int] = {}
        self._retracted = 0
        capacity = self.capacity = min(FIRST_CAPACITY, SMALL_FIRST_CAPACITY) if few else FIRST_CAPACITY
        self.rows: I64 = np.zeros((len(aliases), capacity), np.int64)
        self.ts: I64 = np.zeros(capacity, np.int64)
        self.expiry: I64 = np.zeros(0 if self._exact_expiry else capacity, np.int64)
        self.keys: U64 = np.zeros(capacity if hashed else 0, np.uint64)
        self.int_terms: I64 = np.zeros((int_terms, capacity), np.int64)
        self.float_terms: npt.NDArray[np.float64] = np.zeros((float_terms, capacity), np.float64)
        self._dist: I32 = np.zeros(capacity if hashed else 0, np.int32)
        self._heads: I32 = np.zeros(capacity if hashed else 0, np.int32)
        # The entries written since the rings were made are _fresh_from .. _written_to - 1.
        self._fresh_from = self._written_to = 0

    @property
    def complete(self) -> bool:
        """Whether the state has all entries that it should have (JISC, definition 1)."""
        return self.completion is None

    def __len__(self) -> int:
        return self.hi - self.lo - self._retracted + (0 if self.older is None else len(self.older))

    def insert(
        self,
        tuples: Tuples,
        keys: U64 | None,
        int_terms: I64 | None = None,
        float_terms: npt.NDArray[np.float64] | None = None,
        *,
        now: int = 0,
    ) -> None:
        """Add n tuples that ascend by ts, none with a smaller ts than the last entry.

        Args:
            keys: (n,) hashes of the join key when the state is hashed.
            int_terms: (t, n) nested-loop terms over whole numbers otherwise.
            float_terms: (t, n) nested-loop terms over doubles otherwise.
            now: entries with expiry below it are dead and may make room.
        """
        n = len(tuples)
        if n == 0:
            return
        if self.hi - self.lo + n > self.capacity:
            self._make_room(n, now)
        ring_write(self.rows, self.hi, tuples.rows)
        ring_write(self.ts, self.hi, tuples.ts)
        if not self._exact_expiry:
            ring_write(self.expiry, self.hi, tuples.expiry)
        if keys is not None:
            insert_keys(keys, self.keys, self._dist, self._heads, self.hi)
        if int_terms is not None and len(int_terms):
            ring_write(self.int_terms, self.hi, int_terms)
        if float_terms is not None and len(float_terms):
            ring_write(self.float_terms, self.hi, float_terms)
        self.hi += n

    def probe(
        self, keys: U64, ts: I64, *, strict: bool, start: int, resume: int, scratch: Scratch
    ) -> tuple[int, int, int, int]:
        """Find pairs of probing tuples and earlier live entries of equal key hash; see `kernels.index.probe_keys`."""
        count, row, entry, compared = probe_keys(
            keys, ts, start, resume, strict, self.life, self.keys, self.ts, self.expiry,
            self._dist, self._heads, self.lo, self.hi, scratch.probe_idx, scratch.entries,
        )  # fmt: skip
        return count, row, entry, compared

    def scan(
        self, terms: ProbeTerms, ts: I64, *, strict: bool, start: int, resume: int, scratch: Scratch
    ) -> tuple[int, int, int, int]:
        """Find pairs for which every nested-loop term is true; see `kernels.scan.scan_terms`."""
        count, row, entry, compared = scan_terms(
            terms.int_ops, terms.ints, self.int_terms, terms.float_ops, terms.floats, self.float_terms,
            ts, start, resume, strict, self.life, self.ts, self.expiry, self.lo, self.hi,
            scratch.probe_idx, scratch.entries,
        )  # fmt: skip
        return count, row, entry, compared

    def combine(self, tuples: Tuples, probe_idx: I64, entries: I64, *, probe_first: bool) -> tuple[I64, I64, I64]:
        """Return rows, ts and expiry of probing tuples joined with entries; see `kernels.combine.combine_pairs`."""
        rows, ts, expiry = combine_pairs(
            tuples.rows, tuples.ts, tuples.expiry, probe_idx,
            self.rows, self.ts, self.expiry, self.life, entries, probe_first,
        )  # fmt: skip
        return rows, ts, expiry

    def gather(self, entries: I64) -> tuple[I64, I64]:
        """Return rows (k, m) and expiry (m,) of m live entries."""
        slots = entries & (self.capacity - 1)
        if self._exact_expiry:
            expiry = np.minimum(self.ts[slots] + self.life, FOREVER)
        else:
            expiry = self.expiry[slots]
        return np.take(self.rows, slots, axis=1), expiry

    def tuples_of(self, entries: I64) -> Tuples:
        """Return the tuples of these entries."""
        rows, expiry = self.gather(entries)
        return Tuples(self.aliases, rows, self.ts[entries & (self.capacity - 1)], expiry)

    def tuples(self) -> Tuples:
        """Return a copy of all entries, ascending by ts, including dead ones that are not purged yet.

        Tuples of one stream are in the order of their arrival, also among equal ts: `purge_rows` relies on it.
        """
        ts = ring_read(self.ts, self.lo, self.hi)
        if self._exact_expiry:
            expiry = np.minimum(ts + self.life, FOREVER)
        else:
            expiry = ring_read(self.expiry, self.lo, self.hi)
        own = Tuples(self.aliases, ring_read(self.rows, self.lo, self.hi), ts, expiry)
        if self.older is None:
            return own
        found = Tuples.concat([self.older.tuples(), own], self.aliases)
        by = (found.rows[0], found.ts) if len(self.aliases) == 1 else (found.ts,)
        return found.take(np.lexsort(by).astype(np.int64))

    def has(self, keys: U64, before: int) -> Mask:
        """Return (n,) bool: True where an entry with ts < `before` has the key hash.

        Dead entries that are not purged yet count.
        """
        found: Mask = has_keys(keys, before, self.keys, self.ts, self._dist, self._heads, self.lo, self.hi)
        return found if self.older is None else found | self.older.has(keys, before)

    def first_at(self, ts: int) -> int:
        """Return the first entry whose ts is at least `ts`; `hi` when there is none. O(log n)."""
        return int(first_at_least(self.ts, self.lo, self.hi, ts))

    def read_keys(self, lo: int, hi: int) -> U64:
        """Return (hi - lo,) the key hashes of entries lo .. hi - 1."""
        return np.asarray(ring_read(self.keys, lo, hi), np.uint64)

    def purge(self, cut: int) -> None:
        """Drop the oldest entries that no tuple with ts >= cut can meet. O(log n)."""
        self.purged_to = cut
        if cut >= self.older_until:
            self.older = self.completion = None
            self.older_until = FOREVER
        if cut == END:
            self._drop_before(self.hi)
        elif self.life < FOREVER:
            self._drop_before(int(first_at_least(self.ts, self.lo, self.hi, cut - self.life)))

    def purge_rows(self, alias: str, first_row: int) -> None:
        """Drop the oldest entries whose component of `alias` (a ROWS window) lies before `first_row`."""
        if self.older is not None:
            self.older._dead_rows[alias] = first_row
        if len(self.aliases) == 1:
            self._drop_before(int(first_at_least(self.rows[0], self.lo, self.hi, first_row)))
        else:
            self._dead_rows[alias] = first_row

    def drop_dead_rows(self) -> None:
        """Remove the entries that `purge_rows` has found dead.

        Their source tuples may be gone, although their expiry does not show it. Entry numbers change. O(hi - lo) for a
        state with ROWS windows.
        """
        if self._dead_rows:
            alive = self._without_dead_rows(np.ones(self.hi - self.lo, np.bool_))
            if not alive.all():
                self._compact(alive)

    def _without_dead_rows(self, alive: Mask) -> Mask:
        """Set (hi - lo,) `alive` to False for the entries that `purge_rows` has found dead; return it."""
        for alias, first_row in self._dead_rows.items():
            alive &= ring_read(self.rows[self.aliases.index(alias)], self.lo, self.hi) >= first_row
        return alive

    def retract(self, entries: I64) -> None:
        """Remove entries, each once, before they expire (JIT 4.2). Amortised O(1) each; the first call O(capacity)."""
        if self._exact_expiry:
            self.expiry = np.zeros(self.capacity, np.int64)
            ring_write(self.expiry, self.lo, np.minimum(ring_read(self.ts, self.lo, self.hi) + self.life, FOREVER))
            self._exact_expiry = False
        self.expiry[entries & (self.capacity - 1)] = RETRACTED
        self._retracted += len(entries)
        if self._retracted > MAX_RETRACTED_SHARE * (self.hi - self.lo):
            self._compact(np.asarray(ring_read(self.expiry, self.lo, self.hi) != RETRACTED))

    def entries(self) -> I64:
        """Return the numbers of all entries that were not retracted, ascending. O(n).

        Dead entries that are not purged yet are included.
        """
        entries = np.arange(self.lo, self.hi, dtype=np.int64)
        return entries[ring_read(self.expiry, self.lo, self.hi) != RETRACTED] if self._retracted else entries

    def living(self, now: int, entries: I64 | None = None) -> tuple[I64, Tuples]:
        """Return the numbers and tuples of the entries that are alive at `now`, without `older`. O(n).

        Args:
            entries: the entries to consider; all when None.
        """
        entries = self.entries() if entries is None else entries
        rows, expiry = self.gather(entries)
        alive = expiry >= now
        entries = entries[alive]
        ts = self.ts[entries & (self.capacity - 1)]
        return entries, Tuples(self.aliases, np.compress(alive, rows, axis=1), ts, expiry[alive])

    def mark_rows(self, alias: str, now: int, first: int, marked: Mask) -> None:
        """Mark the rows of an alias that entries alive at `now` have as components, without `older`. O(hi - lo).

        Args:
            first: the row that `marked[0]` stands for.
            marked: (n,) set to True for each such row.
        """
        rows = self.rows[self.aliases.index(alias)]
        mark_rows(rows, self.ts, self.expiry, self.life, self.lo, self.hi, now, first, marked)

    def _drop_before(self, entry: int) -> None:
        if self._retracted:
            self._retracted -= int(np.count_nonzero(ring_read(self.expiry, self.lo, entry) == RETRACTED))
        self.lo = entry

    def keep(self, mask: Mask) -> None:
        """Remove all entries but those where (hi - lo,) `mask` is True. Entry numbers change."""
        self._compact(mask)

    def take_out(self, mask: Mask) -> None:
        """Remove the entries where (hi - lo,) `mask` is True, and give back memory that is not needed.

        Entry numbers change; `older` stays. O(hi - lo). Rings shrink only where few entries stay, since the memory of a
        large ring can be given back without copying those entries.
        """
        kept = ~mask
        stay = int(np.count_nonzero(kept))
        touched = min(self._touched_to() - self._fresh_from, self.capacity)
        fitting = fitting_capacity(stay, FIRST_CAPACITY)
        large = GIVES_BACK and self.capacity >= GIVE_BACK_MIN_CAPACITY
        if stay < (1 - GIVE_BACK_SHARE) * touched and not (large and fitting * MAX_EXCESS_FACTOR > self.capacity):
            self._move_to_new_rings(kept, min(fitting, self.capacity))
            return
        if stay < len(kept):
            self._compact(kept)
        if large and stay < touched:
            for ring in (*self._rings(), self._dist):
                if ring.size:
                    give_back(ring, self.lo, self.hi)
            self._fresh_from, self._written_to = self.lo, self.hi

    def trim(self) -> None:
        """Give back the memory of purged entries, where that pays off. O(hi - lo) if it does."""
        self.take_out(np.zeros(self.hi - self.lo, np.bool_))

    def _make_room(self, n: int, now: int) -> None:
        if not self._exact_expiry:
            alive = self._without_dead_rows(live_mask(self.expiry, self.lo, self.hi, now))
            if not alive.all():
                self._compact(alive)
        need = self.hi - self.lo + n
        if not self._exact_expiry:
            need = int(need / COMPACT_BELOW)
        if need > self.capacity:
            self._move_to_new_rings(None, 1 << (need - 1).bit_length())

    def _rings(self) -> list[npt.NDArray[Any]]:
        """Return every ring indexed by entry, apart from the index itself. They share memory with the state."""
        rings = [self.ts, self.expiry, self.keys, *self.rows, *self.int_terms, *self.float_terms]
        return [ring for ring in rings if len(ring)]

    def _compact(self, alive: Mask) -> None:
        """Move the entries where (hi - lo,) `alive` is True together, in place, and rebuild the index."""
        self._written_to = self._touched_to()
        for ring in self._rings():
            compact_ring(ring, self.lo, alive, ring)
        self._update_after_compaction(alive)
        if self.hashed:
            self._heads[:] = 0
            index_ring(self.keys, self._dist, self._heads, self.lo, self.hi)

    def _move_to_new_rings(self, kept: Mask | None, capacity: int) -> None:
        """Move the entries where (hi - lo,) `kept` is True, all when None, to new rings of this capacity.

        The old index is dropped first and rings are copied one at a time, so that at most one ring exists twice.
        """

        def moved(ring: npt.NDArray[Any]) -> npt.NDArray[Any]:
            if not ring.size:
                return ring if ring.ndim == 1 else zeroed((len(ring), capacity), ring.dtype)
            if kept is None:
                return ring_grow(ring, self.lo, self.hi, capacity)
            return ring_thinned(ring, self.lo, kept, capacity)

        if self.hashed:
            self._dist = self._heads = np.zeros(0, np.int32)
        self.ts = moved(self.ts)
        self.expiry = moved(self.expiry)
        self.keys = moved(self.keys)
        self.rows = moved(self.rows)
        self.int_terms = moved(self.int_terms)
        self.float_terms = moved(self.float_terms)
        if kept is not None:
            self._update_after_compaction(kept)
        self.capacity = capacity
        self._fresh_from, self._written_to = self.lo, self.hi
        if self.hashed:
            self._dist = zeroed(capacity, np.int32)
            self._heads = zeroed(capacity, np.int32)
            index_ring(self.keys, self._dist, self._heads, self.lo, self.hi)

    def _update_after_compaction(self, kept: Mask) -> None:
        """Update `hi` and counts after the entries where `kept` is True have been moved together."""
        self.hi = self.lo + int(np.count_nonzero(kept))
        if self._retracted:
            self._retracted = int(np.count_nonzero(ring_read(self.expiry, self.lo, self.hi) == RETRACTED))

    def _touched_to(self) -> int:
        return max(self._written_to, self.hi)

    # --- Partition groups ----------------------------------------------------------------------------

    def groups(self) -> I32:
        """Return (hi - lo,) int32 the partition group of each entry, without `older`; 0 where there are no keys."""
        if not self.hashed:
            return np.zeros(self.hi - self.lo, np.int32)
        return np.asarray(groups_in_ring(self.keys, self.lo, self.hi, self.partition_groups), np.int32)

    def in_groups(self, chosen: Mask) -> Mask:
        """Return (hi - lo,) bool: True for entries of the groups where (partition_groups,) `chosen` is True.

        Entries of `older` are left out.
        """
        if not self.hashed:
            return np.full(self.hi - self.lo, chosen[0])
        return np.asarray(in_groups(self.keys, self.lo, self.hi, chosen), np.bool_)

    def by_group(self, now: int) -> tuple[I64, I64]:
        """Sort the entries that are alive at `now` by partition group, without `older`. O(n).

        Returns:
            The entries, ascending within each group, and (partition_groups + 1,) the offsets of the groups in them.
        """
        entries, begins = entries_by_group(
            self.keys, self.ts, self.expiry, self.life, self.lo, self.hi, now, self.partition_groups
        )
        return entries, begins

    def group_sizes(self) -> I64:
        """Return (partition_groups,) the number of entries per partition group, without `older`. O(n)."""
        if self.hashed:
            return np.asarray(group_sizes(self.keys, self.lo, self.hi, self.partition_groups), np.int64)
        return np.array([self.hi - self.lo] + [0] * (self.partition_groups - 1), np.int64)

    def newer_in_groups(self, since: I64) -> I64:
        """Return (partition_groups,) the number of entries with ts >= `since` per group, without `older`. O(n).

        Args:
            since: (partition_groups,) a ts for each group.
        """
        return np.asarray(newer_in_groups(self.keys, self.ts, self.lo, self.hi, since), np.int64)

    def group_bytes(self, beside: int = 0) -> I64:
        """Return (partition_groups,) the bytes of the entries of each group, without `older`. O(n).

        Args:
            beside: further bytes to count for each entry.
        """
        return self.group_sizes() * (self.entry_bytes() + beside)

    def sampled(self) -> tuple[float, int]:
        """Estimate from a sample the share of entries that a future tuple can meet, and the number of used groups.

        A partition group is used if it has entries. O(1); exact up to SAMPLED_TUPLES entries.
        """
        n = self.hi - self.lo
        if n <= 0:
            return 1.0, 0
        slots = np.arange(self.lo, self.hi, -(-n // SAMPLED_TUPLES), dtype=np.int64) & (self.capacity - 1)
        share = 1.0
        if not self._exact_expiry:
            expiry = self.expiry[slots]
            share = float((expiry >= self.purged_to).sum()) / max(int((expiry != RETRACTED).sum()), 1)
        groups = len(np.unique(groups_of(self.keys[slots], self.partition_groups))) if self.hashed else 1
        return share, groups

    def size_bytes(self) -> int:
        """Return the bytes of the arrays, unused capacity included."""
        arrays = (self.rows, self.ts, self.expiry, self.keys, self._dist, self._heads)
        own = sum(a.nbytes for a in arrays) + self.int_terms.nbytes + self.float_terms.nbytes
        return own + (0 if self.older is None else self.older.size_bytes())

    def entry_bytes(self) -> int:
        """Return the bytes of one entry, including its share of the index."""
        arrays = (self.rows, self.ts, self.expiry, self.keys, self._dist, self._heads, self.int_terms, self.float_terms)
        return sum(array.nbytes for array in arrays) // self.capacity

    def touched_bytes(self) -> int:
        """Return the bytes of memory taken.

        Of a ring only the part written since it was made counts, since untouched zeros take no memory. The index's
        heads are written anywhere, so they count as a whole.
        """
        rings = (self.rows, self.ts, self.expiry, self.keys, self._dist, self.int_terms, self.float_terms)
        own = sum(touched_bytes(ring, self._fresh_from, self._touched_to()) for ring in rings if ring.size)
        return own + self._heads.nbytes + (0 if self.older is None else self.older.touched_bytes())
