"""What each migration strategy does, step by step: what is moved, made, dropped, pruned, counted, and when it ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from operators.engine import Engine
from operators.migration.hybmig import HybMig
from operators.migration.jisc import Jisc
from operators.migration.parallel_track import ParallelTrack
from operators.migration.schedule import MigrationRecord
from operators.migration.strategies import STRATEGIES, Strategy
from operators.plan import Join, Leaf, Plan, left_deep, parse_plan
from operators.state import SideState
from operators.tree import XJoinTree
from schemas.errors import UsageError
from schemas.query import Query
from tests import oracle
from tests.feeding import Rows, canonical, partitions_of, to_batch, to_rows
from tests.operators.tiny import chain, inputs, query


def started(given: Query, rows: Rows, tree: str | Plan, *, executor: str = "xjoin") -> Engine:
    """An engine that has taken all rows and processed none."""
    plan = parse_plan(tree, given) if isinstance(tree, str) else tree
    engine = Engine(given, plan=plan, partitions=partitions_of(rows), executor=executor)
    streams = {stream.name: stream for stream in given.streams()}
    for name, parts in rows.items():
        for p, part in enumerate(parts):
            engine.push(name, p, to_batch(streams[name], part))
            engine.close(name, p)
    return engine


def migrated(engine: Engine, changes: list[tuple[int, str, str]], times: list[int]) -> list[dict[str, object]]:
    """All results, advancing to each of some times and then to the end; checked against the oracle by the caller."""
    for cut, tree, strategy in changes:
        engine.migrate(parse_plan(tree, engine.query), strategy, cut)
    out: list[dict[str, object]] = []
    for time in times:
        out += to_rows(engine.advance(time))
    return out + to_rows(engine.advance())


def exactly(given: Query, rows: Rows, got: list[dict[str, object]]) -> bool:
    """The oracle's results, in order."""
    times = [row["_ts"] for row in got]
    return times == sorted(times) and canonical(got) == canonical(oracle.results(given, rows))  # type: ignore[type-var]


def tree(engine: Engine) -> XJoinTree:
    """The executor of an engine that is not migrating."""
    assert isinstance(engine._executor, XJoinTree)
    return engine._executor


def state(executor: object, aliases: str) -> SideState:
    """The state of a tree that covers these one-letter aliases."""
    assert isinstance(executor, XJoinTree)
    found = [s for _, join in executor.joins for s in join.states if set(s.aliases) == set(aliases)]
    assert len(found) == 1
    return found[0]


# Each stream has keys 1 and 2 once before 10, and again from 20 on.
OLD = {"a": "1 k=1 | 2 k=2", "b": "3 k=1 | 4 k=2", "c": "5 k=1 | 6 k=2", "d": "7 k=1 | 8 k=2"}
NEW = {"a": "20 k=1", "b": "21 k=2", "c": "22 k=1", "d": "23 k=2 | 24 k=1"}
BOTH = inputs(**{name: f"{OLD[name]} | {NEW[name]}" for name in OLD})
LEFT_DEEP, RIGHT_DEEP, BUSHY = "(((A B) C) D)", "(A (B (C D)))", "((A C) (B D))"


def shared(window: str) -> Query:
    """Four streams by one key."""
    sources = ", ".join(f"{name.lower()} {name} {window}" for name in "ABCD")
    return query(f"SELECT A.ts, B.ts, C.ts, D.ts FROM {sources} WHERE A.k = B.k AND A.k = C.k AND A.k = D.k")


ABCD = shared("[RANGE 50 ms]")


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


def test_jisc_ends_when_the_last_key_is_completed() -> None:
    """Key 2 is asked for at 21 by B, and CD lacks it until then; BCD when A has asked for both."""
    rows = inputs(**{**{n: OLD[n] for n in "cd"}, "a": f"{OLD['a']} | 20 k=1 | 30 k=2", "b": f"{OLD['b']} | 21 k=2"})
    engine = started(ABCD, rows, LEFT_DEEP)
    engine.migrate(parse_plan(RIGHT_DEEP, ABCD), "jisc", 10)
    engine.advance(20)
    (record,) = engine.migrations
    jisc = engine._executor
    assert isinstance(jisc, Jisc)
    assert [c.progress() for c in jisc.completions] == [(0, 0), (0, 0)], "nothing is counted before it is asked for"
    assert len(engine.advance(21)) == 1
    assert [c.progress() for c in jisc.completions] == [(1, 2), (1, 2)], "CD and BCD, for A's key"
    assert record.counters.completed_keys == 2
    assert len(engine.advance(22)) == 1
    assert [c.over for c in jisc.completions] == [True, False]
    assert len(engine.advance(31)) == 2, "with B of 4 and of 21"
    assert record.finished_at == 31
    assert record.counters.completed_keys == record.counters.made_tuples == 4


