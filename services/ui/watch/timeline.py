"""Keeps what a query did, second by second: `Timeline`."""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

from services.ui.watch.events import Event

KEPT_S = 24 * 3600
"""So many seconds are kept: some 60 MB."""

DETAILED_S = 600
"""So many of the newest seconds are given one by one."""

GAP_S = 60
"""What tasks have is taken to last for so long, where they report less often than every second."""

SETTLED_S = 3
"""A second is complete once all tasks have reported after it. They report every second."""

EVENTS = 1000
"""So many of the latest events are kept."""

NAMED_JOINS = 8
"""So many joins of a second are kept by name, those that took most. The others are summed up."""

OTHERS = ""
"""The name of the others."""


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
        memory_bytes, budget_bytes: what tuples and states took of the memory budget; 0 without one.
        joins: of `busy`, the cores that each join took; None where none did.
        commits, commit_s: epochs that were delivered, and the seconds that took.
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
    memory_bytes: int = 0
    budget_bytes: int = 0
    joins: dict[str, float] | None = None
    commits: float = 0.0
    commit_s: float = 0.0


COLUMNS = (*(field.name for field in fields(Moment)), "events")


@dataclass(frozen=True, slots=True)
class Gain:
    """What one task has done between two of its reports.

    Attributes:
        begin_ms, end_ms: the reports, by the wall clock.
        inputs, results, late: tuples.
        busy_s: seconds that the engine took.
        joins: of them, those that each join took.
    """

    begin_ms: int
    end_ms: int
    inputs: int
    results: int
    late: int
    busy_s: float
    joins: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gauges:
    """What one task has now; see `Moment`."""

    cut: int
    pending: int
    state_bytes: int
    owed: int
    memory_bytes: int = 0
    budget_bytes: int = 0


