"""Spilling over enough tuples that some groups leave while others stay: the results of an engine without a budget."""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

from operators.engine.engine import Engine
from operators.plan.plan import parse_plan
from operators.spill import eviction, spilled_part, spilling
from operators.spill.cleanup import by_join, steps
from operators.spill.spilled_part import PieceReader, PieceWriter
from operators.spill.spilling import MemoryBudget
from operators.spill.strategies import STRATEGIES
from schemas.codecs.blocks import decode_block
from schemas.columns import Batch, Column
from schemas.errors import SpillError
from schemas.language.program import parse_program
from schemas.query import Query, Type
from tests.feeding import to_rows
from tests.operators import tiny
from tests.operators.spill.memory_blocks import MemoryBlocks
from tests.profiles import mostly_deep

WINDOWS = {"ranges": "[RANGE {0} MILLISECONDS]", "endless": "[UNBOUNDED]"}
TUPLES = 300
PLANS = ("(((A B) C) D)", "((A B) (C D))", "(A (B (C D)))")


def query(window: str) -> Query:
    streams = "".join(
        f"CREATE STREAM {name} (k BIGINT, v BIGINT, s STRING, at TIMESTAMP) WITH (topic = '{name}', timestamp = 'at');"
        for name in "abcd"
    )
    windows = [WINDOWS[window].format(life) for life in (500, 900, 400, 600)]
    sources = ", ".join(f"{name} {name.upper()} {window}" for name, window in zip("abcd", windows, strict=True))
    select = "SELECT A.s AS s, A.at AS a, B.at AS b, C.at AS c, D.at AS d FROM"
    return parse_program(f"{streams} {select} {sources} WHERE A.k = B.k AND B.v = C.k AND C.v = D.k;").queries[0]


@cache
def batches() -> dict[str, Batch]:
    rng = Random(8)
    found = {}
    for name in "abcd":
        ts = np.sort(np.array([rng.randrange(10 * TUPLES) for _ in range(TUPLES)], np.int64))
        keys = {key: Column(Type.BIGINT, np.array([rng.randrange(40) for _ in ts], np.int64)) for key in "kv"}
        texts = Column.from_values([f"{name}{i}" for i in range(TUPLES)], Type.STRING)
        found[name] = Batch(ts, {**keys, "s": texts, "at": Column(Type.TIMESTAMP, ts)})
    return found


