"""When epochs begin: regularly, under load, and on request."""

from __future__ import annotations

from services.task.epoch_timer import MAX_GATHER_S, EpochTimer


def test_epochs_keep_their_interval() -> None:
    """The interval holds however long an epoch takes, if it is shorter than the interval."""
    timer = EpochTimer(0.5, 10.0)
    assert timer.seconds_left(10.0) == 0.5
    timer.epoch_began(10.5)
    timer.epoch_ended(10.625)
    assert timer.seconds_left(10.625) == 0.375


def test_under_load_reading_gets_as_much_time_as_the_epoch() -> None:
    timer = EpochTimer(0.5, 10.0)
    timer.epoch_began(10.5)
    timer.epoch_ended(11.25)
    assert timer.seconds_left(11.25) == 0.75
    timer.epoch_began(12.0)
    timer.epoch_ended(20.0)
    assert timer.seconds_left(20.0) == MAX_GATHER_S


def test_a_requested_epoch_begins_early() -> None:
    """It begins once reading has had as much time as the last epoch took; the interval counts from it."""
    timer = EpochTimer(0.5, 10.0)
    timer.epoch_began(10.5)
    timer.epoch_ended(10.625)
    timer.request()
    assert timer.seconds_left(10.625) == 0.125
    assert timer.seconds_left(10.75) == 0.0
    timer.epoch_began(10.75)
    timer.epoch_ended(10.875)
    assert timer.seconds_left(10.875) == 0.375, "the request counts once"


def test_a_hurried_epoch_keeps_the_interval_under_load() -> None:
    timer = EpochTimer(0.5, 10.0)
    timer.epoch_began(10.5)
    timer.epoch_ended(11.25)
    timer.hurry()
    assert timer.seconds_left(11.25) <= 0
    timer.epoch_began(11.25)
    timer.epoch_ended(11.5)
    assert timer.seconds_left(11.5) == 0.25, "it hurries only once"


def test_missed_epochs_are_not_made_up_for() -> None:
    timer = EpochTimer(0.5, 10.0)
    timer.epoch_began(10.5)
    timer.epoch_ended(13.0)
    timer.hurry()
    assert timer.seconds_left(13.0) == 0
    timer.epoch_began(13.0)
    timer.epoch_ended(13.125)
    timer.hurry()
    assert timer.seconds_left(13.125) == 0.375


def test_a_hurried_epoch_that_is_requested_begins_at_once() -> None:
    timer = EpochTimer(0.5, 10.0)
    timer.epoch_began(10.5)
    timer.epoch_ended(10.625)
    timer.hurry()
    assert timer.seconds_left(10.625) == 0.375
    timer.request()
    assert timer.seconds_left(10.625) < 0


def test_an_interval_may_be_longer() -> None:
    timer = EpochTimer(0.5, 10.0)
    timer.epoch_began(10.5)
    timer.epoch_ended(10.625, least=2.0)
    assert timer.seconds_left(10.625) == 1.875
    timer.epoch_began(12.5)
    timer.epoch_ended(12.625, least=0.25)
    assert timer.seconds_left(12.625) == 0.375
