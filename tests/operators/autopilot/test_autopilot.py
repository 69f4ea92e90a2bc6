"""The autopilot: results never depend on it, and it finds the better plan when the data change."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.autopilot import survey
from operators.autopilot.autopilot import Autopilot, Limits, why_not
from operators.autopilot.pace import Pace
from operators.autopilot.rule import Terms
from operators.engine.engine import Engine
from operators.migration.advise import PREFERENCES, Goal
from operators.plan.plan import parse_plan
from operators.spill.spilling import MemoryBudget
from schemas.columns import Batch, Column
from schemas.query import Type
from tests import oracle
from tests.cases import Case, cases, plan
from tests.feeding import canonical, engine_of, feed, to_rows
from tests.hasty import always_another, hasty, observed
from tests.operators.migrating import joined
from tests.operators.spill.memory_blocks import MemoryBlocks
from tests.operators.tiny import chain, query
from tests.profiles import PROPERTY
from tests.subtractions import busy_subtractions, orders, subtractions


@PROPERTY
@given(st.one_of(cases(most_aliases=5), subtractions(), busy_subtractions()), st.data())
def test_results_do_not_depend_on_what_is_decided(case: Case, data: st.DataObject) -> None:
    engine = engine_of(case)
    if why_not(engine):
        return
    autopilot = Autopilot(engine, hasty(data.draw(st.sampled_from(PREFERENCES))), look_always=True)
    observed(engine, autopilot)
    aliases = tuple(source.alias for source in case.query.sources)
    any_plan = orders(aliases) if case.query.subtracted else plan(aliases)
    plans = data.draw(st.lists(any_plan, min_size=1, max_size=5))
    turn = iter(range(1_000_000))
    with always_another(lambda running: plans[next(turn) % len(plans)]):
        got = feed(engine, case.rows, case.push_sizes, case.epoch_ms)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))
    assert got == feed(engine_of(case), case.rows, case.push_sizes, case.epoch_ms)


@PROPERTY
@given(st.one_of(cases(most_aliases=5, most_rows=30), subtractions(), busy_subtractions()))
def test_its_own_decisions_change_no_result(case: Case) -> None:
    engine = engine_of(case)
    if why_not(engine):
        return
    observed(engine, Autopilot(engine, Limits(terms=Terms(0.0, 1e9, 0.0, 0.0)), look_always=True))
    got = feed(engine, case.rows, case.push_sizes, case.epoch_ms)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))


STAR = "A.k = B.k AND A.v = C.k AND A.d = D.d"
PARTNERS = {"B": "k", "C": "v", "D": "d"}
WINDOW_MS = 1000
SECOND = 2000


def events(number: int, distinct: dict[str, int], each: int = SECOND) -> dict[str, Batch]:
    """A second of a star: A joins every other stream on a column of its own, with so many values."""
    rng = np.random.default_rng(number)
    ts = number * 1000 + np.arange(each, dtype=np.int64) * 1000 // each

    def whole(values: int) -> Column:
        return Column(Type.BIGINT, rng.integers(0, values, each))

    def real(values: int) -> Column:
        return Column(Type.DOUBLE, rng.integers(0, values, each).astype(np.float64))

    empty = Column(Type.STRING, np.zeros(0, np.uint8), None, np.zeros(each + 1, np.int64))
    truth = Column(Type.BOOLEAN, np.zeros(each, np.bool_))
    rest = {"ts": Column(Type.TIMESTAMP, ts), "s": empty, "b": truth}
    return {
        "a": Batch(ts, {**rest, "k": whole(distinct["B"]), "v": whole(distinct["C"]), "d": real(distinct["D"])}),
        "b": Batch(ts, {**rest, "k": whole(distinct["B"]), "v": whole(1), "d": real(1)}),
        "c": Batch(ts, {**rest, "k": whole(distinct["C"]), "v": whole(1), "d": real(1)}),
        "d": Batch(ts, {**rest, "k": whole(1), "v": whole(1), "d": real(distinct["D"])}),
    }


def star(text: str = "(((A B) C) D)", budget: MemoryBudget | None = None) -> Engine:
    given = joined(STAR, window=f"[RANGE {WINDOW_MS} ms]")
    blocks = None if budget is None else MemoryBlocks()
    return Engine(given, plan=parse_plan(text, given), budget=budget, blocks=blocks)


def run(engine: Engine, seconds: int, distinct: Callable[[int], dict[str, int]]) -> list[dict[str, object]]:
    """Feed seconds in tenths; returns the results."""
    return run_on(engine, 0, seconds, distinct)


def run_on(
    engine: Engine, begin: int, seconds: int, distinct: Callable[[int], dict[str, int]]
) -> list[dict[str, object]]:
    """Feed further seconds in tenths; returns the results."""
    out = []
    for number in range(begin, begin + seconds):
        whole = events(number, distinct(number))
        for tenth in range(10):
            part = SECOND // 10
            for name, batch in whole.items():
                engine.push(name, 0, batch.slice(tenth * part, (tenth + 1) * part))
            out += to_rows(engine.advance())
    return out


EVEN = {"B": 4000, "C": 4000, "D": 4000}


def first_swap(number: int) -> dict[str, int]:
    """At first B has the fewest partners, later D."""
    few, many = 64_000, 40
    return {"B": few, "C": 4000, "D": many} if number < 12 else {"B": many, "C": 4000, "D": few}


def joins_of(text: str) -> set[frozenset[str]]:
    """The pairs that a plan over one-letter aliases joins directly, as text such as (A B)."""
    return {frozenset(pair.split()) for pair in re.findall(r"\((\w \w)\)", text)}


def test_it_follows_selectivities_that_swap() -> None:
    engine = star()
    autopilot = Autopilot(engine)
    observed(engine, autopilot)
    got = run(engine, 30, first_swap)
    made = [one for one in autopilot.adaptations if one.made]
    assert len(made) in (1, 2), [one.line() for one in autopilot.adaptations]
    assert all(12_000 < one.at < 12_000 + 3 * WINDOW_MS for one in made)
    assert frozenset("AD") in joins_of(str(engine.plan)), engine.plan
    assert made[0].predicted.saving > 0.2
    assert "A D" in made[0].evidence
    assert got == run(star(), 30, first_swap)


def test_one_change_follows_a_swap() -> None:
    """The right plan is found while windows still hold old tuples: B has many partners, and C fewer than that."""
    engine = star()
    autopilot = Autopilot(engine)
    observed(engine, autopilot)
    few, many = {"B": 64_000, "C": 2000, "D": 40}, {"B": 40, "C": 2000, "D": 64_000}
    run(engine, 30, lambda number: few if number < 12 else many)
    (made,) = (one for one in autopilot.adaptations if one.made)
    assert made.to_plan == "(((A D) C) B)"
    assert made.at < 12_000 + 1.5 * WINDOW_MS


def test_nothing_is_changed_while_nothing_changes() -> None:
    engine = star()
    autopilot = Autopilot(engine)
    observed(engine, autopilot)
    run(engine, 25, lambda _: EVEN)
    assert not [one.line() for one in autopilot.adaptations if one.made]
    assert not engine.migrations


def test_a_poor_first_plan_is_left() -> None:
    engine = star("(((A D) C) B)")
    autopilot = Autopilot(engine)
    observed(engine, autopilot)
    run(engine, 10, first_swap)
    assert frozenset("AB") in joins_of(str(engine.plan))
    assert len([one for one in autopilot.adaptations if one.made]) == 1


def test_the_account_has_what_changes_cost_and_save() -> None:
    """A poor first plan is left once, long after the last measurement before."""
    engine = star("(((A D) C) B)")
    autopilot = Autopilot(engine, Limits(terms=Terms(factor=8.0)))
    observed(engine, autopilot)
    run(engine, 12, lambda _: first_swap(0))
    (made,) = (one for one in autopilot.adaptations if one.made)
    account = autopilot.account
    assert account.spent > made.predicted.cost, "with measurements"
    # What ran before the change has saved nothing, and what ran since the last measurement is not known yet.
    prices, found = autopilot._prices, autopilot._survey.found
    assert prices is not None
    assert found is not None
    assert found.at > made.at
    assert account.saved <= (prices.first - prices.running) * (found.at - made.at) / 1000 * 1.1


def test_a_change_is_made_as_soon_as_it_has_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if no look at the counters is due then."""
    engine = star("(((A D) C) B)")
    autopilot = Autopilot(engine, Limits(terms=Terms(factor=8.0)))
    observed(engine, autopilot)
    for number in range(20):
        run_on(engine, number, 1, lambda _: first_swap(0))
        if autopilot.adaptations:
            monkeypatch.setattr(survey, "LOOK_AFTER_S", 1e9)
    (made,) = (one for one in autopilot.adaptations if one.made)
    assert made.at < 20_000


