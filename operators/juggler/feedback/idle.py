"""Finds queries that cannot have a result now: some input has no live row for them (JIT III-A, the empty sub-tuple).

`operators.juggler.feedback.demand` asks `IdleQueries` once per slice. It stores, by query and input, the ts of the
latest row that the query may want. It stores the slice's last ts instead of the row's own, so a query may seem to have
partners for one slice too long. Rows that only idle queries want are stored anyway, so that the row for which a query
waits can find them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from operators.data.watermark import NEVER
from operators.juggler.routing.tuples_in_flight import TuplesInFlight
from operators.kernels.hashing import U64
from schemas.columns import Mask
from schemas.groups import QueryGroup


class IdleQueries:
    """Tracks which queries of a group wait for an input."""

    def __init__(self, group: QueryGroup, words: int) -> None:
        self._words = words
        self._queries = len(group.members)
        self._reads = {
            source.alias: np.array([source.alias in member.inputs for member in group.members], np.bool_)
            for source in group.inputs
        }
        self._latest = {name: np.full(self._queries, NEVER - 1, np.int64) for name in self._reads}

    def observe(self, in_flight: TuplesInFlight) -> None:
        """Register new rows of an input, with the queries that they may satisfy."""
        if len(in_flight):
            wanted = self._flags(np.bitwise_or.reduce(in_flight.alive, axis=0))
            self._latest[in_flight.inputs[0]][wanted] = int(in_flight.ts.max())

    def active(self, least: Mapping[str, int]) -> U64:
        """(words,) the queries that may have a result.

        Args:
            least: by input the ts before which rows are dead.
        """
        may = np.ones(self._queries, np.bool_)
        for name, reads in self._reads.items():
            may &= ~reads | (self._latest[name] >= least[name])
        bits = np.zeros(self._words * 64, np.uint8)
        bits[: self._queries] = may
        return np.packbits(bits, bitorder="little").view(np.uint64)

    def _flags(self, words: U64) -> Mask:
        bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), bitorder="little")
        return bits[: self._queries].astype(np.bool_)
