"""What every strategy does: what is moved and dropped at the cut, what is counted, and when it ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from operators.join.tree import XJoinTree
from operators.migration.parallel_track import ParallelTrack
from operators.migration.schedule import MigrationRecord
from operators.migration.strategies import STRATEGIES, Strategy
from operators.plan.plan import Plan, parse_plan
from schemas.errors import UsageError
from tests import oracle
from tests.feeding import canonical
from tests.operators.inside import executor_of
from tests.operators.migrating import (
    ABCD,
    BOTH,
    BUSHY,
    LEFT_DEEP,
    NEW,
    OLD,
    RIGHT_DEEP,
    exactly,
    migrated,
    shared,
    started,
    state,
    tree,
)
from tests.operators.tiny import inputs, query

# --- When a migration ends, and what it counts ------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "ends"),
    [
        ("moving-state", 10),
        ("gms", 10),
        ("parallel-track", 59),  # The last old tuple is of 8 and lives until 58.
        ("hybmig", 60),  # As if the last had been of 9.
        ("gpt", 60),
        ("ghm", 23),  # A tuple that comes lets four be taken: 8 old ones, and those that came meanwhile.
    ],
)
def test_the_end(strategy: str, ends: int) -> None:
    rows = {name: [[*part[0]]] for name, part in BOTH.items()}
    for part, ts in zip(rows.values(), (70, 71, 72, 73), strict=True):
        part[0].append({**part[0][0], "ts": ts, "k": 1})
    engine = started(ABCD, rows, LEFT_DEEP)
    got = migrated(engine, [(10, RIGHT_DEEP, strategy)], list(range(1, 80)))
    assert exactly(ABCD, rows, got)
    (record,) = engine.migrations
    assert (record.began_at, record.finished_at) == (10, ends)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_what_lives_up_to_the_cut_and_no_longer(strategy: str) -> None:
    """Tuples of 10 can be met until 60, which is the cut, by a tuple of 60."""
    rows = inputs(a="10 k=1", b="10 k=1", c="10 k=1", d="60 k=1 | 61 k=1")
    engine = started(ABCD, rows, LEFT_DEEP)
    got = migrated(engine, [(60, BUSHY, strategy)], [60])
    assert exactly(ABCD, rows, got)
    assert len(got) == 1


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_components_stay_with_their_aliases(strategy: str) -> None:
    """ABC becomes BCA, whose rows are in another order; the tuples that meet are not of one row number."""
    rows = inputs(a="1 k=1 | 2 k=2", b="3 k=2 | 4 k=1", c="5 k=3 | 6 k=1 | 7 k=2", d="20 k=1 | 21 k=2")
    engine = started(ABCD, rows, LEFT_DEEP)
    got = migrated(engine, [(10, "(((B C) A) D)", strategy)], [10])
    assert exactly(ABCD, rows, got)
    assert len(got) == 2


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_stream_that_two_aliases_read_is_selected_from_for_each(strategy: str) -> None:
    """Its store has what A refuses, since B wants it."""
    given = query(
        "SELECT A.ts, B.ts, C.ts FROM a A [RANGE 50 ms], a B [RANGE 50 ms], c C [RANGE 50 ms] "
        "WHERE A.k = B.k AND A.k = C.k AND A.v = 1"
    )
    rows = inputs(a="1 k=1 v=1 | 2 k=1 v=2", c="20 k=1")
    engine = started(given, rows, "((A B) C)")
    got = migrated(engine, [(10, "((B C) A)", strategy)], [10])
    assert exactly(given, rows, got)
    assert len(got) == 2


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_results_of_both_plans_are_in_one_order(strategy: str) -> None:
    """In one slice there are results of new tuples alone, and later ones with old tuples."""
    new = {"a": "20 k=1 | 25 k=1", "b": "21 k=1", "c": "22 k=1", "d": "23 k=1"}
    rows = inputs(**{name: f"{OLD[name]} | {new[name]}" for name in OLD})
    engine = started(ABCD, rows, LEFT_DEEP)
    got = migrated(engine, [(10, BUSHY, strategy)], [10])
    assert exactly(ABCD, rows, got)
    assert len(got) == 2 + 23


@pytest.mark.parametrize("strategy", sorted(name for name, s in STRATEGIES.items() if s.outlasts))
def test_rows_windows_end_when_they_have_new_rows_alone(strategy: str) -> None:
    """Two later tuples of each stream; after one there is still an old one to meet."""
    latest = shared("[ROWS 2]")
    old, new = ("{} k=1 | {} k=1".format(*pair) for pair in ((1, 2), (20, 30)))
    rows = inputs(**dict.fromkeys("abcd", f"{old} | {new} | 40 k=1"))
    engine = started(latest, rows, LEFT_DEEP)
    got = migrated(engine, [(10, BUSHY, strategy)], list(range(10, 45)))
    assert exactly(latest, rows, got)
    (record,) = engine.migrations
    # Parallel Track looks at its states before the stores let go of what the slice has pushed out.
    assert record.finished_at == (32 if strategy == "parallel-track" else 31)


def test_parallel_track_pays_for_looking_for_the_end() -> None:
    """JISC 3.3: every operator of the old plan looks through its state, again and again, until the end."""
    engine = started(ABCD, BOTH, LEFT_DEEP)
    engine.migrate(parse_plan(RIGHT_DEEP, ABCD), "parallel-track", 10)
    engine.advance(10)
    (record,) = engine.migrations
    held = executor_of(engine).state_tuples()
    assert held == 12, "8 source tuples, 2 of AB, 2 of ABC"
    for time in range(11, 15):
        engine.advance(time)
        assert record.counters.comparisons == (time - 10) * held
    assert record.counters.extra_tuples == held


def test_moving_state_pays_at_the_cut() -> None:
    """CD is made of C and D, BCD of B and CD; what is moved is the same object."""
    engine = started(ABCD, BOTH, LEFT_DEEP)
    engine.advance(10)
    before = tree(engine)
    engine.migrate(parse_plan(RIGHT_DEEP, ABCD), "moving-state", 10)
    engine.advance(11)
    (record,) = engine.migrations
    assert record.finished_at == 10
    assert (record.counters.made_tuples, record.counters.dropped_tuples) == (4, 4)
    assert len(state(tree(engine), "BCD")) == len(state(tree(engine), "CD")) == 2
    assert state(tree(engine), "A") is state(before, "A")


@pytest.mark.parametrize("strategy", ["jisc", "hybmig-bsc"])
def test_what_was_computed_lives_as_long_as_the_rest(strategy: str) -> None:
    """BC of 9 can be met until 59."""
    rows = inputs(a="11 k=9 | 12 k=9 | 13 k=9 | 20 k=1 | 59 k=1", b="9 k=1", c="9 k=1", d="9 k=1")
    engine = started(ABCD, rows, LEFT_DEEP)
    got = migrated(engine, [(10, "(((B C) D) A)", strategy)], [10, 12, 13, 14, 21, 59])
    assert exactly(ABCD, rows, got)
    assert [row["_ts"] for row in got] == [20, 59]
    assert engine.migrations[0].counters.made_tuples == 2


# --- Parallel Track ---------------------------------------------------------------------------------


@pytest.fixture
def holding_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parallel Track as in the paper."""

    def begin(old: object, plan: Plan, cut: int, make: Callable[[Plan], XJoinTree]) -> ParallelTrack:
        assert isinstance(old, XJoinTree)
        return ParallelTrack(old, make(plan), cut, hold_back=True)

    monkeypatch.setitem(STRATEGIES, "parallel-track", Strategy(begin, "HybMig 2.2", outlasts=True))  # type: ignore[arg-type]


