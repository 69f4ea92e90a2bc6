"""ROWS windows over tuples that another operator has numbered (`operators.distributed.intake`).

A join in tasks of its own sees only some of a stream's tuples, so it cannot count them. Its inputs carry numbers and
horizons as columns (`operators.state.sources` defines both), and predicates over these columns decide what matches
(`operators.distributed.rows_windows`). This module finds the tuples that no later tuple can match: horizons ascend in
the total order, so a component that is tuple r of a stream is dead in a window `[ROWS n]` once some tuple with a
horizon of at least r + n has been processed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from operators.feedback.blacklist import Blacklist
from operators.join.executor import Executor
from operators.join.tree import XJoinTree
from operators.state.side_state import SideState
from operators.state.sources import Sources
from schemas.columns import I64, Batch, Mask
from schemas.errors import InvariantError

SWEEP_TUPLES = 1024
"""States are searched for dead tuples when they have doubled and grown by at least this many since the last search."""


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


class NumberedWindows:
    """Purges the states of one join.

    Args:
        sources: the stores of the join's inputs.
        columns: by stream, the columns of an input. Its store has them.
    """

    def __init__(self, sources: Sources, columns: Mapping[str, Sequence[NumberColumn]]) -> None:
        self._sources = sources
        self._columns = columns
        self._largest = {column.counted: -1 for own in columns.values() for column in own}
        self._history: deque[tuple[int, dict[str, int]]] = deque()
        self._sweep_at = SWEEP_TUPLES

    def note(self, batches: Mapping[str, Batch], cut: int) -> None:
        """Note the horizons of tuples that have been processed; everything before `cut` has been."""
        for stream, batch in batches.items():
            for column in self._columns.get(stream, ()):
                if len(batch):
                    largest = int(batch.columns[column.name].values.max())
                    self._largest[column.counted] = max(self._largest[column.counted], largest)
        self._history.append((cut, dict(self._largest)))

    def purge(self, executor: Executor, kept_back: Sequence[Blacklist], needed_from: int) -> None:
        """Drop tuples that no tuple with ts >= `needed_from` can match. Amortised O(1) per tuple.

        Args:
            executor: of one join.
            kept_back: the tuples that are kept back from its states.
        """
        if not isinstance(executor, XJoinTree):
            raise InvariantError("only a join can have its tuples numbered by another operator")
        while len(self._history) > 1 and self._history[1][0] <= needed_from:
            self._history.popleft()
        stores = [self._sources.stores[stream] for stream in self._columns]
        if sum(map(len, stores)) < self._sweep_at:
            return
        if self._history and self._history[0][0] <= needed_from:
            states = [state for _, join in executor.joins for state in join.states]
            self._sweep(states, kept_back, self._history[0][1])
        self._sweep_at = 2 * sum(map(len, stores)) + SWEEP_TUPLES

    def _sweep(self, states: Sequence[SideState], kept: Sequence[Blacklist], reached: Mapping[str, int]) -> None:
        for source in self._sources.query.sources:
            columns = [c for c in self._columns.get(source.stream.name, ()) if c.size is not None]
            store = self._sources.stores[source.stream.name]
            rows = store.stored_rows()
            if not columns or not len(rows):
                continue
            gone = np.zeros(len(rows), np.bool_)
            for column in columns:
                assert column.size is not None
                numbers = store.gather(column.name, rows).values.astype(np.int64, copy=False)
                gone |= numbers + column.size <= reached[column.counted]
            if not gone.any():
                continue
            dead = np.zeros(store.hi - store.lo, np.bool_)
            dead[rows[gone] - store.lo] = True
            for state in states:
                for part in (state, state.older):
                    if part is not None and source.alias in part.aliases:
                        entries = part.entries()
                        components = part.gather(entries)[0][part.aliases.index(source.alias)]
                        part.retract(entries[_at(dead, components - store.lo)])
            for waiting in kept:
                if source.alias in waiting.aliases:
                    places, tuples = waiting.living(0)
                    components = tuples.rows[waiting.aliases.index(source.alias)]
                    waiting.drop(places[_at(dead, components - store.lo)])
            store.release(dead)
            left = rows[~gone]
            store.leave(int(left[0]) if len(left) else store.hi)

    def horizon(self, stream: str, cut: int) -> int:
        """The smallest ts of the tuples of a stream that are stored; `cut` if there are none. O(stored tuples)."""
        store = self._sources.stores[stream]
        rows = store.stored_rows()
        return int(min(store.gather("_ts", rows).values.min(), cut)) if len(rows) else cut


def _at(dead: Mask, places: I64) -> Mask:
    """Where the rows at some places are dead."""
    found: Mask = dead[places]
    return found
