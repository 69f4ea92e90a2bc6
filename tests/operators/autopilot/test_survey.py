"""Surveys of several tasks: they survive their messages, and the plan is chosen for all tasks together."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from itertools import permutations

import pytest

from operators.autopilot.autopilot import Autopilot, best_for_all
from operators.autopilot.evidence import Arrivals, Evidence, Share, together
from operators.autopilot.pace import Pace
from operators.autopilot.rule import Account
from operators.autopilot.search import price, same_tree
from operators.autopilot.survey import Survey, Surveyed
from operators.engine.engine import Engine
from operators.plan.plan import aliases_in, parse_plan
from tests.operators.autopilot.test_autopilot import (
    EVEN,
    SECOND,
    WINDOW_MS,
    events,
    joins_of,
    observed,
    run,
    run_on,
    star,
)
from tests.operators.tiny import query

FEW_B, FEW_D = {"B": 64_000, "C": 4000, "D": 40}, {"B": 40, "C": 4000, "D": 64_000}


def surveyed(engine: Engine, distinct: dict[str, int], each: int = SECOND) -> Surveyed:
    """Measure after three seconds of events."""
    survey = Survey(engine, always=True)
    for number in range(3):
        for name, batch in events(number, distinct, each).items():
            engine.push(name, 0, batch)
        engine.advance()
        assert survey.look() is not None
        survey.measure()
    assert survey.found is not None
    return survey.found


def test_what_feedback_saves_is_part_of_the_price() -> None:
    """Few tuples of A have a partner in D, which comes last, so most of what meets B and C below is not made."""
    distinct = {"B": 200, "C": 200, "D": 80_000}
    engine = Engine(star().query, plan=star().plan, feedback=True)
    survey = Survey(engine, always=True)
    before = engine.work
    for second in range(8):
        before = engine.work if second == 4 else before
        run_on(engine, second, 1, lambda _: distinct)
        survey.look()
        survey.measure()
    found = survey.found
    assert found is not None
    assert 0.3 < found.evidence.withheld <= 1.0
    plain = price(replace(found.evidence, withheld=0.0), engine.plan)
    done = float(survey._learning.predicted(before, engine.work)[1:].sum()) / 4
    assert plain > 2 * done
    assert price(found.evidence, engine.plan) < 2 * done
    again = Surveyed.from_document(json.loads(json.dumps(found.document())), engine.query)
    assert again.evidence == found.evidence


def test_a_survey_survives_its_message() -> None:
    engine = star()
    found = surveyed(engine, FEW_B)
    found = replace(found, statistics=engine.statistics(links=True))
    again = Surveyed.from_document(json.loads(json.dumps(found.document())), engine.query)
    assert again == found
    assert price(again.evidence, engine.plan) == price(found.evidence, engine.plan)
    other = query("SELECT A.k FROM a A, b B, c X WINDOW RANGE 9 MILLISECONDS WHERE A.k = B.k AND B.k = X.k")
    with pytest.raises(KeyError):
        Surveyed.from_document(found.document(), other)


@pytest.mark.parametrize("changed", [True, False])
def test_after_a_change_of_the_data_recent_tuples_are_measured(changed: bool) -> None:
    engine = star()
    survey = Survey(engine, always=True)
    for number in range(4):
        parts = events(number, FEW_B if number < 3 else FEW_D)
        for tenth in range(10 if number < 3 else 4):
            for name, batch in parts.items():
                engine.push(name, 0, batch.slice(tenth * SECOND // 10, (tenth + 1) * SECOND // 10))
            engine.advance()
            survey.look()
        survey._pace.after_change = changed and number == 3
        survey.measure()
    assert survey.found is not None
    found = math.exp(survey.found.evidence.pairs[frozenset("AB")].log) * 40
    assert found == pytest.approx(1.0, rel=0.1) if changed else found < 0.7
    assert not (changed and survey.found.evidence.joint.keys() & {frozenset("ACD")})


def test_drift_is_measured_once_all_that_is_recent_has_come_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("operators.autopilot.survey.LOOK_AFTER_S", 0.0)
    engine = star()
    survey = Survey(engine)
    asked: list[tuple[int, bool]] = []

    def measures(at: int, *, drifted: bool) -> bool:
        asked.append((at, drifted))
        return drifted or len(asked) == 1

    survey._pace.measures = measures  # type: ignore[method-assign]
    for number in range(14):
        for name, batch in events(number, FEW_B, SECOND if number < 8 else SECOND * 2).items():
            engine.push(name, 0, batch)
        for tenth in range(1, 11):
            engine.advance(number * 1000 + tenth * 100)
            if survey.look() is not None:
                survey.measure()
    drifted = [at for at, drifted in asked if drifted and at > 8000]
    assert drifted
    assert 8000 + WINDOW_MS // 4 <= drifted[0] <= 8000 + WINDOW_MS
    assert not any(one for at, one in asked if drifted[0] < at < drifted[0] + WINDOW_MS // 4)
    assert survey.changed_ms >= WINDOW_MS // 4
    assert 0 < survey.changed_s < survey.done_s / 4


def test_measurements_are_timed() -> None:
    engine = Engine(star().query, clock=time.perf_counter)
    survey = Survey(engine, always=True)
    expected_s = survey.measure_s
    for number in range(2):
        for name, batch in events(number, EVEN).items():
            engine.push(name, 0, batch)
        engine.advance()
        survey.look()
        assert survey.measure()
        assert (survey.measure_s == expected_s) == (number == 0), "the first one loads code"


def test_what_is_best_for_all_is_chosen() -> None:
    """Of all six plans, with two tasks that would choose differently: sometimes what neither would."""
    query, compromises = star().query, 0
    few_b = surveyed(star(), FEW_B)
    assert frozenset("AB") in joins_of(str(few_b.best))
    plans = [parse_plan(f"(((A {a}) {b}) {c})", query) for a, b, c in permutations("BCD")]
    for each in (SECOND, SECOND // 4):
        few_d = surveyed(star(), FEW_D, each)
        assert frozenset("AD") in joins_of(str(few_d.best))
        for known in ([few_d], [few_d, few_b], [few_b, few_d], [few_b, few_d, few_d]):
            found = best_for_all(known, plans[0])
            costs = [sum(price(one.evidence, plan) for one in known) for plan in plans]
            assert sum(price(one.evidence, found) for one in known) == pytest.approx(min(costs))
            compromises += not any(same_tree(found, one.best) for one in known)
    assert compromises > 0


def test_together_two_halves_are_the_whole() -> None:
    """Of a query that is split by its only key, two tasks with a half of the keys each have what one would have."""
    one = surveyed(star(), EVEN).evidence
    both = together([one, one])
    assert both.arrivals["A"].rate == 2 * one.arrivals["A"].rate
    for pair, share in one.pairs.items():
        assert both.pairs[pair].log == pytest.approx(share.log - math.log(2))
    assert together([one]) is one
    assert price(both, star().plan) == pytest.approx(2 * price(one, star().plan), rel=0.01)


def test_tasks_with_most_of_the_work_decide() -> None:
    """This task alone would change to a plan that is worse for the others."""
    others = [surveyed(star(), FEW_B) for _ in range(2)]
    for known in ([], others):
        engine = star("(((A B) C) D)")
        autopilot = Autopilot(engine, others=lambda known=known: known)
        observed(engine, autopilot)
        run(engine, 8, lambda _: FEW_D)
        assert (frozenset("AD") in joins_of(str(engine.plan))) == (not known), engine.plan


def test_the_cost_of_a_change_is_that_of_all_tasks() -> None:
    costs = []
    other = star("(((A D) C) B)")
    poor = surveyed(other, FEW_B)
    poor = replace(poor, statistics=other.statistics(links=True))
    for known in ([], [poor] * 3):
        engine = star("(((A D) C) B)")
        autopilot = Autopilot(engine, others=lambda known=known: known)
        observed(engine, autopilot)
        run(engine, 8, lambda _: FEW_B)
        costs.append(next(one for one in autopilot.adaptations if one.made).predicted.cost)
    assert costs[1] == pytest.approx(4 * costs[0], rel=0.5)


def test_nothing_is_measured_before_there_is_much() -> None:
    survey = Survey(star())
    assert survey.look() is None
    assert not survey.measure()
    engine = star()
    found = surveyed(engine, EVEN)
    assert found.evidence.name(frozenset("DA")) == "A D"


def test_a_look_waits_for_enough_work() -> None:
    engine = star()
    survey = Survey(engine)
    looks = []
    for number in range(20):
        for name, batch in events(number, EVEN).items():
            engine.push(name, 0, batch)
        for tenth in range(1, 10):
            engine.advance(number * 1000 + tenth * 100)
            looks.append(survey.look() is not None)
    assert looks[0]
    assert 2 < sum(looks) < 40


def test_drift_must_be_seen_by_two_looks_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = star()
    survey = Survey(engine)
    seen, asked = iter((False, False, True, False, True, True, *[False] * 99)), []
    monkeypatch.setattr("operators.autopilot.survey.STEADY_WINDOWS", 0)
    monkeypatch.setattr("operators.autopilot.survey.LOOK_SOON_S", 0.0)
    monkeypatch.setattr(survey._watch, "drifted", lambda work: next(seen))
    monkeypatch.setattr(survey._pace, "measures", lambda at, drifted: asked.append(drifted))
    for number in range(12):
        run_on(engine, number, 1, lambda _: EVEN)
        monkeypatch.setattr("operators.autopilot.survey.LOOK_AFTER_S", 1e9 if number == 5 else 0.0)
        assert survey.look() is not None, "the second one comes soon"
        survey.measure()
    assert [number for number, drifted in enumerate(asked) if drifted] == [5]


def test_while_the_work_grows_looks_wait_less(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = star()
    survey = Survey(engine)
    run(engine, 2, lambda _: EVEN)
    assert survey.look() is not None
    run_on(engine, 2, 1, lambda _: EVEN)
    monkeypatch.setattr("operators.autopilot.survey.LOOK_AFTER_S", 1e9)
    assert survey.look() is None
    monkeypatch.setattr(Pace, "growing", True)
    assert survey.look() is None
    monkeypatch.setattr("operators.autopilot.survey.LOOK_SOON_S", 0.0)
    assert survey.look() is not None


def test_a_follow_up_waits_for_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome of a change is measured when windows hold what came since, however little that is."""
    engine = Engine(star().query, plan=star().plan, clock=time.perf_counter)
    survey = Survey(engine)
    monkeypatch.setattr("operators.autopilot.survey.LOOK_AFTER_S", 1e9)
    monkeypatch.setattr("operators.autopilot.survey.LOOK_SOON_S", 1e9)
    run(engine, 1, lambda _: EVEN)
    assert survey.look() is not None, "the first one"
    run_on(engine, 1, 1, lambda _: EVEN)
    assert engine.busy_s < survey.quiet_s
    survey.changed()
    for second, due in ((2, False), (3, True)):
        run_on(engine, second, 1, lambda _: EVEN)
        assert survey.quiet_s == 0
        assert (survey.look() is not None) is due


