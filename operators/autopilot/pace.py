"""When to look at the counters and when to measure anew, so that neither costs more than a share of the work: `Pace`.

A look compares counters that the engine has anyway; it finds drift of rates, and of selectivities that change the work
of the running plan. A measurement joins samples; it finds all else. It has a budget in units of work that has been done
(the caller looks after so much work). After a look that finds drift, a measurement may use what has been saved up.

If the work itself grows, waiting costs more than measuring. So a measurement is also made once the work beyond the
usual has reached what a measurement costs (the ski rental rule, as in `rule`). What is done from then on is the usual.
If that finds no better plan, work merely varies, and the next growth must have cost twice as much.

A measurement that follows a change of the data waits until all that it takes for recent has come after it. What it
would find before is neither the old data nor the new, and a plan for the mixture would have to be left again.
"""

from __future__ import annotations

import math

MEASURE_S = 0.5e-3
"""The work of a measurement per alias, in seconds of one core, and beside it MEASURE_ROW_S per sampled row; until one
has been timed."""

MEASURE_ROW_S = 60e-9

TIMED = 0.5
"""The weight of the last measurement in how long the next one is expected to take."""

BOUND = 8.0
"""A measurement is expected to take at most so many times as long as the constants say, or as short a part."""

RECENT = 4
"""What has come within this part of the longest window is recent."""

MEASURE_SHARE = 0.0015
"""The share of all work that measurements may take."""

FIRST = 2.0
"""As many measurements are granted at first, the second one for drift."""

SAVED = 4.0
"""The most measurements that can be saved up for drift; regular ones leave all but one."""

LOOKS_PER_WINDOW = 8
"""Looks are at least this part of the longest window apart, measurements a whole one, and half of one after drift."""

FOLLOW_UP_WINDOWS = 1.25
"""So long after a change of plans its outcome is measured."""

UNUSUAL = 1.5
"""Work beyond this multiple of the least since the last measurement, per event time, is beyond the usual."""

MOST_IN_VAIN = 64.0
"""A growth has cost enough when it has cost so many measurements, however often the last ones were in vain."""

ERRATIC = 4.0
"""Where a growth must have cost more measurements than this, work varies of itself, and nothing follows a measurement
in vain."""

FIRST_SHARE = 0.25
"""The first measurement waits for this share of the longest window."""


