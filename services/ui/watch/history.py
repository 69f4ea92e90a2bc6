"""Keeps the statistics of tasks as they were over the last day, one report in half a minute: `History`."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter

from schemas.messages.control import GroupTaskStatistics, TaskStatistics, decode_control, encode_control

Report = TaskStatistics | GroupTaskStatistics

APART_MS = 30_000
"""At least so far apart are two reports of one incarnation that are kept; workers publish them so for the history."""

KEPT_MS = 24 * 3_600_000
KEPT_BYTES = 64 << 20
"""No more than this is kept of all tasks together."""


@dataclass(frozen=True, slots=True)
class _Kept:
    sent_ms: int
    incarnation: str
    plan_version: int
    body: bytes

    def message(self) -> Report:
        found = decode_control(zlib.decompress(self.body), "the history")
        assert isinstance(found, TaskStatistics | GroupTaskStatistics)
        return found


class History:
    """Of one query, or of one group of queries."""

    def __init__(self) -> None:
        self._tasks: dict[int, list[_Kept]] = {}
        self._bytes = 0

    def add(self, message: Report) -> None:
        """Keep a report, unless it comes too soon after one of the same incarnation and plan. Reports come in order."""
        kept = self._tasks.setdefault(message.task, [])
        plan_version = message.plan_version if isinstance(message, TaskStatistics) else 0
        last = kept[-1] if kept and message.sent_ms < kept[-1].sent_ms + APART_MS else None
        if last is not None and (last.incarnation, last.plan_version) == (message.incarnation, plan_version):
            return
        body = zlib.compress(encode_control(message), 1)
        kept.append(_Kept(message.sent_ms, message.incarnation, plan_version, body))
        self._bytes += len(kept[-1].body)
        self._drop(kept, bisect_right(kept, message.sent_ms - KEPT_MS, key=attrgetter("sent_ms")))
        while self._bytes > KEPT_BYTES:
            for task in self._tasks.values():
                self._drop(task, len(task) // 10 + 1)

    def at(self, ms: int) -> list[tuple[Report, Report | None]]:
        """Return what the tasks had reported at a moment of the wall clock, each with its incarnation's report before.

        Tasks that did not report for three times APART_MS did not run then.
        """
        found = []
        for kept in self._tasks.values():
            last = bisect_right(kept, ms, key=attrgetter("sent_ms")) - 1
            if last >= 0 and kept[last].sent_ms > ms - 3 * APART_MS:
                same = last > 0 and kept[last - 1].incarnation == kept[last].incarnation
                found.append((kept[last].message(), kept[last - 1].message() if same else None))
        return found

    def _drop(self, kept: list[_Kept], number: int) -> None:
        """Forget the oldest reports of a task."""
        self._bytes -= sum(len(one.body) for one in kept[:number])
        del kept[:number]
