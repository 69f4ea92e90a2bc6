"""`weir bench drift` at tiny sizes: scenarios are what the page says, and every figure is drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ops.bench.drift.figures import QUICK, bench_drift
from ops.bench.drift.outcomes import Outcome, Track, shape_of
from ops.bench.drift.runs import add_chosen, connected_plans
from ops.bench.drift.scenarios import APART, Phase, Scenario, scenarios
from ops.bench.measuring.measure import Progress
from schemas.errors import UsageError

WINDOW_MS = 1_000
TINY = replace(QUICK, seconds=3, rate=300.0)


def named(name: str) -> Scenario:
    return next(scenario for scenario in scenarios(2_000.0, 4) if scenario.name == name)


def fan_out(scenario: Scenario, phase: Phase, edge: int) -> float:
    """Partners of a tuple of an edge's first stream in a window of the other."""
    events = scenario.events(phase, 0, WINDOW_MS, WINDOW_MS, 1)
    left, right = (events[scenario.names[n]].columns[f"e{edge}"].values for n in scenario.edges[edge])
    values, counts = np.unique(right, return_counts=True)
    partners = dict(zip(values.tolist(), counts.tolist(), strict=True))
    return float(np.mean([partners.get(value, 0) for value in left.tolist()]))


@pytest.mark.parametrize("name", ["stationary", "rates", "cycle"])
def test_fan_outs_are_those_of_the_phase(name: str) -> None:
    scenario = named(name)
    phase = scenario.at(0.0)
    for edge, (a, b) in enumerate(scenario.edges):
        slower = min(phase.rates[a], phase.rates[b])
        expected = phase.fan_outs[edge] * phase.rates[b] / slower
        assert fan_out(scenario, phase, edge) == pytest.approx(expected, rel=0.25)


def test_correlation_leaves_each_selectivity_and_changes_both_together() -> None:
    scenario = named("correlation")
    alone, together = scenario.at(0.0), scenario.at(0.9)
    both = []
    for phase in (alone, together):
        for edge in (0, 1):
            assert fan_out(scenario, phase, edge) == pytest.approx(phase.fan_outs[edge], rel=0.5)
        hub = scenario.events(phase, 0, WINDOW_MS, WINDOW_MS, 1)["A"].columns
        both.append(float(np.mean((hub["e0"].values % APART == 0) & (hub["e1"].values % APART == 0))))
    assert both[0] < 0.001
    assert both[1] == pytest.approx(1 / APART, abs=0.003)


def test_events_follow_from_the_seed_and_ascend() -> None:
    scenario = named("skew")
    one, same, other = (scenario.events(scenario.at(0.5), 5_000, 100, WINDOW_MS, seed) for seed in (1, 1, 2))
    for name in scenario.names:
        assert (np.diff(one[name].ts) >= 0).all()
        assert one[name].ts.min() >= 5_000
        assert one[name].ts.max() < 5_100
        for column, values in one[name].columns.items():
            assert (values.values == same[name].columns[column].values).all()
    assert (one["A"].columns["e0"].values != other["A"].columns["e0"].values).any()


def test_static_plans_are_all_trees_without_cross_products() -> None:
    assert sorted(map(str, connected_plans(named("stationary")))) == sorted(
        f"(((A {x}) {y}) {z})" for x, y, z in ["BCD", "BDC", "CBD", "CDB", "DBC", "DCB"]
    )
    assert len(connected_plans(named("chain"))) == 42
    assert shape_of("((A B) C)") == {frozenset("AB"), frozenset("ABC")} == shape_of("(C (B A))")


def test_a_scenario_is_drawn(tmp_path: Path) -> None:
    with Progress() as progress:
        suite = bench_drift(TINY, progress, 2)
        with pytest.raises(UsageError, match="there are 15"):
            bench_drift(TINY, progress, 16)
    assert [figure.name for figure in suite.figures] == ["drift-00", "drift-02"]
    assert [line[0] for line in suite.figures[0].table] == ["scenario", "abrupt"]
    suite.write(tmp_path)
    assert "abrupt" in (tmp_path / "drift.md").read_text()


def test_what_is_not_done_in_an_epoch_delays_the_next() -> None:
    track = Track(seconds=(0.03, 0.25, 0.03, 0.01), answers=(0.02, 0.25, 0.01, 0.01))
    assert track.delays_ms().tolist() == pytest.approx([20.0, 250.0, 160.0, 90.0])


def test_regret_adds_up_what_the_best_plan_of_each_phase_does_not_take() -> None:
    seconds = {"one": (9.0, 1.0, 1.0, 4.0), "other": (9.0, 3.0, 3.0, 2.0), "adapt": (9.0, 3.0, 1.0, 3.0)}
    tracks = {name: Track(taken) for name, taken in seconds.items()}
    outcome = Outcome(named("abrupt"), tracks, ("one", "other"), 1, [3], [], WINDOW_MS)
    assert outcome.clairvoyant_epochs() == [1.0, 1.0, 2.0]
    assert outcome.clairvoyant() == 4.0
    assert outcome.regret_s("adapt").tolist() == [2.0, 2.0, 3.0]


def test_frequent_keys_are_shared_with_one_stream_at_a_time() -> None:
    scenario = named("frequent")
    for share, shared in ((0.1, 0), (0.3, 1), (0.6, 2)):
        found = [fan_out(scenario, scenario.at(share), edge) for edge in range(3)]
        others = [value for edge, value in enumerate(found) if edge != shared]
        assert found[shared] > 40 * max(others)


def test_where_plans_are_drawn_those_that_suit_a_phase_are_among_them() -> None:
    scenario = named("eight")
    drawn = add_chosen(scenario, TINY, 1, [])
    assert len(drawn) == 2, "one for either phase"
    assert add_chosen(scenario, TINY, 1, drawn) == drawn


@pytest.mark.deep
def test_every_scenario_is_drawn() -> None:
    with Progress() as progress:
        suite = bench_drift(TINY, progress)
    assert len(suite.figures) == 16
    assert all(figure.panels for figure in suite.figures[1:])