class Pace:
    """Decides when to look and when to measure.

    Args:
        window_ms: the longest window.
        measure_s: what a measurement takes, in seconds of one core.

    Attributes:
        apart_ms: looks are at least so far apart.
        measure_s: what a measurement takes, as far as is known.
        lost_s: the work beyond the usual that led to the last measurement, in seconds of one core.
        after_change: whether the last measurement was made because the data have changed.
        grown_ms: for how much event time the work had been beyond the usual when the last measurement was made.
        grown_s: the work in that time.
        follow_up_at: the event time at which a measurement is due whatever the work; infinite if none is.
    """

    def __init__(self, window_ms: int, measure_s: float) -> None:
        self.apart_ms = max(window_ms // LOOKS_PER_WINDOW, 1)
        self._window_ms = window_ms
        self._said_s = self.measure_s = measure_s
        self._looked: int | None = None
        self._measured: int | None = None
        self._first: int | None = None
        self.follow_up_at = math.inf
        self._done_s = 0.0
        self._at: int | None = None
        self._usual_s: float | None = None
        self._beyond_s = 0.0
        self._growth: tuple[int, int] | None = None
        self._grew_from_s = 0.0
        self.lost_s = 0.0
        self.after_change = False
        self.grown_ms = 0
        self.grown_s = 0.0
        self._grew = False
        self._enough = self._unsure = 1.0
        self._to_measure_s = FIRST * measure_s

    def work(self, done_s: float, at: int) -> None:
        """Note how much work the query has done so far, in seconds of one core, and until which event time."""
        seconds, self._done_s = done_s - self._done_s, done_s
        passed = 0 if self._at is None else at - self._at
        self._at = at
        if self._measured is not None and passed > 0:
            if self._usual_s is None or (self._growth is None and seconds / passed < self._usual_s):
                # Looks during a growth are close together, so that each shows less work, and the least of it varies.
                self._usual_s = seconds / passed
            usual = self._usual_s
            beyond_s = max(seconds - UNUSUAL * usual * passed, 0.0)
            self._beyond_s += beyond_s
            if beyond_s > 0:
                self._grew_from_s = self._done_s - seconds if self._growth is None else self._grew_from_s
                self._growth = (at - passed if self._growth is None else self._growth[0]), at
            elif self._growth is not None and at - self._growth[1] >= self._recent_ms:
                self._growth = None
        self._to_measure_s = min(self._to_measure_s + seconds * MEASURE_SHARE, SAVED * self.measure_s)

    def took(self, seconds: float) -> None:
        """Note how long a measurement took."""
        expected = (1.0 - TIMED) * self.measure_s + TIMED * seconds
        self.measure_s = min(max(expected, self._said_s / BOUND), self._said_s * BOUND)

    def found(self, *, better: bool, sure: bool, changed_ms: int = 0) -> None:
        """Note what the last measurement has found.

        One that was not sure is repeated, each time after twice the time. One that was made because the data have
        changed is followed by another when windows hold no older data, unless work varies of itself.

        Args:
            better: there is a better plan, by its price.
            sure: how much better it is exceeds the error.
            changed_ms: for how long the data had been seen to differ.
        """
        if better and sure:
            self._enough = 1.0
        elif self._grew:
            self._enough = min(2.0 * self._enough, MOST_IN_VAIN)
        if self.after_change:
            # What was unsure before says nothing about the new data.
            self._unsure = 1.0
        if self._measured is not None and ((self.after_change and self._enough <= ERRATIC) or not sure):
            new_ms = max(FOLLOW_UP_WINDOWS * self._window_ms - changed_ms, self._recent_ms)
            self.follow_up_at = self._measured + int(new_ms * self._unsure)
        self._unsure = 1.0 if sure else 2.0 * self._unsure

    @property
    def growing(self) -> bool:
        """Whether the work is beyond the usual, so that a measurement may soon be worth it."""
        return self._growth is not None

    @property
    def _recent_ms(self) -> int:
        return self._window_ms // RECENT

    def looks(self, at: int) -> bool:
        """Return whether to look at this event time, and note that it is done."""
        if self._looked is not None and at - self._looked < self.apart_ms:
            return False
        self._looked = at
        return True

    def changed(self, at: int) -> None:
        """Note that the plan has been changed at an event time. Whether that was right is measured once, whatever it
        costs, when windows hold no older data."""
        self.follow_up_at = at + int(FOLLOW_UP_WINDOWS * self._window_ms)

    def measures(self, at: int, *, drifted: bool) -> bool:
        """Return whether to measure at this event time, and note that it is done.

        Args:
            drifted: looks have found drift, and what is recent has come after it.
        """
        self._first = at if self._first is None else self._first
        if at - self._first < FIRST_SHARE * self._window_ms:
            return False
        self.after_change = self._grew = False
        if self._measured is not None:
            apart_ms = self._window_ms // 2 if drifted else self._window_ms
            kept_s = self.measure_s * (1.0 if drifted else SAVED)
            grown = self._growth is not None and self._growth[1] - self._growth[0] >= self._recent_ms
            lost = grown and self._beyond_s >= self._enough * self.measure_s and at - self._measured >= self.apart_ms
            due = at >= self.follow_up_at
            if not lost and not due and (at - self._measured < apart_ms or self._to_measure_s < kept_s):
                return False
            if lost or due:
                self._to_measure_s += self.measure_s
            if lost and self._enough <= ERRATIC:
                # While data change, windows hold old and new. If they still do, another one follows.
                self._to_measure_s = max(self._to_measure_s, 2 * self.measure_s)
            if due:
                self.follow_up_at = math.inf
            self.after_change = (lost or drifted) and not due
            self._grew = lost and not due
        self._measured = at
        self.lost_s = self._beyond_s
        self.grown_ms = 0 if self._growth is None else at - self._growth[0]
        self.grown_s = 0.0 if self._growth is None else self._done_s - self._grew_from_s
        self._usual_s, self._beyond_s, self._growth = None, 0.0, None
        self._to_measure_s = max(self._to_measure_s - self.measure_s, 0.0)
        return True
