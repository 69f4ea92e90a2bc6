"""Whether it pays to have tuples kept back by one kind of an edge, or whether they are asked for too often.

What is kept back is not sent, but who asks for some of it waits for a trip through Kafka per join, and every answer is
a message and a transaction. So the two are weighed, in bytes: what was not sent while signatures were suspended, less
what came back, against a price per answer. How much a suspended signature keeps back is known of those that came back:
they bring what has come of them within a window. The others are taken to be like them.

A kind that does not pay rests for some windows, each time twice as long.
"""

from __future__ import annotations

from operators.distributed.kinds import of_kinds
from operators.kernels.hashing import U64
from schemas.codecs.notice import Notice

ANSWERS = 24
"""After so many answers a kind is judged."""

ANSWER_BYTES = 2 * 1024
"""What an answer costs, as so many bytes sent: a request, a notice, their share of transactions, and the wait."""

FIRST_REST = 4
"""Windows that a kind rests for."""

MOST_REST = 1 << 12
"""Windows that it rests for at most."""


class Worth:
    """What one kind has saved and cost since it was judged last.

    Args:
        number: of the kind.
        row_bytes: what a tuple of the edge takes.
        life: how long a tuple lives.
        channels: of the edge.
    """

    def __init__(self, number: int, row_bytes: int, life: int, channels: int) -> None:
        self._number = number
        self._row_bytes = row_bytes
        self._life = max(life, 1)
        self._suspended = [0] * channels
        self._first: int | None = None
        self._at = 0
        self._until = 0
        self._rest = FIRST_REST
        self._begin()

    def _begin(self) -> None:
        self._answers = self._returned = self._rows = 0
        self._kept = 0

    def rests(self, now: int) -> bool:
        """Whether nothing should be kept back by it at an event time."""
        return now < self._until

    def read(self, now: int, notice: Notice, new: U64, rows: int) -> None:
        """A notice has been read.

        Args:
            new: what it suspends that was not.
            rows: how many tuples came back with it.
        """
        if self._first is None:
            self._first = self._at = now
        self._kept += sum(self._suspended) * min(max(0, now - self._at), self._life)
        self._at = max(self._at, now)
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
            self._begin()

    def _count(self, signatures: U64) -> int:
        return len(of_kinds(signatures, (self._number,)))

    def judge(self, now: int) -> bool:
        """True when it rests from now on."""
        if self._answers < ANSWERS or self.rests(now):
            return False
        window = max(1, min(self._life, now - (self._first or 0)))
        spared = self._rows * (self._kept / (self._returned * window) - 1.0)
        pays = spared * self._row_bytes >= ANSWER_BYTES * self._answers
        self._begin()
        if pays:
            self._rest = FIRST_REST
            return False
        self._until = now + self._rest * window
        self._rest = min(2 * self._rest, MOST_REST)
        return True
