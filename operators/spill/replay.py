"""Replays the spill events of a task's earlier incarnation at the same instants; nothing else spills meanwhile.

`operators.spill.plan_spilling` uses it while a task recovers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set
from typing import Literal

from operators.data.watermark import END, NEVER
from schemas.messages.spills import SpillEvent


class SpillReplay:
    """The events that are still to be replayed.

    Args:
        events: in the order in which they happened.
        until: everything that was found before this event time has been delivered.

    Attributes:
        delivered: results before this event time were delivered under an earlier plan than the one that runs.
    """

    def __init__(self, events: Sequence[SpillEvent] = (), until: int = NEVER) -> None:
        plans = [i for i, event in enumerate(events) if event.kind == "plan"]
        self.delivered = events[plans[-1]].at if plans else NEVER
        self._events = deque(events[plans[-1] + 1 :] if plans else events)
        self._until = until
        late = (event.groups for event in self._events if event.kind == "late")
        self._late = {(side, offset) for groups in late for side, offsets in groups for offset in offsets}

    def covers(self, cut: int) -> bool:
        """Whether the events determine what happens at this cut."""
        return cut <= self._until

    def cuts(self, begin: int, end: int) -> list[int]:
        """Where slices must end: event times in begin < t < end, ascending."""
        return sorted({event.at for event in self._events if begin < event.at < end})

    def due(self, kind: Literal["leave", "clean", "late"], cut: int) -> bool:
        """Whether the next event is of this kind, and at this cut or before."""
        return bool(self._events) and self._events[0].kind == kind and self._events[0].at <= cut

    def has_late(self, side: int, offset: int) -> bool:
        """Whether an event says when the late tuples of this record arrived. If none does any more, they have
        expired."""
        return (side, offset) in self._late

    def limit(self, read: Mapping[int, int]) -> int:
        """Return the event time up to which may be processed before more is read: not to when late tuples arrived that
        have not been read again.

        Args:
            read: by side, the offset up to which its records have been read again; all, where absent.
        """
        for event in self._events:
            if event.kind == "late" and any(max(offsets) >= read.get(side, END) for side, offsets in event.groups):
                return event.at - 1
        return END

    def is_ready(self, cut: int, read: Set[tuple[int, int]]) -> bool:
        """Whether the next event is a cleanup, or an arrival of late tuples that have been read again, at this cut or
        before.

        Args:
            read: the sides and offsets of records that have been read again.
        """
        if self.due("late", cut):
            return all((side, offset) in read for side, offsets in self._events[0].groups for offset in offsets)
        return self.due("clean", cut)

    def take(self) -> SpillEvent:
        """Remove and return the next event."""
        return self._events.popleft()
