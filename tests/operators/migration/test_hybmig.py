"""HybMig: decomposition, shared states, the characteristics table; and its background computation."""

from __future__ import annotations

import pytest

from operators.engine.engine import Engine
from operators.migration import hybmig as hybmig_module
from operators.migration.hybmig import HybMig
from operators.plan.plan import Join, Leaf, Plan, left_deep, parse_plan
from schemas.query import Query
from tests.feeding import Rows, to_rows
from tests.operators.inside import executor_as
from tests.operators.migrating import (
    ABCD,
    BOTH,
    BUSHY,
    LEFT_DEEP,
    OLD,
    RIGHT_DEEP,
    exactly,
    joined,
    migrated,
    started,
    state,
)
from tests.operators.tiny import chain, inputs, query


def begun(
    old: str, new: str, strategy: str = "hybmig", given: Query = ABCD, rows: Rows = BOTH
) -> tuple[Engine, HybMig]:
    """A migration that has just begun, at 10."""
    engine = started(given, rows, old)
    engine.migrate(parse_plan(new, given), strategy, 10)
    engine.advance(10)
    engine.advance(11)
    migration = executor_as(engine, HybMig)
    return engine, migration


@pytest.mark.parametrize(
    ("old", "new", "tasks"),
    [
        # Fig. 3: AB is one source E; what is left is ((E C) D) to (E (C D)).
        (LEFT_DEEP, "((A B) (C D))", [("AB", 0, 1), ("ABCD", 2, 2)]),
        # The other way to be reducible: ABC and D are joined by both plans.
        (LEFT_DEEP, "((A (B C)) D)", [("ABC", 2, 2), ("ABCD", 0, 1)]),
        # Irreducible.
        (LEFT_DEEP, RIGHT_DEEP, [("ABCD", 3, 3)]),
    ],
)
def test_decomposition(old: str, new: str, tasks: list[tuple[str, int, int]]) -> None:
    """Fig. 5: what is computed, by how many joins of the old and of the new plan; 0 where both are one join."""
    _, migration = begun(old, new)
    found = [("".join(sorted(t.node.aliases)), len(t.old), len(t.new)) for t in migration.tasks]
    assert found == tasks


def test_matching_states_are_one_copy() -> None:
    """HybMig 3.2."""
    _, migration = begun(LEFT_DEEP, "((A B) (C D))")
    assert state(migration.old, "AB") is state(migration.current, "AB")
    assert state(migration.old, "C") is state(migration.current, "C")
    assert migration.state_tuples() < migration.old.state_tuples() + migration.current.state_tuples()


def test_the_characteristics_table() -> None:
    """Table 2, Fig. 6: which components of what the old plan still makes are old."""

    def table(new: str) -> list[str]:
        _, migration = begun(LEFT_DEEP, new)
        return ["".join(sorted(box)) for task in migration.tasks for box in task.table()]

    assert table(RIGHT_DEEP) == ["CD"]
    assert table(BUSHY) == ["AC", "BD"]
    assert table("((A B) (C D))") == ["CD"], "AB is there"


def test_a_right_deep_plan_disconnects_what_it_joins_first() -> None:
    """Fig. 7: new tuples of C and D do not go through the old plan; what goes is joined with old ones of theirs."""
    rows = inputs(**{**{n: OLD[n] for n in "ab"}, "c": f"{OLD['c']} | 20 k=1 | 21 k=1", "d": f"{OLD['d']} | 22 k=1"})
    engine, migration = begun(LEFT_DEEP, RIGHT_DEEP, rows=rows)
    before = [join.counters.input_tuples for _, join in migration.old.joins]  # type: ignore[attr-defined]
    got = to_rows(engine.advance(30))
    assert [join.counters.input_tuples for _, join in migration.old.joins] == before  # type: ignore[attr-defined]
    assert len(got) == 5


def test_more_entries_than_a_word_has_bits() -> None:
    """66 pairs are joined first, so the table has 66 entries; row ids are the lineage, so no bitmap can overflow."""
    count = 132
    given = chain(count, window="[RANGE 50 ms]", star=True)
    names = [f"A{i}" for i in range(count)]
    rows = inputs(**{f"a{i}": f"{1 + i % 5} k=1" if i != 70 else "1 k=2 | 20 k=1" for i in range(count)})
    pairs: list[Plan] = [Join(Leaf(a), Leaf(b)) for a, b in zip(names[::2], names[1::2], strict=True)]
    bushy = pairs[0]
    for pair in pairs[1:]:
        bushy = Join(bushy, pair)
    order = [*names[::2], *names[1::2]]
    engine = started(given, rows, left_deep(order))
    engine.migrate(bushy, "hybmig", 10)
    engine.advance(11)
    migration = executor_as(engine, HybMig)
    (task,) = migration.tasks
    assert len(task.table()) == 66
    assert len(engine.advance(30)) == 1


# --- Background state computation -------------------------------------------------------------------


