"""How rows of a group are set aside and come back, by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from operators.juggler.guards import Partners, edges
from operators.juggler.idle import Idle
from operators.juggler.order import ORDERS
from operators.juggler.runs import Runs
from operators.statistics import EdgeStatistics
from schemas.groups import query_group
from schemas.query import Compare, Expr, Literal, Output, Query, Source, Type, Window
from tests.cases import column
from tests.operators.juggler.groups import STREAMS, Rows, Runner, eager, expected

K, V = (Compare("=", column("A", name), column(other, name)) for name, other in (("k", "B"), ("v", "C")))
"""B is found by k, C by v."""


def joined(name: str, *more: Expr, life: int = 10) -> Query:
    """A joined with B and C."""
    sources = tuple(Source(alias, STREAMS[n], Window("RANGE", life)) for n, alias in enumerate("ABC"))
    outputs = tuple(Output(alias, column(alias, "ts")) for alias in "ABC")
    return Query(name, None, sources, (K, V, *more), outputs)


def rows(*of: tuple[int, int, int], d: float = 0.5) -> list[dict[str, Any]]:
    """Rows with these ts, k and v."""
    return [{"ts": ts, "k": k, "v": v, "d": d, "s": "a", "b": True} for ts, k, v in of]


@pytest.fixture(autouse=True)
def watching() -> Iterator[None]:
    """Guards watch from the first slice on."""
    with eager():
        yield


def said(runner: Runner, alias: str, by: str) -> EdgeStatistics:
    """What one input has said of another."""
    return next(edge for edge in runner.juggler.feedback() if edge.consumer == f"{alias} -> {by}")


def test_a_row_without_a_partner_is_set_aside_until_one_comes() -> None:
    runner = Runner(
        query_group([joined("q")]),
        {"S0": rows((0, 1, 1), (2, 1, 1), (3, 1, 5)), "S1": rows((0, 1, 0)), "S2": rows((0, 0, 9), (5, 0, 1))},
        feedback=True,
    )
    runner.to(1)
    # Neither A nor C fits the other, and B fits A, wherever that is.
    assert runner.juggler.state_tuples() == 1
    assert said(runner, "A", "C").suspend == 1
    before = runner.juggler.comparisons()
    runner.to(4)
    assert runner.juggler.state_tuples() == 1
    assert runner.juggler.comparisons() == before, "nobody starts on its way"
    assert (said(runner, "A", "C").kept_back, said(runner, "A", "C").suspend) == (3, 2)
    runner.to(6)
    assert runner.found["q"] == [{"A": 0, "B": 0, "C": 5, "_ts": 5}, {"A": 2, "B": 0, "C": 5, "_ts": 5}]
    assert (said(runner, "A", "C").returned, said(runner, "A", "C").resume) == (2, 1)
    assert runner.juggler.state_tuples() == 4
    runner.to(40)
    runner.rows["S0"] = rows((45, 7, 7))
    runner.to(50)
    assert said(runner, "A", "C").kept_back == 1, "what has died is let go"


def test_a_row_that_has_lost_its_last_partner_leaves_the_structures() -> None:
    runner = Runner(
        query_group([joined("q", life=4)]),
        {"S0": rows((1, 1, 1), (5, 1, 1), (5, 1, 1)), "S1": rows((1, 1, 0), (6, 1, 0)), "S2": rows((1, 0, 1))},
        feedback=True,
    )
    runner.to(2)
    runner.to(6)
    assert [row["A"] for row in runner.found["q"]] == [1, 5, 5]
    assert said(runner, "A", "C").kept_back == 0
    # At 6 the only C is dead, and with it the newer As are of no use.
    runner.to(7)
    assert (runner.juggler.state_tuples(), said(runner, "A", "C").kept_back) == (1, 2)


def test_every_query_has_its_own_partners() -> None:
    """A row starts for those that may have results, and is set aside when none is left."""
    low, high = (Compare(op, column("C", "d"), Literal(1.0, Type.DOUBLE)) for op in ("<", ">="))
    given: Rows = {"S0": rows((0, 1, 1), (3, 1, 1)), "S1": rows((0, 1, 0)), "S2": rows((0, 0, 1))}
    runner = Runner(query_group([joined("low", low), joined("high", high)]), given, feedback=True)
    runner.to(1)
    runner.to(4)
    assert [len(runner.found[name]) for name in ("low", "high")] == [2, 0]
    assert said(runner, "A", "C").suppressed == 1, "it has lost a query"
    assert runner.juggler.state_tuples() == 4
    runner.juggler.drop("low", cut=4)
    runner.to(5)
    assert runner.juggler.state_tuples() == 1, "nobody wants this C, so nobody wants an A; B has those"
    runner.juggler.add(joined("again", low), from_now=False, cut=5)
    runner.rows["S2"] = rows((5, 0, 1))
    runner.to(6)
    assert len(runner.found["again"]) == 2


def test_a_partner_for_another_query_brings_it_back_too() -> None:
    """The signature has partners already, but none for the query that wants the row."""

    def of(op: str) -> list[Expr]:
        return [Compare(op, column(alias, "d"), Literal(1.0, Type.DOUBLE)) for alias in "AC"]  # type: ignore[arg-type]

    given: Rows = {
        "S0": [*rows((0, 1, 1)), *rows((0, 1, 1), d=2.0)],
        "S1": rows((0, 1, 0)),
        "S2": [*rows((0, 0, 1)), *rows((3, 0, 1), d=2.0)],
    }
    runner = Runner(query_group([joined("low", *of("<")), joined("high", *of(">="))]), given, feedback=True)
    runner.to(1)
    assert said(runner, "A", "C").kept_back == 1
    runner.to(4)
    assert [len(runner.found[name]) for name in ("low", "high")] == [1, 1]


def test_what_comes_back_may_wait_for_another_input() -> None:
    runner = Runner(
        query_group([joined("q")]),
        {"S0": rows((0, 1, 1)), "S1": rows((1, 9, 0), (3, 1, 0)), "S2": rows((2, 0, 9), (5, 0, 1))},
        feedback=True,
    )
    for cut in range(1, 7):
        runner.to(cut)
    assert runner.found["q"] == [{"A": 0, "B": 3, "C": 5, "_ts": 5}]
    assert [said(runner, "A", by).returned for by in "BC"] == [1, 1]


def test_who_waited_for_two_comes_back_once() -> None:
    """For one query in the one guard's blacklist, for one in the other's."""
    whole = joined("q").sources
    last = Source("D", STREAMS[1], Window("RANGE", 10))
    by_b = Query("b", None, (whole[0], whole[1], last), (K, Compare("=", column("A", "d"), column("D", "d"))), ())
    by_c = Query("c", None, (whole[0], whole[2], last), (V, Compare("=", column("A", "s"), column("D", "s"))), ())
    given: Rows = {"S0": rows((0, 1, 1)), "S1": rows((0, 8, 0), (2, 1, 0), (6, 8, 0)), "S2": rows((0, 0, 9), (4, 0, 1))}
    group = query_group([by_b, by_c])
    runner = Runner(group, given, feedback=True)
    for cut in range(1, 8):
        runner.to(cut)
    for query in (by_b, by_c):
        assert len(runner.found[query.name]) == len(expected(query, given))


def test_who_rests_lets_everything_in() -> None:
    with eager(stake=0.0):
        runner = Runner(
            query_group([joined("q")]),
            {"S0": rows((0, 1, 1)), "S1": rows((0, 1, 0), (2, 1, 0), (3, 1, 0)), "S2": rows((5, 0, 1))},
            feedback=True,
        )
        for cut in range(1, 7):
            runner.to(cut)
    assert len(runner.found["q"]) == 3


@pytest.mark.parametrize("order", ORDERS)
def test_late_rows_are_found_by_value_and_by_time(order: str) -> None:
    less = Compare("<", column("C", "v"), column("A", "v"))
    query = replace(joined("q"), predicates=(K, less))
    given: Rows = {"S0": rows((0, 1, 4), (1, 1, 3)), "S1": rows((0, 9, 0), (3, 1, 0)), "S2": rows((0, 0, 5), (5, 0, 2))}
    runner = Runner(query_group([query]), given, order, feedback=True)
    # Structures are not made anew meanwhile, which would put late rows in their place.
    with eager(swept=2.0):
        for cut in range(1, 7):
            runner.to(cut)
    assert said(runner, "A", "B").returned == 1, "the other one was there before guards were"
    assert [row["A"] for row in runner.found["q"]] == [0, 1]


def test_nothing_starts_while_an_input_has_nothing_for_a_query() -> None:
    less = Compare("<", column("B", "v"), column("C", "v"))
    query = joined("q")
    query = Query("q", None, query.sources, (Compare("<", column("A", "v"), column("B", "v")), less), query.outputs)
    given: Rows = {"S0": rows((0, 0, 1)), "S1": rows((1, 0, 2)), "S2": rows((2, 0, 3), (30, 0, 3))}
    runner = Runner(query_group([query]), given, feedback=True)
    runner.to(2)
    (edge,) = runner.juggler.feedback()
    assert (runner.juggler.comparisons(), edge.suppressed) == (0, 2)
    runner.to(3)
    runner.to(31)
    assert len(runner.found["q"]) == 1
    (edge,) = runner.juggler.feedback()
    assert edge.suppressed == 3


def test_what_could_gain_nothing_is_not_guarded() -> None:
    pair = joined("pair")
    pair = Query("pair", None, pair.sources[:2], (K,), pair.outputs[:2])
    assert edges(query_group([pair])) == ()
    found = edges(query_group([pair, joined("q")]))
    assert {(edge.alias, edge.by): set(edge.queries) for edge in found} == {
        ("A", "B"): {0, 1}, ("B", "A"): {0, 1}, ("A", "C"): {1}, ("C", "A"): {1},
    }  # fmt: skip
    star = replace(joined("star"), predicates=(K, Compare("=", column("B", "k"), column("C", "v"))))
    assert len(edges(query_group([star]))) == 6, "what follows from equalities is one"


def test_partners_are_forgotten_with_the_last_of_them() -> None:
    partners = Partners("C", (), 1)
    both = np.array([[3], [1]], np.uint64)
    keys, all_valid = np.array([7, 8], np.uint64), np.ones(2, np.bool_)
    assert partners.see(keys, all_valid, np.array([10, 20]), both, 0).tolist() == [7, 8]
    left = np.array([[7], [7]], np.uint64)
    partners.leave(keys, all_valid, np.array([3], np.uint64), 0, left)
    assert left.tolist() == [[7], [5]], "bits of queries that do not ask stay"
    left = np.array([[7], [7]], np.uint64)
    partners.leave(keys, all_valid, np.array([3], np.uint64), 11, left)
    assert left.tolist() == [[4], [5]]
    # The dead one's bits are not added to.
    assert partners.see(keys[:1], all_valid[:1], np.array([30]), np.array([[1]], np.uint64), 11).tolist() == [7]
    left = np.array([[7]], np.uint64)
    partners.leave(keys[:1], all_valid[:1], np.array([3], np.uint64), 11, left)
    assert left.tolist() == [[5]]
    many = np.arange(1, 1000, dtype=np.uint64)
    partners.see(many, np.ones(999, np.bool_), np.full(999, 40), np.ones((999, 1), np.uint64), 35)
    left = np.ones((999, 1), np.uint64)
    assert partners.leave(many, np.ones(999, np.bool_), np.array([1], np.uint64), 35, left) == 0
    assert partners.leave(many, np.zeros(999, np.bool_), np.array([1], np.uint64), 35, left) == 999


def test_an_idle_query_waits_for_an_input_of_its_own() -> None:
    group = query_group([joined("q"), Query("one", None, joined("q").sources[:1], (), ())])
    idle = Idle(group, 1)
    assert idle.busy(dict.fromkeys("ABC", -(2**62))).tolist() == [0]


def test_runs_are_merged_as_they_grow() -> None:
    runs = Runs()
    for n in range(40):
        runs.insert(np.array([-n]), np.array([n]), np.array([n]), 0)
    assert len(runs) == 40
    assert len(runs.parts) <= 6
    assert all((run.values[1:] >= run.values[:-1]).all() for run in runs.parts)
    runs.purge(40)
    assert runs.parts == []
