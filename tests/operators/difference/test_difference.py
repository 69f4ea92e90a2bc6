"""Set difference by examples checked by hand: changes, plans, migrations and costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from operators.data.watermark import END
from operators.engine.engine import Engine
from operators.explain.explain import explain
from operators.feedback import difference
from operators.kernels.cover import run_edges, uncovered_runs
from operators.migration.strategies import STRATEGIES, check_strategy
from operators.plan.choose import Statistics, choose_plan
from operators.plan.plan import parse_plan
from schemas.codecs.encode import check_output_names, encode_results
from schemas.columns import I64
from schemas.errors import QueryError, UsageError
from schemas.query import Query
from tests import oracle
from tests.feeding import feed, partitions_of
from tests.operators.tiny import query, rows

ONE = query("SELECT A.v FROM a A [RANGE 10 ms] EXCEPT b B [RANGE 3 ms] ON A.k = B.k")
TWO = query(
    "SELECT A.v FROM a A [RANGE 20 ms] EXCEPT b B [RANGE 4 ms] ON A.k = B.k EXCEPT c C [RANGE 8 ms] ON A.k = C.k"
)


def changes(
    bound: Query, data: dict[str, str], *, plan: str | None = None, epoch_ms: int = 1, migrate: str = "", cut: int = 0
) -> str:
    """The answer's changes as `ts+v` and `ts-v`, the oracle's too; `migrate` is `PLAN:STRATEGY` at `cut`, or several
    of them, parted by `,`, at cuts from there on."""
    given: Any = {name: [rows(text)] for name, text in data.items()}
    task = Engine(bound, plan=parse_plan(plan, bound) if plan else None, partitions=partitions_of(given))
    for number, change in enumerate(filter(None, migrate.split(","))):
        tree, strategy = change.split(":")
        task.migrate(parse_plan(tree, bound), strategy, cut + number)
    got = feed(task, given, [1], epoch_ms)
    assert got == oracle.results(bound, given)
    return " ".join(f"{row['_ts']}{row['_op']}{row['A.v']}" for row in got)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("5 k=1 v=7", "", "5+7 16-7"),
        ("5 k=1 v=7", "7 k=1", "5+7 7-7 11+7 16-7"),
        ("5 k=1 v=7", "5 k=1", "9+7 16-7"),  # at the instant of its match: never in the answer
        ("5 k=1 v=7", "2 k=1", "6+7 16-7"),
        ("5 k=1 v=7", "1 k=1", "5+7 16-7"),  # dead an instant before
        ("5 k=1 v=7", "4 k=1 | 7 k=1", "11+7 16-7"),  # covered by one match, then by the next
        ("5 k=1 v=7", "4 k=1 | 8 k=1", "12+7 16-7"),  # one match ends as the next begins: no output
        ("5 k=1 v=7", "4 k=1 | 9 k=1", "8+7 9-7 13+7 16-7"),
        ("5 k=1 v=7", "13 k=1", "5+7 13-7"),  # dead before its match is
        ("5 k=1 v=7", "12 k=1", "5+7 12-7"),  # dies as its match does
        ("5 k=1 v=7", "15 k=1", "5+7 15-7"),
        ("5 k=1 v=7", "16 k=1", "5+7 16-7"),
        ("5 v=7", "5 k=1 | 6", "5+7 16-7"),  # a null never matches
        ("5 k=1 v=7 | 5 k=1 v=8", "7 k=1", "5+7 5+8 7-7 7-8 11+7 11+8 16-7 16-8"),
        ("1 k=1 v=7 | 12 k=2 v=8", "", "1+7 12-7 12+8 23-8"),  # removals come first
    ],
)
@pytest.mark.parametrize("epoch_ms", [1, 1000])
def test_one_stream_is_subtracted(a: str, b: str, expected: str, epoch_ms: int) -> None:
    assert changes(ONE, {"a": a, "b": b}, epoch_ms=epoch_ms) == expected


@pytest.mark.parametrize("plan", ["((A B) C)", "((A C) B)"])
def test_streams_cover_a_tuple_in_turn(plan: str) -> None:
    """B covers 3..7, C 7..15, B 15..19: one answer before, one after."""
    data = {"a": "1 k=1 v=7", "b": "3 k=1 | 15 k=1", "c": "7 k=1"}
    assert changes(TWO, data, plan=plan) == "1+7 3-7 20+7 22-7"


def test_a_rows_window_ends_with_the_tuple_that_replaces_it() -> None:
    """B is covered until the second later tuple of b arrives; a tuple replaced at its own instant is never alive."""
    counted = query("SELECT A.v FROM a A [RANGE 99 ms] EXCEPT b B [ROWS 2] ON A.k = B.k")
    assert changes(counted, {"a": "1 k=1 v=7", "b": "4 k=1 | 5 k=2 | 9 k=2"}) == "1+7 4-7 9+7 101-7"
    assert changes(counted, {"a": "1 k=1 v=7", "b": "4 k=1 | 4 k=2 | 4 k=2"}) == "1+7 101-7"
    left = query("SELECT A.v FROM a A [ROWS 1] EXCEPT b B [RANGE 2 ms] ON A.k = B.k")
    assert changes(left, {"a": "1 k=1 v=7 | 5 k=1 v=8 | 5 k=1 v=9", "b": "3 k=1"}) == "1+7 3-7 6+9"


def test_an_unbounded_window_never_ends() -> None:
    """Event time runs on when the input has ended; an [UNBOUNDED] window has no end."""
    endless = query("SELECT A.v FROM a A [UNBOUNDED] EXCEPT b B [RANGE 3 ms] ON A.k = B.k")
    assert changes(endless, {"a": "1 k=1 v=7", "b": "5 k=1"}) == "1+7 5-7 9+7"
    kept = query("SELECT A.v FROM a A [UNBOUNDED] EXCEPT b B [UNBOUNDED] ON A.k = B.k")
    assert changes(kept, {"a": "1 k=1 v=7 | 2 k=2 v=8", "b": "5 k=1"}) == "1+7 2+8 5-7"


def test_conditions_of_the_left_side_belong_to_their_clause() -> None:
    """Where `A.v > 7` is false, no tuple of B matches; C is not concerned. WHERE selects the tuples of the answer."""
    bound = query(
        "SELECT A.v FROM a A [RANGE 9 ms] EXCEPT b B [RANGE 2 ms] ON A.k = B.k AND A.v > 7 AND B.v = 1 "
        "EXCEPT c C [RANGE 2 ms] ON A.k < C.k WHERE A.v <> 9"
    )
    data = {"a": "1 k=1 v=7 | 1 k=1 v=8 | 1 k=1 v=9", "b": "3 k=1 v=1 | 3 k=1 v=2", "c": "6 k=1 | 7 k=2"}
    assert changes(bound, data) == "1+7 1+8 3-8 6+8 7-7 7-8 10+7 10+8 11-7 11-8"
    nothing = query("SELECT A.v FROM a A [RANGE 9 ms] EXCEPT b B [RANGE 2 ms] ON A.k = B.k AND 1 = 2")
    assert changes(nothing, {"a": "1 k=1 v=7", "b": "3 k=1"}) == "1+7 11-7"


def test_a_stream_is_subtracted_from_itself() -> None:
    """Tuples without another tuple of the same key within 4 ms before or after."""
    alone = query("SELECT A.v FROM a A [RANGE 9 ms] EXCEPT a B [RANGE 4 ms] ON A.k = B.k AND A.v <> B.v")
    assert changes(alone, {"a": "1 k=1 v=7 | 3 k=1 v=8 | 4 k=2 v=9"}) == "1+7 3-7 4+9 6+8 8+7 11-7 13-8 14-9"


def test_changes_have_a_sign() -> None:
    task = Engine(ONE)
    task.push("a", 0, _batch("a", "5 k=1 v=7"))
    assert encode_results(task.advance(END)).data == b'{"A.v":7,"_op":"+","_ts":5}\n{"A.v":7,"_op":"-","_ts":16}\n'
    with pytest.raises(UsageError, match="'_op' is a key that Weir"):
        query("SELECT A.v AS _op FROM a A [ROWS 1] EXCEPT b B [ROWS 1] ON A.k = B.k")
    named = replace(ONE, outputs=(replace(ONE.outputs[0], name="_op"),))
    with pytest.raises(UsageError, match="'_op' is a key that Weir"):
        check_output_names(named)


def _batch(stream: str, text: str) -> Any:
    from tests.feeding import to_batch

    return to_batch(next(s for s in ONE.streams() if s.name == stream), rows(text))


# --- Plans ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["((B A) C)", "(A (B C))", "((A (B C)))", "(B (A C))"])
def test_other_plans_are_refused(plan: str) -> None:
    with pytest.raises(QueryError):
        parse_plan(plan, TWO)
    joined = query("SELECT A.v FROM a A [ROWS 1], b B [ROWS 1], c C [ROWS 1] WHERE A.k = B.k AND A.k = C.k")
    if plan != "((A (B C)))":
        with pytest.raises(UsageError, match=r"begins with A and is left-deep, such as \(\(A B\) C\)"):
            Engine(TWO, plan=parse_plan(plan, joined))
        with pytest.raises(UsageError, match="left-deep"):
            Engine(TWO).migrate(parse_plan(plan, joined), "jisc", 5)


def test_other_executors_are_refused() -> None:
    with pytest.raises(UsageError, match="--executor mjoin does not go with EXCEPT"):
        Engine(TWO, executor="mjoin")


def test_the_stream_that_stops_most_for_its_cost_is_subtracted_first() -> None:
    """C matches more of A; a stream with hundreds of matches per tuple costs more than it saves."""
    many, few = ({("A", "k"): n, ("B", "k"): n, ("C", "k"): n} for n in (1000.0, 100.0))
    even = Statistics(rates={"A": 1000.0, "B": 1000.0, "C": 1000.0}, distinct=many)
    assert str(choose_plan(TWO, even)) == "((A C) B)"
    flood = Statistics(rates={"A": 1000.0, "B": 1000.0, "C": 1e7}, distinct=few)
    assert str(choose_plan(TWO, flood)) == "((A B) C)"


def test_explain_shows_the_operators() -> None:
    bound = query(
        "SELECT A.v FROM a A [RANGE 1000 ms] EXCEPT b B [RANGE 500 ms] ON A.k = B.k AND A.v > 3 AND B.v = 1 "
        "EXCEPT c C [ROWS 9] ON A.v < C.v WHERE A.k > 0"
    )
    text = explain(bound, parse_plan("((A B) C)", bound))
    for part in (
        "nested-loop difference ((A B) C)",
        "loop  A.v < C.v",
        "hash difference (A B)",
        "if    A.v > 3",
        "key   A.k = B.k",
        "where A.k > 0",
        "where B.v = 1",
    ):
        assert part in text, part


# --- Migration --------------------------------------------------------------------------------------------

COVERED = {"a": "1 k=1 v=7", "b": "3 k=1 | 15 k=1", "c": "2 k=1 | 9 k=1"}


@pytest.mark.parametrize("strategy", ["moving-state", "jisc", "gms", "gpt"])
@pytest.mark.parametrize("cut", [1, 2, 4, 8, 9, 10, 18, 21, 22])
def test_the_order_changes_and_nothing_else(strategy: str, cut: int) -> None:
    for old, new in (("((A B) C)", "((A C) B)"), ("((A C) B)", "((A B) C)")):
        assert changes(TWO, COVERED, plan=old, migrate=f"{new}:{strategy}", cut=cut) == "1+7 2-7 20+7 22-7"


def test_gpt_waits_until_the_last_old_tuple_has_left() -> None:
    """At 15 all windows from before the cut have ended; the old pipeline emits that 7 leaves then."""
    data = {"a": "4 k=1 v=7 | 15 k=2 v=8 | 16 k=3 v=9", "b": "15 k=9 | 16 k=9"}
    assert changes(ONE, data, migrate="(A B):gpt", cut=5) == "4+7 15-7 15+8 16+9 26-8 27-9"


def _half(strategy: str) -> Engine:
    """B stops A's tuple; the new plan would ask C first, which was never asked."""
    task = Engine(TWO, plan=parse_plan("((A B) C)", TWO))
    for name, text in {"a": "2 k=1 v=7 | 2 k=2 v=8 | 30", "b": "1 k=1 | 30", "c": "1 k=1 | 30"}.items():
        task.push(name, 0, _batch("a", text))
    task.migrate(parse_plan("((A C) B)", TWO), strategy, 4)
    task.advance(4)
    return task


