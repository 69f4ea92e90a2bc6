"""Repeats of tuples: what is a first, chains that outlast a restart, keys of all types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.data.positions import partition_and_offset
from operators.data.watermark import END
from operators.engine import repeats
from operators.engine.intake import Intake
from operators.engine.repeats import POSITION, Deduplication
from operators.kernels.repeats import FIRST, REPEAT
from operators.plan.plan import Leaf
from schemas.columns import Batch, Column
from schemas.query import Array, Field, Output, Query, Source, Stream, Type, Window
from tests import oracle
from tests.cases import FIELDS, VALUES, Case, column, unnested
from tests.feeding import canonical, engine_of, feed
from tests.operators.deaths import Life, from_a_snapshot, from_the_log
from tests.profiles import PROPERTY

TURNS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def batch(ts: list[int], ids: list[Any], type: Type = Type.STRING) -> Batch:
    """Tuples with an id each."""
    return Batch(np.array(ts, np.int64), {"id": Column.from_values(ids, type)})


def intake(within_ms: int = 10, partitions: int = 1, disorder_ms: int = 0, type: Type = Type.STRING) -> Intake:
    """An intake of one stream without repeats of `id`."""
    fields = (Field("id", type),)
    stream = Stream("S", fields, "S", disorder_ms=disorder_ms, deduplicate=("id",), deduplicate_within_ms=within_ms)
    return Intake([stream], {"S": range(partitions)})


def taken(task: Intake, cut: int = END) -> list[int]:
    """The ts of what an intake releases."""
    found = task.take(cut)
    return found["S"].ts.tolist() if "S" in found else []


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize(
    ("ts", "firsts"),
    [
        ([0, 9, 15], [0, 15]),  # a repeat does not make the time longer
        ([0, 10, 11, 21, 22], [0, 11, 22]),  # exactly the time later is a repeat
        ([0, 5, 10, 15, 20, 25, 30, 35], [0, 15, 30]),
        ([3, 3, 3], [3]),
        ([1, 50, 51], [1, 50]),
    ],
)
def test_the_first_counts_and_repeats_do_not_prolong(ts: list[int], firsts: list[int], size: int) -> None:
    task = intake()
    got: list[int] = []
    for begin in range(0, len(ts), size):
        part = ts[begin : begin + size]
        task.push("S", 0, batch(part, ["x"] * len(part)))
        got += taken(task, task.watermark())
    assert got + taken(task) == firsts
    assert task.repeats == len(ts) - len(firsts)


def test_the_order_of_arrival_does_not_matter() -> None:
    """Within the declared disorder the first is the first by ts, then partition, then offset."""
    task = intake(partitions=2, disorder_ms=20)
    task.push("S", 1, batch([7, 5, 3], ["x", "x", "y"]))
    task.push("S", 0, batch([9, 5, 3], ["x", "x", "z"]))
    found = task.take(END)["S"]
    assert list(zip(found.ts.tolist(), found.columns["id"].to_values(), strict=True)) == [(3, "z"), (3, "y"), (5, "x")]


def test_a_late_tuple_is_no_first() -> None:
    task = intake()
    task.push("S", 0, batch([20, 5, 21], ["x", "y", "y"]))
    assert taken(task) == [20, 21]
    assert task.late_tuples == 1


def test_nulls_repeat_nothing() -> None:
    task = intake()
    task.push("S", 0, batch([1, 2, 3, 4], [None, None, "", ""]))
    assert taken(task) == [1, 2, 3]


@pytest.mark.parametrize(
    ("type", "values", "firsts"),
    [
        (Type.DOUBLE, [0.0, -0.0, 1.0, 1.5, 1.0], 3),
        (Type.BIGINT, [2**62, 2**62 + 1, -(2**63), 2**63 - 1, 2**62], 4),
        (Type.BOOLEAN, [True, False, True], 2),
        (Type.TIMESTAMP, [5, 6, 5], 2),
        (Type.STRING, ["a", "ab", "abcdefgh", "abcdefgi", "abcdefgh", "ä"], 5),
    ],
)
def test_keys_of_all_types(type: Type, values: list[Any], firsts: int) -> None:
    task = intake(type=type)
    task.push("S", 0, batch([1] * len(values), values, type))
    assert len(taken(task)) == firsts


def test_strings_of_two_columns_are_not_run_together() -> None:
    memory = repeats.Firsts(10)
    keys = [Column.from_values(values, Type.STRING) for values in (["a", "ab", "a"], ["bc", "c", "bc"])]
    found = memory.find(np.zeros(3, np.int64), keys, np.zeros(3, np.int8))
    assert found.tolist() == [False, False, True]


def test_equal_hashes_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "string_words", lambda starts, data: np.full(len(starts) - 1, 7, np.uint64))
    memory = repeats.Firsts(10)
    keys = [Column.from_values(["a", "b", "a", "bb"], Type.STRING)]
    assert memory.find(np.zeros(4, np.int64), keys, np.zeros(4, np.int8)).tolist() == [False, False, True, False]


def test_what_was_decided_is_not_decided_again() -> None:
    """Also in any order, and a first that is known to be older does not replace a newer one."""
    memory = repeats.Firsts(10)
    keys = [Column.from_values(["x"] * 5, Type.STRING)]
    known = np.array([FIRST, REPEAT, FIRST, 0, 0], np.int8)
    assert memory.find(np.array([15, 9, 0, 25, 26], np.int64), keys, known).tolist() == [
        False,
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("capacity", [2, 1024])
def test_the_memory_forgets_what_cannot_matter(capacity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "FIRST_CAPACITY", capacity)
    monkeypatch.setattr(repeats, "FIRST_BYTES", 8)
    memory = repeats.Firsts(100)
    size = 0
    for begin in range(0, 100_000, 500):
        ts = np.arange(begin, begin + 500)
        ids = [Column(Type.BIGINT, np.repeat(ts[::2], 2))]
        assert memory.find(ts, ids, np.zeros(500, np.int8)).tolist() == [False, True] * 250
        memory.forget(begin + 500 - 100)
        size = size or memory.size_bytes()
    assert len(memory) <= 1024
    assert memory.size_bytes() < 20 * size


def test_a_first_is_forgotten_when_nothing_can_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "FIRST_CAPACITY", 2)
    memory = repeats.Firsts(10)
    keys = [Column.from_values(["x", "y"], Type.STRING)]
    memory.find(np.array([0, 1], np.int64), keys, np.zeros(2, np.int8))
    memory.forget(0)
    assert memory.find(np.array([10, 10], np.int64), keys, np.zeros(2, np.int8)).tolist() == [True, True]
    memory = repeats.Firsts(10)
    memory.find(np.array([0, 1], np.int64), keys, np.zeros(2, np.int8))
    memory.forget(1)
    assert len(memory) == 1


ITEMS, TAGS = (Array(name, (Field("value", Type.BIGINT),), rows=False) for name in ("items", "tags"))


@PROPERTY
@given(
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["a", "b", None]), st.integers(1, 3)), max_size=30),
    st.sampled_from([(ITEMS,), (ITEMS, TAGS)]),
    st.integers(0, 100),
)
def test_a_record_is_a_repeat_with_all_its_elements(
    records: list[tuple[int, str | None, int]], arrays: tuple[Array, ...], death: int
) -> None:
    """As its one tuple would be without arrays; also if a task dies, and another reads everything again."""
    ts = np.cumsum([step for step, _, _ in records], dtype=np.int64)
    numbers = Column(Type.BIGINT, np.arange(len(records)))
    plain = Batch(ts, {"id": Column.from_values([id_ for _, id_, _ in records], Type.STRING), "n": numbers})
    stream = Stream("S", (Field("id", Type.STRING),), "S", deduplicate=("id",), deduplicate_within_ms=10)
    without = Intake([stream], {"S": [0]})
    without.record_repeats()
    without.push("S", 0, plain, numbers.values)
    firsts = numbers_of_taken(without, END)
    repeats = without.take_repeats()["S"].tolist()
    for array in arrays:
        stream = stream.unnest(array)
    lengths = np.array([count for _, _, count in records], np.int64)
    counts = lengths ** len(arrays)
    offsets = np.repeat(np.arange(len(records)), counts)
    places = np.arange(len(offsets)) - np.repeat(np.cumsum(counts) - counts, counts)
    elements = plain.take(offsets)
    columns = dict(elements.columns)
    for level, array in enumerate(reversed(arrays)):
        ordinals = places // lengths[offsets] ** level % lengths[offsets] + 1
        columns[array.column("_ordinal")] = Column(Type.BIGINT, ordinals)
    recorded: list[int] = []
    until = 0
    for cut in (death, END):
        task = Intake([stream], {"S": [0]})
        task.record_repeats()
        if until:
            task.resume_repeats("S", np.array(recorded, np.int64), until)
        task.push("S", 0, Batch(elements.ts, columns), offsets)
        found, until = numbers_of_taken(task, cut), cut
        recorded += task.take_repeats()["S"].tolist()
    assert found == [n for n in firsts for _ in range(counts[n])]
    assert recorded == repeats


def numbers_of_taken(task: Intake, cut: int) -> list[int]:
    """The column `n` of what an intake releases."""
    found = task.take(cut)
    return found["S"].columns["n"].to_values() if "S" in found else []


def test_the_positions_of_repeats_are_recorded_once() -> None:
    task = intake(partitions=2)
    task.record_repeats()
    task.push("S", 1, batch([1, 2, 20], ["x", "x", "x"]), np.array([100, 101, 107]))
    task.push("S", 0, batch([1, 30], ["x", "x"]), np.array([5, 6]))
    assert taken(task, 10) == [1]
    parts, offsets = partition_and_offset(task.take_repeats()["S"])
    assert (parts.tolist(), offsets.tolist()) == ([1, 1], [100, 101])
    assert taken(task) == [20]
    parts, offsets = partition_and_offset(task.take_repeats()["S"])
    assert (parts.tolist(), offsets.tolist()) == ([0], [6])
    assert not len(task.take_repeats()["S"])


def test_what_a_snapshot_replaces_is_only_remembered() -> None:
    """In pieces, and not in order: an earlier first that comes later is no repeat."""
    task = intake(disorder_ms=50)
    task.cut = 20
    task.resume_repeats("S", np.zeros(0, np.int64), 25)
    for ts, cut in (([15], 22), ([8, 30], 25)):
        task.push("S", 0, batch(ts, ["x"] * len(ts)), np.arange(10, 10 + len(ts)), floor=20, remembered=0)
        assert taken(task, cut) == []
    assert task.repeats == 0
    task.push("S", 0, batch([36], ["x"]), np.array([20]))
    assert taken(task) == [30]
    assert partition_and_offset(task.take_repeats()["S"])[1].tolist() == [20]


def test_a_late_tuple_that_a_snapshot_replaces_is_not_remembered() -> None:
    task = intake(within_ms=30)
    task.cut = 20
    task.resume_repeats("S", np.zeros(0, np.int64), 20)
    task.push("S", 0, batch([19, 5, 3], ["x", "y", "z"]), np.arange(3), floor=20, remembered=4)
    task.push("S", 0, batch([31, 31], ["x", "y"]), np.array([5, 6]))
    assert taken(task) == [31]
    assert partition_and_offset(task.take_repeats()["S"])[1].tolist() == [5]


def test_a_restart_reads_back_to_firsts_that_matter() -> None:
    stream = Stream("S0", FIELDS, "S0", timestamp="ts", deduplicate=("k",), deduplicate_within_ms=30)
    outputs = (Output("k", column("A", "k")),)
    query = Query("q", None, (Source("A", stream, Window("RANGE", 10)),), (), outputs)
    engine = engine_of(Case(query, {"S0": [[]]}, Leaf("A"), [1], 1))
    engine.advance(100)
    assert (engine.horizon("S0"), engine.replay_horizon("S0")) == (100, 70)
    engine.hold = 60
    assert engine.replay_horizon("S0") == 30


# --- Against the oracle --------------------------------------------------------------------------------


@st.composite
def chains(draw: st.DrawFn) -> Case:
    """A query of one stream in which few keys occur all the time, so that chains of repeats have no gap."""
    names = draw(st.sampled_from([("k",), ("s",), ("k", "s"), ("b", "d")]))
    stream = Stream(
        "S0",
        FIELDS,
        "S0",
        timestamp="ts",
        disorder_ms=draw(st.sampled_from([0, 3, 20])),
        deduplicate=names,
        deduplicate_within_ms=draw(st.sampled_from([1, 4, 10, 25])),
    )
    few = {"k": [0, 1, None], "s": ["", "a"], "b": [True], "d": [0.0, -0.0]}
    rows = []
    for _ in range(draw(st.integers(1, 2))):
        ts = draw(st.lists(st.integers(0, 5), min_size=1, max_size=40))
        times = np.cumsum(ts).tolist()
        jumps = draw(st.lists(st.integers(-4, 0), min_size=len(times), max_size=len(times)))
        values = {name: st.sampled_from(few[name]) if name in few else values for name, values in VALUES.items()}
        rows.append(
            [
                {"ts": max(time + jump, 0), **{name: draw(value) for name, value in values.items()}}
                for time, jump in zip(times, jumps, strict=True)
            ]
        )
    window = draw(st.sampled_from([Window("RANGE", 0), Window("RANGE", 12), Window("ROWS", 3), Window("UNBOUNDED")]))
    outputs = tuple(Output(field.name, column("A", field.name)) for field in FIELDS)
    query = Query("q", None, (Source("A", stream, window),), (), outputs)
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    return Case(query, {"S0": rows}, Leaf("A"), sizes, draw(st.sampled_from([1, 7, 1000])))


@contextmanager
def forgetful() -> Iterator[None]:
    """A memory that starts tiny, and forgets what it can at every chance."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "FIRST_CAPACITY", 2)
        patch.setattr(repeats, "FIRST_BYTES", 8)
        yield


