"""How groups leave, seen without an engine: a bounded part at a time, and nothing stays behind."""

from __future__ import annotations

import numpy as np
import pytest

from operators.spill import eviction as leaving
from operators.spill.eviction import PIECE_BYTES
from operators.spill.spilled_part import Reader
from operators.state.match import LEFT, RIGHT
from schemas.codecs.blocks import decode_block
from schemas.columns import Batch
from tests.operators.spill.holding import KEYS, TAKEN_BYTES, TUPLES, Holding

ROW_BYTES = 40
"""Of a source tuple that has been taken out: its two columns, its row, its times."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "CHUNK_BYTES", TAKEN_BYTES)


@pytest.mark.parametrize("groups", [4, 100])
def test_a_slice_has_room_for_so_much(groups: int) -> None:
    """Of bytes, or of groups where these have few: only what is taken out at once may be too much."""
    most = 60_000
    held = Holding(groups)
    sizes = sum((state.group_bytes() for state in held.joins[0].states), np.zeros(groups, np.int64))
    held.leaving.choose([(0, g, int(sizes[g])) for g in range(groups)])

    def work() -> int:
        written = held.on_disk()
        at_least = PIECE_BYTES * (held.counters.spilled_groups + len(written))
        return at_least + held.leaving.waiting_bytes + 2 * ROW_BYTES * sum(written)

    done = [0]
    while held.leaving:
        held.leaving.go_on(TUPLES, 0, most)
        done.append(work())
    assert max(np.diff(done)) <= most
    assert len(done) > 3
    assert held.leaving.waiting_bytes == 0
    assert sum(held.on_disk()) == 2 * TUPLES


def test_what_has_left_is_found_on_disk_and_nowhere_else() -> None:
    """Join by join: source tuples stay while a state refers to them, and go with the last that did."""
    held = Holding(20)
    results = len(held.joins[1].states[LEFT])
    assert [held.entries(join) for join in (0, 1)] == [[TUPLES, TUPLES], [results, TUPLES]]
    held.leaving.leave(0, range(20), TUPLES, 0)
    assert [held.entries(join) for join in (0, 1)] == [[0, 0], [results, TUPLES]]
    assert {name: len(store) for name, store in held.sources.stores.items()} == dict.fromkeys("abc", TUPLES)
    held.leaving.leave(1, range(20), TUPLES, 0)
    assert {name: len(store) for name, store in held.sources.stores.items()} == dict.fromkeys("abc", 0)
    assert held.leaving.waiting_bytes == 0
    assert not held.leaving
    assert held.told == [(0, list(range(20))), (1, list(range(20)))]
    reader = Reader(held.blocks)
    for join, side, alias, tuples in ((0, LEFT, "a", TUPLES), (0, RIGHT, "b", TUPLES), (1, LEFT, "a", results)):
        pieces = [p for (j, _), parts in held.ledger.items() if j == join for part in parts for p in part.pieces[side]]
        read = Batch.concat(reader.read(pieces))
        rows = read.columns[f"{alias}."].values
        assert len(read) == tuples
        assert np.array_equal(read.columns[f"{alias}.k"].values, rows % KEYS)
        assert len(np.unique(rows)) == TUPLES


def test_what_was_cleaned_up_meanwhile_is_not_written() -> None:
    """A cleanup takes parts that wait in memory like any others."""
    held = Holding(4)
    held.leaving.choose([(0, g, 1) for g in range(4)])
    held.leaving.go_on(TUPLES, 0, 1)
    assert held.told == [(0, [0, 1, 2, 3])]
    waiting = held.leaving.waiting_bytes
    gone = sum(sum(part.sizes()) for part in held.ledger.pop((0, 2)))
    assert gone > 0
    held.leaving.write_all()
    assert waiting > 0 == held.leaving.waiting_bytes
    assert sum(held.on_disk()) == 2 * TUPLES - gone
    rows = sum(len(decode_block(raw, "").batch) for raw in held.blocks.held.values())
    assert rows == 2 * TUPLES - gone
