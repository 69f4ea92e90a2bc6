"""Checkpoints: each source tuple once, blocks that expire, and the blocks that a restore refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from operators.data.slices import slices
from operators.data.watermark import END
from operators.engine.engine import Engine
from operators.state import checkpoint
from operators.state.checkpoint import Block, blocks_by_time
from schemas.columns import Batch
from schemas.errors import InvariantError, StateError
from schemas.query import Query
from tests.feeding import to_batch, to_rows
from tests.operators.tiny import numbers, query, rows

PAIR = query("SELECT A.v, B.v FROM a A [RANGE 100 ms], b B [RANGE 100 ms] WHERE A.k = B.k")
BY_ROWS = query("SELECT A.v, B.v FROM a A [ROWS 2], b B [RANGE 100 ms] WHERE A.k = B.k AND A.v > 0")
OWN = query("SELECT A.v, B.v FROM a A [RANGE 100 ms], a B [RANGE 100 ms] WHERE A.k = B.k AND A.v > 1 AND B.v < 3")


def push(engine: Engine, stream: str, text: str) -> None:
    declared = next(s for s in engine.query.streams() if s.name == stream)
    engine.push(stream, 0, to_batch(declared, rows(text)))


def sizes(blocks: tuple[Block, ...]) -> list[tuple[str, int, int]]:
    return [(b.stream, b.first_row, len(b.batch)) for b in blocks]


def running(one: Query = PAIR) -> Engine:
    engine = Engine(one)
    push(engine, "a", "1 k=1 v=1 | 2 k=2 v=2 | 50 k=3 v=3")
    push(engine, "b", "1 k=1 v=10 | 40 k=1 v=11")
    engine.advance(30)
    return engine


def test_each_tuple_is_exported_once() -> None:
    """A checkpoint has the tuples stored since the last checkpoint, not those that wait or that an earlier one has."""
    engine = running()
    first = engine.checkpoint()
    assert first.cut == 30
    assert sizes(first.blocks) == [("a", 0, 2), ("b", 0, 1)]
    assert first.blocks[0].batch.columns["v"].to_values() == [1, 2]
    assert first.live_from == {"a": 0, "b": 0}
    assert engine.checkpoint().blocks == ()
    engine.advance(60)
    assert sizes(engine.checkpoint().blocks) == [("a", 2, 1), ("b", 1, 1)]


def test_cost_is_that_of_new_tuples() -> None:
    """A large state, one new tuple: one row is exported."""
    engine = Engine(PAIR)
    exported = 0
    for begin in range(0, 10_000, 1_000):
        for name in "ab":
            engine.push(name, 0, numbers(np.arange(begin, begin + 1_000) // 1_000, k=np.arange(1_000)))
        engine.advance()
        exported += sum(len(b.batch) for b in engine.checkpoint().blocks)
    for name in "ab":
        engine.close(name, 0)
    engine.advance(90)
    exported += sum(len(b.batch) for b in engine.checkpoint().blocks)
    assert exported == 20_000
    push(engine, "a", "90 k=1")
    engine.advance(91)
    assert sizes(engine.checkpoint().blocks) == [("a", 10_000, 1)]


def test_only_needed_columns_of_a_tuple_are_stored() -> None:
    """Columns of the output and of joins; those of selections only where they are asked again."""
    joined = "SELECT A.v FROM a A [RANGE 9 ms], {} B [RANGE 9 ms] WHERE A.k = B.k AND A.d > 1.0"
    engine = Engine(query(joined.format("b")))
    push(engine, "a", "1 k=1 v=1 d=2.0 s=x")
    engine.advance(5)
    (block,) = engine.checkpoint().blocks
    assert sorted(block.batch.columns) == ["_ts", "k", "v"]
    own = Engine(query(joined.format("a")))
    push(own, "a", "1 k=1 v=1 d=2.0 s=x")
    own.advance(5)
    assert sorted(own.checkpoint().blocks[0].batch.columns) == ["_ts", "d", "k", "v"]


def test_dead_blocks_are_reported() -> None:
    """Rows below live_from are no longer needed; tuples that died before any checkpoint are left out."""
    engine = running()
    engine.checkpoint()
    push(engine, "a", "300 k=9 v=9 | 900 k=9 v=9")
    push(engine, "b", "900 k=9 v=9")
    engine.advance(280)
    engine.advance(500)
    checkpoint = engine.checkpoint()
    assert checkpoint.live_from == {"a": 4, "b": 2}
    assert sizes(checkpoint.blocks) == []
    engine.advance(END)
    assert engine.checkpoint().live_from == {"a": 5, "b": 3}


@pytest.mark.parametrize("one", [PAIR, BY_ROWS])
def test_restored_state_is_the_state(one: Query) -> None:
    """The same tuples are alive, under the same row ids; later checkpoints go on after the old ones."""
    engine = running(one)
    blocks = list(engine.checkpoint().blocks)
    engine.advance(45)
    second = engine.checkpoint()
    blocks += second.blocks
    born = Engine(one)
    born.restore(second.cut, blocks_by_time(blocks))
    assert born.cut == 45
    assert born.statistics().state_tuples == engine.statistics().state_tuples
    assert born.statistics().results == 0
    assert born.checkpoint().blocks == ()
    for each in (engine, born):
        each.set_clock("a", 0, 50)
        each.set_clock("b", 0, 40)
    born.push("a", 0, to_batch(one.streams()[0], rows("50 k=3 v=3")))
    for each in (engine, born):
        push(each, "a", "60 k=1 v=6 | 200")
        push(each, "b", "70 k=3 v=7 | 200")
    assert to_rows(born.advance()) == to_rows(engine.advance())
    assert sizes(born.checkpoint().blocks) == sizes(engine.checkpoint().blocks)


@pytest.mark.deep
def test_restoring_takes_no_smaller_pieces_than_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices are cut by the intermediate results per tuple: restored tuples count like arriving ones."""
    made: list[float] = []

    def spied(batches: dict[str, Batch], cut: int, **options: Any) -> Iterator[tuple[dict[str, Batch], int]]:
        made.append(options["made_per_tuple"])
        return slices(batches, cut, **options)

    three = query("SELECT A.v FROM a A, b B, c C WINDOW RANGE 1 SECONDS WHERE A.k = B.k AND A.v = C.v")
    engine = Engine(three)
    blocks: list[Block] = []
    for begin in range(0, 1_000, 100):
        ts = np.arange(begin, begin + 100)
        for name in "abc":
            engine.push(name, 0, numbers(ts, k=ts % 10, v=ts % 10))
        engine.advance()
        blocks += engine.checkpoint().blocks
    joined = engine.statistics().intermediate_results / engine.statistics().input_tuples
    assert joined > 1.0
    monkeypatch.setattr("operators.engine.engine.slices", spied)
    monkeypatch.setattr(checkpoint, "PIECE_TUPLES", 300)
    Engine(three).restore(999, blocks_by_time(blocks))
    assert len(made) > 5
    assert max(made) < 2 * joined


