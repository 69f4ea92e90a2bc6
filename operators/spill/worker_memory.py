"""A memory budget that the joins of several tasks in one process share. Entry: `WorkerMemory`.

The groups that leave memory first are those that a strategy ranks lowest among all tasks, whichever task has exceeded
the budget. Tasks run in threads of their own, and each spills only its own groups. So each publishes its candidates
when memory is short. A task that has to spill looks how much of what should leave is its own; the others spill theirs
when it is their turn. If the budget itself is exceeded, a task does not wait for the others.
"""

from __future__ import annotations

import itertools

import numpy as np

from operators.kernels.hashing import F64
from schemas.columns import I64


class WorkerMemory:
    """The memory of one process.

    Tasks begin and end in threads of their own. So every change is one operation of a dictionary, which no other
    thread interrupts, and so is the copy that is looked at.

    Args:
        limit_bytes: of all tasks.

    Attributes:
        limit_bytes: as above.
        rings: for tasks that keep state in files, the bytes of each ring in memory
            (`operators.kernels.pages.RingMemory`), and by negative numbers what tasks hold (`MemoryShare.hold`). Such
            tasks and those that spill do not share a worker: either all results of a query may come late, or none.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.rings: dict[int, int] = {}
        self._shares: dict[MemoryShare, None] = {}

    def enter(self) -> MemoryShare:
        """Return the share of one more task."""
        share = MemoryShare(self)
        self._shares[share] = None
        return share

    def leave(self, share: MemoryShare) -> None:
        """A task has ended; it may have left before."""
        self._shares.pop(share, None)
        self.rings.pop(share.number, None)

    def used_bytes(self) -> int:
        """Return what all tasks use, as of the last time that each looked."""
        return sum(share.used_bytes for share in list(self._shares))

    def candidates(self, own: MemoryShare) -> list[tuple[F64, I64]]:
        """Return the published candidates of a task, even if it has left, and of all others: scores and sizes."""
        return [own.candidates, *(share.candidates for share in list(self._shares) if share is not own)]


_NUMBERS = itertools.count(1)
"""Of all shares."""


class MemoryShare:
    """One task's part in a `WorkerMemory`; used by its thread, except for the attributes.

    Attributes:
        number: among the rings, that of what the task holds.
        used_bytes: what the task uses.
        candidates: scores and sizes of the groups that it could spill; the lowest scores leave first.
    """

    def __init__(self, memory: WorkerMemory) -> None:
        self.memory = memory
        self.number = -next(_NUMBERS)
        self.used_bytes = 0
        self.candidates: tuple[F64, I64] = (np.zeros(0), np.zeros(0, np.int64))

    def hold(self, size_bytes: int) -> None:
        """The task uses so much, and none of it can be spilled or be in a file."""
        self.used_bytes = self.memory.rings[self.number] = size_bytes

    def part_of(self, wanted_bytes: int) -> int:
        """Return how many of the bytes that should leave, over all tasks, are this task's.

        Cost: O(n log n) in the candidates of all tasks.
        """
        every = self.memory.candidates(self)
        scores = np.concatenate([scores for scores, _ in every])
        sizes = np.concatenate([sizes for _, sizes in every])
        own, own_sizes = self.candidates
        if wanted_bytes >= sizes.sum():
            return int(own_sizes.sum())
        order = np.argsort(scores, kind="stable")
        last = scores[order[np.searchsorted(np.cumsum(sizes[order]), wanted_bytes)]]
        # Of groups with the score of the last one that leaves, every task spills the same share.
        below, level = int(sizes[scores < last].sum()), int(sizes[scores == last].sum())
        share = (wanted_bytes - below) / level
        return int(own_sizes[own < last].sum() + share * own_sizes[own == last].sum())

    def leave(self) -> None:
        """The task has ended."""
        self.memory.leave(self)
