"""The store of source tuples returns what was written, through wraps, growth, late nulls and purging."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.data.tuples import FOREVER
from operators.data.watermark import END
from operators.state import store
from operators.state.store import SourceStore
from schemas.columns import Batch, Column
from schemas.query import Type
from tests.profiles import PROPERTY

FIELDS = [
    ("v", Type.BIGINT),
    ("d", Type.DOUBLE),
    ("f", Type.BOOLEAN),
    ("s", Type.STRING),
    ("_ts", Type.TIMESTAMP),
]
Row = tuple[Any, Any, Any, Any]


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FIRST_CAPACITY", 4)


def batch(rows: list[Row], ts: list[int]) -> Batch:
    columns = {name: Column.from_values([row[i] for row in rows], type) for i, (name, type) in enumerate(FIELDS[:-1])}
    return Batch(np.array(ts, np.int64), columns)


def read(of: SourceStore, lo: int, hi: int) -> list[Row]:
    columns = of.read(lo, hi).columns
    values = [columns[name].to_values() for name, _ in FIELDS[:-1]]
    return list(zip(*values, strict=True))


def test_rows_are_numbered_on() -> None:
    """Ids are absolute and never reused."""
    of = SourceStore(FIELDS)
    assert of.append(batch([(1, 0.5, True, "a"), (2, 1.5, False, "bb")], [3, 3])).tolist() == [0, 1]
    assert of.append(batch([], [])).tolist() == []
    assert of.append(batch([(3, None, None, None)], [4])).tolist() == [2]
    assert read(of, 0, 3) == [(1, 0.5, True, "a"), (2, 1.5, False, "bb"), (3, None, None, None)]
    assert of.read(1, 3).ts.tolist() == [3, 4]
    assert of.gather("s", np.array([1, 0, 1])).to_values() == ["bb", "a", "bb"]
    assert of.columns == ("v", "d", "f", "s", "_ts")


def test_nulls_may_come_late() -> None:
    """A column without nulls has no mask until the first one; earlier rows stay valid, through growth too."""
    of = SourceStore(FIELDS)
    of.append(batch([(1, 1.0, True, "a")] * 3, [1, 1, 1]))
    assert all(column.valid is None for column in of.read(0, 3).columns.values())
    of.append(batch([(None, None, None, None)], [2]))
    of.append(batch([(5, 5.0, False, "e")] * 9, [3] * 9))
    assert read(of, 0, 13) == [(1, 1.0, True, "a")] * 3 + [(None,) * 4] + [(5, 5.0, False, "e")] * 9
    late = of.gather("v", np.array([3, 4]))
    assert late.valid is not None
    assert late.valid.tolist() == [False, True]
    assert of.gather("v", np.array([0, 4])).valid is None, "no mask where nothing is null"
    assert of.gather("s", np.array([0, 4])).valid is None


def test_a_null_disappears_with_its_slot() -> None:
    """A valid value that takes over a null's slot is valid."""
    of = SourceStore(FIELDS)
    for t in range(50):
        of.append(batch([(t, None, None, None) if t % 3 else (None, 1.0, True, "x")], [t]))
        of.purge(2, t + 1, None)
        assert read(of, t, t + 1) == [(t, None, None, None) if t % 3 else (None, 1.0, True, "x")]
    assert of.capacity == 4


def test_strings_wrap_and_grow() -> None:
    """Bytes lie in a ring of their own, which wraps at other positions and doubles when full."""
    of = SourceStore([("s", Type.STRING)])
    texts: list[str] = []
    for t in range(300):
        text = "äöü"[t % 3] * (t % 7) if t % 50 else "long " * 20
        texts.append(text)
        of.append(Batch(np.array([t]), {"s": Column.from_values([text], Type.STRING)}))
        of.purge(4, t + 1, None)
        rows = np.arange(of.lo, of.hi)
        assert of.gather("s", rows).to_values() == texts[of.lo : of.hi]
        assert len(rows) <= 6
    assert of.capacity == 8
    assert of.size_bytes() <= 8 * 16 + 256, "room for about twice what was ever held at once"


def test_strings_of_a_slice() -> None:
    """Offsets that do not begin at 0."""
    of = SourceStore([("s", Type.STRING)])
    whole = Column.from_values(["skipped", "one", None, "three", "cut"], Type.STRING)
    of.append(Batch(np.array([1, 1, 1]), {"s": whole.slice(1, 4)}))
    of.append(Batch(np.array([2]), {"s": whole.slice(3, 4)}))
    assert of.gather("s", np.arange(4)).to_values() == ["one", None, "three", "three"]


