"""JISC: which keys are completed when, what is counted, and transitions that overlap."""

from __future__ import annotations

import pytest

from operators.migration.jisc import completion
from operators.migration.jisc import strategy as jisc_module
from operators.migration.jisc.completion import OldTuples
from operators.migration.jisc.counting import KeyCount
from operators.migration.jisc.strategy import Jisc
from operators.plan.plan import Join, parse_plan
from tests.feeding import to_rows
from tests.operators.inside import executor_as, executor_of
from tests.operators.migrating import ABCD, LEFT_DEEP, OLD, RIGHT_DEEP, exactly, joined, migrated, started, state, tree
from tests.operators.tiny import chain, inputs, query


def test_jisc_ends_when_the_last_key_is_completed() -> None:
    """Key 2 is asked for at 21 by B, and CD lacks it until then; BCD when A has asked for both."""
    rows = inputs(**{**{n: OLD[n] for n in "cd"}, "a": f"{OLD['a']} | 20 k=1 | 30 k=2", "b": f"{OLD['b']} | 21 k=2"})
    engine = started(ABCD, rows, LEFT_DEEP)
    engine.migrate(parse_plan(RIGHT_DEEP, ABCD), "jisc", 10)
    engine.advance(20)
    (record,) = engine.migrations
    jisc = executor_as(engine, Jisc)
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
    rows = inputs(a="1 k=1 | 2 k=2 | 20 k=1", b="3 k=1 | 3 k=5", c="4 k=1 | 5 k=3 | 6 k=4", d="7 k=3 | 8 k=1")
    engine = started(ABCD, rows, LEFT_DEEP)
    engine.migrate(parse_plan(RIGHT_DEEP, ABCD), "jisc", 10)
    assert engine.advance(10).ts.tolist() == [8]
    assert engine.advance(20).ts.tolist() == []
    (record,) = engine.migrations
    jisc = executor_as(engine, Jisc)
    assert engine.advance(21).ts.tolist() == [20]
    assert [c.progress() for c in jisc.completions] == [(1, 2), (1, 1)], "CD has keys 1 and 3, BCD 1"
    assert [c.over for c in jisc.completions] == [False, True]
    assert record.counters.completed_keys == record.counters.made_tuples == 2


def test_keys_are_counted_a_piece_per_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """No slice looks at more than it may, over all states; completion is seen when the count has ended."""
    monkeypatch.setattr(jisc_module, "COUNTED_TUPLES", 0)
    monkeypatch.setattr(jisc_module, "COUNTED_PER_TUPLE", 1)
    old = " | ".join(f"{n} k={n}" for n in (1, 2, 3))
    new = "20 k=5 | 21 k=1 | 22 k=2 | 23 k=3 | 24 k=1 | 25 k=2"
    rows = inputs(b=f"{old} | 4 k=5", c=old, d=old, a=f"{old} | {new}")
    engine = started(ABCD, rows, LEFT_DEEP)
    engine.migrate(parse_plan(RIGHT_DEEP, ABCD), "jisc", 10)
    engine.advance(20)
    looked = 0
    original = KeyCount.count

    def count(self: KeyCount, most: int) -> int:
        nonlocal looked
        done = original(self, most)
        looked += done
        return done

    monkeypatch.setattr(KeyCount, "count", count)
    found = []
    for time in range(21, 27):
        looked = 0
        out = engine.advance(time)
        assert looked <= 1
        jisc = executor_of(engine)
        found.append(([c.progress() for c in jisc.completions] if isinstance(jisc, Jisc) else [], len(out)))
    neither, part, one = [(0, 0), (0, 0)], [(2, 3), (0, 0)], [(3, 3), (0, 0)]
    assert found == [(neither, 0), (neither, 1), (part, 1), (one, 1), (one, 1), ([], 1)], "CD, and then BCD"
    (record,) = engine.migrations
    assert record.counters.completed_keys == record.counters.made_tuples == 6
    assert record.finished_at == 26