def test_a_key_of_one_input_alone_is_not_counted() -> None:
    """JISC 4.3 counts the distinct values of the smaller input; one that the other has not gives nothing."""
    rows = inputs(a="1 k=1 | 2 k=2 | 20 k=1", b="3 k=1", c="4 k=1 | 5 k=3 | 6 k=4", d="7 k=3 | 8 k=1")
    engine = started(ABCD, rows, LEFT_DEEP)
    engine.migrate(parse_plan(RIGHT_DEEP, ABCD), "jisc", 10)
    assert engine.advance(10).ts.tolist() == [8]
    assert engine.advance(20).ts.tolist() == []
    (record,) = engine.migrations
    jisc = engine._executor
    assert isinstance(jisc, Jisc)
    assert engine.advance(21).ts.tolist() == [20]
    assert [c.progress() for c in jisc.completions] == [(1, 2), (1, 1)], "CD has keys 1 and 3, BCD 1"
    assert [c.over for c in jisc.completions] == [False, True]
    assert record.counters.completed_keys == record.counters.made_tuples == 2


def test_parallel_track_pays_for_looking_for_the_end() -> None:
    """JISC 3.3: every operator of the old plan looks through its state, again and again, until the end."""
    engine = started(ABCD, BOTH, LEFT_DEEP)
    engine.migrate(parse_plan(RIGHT_DEEP, ABCD), "parallel-track", 10)
    engine.advance(10)
    (record,) = engine.migrations
    held = engine._executor.state_tuples()
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


# --- HybMig -----------------------------------------------------------------------------------------


def begun(
    old: str, new: str, strategy: str = "hybmig", given: Query = ABCD, rows: Rows = BOTH
) -> tuple[Engine, HybMig]:
    """A migration that has just begun, at 10."""
    engine = started(given, rows, old)
    engine.migrate(parse_plan(new, given), strategy, 10)
    engine.advance(10)
    engine.advance(11)
    migration = engine._executor
    assert isinstance(migration, HybMig)
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
    migration = engine._executor
    assert isinstance(migration, HybMig)
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
    sources = ", ".join(f"{name.lower()} {name} [RANGE 99 ms]" for name in "ABCDE")
    where = " AND ".join(f"A.k = {name}.k" for name in "BCDE")
    five = query(f"SELECT A.ts, B.ts, C.ts, D.ts, E.ts FROM {sources} WHERE {where}", streams="abcde")
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


# --- JISC -------------------------------------------------------------------------------------------


def test_a_key_that_an_earlier_transition_completed_is_not_completed_again() -> None:
    """JISC 4.5, definition 2: BC stays incomplete through a second transition, its key 1 stays attempted. Completed
    again, its entries would be there twice."""
    rows = inputs(a=f"{OLD['a']} | 20 k=1", b=OLD["b"], c=OLD["c"], d=f"{OLD['d']} | 30 k=1")
    engine = started(ABCD, rows, LEFT_DEEP)
    changes = [(10, "(((B C) D) A)", "jisc"), (25, "(((B C) A) D)", "jisc")]
    got = migrated(engine, changes, [10, 20, 25, 26])
    assert exactly(ABCD, rows, got)
    first, second = (record.counters for record in engine.migrations)
    assert (first.completed_keys, first.made_tuples) == (2, 2), "BC and BCD for A's key"
    assert (second.completed_keys, second.made_tuples) == (1, 2), "BCA alone: with A of 1 and of 20"


