"""Decides whether keeping tuples back by one kind of an edge pays, or whether the signatures are resumed too often.

`operators.distributed.feedback.consumer` calls it. A tuple that is kept back is not sent. But a reader that requests it
waits for one trip through Kafka per join, and every answer is a message and a transaction. The two are compared in
bytes: what was not sent while signatures were suspended, less what returned, against a price per answer. The amount
that a suspended signature keeps back is known only for resumed signatures, whose tuples of one window return. The other
signatures are assumed to be alike.

A kind that does not pay rests for some windows, each time twice as long.
"""

from __future__ import annotations

from operators.distributed.feedback.kinds import of_kinds
from operators.kernels.hashing import U64
from schemas.codecs.notice import Notice

ANSWERS = 24
"""A kind is reviewed after this many answers."""

ANSWER_BYTES = 2 * 1024
"""The cost of an answer, in bytes sent: a request, a notice, their share of transactions, and the wait."""

FIRST_REST = 4
"""The windows that a kind rests for at first."""

MAX_REST = 1 << 12
"""The most windows that a kind rests for."""


class KindPayoff:
    """What one kind has saved and cost since its last review.

    Args:
        number: The kind's number.
        row_bytes: The size of a tuple of the edge.
        life: How long a tuple is alive, in ms.
        channels: The number of channels of the edge.
    """

    def __init__(self, number: int, row_bytes: int, life: int, channels: int) -> None:
        self._number = number
        self._row_bytes = row_bytes
        self._life = max(life, 1)
        self._suspended = [0] * channels
        self._first: int | None = None
        self._counted_until = 0
        self._rests_until = 0
        self._rest_windows = FIRST_REST
        self._reset()

    def _reset(self) -> None:
        self._answers = self._returned = self._rows = 0
        self._suspended_time = 0

    def rests(self, now: int) -> bool:
        """Return whether the kind suspends nothing at an event time."""
        return now < self._rests_until

    def record(self, now: int, notice: Notice, new: U64, rows: int) -> None:
        """Record a notice that has been read.

        Args:
            now: The event time.
            notice: The notice.
            new: The signatures that it suspends and that were not suspended before.
            rows: The number of tuples that returned with it.
        """
        if self._first is None:
            self._first = self._counted_until = now
        self._suspended_time += sum(self._suspended) * min(max(0, now - self._counted_until), self._life)
        self._counted_until = max(self._counted_until, now)
        back = self._count(notice.resumed)
        if notice.whole:
            self._suspended[notice.channel] = self._count(notice.suspended)
        else:
            self._suspended[notice.channel] += self._count(new)
        self._suspended[notice.channel] -= back
        self._rows += rows
        self._returned += back
        self._answers += back > 0
        if self.rests(now):
            self._reset()

    def _count(self, signatures: U64) -> int:
        return len(of_kinds(signatures, (self._number,)))

    def review(self, now: int) -> bool:
        """Review the kind, if enough answers have arrived. Return True if it rests from now on."""
        if self._answers < ANSWERS or self.rests(now):
            return False
        window = max(1, min(self._life, now - (self._first or 0)))
        saved_rows = self._rows * (self._suspended_time / (self._returned * window) - 1.0)
        pays = saved_rows * self._row_bytes >= ANSWER_BYTES * self._answers
        self._reset()
        if pays:
            self._rest_windows = FIRST_REST
            return False
        self._rests_until = now + self._rest_windows * window
        self._rest_windows = min(2 * self._rest_windows, MAX_REST)
        return True
