"""The state of one side of a join: its tuples, their keys, their index.

One object for all that acts on state: join, migration, feedback, spill, snapshot, statistics. It knows
its aliases, its keys' hash index, its partition groups, its size, and whether it is complete (JISC 4).
Entries ascend by ts. Those that no later tuple can meet leave in two ways: the oldest by moving `lo`;
and, when the ring is full, all dead ones by compaction, or the ring doubles when few are dead. Both cost
O(1) per tuple.
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
from operators.kernels.pages import GIVES_BACK, give_back, zeroed
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
FEW = 64
"""Room of a state at first, and of one that begins small."""

PARTITION_GROUPS = 64
"""Groups of a state (state-spill 2.1) unless it is told another number; see `kernels.partition`."""

SAMPLED_TUPLES = 512
"""Entries looked at where a share of them is enough."""

RETRACTED_AT_MOST = 0.25
"""A ring is compacted when a larger share of it has been retracted."""

GONE = -(2**63)
"""The expiry of an entry that was retracted."""

COMPACT_BELOW = 0.75
"""A full ring of intermediate results is compacted when less than this share is alive, else doubled."""

RETURNED_FROM = 0.125
"""Memory is given back when more than this share of what was touched is not needed."""

GIVEN_BACK_FROM = 1 << 14
"""Rings of so many entries are some pages long: their memory can be given back page by page."""

MUCH_ROOM = 8
"""Rings that are so many times too large are made anew: the index's heads take memory by the ring's capacity."""

CANDIDATES_AT_ONCE = 1 << 18
"""Candidate pairs materialised at a time."""


class Scratch:
    """Room for candidate pairs, shared by all operators of a task: its size bounds a probe that explodes."""

    def __init__(self) -> None:
        self.probe_idx: I64 = np.empty(CANDIDATES_AT_ONCE, np.int64)
        self.entries: I64 = np.empty(CANDIDATES_AT_ONCE, np.int64)

    def part(self, most: int) -> Scratch:
        """Room for no more than so many, in the same memory."""
        part = copy(self)
        part.probe_idx, part.entries = self.probe_idx[:most], self.entries[:most]
        return part


@dataclass(frozen=True, slots=True, eq=False)
class ProbeTerms:
    """Nested-loop terms of probing tuples: (t,) operator codes and (t, n) values, whole and real numbers."""

    int_ops: I64
    ints: I64
    float_ops: I64
    floats: npt.NDArray[np.float64]


class Completion(Protocol):
    """What makes an incomplete state complete where it is looked into (JISC 4)."""

    def demand(self, probing: Any, now: int) -> None:
        """See to it that the state holds every tuple that these can meet at or after `now`: tuples prepared to probe it
        (`operators.state.match.Prepared`), None for any."""
        ...

    def progress(self) -> tuple[int, int]:
        """How many keys have been completed, of how many; (0, 0) where nothing is counted by keys, or not yet."""
        ...


class SideState:
    """Tuples of one join input.

    Attributes:
        aliases: the aliases its tuples cover, in the order of their rows.
        life: no tuple lives longer than this after its ts: the least RANGE of the aliases, or FOREVER.
        owed: what a migration still has to compute of it (JISC 4); None when the state is complete.
        older: tuples of before a migration that were computed after it, in any order; probed too.
        older_until: no tuple of `older` can be met from this ts on.
        purged_to: the last cut that was purged at.
        partition_groups: into how many groups its keys are divided.
        lo, hi: entries lo <= e < hi are held.
        theta: (t, capacity) int64 and float64 values of nested-loop terms per entry (`operators.scan`).
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
        """Args: `exact_expiry` when every tuple expires at its ts + life, so that expiry is only kept from the first
        retraction on; `few` when it begins with room for few tuples."""
        self.aliases = aliases
        self.life = life
        self.owed: Completion | None = None
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
        capacity = self.capacity = min(FIRST_CAPACITY, FEW) if few else FIRST_CAPACITY
        self.rows: I64 = np.zeros((len(aliases), capacity), np.int64)
        self.ts: I64 = np.zeros(capacity, np.int64)
        self.expiry: I64 = np.zeros(0 if self._exact_expiry else capacity, np.int64)
        self.keys: U64 = np.zeros(capacity if hashed else 0, np.uint64)
        self.int_terms: I64 = np.zeros((int_terms, capacity), np.int64)
        self.float_terms: npt.NDArray[np.float64] = np.zeros((float_terms, capacity), np.float64)
        self._dist: I32 = np.zeros(capacity if hashed else 0, np.int32)
        self._heads: I32 = np.zeros(capacity if hashed else 0, np.int32)
        # The entries that have been written since the rings were made.
        self._fresh_from = self._written_to = 0

    @property
    def complete(self) -> bool:
        """True when it holds all that it should (JISC, definition 1)."""
        return self.owed is None

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
        """Add tuples that ascend by ts, none before the last entry's.

        Args:
            keys: (n,) hashes of the join key when the state is hashed.
            int_terms, float_terms: (t, n) nested-loop terms otherwise.
            now: tuples with expiry below it are dead and may make room.
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
        """Pairs of probe rows and earlier live entries of equal key hash; see `kernels.index.probe_keys`."""
        count, row, entry, compared = probe_keys(
            keys, ts, start, resume, strict, self.life, self.keys, self.ts, self.expiry,
            self._dist, self._heads, self.lo, self.hi, scratch.probe_idx, scratch.entries,
        )  # fmt: skip
        return count, row, entry, compared

    def scan(
        self, terms: ProbeTerms, ts: I64, *, strict: bool, start: int, resume: int, scratch: Scratch
    ) -> tuple[int, int, int, int]:
        """Pairs for which every nested-loop term holds; see `kernels.scan.scan_terms`."""
        count, row, entry, compared = scan_terms(
            terms.int_ops, terms.ints, self.int_terms, terms.float_ops, terms.floats, self.float_terms,
            ts, start, resume, strict, self.life, self.ts, self.expiry, self.lo, self.hi,
            scratch.probe_idx, scratch.entries,
        )  # fmt: skip
        return count, row, entry, compared

    def combine(self, tuples: Tuples, probe_idx: I64, entries: I64, *, probe_first: bool) -> tuple[I64, I64, I64]:
        """Rows, ts and expiry of probing tuples joined with entries; see `kernels.combine.combine_pairs`."""
        rows, ts, expiry = combine_pairs(
            tuples.rows, tuples.ts, tuples.expiry, probe_idx,
            self.rows, self.ts, self.expiry, self.life, entries, probe_first,
        )  # fmt: skip
        return rows, ts, expiry

    def gather(self, entries: I64) -> tuple[I64, I64]:
        """Rows (k, m) and expiry (m,) of live entries."""
        slots = entries & (self.capacity - 1)
        if self._exact_expiry:
            expiry = np.minimum(self.ts[slots] + self.life, FOREVER)
        else:
            expiry = self.expiry[slots]
        return np.take(self.rows, slots, axis=1), expiry

    def tuples_of(self, entries: I64) -> Tuples:
        """The tuples of these entries."""
        rows, expiry = self.gather(entries)
        return Tuples(self.aliases, rows, self.ts[entries & (self.capacity - 1)], expiry)

    def tuples(self) -> Tuples:
        """A copy of all entries held, ascending by ts, dead ones not yet purged included."""
        ts = ring_read(self.ts, self.lo, self.hi)
        if self._exact_expiry:
            expiry = np.minimum(ts + self.life, FOREVER)
        else:
            expiry = ring_read(self.expiry, self.lo, self.hi)
        own = Tuples(self.aliases, ring_read(self.rows, self.lo, self.hi), ts, expiry)
        if self.older is None:
            return own
        older = self.older.tuples()
        return Tuples.merge(older.take(np.argsort(older.ts, kind="stable").astype(np.int64)), own)

    def has(self, keys: U64, before: int) -> Mask:
        """(n,) True where an entry with ts < before has the key hash; dead ones that were not purged count."""
        found: Mask = has_keys(keys, before, self.keys, self.ts, self._dist, self._heads, self.lo, self.hi)
        return found if self.older is None else found | self.older.has(keys, before)

    def first_at(self, ts: int) -> int:
        """The first entry whose ts is at least `ts`, `hi` when there is none. O(log n)."""
        return int(first_at_least(self.ts, self.lo, self.hi, ts))

    def read_keys(self, lo: int, hi: int) -> U64:
        """(hi - lo,) the key hashes of entries lo .. hi."""
        return np.asarray(ring_read(self.keys, lo, hi), np.uint64)

    def purge(self, cut: int) -> None:
        """Drop the oldest entries that no tuple with ts >= cut can meet. O(log n)."""
        self.purged_to = cut
        if cut >= self.older_until:
            self.older = self.owed = None
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

    def bury(self) -> None:
        """Take out what `purge_rows` has found dead: source tuples may be gone that no expiry says are needless.
        Entry numbers change. O(hi - lo) where there are any such windows."""
        if self._dead_rows:
            alive = self._outlived(np.ones(self.hi - self.lo, np.bool_))
            if not alive.all():
                self._compact(alive)

    def _outlived(self, alive: Mask) -> Mask:
        """Of entries lo .. hi where (hi - lo,) `alive` is True those that `purge_rows` has left; changes it."""
        for alias, first_row in self._dead_rows.items():
            alive &= ring_read(self.rows[self.aliases.index(alias)], self.lo, self.hi) >= first_row
        return alive

    def retract(self, entries: I64) -> None:
        """Take out entries, each once, before their time (JIT 4.2). Amortised O(1) each, the first time O(capacity)."""
        if self._exact_expiry:
            self.expiry = np.zeros(self.capacity, np.int64)
            ring_write(self.expiry, self.lo, np.minimum(ring_read(self.ts, self.lo, self.hi) + self.life, FOREVER))
            self._exact_expiry = False
        self.expiry[entries & (self.capacity - 1)] = GONE
        self._retracted += len(entries)
        if self._retracted > RETRACTED_AT_MOST * (self.hi - self.lo):
            self._compact(np.asarray(ring_read(self.expiry, self.lo, self.hi) != GONE))

    def entries(self) -> I64:
        """The numbers of all entries that were not retracted, ascending, dead ones not yet purged included. O(n)."""
        entries = np.arange(self.lo, self.hi, dtype=np.int64)
        return entries[ring_read(self.expiry, self.lo, self.hi) != GONE] if self._retracted else entries

    def living(self, now: int, entries: I64 | None = None) -> tuple[I64, Tuples]:
        """Those of some entries, or of all, that live at `now`, without `older`, and their numbers. O(n)."""
        entries = self.entries() if entries is None else entries
        rows, expiry = self.gather(entries)
        alive = expiry >= now
        entries = entries[alive]
        ts = self.ts[entries & (self.capacity - 1)]
        return entries, Tuples(self.aliases, np.compress(alive, rows, axis=1), ts, expiry[alive])

    def mark_rows(self, alias: str, now: int, first: int, held: Mask) -> None:
        """Set (n,) `held` where a row, counted from `first`, is the alias's component of an entry that lives at `now`,
        without `older`. O(hi - lo)."""
        rows = self.rows[self.aliases.index(alias)]
        mark_rows(rows, self.ts, self.expiry, self.life, self.lo, self.hi, now, first, held)

    def _drop_before(self, entry: int) -> None:
        if self._retracted:
            self._retracted -= int(np.count_nonzero(ring_read(self.expiry, self.lo, entry) == GONE))
        self.lo = entry

    def keep(self, mask: Mask) -> None:
        """Compact to the entries lo .. hi where (hi - lo,) `mask` is True. Entry numbers change."""
        self._compact(mask)

    def take_out(self, mask: Mask) -> None:
        """Take out the entries lo .. hi where (hi - lo,) `mask` is True, and give back memory that is not needed.

        Entry numbers change; `older` stays. O(hi - lo). Rings become smaller only where little stays, since the memory
        of a larger one can be given back without copying what stays.
        """
        kept = ~mask
        stay = int(np.count_nonzero(kept))
        touched = min(self._touched_to() - self._fresh_from, self.capacity)
        fitting = fitting_capacity(stay, FIRST_CAPACITY)
        large = GIVES_BACK and self.capacity >= GIVEN_BACK_FROM
        if stay < (1 - RETURNED_FROM) * touched and not (large and fitting * MUCH_ROOM > self.capacity):
            self._rehouse(kept, min(fitting, self.capacity))
            return
        if stay < len(kept):
            self._compact(kept)
        if large and stay < touched:
            for ring in (*self._rings(), self._dist):
                if ring.size:
                    give_back(ring, self.lo, self.hi)
            self._fresh_from, self._written_to = self.lo, self.hi

    def trim(self) -> None:
        """Give back memory that purged entries have left behind, where that is worth it. O(hi - lo) if it is."""
        self.take_out(np.zeros(self.hi - self.lo, np.bool_))

    def _make_room(self, n: int, now: int) -> None:
        if not self._exact_expiry:
            alive = self._outlived(live_mask(self.expiry, self.lo, self.hi, now))
            if not alive.all():
                self._compact(alive)
        need = self.hi - self.lo + n
        if not self._exact_expiry:
            need = int(need / COMPACT_BELOW)
        if need > self.capacity:
            self._rehouse(None, 1 << (need - 1).bit_length())

    def _rings(self) -> list[npt.NDArray[Any]]:
        """Every ring indexed by entry, apart from the index itself; all share their memory with the state."""
        rings = [self.ts, self.expiry, self.keys, *self.rows, *self.int_terms, *self.float_terms]
        return [ring for ring in rings if len(ring)]

    def _compact(self, alive: Mask) -> None:
        """Move the entries where (hi - lo,) `alive` is True together, in place, and index them anew."""
        self._written_to = self._touched_to()
        for ring in self._rings():
            compact_ring(ring, self.lo, alive, ring)
        self._closed_up(alive)
        if self.hashed:
            self._heads[:] = 0
            index_ring(self.keys, self._dist, self._heads, self.lo, self.hi)

    def _rehouse(self, kept: Mask | None, capacity: int) -> None:
        """Move the entries where (hi - lo,) `kept` is True, all when None, to new rings, one ring at a time: the old
        index goes first, and never are more than two copies of one ring held."""

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
            self._closed_up(kept)
        self.capacity = capacity
        self._fresh_from, self._written_to = self.lo, self.hi
        if self.hashed:
            self._dist = zeroed(capacity, np.int32)
            self._heads = zeroed(capacity, np.int32)
            index_ring(self.keys, self._dist, self._heads, self.lo, self.hi)

    def _closed_up(self, kept: Mask) -> None:
        """The entries where `kept` is True have been moved together."""
        self.hi = self.lo + int(np.count_nonzero(kept))
        if self._retracted:
            self._retracted = int(np.count_nonzero(ring_read(self.expiry, self.lo, self.hi) == GONE))

    def _touched_to(self) -> int:
        return max(self._written_to, self.hi)

    # --- Partition groups ----------------------------------------------------------------------------

    def groups(self) -> I32:
        """(hi - lo,) int32 the partition group of each entry, without `older`; 0 where there are no keys."""
        if not self.hashed:
            return np.zeros(self.hi - self.lo, np.int32)
        return np.asarray(groups_in_ring(self.keys, self.lo, self.hi, self.partition_groups), np.int32)

    def in_groups(self, chosen: Mask) -> Mask:
        """(hi - lo,) True for the entries of groups where (partition_groups,) `chosen` is True, without `older`."""
        if not self.hashed:
            return np.full(self.hi - self.lo, chosen[0])
        return np.asarray(in_groups(self.keys, self.lo, self.hi, chosen), np.bool_)

    def by_group(self, now: int) -> tuple[I64, I64]:
        """The entries that live at `now`, by partition group, ascending in each; and (partition_groups + 1,) where each
        group's begin. Without `older`. O(n)."""
        entries, begins = entries_by_group(
            self.keys, self.ts, self.expiry, self.life, self.lo, self.hi, now, self.partition_groups
        )
        return entries, begins

    def group_sizes(self) -> I64:
        """(partition_groups,) entries lo .. hi per partition group, without `older`. O(n)."""
        if self.hashed:
            return np.asarray(group_sizes(self.keys, self.lo, self.hi, self.partition_groups), np.int64)
        return np.array([self.hi - self.lo] + [0] * (self.partition_groups - 1), np.int64)

    def newer_in_groups(self, since: I64) -> I64:
        """(partition_groups,) the entries per partition group with ts >= its (partition_groups,) `since`, without
        `older`. O(n)."""
        return np.asarray(newer_in_groups(self.keys, self.ts, self.lo, self.hi, since), np.int64)

    def group_bytes(self, beside: int = 0) -> I64:
        """(partition_groups,) bytes that the entries of each group take, without `older`, each with so many bytes
        beside. O(n)."""
        return self.group_sizes() * (self.entry_bytes() + beside)

    def sampled(self) -> tuple[float, int]:
        """From a sample of the entries: the share that a tuple to come can meet, and the number of partition groups
        that have entries. O(1); exact up to SAMPLED_TUPLES entries."""
        n = self.hi - self.lo
        if n <= 0:
            return 1.0, 0
        slots = np.arange(self.lo, self.hi, -(-n // SAMPLED_TUPLES), dtype=np.int64) & (self.capacity - 1)
        share = 1.0
        if not self._exact_expiry:
            held = self.expiry[slots]
            share = float((held >= self.purged_to).sum()) / max(int((held != GONE).sum()), 1)
        groups = len(np.unique(groups_of(self.keys[slots], self.partition_groups))) if self.hashed else 1
        return share, groups

    def size_bytes(self) -> int:
        """Bytes of the arrays held, unused capacity included."""
        arrays = (self.rows, self.ts, self.expiry, self.keys, self._dist, self._heads)
        own = sum(a.nbytes for a in arrays) + self.int_terms.nbytes + self.float_terms.nbytes
        return own + (0 if self.older is None else self.older.size_bytes())

    def entry_bytes(self) -> int:
        """Bytes of one entry, its place in the index included."""
        arrays = (self.rows, self.ts, self.expiry, self.keys, self._dist, self._heads, self.int_terms, self.float_terms)
        return sum(array.nbytes for array in arrays) // self.capacity

    def touched_bytes(self) -> int:
        """Bytes of memory taken: of rings what was written since they were made, for untouched zeros are not there; of
        the index's heads, which are written anywhere, all."""
        rings = (self.rows, self.ts, self.expiry, self.keys, self._dist, self.int_terms, self.float_terms)
        own = sum(touched_bytes(ring, self._fresh_from, self._touched_to()) for ring in rings if ring.size)
        return own + self._heads.nbytes + (0 if self.older is None else self.older.touched_bytes())
