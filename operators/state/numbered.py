"""ROWS windows over tuples that another operator has numbered (`operators.distributed.intake`).

A join in tasks of its own sees only some of a stream's tuples, so it cannot count them. Its inputs carry numbers and
horizons as columns (`operators.state.sources` defines both), and predicates over these columns decide what matches
(`operators.distributed.rows_windows`). This module knows when a component has left its window: horizons ascend in the
total order, so a component that is tuple r of a stream is dead in a window `[ROWS n]` once some tuple with a horizon of
at least r + n has been processed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from operators.data.tuples import FOREVER
from schemas.columns import I64, Batch

STEPS = 128
"""The history of a stream has about so many entries per window, and never many more."""


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """A column of an input with the horizon of one component in a counted stream.

    Attributes:
        name: of the column, BIGINT without nulls.
        counted: the counted stream.
        size: of the component's ROWS window, if it is a tuple of the counted stream; the column is its number then.
            None otherwise.
    """

    name: str
    counted: str
    size: int | None = None


@dataclass(frozen=True, slots=True)
class _Reached:
    """Everything before `cut` has been processed, and the largest horizons were these, by counted stream. Those of late
    tuples are added."""

    cut: int
    largest: dict[str, int]


class NumberedWindows:
    """The progress of one join in the streams that are counted.

    Some tuples enter after their time, or ahead of it (`note_late`). They count from their time on: whatever comes
    later in the total order has a horizon of at least theirs.

    Args:
        columns: by stream, the columns of an input. Its store has them.

    Attributes:
        columns: as given.
    """

    def __init__(self, columns: Mapping[str, Sequence[NumberColumn]]) -> None:
        self.columns = columns
        self._sizes: dict[str, int] = {}
        for column in (column for own in columns.values() for column in own if column.size is not None):
            self._sizes[column.counted] = max(self._sizes.get(column.counted, 0), column.size or 0)
        # Nothing is purged by the other streams that are counted.
        self._noted = {name: [own for own in given if own.counted in self._sizes] for name, given in columns.items()}
        self._largest = dict.fromkeys(self._sizes, -1)
        self._history: deque[_Reached] = deque()
        # By counted stream, the ts and horizons of late tuples that the newest entry does not count yet.
        self._late: dict[str, list[tuple[I64, I64]]] = {name: [] for name in self._largest}

    def note(self, batches: Mapping[str, Batch], cut: int) -> None:
        """Note the horizons of tuples that have been processed, by stream; everything before `cut` has been."""
        for stream, batch in batches.items():
            for column in self._noted.get(stream, ()) if len(batch) else ():
                largest = int(batch.columns[column.name].values.max())
                self._largest[column.counted] = max(self._largest[column.counted], largest)
        for counted in (name for name, late in self._late.items() if late):
            self._note_passed(counted, cut)
        if len(self._history) > 1 and self._are_near(self._history[-2].largest):
            self._history.pop()
        self._history.append(_Reached(cut, dict(self._largest)))

    def note_late(self, stream: str, batch: Batch) -> None:
        """Note the horizons of a stream's tuples, in any order, that enter without being processed in theirs."""
        order = np.argsort(batch.ts, kind="stable")
        ts = batch.ts[order]
        before = np.searchsorted(ts, [entry.cut for entry in self._history]).tolist()
        for column in self._noted.get(stream, ()) if len(batch) else ():
            horizons = batch.columns[column.name].values.astype(np.int64, copy=False)[order]
            largest = np.maximum.accumulate(horizons)
            for entry, n in zip(self._history, before, strict=True):
                if n:
                    entry.largest[column.counted] = max(entry.largest[column.counted], int(largest[n - 1]))
            self._late[column.counted].append((ts, horizons))

    def _note_passed(self, counted: str, cut: int) -> None:
        """Note the late tuples whose time is before `cut`."""
        ts, horizons = (np.concatenate(parts) for parts in zip(*self._late[counted], strict=True))
        passed = ts < cut
        if passed.any():
            self._largest[counted] = max(self._largest[counted], int(horizons[passed].max()))
        self._late[counted] = [] if passed.all() else [(ts[~passed], horizons[~passed])]

    def _are_near(self, before: Mapping[str, int]) -> bool:
        """Whether the largest horizons have hardly grown since."""
        return all(self._largest[name] - before[name] <= self._sizes[name] // STEPS for name in before)

    def reached(self, at: int) -> Mapping[str, int] | None:
        """The largest horizons of tuples with a smaller ts than `at`, or smaller ones; None if none are known."""
        return next((entry.largest for entry in reversed(self._history) if entry.cut <= at), None)

    def forget(self, needed_from: int) -> None:
        """Drop the history that no call with `needed_from` or later needs, and some of a long one."""
        if not self._history:
            return
        reached = self.reached(needed_from) or self._history[0].largest
        bounds = {name: reached[name] - size for name, size in self._sizes.items()}
        while len(self._history) > 1 and (second := self._history[1]).cut <= needed_from:
            if any(second.largest[name] > bound for name, bound in bounds.items()):
                break
            self._history.popleft()
        if len(self._history) > 4 * STEPS * len(bounds):
            self._thin(needed_from, bounds)

    def _thin(self, needed_from: int, bounds: Mapping[str, int]) -> None:
        """Divide the growth of each stream's horizons since its bound into STEPS steps at most, and keep the first and
        the last entry of each step. With fewer entries, some tuples are known to be dead later, none sooner.

        Args:
            bounds: by counted stream, a number up to which its tuples are dead.
        """
        cuts = np.array([entry.cut for entry in self._history], np.int64)
        kept = np.zeros(len(cuts), np.bool_)
        kept[[0, max(int(np.searchsorted(cuts, needed_from, side="right")) - 1, 0), -1]] = True
        for name, bound in bounds.items():
            largest = np.array([entry.largest[name] for entry in self._history], np.int64)
            width = 1
            while (int(largest[-1]) - bound) // width >= STEPS:
                width *= 2
            # Steps do not move with the bound, so that what has been kept of each stays the first and the last.
            steps = np.where(largest > bound, largest // width, bound // width - 1)
            differ = steps[1:] != steps[:-1]
            kept[:-1] |= differ
            kept[1:] |= differ
        self._history = deque(compress(self._history, kept))

    def horizon(self, stream: str, needed_from: int) -> int:
        """The smallest ts that a tuple of the stream may have, if it has not left a window before `needed_from`; 0 if
        that is not known. Only ROWS windows count here."""
        reached = self.reached(needed_from)
        if reached is None:
            return 0
        bound = 0
        for column in self.columns.get(stream, ()):
            if column.size is not None:
                dead = reached[column.counted] - column.size
                cuts = (entry.cut for entry in reversed(self._history) if entry.largest[column.counted] <= dead)
                bound = max(bound, next(cuts, 0))
        return bound

    def expiry(self, column: NumberColumn, values: I64) -> I64:
        """The last ts at which components may be alive, as far as it is known; FOREVER for those that may still be.

        Args:
            column: of a component in its own stream.
            values: (n,) of the column.

        Returns:
            (n,) int64.
        """
        assert column.size is not None
        cuts = np.array([entry.cut - 1 for entry in self._history] + [FOREVER], np.int64)
        largest = np.array([entry.largest[column.counted] for entry in self._history], np.int64)
        return cuts[np.searchsorted(largest, values + column.size)]

    def overdue_since(self, least: int) -> int | None:
        """The event time since when some counted stream has had as many tuples as its largest window, and at least
        `least`; None if none has."""
        found = None
        for name, size in self._sizes.items():
            bound = self._largest[name] - max(size, least)
            cut = next((entry.cut for entry in reversed(self._history) if entry.largest[name] <= bound), None)
            if cut is not None:
                found = cut if found is None else max(found, cut)
        return found