def test_advice_changes_nothing() -> None:
    engine = star("(((A D) C) B)")
    autopilot = Autopilot(engine, mode="advise")
    observed(engine, autopilot)
    run(engine, 10, first_swap)
    assert not engine.migrations
    assert autopilot.adaptations
    assert not any(one.made for one in autopilot.adaptations)
    assert any("advised" in one.reason for one in autopilot.adaptations)


def test_a_change_over_the_limit_of_silence_is_not_made() -> None:
    engine = star("(((A D) C) B)")
    autopilot = Autopilot(engine, Limits(Goal(silence_s=0.0, extra_share=0.0)))
    observed(engine, autopilot)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("operators.migration.advise.SLICES", 1e-9)
        patch.setattr("operators.migration.advise.EXTRA_TUPLES", 1e-9)
        run(engine, 10, first_swap)
    assert not engine.migrations
    assert any("none stays within" in one.reason for one in autopilot.adaptations)


def test_with_a_budget_that_suffices_changes_are_made_as_without_one() -> None:
    engine = star("(((A D) C) B)", MemoryBudget(1 << 30, "local-output"))
    observed(engine, Autopilot(engine))
    run(engine, 10, first_swap)
    assert frozenset("AB") in joins_of(str(engine.plan))


@pytest.mark.deep
def test_with_spilled_states_a_change_waits_until_the_pause_that_it_causes_is_allowed() -> None:
    given = star()
    without = run(given, 11, first_swap)
    budget = MemoryBudget(given.statistics().state_bytes * 6 // 10, "local-output")
    without += run_on(given, 11, 11, first_swap)
    found = {}
    for silence_s in (0.01, 60.0):
        engine = star(budget=budget)
        autopilot = Autopilot(engine, Limits(Goal(silence_s=silence_s)))
        observed(engine, autopilot)
        rows = run(engine, 22, first_swap)
        engine.clean()
        rows += [row for batch in engine.cleaned() for row in to_rows(batch)]
        assert canonical(rows) == canonical(without)
        found[silence_s] = engine, autopilot
    waiting, autopilot = found[0.01]
    assert not waiting.migrations
    assert any("none stays within" in one.reason for one in autopilot.adaptations)
    changed, autopilot = found[60.0]
    (made,) = (one for one in autopilot.adaptations if one.made)
    assert made.strategy == "moving-state"
    assert frozenset("AD") in joins_of(str(changed.plan))


def test_decisions_are_the_same_in_every_run() -> None:
    found = []
    for _ in range(2):
        engine = star()
        autopilot = Autopilot(engine)
        observed(engine, autopilot)
        run(engine, 20, first_swap)
        found.append([(one.at, one.made, one.from_plan, one.to_plan) for one in autopilot.adaptations])
    assert found[0] == found[1]


def test_the_order_of_subtraction_follows_the_data() -> None:
    """What stops most tuples goes first."""
    sources = " ".join(
        f"EXCEPT {alias.lower()} {alias} [RANGE 1000 ms] ON A.{PARTNERS[alias]} = {alias}.{PARTNERS[alias]}"
        for alias in "BCD"
    )
    engine = Engine(query(f"SELECT A.k FROM a A [RANGE 1000 ms] {sources}"))
    autopilot = Autopilot(engine, look_always=True)
    observed(engine, autopilot)
    run(
        engine,
        12,
        lambda second: {"B": 1000, "C": 20_000, "D": 80_000} if second < 6 else {"B": 80_000, "C": 20_000, "D": 1000},
    )
    found = [one.to_plan for one in autopilot.adaptations if one.made]
    assert found[-1].startswith("(((A D)")


def test_what_is_not_adapted_says_why() -> None:
    assert "two inputs" in why_not(Engine(chain(2)))
    assert "mjoin" in why_not(Engine(chain(3), executor="mjoin"))
    assert not why_not(Engine(chain(3)))


def test_a_change_that_none_may_overlap_is_waited_for() -> None:
    engine = star()
    other = parse_plan("(((A D) C) B)", engine.query)
    autopilot = Autopilot(engine, hasty(), look_always=True)
    observed(engine, autopilot)
    engine.migrate(other, "parallel-track", 500)
    with always_another(lambda running: parse_plan("(((A C) B) D)", engine.query)):
        run(engine, 3, lambda _: EVEN)
    first, *later = engine.migrations
    assert first.strategy == "parallel-track"
    assert later
    assert first.finished_at is not None
    assert later[0].cut >= first.finished_at


def test_a_change_by_hand_is_weighed_anew() -> None:
    """The prices of the plan before say nothing about the plan that somebody has chosen."""
    engine = star("(((A B) C) D)")
    autopilot = Autopilot(engine)
    observed(engine, autopilot)
    run(engine, 4, lambda _: EVEN)
    engine.migrate(parse_plan("(((A D) C) B)", engine.query), "moving-state", engine.cut)
    run_on(engine, 4, 1, lambda _: EVEN)
    assert autopilot._prices is None or autopilot._running == engine.plan
    run_on(engine, 5, 6, lambda _: EVEN)
    assert autopilot._prices is not None
    assert autopilot._running is engine.plan


def test_a_stream_that_becomes_faster_is_drift() -> None:
    engine, told = star(), []
    autopilot = Autopilot(engine)
    observed(engine, autopilot)
    measures = Pace.measures

    def noted(pace: Pace, at: int, *, drifted: bool) -> bool:
        told.append((at, drifted))
        return measures(pace, at, drifted=drifted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pace, "measures", noted)
        patch.setattr(survey, "LOOK_AFTER_S", 0.0)
        for number in range(8):
            faster = {"d": 4 * SECOND} if number >= 5 else {}
            for name in "abcd":
                engine.push(name, 0, events(number, EVEN, faster.get(name, SECOND))[name])
            for tenth in range(1, 10):
                engine.advance(number * 1000 + tenth * 100)
    assert not any(drifted for at, drifted in told if 2000 <= at < 5000)
    assert any(drifted for at, drifted in told if at >= 5000)