def test_a_slice_completes_each_state_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left-deep over five: what D and E ask of ABC and ABCD is asked of AB once."""
    given = chain(5, window="[RANGE 90 ms]", star=True)
    rows = inputs(
        **{f"a{i}": " | ".join(f"{1 + k} k={k}" for k in range(6)) for i in range(5)}
        | {f"a{i}": " | ".join(f"{1 + k} k={k}" for k in range(6)) + f" | 20 k={i} | 21 k=0" for i in (0, 1, 2)}
    )
    engine = started(given, rows, "((((A0 A1) A2) A3) A4)")
    engine.migrate(parse_plan("((((A4 A3) A2) A1) A0)", given), "jisc", 10)
    engine.advance(10)
    derived: list[tuple[str, ...]] = []
    original = Jisc.derive

    def derive(self: Jisc, node: Join, *rest: object) -> object:
        derived.append(node.aliases)
        return original(self, node, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Jisc, "derive", derive)
    engine.advance(30)
    assert derived == [("A4", "A3"), ("A4", "A3", "A2"), ("A4", "A3", "A2", "A1")]


TRIANGLE = query(
    "SELECT A.ts, B.ts, C.ts, D.ts FROM a A [RANGE 99 ms], b B [RANGE 99 ms], c C [RANGE 99 ms], d D [RANGE 99 ms] "
    "WHERE A.k = B.k AND B.v = C.v AND A.v = C.k AND C.v = D.v"
)
LADDER = query(
    "SELECT A.ts, B.ts, C.ts, D.ts FROM a A [RANGE 99 ms], b B [RANGE 99 ms], c C [RANGE 99 ms], d D [RANGE 99 ms] "
    "WHERE A.k = B.k AND A.v < C.k AND C.v = D.v"
)


def test_a_key_of_both_inputs_is_completed_by_a_part_of_it() -> None:
    """C looks for AB by B.v and A.v: what has another A.v is left alone, the rest is completed, if B.v fits or not."""
    a = "1 k=1 v=1 | 2 k=1 v=2 | 3 k=1 v=3"
    rows = inputs(a=a, b="4 k=1 v=7 | 5 k=1 v=8", c="6 k=5 v=5 | 20 k=2 v=7 | 30 k=2 v=8", d="1 v=7 | 2 v=8")
    engine = started(TRIANGLE, rows, "((B (C D)) A)")
    engine.migrate(parse_plan("(((A B) C) D)", TRIANGLE), "jisc", 10)
    assert engine.advance(21).ts.tolist() == [20]
    (record,) = engine.migrations
    jisc = engine._executor
    assert isinstance(jisc, Jisc)
    assert record.counters.made_tuples == 2
    assert jisc.completions[0].progress() == (1, 3)
    assert engine.advance(31).ts.tolist() == [30]
    assert record.counters.made_tuples == 2, "attempted"


@pytest.mark.parametrize("column", ["v", "d"])
@pytest.mark.parametrize(("op", "values"), [("<", 1), ("<=", 2), (">", 2), (">=", 3)])
def test_every_inequality(op: str, values: int, column: str) -> None:
    """C has 2, A has 1 to 4; whole numbers and doubles."""
    given = query(
        "SELECT A.ts, B.ts, C.ts, D.ts FROM a A [RANGE 99 ms], b B [RANGE 99 ms], c C [RANGE 99 ms], "
        f"d D [RANGE 99 ms] WHERE A.k = B.k AND A.{column} {op} C.{column} AND C.k = D.k"
    )
    a = " | ".join(f"{n} k=1 {column}={n}" for n in (1, 2, 3, 4))
    rows = inputs(a=a, b="5 k=1", c=f"20 k=1 {column}=2 | 30 k=1 {column}=2", d="8 k=1")
    engine = started(given, rows, "((A (C D)) B)")
    got = migrated(engine, [(10, "(((A B) C) D)", "jisc")], [10, 21, 31])
    assert exactly(given, rows, got)
    assert len(got) == 2 * values
    (record,) = engine.migrations
    assert record.counters.completed_keys == record.counters.made_tuples == values


def test_an_inequality_of_another_column_narrows_nothing() -> None:
    """C asks by A.v <= 9; that A's ts is at least 3 says nothing of A.v."""
    given = query(
        "SELECT A.ts, B.ts, C.ts, D.ts FROM a A [RANGE 99 ms], b B [RANGE 99 ms], c C [RANGE 99 ms], "
        "d D [RANGE 99 ms] WHERE A.k = B.k AND A.v <= C.v AND A.ts >= C.k AND C.d = D.d"
    )
    rows = inputs(a="4 k=1 v=1 | 5 k=1 v=2", b="6 k=1", c="20 k=3 v=9 d=1", d="8 d=1")
    engine = started(given, rows, "((A (C D)) B)")
    got = migrated(engine, [(10, "(((A B) C) D)", "jisc")], [10])
    assert exactly(given, rows, got)
    assert len(got) == 2