def test_more_work_per_time_than_before_is_looked_at_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = star()
    survey = Survey(engine)
    monkeypatch.setattr("operators.autopilot.survey.LOOK_SOON_S", 0.0)
    for second in range(2, 5):
        run_on(engine, second, 1, lambda _: EVEN)
        monkeypatch.setattr("operators.autopilot.survey.LOOK_AFTER_S", 0.0 if second < 4 else 1e9)
        looked = survey.look()
    assert looked is None
    run_on(engine, 5, 1, lambda _: FEW_D)
    assert survey.look() is not None


def test_in_a_pause_of_the_input_nothing_is_lost() -> None:
    engine = star()
    autopilot = Autopilot(engine, look_always=True)
    observed(engine, autopilot)
    run(engine, 4, lambda _: EVEN)
    before, prices = autopilot.account.work, autopilot._prices
    assert prices is not None
    run_on(engine, 4000, 2, lambda _: EVEN)
    assert 0 < autopilot.account.work - before < 6 * prices.running


def test_old_measurements_of_others_are_waited_for() -> None:
    """Until a window has passed in which the other task could have noticed that the data have changed, too."""
    made = []
    for at in (0, 10**9):
        other = replace(surveyed(star("(((A D) C) B)"), FEW_B), at=at)
        engine = star("(((A D) C) B)")
        autopilot = Autopilot(engine, others=lambda known=[other]: known)
        observed(engine, autopilot)
        run(engine, 8, lambda _: FEW_B)
        made.append(next(one.at for one in autopilot.adaptations if one.made))
    assert made[0] >= made[1] + WINDOW_MS // 2