@contextmanager
def watched() -> Iterator[None]:
    """Every call of `Deduplication.firsts` checks what it assumes of its tuples."""
    firsts = Deduplication.firsts

    def checked(self: Deduplication, batch: Batch, cut: int) -> Batch:
        ordinals = [name for name in batch.columns if name.endswith("._ordinal")]
        if ordinals and POSITION in batch.columns:
            places = np.stack([batch.columns[name].values for name in (POSITION, *ordinals)], axis=1)
            same = places[1:, 0] == places[:-1, 0]
            assert len(np.unique(places[:, 0])) == 1 + np.count_nonzero(~same), "a record's tuples lie apart"
            assert [*places[np.append(True, ~same), 1:].flat] == [1] * len(ordinals) * (1 + np.count_nonzero(~same))
            assert all([*before] < [*after] for before, after in zip(places[:-1][same], places[1:][same], strict=True))
        return firsts(self, batch, cut)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Deduplication, "firsts", checked)
        yield


@PROPERTY
@given(unnested(chains()), st.lists(TURNS, min_size=2, max_size=4), st.booleans())
def test_the_tuples_of_a_record_are_next_to_each_other(case: Case, lives: list[list[int]], snapshots: bool) -> None:
    """From the first to the last, of several partitions, out of order, read again after deaths: so a repeat is dropped
    with all its elements."""
    with watched(), forgetful():
        assert canonical(outlast(case, lives, snapshots)) == canonical(oracle.results(case.query, case.given))