def test_jisc_asks_only_when_the_match_ends() -> None:
    """At the cut nothing is compared; when B's match ends C is asked about the one tuple, and the migration is over."""
    task = _half("jisc")
    (record,) = task.statistics().migrations
    assert (record.comparisons, record.completed_keys, record.done, record.total) == (0, 0, 0, 1)
    assert [operator.complete for operator in task.statistics().operators] == [(True, True), (False, True)]
    assert len(task.advance(7)) == 0, "C covers it still"
    (record,) = task.statistics().migrations
    assert (record.completed_keys, record.finished_at) == (1, 7)
    assert [operator.complete for operator in task.statistics().operators] == [(True, True), (True, True)]


def test_jisc_never_asks_about_tuples_that_die_covered() -> None:
    """B's match outlives A's tuple, so C is not asked; tuples after the cut ask C first."""
    bound = query(
        "SELECT A.v FROM a A [RANGE 5 ms] EXCEPT b B [RANGE 50 ms] ON A.k = B.k EXCEPT c C [RANGE 50 ms] ON A.k = C.k"
    )
    task = Engine(bound, plan=parse_plan("((A B) C)", bound))
    for name, text in {"a": "2 k=1 v=7 | 6 k=1 v=8", "b": "1 k=1", "c": "1 k=1"}.items():
        task.push(name, 0, _batch("a", text))
    task.migrate(parse_plan("((A C) B)", bound), "jisc", 4)
    assert len(task.advance(20)) == 0
    (record,) = task.statistics().migrations
    assert (record.completed_keys, record.done, record.total) == (0, 0, 0)
    inputs = {operator.name: operator.inputs for operator in task.statistics().operators}
    assert inputs == {"(A C)": (1, 1), "((A C) B)": (1, 1)}


