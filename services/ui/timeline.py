"""Keeps what a query did, second by second: `Timeline`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

KEPT_S = 6 * 3600
"""So many seconds are kept: some 4 MB."""

SETTLED_S = 3
"""A second is complete once all tasks have reported after it. They report every second."""


@dataclass(slots=True)
class Moment:
    """One second of the wall clock, summed over tasks.

    Attributes:
        second: since 1970.
        inputs, results, late: tuples in that second.
        busy: cores that the engines took.
        at_ms: when in that second the rest was noted, by the wall clock.
        cut: event time (ms) that all tasks had reached; 0 while some had not begun.
        pending: tuples that waited for the watermark.
        state_bytes: memory of states and sources.
        owed: pairs of tuples, at most, whose results were pending on disk.
    """

    second: int
    inputs: float = 0.0
    results: float = 0.0
    late: float = 0.0
    busy: float = 0.0
    at_ms: int = 0
    cut: int = 0
    pending: int = 0
    state_bytes: int = 0
    owed: int = 0


COLUMNS = tuple(field.name for field in fields(Moment))


@dataclass(frozen=True, slots=True)
class Gain:
    """What one task has done between two of its reports.

    Attributes:
        begin_ms, end_ms: the reports, by the wall clock.
        inputs, results, late: tuples.
        busy_s: seconds that the engine took.
    """

    begin_ms: int
    end_ms: int
    inputs: int
    results: int
    late: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class Gauges:
    """What one task has now; see `Moment`."""

    cut: int
    pending: int
    state_bytes: int
    owed: int


class Timeline:
    """The last KEPT_S seconds."""

    def __init__(self) -> None:
        self._moments: dict[int, Moment] = {}

    def add(self, gain: Gain) -> None:
        """Spread what a task has done evenly over the seconds in which it did it."""
        length_ms = gain.end_ms - gain.begin_ms
        if length_ms <= 0:
            return
        for second in range(gain.begin_ms // 1000, gain.end_ms // 1000 + 1):
            share = (min(gain.end_ms, second * 1000 + 1000) - max(gain.begin_ms, second * 1000)) / length_ms
            moment = self._moment(second)
            moment.inputs += gain.inputs * share
            moment.results += gain.results * share
            moment.late += gain.late * share
            moment.busy += gain.busy_s * share

    def set(self, at_ms: int, tasks: Iterable[Gauges]) -> None:
        """Set what all tasks have at a moment of the wall clock, for its second."""
        known, moment = list(tasks), self._moment(at_ms // 1000)
        moment.at_ms = at_ms
        moment.cut = min((task.cut for task in known), default=0)
        moment.pending = sum(task.pending for task in known)
        moment.state_bytes = sum(task.state_bytes for task in known)
        moment.owed = sum(task.owed for task in known)

    def columns(self, since: int, now: int, most: int) -> dict[str, list[float]]:
        """Return the complete seconds after `since` as columns, in order.

        Args:
            since, now: seconds since 1970.
            most: that many rows at most; where there are more, each row is the mean of several seconds.
        """
        seconds = sorted(second for second in self._moments if since < second <= now - SETTLED_S)
        step = -(-len(seconds) // most) if most else 1
        found: dict[str, list[float]] = {name: [] for name in COLUMNS}
        for begin in range(0, len(seconds), max(step, 1)):
            some = [self._moments[second] for second in seconds[begin : begin + max(step, 1)]]
            for name in COLUMNS:
                values = [getattr(moment, name) for moment in some]
                last = name in ("second", "at_ms", "cut")
                found[name].append(values[-1] if last else round(sum(values) / len(values), 3))
        return found

    def _moment(self, second: int) -> Moment:
        moment = self._moments.get(second)
        if moment is None:
            moment = self._moments[second] = Moment(second)
            if len(self._moments) > KEPT_S:
                for old in sorted(self._moments)[: len(self._moments) - KEPT_S]:
                    del self._moments[old]
        return moment
