"""When the autopilot looks and measures."""

from __future__ import annotations

from itertools import pairwise

from operators.autopilot.drift import Watch
from operators.autopilot.pace import ERRATIC, LOOKS_PER_WINDOW, MEASURE_SHARE, SAVED, Pace
from operators.engine.engine import Work


def at(
    second: int, *, arrivals: int = 1000, made: float = 2.0, comparisons: float = 3.0, since: Work | None = None
) -> Work:
    """The counters after a second more of a steady stream."""
    before = since or Work(0, 0, (0,), 0, 0, 0, 0.0)
    return Work(
        second * 1000,
        before.tuples + arrivals,
        (before.selected[0] + arrivals,),
        before.slices + 1,
        before.comparisons + int(arrivals * comparisons),
        before.made + int(arrivals * made),
        0.0,
    )


def test_steady_counters_have_not_drifted() -> None:
    watch, work = Watch(), at(1)
    for second in range(2, 9):
        assert not watch.drifted(work)
        work = at(second, since=work, arrivals=1000 + 20 * (second % 2))


def test_a_rate_and_the_work_per_tuple_drift() -> None:
    for change in ({"arrivals": 2000}, {"made": 4.0}, {"comparisons": 1.0}):
        watch, work = Watch(), at(1)
        for second in (2, 3, 4):
            watch.drifted(work)
            work = at(second, since=work)
        assert not watch.drifted(work)
        assert watch.drifted(at(5, since=work, **change))  # type: ignore[arg-type]


def test_few_tuples_say_little() -> None:
    watch, work = Watch(), at(1, arrivals=4)
    for second in (2, 3):
        watch.drifted(work)
        work = at(second, since=work, arrivals=4)
    watch.drifted(work)
    assert not watch.drifted(at(4, since=work, arrivals=8))


def test_what_comes_after_a_measurement_is_the_new_standard() -> None:
    watch, work = Watch(), at(1)
    watch.drifted(work)
    work = at(2, since=work)
    watch.drifted(work)
    watch.rebase()
    for second in (3, 4):
        work = at(second, since=work, arrivals=5000)
        assert not watch.drifted(work)


def test_what_differs_is_not_taken_for_usual() -> None:
    """A change stays in sight however long it is not measured, and what was a coincidence is gone at the next look."""
    watch, work = Watch(), at(1)
    for second in (2, 3, 4):
        assert not watch.drifted(work)
        work = at(second, since=work)
    for second in range(5, 30):
        work = at(second, since=work, made=4.0)
        assert second < 6 or watch.drifted(work)
        if second < 6:
            watch.drifted(work)
    assert not watch.drifted(at(30, since=work))


def test_looks_are_apart_in_event_time() -> None:
    pace = Pace(800, 0.001)
    assert sum(pace.looks(time) for time in range(1, 801)) == LOOKS_PER_WINDOW


def saved_up() -> Pace:
    """One that has measured once and has saved up all it may."""
    pace = Pace(800, 0.001)
    assert not pace.measures(0, drifted=True), "nothing is recent yet"
    assert pace.measures(1000, drifted=False)
    assert not pace.measures(9000, drifted=False), "what is left is for drift"
    assert pace.measures(9000, drifted=True)
    assert not pace.measures(10_000, drifted=True), "nothing is left"
    pace.work(0.0, 10_000)
    pace.work(2 * SAVED * 0.001 / MEASURE_SHARE, 10_000)
    return pace


def test_measurements_take_their_share_of_the_work_and_save_some_for_drift() -> None:
    pace, done_s = saved_up(), 2 * SAVED * 0.001 / MEASURE_SHARE
    # Without work, what was saved up is used, one look after the other; then nothing is left.
    times = [10_000 + 400 * n for n in range(1, 10)]
    assert [pace.measures(time, drifted=True) for time in times] == [True] * int(SAVED) + [False] * (9 - int(SAVED))
    regular = 0
    for number in range(1000):
        done_s += 0.001 / MEASURE_SHARE / 10
        pace.work(done_s, 20_000 + number * 800)
        regular += pace.measures(20_000 + number * 800, drifted=False)
    assert 85 <= regular <= 100


