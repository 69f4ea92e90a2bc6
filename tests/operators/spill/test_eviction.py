"""How groups leave memory, without an engine: a bounded number of bytes at a time, and nothing stays behind."""

from __future__ import annotations

import numpy as np
import pytest

from operators.spill import eviction
from operators.spill.eviction import PIECE_BYTES
from operators.spill.spilled_part import PieceReader
from operators.state.match import LEFT, RIGHT
from schemas.codecs.blocks import decode_block
from schemas.columns import Batch
from tests.operators.spill.loaded_plan import KEYS, TAKEN_BYTES, TUPLES, LoadedPlan

ROW_BYTES = 40
"""Of a source tuple that has been taken out: its two columns, its row, its times."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "CHUNK_BYTES", TAKEN_BYTES)


@pytest.mark.parametrize("groups", [4, 100])
def test_a_slice_has_room_for_so_much(groups: int) -> None:
    """Room for so many bytes, or groups if these are small: only what is taken out at once may exceed it."""
    max_bytes = 60_000
    plan = LoadedPlan(groups)
    sizes = sum((state.group_bytes() for state in plan.joins[0].states), np.zeros(groups, np.int64))
    plan.eviction.choose([(0, g, int(sizes[g])) for g in range(groups)])

    def work() -> int:
        written = plan.on_disk()
        at_least = PIECE_BYTES * (plan.counters.spilled_groups + len(written))
        return at_least + plan.eviction.waiting_bytes + 2 * ROW_BYTES * sum(written)

    done = [0]
    while plan.eviction:
        plan.eviction.step(TUPLES, 0, max_bytes)
        done.append(work())
    assert max(np.diff(done)) <= max_bytes
    assert len(done) > 3
    assert plan.eviction.waiting_bytes == 0
    assert sum(plan.on_disk()) == 2 * TUPLES


def test_what_has_left_is_found_on_disk_and_nowhere_else() -> None:
    """Join by join: source tuples stay while a state refers to them, and are released with the last that did."""
    plan = LoadedPlan(20)
    results = len(plan.joins[1].states[LEFT])
    assert [plan.entries(join) for join in (0, 1)] == [[TUPLES, TUPLES], [results, TUPLES]]
    plan.eviction.evict(0, range(20), TUPLES, 0)
    assert [plan.entries(join) for join in (0, 1)] == [[0, 0], [results, TUPLES]]
    assert {name: len(store) for name, store in plan.sources.stores.items()} == dict.fromkeys("abc", TUPLES)
    plan.eviction.evict(1, range(20), TUPLES, 0)
    assert {name: len(store) for name, store in plan.sources.stores.items()} == dict.fromkeys("abc", 0)
    assert plan.eviction.waiting_bytes == 0
    assert not plan.eviction
    assert plan.evicted == [(0, list(range(20))), (1, list(range(20)))]
    reader = PieceReader(plan.blocks)
    for join, side, alias, tuples in ((0, LEFT, "a", TUPLES), (0, RIGHT, "b", TUPLES), (1, LEFT, "a", results)):
        pieces = [p for (j, _), parts in plan.ledger.items() if j == join for part in parts for p in part.pieces[side]]
        read = Batch.concat(reader.read(pieces))
        rows = read.columns[f"{alias}."].values
        assert len(read) == tuples
        assert np.array_equal(read.columns[f"{alias}.k"].values, rows % KEYS)
        assert len(np.unique(rows)) == TUPLES


def test_what_was_cleaned_up_meanwhile_is_not_written() -> None:
    """A cleanup takes parts that wait in memory like any others."""
    plan = LoadedPlan(4)
    plan.eviction.choose([(0, g, 1) for g in range(4)])
    plan.eviction.step(TUPLES, 0, 1)
    assert plan.evicted == [(0, [0, 1, 2, 3])]
    waiting = plan.eviction.waiting_bytes
    gone = sum(sum(part.sizes()) for part in plan.ledger.pop((0, 2)))
    assert gone > 0
    plan.eviction.write_all()
    assert waiting > 0 == plan.eviction.waiting_bytes
    assert sum(plan.on_disk()) == 2 * TUPLES - gone
    rows = sum(len(decode_block(raw, "").batch) for raw in plan.blocks.stored.values())
    assert rows == 2 * TUPLES - gone