def test_purge_by_lifetime() -> None:
    """Whole epochs are dropped: when the last tuple is dead at the cut, that is ts + lifetime < cut."""
    of = SourceStore([])
    for ts in ([1, 2], [3, 5], [6]):
        of.append(Batch(np.array(ts), {}))
    of.purge(10, 12, None)
    assert of.lo == 0, "2 + 10 = 12 is alive at 12"
    of.purge(10, 13, None)
    assert of.lo == 2
    of.purge(10, 15, None)
    assert of.lo == 2, "5 lives, so 3 stays"
    of.purge(FOREVER, END, None)
    assert of.lo == 2
    of.purge(10, END, None)
    assert of.lo == 5


def test_purge_by_rows() -> None:
    """The newest n stay, row by row."""
    of = SourceStore([("_ts", Type.TIMESTAMP)])
    of.append(Batch(np.array([1, 2, 3]), {}))
    of.purge(0, 4, 5)
    assert of.lo == 0
    of.purge(0, 4, 2)
    assert of.lo == 1
    of.append(Batch(np.array([4]), {}))
    of.purge(0, 5, 2)
    assert (of.lo, of.hi) == (2, 4)
    of.append(Batch(np.array([9]), {}))
    of.purge(0, 5, 2)
    assert of.lo == 2, "what comes after the cut does not count yet"
    of.purge(0, END, 2)
    assert of.lo == 3


def test_purge_by_both() -> None:
    """A row in a RANGE window of one alias and a ROWS window of another is dropped when it is dead for both."""
    of = SourceStore([("_ts", Type.TIMESTAMP)])
    for t in range(10):
        of.append(Batch(np.array([t]), {}))
    of.purge(100, 11, 3)
    assert of.lo == 0, "alive by RANGE"
    of.purge(2, 11, 20)
    assert of.lo == 0, "alive by ROWS"
    of.purge(2, 11, 4)
    assert of.lo == 6
    of.purge(5, 11, 1)
    assert of.lo == 6, "never back"
    of.purge(2, 11, 1)
    assert of.lo == 9
    of.purge(FOREVER, 11, 1)
    assert of.lo == 9


def test_horizons_are_columns_that_are_not_exported() -> None:
    """They are gathered like any other column, and a restore computes them again."""
    of = SourceStore([("_ts", Type.TIMESTAMP)], horizons=["#b"], lasting_ts=True)
    of.append(Batch(np.array([1, 2, 3]), {"#b": Column(Type.BIGINT, np.array([-1, 4, 4]))}))
    assert of.gather("#b", np.array([0, 2])).to_values() == [-1, 4]
    assert list(of.read(0, 3).columns) == ["_ts"]


def test_begin_at() -> None:
    """A restored store continues its numbers."""
    of = SourceStore(FIELDS)
    of.begin_at(1_000_001)
    assert of.append(batch([(1, 1.0, True, "a")] * 5, [1] * 5)).tolist() == list(range(1_000_001, 1_000_006))
    assert read(of, 1_000_001, 1_000_006) == [(1, 1.0, True, "a")] * 5


def test_size_bytes() -> None:
    """Rings with their unused room; masks once there are any."""
    of = SourceStore(FIELDS, horizons=["#b"], lasting_ts=True)
    assert of.size_bytes() == 4 * (8 + 8 + 1 + 16 + 1 + 8) + 4 * 8
    written = batch([(None, 1.0, True, None)], [1])
    of.append(Batch(written.ts, {**written.columns, "#b": Column(Type.BIGINT, np.array([3]))}))
    assert of.size_bytes() == 4 * (8 + 8 + 1 + 16 + 1 + 8) + 4 * 8 + 2 * 4


VALUES = st.tuples(
    st.sampled_from([None, 0, -1, 2**63 - 1]),
    st.sampled_from([None, 0.5, -0.0]),
    st.sampled_from([None, True, False]),
    st.sampled_from([None, "", "a", "ä", "longer than eight bytes", "12345678"]),
)


@PROPERTY
@given(
    st.lists(
        st.tuples(st.lists(VALUES, max_size=9), st.integers(0, 3), st.sampled_from([None, 0, 5, FOREVER])),
        max_size=12,
    )
)
def test_any_epochs_are_read_back(epochs: list[tuple[list[Row], int, int | None]]) -> None:
    """Whatever was appended, purged and grown: live rows are as they were written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "FIRST_CAPACITY", 2)
        of = SourceStore(FIELDS)
    written: list[Row] = []
    now = 0
    for rows, step, life in epochs:
        now += step
        ids = of.append(batch(rows, [now] * len(rows)))
        assert ids.tolist() == list(range(len(written), len(written) + len(rows)))
        written += rows
        if life is not None:
            of.purge(life, now + 1, None)
        got = read(of, of.lo, of.hi)
        assert [(type(v), v) for row in got for v in row] == [(type(v), v) for row in written[of.lo :] for v in row]
