"""What is asked of JISC's incomplete states: by parts of keys, by ranges, and as a whole."""

from __future__ import annotations

import pytest

from operators.migration.jisc.strategy import Jisc
from operators.plan.plan import parse_plan
from tests.operators.inside import executor_as
from tests.operators.migrating import (
    exactly,
    joined,
    migrated,
    started,
)
from tests.operators.tiny import inputs

TRIANGLE = joined("A.k = B.k AND B.v = C.v AND A.v = C.k AND C.v = D.v")
LADDER = joined("A.k = B.k AND A.v < C.k AND C.v = D.v")


def test_a_key_of_both_inputs_is_completed_by_a_part_of_it() -> None:
    """C looks for AB by B.v and A.v: what has another A.v is left alone, the rest is completed, if B.v fits or not."""
    a = "1 k=1 v=1 | 2 k=1 v=2 | 3 k=1 v=3"
    rows = inputs(a=a, b="4 k=1 v=7 | 5 k=1 v=8", c="6 k=5 v=5 | 20 k=2 v=7 | 30 k=2 v=8", d="1 v=7 | 2 v=8")
    engine = started(TRIANGLE, rows, "((B (C D)) A)")
    engine.migrate(parse_plan("(((A B) C) D)", TRIANGLE), "jisc", 10)
    assert engine.advance(21).ts.tolist() == [20]
    (record,) = engine.migrations
    jisc = executor_as(engine, Jisc)
    assert record.counters.made_tuples == 2
    assert jisc.completions[0].progress() == (1, 3)
    assert engine.advance(31).ts.tolist() == [30]
    assert record.counters.made_tuples == 2, "attempted"


@pytest.mark.parametrize("column", ["v", "d"])
@pytest.mark.parametrize(("op", "values"), [("<", 1), ("<=", 2), (">", 2), (">=", 3)])
def test_every_inequality(op: str, values: int, column: str) -> None:
    """C has 2, A has 1 to 4; whole numbers and doubles."""
    given = joined(f"A.k = B.k AND A.{column} {op} C.{column} AND C.k = D.k")
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
    given = joined("A.k = B.k AND A.v <= C.v AND A.ts >= C.k AND C.d = D.d")
    rows = inputs(a="4 k=1 v=1 | 5 k=1 v=2", b="6 k=1", c="20 k=3 v=9 d=1", d="8 d=1")
    engine = started(given, rows, "((A (C D)) B)")
    got = migrated(engine, [(10, "(((A B) C) D)", "jisc")], [10])
    assert exactly(given, rows, got)
    assert len(got) == 2


def test_what_was_asked_of_the_state_below_alone_is_not_taken_for_asked() -> None:
    """C asks AB for A.v < 3, D asks ABC for A.v < 2 and gets no more: what has 2 would be there twice at 40."""
    given = joined("A.k = B.k AND A.v < C.v AND A.v < D.v")
    a = "1 k=1 v=1 | 2 k=1 v=2 | 3 k=1 v=3 | 4 k=1 v=4"
    rows = inputs(a=a, b="4 k=1", c="5 v=9 | 20 v=3", d="6 v=0 | 30 v=2 | 40 v=3")
    engine = started(given, rows, "(((A C) D) B)")
    got = migrated(engine, [(10, "(((A B) C) D)", "jisc")], [10, 21, 31, 41])
    assert exactly(given, rows, got)
    assert len(got) == 2 + 4


def test_a_state_that_goes_by_parts_is_asked_for_its_whole_key_as_a_whole() -> None:
    """AB has a key of both inputs; ABCD asks for it by that key, and CD, which is incomplete too, cannot tell."""
    given = joined("A.s = B.s AND C.f = D.f AND A.k = C.k AND B.v = C.v AND A.k = E.k AND B.v = E.v", aliases="ABCDE")
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


def test_a_state_completed_by_keys_and_then_as_a_whole_has_nothing_twice() -> None:
    """C asks AB for key 1; D, which has no key, wants all of ABC."""
    some = joined("A.k = B.k AND A.k = C.k AND A.v + B.v < C.v + D.v")
    rows = inputs(
        a="1 k=1 v=1 | 2 k=2 v=1", b="3 k=1 v=1 | 4 k=2 v=1", c="5 k=1 v=0 | 6 k=2 v=0 | 20 k=1 v=0", d="8 v=0 | 30 v=9"
    )
    engine = started(some, rows, "(((A C) D) B)")
    got = migrated(engine, [(10, "(((A B) C) D)", "jisc")], [10, 21])
    assert exactly(some, rows, got)
    assert len(got) == 3


def test_what_is_joined_to_complete_a_state_may_be_incomplete_itself() -> None:
    """E asks ABCD by A.s, which AB can be looked up by; CD, which that meets, lacks its old tuples too."""
    given = joined("A.k = B.k AND B.v = C.v AND C.k = D.k AND A.s = E.s", aliases="ABCDE")
    rows = inputs(a="1 k=1 s=x", b="2 k=1 v=1", c="3 v=1 k=2 | 4 v=1 k=3", d="5 k=2", e="6 s=y | 20 s=x")
    engine = started(given, rows, "(((A E) (B C)) D)")
    got = migrated(engine, [(10, "(((A B) (C D)) E)", "jisc")], [10, 21])
    assert exactly(given, rows, got)
    assert len(got) == 1
    assert engine.migrations[0].counters.made_tuples == 2, "CD and ABCD"