def test_measurements_are_apart_in_event_time_whatever_the_work() -> None:
    pace, done_s, measured = Pace(800, 0.001), 0.0, []
    for time in range(0, 8000, 50):
        done_s += 100.0
        pace.work(done_s, time)
        if pace.measures(time, drifted=time >= 4000):
            measured.append(time)
    assert [b - a for a, b in pairwise(measured) if b < 4000] == [800] * 4
    assert min(b - a for a, b in pairwise(measured)) == 400


def test_growing_work_pays_for_a_measurement_whatever_was_saved_up() -> None:
    pace, done_s, measured = Pace(800, 0.001), 0.0, []
    pace.measures(0, drifted=True)
    assert pace.measures(1000, drifted=True)
    assert pace.measures(2000, drifted=True)
    for time in range(4000, 40_000, 100):
        done_s += 0.0001 if time < 20_000 else 0.0011
        pace.work(done_s, time)
        if pace.measures(time, drifted=False):
            measured.append(time)
            assert 0.001 <= pace.lost_s < 0.0022
            assert 0.00219 < pace.grown_s < 0.00221, "in both steps of the growth"
    assert measured == [20_100], "half of it was beyond the usual, then this was the usual"
    assert pace.measures(41_000, drifted=True), "windows may have held old and new data"
    assert not pace.measures(42_000, drifted=True)


def test_a_change_is_followed_by_a_measurement_when_windows_hold_no_older_data() -> None:
    pace = Pace(800, 0.001)
    pace.measures(0, drifted=True)
    assert pace.measures(1000, drifted=True)
    assert pace.measures(2200, drifted=True)
    assert not pace.measures(9000, drifted=True), "nothing is left"
    pace.changed(9000)
    assert not pace.measures(9999, drifted=True)
    assert pace.measures(10_000, drifted=False)
    assert not pace.measures(12_000, drifted=True)


def test_a_follow_up_leaves_what_was_saved_up() -> None:
    pace = saved_up()
    pace.changed(10_000)
    assert pace.measures(11_000, drifted=False)
    assert [pace.measures(time, drifted=True) for time in range(12_000, 15_000, 400)] == [True] * 4 + [False] * 4


def test_a_growth_is_measured_once_all_that_is_recent_has_come_after_it() -> None:
    """Before, there are old and new data among it; and a growth that has ended is not measured."""
    for first, lasts, expected in ((20_000, 100_000, [20_400]), (20_000, 200, []), (18_000, 200, [20_400])):
        pace, done_s, measured = Pace(1600, 0.001), 0.0, []
        pace.measures(0, drifted=True)
        assert pace.measures(1000, drifted=True)
        for time in range(4000, 23_000, 100):
            grows = first < time <= first + lasts or (first < 20_000 < time)
            done_s += 0.1 if grows else 0.0001
            pace.work(done_s, time)
            if pace.measures(time, drifted=False):
                measured.append(time)
        assert measured[:1] == expected


def test_what_measurements_take_is_learned_within_bounds() -> None:
    pace = Pace(800, 0.001)
    pace.took(0.003)
    assert pace.measure_s == 0.002
    for _ in range(20):
        pace.took(1.0)
    assert pace.measure_s == 0.008
    for _ in range(20):
        pace.took(1e-9)
    assert pace.measure_s == 0.001 / 8


def test_growths_measured_in_vain_must_cost_more_each_time() -> None:
    """Work that varies is measured ever more rarely; a better plan ends that."""
    for better, sure, most in ((False, True, 60), (True, False, 60), (True, True, 200)):
        pace, done_s, measured = Pace(800, 0.001), 0.0, 0
        pace.measures(0, drifted=True)
        for time in range(1000, 81_000, 100):
            done_s += 0.0011 if time // 400 % 2 else 0.0001
            pace.work(done_s, time)
            if pace.measures(time, drifted=False):
                measured += 1
                pace.found(better=better, sure=sure)
        assert measured <= most
        assert (better and sure) == (measured > 60)


