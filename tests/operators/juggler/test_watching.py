"""When guards of a shared operator watch: costs of rows, trials and balances, computed by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pytest

from operators.data.tuples import Tuples
from operators.feedback import guard_payoff as payoff
from operators.feedback.guard_payoff import trial_cost
from operators.juggler.feedback.guards import RowGuard, edges, guards_of
from operators.juggler.feedback.row_cost import RowCost, path_ns, paths_ns
from operators.juggler.feedback.watching import GuardController
from operators.juggler.predicates.lists import predicate_lists
from operators.juggler.predicates.order import PIECE_NS, VisitWork
from operators.juggler.routing.visits import Visit, visits
from schemas.groups import query_group
from tests.operators.juggler.groups import hub

PAIR_NS = VisitWork(paired=1).ns()


def visit(inputs: str, *following: Visit) -> Visit:
    """A visit of the last of some inputs, and those after it."""
    return Visit(tuple(inputs), frozenset({0}), (), next=list(following))


def test_a_rows_own_way_goes_up_to_the_one_that_guards_it() -> None:
    """On the probe paths of A over D and B, then C, and then D; each visit's work identifies it."""
    root = visit("A", visit("AB", visit("ABC", visit("ABCD"))), visit("AD", visit("ADC")))
    pairs = {visit.inputs: 10**n for n, visit in enumerate(root.all())}

    def work_of(visit: Visit) -> VisitWork:
        return VisitWork(pieces=3, paired=pairs[visit.inputs])

    assert [visit.inputs for visit in root.all()][1:4] == [tuple("AB"), tuple("ABC"), tuple("ABCD")]
    assert path_ns(root, "A", "C", work_of) == PAIR_NS * (10 + 100 + 10_000 + 100_000)
    assert path_ns(root, "A", "B", work_of) == PAIR_NS * (10 + 10_000 + 100_000)
    # Visits that find D on A's probe paths before they reach C.
    assert path_ns(root, "D", "C", work_of) == PAIR_NS * (10_000 + 100_000)
    assert path_ns(root, "D", "A", work_of) == 0.0
    assert path_ns(root, "C", "D", work_of) == PAIR_NS * (100 + 1000)
    other = visit("B", visit("BA"))
    pairs |= {tuple("B"): 1, tuple("BA"): 7}
    roots = {"A": root, "B": other}
    assert paths_ns(roots, "A", "C", work_of) == (PAIR_NS * 110_110, PAIR_NS * 7)


def test_a_rows_cost_is_an_average_that_fades() -> None:
    cost = RowCost(structures=2)
    cost.update(0.0, 0.0, 0)
    assert (cost.own, cost.met) == (0.0, 0.0)
    cost.update(1000.0, 500.0, 10)
    assert (cost.own, cost.met) == (100.0, 50.0)
    cost.update(1000.0, 900.0, 20)
    fading = payoff.DECAY
    assert cost.own == pytest.approx(fading * 1000 / (fading * 10 + 10))
    assert cost.met == pytest.approx((fading * 500 + 400) / (fading * 10 + 10))
    assert cost.saved == 2 * payoff.ENTER_NS + cost.own + cost.met - payoff.BLACKLIST_NS
    assert cost.returned == payoff.RETURN_NS + 2 * payoff.ENTER_NS + cost.met / 2
    # Another operator's visits begin to count at 0.
    successor = RowCost(structures=2)
    successor.take_over(cost)
    assert (successor.own, successor.met) == (cost.own, cost.met)
    successor.update(0.0, 0.0, 0)
    assert (successor.own, successor.met) == (pytest.approx(cost.own), pytest.approx(cost.met))


