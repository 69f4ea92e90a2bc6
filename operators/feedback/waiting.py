"""Tuples that wait unseen while nothing at all can be used: the empty sub-tuple is not demanded (JIT III-A).

They come and go as they are, in parts, none of them looked at: a slice costs O(1), however many its tuples.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from operators.data.tuples import Tuples

LEAST_PART = 256
"""A part of fewer tuples takes in the next one."""


class Waiting:
    """Tuples of one source.

    Attributes:
        died: how many were dropped when their time was over.
    """

    def __init__(self, alias: str) -> None:
        self.aliases = (alias,)
        self.died = 0
        self._first_row = 0
        self._count = 0
        # Each with the expiry of its last survivor and the last row.
        self._parts: deque[tuple[Tuples, int, int]] = deque()

    def __len__(self) -> int:
        """Tuples held, of which some may have died."""
        return self._count

    def put(self, tuples: Tuples) -> None:
        """Let tuples wait."""
        if len(tuples) == 0:
            return
        self._count += len(tuples)
        if self._parts and len(self._parts[-1][0]) < LEAST_PART:
            tuples = Tuples.concat([self._parts.pop()[0], tuples], self.aliases)
        else:
            # A copy: they may be views of all that their stream has sent.
            tuples = Tuples(tuples.aliases, tuples.rows.copy(), tuples.ts.copy(), tuples.expiry.copy())
        self._parts.append((tuples, int(tuples.expiry.max()), int(tuples.rows.max())))

    def take_all(self, now: int) -> Tuples:
        """Take out everything; what lives at `now`, ascending by ts."""
        found = Tuples.concat([part for part, _, _ in self._parts], self.aliases)
        found = found.take((found.expiry >= now) & (found.rows[0] >= self._first_row))
        self.died += self._count - len(found)
        self._parts.clear()
        self._count = 0
        return found.take(np.argsort(found.ts, kind="stable"))

    def purge(self, now: int) -> None:
        """Drop the oldest parts that have died before `now`."""
        while self._parts:
            part, until, last_row = self._parts[0]
            if until >= now and last_row >= self._first_row:
                break
            self._parts.popleft()
            self._count -= len(part)
            self.died += len(part)

    def purge_rows(self, first_row: int) -> None:
        """Tuples of a ROWS window that lie before `first_row` are dead."""
        self._first_row = first_row

    def size_bytes(self) -> int:
        """Bytes of the parts."""
        return sum(part.rows.nbytes + part.ts.nbytes + part.expiry.nbytes for part, _, _ in self._parts)