def test_states_are_computed_bottom_up_and_inputs_disconnected() -> None:
    """Fig. 11: CD, then BCD; once CD is whole, new tuples of B stay away from the old plan (HybMig 3.4)."""
    rows = inputs(**{**{n: OLD[n] for n in "acd"}, "b": f"{OLD['b']} | 30 k=1 | 31 k=1"})
    engine, migration = begun(LEFT_DEEP, RIGHT_DEEP, "hybmig-bsc", rows=rows)
    background = migration._background
    assert background is not None
    (task,) = migration.tasks
    assert task.missing.keys() == {frozenset("CD"), frozenset("BCD")}
    background.work(2, 11)
    assert task.missing.keys() == {frozenset("BCD")}
    assert len(state(migration.current, "CD")) == 2
    assert {"B", "C", "D"} == {alias for box in task.table() for alias in box}
    before = [join.counters.input_tuples for _, join in migration.old.joins]  # type: ignore[attr-defined]
    got = to_rows(engine.advance(31))
    assert [join.counters.input_tuples for _, join in migration.old.joins] == before  # type: ignore[attr-defined]
    assert len(got) == 1, "made by the new plan from CD"


def test_the_newest_are_computed_first_and_only_as_much_as_there_is_to_spare() -> None:
    """Fig. 12: reverse temporal order; a tuple of credit for each that came."""
    rows = inputs(a="1 k=1", b="2 k=1", c="3 k=1 | 4 k=1 | 5 k=1 | 6 k=1", d="7 k=1")
    _, migration = begun(LEFT_DEEP, RIGHT_DEEP, "hybmig-bsc", rows=rows)
    background = migration._background
    assert background is not None
    made: list[list[int]] = []
    for _ in range(3):
        background.work(1, 11)
        job = background._job
        assert job is not None
        tuples = job._older.tuples()
        made.append(sorted(tuples.rows[tuples.aliases.index("C")].tolist(), reverse=True))
    assert made == [[3], [3, 2], [3, 2, 1]]


def test_a_slice_joins_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many came, and in whatever pieces."""
    monkeypatch.setattr(hybmig_module, "CHUNK_TUPLES", 2)
    monkeypatch.setattr(hybmig_module, "SLICE_OLD_TUPLES", 3)
    old = " | ".join(f"{ts} k=1" for ts in range(1, 9))
    _, migration = begun(LEFT_DEEP, RIGHT_DEEP, "hybmig-bsc", rows=inputs(a="1 k=1", b="2 k=1", c=old, d="9 k=1"))
    background = migration._background
    assert background is not None
    made: list[int] = []
    for _ in range(2):
        migration.work(1000, 11)
        job = background._job
        assert job is not None
        made.append(len(job._older))
    assert made == [3, 6]


def test_what_expires_meanwhile_is_not_computed() -> None:
    """The last job steps at an instant when the first two of C are dead."""
    rows = inputs(a="1 k=1", b="2 k=1", c="3 k=1 | 4 k=1 | 5 k=1 | 6 k=1", d="7 k=1")
    _, migration = begun(LEFT_DEEP, RIGHT_DEEP, "hybmig-bsc", rows=rows)
    background = migration._background
    assert background is not None
    background.work(1, 11)
    background.work(3, 55)
    kept = state(migration.current, "CD").tuples()
    assert sorted(kept.rows[kept.aliases.index("C")].tolist()) == [2, 3]


@pytest.mark.parametrize("early", ["", "11 k=9 | "])
def test_what_a_new_tuple_is_part_of_lives_longer(early: str) -> None:
    """B of 15 came before AC was whole, so ACB of 9, 9 and 15 is computed; its B, and so it, can be met until 65.
    With D of 11 it is computed in the slice of 11 to 16, of which B is not the first."""
    given = query(
        "SELECT A.ts, B.ts, C.ts, D.ts FROM a A [RANGE 100 ms], b B [RANGE 50 ms], c C [RANGE 100 ms], "
        "d D [RANGE 100 ms] WHERE A.k = B.k AND A.k = C.k AND A.k = D.k"
    )
    rows = inputs(a="9 k=1", b="15 k=1", c="9 k=1", d=f"{early}20 k=9 | 21 k=9 | 22 k=9 | 65 k=1")
    engine = started(given, rows, "(((A B) D) C)")
    got = migrated(engine, [(10, "(((A C) B) D)", "hybmig-bsc")], [10, 16, 21, 22, 23, 65])
    assert exactly(given, rows, got)
    assert len(got) == 1


def test_what_is_missing_on_both_sides_is_computed_once() -> None:
    """ABCD of two states that were both incomplete: a tuple whose four components are old is in the box that either
    left behind. Counted in both, it would give every result with E twice."""
    five = joined(" AND ".join(f"A.k = {name}.k" for name in "BCDE"), aliases="ABCDE")
    filler = " | ".join(f"{ts} k=9" for ts in range(11, 21))
    rows = inputs(a=f"1 k=1 | {filler}", b="2 k=1", c="3 k=1", d="4 k=1", e="5 k=2 | 30 k=1")
    engine = started(five, rows, "((((A C) E) B) D)")
    got = migrated(engine, [(10, "(((A B) (C D)) E)", "hybmig-bsc")], list(range(10, 30)))
    (record,) = engine.migrations
    assert record.finished_at is not None
    assert record.finished_at < 30
    assert exactly(five, rows, got)
    assert len(got) == 1
    assert record.counters.made_tuples == 3, "AB, CD and ABCD"