@PROPERTY
@given(chains())
def test_chains(case: Case) -> None:
    engine = engine_of(case)
    with forgetful():
        got = feed(engine_of(case), case.rows, case.push_sizes, case.epoch_ms)
    assert got == feed(engine, case.rows, case.push_sizes, case.epoch_ms)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))
    everything = sum(len(part) for parts in case.rows.values() for part in parts)
    found = engine.statistics()
    assert found.deduplicated == everything - found.late - len(got)


@PROPERTY
@given(chains(), TURNS)
def test_chains_outlast_a_death_on_an_empty_disk(case: Case, turns: list[int]) -> None:
    with forgetful():
        got = from_the_log(case, turns, case)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))


@PROPERTY
@given(chains(), TURNS, st.integers(0, 4))
def test_chains_outlast_a_death_with_a_snapshot(case: Case, turns: list[int], snapshots: int) -> None:
    with forgetful():
        got = from_a_snapshot(case, turns, snapshots, case)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))


@PROPERTY
@given(chains(), st.lists(TURNS, min_size=2, max_size=4), st.booleans())
def test_chains_outlast_many_deaths(case: Case, lives: list[list[int]], snapshots: bool) -> None:
    """Every life finds each repeat once, and none that another has found. With snapshots, what is before the cut is
    only remembered."""
    with forgetful():
        got = outlast(case, lives, snapshots)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))


def outlast(case: Case, lives: list[list[int]], snapshots: bool) -> list[dict[str, Any]]:
    """The results of several lives."""
    got: list[dict[str, Any]] = []
    found: list[int] = []
    dead: Life | None = None
    for turns in lives:
        life = Life(case)
        if dead is not None:
            before = dead.engine.cut
            if snapshots and before:
                life.engine.restore(before, [])
            life.replay_from(dead, {"S0": dead.engine.replay_horizon("S0")}, before if snapshots else 0)
            assert not len(life.engine.take_repeats()["S0"])
        for size in turns:
            got += life.turn(size)
        found.append(life.engine.statistics().deduplicated)
        dead = life
    assert dead is not None
    recorded = len(dead.repeats["S0"])
    assert recorded == len({*dead.repeats["S0"]}) == sum(found)
    return got + dead.finish()