def test_an_index_of_the_old_plan_finds_what_is_asked_for() -> None:
    """A was joined by k, and is joined by v now; AC is asked for by A.k."""
    given = query(
        "SELECT A.ts, B.ts, C.ts FROM a A [RANGE 50 ms], b B [RANGE 50 ms], c C [RANGE 50 ms] "
        "WHERE A.k = B.k AND A.v = C.v"
    )
    rows = inputs(a="1 k=1 v=5 | 2 k=2 v=6 | 3 k=1 v=6 | 20 k=1 v=5", b="4 k=1 | 21 k=1 | 53 k=1", c="5 v=5 | 6 v=6")
    engine = started(given, rows, "((A B) C)")
    engine.advance(10)
    before = state(tree(engine), "A")
    engine.migrate(parse_plan("((A C) B)", given), "jisc", 10)
    got = to_rows(engine.advance(21))
    jisc = executor_as(engine, Jisc)
    assert state(jisc.current, "A") is not before
    assert [index is before for index in jisc._old_tuples.indexes.values()] == [True]
    assert jisc.size_bytes() == jisc.current.size_bytes() + before.size_bytes()
    got += to_rows(engine.advance(22))
    assert len(got) == 4, "A of 20 with B of 4; B of 21 with A of 1, 3 and 20"
    engine.advance(53)
    assert len(before) == 1, "it is purged as states are"
    assert len(engine.advance(54)) == 2
    (record,) = engine.migrations
    assert record.counters.completed_keys == 1


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
    original = OldTuples.derive

    def derive(self: OldTuples, node: Join, *rest: object, **more: object) -> object:
        derived.append(node.aliases)
        return original(self, node, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(OldTuples, "derive", derive)
    engine.advance(30)
    assert derived == [("A4", "A3"), ("A4", "A3", "A2"), ("A4", "A3", "A2", "A1")]


def test_the_rest_is_completed_with_no_fewer_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six keys that CD and BCD lack, two asked for at once bring nothing else while four are left; of those four,
    two bring the others."""
    monkeypatch.setattr(completion, "MIN_KEYS_FOR_REST", 2)
    monkeypatch.setattr(completion, "REST_PER_KEY", 1)
    old = " | ".join(f"{n} k={n}" for n in range(1, 7))
    rows = inputs(b=old, c=old, d=old, a="20 k=1 | 20 k=2 | 21 k=3 | 22 k=3 | 22 k=4 | 23 k=6")
    engine = started(ABCD, rows, LEFT_DEEP)
    engine.migrate(parse_plan(RIGHT_DEEP, ABCD), "jisc", 10)
    found = []
    for time in (21, 22, 23, 24):
        out = engine.advance(time)
        jisc = executor_of(engine)
        found.append(([c.progress() for c in jisc.completions] if isinstance(jisc, Jisc) else [], len(out)))
    assert found == [([(2, 6), (2, 6)], 2), ([(3, 6), (3, 6)], 1), ([(4, 6), (4, 6)], 2), ([(5, 6), (5, 6)], 1)]
    rows["a"] = inputs(a="20 k=1 | 20 k=2 | 21 k=3 | 21 k=4 | 22 k=6")["a"]
    engine = started(ABCD, rows, LEFT_DEEP)
    engine.migrate(parse_plan(RIGHT_DEEP, ABCD), "jisc", 10)
    assert len(engine.advance(21)) == 2
    assert [c.progress() for c in executor_of(engine).completions] == [(2, 6), (2, 6)]
    assert len(engine.advance(22)) == 2
    (record,) = engine.migrations
    assert record.finished_at == 22
    assert record.counters.completed_keys == record.counters.made_tuples == 12
    assert len(engine.advance(23)) == 1


def test_what_is_completed_at_once_is_in_one_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ascending by ts, as if they had come one by one: no second state is probed beside it."""
    monkeypatch.setattr(completion, "MIN_KEYS_FOR_REST", 1)
    rows = inputs(b="1 k=1 | 2 k=2 | 3 k=3", c="3 k=3 | 4 k=2 | 5 k=1", d="6 k=2 | 7 k=1 | 8 k=3", a="20 k=1 | 20 k=2")
    engine = started(ABCD, rows, LEFT_DEEP)
    engine.migrate(parse_plan(RIGHT_DEEP, ABCD), "jisc", 10)
    assert len(engine.advance(21)) == 2
    (record,) = engine.migrations
    assert record.finished_at == 21
    for aliases in ("CD", "BCD"):
        made = state(tree(engine), aliases)
        assert made.older is None
        assert made.tuples().ts.tolist() == [6, 7, 8]


def test_what_no_entry_can_have_completes_nothing() -> None:
    """Keys that A alone has."""
    rows = inputs(**{**OLD, "a": " | ".join(f"{20 + k} k={k}" for k in range(3, 20))})
    engine = started(ABCD, rows, LEFT_DEEP)
    assert migrated(engine, [(10, RIGHT_DEEP, "jisc")], [10, 45]) == []
    (record,) = engine.migrations
    assert record.counters.completed_keys == record.counters.made_tuples == 0


CHAIN = joined("A.k = B.k AND B.v = C.v AND C.k = D.k")


def test_what_came_at_the_first_cut_counts_as_new() -> None:
    """BC of 10 is in its state, as no old tuple is; BCA, which a second transition asks for it, needs both."""
    rows = inputs(a="1 k=1", b="3 k=1 v=1 | 10 k=1 v=2", c="5 k=1 v=1 | 10 k=1 v=2", d="30 k=1")
    engine = started(CHAIN, rows, "((A (C D)) B)")
    got = migrated(engine, [(10, "(((B C) D) A)", "jisc"), (20, "(((B C) A) D)", "jisc")], [10, 11, 20, 21])
    assert exactly(CHAIN, rows, got)
    assert len(got) == 2


def test_what_came_between_two_transitions_can_be_asked_for() -> None:
    """ABC lacks what C makes with AB of 15, whose value no older one has."""
    ladder = joined("A.k = B.k AND A.v < C.v AND A.v < D.v")
    rows = inputs(a="1 k=1 v=1 | 15 k=1 v=3", b="2 k=1", c="3 v=9", d="4 v=9 | 30 v=9")
    engine = started(ladder, rows, "(((A C) D) B)")
    got = migrated(engine, [(10, "(((A B) D) C)", "jisc"), (20, "(((A B) C) D)", "jisc")], [10, 16, 20, 31])
    assert exactly(ladder, rows, got)
    assert len(got) == 4


FIVE = joined("A.k = B.k AND B.v = C.v AND C.k = D.k AND C.k = E.k", aliases="ABCDE")


def test_a_key_that_came_between_two_transitions_can_be_asked_for() -> None:
    """Key 3 is in BC of 15, and in none that BC lacks; BCD, which lacks all before 20, has it too."""
    rows = inputs(
        a="1 k=1", b="3 k=1 v=1 | 15 k=1 v=3", c="5 k=1 v=1 | 15 k=3 v=3", d="7 k=1 | 8 k=3", e="9 k=1 | 30 k=3"
    )
    engine = started(FIVE, rows, "((((A D) B) E) C)")
    changes = [(10, "((((B C) E) D) A)", "jisc"), (20, "((((B C) D) E) A)", "jisc")]
    got = migrated(engine, changes, [10, 16, 20, 31])
    assert exactly(FIVE, rows, got)
    assert len(got) == 2


def test_a_state_that_is_asked_for_by_another_key_begins_again() -> None:
    """AB had B of 2 under C's key before the second transition; D asks for it by another. Kept, it would be there
    twice."""
    four = joined("A.k = B.k AND B.v = C.v AND A.s = D.s")
    rows = inputs(a="1 k=1 s=x", b="2 k=1 v=1 | 3 k=1 v=5", c="3 v=7 | 12 v=1", d="4 s=y | 20 s=x")
    engine = started(four, rows, "((A D) (B C))")
    got = migrated(engine, [(10, "(((A B) C) D)", "jisc"), (15, "(((A B) D) C)", "jisc")], [10, 13, 15, 21])
    assert exactly(four, rows, got)
    assert len(got) == 1
    assert [record.counters.made_tuples for record in engine.migrations] == [1, 2]


def test_what_was_completed_is_there_for_as_long_as_it_lives() -> None:
    """BC, which still lacks key 2, and BCD have what is of 9 until 59."""
    nine = "9 k=1 | 9 k=2"
    rows = inputs(a="20 k=1 | 59 k=1", b=nine, c=nine, d=nine)
    engine = started(ABCD, rows, LEFT_DEEP)
    got = migrated(engine, [(10, "(((B C) D) A)", "jisc")], [10, 21, 59])
    assert exactly(ABCD, rows, got)
    assert len(got) == 2


@pytest.fixture
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be asked for is known from what was."""
    monkeypatch.setattr(jisc_module, "COUNTED_TUPLES", 0)
    monkeypatch.setattr(jisc_module, "COUNTED_PER_TUPLE", 0)


@pytest.mark.usefixtures("uncounted")
def test_what_an_earlier_transition_completed_is_not_taken_for_impossible() -> None:
    """D asks BC for key 1 before the second transition, E asks BCD for it after."""
    shared = joined("A.k = B.k AND A.k = C.k AND A.k = D.k AND A.k = E.k", aliases="ABCDE")
    rows = inputs(a="1 k=1", b="2 k=1", c="3 k=1", d="4 k=1 | 15 k=1", e="5 k=1 | 30 k=1")
    engine = started(shared, rows, "((((A E) D) C) B)")
    changes = [(10, "((((B C) D) A) E)", "jisc"), (20, "((((B C) D) E) A)", "jisc")]
    got = migrated(engine, changes, [10, 16, 20, 31])
    assert exactly(shared, rows, got)
    assert len(got) == 1 + 1 + 2


@pytest.mark.usefixtures("uncounted")
def test_a_state_that_was_not_asked_for_a_key_cannot_tell_of_it() -> None:
    """E asks BCDA by C.k, which asks BCD by B.k; so BC, which D asks by C.k, has not heard of E's key."""
    rows = inputs(a="1 k=1", b="3 k=1 v=1", c="5 k=2 v=1 | 6 k=4 v=9", d="7 k=2 | 20 k=4", e="9 k=2 | 30 k=2")
    engine = started(FIVE, rows, "((((A D) B) E) C)")
    got = migrated(engine, [(10, "((((B C) D) A) E)", "jisc")], [10, 21, 31])
    assert exactly(FIVE, rows, got)
    assert len(got) == 2


def test_what_only_one_input_was_asked_for_is_demanded_of_the_other() -> None:
    """E asks BCAD by C.k, so BC; AD, which goes by A.k, has heard of nothing."""
    bushy = joined("A.k = B.k AND B.v = C.v AND A.v = D.v AND C.k = E.k", aliases="ABCDE")
    rows = inputs(a="1 k=1 v=7", b="3 k=1 v=1", c="5 k=2 v=1", d="7 v=7", e="9 k=2 | 30 k=2")
    engine = started(bushy, rows, "((((C E) B) A) D)")
    got = migrated(engine, [(10, "(((B C) (A D)) E)", "jisc")], [10, 31])
    assert exactly(bushy, rows, got)
    assert len(got) == 2


def test_both_inputs_of_what_goes_by_another_key_are_asked() -> None:
    """F asks ABCDE by C.v, so ABCD, which goes by A.v; AB and CD go by the key that joins them, F's."""
    six = joined("A.k = B.k AND B.v = C.v AND C.k = D.k AND A.v = E.v AND C.v = F.v", aliases="ABCDEF")
    rows = inputs(a="1 k=1 v=8", b="3 k=1 v=2", c="5 k=3 v=2", d="6 k=3", e="7 v=8", f="9 v=2 | 30 v=2")
    engine = started(six, rows, "(((((B C) F) E) A) D)")
    got = migrated(engine, [(10, "((((A B) (C D)) E) F)", "jisc")], [10, 31])
    assert exactly(six, rows, got)
    assert len(got) == 2


def test_an_input_that_cannot_go_by_keys_is_completed_as_a_whole() -> None:
    """F asks ABDE by E.k, which E has; ABD, which goes by a sum of AB's columns, can count no keys of it."""
    sums = joined("A.v = B.v AND A.k = D.k AND A.k + B.k = E.k AND A.k + B.k = F.k", aliases="ABDEF")
    rows = inputs(a="1 k=1 v=1 | 2 k=2 v=1", b="3 k=1 v=1", d="5 k=1 | 6 k=2", e="7 k=2 | 8 k=3", f="9 k=2 | 30 k=3")
    engine = started(sums, rows, "((((A D) E) F) B)")
    got = migrated(engine, [(10, "((((A B) D) E) F)", "jisc")], [10, 31])
    assert exactly(sums, rows, got)
    assert len(got) == 2


@pytest.mark.usefixtures("uncounted")
def test_what_a_source_further_down_lacks_is_not_completed() -> None:
    """D asks BCA for a C.k that no C has; BC, which A asks by B.k, is not asked."""
    rows = inputs(a="1 k=1", b="3 k=1 v=1", c="5 k=1 v=1", d="7 k=1 | 30 k=7")
    engine = started(CHAIN, rows, "(((C D) B) A)")
    got = migrated(engine, [(10, "(((B C) A) D)", "jisc")], [10, 31])
    assert exactly(CHAIN, rows, got)
    (record,) = engine.migrations
    assert record.counters.completed_keys == 0
