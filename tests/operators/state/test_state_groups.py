"""Partition groups of a state and their removal: the rest behaves as if the removed entries had never existed."""

from __future__ import annotations

import mmap
import tracemalloc
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.data.tuples import FOREVER, Tuples
from operators.kernels.partition import groups_of
from operators.state import side_state as state
from operators.state.side_state import PARTITION_GROUPS, SideState
from tests.operators.state.test_state import hashed, probed, single, words
from tests.profiles import PROPERTY

KEYS = [1, 2**32 - 1, 2**32, 2**58, 2**58 + 9, 2**63, 2**63 + 2**40, 2**64 - 1]


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "FIRST_CAPACITY", 4)


def group(key: int, count: int) -> int:
    """By the definition, in Python's unbounded numbers."""
    return (key >> 32) * count >> 32


def parted(keys: list[int], count: int, life: int = FOREVER) -> SideState:
    side = SideState(("A",), life, hashed=True, exact_expiry=True, partition_groups=count)
    side.insert(single(list(range(len(keys))), life), words(keys))
    return side


@pytest.mark.parametrize("count", [1, 2, 3, 64, 300, 1000, 2**20])
def test_any_number_of_groups(count: int) -> None:
    """Every key has one group, of the number there are; the keys of a group lie together."""
    expected = [group(key, count) for key in KEYS]
    assert groups_of(words(KEYS), count).tolist() == expected
    side = parted(KEYS, count)
    side.lo = 2
    assert side.groups().tolist() == expected[2:]
    assert side.group_sizes().tolist() == np.bincount(expected[2:], minlength=count).tolist()
    chosen = np.zeros(count, np.bool_)
    chosen[expected[3]] = True
    assert side.in_groups(chosen).tolist() == [found == expected[3] for found in expected[2:]]


@pytest.mark.parametrize("count", [1, 2, 3, 64])
def test_entries_by_group(count: int) -> None:
    """Living entries, group by group, in a ring that has wrapped, with expiries stored or not."""
    side = parted(KEYS, count, life=3)
    side.lo = 3
    expected = [group(key, count) for key in KEYS]
    for retracted in ([], [6]):
        if retracted:
            side.retract(np.array(retracted, np.int64))
        entries, begins = side.by_group(8)
        found = [entries[begins[g] : begins[g + 1]].tolist() for g in range(count)]
        living = [e for e in (5, 6, 7) if e not in retracted]
        assert found == [[e for e in living if expected[e] == g] for g in range(count)]


def test_marked_rows() -> None:
    """Rows of living entries in a ring that has wrapped, with expiries stored or not, and several aliases."""
    side = parted(KEYS, 2, life=3)
    side.lo = 3
    held = np.zeros(9, np.bool_)
    side.mark_rows("A", 8, 4, held)
    assert np.flatnonzero(held).tolist() == [1, 2, 3]
    pairs = SideState(("A", "B"), FOREVER, hashed=False)
    numbers = np.arange(3, dtype=np.int64)
    pairs.insert(Tuples(("A", "B"), np.stack([numbers, 6 - 2 * numbers]), numbers, 4 - numbers), None)
    held[:] = False
    pairs.mark_rows("B", 3, 1, held)
    assert np.flatnonzero(held).tolist() == [3, 5]


