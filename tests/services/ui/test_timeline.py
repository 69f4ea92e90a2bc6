"""The history of a query, second by second."""

from __future__ import annotations

import pytest

from services.ui import timeline
from services.ui.timeline import COLUMNS, Gain, Gauges, Timeline


def test_what_a_task_did_is_spread_over_the_seconds_in_which_it_did_it() -> None:
    kept = Timeline()
    kept.add(Gain(10_500, 12_500, 200, 20, 2, 1.0))
    kept.add(Gain(11_000, 12_000, 50, 0, 0, 0.5))
    kept.add(Gain(12_000, 12_000, 9, 9, 9, 9.0))
    found = kept.columns(0, 100, 0)
    assert found["second"] == [10, 11, 12]
    assert found["inputs"] == pytest.approx([50, 150, 50])
    assert found["results"] == pytest.approx([5, 10, 5])
    assert found["late"] == pytest.approx([0.5, 1, 0.5])
    assert found["busy"] == pytest.approx([0.25, 1.0, 0.25])
    assert set(found) == set(COLUMNS)


def test_sizes_are_summed_over_tasks_and_the_slowest_task_says_how_far_results_are() -> None:
    kept = Timeline()
    kept.set(7_400, [Gauges(4000, 3, 100, 5), Gauges(3000, 4, 50, 0)])
    found = kept.columns(0, 100, 0)
    assert found["at_ms"] == [7_400]
    assert (found["cut"], found["pending"], found["state_bytes"], found["owed"]) == ([3000], [7], [150], [5])
    kept.set(8_000, [])
    assert kept.columns(7, 100, 0)["cut"] == [0]


def test_seconds_that_tasks_may_still_add_to_are_not_shown_and_long_stretches_are_averaged() -> None:
    kept = Timeline()
    for second in range(10):
        kept.add(Gain(second * 1000, second * 1000 + 1000, 10 * second, 0, 0, 0.0))
        kept.set(second * 1000, [Gauges(second, second, 0, 0)])
    assert kept.columns(3, 10, 0)["second"] == [4, 5, 6, 7]
    few = kept.columns(-1, 10, 4)
    assert few["second"] == [1, 3, 5, 7]
    assert few["inputs"] == pytest.approx([5, 25, 45, 65])
    assert few["cut"] == [1, 3, 5, 7]


def test_old_seconds_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "KEPT_S", 5)
    kept = Timeline()
    for second in range(20):
        kept.set(second * 1000, [])
    assert kept.columns(-1, 100, 0)["second"] == [15, 16, 17, 18, 19]
