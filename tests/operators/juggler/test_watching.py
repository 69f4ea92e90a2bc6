"""When guards of a shared operator watch: what a row costs, who gets a trial, what an account says, by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pytest

from operators.data.tuples import Tuples
from operators.feedback import guard_payoff as trials
from operators.feedback.guard_payoff import trial_cost
from operators.juggler.feedback.guards import Guard, edges, guards_of
from operators.juggler.feedback.row_cost import RowCost, way_ns, ways_ns
from operators.juggler.feedback.watching import Watching
from operators.juggler.predicates.lists import predicate_lists
from operators.juggler.predicates.order import PIECE_NS, Work
from operators.juggler.routing.visits import Visit, visits
from schemas.groups import query_group
from tests.operators.juggler.groups import hub

PAIR_NS = Work(paired=1).ns()


def visit(inputs: str, *following: Visit) -> Visit:
    """A visit of the last of some inputs, and those after it."""
    return Visit(tuple(inputs), frozenset({0}), (), next=list(following))


def test_a_rows_own_way_goes_up_to_the_one_that_guards_it() -> None:
    """By A's way of D and B, then C, and then D; each visit's work tells it from the others."""
    root = visit("A", visit("AB", visit("ABC", visit("ABCD"))), visit("AD", visit("ADC")))
    pairs = {visit.inputs: 10**n for n, visit in enumerate(root.all())}

    def work_of(visit: Visit) -> Work:
        return Work(pieces=3, paired=pairs[visit.inputs])

    assert [visit.inputs for visit in root.all()][1:4] == [tuple("AB"), tuple("ABC"), tuple("ABCD")]
    assert way_ns(root, "A", "C", work_of) == PAIR_NS * (10 + 100 + 10_000 + 100_000)
    assert way_ns(root, "A", "B", work_of) == PAIR_NS * (10 + 10_000 + 100_000)
    # Those who find D on A's ways, and have not come to C yet.
    assert way_ns(root, "D", "C", work_of) == PAIR_NS * (10_000 + 100_000)
    assert way_ns(root, "D", "A", work_of) == 0.0
    assert way_ns(root, "C", "D", work_of) == PAIR_NS * (100 + 1000)
    other = visit("B", visit("BA"))
    pairs |= {tuple("B"): 1, tuple("BA"): 7}
    roots = {"A": root, "B": other}
    assert ways_ns(roots, "A", "C", work_of) == (PAIR_NS * 110_110, PAIR_NS * 7)


def test_a_rows_cost_is_an_average_that_fades() -> None:
    cost = RowCost(structures=2)
    cost.update(0.0, 0.0, 0)
    assert (cost.own, cost.met) == (0.0, 0.0)
    cost.update(1000.0, 500.0, 10)
    assert (cost.own, cost.met) == (100.0, 50.0)
    cost.update(1000.0, 900.0, 20)
    fading = trials.FADING
    assert cost.own == pytest.approx(fading * 1000 / (fading * 10 + 10))
    assert cost.met == pytest.approx((fading * 500 + 400) / (fading * 10 + 10))
    assert cost.saved == 2 * trials.ENTERED + cost.own + cost.met - trials.KEPT
    assert cost.returned == trials.RETURNED + 2 * trials.ENTERED + cost.met / 2
    # Another operator's visits begin to count at 0.
    heir = RowCost(structures=2)
    heir.take_over(cost)
    assert (heir.own, heir.met) == (cost.own, cost.met)
    heir.update(0.0, 0.0, 0)
    assert (heir.own, heir.met) == (pytest.approx(cost.own), pytest.approx(cost.met))


class Pen:
    """A ward that notes what was done to it.

    Attributes:
        rows: in every input's structures; shares: what every sample shows; back: how many rows a guard lets in.
    """

    def __init__(self, rows: int, shares: tuple[float, float] = (0.0, 0.0), back: int = 0) -> None:
        self.rows = rows
        self.shares = shares
        self.back = back
        self.sampled: list[str] = []
        self.begun: list[str] = []
        self.released: list[str] = []

    def sizes(self) -> Mapping[str, int]:
        return dict.fromkeys("ABC", self.rows)

    def sample(self, guard: Guard, now: int) -> tuple[float, float]:
        self.sampled.append(f"{guard.edge.alias} by {guard.edge.by}")
        return self.shares

    def begin(self, guard: Guard, now: int) -> None:
        assert guard.watching
        self.begun.append(f"{guard.edge.alias} by {guard.edge.by}")

    def release(self, guard: Guard, now: int) -> int:
        assert not guard.watching
        self.released.append(f"{guard.edge.alias} by {guard.edge.by}")
        return self.back


class Watched:
    """The guards of A joined with B and C, and what visits have done."""

    def __init__(self) -> None:
        self.group = query_group([hub("q")])
        self.guards = [guard for some in guards_of(edges(self.group), 1, frozenset()).values() for guard in some]
        self.begin(None)

    def begin(self, before: Watching | None) -> None:
        """An operator, or the next one."""
        lists = predicate_lists(self.group, {}, lambda predicate: False)
        self.roots = {name: visits(self.group, lists, name) for name in "ABC"}
        self.work: defaultdict[int, Work] = defaultdict(Work)
        structures = {"A": 3, "B": 2, "C": 2}
        self.watching = Watching(self.guards, self.roots, lambda v: self.work[id(v)], structures, before)

    def guard(self, name: str) -> Guard:
        """By its inputs."""
        return next(guard for guard in self.guards if f"{guard.edge.alias} by {guard.edge.by}" == name)

    def spend(self, ns: float) -> None:
        """Every input's rows go on their ways, and spend so much each."""
        for root in self.roots.values():
            self.work[id(root.next[0])].add(Work(paired=int(ns / PAIR_NS)))

    def end(self, pen: Pen, came: int = trials.BOOKED_TUPLES // 2) -> None:
        """A slice with so many tuples of every input, of which all of A's are entered and half of the others."""
        for name in "ABC":
            self.watching.note(name, came, came if name == "A" else came // 2)
        self.watching.end(pen, 0)


def test_guards_take_turns_as_the_purse_allows() -> None:
    """It begins with what pays for one trial, and gets a share of what has been worked since."""
    watched, pen = Watched(), Pen(rows=300_000)
    assert trials.PURSE / 2 < trial_cost(pen.rows) < trials.PURSE
    order = [f"{guard.edge.alias} by {guard.edge.by}" for guard in watched.guards]
    watched.spend(4e6)
    watched.end(pen, trials.BOOKED_TUPLES // 3 - 10)
    assert pen.sampled == [], "too few tuples to tell"
    watched.end(pen, 10)
    watched.end(pen, 10)
    assert pen.sampled == order[:1]
    lacking = 2 * trial_cost(pen.rows) - trials.PURSE - trials.LOSS_SHARE * 3 * 4e6
    watched.spend(lacking / trials.LOSS_SHARE / 3 - 1e6)
    watched.end(pen)
    watched.end(pen)
    assert pen.sampled == order[:1], "work is counted once"
    watched.spend(2e6)
    watched.end(pen, 10)
    assert pen.sampled == order[:1], "what came before has been booked"
    watched.end(pen)
    assert pen.sampled == order[:2]
    pen.rows = 0
    watched.spend(1e8)
    watched.end(pen)
    assert pen.sampled == [*order[:2], *order[2:], *order[:2]], "every guard once, the next one first"


def test_who_costs_little_gets_no_trial() -> None:
    watched, pen = Watched(), Pen(rows=0)
    watched.end(pen)
    assert pen.sampled == []
    assert trials.ENTERED * 3 < trials.KEPT


def begun(pen: Pen) -> Watched:
    """All guards watch, and what they did in former lives has been booked."""
    watched = Watched()
    for guard in watched.guards:
        guard.counters.checked = 10**9
    watched.spend(1e8)
    watched.end(pen)
    assert len(pen.begun) == 4
    pen.sampled.clear()
    return watched


def test_an_account_is_what_was_spared_without_what_was_spent() -> None:
    pen = Pen(rows=10_000, shares=(0.9, 0.9))
    watched = begun(pen)
    guard = watched.guard("A by C")
    stake = trials.STAKE * trial_cost(pen.rows)
    assert guard.account.credit == stake
    n = trials.BOOKED_TUPLES // 2
    own, met = ways_ns(watched.roots, "A", "C", lambda v: watched.work[id(v)])
    cost = RowCost(3)
    cost.update(own, met, n)
    cost.update(own, met, 2 * n)
    guard.refused, guard.pruned, guard.swept = 3, 5, 1000
    guard.counters.returned, guard.counters.checked = 2, guard.counters.checked + 7000
    watched.end(pen)
    earned = 3 * cost.saved + 2 * cost.own
    spent = 7000 * trials.CHECKED + 1000 * trials.SWEPT + trials.CALLED + 2 * cost.returned
    assert 0 < stake + earned - spent < stake
    assert guard.account.credit == pytest.approx(stake + earned - spent)
    watched.end(pen, 10)
    watched.end(pen)
    assert guard.account.credit == pytest.approx(stake + earned - spent - 2 * trials.CALLED), "each booked once"
    assert pen.sampled == [], "who watches needs no trial"
    guard.refused += 1000
    tuples = Tuples(("A",), np.arange(4, dtype=np.int64)[np.newaxis], np.zeros(4, np.int64), np.full(4, 9))
    guard.put(tuples, np.arange(4, dtype=np.uint64), np.ones(4, np.bool_), 0)
    watched.end(pen)
    assert guard.account.credit > stake + 4 * trials.RETURNED, "it keeps what it would cost to let in the four"


def test_a_stake_is_taken_from_the_purse() -> None:
    watched, pen = Watched(), Pen(rows=100_000, shares=(0.9, 0.9))
    cost = trial_cost(pen.rows)
    assert (1 + trials.STAKE) * cost < trials.PURSE < (2 + trials.STAKE) * cost
    watched.spend(4e6)
    watched.end(pen)
    assert len(pen.begun) == len(pen.sampled) == 1


def test_who_has_lost_a_stake_rests_and_pays_for_what_comes_back() -> None:
    pen = Pen(rows=10_000, shares=(0.9, 0.9), back=5)
    watched = begun(pen)
    guard = watched.guard("A by C")
    guard.counters.checked += 10**9
    pen.shares = (0.0, 0.0)
    purse = watched.watching._purse
    watched.end(pen)
    assert pen.released == ["A by C"]
    assert pen.sampled == ["A by C"], "and is tried again in its turn"
    n = trials.BOOKED_TUPLES // 2
    cost = RowCost(3)
    own, met = ways_ns(watched.roots, "A", "C", lambda v: watched.work[id(v)])
    cost.update(own, met, n)
    cost.update(own, met, 2 * n)
    assert watched.watching._purse == pytest.approx(purse - 5 * cost.returned - trial_cost(pen.rows))


@pytest.mark.parametrize(
    ("shares", "came", "watches"),
    [
        ((0.9, 0.9), 2048, True),
        ((0.0, 0.9), 2048, False),
        ((0.02, 0.02), 2048, True),
        ((0.02, 0.02), 20, False),
        ((0.006, 0.006), 2048, False),
    ],
)
def test_a_trial_promises_by_what_a_tuple_costs(shares: tuple[float, float], came: int, watches: bool) -> None:
    """Of 2 % little is left when slices are small: each costs something. And 6 in a thousand do not pay for looking."""
    watched, pen = Watched(), Pen(rows=10_000, shares=shares)
    watched.spend(1e7)
    for _ in range(-(-trials.BOOKED_TUPLES // (3 * came))):
        watched.end(pen, came)
    assert watched.guard("A by C").watching == watches
    assert ("A by C" in pen.begun) == watches


def test_an_heir_goes_on_with_the_purse_the_turn_and_the_costs() -> None:
    watched, pen = Watched(), Pen(rows=300_000)
    watched.spend(4e6)
    watched.end(pen)
    watched.begin(watched.watching)
    watched.end(pen)
    assert len(pen.sampled) == 1, "the purse is as empty"
    pen.rows = 0
    watched.end(pen)
    assert len(set(pen.sampled[:4])) == 4, "the next guard's turn"
    assert len(pen.sampled) == 5, "what rows cost is known"


def test_a_look_into_a_structure_costs_the_same_for_fewer_rows() -> None:
    root = visit("A", visit("AB"))
    assert way_ns(root, "A", "B", lambda v: Work(pieces=2)) == 0.0
    assert Work(pieces=2).ns() == 2 * PIECE_NS