def test_the_work_of_all_tasks_limits_what_they_may_have_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted since the last measurement, and about as much for each task."""
    limits: dict[int, list[float]] = {}
    for others in (0, 3):
        engine = star("(((A B) C) D)")
        known = [surveyed(star(), EVEN)] * others
        autopilot = Autopilot(engine, others=lambda known=known: known, look_always=True)
        observed(engine, autopilot)

        def noted(account: Account, *given: object, others: int = others) -> Account:
            if len(given) == 4:
                limits.setdefault(others, []).append(float(str(given[3])))
            return account

        monkeypatch.setattr("operators.autopilot.autopilot.settled", noted)
        run(engine, 6, lambda _: EVEN)
        assert max(limits[others]) < (1 + others) * autopilot._survey.done_s / 2
    assert limits[3][-1] == pytest.approx(4 * limits[0][-1], rel=0.2)


def test_what_others_tell_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    few_b = surveyed(star("(((A D) C) B)"), FEW_B)
    told: list[list[Surveyed]] = [[few_b]]
    engine = star("(((A B) C) D)")
    autopilot = Autopilot(engine, others=lambda: told[-1])
    observed(engine, autopilot)
    monkeypatch.setattr("operators.autopilot.survey.LOOK_AFTER_S", 0.0)
    run(engine, 3, lambda _: FEW_B)
    monkeypatch.undo()
    own = autopilot._survey.found
    told.append([replace(surveyed(star("(((A D) C) B)"), FEW_D), at=10**9)] * 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Survey, "measure", lambda survey: False)
        run_on(engine, 3, 1, lambda _: FEW_B)
    assert autopilot._survey.found is own
    assert len(autopilot._weighed) == 4


def test_what_was_seen_longer_than_a_window_ago_does_not_pay_for_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def noted(account: Account, prices: object, lost_s: float, changed_s: float, terms: object) -> Account:
        seen.append(changed_s)
        return account

    monkeypatch.setattr("operators.autopilot.autopilot.noticed", noted)
    monkeypatch.setattr(Survey, "changed_ms", 10**9)
    engine = star()
    observed(engine, Autopilot(engine, look_always=True))
    run(engine, 3, lambda _: EVEN)
    assert set(seen) == {WINDOW_MS / 1000}


def test_aliases_with_blanks_survive_a_message() -> None:
    """The leading task met aliases that are not there, and failed again whenever another task had measured."""
    sources = 'a A [RANGE 9 ms], b "room t" [RANGE 9 ms], c C [RANGE 9 ms]'
    given = query(f'SELECT A.k FROM {sources} WHERE A.k = "room t".k AND A.k = C.k')
    pairs = {frozenset(("A", "room t")): Share(-0.5, -0.1, 0.1, 9), frozenset(("A", "C")): Share(-0.25, -0.1, 0.1, 9)}
    arrivals = {source.alias: Arrivals(1.0, 1.0, 1.0) for source in given.sources}
    joint = {frozenset(("A", "room t", "C")): Share(-0.1, -0.1, 0.1, 9)}
    evidence = Evidence(given, arrivals, pairs, frozenset(pairs), joint)
    again = Evidence.from_document(json.loads(json.dumps(evidence.document())), given)
    assert (again.pairs, again.keyed, again.joint) == (pairs, frozenset(pairs), joint)
    assert aliases_in('((A "room t") C)') == ["A", "room t", "C"]
