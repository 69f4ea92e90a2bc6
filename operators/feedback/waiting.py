"""Buffers new tuples while the consumer can use no tuple at all: the empty sub-tuple is not demanded (JIT III-A).

`operators.feedback.watch` and `operators.feedback.stems` fill it while an observed input or stream is empty. The tuples
are stored in batches as they arrive and none is inspected, so a slice costs O(1), however many tuples it has.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from operators.data.tuples import Tuples

MIN_PART_TUPLES = 256
"""A batch of fewer tuples is merged with the next batch."""


class WaitingTuples:
    """The waiting tuples of one source.

    Attributes:
        aliases: The source's alias, as a tuple of one.
        died: The number of tuples that were dropped because they had expired.
    """

    def __init__(self, alias: str) -> None:
        self.aliases = (alias,)
        self.died = 0
        self._first_row = 0
        self._count = 0
        # (tuples, greatest expiry, greatest row) each.
        self._parts: deque[tuple[Tuples, int, int]] = deque()

    def __len__(self) -> int:
        """The number of stored tuples; some may have expired."""
        return self._count

    def put(self, tuples: Tuples) -> None:
        """Store tuples."""
        if len(tuples) == 0:
            return
        self._count += len(tuples)
        if self._parts and len(self._parts[-1][0]) < MIN_PART_TUPLES:
            tuples = Tuples.concat([self._parts.pop()[0], tuples], self.aliases)
        else:
            # Copied: the arrays may be views of everything that the stream has sent.
            tuples = Tuples(tuples.aliases, tuples.rows.copy(), tuples.ts.copy(), tuples.expiry.copy())
        self._parts.append((tuples, int(tuples.expiry.max()), int(tuples.rows.max())))

    def take_all(self, now: int) -> Tuples:
        """Remove all tuples. Return those that are alive at `now`, ascending by ts."""
        found = Tuples.concat([part for part, _, _ in self._parts], self.aliases)
        found = found.take((found.expiry >= now) & (found.rows[0] >= self._first_row))
        self.died += self._count - len(found)
        self._parts.clear()
        self._count = 0
        return found.take(np.argsort(found.ts, kind="stable"))

    def purge(self, now: int) -> None:
        """Remove the oldest batches in which every tuple expired before `now`."""
        while self._parts:
            part, until, last_row = self._parts[0]
            if until >= now and last_row >= self._first_row:
                break
            self._parts.popleft()
            self._count -= len(part)
            self.died += len(part)

    def purge_rows(self, first_row: int) -> None:
        """Declare tuples of a ROWS window dead whose row number is below `first_row`."""
        self._first_row = first_row

    def size_bytes(self) -> int:
        """Bytes of the batches."""
        return sum(part.rows.nbytes + part.ts.nbytes + part.expiry.nbytes for part, _, _ in self._parts)
