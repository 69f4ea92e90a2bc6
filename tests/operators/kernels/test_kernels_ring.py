"""Rings, the order of ties, compaction: arrays in which absolute numbers wrap around.

A ring of capacity 8 shows number e in slot e & 7:   slot 0 1 2 3 4 5 6 7
                                                     e    8 9 . . 4 5 6 7
"""

from __future__ import annotations

import numpy as np
import pytest

from operators.kernels.order import SHORT_RUN, order_ties
from operators.kernels.ring import (
    compact_ring,
    compact_strings,
    first_at_least,
    fitting_capacity,
    gather_strings,
    live_mask,
    ring_grow,
    ring_read,
    ring_thinned,
    ring_write,
    sum_where,
    touched_bytes,
)
from schemas.columns import I64


def wrapped(values: list[int], lo: int, capacity: int = 8) -> np.ndarray:
    """A ring with `values` as numbers lo, lo + 1, ..; the rest is -1."""
    ring = np.full(capacity, -1, np.int64)
    ring_write(ring, lo, np.array(values, np.int64))
    return ring


@pytest.mark.parametrize("lo", [0, 3, 5, 7, 8, 1000])
@pytest.mark.parametrize("count", [0, 1, 3, 8])
def test_written_is_read(lo: int, count: int) -> None:
    """From any place, up to the whole capacity."""
    values = list(range(100, 100 + count))
    ring = wrapped(values, lo)
    assert ring_read(ring, lo, lo + count).tolist() == values
    for i in range(count):
        assert ring[(lo + i) & 7] == values[i]
    assert (ring == -1).sum() == 8 - count


def test_writing_leaves_the_rest() -> None:
    """Only the numbers written change."""
    ring = wrapped([1, 2, 3, 4, 5, 6, 7, 8], 6)
    ring_write(ring, 6, np.array([91, 92, 93]))
    assert ring_read(ring, 6, 14).tolist() == [91, 92, 93, 4, 5, 6, 7, 8]


def test_read_is_a_copy() -> None:
    """Callers may keep it."""
    ring = wrapped([1, 2, 3], 0)
    copy = ring_read(ring, 0, 3)
    ring_write(ring, 0, np.array([9, 9, 9]))
    assert copy.tolist() == [1, 2, 3]


def test_rows_of_rings_share_their_numbers() -> None:
    """(k, capacity): along the last axis."""
    ring = np.zeros((2, 4), np.int64)
    ring_write(ring, 3, np.array([[1, 2], [3, 4]]))
    assert ring_read(ring, 3, 5).tolist() == [[1, 2], [3, 4]]
    assert ring_grow(ring, 3, 5, 8)[:, 3:5].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("lo", [0, 5, 13, 21])
def test_growing_keeps_numbers(lo: int) -> None:
    """Each moves to its slot in the larger ring; the rest is zero."""
    ring = wrapped([1, 2, 3, 4, 5], lo)
    grown = ring_grow(ring, lo, lo + 5, 16)
    assert ring_read(grown, lo, lo + 5).tolist() == [1, 2, 3, 4, 5]
    assert grown.sum() == 15
    assert ring_grow(ring, lo, lo, 16).tolist() == [0] * 16


@pytest.mark.parametrize("lo", [0, 5, 1003])
def test_first_at_least(lo: int) -> None:
    """Binary search over a wrapped ring, for every bound."""
    values = [10, 10, 20, 30, 30, 30, 40]
    ring = wrapped(values, lo)
    for bound in (-(2**63), 9, 10, 11, 20, 25, 30, 31, 40, 41, 2**63 - 1):
        expected = next((i for i, v in enumerate(values) if v >= bound), len(values))
        assert first_at_least(ring, lo, lo + len(values), bound) == lo + expected
    assert first_at_least(ring, lo, lo, 10) == lo
    assert first_at_least(ring, lo + 3, lo + 5, 10) == lo + 3, "only within the bounds given"
    assert first_at_least(ring, lo, lo + 2, 20) == lo + 2


def test_live_mask() -> None:
    """Expiry is inclusive: what expires now lives now."""
    ring = wrapped([4, 5, 6, 3, 9], 6)
    assert live_mask(ring, 6, 11, 5).tolist() == [False, True, True, False, True]
    assert live_mask(ring, 8, 10, 5).tolist() == [True, False]


@pytest.mark.parametrize("lo", [0, 6, 1005])
def test_compaction_moves_the_living_together(lo: int) -> None:
    """In place and in order; what lies beyond keeps its value."""
    ring = wrapped([1, 2, 3, 4, 5, 6], lo)
    compact_ring(ring, lo, np.array([False, True, False, True, True, False]), ring)
    assert ring_read(ring, lo, lo + 3).tolist() == [2, 4, 5]
    ring = wrapped([1, 2, 3], lo)
    compact_ring(ring, lo, np.ones(3, np.bool_), ring)
    assert ring_read(ring, lo, lo + 3).tolist() == [1, 2, 3]


