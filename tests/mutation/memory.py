"""Small errors in what gives memory back, per file: see `tests.mutation.mutants`."""

from __future__ import annotations

MEMORY: dict[str, tuple[tuple[str, str], ...]] = {
    "kernels/ring.py": (
        ("n = min(hi - at, ring.shape[-1] - begin)", "n = hi - at"),
        ("into[to & wrap] =", "into[to & mask] ="),
        ("while to < end:\n        into", "while i < alive.shape[0]:\n        into"),
        ("// capacity * min(last - first, capacity)", "// capacity * (last - first)"),
        ("n = min(left, data.shape[0] - begin, into.shape[0] - end)", "n = min(left, data.shape[0] - begin)"),
        ("starts[slot] = to\n", "starts[slot] = at\n"),
        ("total += ring[(lo + i) & mask]", "total += ring[i & mask]"),
        ("FILLED_AT_MOST = 0.75", "FILLED_AT_MOST = 1.0"),
    ),
    "kernels/rank.py": (
        ("if row & 63 == 0 or row == first:", "if row & 63 == 0:"),
        ("rank + row - first - _ones(bits[slot] & (_bit(row) - np.uint64(1)))", "rank + row - first"),
        ("np.uint64(1) << np.uint64(row & 63)", "np.uint64(1) << np.uint64(row & 31)"),
        ("_ones(bits[slot] & (_bit(rows[i]) - np.uint64(1)))", "_ones(bits[slot] & _bit(rows[i]))"),
        ("if bases[middle & mask] <= ranks[i]:", "if bases[middle & mask] < ranks[i]:"),
        ("ranks[i] - bases[low & mask]):", "ranks[i] - bases[low & mask] - 1):"),
        ("bases[slot] = rank + stay", "bases[slot] = rank + seen"),
        ("np.uint64(held ^ stays) <<", "np.uint64(held) <<"),
        ("stays = held & np", "stays = np"),
        ("        seen += held\n", "        seen += 1\n"),
    ),
    "kernels/partition.py": (
        ("((key >> np.uint64(32)) * np", "((key & np.uint64(0xFFFFFFFF)) * np"),
        ("* np.uint64(count)) >> np.uint64(32)", "* np.uint64(count)) >> np.uint64(31)"),
        ("out[e - lo] = _group(ring_keys[e & mask], count)", "out[e - lo] = _group(ring_keys[(e - lo) & mask], count)"),
        ("out[_group(ring_keys[e & mask], count)] += 1", "out[_group(ring_keys[e & mask], count)] += 2"),
        ("        if expiry < now:", "        if expiry <= now:"),
        ("ring_ts[slot] + life if exact", "ring_ts[slot] if exact"),
        ("            entries[at[group]] = e\n", "            entries[at[group]] = e - lo\n"),
        ("if hashed else np.int64(0)", "if hashed else np.int64(1)"),
        ("chosen.shape[0])]", "chosen.shape[0] - 1)]"),
    ),
    "ranks.py": (
        ("words = ((stop - 1) >> 6) - (lo >> 6) + 1", "words = (stop - lo) >> 6"),
        ("known = ((first - 1) >> 6) + 1", "known = (first - 1) >> 6"),
    ),
    "store.py": (
        ("rows = rows - self._less", "pass"),
        ("            rows = self._ranks.of(rows)\n", "            pass\n"),
        ("self._ranks.hold(self.lo, first, self.hi, self._next)", "pass"),
        ("self._ranks.hold(self.lo, first, self.hi, self._next)", "self._ranks.hold(self.lo, first, self.hi, first)"),
        ("self._ranks = Ranks(self.lo, self.hi, self._first)", "self._ranks = Ranks(self.lo, self.hi, self.lo)"),
        ("return self.hi if rank == self._next else", "return self.hi if rank == self.hi else"),
        ("            self._less = self.lo - self._first\n", ""),
        ("and len(self) == self.hi - self.lo:", "and len(self) >= 0:"),
        ("self._first = self._rank(row)\n", "self._first = max(self._first, self._rank(self.lo))\n"),
        ("self._columns.pop(name) for name in", "self._columns[name] for name in"),
        ("self.positions = ring_grow(self.positions, self.lo, self.hi, capacity)", "pass"),
        ("        self._next = self._first + stay\n", "        self._next = self._first + len(kept)\n"),
        ("            self.capacity = capacity\n            self._fresh_from,", "            self._fresh_from,"),
        ("self._written_to = self._touched_to()\n", "pass\n"),
        ("self.fresh_from, self.written_to = begin, begin + stay", "pass"),
        ("into = np.zeros(min(fitting_capacity(stay,", "into = np.zeros(max(fitting_capacity(stay,"),
        ("live[live] = self._ranks.held(rows[live])", "pass"),
        ("first, last = (self._rank(row) for row in (lo, hi))", "first, last = self._first, self._next"),
    ),
    "state.py": (
        ("kept = ~mask", "kept = mask"),
        (
            "min(fitting_capacity(stay, FIRST_CAPACITY), self.capacity)",
            "max(fitting_capacity(stay, FIRST_CAPACITY), self.capacity)",
        ),
        ("elif stay < len(kept):", "elif stay > len(kept):"),
        ("        if kept is not None:\n            self._closed_up(kept)\n", ""),
        ("self._fresh_from, self._written_to = self.lo, self.hi", "self._fresh_from = self.lo"),
        ("self._written_to = self._touched_to()\n", "pass\n"),
        ("self.hi) == GONE))\n\n    def _touched_to", "self.hi) != GONE))\n\n    def _touched_to"),
        ("self._dist = self._heads = np.zeros(0, np.int32)", "pass"),
        ("return self.group_sizes() * self.entry_bytes()", "return self.group_sizes() * self.capacity"),
        ("np.full(self.hi - self.lo, chosen[0])", "np.full(self.hi - self.lo, True)"),
        ("self.ts, self.lo, self.hi) + self.life, FOREVER))", "self.ts, self.lo, self.hi), FOREVER))"),
        ("return own + self._heads.nbytes", "return own"),
    ),
}

MEMORY_TESTS: dict[str, list[str]] = {
    "kernels/rank.py": ["test_store_release.py"],
    "kernels/partition.py": ["test_state_groups.py"],
    "ranks.py": ["test_store_release.py"],
}
"""Which tests see a file's errors first; those of the other files are in `tests.mutation.sandbox`."""