@pytest.mark.parametrize("epoch_ms", [1, 7, 1000])
@pytest.mark.parametrize("b", ["10 k=1 | 20 k=9 | 60 k=9 | 70 k=9", "49 k=1 | 51 k=9 | 52 k=9 | 60 k=9 | 70 k=9"])
def test_jisc_asks_in_the_end_whoever_stopped_it_meanwhile(b: str, epoch_ms: int) -> None:
    """C covers it to 50 and D, which was never asked, to 80; B stops it and releases it before, or just then."""
    bound = query(
        "SELECT A.v FROM a A [RANGE 100 ms] EXCEPT b B [RANGE 3 ms] ON A.k = B.k "
        "EXCEPT c C [RANGE 50 ms] ON A.k = C.k EXCEPT d D [RANGE 80 ms] ON A.k = D.k"
    )
    data = {"a": "1 k=1 v=7", "b": b, "c": "0 k=1", "d": "0 k=1"}
    options: Any = {"plan": "(((A B) C) D)", "migrate": "(((A B) D) C):jisc", "cut": 5}
    assert changes(bound, data, epoch_ms=epoch_ms, **options) == "81+7 102-7"


def test_tuples_left_open_by_one_migration_are_not_by_the_next() -> None:
    """The first order would ask B before C, which covers it; the second order asks C first again."""
    data = {"a": "1 k=1 v=7 | 15", "b": "15", "c": "0 k=1 | 15"}
    there_and_back = "((A B) C):jisc,((A C) B):jisc"
    assert changes(TWO, data, plan="((A C) B)", migrate=there_and_back, cut=3) == "9+7 15+None 22-7 36-None"


