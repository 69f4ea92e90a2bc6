"""The history of a query, second by second."""

from __future__ import annotations

from typing import Any

import pytest

from services.ui.watch import timeline
from services.ui.watch.timeline import COLUMNS, Gain, Gauges, Timeline


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


def test_seconds_that_tasks_may_still_add_to_are_not_shown_and_long_stretches_are_averaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Timeline()
    for second in range(10):
        kept.add(Gain(second * 1000, second * 1000 + 1000, 10 * second, 0, 0, 0.0))
        kept.set(second * 1000, [Gauges(second, second, 0, 0)])
    assert kept.columns(3, 10, 0)["second"] == [4, 5, 6, 7]
    assert kept.columns(-1, 10, 4)["second"] == list(range(8))
    monkeypatch.setattr(timeline, "DETAILED_S", 4)
    assert kept.columns(-1, 10, 2)["second"] == [2, 5, 6, 7]
    monkeypatch.setattr(timeline, "DETAILED_S", 0)
    few = kept.columns(-1, 10, 4)
    assert few["second"] == [1, 3, 5, 7]
    assert few["inputs"] == pytest.approx([5, 25, 45, 65])
    assert few["cut"] == [1, 3, 5, 7]


def test_what_tasks_have_lasts_until_their_next_report() -> None:
    kept = Timeline()
    kept.set(5_500, [Gauges(4000, 3, 100, 5)])
    kept.set(8_500, [Gauges(7000, 1, 90, 0)])
    kept.set(8_500 + 1000 * timeline.GAP_S, [Gauges(9000, 0, 0, 0)])
    found = kept.columns(0, 500, 0)
    assert found["second"] == [5, 6, 7, 8, 8 + timeline.GAP_S]
    assert found["at_ms"][:4] == [5_500, 6_500, 7_500, 8_500]
    assert found["cut"][:4] == [4000, 4000, 4000, 7000]
    assert found["state_bytes"][:4] == [100, 100, 100, 90]


def test_a_task_that_does_not_report_has_what_it_had_while_its_worker_reports() -> None:
    kept = Timeline()
    kept.committed(3_200, 0, 0.0)
    kept.set(5_500, [Gauges(4000, 3, 100, 5, 50, 60)])
    for second in range(5, 100):
        kept.committed(second * 1000 + 900, 1, 0.5)
    found = kept.columns(0, 103, 0)
    assert found["second"] == [3, *range(5, 100)]
    for name, value in (("cut", 4000), ("pending", 3), ("state_bytes", 100), ("owed", 5), ("memory_bytes", 50)):
        assert found[name] == [0, *[value] * 95]
    assert found["at_ms"] == [0, *range(5_500, 100_500, 1000)]
    kept.set(99_950, [Gauges(9000, 0, 0, 0)])
    assert kept.columns(98, 103, 0)["cut"] == [9000]


def test_old_seconds_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "KEPT_S", 5)
    kept = Timeline()
    for second in range(20):
        kept.set(second * 1000, [])
    assert kept.columns(-1, 100, 0)["second"] == [15, 16, 17, 18, 19]


def test_a_clock_that_was_set_does_not_make_a_history_of_decades(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between 1970 and now the loop over seconds took minutes, and the page waited for it."""
    monkeypatch.setattr(timeline, "KEPT_S", 3)
    kept = Timeline()
    kept.add(Gain(0, 1_795_953_600_000, 1_795_953_600, 0, 0, 0.0))
    found = kept.columns(0, 1_795_953_700, 0)
    assert found["second"] == [1_795_953_598, 1_795_953_599, 1_795_953_600]
    assert found["inputs"] == pytest.approx([1, 1, 0])


def test_joins_share_the_time_of_a_second_and_have_their_name_where_their_key_comes_first() -> None:
    kept = Timeline()
    kept.add(Gain(10_500, 12_500, 0, 0, 0, 1.0, {"(A B)": 0.8, "((A B) C)": 0.2}))
    kept.add(Gain(12_000, 12_900, 0, 0, 0, 0.1, {"((A B) C)": 0.1}))
    first, second, third = kept.columns(0, 100, 0)["joins"]
    (low, *of_low), (high, *of_high) = first
    assert (of_low, of_high) == ([0.2, "(A B)"], [0.05, "((A B) C)"])
    assert second == [(low, 0.4), (high, 0.1)]
    assert third == [(low, 0.2), (high, 0.15)]


def test_the_largest_joins_of_a_second_are_named_and_the_others_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "NAMED_JOINS", 2)
    kept = Timeline()
    for second in (0, 1):
        kept.add(Gain(second * 1000, second * 1000 + 1000, 0, 0, 0, 1.0, {"a": 0.4, "b": 0.1, "c": 0.2, "d": 0.3}))
    kept.add(Gain(0, 1000, 0, 0, 0, 1.0, {"b": 1.0}))
    one, other = ([(name[0] if name else key, cores) for key, cores, *name in row] for row in _rows(kept, 0, 1))
    assert one == [("b", 1.0), ("a", 0.4), ("", 0.6)]
    assert [cores for _, cores in other] == pytest.approx([0.4, 0.3, 0.3])
    monkeypatch.setattr(timeline, "DETAILED_S", 0)
    (mean,) = kept.columns(-1, 4, 1)["joins"]
    assert {(name[0] if name else key): cores for key, cores, *name in mean} == pytest.approx(
        {"b": 0.5, "a": 0.4, "": 0.6}
    )


def _rows(kept: Timeline, *seconds: int) -> list[Any]:
    """Return the joins of each second, asked for one by one."""
    return [kept.columns(second - 1, second + timeline.SETTLED_S, 0)["joins"][0] for second in seconds]


def test_what_happened_is_in_the_row_of_its_second() -> None:
    kept = Timeline()
    for second in range(6):
        kept.set(second * 1000, [])
    kept.happened(2_300, (2_300, "failure", "x"))
    kept.happened(4_000, (4_000, "restart", "y"))
    kept.happened(9_000, (9_000, "restart", "z"))
    found = kept.columns(-1, 9, 0)
    assert dict(zip(found["second"], found["events"], strict=True)) == {
        0: [],
        1: [],
        2: [(2, "failure", "x")],
        3: [],
        4: [(4, "restart", "y")],
        5: [],
    }
    assert kept.columns(2, 9, 0)["events"] == [[], [(4, "restart", "y")], []]


def test_events_of_several_seconds_in_one_row_keep_their_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "DETAILED_S", 0)
    kept = Timeline()
    for second in range(6):
        kept.happened(second * 1000, (second * 1000, "restart", str(second)))
    found = kept.columns(-1, 9, 2)
    assert [[event[0] for event in row] for row in found["events"]] == [[0, 1, 2], [3, 4, 5]]


def test_memory_is_summed_over_tasks() -> None:
    kept = Timeline()
    kept.set(7_400, [Gauges(1, 0, 0, 0, 30, 100), Gauges(1, 0, 0, 0, 50, 100)])
    found = kept.columns(0, 100, 0)
    assert (found["memory_bytes"], found["budget_bytes"]) == ([80], [200])