def test_restoring_in_pieces_and_interleaved() -> None:
    """Blocks may be cut anywhere, streams may alternate; a first row far from 0 is no gap."""
    engine = running()
    (a, b) = engine.checkpoint().blocks
    pieces = [
        Block("a", 1_000, a.batch.slice(0, 1)),
        Block("b", 7, b.batch),
        Block("a", 1_001, a.batch.slice(1, 2)),
    ]
    born = Engine(PAIR)
    born.restore(30, blocks_by_time(pieces))
    assert born.statistics().state_tuples == engine.statistics().state_tuples
    push(born, "a", "31 k=1 v=5 | 99")
    push(born, "b", "99")
    assert to_rows(born.advance()) == [{"A.v": 5, "B.v": 10, "_ts": 31}]
    assert sizes(born.checkpoint().blocks) == [("a", 1_002, 1)]


def test_selections_are_asked_again_where_a_store_is_shared() -> None:
    """A store of two aliases has the tuples that either selects; each alias still sees only its own."""
    engine = Engine(OWN)
    push(engine, "a", "1 k=1 v=1 | 2 k=1 v=2 | 3 k=1 v=3 | 10")
    engine.advance(5)
    born = Engine(OWN)
    born.restore(5, blocks_by_time(engine.checkpoint().blocks))
    assert born.statistics().state_tuples == engine.statistics().state_tuples == 4
    for each in (engine, born):
        each.set_clock("a", 0, 5)
        push(each, "a", "6 k=1 v=2 | 20")
    assert to_rows(born.advance(10)) == to_rows(engine.advance(10))


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 2], r"snapshot of stream 'a' has a gap: next row 1, got 2"),
        ([1, 0], r"snapshot of stream 'a' has a gap: next row 2, got 0"),
        ([0, 0], r"snapshot of stream 'a' has a gap: next row 1, got 0"),
    ],
)
def test_gaps_are_refused(order: list[int], message: str) -> None:
    """A missing, misplaced or repeated block: never a silently smaller state."""
    batch = running().checkpoint().blocks[0].batch
    blocks = [Block("a", first, batch.slice(0, 1)) for first in order]
    with pytest.raises(StateError, match=message):
        Engine(PAIR).restore(30, blocks)


