"""The state table returns the blocks of the checkpoints that were written to it, and refuses damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from operators.state.checkpoint import Block, Checkpoint
from schemas.columns import Batch, Column
from schemas.errors import StateError
from schemas.messages.commits import UNSEEN, Floor, StreamPoint
from schemas.query import Type
from services.recovery.starting_point import Snapshot
from services.recovery.state_store import BLOCK_TUPLES, StateStore


def batch(first: int, count: int) -> Batch:
    """Rows numbered from `first`."""
    ids = list(range(first, first + count))
    return Batch(np.array(ids, np.int64), {"s": Column.from_values([f"row {i}" for i in ids], Type.STRING)})


def snapshot(cut: int, epoch: int = 1) -> Snapshot:
    """A manifest."""
    points = (StreamPoint(5, 99, (Floor(6, 77),)), StreamPoint(7, UNSEEN))
    return Snapshot("cluster", "query", epoch, cut, {("t", 0): points, ("u", 3): points[:1]})


def rows(store: StateStore) -> dict[str, list[int]]:
    """Row numbers per stream."""
    out: dict[str, list[int]] = {}
    for block in store.blocks():
        assert block.batch.ts[0] == block.first_row
        out.setdefault(block.stream, []).extend(block.batch.ts.tolist())
    return out


def test_it_survives_being_closed(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "t", ["a", "b"])
    assert store.roll_back() is None
    store.write(
        snapshot(10), Checkpoint(10, (Block("a", 0, batch(0, 5)), Block("b", 3, batch(3, 2))), {"a": 0, "b": 3})
    )
    store.close()
    store.close()
    again = StateStore(tmp_path / "t", ["a", "b"])
    assert again.roll_back() == snapshot(10)
    assert rows(again) == {"a": [0, 1, 2, 3, 4], "b": [3, 4]}


def test_checkpoints_add_up_and_expired_blocks_go(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "t", ["a", "b"])
    store.write(snapshot(10), Checkpoint(10, (Block("a", 0, batch(0, 5)),), {"a": 0}))
    store.write(snapshot(20, 2), Checkpoint(20, (Block("a", 5, batch(5, 5)),), {"a": 4}))
    assert rows(store) == {"a": list(range(10))}
    store.write(snapshot(30, 3), Checkpoint(30, (Block("a", 10, batch(10, 1)),), {"a": 5}))
    assert rows(store) == {"a": list(range(5, 11))}
    store.close()
    again = StateStore(tmp_path / "t", ["a", "b"])
    again.write(snapshot(40, 4), Checkpoint(40, (), {"a": 11}))
    assert rows(again) == {}
    found = again.roll_back()
    assert found is not None
    assert found.cut == 40


def test_blocks_ahead_of_a_manifest_count_only_with_it(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "t", ["a", "b"])
    store.write(snapshot(10), Checkpoint(10, (Block("a", 0, batch(0, 5)),), {"a": 0, "b": 0}))
    store.add((Block("a", 5, batch(5, 5)), Block("b", 0, batch(0, 2))))
    store.write(snapshot(20, 2), Checkpoint(20, (Block("a", 10, batch(10, 1)),), {"a": 0, "b": 0}))
    store.add((Block("a", 11, batch(11, 5)), Block("b", 2, batch(2, 2))))
    store.close()
    again = StateStore(tmp_path / "t", ["a", "b"])
    assert again.roll_back() == snapshot(20, 2)
    assert rows(again) == {"a": list(range(11)), "b": [0, 1]}
    again.add((Block("a", 11, batch(11, 3)),))
    again.write(snapshot(30, 3), Checkpoint(30, (), {"a": 8, "b": 2}))
    again.close()
    last = StateStore(tmp_path / "t", ["a", "b"])
    assert last.roll_back() == snapshot(30, 3)
    assert rows(last) == {"a": [5, 6, 7, 8, 9, 10, 11, 12, 13]}


def test_blocks_without_any_manifest_are_dropped(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "t", ["a"])
    store.add((Block("a", 0, batch(0, 5)),))
    store.close()
    again = StateStore(tmp_path / "t", ["a"])
    assert again.roll_back() is None
    assert rows(again) == {}


def test_large_blocks_are_cut(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "t", ["a"])
    store.write(snapshot(10), Checkpoint(10, (Block("a", 7, batch(7, 2 * BLOCK_TUPLES + 1)),), {"a": 7}))
    assert [len(block.batch) for block in store.blocks()] == [BLOCK_TUPLES, BLOCK_TUPLES, 1]
    assert sum(rows for _, rows in store._stored[0]) == 2 * BLOCK_TUPLES + 1


def test_wiping_leaves_nothing(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "t", ["a"])
    store.write(snapshot(10), Checkpoint(10, (Block("a", 0, batch(0, 5)),), {"a": 0}))
    store.wipe()
    assert store.roll_back() is None
    assert rows(store) == {}


def test_other_streams_are_noticed(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "t", ["a"])
    store.write(snapshot(10), Checkpoint(10, (), {}))
    store.close()
    with pytest.raises(StateError, match=r"is of streams \['a'\], not \['b'\]"):
        StateStore(tmp_path / "t", ["b"]).roll_back()


def test_a_second_opening_is_refused(tmp_path: Path) -> None:
    first = StateStore(tmp_path / "t", ["a"])
    with pytest.raises(StateError, match=r"cannot be opened: .*lock"):
        StateStore(tmp_path / "t", ["a"])
    first.close()
