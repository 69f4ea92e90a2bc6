"""Purges the states of a join whose inputs have numbered tuples (`operators.state.numbered`). The engine calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from operators.feedback.blacklist import Blacklist
from operators.join.executor import Executor
from operators.join.tree import XJoinTree
from operators.state.numbered import NumberedWindows
from operators.state.side_state import SideState
from operators.state.sources import Sources
from schemas.errors import InvariantError

SWEEP_TUPLES = 1024
"""States are searched for dead tuples when they have doubled and grown by at least this many since the last search."""


class NumberedPurge:
    """Drops tuples that have left their ROWS windows.

    Args:
        sources: the stores of the join's inputs.
        windows: knows which tuples have.
    """

    def __init__(self, sources: Sources, windows: NumberedWindows) -> None:
        self._sources = sources
        self._windows = windows
        self._sweep_at = SWEEP_TUPLES

    def purge(self, executor: Executor, kept_back: Sequence[Blacklist], needed_from: int) -> None:
        """Drop tuples that no tuple with ts >= `needed_from` can match. Amortised O(1) per tuple.

        Args:
            executor: of one join.
            kept_back: the tuples that are kept back from its states.
        """
        if not isinstance(executor, XJoinTree):
            raise InvariantError("only a join can have its tuples numbered by another operator")
        self._windows.forget(needed_from)
        stores = [self._sources.stores[stream] for stream in self._windows.columns]
        if sum(map(len, stores)) < self._sweep_at:
            return
        if (reached := self._windows.reached(needed_from)) is not None:
            states = [state for _, join in executor.joins for state in join.states]
            self._sweep(states, kept_back, reached)
        self._sweep_at = 2 * sum(map(len, stores)) + SWEEP_TUPLES

    def _sweep(self, states: Sequence[SideState], kept: Sequence[Blacklist], reached: Mapping[str, int]) -> None:
        for source in self._sources.query.sources:
            columns = self._windows.columns.get(source.stream.name, ())
            store = self._sources.stores[source.stream.name]
            rows = store.stored_rows()
            gone = np.zeros(len(rows), np.bool_)
            for column in columns if len(rows) else ():
                if column.size is not None:
                    numbers = store.gather(column.name, rows).values.astype(np.int64, copy=False)
                    gone |= numbers + column.size <= reached[column.counted]
            if not gone.any():
                continue
            dead = np.zeros(store.hi - store.lo, np.bool_)
            dead[rows[gone] - store.lo] = True
            store.release(dead)
            # Where entries are not purged by ts, those that RANGE has expired leave with the others.
            for state in states:
                for part in (state, state.older):
                    if part is not None and source.alias in part.aliases:
                        entries = part.entries()
                        components = part.gather(entries)[0][part.aliases.index(source.alias)]
                        part.retract(entries[~store.are_stored(components)])
            for waiting in kept:
                if source.alias in waiting.aliases:
                    places, tuples = waiting.living(0)
                    components = tuples.rows[waiting.aliases.index(source.alias)]
                    waiting.drop(places[~store.are_stored(components)])
            left = rows[~gone]
            store.leave(int(left[0]) if len(left) else store.hi)
