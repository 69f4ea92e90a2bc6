"""What guards of a shared operator know of partners, and which queries are idle, by themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from operators.data.tuples import FOREVER, Tuples
from operators.feedback.payoff.guard import GuardWork
from operators.juggler.feedback.guards import MOST_GUARDS, PartnerTable, RowGuard, edges, guards_of
from operators.juggler.feedback.idle import IdleQueries
from operators.juggler.routing.tuples_in_flight import TuplesInFlight
from schemas.columns import I64
from schemas.groups import query_group
from schemas.query import Compare, Query
from tests.cases import column
from tests.operators.juggler.groups import BY_K, hub

STRUCTURES = {"A": 3, "B": 2, "C": 2}


def test_what_could_gain_nothing_is_not_guarded() -> None:
    pair = hub("pair")
    pair = Query("pair", None, pair.sources[:2], (BY_K,), pair.outputs[:2])
    assert edges(query_group([pair])) == ()
    found = edges(query_group([pair, hub("q")]))
    assert {(edge.alias, edge.by): set(edge.queries) for edge in found} == {
        ("A", "B"): {0, 1}, ("B", "A"): {0, 1}, ("A", "C"): {1}, ("C", "A"): {1},
    }  # fmt: skip
    star = replace(hub("star"), predicates=(BY_K, Compare("=", column("B", "k"), column("C", "v"))))
    assert len(edges(query_group([star]))) == 6, "what follows from equalities is one"


def test_partners_are_forgotten_with_the_last_of_them() -> None:
    partners = PartnerTable("C", (), 1)
    both = np.array([[3], [1]], np.uint64)
    keys, all_valid = np.array([7, 8], np.uint64), np.ones(2, np.bool_)
    assert partners.observe(keys, all_valid, np.array([10, 20]), both, 0).tolist() == [7, 8]
    left = np.array([[7], [7]], np.uint64)
    partners.drop_unmatched(keys, all_valid, np.array([3], np.uint64), 0, left)
    assert left.tolist() == [[7], [5]], "bits of queries that do not ask stay"
    left = np.array([[7], [7]], np.uint64)
    partners.drop_unmatched(keys, all_valid, np.array([3], np.uint64), 11, left)
    assert left.tolist() == [[4], [5]]
    # The dead one's bits are not added to.
    assert partners.observe(keys[:1], all_valid[:1], np.array([30]), np.array([[1]], np.uint64), 11).tolist() == [7]
    left = np.array([[7]], np.uint64)
    partners.drop_unmatched(keys[:1], all_valid[:1], np.array([3], np.uint64), 11, left)
    assert left.tolist() == [[5]]
    many = np.arange(1, 1000, dtype=np.uint64)
    partners.observe(many, np.ones(999, np.bool_), np.full(999, 40), np.ones((999, 1), np.uint64), 35)
    left = np.ones((999, 1), np.uint64)
    assert partners.drop_unmatched(many, np.ones(999, np.bool_), np.array([1], np.uint64), 35, left) == 0
    assert partners.drop_unmatched(many, np.zeros(999, np.bool_), np.array([1], np.uint64), 35, left) == 999


def test_an_idle_query_waits_for_an_input_of_its_own() -> None:
    group = query_group([hub("q"), Query("one", None, hub("q").sources[:1], (), ())])
    idle = IdleQueries(group, 1)
    assert idle.active(dict.fromkeys("ABC", -(2**62))).tolist() == [0]


def test_the_guards_that_most_queries_ask_for_are_kept() -> None:
    """One query asks for each of many, and two for the last."""
    asked = [
        Compare("=", column("A", own), column("B", other))
        for own, other in (*((a, b) for a in ("k", "v", "ts") for b in ("k", "v", "ts")), ("d", "d"))
    ]
    assert len(asked) > MOST_GUARDS + 1
    queries = [replace(hub(f"q{n}"), predicates=(one, BY_K)[:1]) for n, one in enumerate([*asked, asked[-1]])]
    found = edges(query_group(queries))
    of = [edge for edge in found if edge.alias == "A"]
    assert len(of) == MOST_GUARDS
    assert of[0].queries == {len(asked) - 1, len(asked)}
    assert len(found) == 2 * MOST_GUARDS, "of each input so many"


def test_guards_that_observe_the_same_share_what_they_know() -> None:
    """A and C each ask B for its k."""
    star = replace(hub("star"), predicates=(BY_K, Compare("=", column("B", "k"), column("C", "k"))))
    by_input = guards_of(edges(query_group([star])), 1, frozenset("B"), STRUCTURES)
    guards = [guard for some in by_input.values() for guard in some]
    observing = [guard for guard in guards if guard.edge.by == "B"]
    assert len(observing) == 2
    assert observing[0].partners is observing[1].partners
    assert len({id(guard.partners) for guard in guards}) == 3
    assert [guard.static for guard in guards] == [guard.edge.by == "B" for guard in guards]


def test_a_row_with_some_queries_left_saves_its_own_path() -> None:
    """Of five rows that lost queries three were set aside. The guard of the next operator goes on from there."""
    guard = guard_of()
    guard.refused, guard.pruned, guard.swept = 3, 5, 7
    guard.counters.returned, guard.counters.checked = 2, 9
    guard.tuple_cost.update(1000.0, 500.0, 10)
    assert guard.done() == GuardWork(kept_back=3, returned=2, checked=9, swept=7, pruned=2)
    assert guard.earned(guard.done()) == 3 * guard.tuple_cost.saved + 2 * guard.tuple_cost.own
    guard.start(1e9)
    successor = guard_of()
    successor.take_over(guard)
    assert (successor.balance, successor.done()) == (guard.balance, guard.done())
    assert (successor.tuple_cost.own, successor.tuple_cost.saved) == (100.0, guard.tuple_cost.saved)
    assert successor.update_balance(0) == 0.0, "all of it has been booked"


def some_rows(*ts: int, life: int = 10) -> Tuples:
    """Rows 0, 1, ... of A."""
    times = np.array(ts, np.int64)
    return Tuples(("A",), np.arange(len(ts), dtype=np.int64)[np.newaxis], times, times + life)


def guard_of(tables: str = "") -> RowGuard:
    """A's by C."""
    guards = guards_of(edges(query_group([hub("q")])), 1, frozenset(tables), STRUCTURES)
    return next(guard for guard in guards["A"] if guard.edge.by == "C")


