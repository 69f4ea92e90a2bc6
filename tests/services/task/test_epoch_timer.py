"""When epochs begin."""

from __future__ import annotations

from services.task.epoch_timer import MAX_GATHER_S, Pace


def test_epochs_keep_their_pace() -> None:
    """However long one takes, as long as it is shorter than the pace."""
    pace = Pace(0.5, 10.0)
    assert pace.left(10.0) == 0.5
    pace.begin(10.5)
    pace.ended(10.625)
    assert pace.left(10.625) == 0.375


def test_under_load_reading_gets_as_much_time_as_the_epoch() -> None:
    pace = Pace(0.5, 10.0)
    pace.begin(10.5)
    pace.ended(11.25)
    assert pace.left(11.25) == 0.75
    pace.begin(12.0)
    pace.ended(20.0)
    assert pace.left(20.0) == MAX_GATHER_S


def test_an_epoch_that_somebody_waits_for_begins_early() -> None:
    """When reading has had as much time as the last one took; the pace counts from it."""
    pace = Pace(0.5, 10.0)
    pace.begin(10.5)
    pace.ended(10.625)
    pace.call()
    assert pace.left(10.625) == 0.125
    assert pace.left(10.75) == 0.0
    pace.begin(10.75)
    pace.ended(10.875)
    assert pace.left(10.875) == 0.375, "it is called for no more"