def test_moving_state_asks_at_the_cut() -> None:
    (record,) = _half("moving-state").statistics().migrations
    assert (record.comparisons, record.completed_keys, record.finished_at) == (1, 1, 4)


def test_a_key_is_completed_once() -> None:
    """D is asked about one tuple when B's match ends, about another of the same key when C's does."""
    bound = query(
        "SELECT A.v FROM a A [RANGE 50 ms] EXCEPT b B [RANGE 4 ms] ON A.k = B.k AND A.v < B.v "
        "EXCEPT c C [RANGE 8 ms] ON A.k = C.k EXCEPT d D [RANGE 50 ms] ON A.k = D.k"
    )
    task = Engine(bound, plan=parse_plan("(((A B) C) D)", bound))
    for name, text in {"a": "2 k=1 v=1 | 2 k=1 v=9", "b": "1 k=1 v=5", "c": "2 k=1", "d": "1 k=2"}.items():
        task.push(name, 0, _batch("a", f"{text} | 30"))
    task.migrate(parse_plan("(((A D) B) C)", bound), "jisc", 4)
    found = []
    for time in (5, 7, 12):
        task.advance(time)
        (record,) = task.statistics().migrations
        found.append((record.completed_keys, record.done, record.total))
    assert found == [(0, 0, 2), (1, 1, 2), (1, 0, 0)]