def test_what_is_set_aside_is_counted_and_given_back() -> None:
    guard = guard_of()
    signatures, valid = np.array([7, 7, 8, 9], np.uint64), np.array([True, True, True, False])
    guard.put(some_rows(1, 2, 3, 4), signatures, valid, 0)
    counters = guard.counters
    assert (counters.kept_back, counters.forgotten, counters.suspend, counters.resume) == (4, 1, 2, 0)
    guard.put(some_rows(5), signatures[:1], valid[:1], 0)
    assert (counters.kept_back, counters.suspend, len(guard.blacklist)) == (5, 2, 4)
    assert guard.take(signatures[:1], 0).ts.tolist() == [1, 2, 5]
    assert (counters.resume, len(guard.blacklist)) == (1, 1)
    assert guard.take(None, 0).ts.tolist() == [3]
    assert (counters.resume, len(guard.blacklist)) == (2, 0)


def test_signatures_are_counted_though_others_make_room() -> None:
    """Suspended ones were counted by how many there are, and one that came as another one died was not."""
    guard = guard_of()
    n = 1000
    for round in range(3):
        tuples = some_rows(*([20 * round] * n))
        guard.put(tuples, np.arange(1, n + 1, dtype=np.uint64) + np.uint64(n * round), np.ones(n, np.bool_), 20 * round)
    assert guard.counters.suspend == 3 * n


def test_who_can_have_no_partner_is_forgotten() -> None:
    """Rows of a table never come."""
    guard = guard_of("C")
    guard.put(some_rows(1, 2), np.array([7, 8], np.uint64), np.ones(2, np.bool_), 0)
    assert (guard.counters.kept_back, guard.counters.forgotten, len(guard.blacklist)) == (2, 2, 0)


def test_the_dead_are_let_go_by_time_and_by_row() -> None:
    guard = guard_of()
    n = 200
    guard.put(some_rows(*range(n)), np.arange(1, n + 1, dtype=np.uint64), np.ones(n, np.bool_), 0)
    guard.purge(0, 150)
    assert guard.take(None, 0).ts.tolist() == list(range(150, n))


def test_a_partner_without_a_value_is_nobodys() -> None:
    partners = PartnerTable("C", (), 1)
    keys, one = np.array([7], np.uint64), np.array([[1]], np.uint64)
    assert len(partners.observe(keys, np.zeros(1, np.bool_), np.array([10]), one, 0)) == 0
    left = one.copy()
    assert partners.drop_unmatched(keys, np.ones(1, np.bool_), np.array([1], np.uint64), 0, left) == 1
    assert left.tolist() == [[0]]


def test_a_table_of_partners_grows_no_larger_than_the_living_need() -> None:
    partners = PartnerTable("C", (), 1)
    sizes = []
    for round in range(40):
        keys = np.arange(1, 101, dtype=np.uint64) + np.uint64(100 * round)
        partners.observe(keys, np.ones(100, np.bool_), np.full(100, round), np.ones((100, 1), np.uint64), round - 1)
        sizes.append(partners.size_bytes())
    assert max(sizes) == max(sizes[:10])
    assert partners.size_bytes() >= 200 * (8 + 8 + 8)
    partners.clear()
    assert partners.size_bytes() < max(sizes)
    valid, asking, left = np.ones(100, np.bool_), np.array([1], np.uint64), np.ones((100, 1), np.uint64)
    assert partners.drop_unmatched(keys, valid, asking, -5, left) == 100


def test_a_query_is_idle_until_every_input_has_a_row_for_it() -> None:
    """And again when the latest of one is dead; inputs that it does not read are nothing to it."""
    pair = Query("pair", None, hub("q").sources[:2], (BY_K,), ())
    idle = IdleQueries(query_group([hub("q"), pair]), 1)
    least = {"A": -FOREVER, "B": 3, "C": 5}

    def seen(alias: str, ts: list[int], *sets: int) -> None:
        alive = np.array([[bits] for bits in sets], np.uint64)
        none: I64 = np.zeros((len(ts), 0), np.int64)
        rows = np.arange(len(ts), dtype=np.int64)[np.newaxis]
        sets = alive, none.view(np.uint64), none.view(np.uint64)
        idle.observe(TuplesInFlight((alias,), rows, np.array(ts, np.int64), *sets))

    assert idle.active(least).tolist() == [0b00]
    seen("A", [0, 1], 0b01, 0b10)
    seen("B", [1, 3], 0b11, 0b01)
    seen("C", [])
    assert idle.active(least).tolist() == [0b10]
    seen("C", [4, 5], 0b01, 0b01)
    assert idle.active(least).tolist() == [0b11], "what is dead at 3 is not dead before"
    assert idle.active(least | {"B": 4}).tolist() == [0b00]
    assert idle.active(least | {"C": 6}).tolist() == [0b10]
