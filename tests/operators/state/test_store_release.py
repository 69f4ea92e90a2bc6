"""Rows that leave a store out of order: through releases, purges, appends and growth it has the rows of a dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from operators.data.tuples import FOREVER
from operators.data.watermark import END
from operators.state import row_positions as ranks
from operators.state import store
from operators.state.store import SourceStore
from schemas.columns import Batch, Column, Mask
from schemas.query import Type
from tests.profiles import PROPERTY

FIELDS = [
    ("v", Type.BIGINT),
    ("d", Type.DOUBLE),
    ("f", Type.BOOLEAN),
    ("s", Type.STRING),
    ("_ts", Type.TIMESTAMP),
]
TEXTS = ["", "a", None, "äöü", "exactly 8", "a text that is longer than others"]


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FIRST_CAPACITY", 2)
    monkeypatch.setattr(ranks, "FIRST_WORDS", 1)


def values(row: int, nulls_from: int) -> tuple[Any, ...]:
    """The values of row `row`; nulls come late."""
    if row >= nulls_from and row % 7 == 3:
        return (None, None, None, None)
    text = TEXTS[row * 5 % len(TEXTS)]
    return (row * 3 - 50, row / 4, row % 3 == 0, "" if text is None and row < nulls_from else text)


def batch(first: int, ts: list[int], nulls_from: int = 0) -> Batch:
    rows = [values(row, nulls_from) for row in range(first, first + len(ts))]
    columns = {name: Column.from_values([row[i] for row in rows], type) for i, (name, type) in enumerate(FIELDS[:-1])}
    return Batch(np.array(ts, np.int64), columns)


def filled(n: int, *, lasting_ts: bool = False) -> SourceStore:
    """Rows 0 .. n with ts 10 * row, in one epoch."""
    of = SourceStore(FIELDS, lasting_ts=lasting_ts)
    of.append(batch(0, [10 * row for row in range(n)]))
    return of


def dead(of: SourceStore, *rows: int) -> Mask:
    mask = np.zeros(of.hi - of.lo, np.bool_)
    mask[[row - of.lo for row in rows]] = True
    return mask


def column(of: SourceStore, name: str, rows: list[int]) -> list[Any]:
    return of.gather(name, np.array(rows, np.int64)).to_values()


def test_the_others_keep_their_ids() -> None:
    """Released rows are no longer read; the other rows keep their ids."""
    of = filled(6)
    of.release(dead(of, 0, 3, 4))
    assert (of.lo, of.hi, len(of)) == (0, 6, 3)
    assert of.stored_rows().tolist() == [1, 2, 5]
    assert of.stored_rows(2, 5).tolist() == [2]
    assert of.are_stored(np.array([5, 4, 1, 0, 6, -1])).tolist() == [True, False, True, False, False, False]
    assert column(of, "v", [5, 1, 2, 5]) == [-35, -47, -44, -35]
    assert column(of, "s", [1, 5]) == [values(1, 0)[3], values(5, 0)[3]]
    assert of.read(0, 6).ts.tolist() == [10, 20, 50]
    assert of.read(3, 5).ts.tolist() == []
    assert of.append(batch(6, [60, 60])).tolist() == [6, 7]
    assert column(of, "v", [7, 2, 6]) == [-29, -44, -32]


def test_a_row_may_be_named_again() -> None:
    """The dead of a sweep may include those of the last one; a sweep that finds none costs no directory."""
    of = filled(5)
    before = of.size_bytes()
    of.release(dead(of))
    assert of.size_bytes() == before
    of.release(dead(of, 1))
    of.release(dead(of, 1, 2))
    of.release(dead(of))
    assert of.stored_rows().tolist() == [0, 3, 4]
    assert column(of, "v", [0, 3, 4]) == [values(row, 0)[0] for row in (0, 3, 4)]


def test_all_may_be_released() -> None:
    """The store continues after that."""
    of = filled(70)
    of.release(np.ones(70, np.bool_))
    assert (of.lo, of.hi, len(of), of.capacity) == (0, 70, 0, 2)
    assert of.stored_rows().tolist() == []
    assert of.first_at(0) == 70
    assert of.spaced_rows(5).tolist() == []
    assert len(of.read(0, 70)) == 0
    assert of.append(batch(70, [700])).tolist() == [70]
    assert of.first_at(0) == 70
    assert column(of, "s", [70]) == [values(70, 0)[3]]


def test_first_at_finds_stored_rows() -> None:
    """0, 10 .. 90 without 30 and 40."""
    of = filled(10)
    of.release(dead(of, 3, 4))
    assert [of.first_at(ts) for ts in (-1, 20, 21, 30, 41, 50, 51, 90, 91)] == [0, 2, 5, 5, 5, 5, 6, 9, 10]
    of.purge(0, 60, None)
    assert of.lo == 0, "an epoch goes as a whole"


def test_times_stay_for_rows_windows() -> None:
    """A released row is still a successor of other rows: its ts counts."""
    of = filled(6, lasting_ts=True)
    of.release(dead(of, 2, 3))
    assert column(of, "_ts", [2, 3, 5]) == [20, 30, 50]
    assert of.first_at(25) == 3
    assert of.read(0, 6).ts.tolist() == [0, 10, 40, 50]
    of.append(batch(6, [60] * 9))
    assert column(of, "_ts", list(range(2, 15))) == [20, 30, 40, 50, *[60] * 9]
    of.purge(0, 61, 12)
    assert (of.lo, len(of)) == (3, 11)
    assert of.stored_rows().tolist() == list(range(4, 15))


def test_purging_released_rows_ends_their_cost() -> None:
    """There is no directory once all live rows are stored again; numbers and values continue."""
    of = SourceStore(FIELDS)
    for first in range(0, 60, 10):
        of.append(batch(first, [first] * 10))
    of.release(dead(of, *range(5, 25), 38))
    with_directory = of.size_bytes()
    of.purge(10, 31, None)
    assert (of.lo, len(of)) == (30, 29)
    of.purge(10, 45, None)
    assert (of.lo, len(of)) == (40, 20)
    assert of.size_bytes() < with_directory
    assert column(of, "v", [40, 58]) == [70, 124]
    assert of.first_at(41) == 50
    assert of.spaced_rows(4).tolist() == [40, 45, 50, 55]
    of.append(batch(60, [60] * 3))
    of.release(dead(of, 41))
    assert of.stored_rows().tolist() == [40, *range(42, 63)]
    assert column(of, "v", [40, 42, 62]) == [70, 76, 136]


def test_memory_is_freed_with_the_rows() -> None:
    """Rings shrink to fit the remaining rows; 2 bits are left of a released row."""
    of = filled(4096)
    before = of.touched_bytes()
    of.release(np.arange(4096) % 64 > 0)
    assert of.capacity == 128
    per_row = 8 + 8 + 1 + 8 + 8 + 8 + 3
    assert before >= 4096 * per_row
    assert of.touched_bytes() <= 64 * (per_row + 40) + 4096 * 2 // 8 + store.EPOCH_END_BYTES
    of.release(np.arange(4096) % 128 > 0)
    assert of.stored_rows().tolist() == list(range(0, 4096, 128))


def test_the_bytes_of_strings_go_too() -> None:
    """Their ring is replaced by the bytes in it, not by the number of strings."""
    of = SourceStore([("s", Type.STRING)])
    text = Column.from_values(["x" * 100] * 999 + ["y" * 300], Type.STRING)
    of.append(Batch(np.zeros(1000, np.int64), {"s": text}))
    rest = of.touched_bytes() - 1000 * 16 - 999 * 100 - 300
    assert rest == store.EPOCH_END_BYTES
    of.release(np.arange(1000) % 10 < 9)
    directory = 2 * 8 * 16
    assert of.touched_bytes() - rest == 100 * 16 + 99 * 100 + 300 + directory
    assert of.size_bytes() == 256 * 16 + 16_384 + directory
    of.release(np.arange(1000) % 50 < 49)
    assert of.touched_bytes() - rest == 20 * 16 + 19 * 100 + 300 + directory
    assert column(of, "s", [49, 999]) == ["x" * 100, "y" * 300]


def test_few_rows_are_compacted_in_place() -> None:
    """The memory of few rows does not pay for new rings; it still counts as taken, until many rows have left."""
    of = filled(1000)
    taken = of.touched_bytes()
    of.release(dead(of, *range(0, 1000, 20)))
    assert (len(of), of.capacity) == (950, 1024)
    assert of.touched_bytes() >= taken
    assert column(of, "v", [999, 1, 19]) == [values(row, 0)[0] for row in (999, 1, 19)]
    of.release(dead(of, *range(1, 1000, 10)))
    assert len(of) == 850
    assert of.touched_bytes() < 0.9 * taken


def test_trim_returns_the_memory_of_purged_rows() -> None:
    """Rings of the rows that live now."""
    of = SourceStore(FIELDS)
    for first in range(0, 640, 64):
        of.append(batch(first, [first] * 64))
    of.purge(0, 500, None)
    assert (len(of), of.capacity) == (128, 1024)
    before = of.touched_bytes()
    of.trim()
    assert of.capacity == 256
    assert of.touched_bytes() < before / 4
    assert column(of, "s", [*range(512, 640)]) == [values(row, 0)[3] for row in range(512, 640)]
    same = of.touched_bytes()
    of.trim()
    assert of.touched_bytes() == same


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 150), st.integers(1, 40)),
        st.tuples(st.just("release"), st.lists(st.booleans(), min_size=1, max_size=11), st.none()),
        st.tuples(st.just("release"), st.integers(0, 300), st.integers(1, 150)),
        st.tuples(st.just("purge"), st.integers(0, 30), st.sampled_from([None, 3, 90])),
        st.tuples(st.just("trim"), st.none(), st.none()),
    ),
    max_size=14,
)


@pytest.mark.parametrize("tracked", [False, True])
@PROPERTY
@given(steps=STEPS, start=st.sampled_from([0, 1, 63, 64, 1_000_001]), nulls_from=st.sampled_from([0, 40, 10**9]))
@example(
    steps=[
        ("append", 130, 1),
        ("release", [True], None),
        ("append", 10, 1),
        ("purge", 0, None),
        ("append", 70, 5),
        ("release", 0, 66),
        ("append", 3, 1),
    ],
    start=63,
    nulls_from=0,
)
def test_a_store_is_a_dict(tracked: bool, steps: list[Any], start: int, nulls_from: int) -> None:
    """Appends, releases by pattern and by stretch, purges by lifetime and rows, trims, in any order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "FIRST_CAPACITY", 2)
        patch.setattr(ranks, "FIRST_WORDS", 1)
        of = SourceStore(FIELDS, lasting_ts=tracked)
    of.begin_at(start)
    model: dict[int, tuple[Any, ...]] = {}
    stamps: dict[int, int] = {}
    now, following = 0, start
    for kind, first, second in steps:
        if kind == "append":
            now += second
            ts = [now + i // 4 for i in range(first)]
            now = ts[-1] if ts else now
            assert of.append(batch(following, ts, nulls_from)).tolist() == list(range(following, following + first))
            for i, at in enumerate(ts):
                model[following + i] = values(following + i, nulls_from)
                stamps[following + i] = at
            following += first
        elif kind == "release":
            rows = list(range(of.lo, of.hi))
            if isinstance(first, list):
                gone = [first[row % len(first)] for row in rows]
            else:
                gone = [first <= row - of.lo < first + second for row in rows]
            of.release(np.array(gone, np.bool_))
            model = {row: held for row, held in model.items() if not gone[row - of.lo]}
        elif kind == "purge":
            of.purge(0 if tracked and second else first, now + 1 if first < 20 else END, second if tracked else None)
            model = {row: held for row, held in model.items() if row >= of.lo}
        else:
            of.trim()
        held = sorted(model)
        assert (of.hi, len(of)) == (following, len(held))
        assert of.stored_rows().tolist() == held
        middle = (of.lo + of.hi) // 2
        assert of.stored_rows(middle, of.hi).tolist() == [row for row in held if row >= middle]
        around = np.arange(of.lo - 70, of.hi + 70)
        assert of.are_stored(around).tolist() == [row in model for row in around.tolist()]
        asked = held[::-3] + held[::2]
        for number, (name, _) in enumerate(FIELDS[:-1]):
            assert column(of, name, asked) == [model[row][number] for row in asked]
        found = of.read(of.lo, of.hi)
        assert found.ts.tolist() == [stamps[row] for row in held]
        assert found.columns["s"].to_values() == [model[row][3] for row in held]
        searched = range(of.lo, of.hi) if tracked else held
        for ts_asked in {0, now // 2, now, now + 1, *(stamps[row] for row in held[::40])}:
            expected = next((row for row in searched if stamps[row] >= ts_asked), of.hi)
            assert of.first_at(ts_asked) == expected
        step = max(1, -(-len(held) // 5))
        assert of.spaced_rows(5).tolist() == held[::step]
        if tracked:
            assert column(of, "_ts", list(range(of.lo, of.hi))) == [stamps[row] for row in range(of.lo, of.hi)]
        assert 0 <= of.touched_bytes() - len(of._epoch_ends) * store.EPOCH_END_BYTES <= of.size_bytes()


def test_endless_streams_are_never_purged() -> None:
    """An UNBOUNDED stream gets smaller by releasing only."""
    of = filled(10)
    of.release(dead(of, *range(9)))
    of.purge(FOREVER, END, None)
    assert (of.lo, of.stored_rows().tolist()) == (0, [9])