def feed(task: Engine, steps: int = 30) -> list[dict[str, Any]]:
    """The results while running."""
    found: list[dict[str, Any]] = []
    for begin in range(0, 10 * TUPLES, 10 * TUPLES // steps):
        end = begin + 10 * TUPLES // steps
        for name, batch in batches().items():
            task.push(name, 0, batch.take((batch.ts >= begin) & (batch.ts < end)))
        found += to_rows(task.advance(end))
    for name in "abcd":
        task.close(name, 0)
    return found + to_rows(task.advance())


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(map(repr, rows))


@cache
def expected(window: str) -> Counter[str]:
    return counted(feed(Engine(query(window))))


@pytest.mark.unmeasured
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("strategy", mostly_deep(sorted(STRATEGIES)))
def test_some_groups_leave(window: str, strategy: str) -> None:
    for plan, limit, groups in zip(PLANS, (20_000, 40_000, 60_000), (64, 7, 20), strict=True):
        of, blocks = query(window), MemoryBlocks()
        budget = MemoryBudget(limit, strategy, groups)
        task = Engine(of, plan=parse_plan(plan, of), budget=budget, blocks=blocks)
        found = feed(task)
        running = task.statistics().spill
        assert running is not None
        written = sum(len(decode_block(raw, key).batch) for key, raw in blocks.stored.items())
        assert running.on_disk_tuples <= written, "spilled tuples are written; a shared block may have dead tuples too"
        task.clean()
        cleaned = [to_rows(batch) for batch in task.cleaned()]
        late = [row for rows in cleaned for row in rows]
        assert late
        # Rows of A are numbered by its strings.
        orders = [[(row["_ts"], int(row["s"][1:])) for row in rows] for rows in cleaned]
        assert orders == [sorted(order) for order in orders]
        assert counted(found + late) == expected(window), (plan, strategy, limit)
        assert blocks.stored == {}
        said = task.statistics().spill
        assert said is not None
        assert said.spills > 1
        assert said.spilled_groups < said.spills * groups * 3
        assert said.cleanup_results == len(late)


@pytest.mark.parametrize("window", mostly_deep(WINDOWS))
def test_a_part_at_a_time(window: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chosen groups leave over several slices, few groups are merged together, and late results go to disk."""
    monkeypatch.setattr(spilling, "LEAVE_BYTES", 2_000)
    monkeypatch.setattr(spilling, "LEAVE_GROWTH", 0)
    monkeypatch.setattr(eviction, "CHUNK_BYTES", 1_000)
    monkeypatch.setattr(steps, "CLEAN_TUPLES", 60)
    monkeypatch.setattr(by_join, "MERGED_TUPLES", 40)
    monkeypatch.setattr(by_join, "LATE_BYTES", 2_000)
    of = query(window)
    task = Engine(of, plan=parse_plan(PLANS[0], of), budget=MemoryBudget(60_000, "local-output"), blocks=MemoryBlocks())
    found = feed(task)
    task.clean()
    found += [row for batch in task.cleaned() for row in to_rows(batch)]
    assert counted(found) == expected(window)


def test_memory_is_given_back_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine never uses more than the budget, and everything that leaves is written, even when memory is no longer
    short."""
    monkeypatch.setattr(spilling, "LEAVE_BYTES", 4_000)
    monkeypatch.setattr(eviction, "CHUNK_BYTES", 1_000)
    of, blocks, limit = query("endless"), MemoryBlocks(), 150_000
    task = Engine(of, plan=parse_plan(PLANS[0], of), budget=MemoryBudget(limit, "local-output"), blocks=blocks)
    used = [0]
    for begin in range(0, 10 * TUPLES, 10):
        for name, batch in batches().items():
            task.push(name, 0, batch.take((batch.ts >= begin) & (batch.ts < begin + 10)))
        task.advance(begin + 10)
        said = task.statistics().spill
        assert said is not None
        used.append(said.used_bytes)
    assert max(used) <= limit
    for more in range(1, 200):
        task.advance(10 * TUPLES + more)
    said = task.statistics().spill
    written = sum(len(decode_block(raw, key).batch) for key, raw in blocks.stored.items())
    assert said is not None
    assert said.on_disk_tuples <= written


def test_epochs_of_endless_windows_do_not_use_up_the_budget() -> None:
    """Where each ended was remembered for ever, and could not be spilled."""
    joined = tiny.query("SELECT A.v FROM a A [UNBOUNDED], b B [UNBOUNDED] WHERE A.k = B.k", streams="ab")
    task = Engine(joined, budget=MemoryBudget(300_000, "bottom-up"), blocks=MemoryBlocks())
    for at in range(3_000):
        for name, key in (("a", at), ("b", -1 - at)):
            task.push(name, 0, tiny.numbers(np.array([at]), k=np.array([key])))
        task.advance()
    spill = task.statistics().spill
    assert spill is not None
    assert spill.on_disk_tuples > 0
    assert spill.used_bytes <= 300_000


def test_results_are_taken_while_more_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller of a complete cleanup need not keep all of its results in memory."""
    monkeypatch.setattr(by_join, "MERGED_TUPLES", 40)
    of = query("endless")
    budget = MemoryBudget(30_000, "bottom-up", 20)
    task = Engine(of, plan=parse_plan(PLANS[0], of), budget=budget, blocks=MemoryBlocks())
    found, turns = feed(task), []

    def take() -> None:
        turns.append([row for batch in task.cleaned() for row in to_rows(batch)])

    task.clean(between=take)
    assert task.cleaned() == []
    assert counted(found + [row for turn in turns for row in turn]) == expected("endless")
    assert max(map(len, turns)) < 0.2 * sum(map(len, turns))


def test_groups_of_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilled_part, "BLOCK_BYTES", 300)
    blocks = MemoryBlocks()
    writer = PieceWriter(blocks)
    batch = batches()["a"]
    expiry = batch.ts + 5
    pieces = writer.write("0/1/0", batch, expiry)
    assert len(pieces) > 10
    assert [piece.last for piece in pieces] == [
        int(expiry[end - 1]) for end in np.cumsum([piece.rows for piece in pieces])
    ]
    assert to_rows(Batch.concat(PieceReader(blocks).read(pieces))) == to_rows(batch)
    writer.forget(pieces)
    assert blocks.stored == {}


def test_a_damaged_block_is_an_error() -> None:
    """As one of the disk: the task rebuilds its state from its input."""
    of, blocks = query("endless"), MemoryBlocks()
    task = Engine(of, plan=parse_plan(PLANS[0], of), budget=MemoryBudget(30_000, "bottom-up"), blocks=blocks)
    feed(task)
    key = blocks.keys("")[0]
    blocks.stored[key] = blocks.stored[key][:-1] + bytes([blocks.stored[key][-1] ^ 1])
    with pytest.raises(SpillError, match=f"spilled block {key} is damaged: checksum"):
        task.clean()


def test_small_groups_share_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared block is deleted with the last of its pieces; a group that is too large for it has blocks of its own."""
    monkeypatch.setattr(spilled_part, "BLOCK_BYTES", 600)
    blocks = MemoryBlocks()
    writer, reader = PieceWriter(blocks), PieceReader(blocks)
    batch = batches()["a"].slice(0, 100)
    sizes = [2, 0, 3, 70, 2, 1, 22]
    groups = writer.write_groups("0/0", batch, batch.ts + 5, sizes)
    assert [len(pieces) > 1 for pieces in groups] == [size > 20 for size in sizes]
    for pieces, size, end in zip(groups, sizes, np.cumsum(sizes).tolist(), strict=True):
        own = batch.slice(end - size, end)
        assert [row for read in reader.read(pieces) for row in to_rows(read)] == to_rows(own)
        alone = [decode_block(reader.own_block(piece), "").batch for piece in pieces]
        assert [row for read in alone for row in to_rows(read)] == to_rows(own)
        assert max([piece.last for piece in pieces], default=0) == (int(own.ts.max()) + 5 if size else 0)
    assert groups[0][0].key == groups[2][0].key
    assert groups[4][0].key == groups[5][0].key
    # Adjacent pieces of a block are read together.
    assert [len(read) for read in reader.read([*groups[0], *groups[2], *groups[4]])] == [5, 2]
    assert [len(read) for read in reader.read([*groups[2], *groups[0]])] == [3, 2]
    for number, pieces in enumerate(groups):
        writer.forget(pieces)
        assert blocks.stored.keys() == {piece.key for left in groups[number + 1 :] for piece in left}