@pytest.mark.parametrize("lo", [0, 6, 1005])
@pytest.mark.parametrize("capacity", [4, 8, 16])
def test_thinning_moves_them_to_another_ring(lo: int, capacity: int) -> None:
    """Also of a smaller or larger capacity, line by line; the rest is zero, the old ring as it was."""
    ring = wrapped([1, 2, 3, 4, 5, 6], lo)
    kept = np.array([False, True, False, True, True, False])
    thinned = ring_thinned(ring, lo, kept, capacity)
    assert ring_read(thinned, lo, lo + 3).tolist() == [2, 4, 5]
    assert thinned.sum() == 11
    assert ring_read(ring, lo, lo + 6).tolist() == [1, 2, 3, 4, 5, 6]
    both = ring_thinned(np.stack([ring, ring * 10]), lo, kept, capacity)
    assert ring_read(both, lo, lo + 3).tolist() == [[2, 4, 5], [20, 40, 50]]
    assert sum_where(ring, lo, kept) == 11


@pytest.mark.parametrize("room", [8, 16, 32])
def test_strings_close_up_across_wraps(room: int) -> None:
    """In the same ring of bytes or another; strings keep their numbers."""
    texts = [b"one", b"", b"three", b"x", b"fifth", b"six"]
    data, starts, lengths = np.zeros(32, np.uint8), wrapped([], 0), wrapped([], 0)
    lo, at = 13, 1029
    for i, text in enumerate(texts):
        ring_write(data, at, np.frombuffer(text, np.uint8))
        ring_write(starts, lo + i, np.array([at]))
        ring_write(lengths, lo + i, np.array([len(text)]))
        at += len(text)
    into = data if room == 32 else np.zeros(room, np.uint8)
    kept = np.array([False, True, False, True, True, False])
    assert compact_strings(starts, lengths, data, lo, kept, 1029, into) == 1029 + 6
    offsets, found = gather_strings(starts, lengths, into, np.array([lo + 4, lo + 1, lo + 3]))
    assert (offsets.tolist(), found.tobytes()) == ([0, 5, 5, 6], b"fifthx")


def test_a_fitting_capacity_leaves_room() -> None:
    """A quarter at least."""
    found = [fitting_capacity(n, 4) for n in (0, 1, 3, 4, 6, 7, 12, 13, 96, 97)]
    assert found == [4, 4, 4, 8, 8, 16, 16, 32, 128, 256]


def test_touched_bytes() -> None:
    """What was written since the ring was made, up to all of it."""
    assert touched_bytes(np.zeros(8, np.int64), 5, 9) == 4 * 8
    assert touched_bytes(np.zeros(8, np.int64), 5, 50) == 8 * 8
    assert touched_bytes(np.zeros((3, 8), np.int64), 5, 9) == 3 * 4 * 8
    assert touched_bytes(np.zeros((0, 8), np.int64), 5, 9) == 0
    assert touched_bytes(np.zeros(0, np.int64), 5, 9) == 0


def test_strings_are_gathered_across_both_wraps() -> None:
    """Rows wrap in one ring, bytes in another.

    bytes ring (8):  n e . t w o . o   ->  "one" at 7 goes on at 0, "two" is at 3
    """
    data = np.frombuffer(b"ne.two.o", np.uint8).copy()
    starts, lengths = np.zeros(4, np.int64), np.zeros(4, np.int64)
    ring_write(starts, 3, np.array([3, 7, 11]))
    ring_write(lengths, 3, np.array([3, 3, 0]))
    offsets, out = gather_strings(starts, lengths, data, np.array([4, 3, 5, 4]))
    assert offsets.tolist() == [0, 3, 6, 6, 9]
    assert bytes(out) == b"onetwoone"
    offsets, out = gather_strings(starts, lengths, data, np.zeros(0, np.int64))
    assert offsets.tolist() == [0]
    assert len(out) == 0


def test_order_ties() -> None:
    """Runs of equal ts are put in the order of rows, most significant component first; nothing else moves."""
    ts = np.array([1, 2, 2, 2, 2, 3, 4, 4])
    rows = np.array([[9, 5, 4, 5, 4, 0, 2, 1], [0, 1, 3, 0, 2, 7, 1, 1]])

    def first(count: int) -> I64:
        # As in the engine: another layout would compile another kernel.
        return np.ascontiguousarray(rows[:, :count])

    assert order_ties(ts, rows).tolist() == [0, 4, 2, 3, 1, 5, 7, 6]
    assert order_ties(ts[:1], first(1)).tolist() == [0]
    assert order_ties(ts[:0], first(0)).tolist() == []
    alone = np.arange(5)
    assert order_ties(alone, first(5)).tolist() == [0, 1, 2, 3, 4], "different ts: as they come"


def test_order_ties_reaches_the_last_run() -> None:
    """A run at the end of the input, and one that is all of it."""
    same = np.array([7, 7, 7])
    assert order_ties(same, np.array([[3, 1, 2]])).tolist() == [1, 2, 0]
    assert order_ties(np.array([1, 7, 7]), np.array([[0, 2, 1]])).tolist() == [0, 2, 1]


@pytest.mark.parametrize("length", [1, 2, SHORT_RUN - 1, SHORT_RUN, SHORT_RUN + 1, 500])
def test_order_ties_of_any_length(length: int) -> None:
    """Short runs are inserted, long ones sorted; neighbours of other ts stay where they are."""
    random = np.random.default_rng(length)
    ts = np.array([1] * 3 + [5] * length + [9] * 2)
    rows = random.integers(0, 6, (3, len(ts)))
    rows[2] = random.permutation(len(ts))  # no two results are the same
    expected = sorted(range(len(ts)), key=lambda i: (ts[i], *rows[:, i]))
    assert order_ties(ts, rows).tolist() == expected
