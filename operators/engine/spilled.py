"""What an engine with a memory budget says of spilled state, and does with it when it is asked to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from operators.spill.backlog import Debt
from operators.spill.plan_spilling import Spills
from schemas.columns import Batch
from schemas.errors import InvariantError
from schemas.messages.spills import SpillEvent
from schemas.query import Query


class Spilled(ABC):
    """The part of an engine whose results may be owed for want of memory; without a budget nothing is."""

    query: Query
    _spills: Spills | None
    _streams: tuple[str, ...]
    _results: int

    @property
    @abstractmethod
    def cut(self) -> int:
        """Everything with a smaller ts has been processed."""

    @abstractmethod
    def horizon(self, stream: str) -> int:
        """The smallest ts whose tuples of `stream` some window still needs."""

    def clean(self, most: int | None = None, between: Callable[[], None] | None = None) -> bool:
        """Find results that are owed for want of memory; `cleaned` has them.

        Args:
            most: partition groups at most, those that have waited longest; None for all.
            between: called now and then while all are found, for whoever asks `cleaned` meanwhile: results that nobody
                takes are held in memory.

        Returns:
            False when nothing was owed.

        Raises:
            StateError: a block cannot be read or written.
        """
        return self._spills is not None and self._spills.clean(self.cut, most, between)

    def debt(self) -> Debt | None:
        """In place of `clean`: put what is owed on disk, for somebody else to find; None when nothing is.

        Raises:
            StateError: a block cannot be written.
        """
        return None if self._spills is None else self._spills.debt(self.cut)

    def cleaned(self) -> list[Batch]:
        """What cleanups have found since this was last asked: each ascending by ts, late, and each result once."""
        if self._spills is None:
            return []
        found = self._spills.take()
        self._results += sum(len(batch) for batch in found)
        return found

    def least_budget(self) -> int:
        """0: what left is cleaned up before windows forget it, by instalments that keep pace, whatever the budget."""
        return 0

    def spill_events(self) -> list[SpillEvent]:
        """What has happened to spilled state since this was last asked, for who must do it again after a death."""
        return [] if self._spills is None else self._spills.events()

    def play_spills(self, events: Sequence[SpillEvent], until: int) -> None:
        """Do up to the event time `until` exactly this to spilled state; what cleanups find meanwhile is out already.

        To be called before anything is processed or restored. The plan must be the one of the newest events.
        """
        if self._spills is None:
            raise InvariantError(f"{len(events)} events of spilled state for an engine without a budget")
        if self.cut:
            raise InvariantError(f"everything before {self.cut} has been processed without them")
        self._spills.play(events, until)

    def spills_needed_from(self) -> int:
        """Events up to this event time need not be done again: what they were about has expired.

        A table's rows never do: with one, all events are needed. They are few beside the tuples they were about.
        """
        if self.query.tables():
            return -1
        # What left at the horizon itself is owed results with what came then.
        return min(self.horizon(stream) for stream in self._streams) - 1
