"""Does again what was done to spilled state before a task died, at the same instants; nothing else meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

from operators.spill.spilled_part import FAR_PAST
from schemas.messages.spills import SpillEvent


class Script:
    """Events to come.

    Args:
        events: in the order in which they happened.
        until: everything that was found before this event time has been delivered.

    Attributes:
        delivered: the plan that runs had results of before this delivered by one before it.
    """

    def __init__(self, events: Sequence[SpillEvent] = (), until: int = FAR_PAST) -> None:
        plans = [i for i, event in enumerate(events) if event.kind == "plan"]
        self.delivered = events[plans[-1]].at if plans else FAR_PAST
        self._events = deque(events[plans[-1] + 1 :] if plans else events)
        self._until = until

    def covers(self, cut: int) -> bool:
        """Whether what happens at this cut is written."""
        return cut <= self._until

    def cuts(self, begin: int, end: int) -> list[int]:
        """Where slices must end: event times in begin < t < end, ascending."""
        return sorted({event.at for event in self._events if begin < event.at < end})

    def due(self, kind: Literal["leave", "clean"], cut: int) -> bool:
        """Whether an event of the kind comes next, at this cut or before."""
        return bool(self._events) and self._events[0].kind == kind and self._events[0].at <= cut

    def take(self) -> SpillEvent:
        """The next event."""
        return self._events.popleft()