def test_groups_are_even() -> None:
    """Hashes spread over 300 groups as they do over any number."""
    keys = np.arange(30_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    sizes = np.bincount(groups_of(keys, 300), minlength=300)
    assert len(sizes) == 300
    assert 90 <= sizes.min() <= sizes.max() <= 110


def test_without_keys_there_is_one_group() -> None:
    """A nested loop cannot be divided."""
    loop = SideState(("A",), 10, hashed=False, exact_expiry=True)
    loop.insert(single([1, 2]), None)
    assert loop.partition_groups == PARTITION_GROUPS
    assert loop.groups().tolist() == [0, 0]
    assert loop.group_sizes().tolist() == [2] + [0] * (PARTITION_GROUPS - 1)
    entries, begins = loop.by_group(12)
    assert (entries.tolist(), begins.tolist()) == ([1], [0] + [1] * PARTITION_GROUPS)
    assert loop.in_groups(np.arange(PARTITION_GROUPS) == 0).tolist() == [True, True]
    assert loop.in_groups(np.arange(PARTITION_GROUPS) == 1).tolist() == [False, False]


def test_bytes_of_groups() -> None:
    """An entry's rows, ts, key, distance and head; and expiry once it is kept."""
    side = parted(KEYS, 2)
    assert side.entry_bytes() == 8 + 8 + 8 + 4 + 4
    assert side.group_bytes().tolist() == [5 * 32, 3 * 32]
    side.retract(np.array([0]))
    assert side.entry_bytes() == 40
    terms = SideState(("A", "B"), 9, hashed=False, int_terms=2, float_terms=1)
    assert terms.entry_bytes() == 16 + 8 + 8 + 16 + 8


def test_remaining_entries_are_found() -> None:
    """Four of 0:7 1:8 2:7 3:9 4:8 5:7 stay; the index knows them by their new numbers."""
    side = parted([7, 8, 7, 9, 8, 7], 64)
    side.take_out(np.array([True, False, False, False, True, False]))
    assert (side.lo, side.hi) == (0, 4)
    assert side.tuples().rows[0].tolist() == [1, 2, 3, 5]
    assert probed(side, [7, 8, 9], [9, 9, 9]) == [(0, 3), (0, 1), (1, 0), (2, 2)]
    side.insert(single([9], FOREVER, 9), words([8]))
    assert probed(side, [8], [9]) == [(0, 4), (0, 0)]


def test_the_older_stay() -> None:
    """`take_out` only concerns a state's own entries."""
    side = parted([7, 8], 64)
    side.older = hashed(FOREVER)
    side.older.insert(single([0], FOREVER, 40), words([7]))
    side.take_out(np.array([True, False]))
    assert (len(side), len(side.older)) == (2, 1)
    assert side.tuples().rows[0].tolist() == [40, 1]
    assert side.has(words([7, 8]), 9).tolist() == [True, True]


def test_retracted_entries_are_counted_on() -> None:
    """Retracted and taken out, retracted and left, and neither."""
    side = parted(list(range(20)), 64)
    side.retract(np.array([2, 3]))
    assert len(side) == 18
    side.take_out(np.arange(20) % 2 == 0)
    assert (len(side), side.hi - side.lo) == (9, 10)
    assert side.tuples().rows[0][side.entries()].tolist() == [1, *range(5, 20, 2)]
    side.take_out(np.arange(10) != 1)
    assert (len(side), side.hi - side.lo) == (0, 1)
    side.take_out(np.array([True]))
    assert (len(side), side.hi - side.lo) == (0, 0)


def test_dead_rows_still_make_room() -> None:
    """Entries dead by a ROWS window are dropped when the ring is full, also after a removal of groups."""
    pairs = SideState(("A", "B"), FOREVER, hashed=True)
    rows = np.array([[10, 11, 12, 13], [20, 21, 22, 23]])
    pairs.insert(Tuples(("A", "B"), rows, np.arange(4), np.full(4, FOREVER)), words([7] * 4))
    pairs.purge_rows("A", 12)
    pairs.take_out(np.array([False, False, False, True]))
    more = Tuples(("A", "B"), np.array([[14, 15], [24, 25]]), np.array([9, 9]), np.full(2, FOREVER))
    pairs.insert(more, words([7, 7]))
    assert pairs.tuples().rows[0].tolist() == [12, 14, 15]


def test_memory_is_given_back() -> None:
    """Rings shrink to fit the remaining entries, with room; they never grow; they stay where little is removed."""
    side = parted(list(range(1000)), 64)
    assert side.capacity == 1024
    full = side.touched_bytes()
    assert full == 1000 * 28 + 1024 * 4
    side.take_out(np.arange(1000) % 20 == 0)
    assert (side.hi - side.lo, side.capacity, side.touched_bytes()) == (950, 1024, full)
    side.take_out(np.arange(950) % 5 == 0)
    assert (side.hi - side.lo, side.capacity) == (760, 1024)
    assert side.touched_bytes() == 760 * 28 + 1024 * 4
    side.take_out(np.arange(760) >= 100)
    assert (side.capacity, side.touched_bytes()) == (256, 100 * 28 + 256 * 4)
    side.take_out(np.ones(100, np.bool_))
    assert (side.capacity, side.touched_bytes(), len(side)) == (4, 4 * 4, 0)
    side.insert(single([2000], FOREVER), words([5]))
    assert probed(side, [5], [2000]) == [(0, 0)]


@pytest.mark.skipif(not state.GIVES_BACK, reason="memory is given back page by page on Linux")
def test_large_rings_give_pages_back() -> None:
    """Rings stay, the remaining entries keep their slots, and other pages are given back. Rings are replaced where very
    few entries remain or where the rings are small."""
    n = 40_000
    side = parted(list(range(n)), 64)
    side.purge_rows("A", 25_000)
    side.insert(single(list(range(n, n + 30_000)), FOREVER, n), words(list(range(n, n + 30_000))))
    rings = side.capacity
    side.take_out(np.arange(side.hi - side.lo) % 3 > 0)
    stay = side.hi - side.lo
    assert (side.capacity, stay, side.touched_bytes()) == (rings, 15_000, stay * 28 + rings * 4)
    rows = side.tuples().rows[0].tolist()
    assert rows == list(range(25_000, 70_000, 3))
    assert probed(side, [0, 25_000, 25_001, 69_997], [2 * n] * 4) == [
        (1, rows.index(25_000) + 25_000),
        (3, side.hi - 1),
    ]
    rings_left = (np.count_nonzero(ring) for ring in (side.ts, side.keys, side.rows[0]))
    assert all(stay - 1 <= left < stay + 4 * mmap.PAGESIZE // 8 for left in rings_left)
    side.take_out(np.arange(stay) % 50 > 0)
    assert (side.capacity, side.hi - side.lo) == (512, 300)


def test_written_memory_counts_until_rings_are_replaced() -> None:
    """Purged and compacted entries still take memory; `trim` gives it back."""
    side = hashed(life=10)
    for begin in range(0, 500, 100):
        side.insert(single(list(range(begin, begin + 100))), words(list(range(100))))
    assert side.touched_bytes() == 500 * 28 + 512 * 4
    side.purge(460)
    assert (side.hi - side.lo, side.touched_bytes()) == (50, 500 * 28 + 512 * 4)
    side.insert(single(list(range(500, 600))), words(list(range(100))))
    assert side.touched_bytes() == 512 * 32, "all around"
    side.trim()
    assert (side.hi - side.lo, side.capacity, side.touched_bytes()) == (150, 256, 150 * 28 + 256 * 4)
    side.trim()
    assert side.touched_bytes() == 150 * 28 + 256 * 4
    assert probed(side, [0], [505]) == [(0, 500)]


def test_growing_keeps_one_ring_twice() -> None:
    """Under a budget growth must not need the whole state a second time, nor a copy in between."""
    capacity = 1 << 16
    rows, ts, key = np.zeros((4, capacity), np.int64), np.arange(capacity), words([1])
    keys = ts.astype(np.uint64)
    aliases = tuple("ABCD")
    one = Tuples(aliases, rows[:, :1], ts[-1:], ts[-1:])
    tracemalloc.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(state, "FIRST_CAPACITY", capacity)
            side = SideState(aliases, FOREVER, hashed=True)
        side.insert(Tuples(aliases, rows, ts, ts), keys)
        before = side.size_bytes()
        tracemalloc.reset_peak()
        side.insert(one, key)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (side.capacity, side.size_bytes()) == (2 * capacity, 2 * before)
    assert peak <= side.size_bytes() + rows.nbytes // 2 + 100_000, "the index is made anew when the old rings have gone"


@dataclass
class Model:
    """Entries as (ts, key, row, retracted)."""

    life: int
    entries: list[tuple[int, int, int, bool]] = field(default_factory=list)

    def matches(self, key: int, ts: int) -> list[int]:
        return [row for t, k, row, gone in reversed(self.entries) if k == key and t <= ts <= t + self.life and not gone]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=40)),
        st.tuples(st.just("take"), st.lists(st.booleans(), min_size=1, max_size=7)),
        st.tuples(st.just("group"), st.integers(0, 5)),
        st.tuples(st.just("retract"), st.integers(1, 9)),
        st.tuples(st.just("purge"), st.integers(0, 9)),
        st.tuples(st.just("trim"), st.none()),
    ),
    max_size=12,
)


