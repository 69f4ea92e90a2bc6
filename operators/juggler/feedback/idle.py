"""Queries that cannot have a result now: some input has no living row for them (JIT III-A, the empty sub-tuple).

By query and input the ts of the latest row that the query may want; a row of the slice's last ts at most, so a query
may seem to have partners for a slice longer than it has. What is of no use to anybody is stored all the same: when the
row comes that a query has waited for, it finds it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from operators.data.watermark import NEVER
from operators.juggler.routing.tuples_in_flight import Flight
from operators.kernels.hashing import U64
from schemas.columns import Mask
from schemas.groups import QueryGroup


class Idle:
    """The queries of a group that wait for an input."""

    def __init__(self, group: QueryGroup, words: int) -> None:
        self._words = words
        self._queries = len(group.members)
        self._reads = {
            source.alias: np.array([source.alias in member.inputs for member in group.members], np.bool_)
            for source in group.inputs
        }
        self._latest = {name: np.full(self._queries, NEVER - 1, np.int64) for name in self._reads}

    def see(self, flight: Flight) -> None:
        """Take notice of new rows of an input, with the queries that they may satisfy."""
        if len(flight):
            wanted = self._flags(np.bitwise_or.reduce(flight.alive, axis=0))
            self._latest[flight.inputs[0]][wanted] = int(flight.ts.max())

    def busy(self, least: Mapping[str, int]) -> U64:
        """(words,) the queries that may have a result.

        Args:
            least: by input, what is older is dead.
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