def test_counts_never_fall() -> None:
    """Operators move with their counters; the work of the old plan is counted once."""
    for strategy in ("jisc", "moving-state", "gms", "gpt"):
        task = _half(strategy)
        before = task.statistics().comparisons
        without = Engine(TWO, plan=parse_plan("((A B) C)", TWO))
        for name, text in {"a": "2 k=1 v=7 | 2 k=2 v=8 | 30", "b": "1 k=1 | 30", "c": "1 k=1 | 30"}.items():
            without.push(name, 0, _batch("a", text))
        without.advance(4)
        assert before >= without.statistics().comparisons
        if strategy == "jisc":
            assert before == without.statistics().comparisons


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_strategies_that_cannot_say_why(strategy: str) -> None:
    if strategy in ("moving-state", "jisc", "gms", "gpt"):
        check_strategy(strategy, "xjoin", TWO)
        return
    with pytest.raises(UsageError, match=f"{strategy} does not go with EXCEPT: it .*: one of moving-state, jisc"):
        check_strategy(strategy, "xjoin", TWO)


ENDLESS = query("SELECT A.v FROM a A [UNBOUNDED] EXCEPT b B [UNBOUNDED] ON A.k = B.k")


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_refused_strategy_recommends_ones_that_are_not(strategy: str) -> None:
    """With EXCEPT and [UNBOUNDED], `gpt` was refused in favour of `ghm`, which was then refused in turn."""
    try:
        check_strategy(strategy, "xjoin", ENDLESS)
    except UsageError as error:
        recommended = str(error).rpartition("one of ")[2].split(", ")
        assert recommended
        for other in recommended:
            check_strategy(other, "xjoin", ENDLESS)


# --- Cost -------------------------------------------------------------------------------------------------


def test_idle_streams_cost_nothing_and_all_memory_is_freed() -> None:
    """A year without a tuple, in one step; then the states are empty."""
    task = Engine(ONE)
    for name in "ab":
        task.push(name, 0, _batch("a", " | ".join(f"{ts} k={ts % 3} v={ts}" for ts in range(100))))
    task.advance(100)
    assert len(task.advance(100 + 365 * 86_400_000)) > 0
    assert task.statistics().state_tuples == 0
    for name in "ab":
        task.push(name, 0, _batch("a", "40000000000 k=1 v=1"))
    assert [int(ts) for ts in task.advance(END).ts] == [40000000004, 40000000011]


def test_covered_tuples_never_meet_a_later_stream() -> None:
    """B covers every tuple for its whole lifetime, so C is asked about none."""
    task = Engine(TWO, plan=parse_plan("((A B) C)", TWO))
    every_4_ms = " | ".join(f"{ts} k=1" for ts in range(0, 40, 4))
    for name, text in {"a": "1 k=1 | 2 k=1", "b": every_4_ms, "c": "1 k=1"}.items():
        task.push(name, 0, _batch("a", text))
    assert len(task.advance(END)) == 0
    first, second = task.statistics().operators
    assert (first.inputs, first.candidates, first.results) == ((2, 10), 12, 0)
    assert (second.inputs, second.results) == ((0, 1), 0)
    assert (first.kind, first.aliases, second.aliases) == (
        "hash difference",
        (("A",), ("B",)),
        (("A", "B"), ("C",)),
    )