def test_where_work_varies_of_itself_nothing_follows_a_growth_measured_in_vain() -> None:
    for enough, follows in ((ERRATIC / 2, [True, True]), (2 * ERRATIC, [False, False])):
        pace, done_s, measured = Pace(800, 0.001), 0.0, []
        pace.measures(0, drifted=True)
        assert pace.measures(1000, drifted=True)
        assert pace.measures(2000, drifted=True), "nothing is left"
        pace._enough = enough
        for time in range(4000, 20_000, 100):
            done_s += 0.00001 if time < 8000 else 0.005
            pace.work(done_s, time)
            if pace.measures(time, drifted=False):
                pace.found(better=False, sure=True)
                measured.append(time)
                break
        assert measured
        later = ((measured[0] + 1000, False), (measured[0] + 2000, True))
        found = [pace.measures(time, drifted=drifted) for time, drifted in later]
        assert found == follows


def test_a_measurement_is_repeated_when_windows_hold_no_older_data() -> None:
    for changed_ms, due in ((0, 2500), (400, 2100), (99_999, 1700)):
        pace = Pace(800, 0.001)
        assert not pace.measures(0, drifted=True)
        assert pace.measures(1500, drifted=True)
        pace.after_change = True
        pace.found(better=True, sure=False, changed_ms=changed_ms)
        assert pace.follow_up_at == due


def test_what_was_unsure_before_the_data_changed_does_not_delay_a_repetition() -> None:
    pace = Pace(800, 0.001)
    assert not pace.measures(0, drifted=True)
    assert pace.measures(1500, drifted=False)
    for _ in range(5):
        pace.found(better=True, sure=False)
    assert pace.follow_up_at == 1500 + 16 * 1000
    pace.after_change = True
    pace.found(better=True, sure=False)
    assert pace.follow_up_at == 1500 + 1000


def test_drift_measured_in_vain_does_not_hide_a_growth() -> None:
    pace, done_s, after_changes = Pace(800, 0.001), 0.0, 0
    for time in range(0, 40_000, 100):
        done_s += 0.01
        pace.work(done_s, time)
        if pace.measures(time, drifted=True):
            after_changes += pace.after_change
            pace.found(better=False, sure=True)
    assert after_changes > 5
    assert pace._enough == 1.0


def test_during_a_growth_the_least_work_between_two_looks_is_not_the_usual() -> None:
    pace, done_s = Pace(800, 0.001), 0.0
    pace.measures(0, drifted=True)
    assert pace.measures(1000, drifted=True)
    for time in range(1100, 3000, 100):
        done_s += 0.0001
        pace.work(done_s, time)
    for step in range(2):
        done_s += 0.0002 if step == 0 else 0.00001
        pace.work(done_s, 3000 + 100 * step)
        assert pace.growing
        assert pace._usual_s is not None
        assert abs(pace._usual_s - 1e-6) < 1e-9


def test_a_better_plan_ends_the_wait_after_measurements_in_vain() -> None:
    pace, done_s = Pace(800, 0.001), 0.0
    pace.measures(0, drifted=True)
    counts = []
    for better in (False, True):
        measured = 0
        for step in range(800):
            time = 1000 + 100 * (len(counts) * 800 + step)
            done_s += 0.0011 if time // 400 % 2 else 0.0001
            pace.work(done_s, time)
            if pace.measures(time, drifted=False):
                measured += 1
                pace.found(better=better, sure=True)
        counts.append(measured)
    assert counts[1] > 2 * counts[0]


def test_a_measurement_that_is_not_sure_is_repeated_ever_later() -> None:
    """However little work there is."""
    pace, measured = Pace(800, 0.001), []
    for time in range(0, 20_000, 100):
        if pace.measures(time, drifted=False):
            measured.append(time)
            pace.found(better=True, sure=len(measured) > 3)
    assert measured == [200, 1200, 3200, 7200]