@pytest.mark.usefixtures("holding_back")
def test_pt_ordering() -> None:
    """HybMig 2.2: of two results the first has a component that is no later; that is not the order of their ts."""
    late = {"a": "28 k=1 | 75 k=1", "b": "25 k=1", "c": "26 k=2", "d": "27 k=1"}
    rows = inputs(**{name: f"{OLD[name]} | {NEW[name]} | {late[name]}" for name in OLD})
    engine = started(ABCD, rows, LEFT_DEEP)
    got = migrated(engine, [(10, RIGHT_DEEP, "parallel-track")], list(range(10, 80)))
    assert canonical(got) == canonical(oracle.results(ABCD, rows))
    times = [row["_ts"] for row in got]
    assert times != sorted(times), "what is all new has waited"  # type: ignore[type-var]
    names = [f"{name}.ts" for name in "ABCD"]
    for n, one in enumerate(got):
        for other in got[n + 1 :]:
            assert any(one[name] <= other[name] for name in names)  # type: ignore[operator]


# --- Which may run together, and where --------------------------------------------------------------


def test_a_second_migration_waits_unless_both_are_lazy() -> None:
    """It begins when the first one ends."""
    engine = started(ABCD, BOTH, LEFT_DEEP)
    got = migrated(engine, [(10, RIGHT_DEEP, "hybmig"), (12, BUSHY, "jisc")], list(range(1, 80)))
    assert exactly(ABCD, BOTH, got)
    one, other = engine.migrations
    assert one.finished_at == other.began_at == 60
    engine = started(ABCD, BOTH, LEFT_DEEP)
    got = migrated(engine, [(10, RIGHT_DEEP, "jisc"), (12, BUSHY, "jisc")], list(range(1, 80)))
    assert exactly(ABCD, BOTH, got)
    assert engine.migrations[1].began_at == 12


@pytest.mark.parametrize("strategy", sorted(name for name, s in STRATEGIES.items() if s.outlasts))
def test_what_would_never_end_is_refused(strategy: str) -> None:
    """And says what to take instead."""
    endless = shared("[UNBOUNDED]")
    engine = started(endless, BOTH, LEFT_DEEP)
    with pytest.raises(UsageError, match=r"\[UNBOUNDED\] of .*: one of moving-state, .*jisc"):
        engine.migrate(parse_plan(BUSHY, endless), strategy, 10)


@pytest.mark.parametrize("executor", ["xjoin", "stairs", "mjoin", "eddy"])
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_every_strategy_on_every_executor(strategy: str, executor: str) -> None:
    """With results of old and new tuples across the cut."""
    engine = started(ABCD, BOTH, LEFT_DEEP, executor=executor)
    got = migrated(engine, [(10, BUSHY, strategy)], [5, 15, 21, 23])
    assert exactly(ABCD, BOTH, got)
    assert len(got) == 12
    records: tuple[MigrationRecord, ...] = engine.migrations
    assert [str(record.from_plan) for record in records] == [LEFT_DEEP]
    assert type(executor_of(engine)).__name__.lower().startswith(executor)