class Timeline:
    """The last KEPT_S seconds."""

    def __init__(self) -> None:
        self._moments: dict[int, Moment] = {}
        self._events: deque[tuple[int, Event]] = deque(maxlen=EVENTS)

    def add(self, gain: Gain) -> None:
        """Spread what a task has done evenly over the seconds in which it did it."""
        length_ms = gain.end_ms - gain.begin_ms
        if length_ms <= 0:
            return
        joins = _largest(gain.joins)
        last = gain.end_ms // 1000  # A clock that was set may lie decades after the report before.
        for second in range(max(gain.begin_ms // 1000, last - KEPT_S + 1), last + 1):
            share = (min(gain.end_ms, second * 1000 + 1000) - max(gain.begin_ms, second * 1000)) / length_ms
            moment = self._moment(second)
            moment.inputs += gain.inputs * share
            moment.results += gain.results * share
            moment.late += gain.late * share
            moment.busy += gain.busy_s * share
            if joins:
                moment.joins = _largest(_sum([moment.joins, {name: busy_s * share for name, busy_s in joins.items()}]))

    def committed(self, at_ms: int, commits: int, commit_s: float) -> None:
        """Note epochs that a task delivered in the second before a moment of the wall clock. Its worker says so, also
        while the task computes for so long that it does not report: until it does, it has what it had."""
        moment = self._moment(at_ms // 1000)
        moment.commits += commits
        moment.commit_s += commit_s
        self._fill(moment.second + 1)

    def happened(self, at_ms: int, event: Event) -> None:
        """Note an event that was noticed at a moment of the wall clock."""
        self._events.append((self._moment(at_ms // 1000).second, event))

    def set(self, at_ms: int, tasks: Iterable[Gauges]) -> None:
        """Set what all tasks have at a moment of the wall clock, for its second."""
        known, moment = list(tasks), self._moment(at_ms // 1000)
        self._fill(moment.second)
        moment.at_ms = at_ms
        moment.cut = min((task.cut for task in known), default=0)
        moment.pending = sum(task.pending for task in known)
        moment.state_bytes = sum(task.state_bytes for task in known)
        moment.owed = sum(task.owed for task in known)
        moment.memory_bytes = sum(task.memory_bytes for task in known)
        moment.budget_bytes = sum(task.budget_bytes for task in known)

    def columns(self, since: int, now: int, most: int) -> dict[str, list[Any]]:
        """Return the complete seconds after `since` as columns, in order.

        Two columns have lists: `joins` a key of each join, the cores that it took, and its name where the key comes
        first; `events`, for the second in which it was noticed, the second, the kind and the text of each event.

        Args:
            since, now: seconds since 1970.
            most: that many rows at most before the newest DETAILED_S; where there are more seconds, each row is the
                mean of several. 0: all seconds.
        """
        first = since + 1 if now - since < KEPT_S else max(since + 1, min(self._moments, default=now))
        moments = [self._moments[n] for n in range(first, now - SETTLED_S + 1) if n in self._moments]
        old = bisect_left(moments, now - DETAILED_S, key=attrgetter("second")) if most else 0
        step = max(-(-old // most), 1) if most else 1
        rows = [moments[n : min(n + step, old)] for n in range(0, old, step)] + [[one] for one in moments[old:]]
        found: dict[str, list[Any]] = {}
        for name in COLUMNS:
            value = attrgetter(name)
            if name == "events":
                found[name] = self._happened(rows)
            elif name == "joins":
                found[name] = _keyed([_mean([moment.joins for moment in row]) for row in rows])
            elif name in ("second", "at_ms", "cut"):
                found[name] = [value(row[-1]) for row in rows]
            else:
                found[name] = [round(sum(map(value, row)) / len(row), 3) for row in rows]
        return found

    def _fill(self, second: int) -> None:
        """Give the seconds since the last one that was set, up to `second`, what that one has."""
        known = (self._moments[n] for n in range(second - 1, second - GAP_S, -1) if n in self._moments)
        before = next((moment for moment in known if moment.at_ms), None)
        if before is None:
            return
        for n in range(before.second + 1, second):
            moment = self._moment(n)
            moment.at_ms = before.at_ms + (n - before.second) * 1000
            moment.cut, moment.pending = before.cut, before.pending
            moment.state_bytes, moment.owed = before.state_bytes, before.owed
            moment.memory_bytes, moment.budget_bytes = before.memory_bytes, before.budget_bytes

    def _happened(self, rows: Sequence[Sequence[Moment]]) -> list[list[tuple[int, str, str]]]:
        """Return the events of each row."""
        found: list[list[tuple[int, str, str]]] = [[] for _ in rows]
        ends = [row[-1].second for row in rows]
        for noticed, (ms, kind, text) in self._events:
            n = bisect_left(ends, noticed)
            if n < len(rows) and rows[n][0].second <= noticed:
                found[n].append((ms // 1000, kind, text))
        return found

    def _moment(self, second: int) -> Moment:
        moment = self._moments.get(second)
        if moment is None:
            moment = self._moments[second] = Moment(second)
            if len(self._moments) > KEPT_S:
                del self._moments[next(iter(self._moments))]
        return moment


def _mean(joins: Sequence[Mapping[str, float] | None]) -> dict[str, float]:
    """Return the mean of what joins took in some seconds; a join that is not named took nothing."""
    return {name: cores / len(joins) for name, cores in _largest(_sum(joins)).items()}


def _sum(joins: Iterable[Mapping[str, float] | None]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in joins:
        for name, cores in (one or {}).items():
            found[name] = found.get(name, 0.0) + cores
    return found


def _largest(joins: dict[str, float]) -> dict[str, float]:
    """Return the joins that take most, and the sum of the others."""
    if len(joins) <= NAMED_JOINS:
        return joins
    named = sorted((name for name in joins if name != OTHERS), key=lambda name: -joins[name])[:NAMED_JOINS]
    found = {name: joins[name] for name in named}
    return found | {OTHERS: sum(joins.values()) - sum(found.values())}


def _keyed(rows: Iterable[Mapping[str, float]]) -> list[list[tuple[str, float] | tuple[str, float, str]]]:
    """Return rows with short keys in place of names, which may be long; a key has its name where it comes first."""
    known: set[str] = set()
    found: list[list[tuple[str, float] | tuple[str, float, str]]] = []
    for row in rows:
        found.append([])
        for name, cores in row.items():
            key = f"{zlib.crc32(name.encode()):x}" if name else OTHERS
            value = round(cores, 4)
            found[-1].append((key, value) if name in known else (key, value, name))
            known.add(name)
    return found