def test_passing_and_living_tuples_are_counted() -> None:
    """v=7 passes B, and again after a match; v=8 is stopped by B, v=9 by C."""
    task = Engine(TWO, plan=parse_plan("((A B) C)", TWO))
    given = {"a": "1 k=1 v=7 | 4 k=2 v=8 | 5 k=3 v=9", "b": "2 k=1 | 7 k=2", "c": "4 k=3"}
    for name, text in given.items():
        task.push(name, 0, _batch("a", text))
    task.advance(10)
    first, second = task.statistics().operators
    assert (first.inputs, first.results, first.living_tuples) == ((3, 2), 4, (3, 1))
    assert (second.inputs, second.results, second.living_tuples) == ((3, 1), 3, (2, 1))


@pytest.mark.parametrize(
    ("window", "suspends"),
    [("[RANGE 20 ms]", True), ("[UNBOUNDED]", True), ("[RANGE 5 ms]", False), ("[ROWS 9]", False)],
)
def test_feedback_suspends_what_cannot_return(window: str, suspends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A match at the same instant that lasts as long as the tuple, or longer; later matches do not find the tuple. Of a
    ROWS window nobody knows how long a match lasts."""
    monkeypatch.setattr(difference, "SWEEP_SHARE", 0.0)
    bound = query(f"SELECT A.v FROM a A [RANGE 20 ms] EXCEPT b B {window} ON A.k = B.k")
    found = []
    for feedback in (False, True):
        task = Engine(bound, feedback=feedback)
        task.push("a", 0, _batch("a", "1 k=1 v=1 | 1 k=2 v=2"))
        task.push("b", 0, _batch("a", " | ".join(f"{ts} k=1" for ts in range(1, 9))))
        out = [encode_results(task.advance(at)).data for at in (*range(1, 12), END)]
        found.append((b"".join(map(bytes, out)), task.statistics()))
    (plain, before), (same, after) = found
    assert same == plain
    (edge,) = after.feedback
    assert (edge.consumer, edge.producer, edge.forgotten) == ("(A B)", "A", int(suspends))
    assert (after.operators[0].candidates < before.operators[0].candidates) == suspends
    assert before.feedback == ()


# --- Kernels ----------------------------------------------------------------------------------------------


def _i64(*values: int) -> I64:
    return np.array(values, np.int64)


def test_runs_between_matches() -> None:
    """A row with runs 10..19 and 30..39, matches at 12..13, none, 14..31, 35..50; one that stays; one not there."""
    offsets, first, last = uncovered_runs(
        _i64(0, -1, -1), np.array([False, True, False]), _i64(0, 2), _i64(10, 30), _i64(19, 39), 10, 39,
        _i64(10, -1, -1), _i64(0, 4, 5, 5), _i64(12, 13, 14, 35, 20), _i64(13, 12, 31, 50, 20),
    )  # fmt: skip
    assert offsets.tolist() == [0, 2, 4, 4]
    assert list(zip(first.tolist(), last.tolist(), strict=True)) == [(11, 11), (32, 34), (10, 19), (21, 39)]


def test_edges_of_runs() -> None:
    """Present before and after with a gap; present before and removed at once; new and removed; new and staying."""
    rows_, ts, comes = run_edges(
        _i64(1, 2, 3, 4), np.array([True, True, False, False]), _i64(0, 2, 2, 3, 4),
        _i64(10, 15, 12, 18), _i64(11, 19, 13, 19), 10, 19,
    )  # fmt: skip
    found = sorted(zip(rows_.tolist(), ts.tolist(), comes.tolist(), strict=True))
    assert found == [(1, 12, False), (1, 15, True), (2, 10, False), (3, 12, True), (3, 14, False), (4, 18, True)]