def test_what_was_asked_of_the_state_below_alone_is_not_taken_for_asked() -> None:
    """C asks AB for A.v < 3, D asks ABC for A.v < 2 and gets no more: what has 2 would be there twice at 40."""
    given = query(
        "SELECT A.ts, B.ts, C.ts, D.ts FROM a A [RANGE 99 ms], b B [RANGE 99 ms], c C [RANGE 99 ms], "
        "d D [RANGE 99 ms] WHERE A.k = B.k AND A.v < C.v AND A.v < D.v"
    )
    a = "1 k=1 v=1 | 2 k=1 v=2 | 3 k=1 v=3 | 4 k=1 v=4"
    rows = inputs(a=a, b="4 k=1", c="5 v=9 | 20 v=3", d="6 v=0 | 30 v=2 | 40 v=3")
    engine = started(given, rows, "(((A C) D) B)")
    got = migrated(engine, [(10, "(((A B) C) D)", "jisc")], [10, 21, 31, 41])
    assert exactly(given, rows, got)
    assert len(got) == 2 + 4


def test_a_state_that_goes_by_parts_is_asked_for_its_whole_key_as_a_whole() -> None:
    """AB has a key of both inputs; ABCD asks for it by that key, and CD, which is incomplete too, cannot tell."""
    sources = ", ".join(f"{name.lower()} {name} [RANGE 99 ms]" for name in "ABCDE")
    given = query(
        f"SELECT A.ts, B.ts, C.ts, D.ts, E.ts FROM {sources} WHERE A.s = B.s AND C.f = D.f "
        "AND A.k = C.k AND B.v = C.v AND A.k = E.k AND B.v = E.v",
        streams="abcde",
    )
    rows = inputs(
        a="1 k=1 s=x",
        b="2 v=2 s=x",
        c="3 k=1 v=2 f=true | 4 k=5 v=5 f=true",
        d="4 f=true",
        e="5 k=9 v=9 | 20 k=1 v=2 | 30 k=1 v=2",
    )
    engine = started(given, rows, "((((A C) E) B) D)")
    got = migrated(engine, [(10, "(((A B) (C D)) E)", "jisc")], [10, 21])
    assert exactly(given, rows, got)
    assert len(got) == 2


def test_what_no_entry_can_have_completes_nothing() -> None:
    """Keys that A alone has."""
    rows = inputs(**{**OLD, "a": " | ".join(f"{20 + k} k={k}" for k in range(3, 20))})
    engine = started(ABCD, rows, LEFT_DEEP)
    assert migrated(engine, [(10, RIGHT_DEEP, "jisc")], [10, 45]) == []
    (record,) = engine.migrations
    assert record.counters.completed_keys == record.counters.made_tuples == 0


def test_an_inequality_asks_for_the_values_it_accepts() -> None:
    """C with k = 3 looks for AB with A.v < 3: what has more is left alone."""
    a = "1 k=1 v=1 | 2 k=1 v=2 | 3 k=1 v=3 | 4 k=1 v=4"
    rows = inputs(a=a, b="5 k=1 | 6 k=1", c="7 k=9 v=5 | 20 k=3 v=7 | 30 k=4 v=7", d="8 v=7")
    engine = started(LADDER, rows, "((A (C D)) B)")
    engine.migrate(parse_plan("(((A B) C) D)", LADDER), "jisc", 10)
    assert engine.advance(21).ts.tolist() == [20] * 4
    (record,) = engine.migrations
    assert record.counters.made_tuples == 4
    assert record.counters.completed_keys == 2
    assert engine.advance(31).ts.tolist() == [30] * 6
    assert (record.counters.made_tuples, record.counters.completed_keys) == (6, 3)


CHAIN = query(
    "SELECT A.ts, B.ts, C.ts, D.ts FROM a A [RANGE 99 ms], b B [RANGE 99 ms], c C [RANGE 99 ms], d D [RANGE 99 ms] "
    "WHERE A.k = B.k AND B.v = C.v AND C.k = D.k"
)