class FakeInputs:
    """Inputs that record the calls of a controller.

    Attributes:
        rows: the number of rows in every input's structures.
        shares: the result of every sample.
        back: the number of rows that a released guard returns.
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

    def sample(self, guard: RowGuard, now: int) -> tuple[float, float]:
        self.sampled.append(f"{guard.edge.alias} by {guard.edge.by}")
        return self.shares

    def begin(self, guard: RowGuard, now: int) -> None:
        assert guard.watching
        self.begun.append(f"{guard.edge.alias} by {guard.edge.by}")

    def release(self, guard: RowGuard, now: int) -> int:
        assert not guard.watching
        self.released.append(f"{guard.edge.alias} by {guard.edge.by}")
        return self.back


class Watched:
    """The guards of A joined with B and C, and what visits have done."""

    def __init__(self) -> None:
        self.group = query_group([hub("q")])
        self.guards = [guard for some in guards_of(edges(self.group), 1, frozenset()).values() for guard in some]
        self.begin(None)

    def begin(self, before: GuardController | None) -> None:
        """An operator, or the next one."""
        lists = predicate_lists(self.group, {}, lambda predicate: False)
        self.roots = {name: visits(self.group, lists, name) for name in "ABC"}
        self.work: defaultdict[int, VisitWork] = defaultdict(VisitWork)
        structures = {"A": 3, "B": 2, "C": 2}
        self.watching = GuardController(self.guards, self.roots, lambda v: self.work[id(v)], structures, before)

    def guard(self, name: str) -> RowGuard:
        """By its inputs."""
        return next(guard for guard in self.guards if f"{guard.edge.alias} by {guard.edge.by}" == name)

    def spend(self, ns: float) -> None:
        """The rows of every input follow their probe paths, at this cost each."""
        for root in self.roots.values():
            self.work[id(root.next[0])].add(VisitWork(paired=int(ns / PAIR_NS)))

    def end(self, inputs: FakeInputs, came: int = payoff.TUPLES_PER_UPDATE // 2) -> None:
        """A slice with so many tuples of every input, of which all of A's are entered and half of the others."""
        for name in "ABC":
            self.watching.note(name, came, came if name == "A" else came // 2)
        self.watching.end(inputs, 0)


def test_guards_take_turns_as_the_trial_budget_allows() -> None:
    """The trial budget starts with the cost of one trial, and grows by a share of the work since."""
    watched, inputs = Watched(), FakeInputs(rows=300_000)
    assert payoff.FIRST_TRIAL_BUDGET / 2 < trial_cost(inputs.rows) < payoff.FIRST_TRIAL_BUDGET
    order = [f"{guard.edge.alias} by {guard.edge.by}" for guard in watched.guards]
    watched.spend(4e6)
    watched.end(inputs, payoff.TUPLES_PER_UPDATE // 3 - 10)
    assert inputs.sampled == [], "too few tuples to tell"
    watched.end(inputs, 10)
    watched.end(inputs, 10)
    assert inputs.sampled == order[:1]
    lacking = 2 * trial_cost(inputs.rows) - payoff.FIRST_TRIAL_BUDGET - payoff.LOSS_SHARE * 3 * 4e6
    watched.spend(lacking / payoff.LOSS_SHARE / 3 - 1e6)
    watched.end(inputs)
    watched.end(inputs)
    assert inputs.sampled == order[:1], "work is counted once"
    watched.spend(2e6)
    watched.end(inputs, 10)
    assert inputs.sampled == order[:1], "what came before has been booked"
    watched.end(inputs)
    assert inputs.sampled == order[:2]
    inputs.rows = 0
    watched.spend(1e8)
    watched.end(inputs)
    assert inputs.sampled == [*order[:2], *order[2:], *order[:2]], "every guard once, the next one first"


def test_a_guard_that_saves_little_gets_no_trial() -> None:
    watched, inputs = Watched(), FakeInputs(rows=0)
    watched.end(inputs)
    assert inputs.sampled == []
    assert payoff.ENTER_NS * 3 < payoff.BLACKLIST_NS


def begun(inputs: FakeInputs) -> Watched:
    """All guards watch, and what they did in former lives has been booked."""
    watched = Watched()
    for guard in watched.guards:
        guard.counters.checked = 10**9
    watched.spend(1e8)
    watched.end(inputs)
    assert len(inputs.begun) == 4
    inputs.sampled.clear()
    return watched


def test_a_balance_is_what_was_saved_minus_what_was_spent() -> None:
    inputs = FakeInputs(rows=10_000, shares=(0.9, 0.9))
    watched = begun(inputs)
    guard = watched.guard("A by C")
    budget = payoff.GUARD_BUDGET_TRIALS * trial_cost(inputs.rows)
    assert guard.balance.remaining == budget
    n = payoff.TUPLES_PER_UPDATE // 2
    own, met = paths_ns(watched.roots, "A", "C", lambda v: watched.work[id(v)])
    cost = RowCost(3)
    cost.update(own, met, n)
    cost.update(own, met, 2 * n)
    guard.refused, guard.pruned, guard.swept = 3, 5, 1000
    guard.counters.returned, guard.counters.checked = 2, guard.counters.checked + 7000
    watched.end(inputs)
    earned = 3 * cost.saved + 2 * cost.own
    spent = 7000 * payoff.SIGNATURE_NS + 1000 * payoff.SWEEP_NS + payoff.SLICE_NS + 2 * cost.returned
    assert 0 < budget + earned - spent < budget
    assert guard.balance.remaining == pytest.approx(budget + earned - spent)
    watched.end(inputs, 10)
    watched.end(inputs)
    assert guard.balance.remaining == pytest.approx(budget + earned - spent - 2 * payoff.SLICE_NS), "each booked once"
    assert inputs.sampled == [], "a watching guard needs no trial"
    guard.refused += 1000
    tuples = Tuples(("A",), np.arange(4, dtype=np.int64)[np.newaxis], np.zeros(4, np.int64), np.full(4, 9))
    guard.put(tuples, np.arange(4, dtype=np.uint64), np.ones(4, np.bool_), 0)
    watched.end(inputs)
    assert guard.balance.remaining > budget + 4 * payoff.RETURN_NS, "it keeps what it would cost to let in the four"


def test_a_guards_budget_is_taken_from_the_trial_budget() -> None:
    watched, inputs = Watched(), FakeInputs(rows=100_000, shares=(0.9, 0.9))
    cost = trial_cost(inputs.rows)
    assert (1 + payoff.GUARD_BUDGET_TRIALS) * cost < payoff.FIRST_TRIAL_BUDGET < (2 + payoff.GUARD_BUDGET_TRIALS) * cost
    watched.spend(4e6)
    watched.end(inputs)
    assert len(inputs.begun) == len(inputs.sampled) == 1


def test_a_guard_without_budget_rests_and_is_charged_for_returned_rows() -> None:
    inputs = FakeInputs(rows=10_000, shares=(0.9, 0.9), back=5)
    watched = begun(inputs)
    guard = watched.guard("A by C")
    guard.counters.checked += 10**9
    inputs.shares = (0.0, 0.0)
    budget_before = watched.watching._trial_budget
    watched.end(inputs)
    assert inputs.released == ["A by C"]
    assert inputs.sampled == ["A by C"], "and is tried again in its turn"
    n = payoff.TUPLES_PER_UPDATE // 2
    cost = RowCost(3)
    own, met = paths_ns(watched.roots, "A", "C", lambda v: watched.work[id(v)])
    cost.update(own, met, n)
    cost.update(own, met, 2 * n)
    assert watched.watching._trial_budget == pytest.approx(budget_before - 5 * cost.returned - trial_cost(inputs.rows))


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
    watched, inputs = Watched(), FakeInputs(rows=10_000, shares=shares)
    watched.spend(1e7)
    for _ in range(-(-payoff.TUPLES_PER_UPDATE // (3 * came))):
        watched.end(inputs, came)
    assert watched.guard("A by C").watching == watches
    assert ("A by C" in inputs.begun) == watches


def test_an_heir_goes_on_with_the_purse_the_turn_and_the_costs() -> None:
    watched, inputs = Watched(), FakeInputs(rows=300_000)
    watched.spend(4e6)
    watched.end(inputs)
    watched.begin(watched.watching)
    watched.end(inputs)
    assert len(inputs.sampled) == 1, "the budget_before is as empty"
    inputs.rows = 0
    watched.end(inputs)
    assert len(set(inputs.sampled[:4])) == 4, "the next guard's turn"
    assert len(inputs.sampled) == 5, "what rows cost is known"


def test_a_look_into_a_structure_costs_the_same_for_fewer_rows() -> None:
    root = visit("A", visit("AB"))
    assert path_ns(root, "A", "B", lambda v: VisitWork(pieces=2)) == 0.0
    assert VisitWork(pieces=2).ns() == 2 * PIECE_NS