def test_blocks_out_of_order_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of tuples before those already processed is refused, since its tuples would miss matches."""
    monkeypatch.setattr(checkpoint, "PIECE_TUPLES", 1)
    engine = running()
    (a, b) = engine.checkpoint().blocks
    in_turn = [Block("a", 0, a.batch.slice(0, 1)), Block("a", 1, a.batch.slice(1, 2)), b]
    assert [int(block.batch.ts[0]) for block in in_turn] == [1, 2, 1]
    with pytest.raises(StateError, match="stream 'b' is out of order: row 0 is of 1, and everything before 2 has"):
        Engine(PAIR).restore(30, in_turn)


def test_foreign_blocks_are_refused() -> None:
    """A stream that the query does not read."""
    batch = running().checkpoint().blocks[0].batch
    with pytest.raises(StateError, match="snapshot block of unknown stream 'z'"):
        Engine(PAIR).restore(30, [Block("z", 0, batch)])


def test_only_a_fresh_engine_is_restored() -> None:
    """Two states are never mixed, whether there is state, or something waits, or nothing was answered yet."""
    waiting = Engine(PAIR)
    push(waiting, "a", "1 k=1")
    restored = Engine(PAIR)
    restored.restore(0, blocks_by_time(running().checkpoint().blocks))
    for engine in (running(), running(BY_ROWS), waiting, restored):
        with pytest.raises(InvariantError, match="restore needs a fresh engine"):
            engine.restore(30, [])


def test_restoring_nothing() -> None:
    """A snapshot in which nothing was alive."""
    born = Engine(PAIR)
    born.restore(30, [])
    assert born.cut == 30
    late = born.push("a", 0, to_batch(PAIR.streams()[0], rows("29 k=1 | 30 k=1"))).late
    assert late.tolist() == [True, False]


def test_horizons() -> None:
    """The oldest ts that a window still needs: by RANGE, by ROWS from the rows, 0 for ever, else the cut."""
    engine = running()
    assert (engine.horizon("a"), engine.horizon("b")) == (0, 0)
    push(engine, "a", "400")
    push(engine, "b", "400")
    engine.advance(300)
    assert engine.horizon("a") == 200
    latest = Engine(query("SELECT A.v FROM a A [ROWS 2], b B [UNBOUNDED], c C [ROWS 1]"))
    push(latest, "a", "1 | 5 | 9 | 9 | 20")
    push(latest, "b", "100")
    latest.advance(7)
    assert (latest.horizon("a"), latest.horizon("b"), latest.horizon("c")) == (1, 0, 7)
    latest.advance(12)
    assert latest.horizon("a") == 9
    one = Engine(query("SELECT A.v FROM a A [RANGE 100 ms]"))
    push(one, "a", "50 | 80")
    one.advance(70)
    assert one.horizon("a") == 70, "nothing is joined: what is processed is done with"