def test_what_came_at_the_first_cut_counts_as_new() -> None:
    """BC of 10 is in its state, as no old tuple is; BCA, which a second transition asks for it, needs both."""
    rows = inputs(a="1 k=1", b="3 k=1 v=1 | 10 k=1 v=2", c="5 k=1 v=1 | 10 k=1 v=2", d="30 k=1")
    engine = started(CHAIN, rows, "((A (C D)) B)")
    got = migrated(engine, [(10, "(((B C) D) A)", "jisc"), (20, "(((B C) A) D)", "jisc")], [10, 11, 20, 21])
    assert exactly(CHAIN, rows, got)
    assert len(got) == 2


def test_what_came_between_two_transitions_can_be_asked_for() -> None:
    """ABC lacks what C makes with AB of 15, whose value no older one has."""
    ladder = query(
        "SELECT A.ts, B.ts, C.ts, D.ts FROM a A [RANGE 99 ms], b B [RANGE 99 ms], c C [RANGE 99 ms], "
        "d D [RANGE 99 ms] WHERE A.k = B.k AND A.v < C.v AND A.v < D.v"
    )
    rows = inputs(a="1 k=1 v=1 | 15 k=1 v=3", b="2 k=1", c="3 v=9", d="4 v=9 | 30 v=9")
    engine = started(ladder, rows, "(((A C) D) B)")
    got = migrated(engine, [(10, "(((A B) D) C)", "jisc"), (20, "(((A B) C) D)", "jisc")], [10, 16, 20, 31])
    assert exactly(ladder, rows, got)
    assert len(got) == 4


def test_a_key_that_came_between_two_transitions_can_be_asked_for() -> None:
    """Key 3 is in BC of 15, and in none that BC lacks; BCD, which lacks all before 20, has it too."""
    sources = ", ".join(f"{name.lower()} {name} [RANGE 99 ms]" for name in "ABCDE")
    five = query(
        f"SELECT A.ts, B.ts, C.ts, D.ts, E.ts FROM {sources} WHERE A.k = B.k AND B.v = C.v AND C.k = D.k AND C.k = E.k",
        streams="abcde",
    )
    rows = inputs(
        a="1 k=1", b="3 k=1 v=1 | 15 k=1 v=3", c="5 k=1 v=1 | 15 k=3 v=3", d="7 k=1 | 8 k=3", e="9 k=1 | 30 k=3"
    )
    engine = started(five, rows, "((((A D) B) E) C)")
    changes = [(10, "((((B C) E) D) A)", "jisc"), (20, "((((B C) D) E) A)", "jisc")]
    got = migrated(engine, changes, [10, 16, 20, 31])
    assert exactly(five, rows, got)
    assert len(got) == 2


@pytest.mark.parametrize("strategy", ["jisc", "hybmig-bsc"])
def test_what_was_computed_lives_as_long_as_the_rest(strategy: str) -> None:
    """BC of 9 can be met until 59."""
    rows = inputs(a="11 k=9 | 12 k=9 | 13 k=9 | 20 k=1 | 59 k=1", b="9 k=1", c="9 k=1", d="9 k=1")
    engine = started(ABCD, rows, LEFT_DEEP)
    got = migrated(engine, [(10, "(((B C) D) A)", strategy)], [10, 12, 13, 14, 21, 59])
    assert exactly(ABCD, rows, got)
    assert [row["_ts"] for row in got] == [20, 59]
    assert engine.migrations[0].counters.made_tuples == 2


def test_a_state_completed_by_keys_and_then_as_a_whole_has_nothing_twice() -> None:
    """C asks AB for key 1; D, which has no key, wants all of ABC."""
    some = query(
        "SELECT A.ts, B.ts, C.ts, D.ts FROM a A [RANGE 99 ms], b B [RANGE 99 ms], c C [RANGE 99 ms], "
        "d D [RANGE 99 ms] WHERE A.k = B.k AND A.k = C.k AND A.v + B.v < C.v + D.v"
    )
    rows = inputs(
        a="1 k=1 v=1 | 2 k=2 v=1", b="3 k=1 v=1 | 4 k=2 v=1", c="5 k=1 v=0 | 6 k=2 v=0 | 20 k=1 v=0", d="8 v=0 | 30 v=9"
    )
    engine = started(some, rows, "(((A C) D) B)")
    got = migrated(engine, [(10, "(((A B) C) D)", "jisc")], [10, 21])
    assert exactly(some, rows, got)
    assert len(got) == 3


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
    with pytest.raises(UsageError, match=r"\[UNBOUNDED\]: use moving-state, jisc"):
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
    assert type(engine._executor).__name__.lower().startswith(executor)