@pytest.mark.parametrize("kept_expiry", [False, True])
@pytest.mark.parametrize("life", [7, FOREVER])
@PROPERTY
@given(steps=STEPS, groups=st.sampled_from([1, 5, 64]), pages=st.booleans())
def test_a_state_is_a_list(kept_expiry: bool, life: int, steps: list[Any], groups: int, pages: bool) -> None:
    """Through inserts, removals, retractions and purges, probes return the pairs of a list in its order, whether memory
    is given back by new rings or page by page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "FIRST_CAPACITY", 4)
        if pages:
            patch.setattr(state, "GIVE_BACK_MIN_CAPACITY", 4)
        _is_a_list(kept_expiry, life, steps, groups)


def _is_a_list(kept_expiry: bool, life: int, steps: list[Any], groups: int) -> None:
    aliases = ("A", "B") if kept_expiry else ("A",)
    side = SideState(aliases, life, hashed=True, exact_expiry=not kept_expiry, partition_groups=groups)
    model = Model(life)
    hashes = [key * 2**61 + key for key in range(6)]
    now = row = 0
    for kind, what in steps:
        if kind == "insert":
            begin, ts = now, []
            for pause, _ in what:
                now += pause
                ts.append(now)
            stamps = np.array(ts, np.int64)
            rows = np.tile(np.arange(row, row + len(ts)), (len(aliases), 1))
            keys = words([hashes[key] for _, key in what])
            side.insert(Tuples(aliases, rows, stamps, np.minimum(stamps + life, FOREVER)), keys, now=begin)
            model.entries += [(t, key, row + i, False) for i, (t, (_, key)) in enumerate(zip(ts, what, strict=True))]
            row += len(ts)
        elif kind == "purge":
            now += what
            side.purge(now)
        elif kind == "trim":
            side.trim()
        else:
            held = side.gather(np.arange(side.lo, side.hi))[0][0].tolist()
            if kind == "retract":
                some = set(held[::what]) & {found for _, _, found, gone in model.entries if not gone}
                side.retract(np.array([side.lo + held.index(one) for one in sorted(some)], np.int64))
                model.entries = [(t, k, found, gone or found in some) for t, k, found, gone in model.entries]
            else:
                if kind == "take":
                    mask = np.array([what[one % len(what)] for one in held], np.bool_)
                else:
                    mask = side.in_groups(np.arange(groups) == group(hashes[what], groups))
                    assert set(side.keys[np.flatnonzero(mask) + side.lo & side.capacity - 1].tolist()) <= set(hashes)
                    assert int(mask.sum()) == side.group_sizes()[group(hashes[what], groups)]
                side.take_out(mask)
                taken = {one for one, out in zip(held, mask.tolist(), strict=True) if out}
                model.entries = [entry for entry in model.entries if entry[2] not in taken]
        living = [found for t, _, found, gone in model.entries if not gone and t + life >= now]
        assert set(living) <= set(side.gather(side.entries())[0][0].tolist())
        assert len(side) == len(side.entries())
        keys, times = hashes * 2, [now] * 6 + [now + 3] * 6
        got = [(i, int(side.rows[0, e & (side.capacity - 1)])) for i, e in probed(side, keys, times)]
        assert got == [(i, found) for i, t in enumerate(times) for found in model.matches(i % 6, t)]
        since = np.arange(groups) % 3 + now - 2
        newer = np.zeros(groups, np.int64)
        slots = np.arange(side.lo, side.hi) & (side.capacity - 1)
        for key, ts in zip(side.keys[slots].tolist(), side.ts[slots].tolist(), strict=True):
            newer[group(key, groups)] += ts >= since[group(key, groups)]
        assert side.newer_in_groups(since).tolist() == newer.tolist()
        assert side.groups().tolist() == [group(key, groups) for key in side.read_keys(side.lo, side.hi).tolist()]
        assert side.touched_bytes() <= side.size_bytes()
