"""How rows of a group are set aside and come back, by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from operators.data.statistics import EdgeStatistics
from operators.juggler.predicates.order import ORDERS
from operators.juggler.state.sorted_runs import SortedRuns
from schemas.groups import query_group
from schemas.query import Compare, Expr, Literal, Query, Source, Type, Window
from tests.cases import column
from tests.operators.juggler.groups import BY_K, BY_V, STREAMS, Rows, Runner, eager, expected, hub, rows


@pytest.fixture(autouse=True)
def watching() -> Iterator[None]:
    """Guards watch from the first slice on."""
    with eager():
        yield


def said(runner: Runner, alias: str, by: str) -> EdgeStatistics:
    """The feedback statistics of one input by another."""
    return next(edge for edge in runner.juggler.feedback() if edge.consumer == f"{alias} -> {by}")


def test_a_row_without_a_partner_is_set_aside_until_one_comes() -> None:
    runner = Runner(
        query_group([hub("q")]),
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
        query_group([hub("q", life=4)]),
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
    runner = Runner(query_group([hub("low", low), hub("high", high)]), given, feedback=True)
    runner.to(1)
    runner.to(4)
    assert [len(runner.found[name]) for name in ("low", "high")] == [2, 0]
    assert said(runner, "A", "C").suppressed == 1, "it has lost a query"
    assert runner.juggler.state_tuples() == 4
    runner.juggler.drop("low", cut=4)
    runner.to(5)
    assert runner.juggler.state_tuples() == 1, "nobody wants this C, so nobody wants an A; B has those"
    runner.juggler.add(hub("again", low), from_now=False, cut=5)
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
    runner = Runner(query_group([hub("low", *of("<")), hub("high", *of(">="))]), given, feedback=True)
    runner.to(1)
    assert said(runner, "A", "C").kept_back == 1
    runner.to(4)
    assert [len(runner.found[name]) for name in ("low", "high")] == [1, 1]


def test_what_comes_back_may_wait_for_another_input() -> None:
    runner = Runner(
        query_group([hub("q")]),
        {"S0": rows((0, 1, 1)), "S1": rows((1, 9, 0), (3, 1, 0)), "S2": rows((2, 0, 9), (5, 0, 1))},
        feedback=True,
    )
    for cut in range(1, 7):
        runner.to(cut)
    assert runner.found["q"] == [{"A": 0, "B": 3, "C": 5, "_ts": 5}]
    assert [said(runner, "A", by).returned for by in "BC"] == [1, 1]


def test_who_waited_for_two_comes_back_once() -> None:
    """For one query in the one guard's blacklist, for one in the other's."""
    whole = hub("q").sources
    last = Source("D", STREAMS[1], Window("RANGE", 10))
    by_b = Query("b", None, (whole[0], whole[1], last), (BY_K, Compare("=", column("A", "d"), column("D", "d"))), ())
    by_c = Query("c", None, (whole[0], whole[2], last), (BY_V, Compare("=", column("A", "s"), column("D", "s"))), ())
    given: Rows = {"S0": rows((0, 1, 1)), "S1": rows((0, 8, 0), (2, 1, 0), (6, 8, 0)), "S2": rows((0, 0, 9), (4, 0, 1))}
    group = query_group([by_b, by_c])
    runner = Runner(group, given, feedback=True)
    for cut in range(1, 8):
        runner.to(cut)
    for query in (by_b, by_c):
        assert len(runner.found[query.name]) == len(expected(query, given))


def test_rebuilding_counts_no_new_rows() -> None:
    """With a memory budget the operator is made anew whenever rows leave: every time its rows were counted as new ones
    again, and guards were credited again with what they had spared before."""
    unwanted = Compare("<", column("C", "v"), Literal(-5, Type.BIGINT))
    less = Compare("<", column("B", "v"), column("C", "v"))
    idle = Query("idle", None, hub("idle").sources[1:], (less, unwanted), ())
    runner = Runner(
        query_group([hub("q"), hub("waits", unwanted), idle]),
        {
            "S0": rows((0, 1, 1), (2, 1, 1), (3, 1, 5)),
            "S1": rows((0, 1, 0), (2, 8, 0)),
            "S2": rows((0, 0, 9), (3, 0, 5)),
        },
        feedback=True,
    )
    for cut in range(1, 5):
        runner.to(cut)
    before = runner.juggler.feedback()
    assert runner.juggler.demand is not None
    guards = [guard for some in runner.juggler.demand.guards.values() for guard in some]
    refused = [guard.refused for guard in guards]
    assert any(refused)
    assert any(edge.suppressed for edge in before[:-1])
    assert any(edge.demanded for edge in before)
    assert before[-1].suppressed
    runner.juggler.rebuild(4)
    after = runner.juggler.feedback()
    assert [(edge.demanded, edge.suppressed) for edge in after] == [(edge.demanded, edge.suppressed) for edge in before]
    guards = [guard for some in runner.juggler.demand.guards.values() for guard in some]
    assert [guard.refused for guard in guards] == refused
    assert [edge.kept_back for edge in after] == [edge.kept_back for edge in before]


def test_a_resting_guard_admits_everything() -> None:
    with eager(budget=0.0):
        runner = Runner(
            query_group([hub("q")]),
            {"S0": rows((0, 1, 1)), "S1": rows((0, 1, 0), (2, 1, 0), (3, 1, 0)), "S2": rows((5, 0, 1))},
            feedback=True,
        )
        for cut in range(1, 7):
            runner.to(cut)
    assert len(runner.found["q"]) == 3


@pytest.mark.parametrize("order", ORDERS)
def test_late_rows_are_found_by_value_and_by_time(order: str) -> None:
    less = Compare("<", column("C", "v"), column("A", "v"))
    query = replace(hub("q"), predicates=(BY_K, less))
    given: Rows = {"S0": rows((0, 1, 4), (1, 1, 3)), "S1": rows((0, 9, 0), (3, 1, 0)), "S2": rows((0, 0, 5), (5, 0, 2))}
    runner = Runner(query_group([query]), given, order, feedback=True)
    # No sweep rebuilds the structures meanwhile; it would sort late rows in.
    with eager(swept=2.0):
        for cut in range(1, 7):
            runner.to(cut)
    assert said(runner, "A", "B").returned == 1, "the other one was there before guards were"
    assert [row["A"] for row in runner.found["q"]] == [0, 1]


def test_nothing_starts_while_an_input_has_nothing_for_a_query() -> None:
    less = Compare("<", column("B", "v"), column("C", "v"))
    query = hub("q")
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


def test_runs_are_merged_as_they_grow() -> None:
    runs = SortedRuns()
    for n in range(40):
        runs.insert(np.array([-n]), np.array([n]), np.array([n]), 0)
    assert len(runs) == 40
    assert len(runs.runs) <= 6
    assert all((run.values[1:] >= run.values[:-1]).all() for run in runs.runs)
    runs.purge(40)
    assert runs.runs == []
