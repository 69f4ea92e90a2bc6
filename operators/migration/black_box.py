"""GMS, GPT and GHM (HybMig 4) migrate plans as black boxes that only take tuples in and return results.

They need nothing of a plan except to run it, so they migrate any executor to any other.
`operators.migration.strategies` lists them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

import numpy as np

from operators.data.evaluate import holds
from operators.data.tuples import Tuples
from operators.join.executor import Executor
from operators.migration.migration import Migration
from operators.plan.predicates import selections
from operators.state.sources import Sources

PIECE_TUPLES = 16_384
"""The number of old tuples fed to a new plan at a time."""


class GeneralizedMovingState(Migration):
    """GMS: halt, run the old tuples through the new plan, drop its output, and continue with the new plan."""

    def __init__(self, old: Executor, new: Executor, cut: int) -> None:
        super().__init__(old, new, cut)
        before = new.comparisons()
        for piece, now in history(self.sources, cut):
            new.process(piece, now)
        self._replayed = new.comparisons() - before

    def spent(self) -> int:
        """Predicate evaluations on the old tuples; the new plan has counted them."""
        return self._replayed


class GeneralizedParallelTrack(Migration):
    """GPT: the old plan produces the results while the new plan's output is dropped, until it has seen a whole
    window."""

    def __init__(self, old: Executor, new: Executor, cut: int) -> None:
        super().__init__(old, new, cut)
        self._over = False

    @property
    def finished(self) -> bool:
        """True when no old tuple can match any more."""
        return self._over

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice through both plans and return the old plan's results."""
        self.current.process(epoch, now)
        return self.old.process(epoch, now)

    def purge(self, cut: int) -> None:
        """Purge both plans."""
        self.old.purge(cut)
        self.current.purge(cut)
        self._note_extra()
        self._over = self.expired(cut)

    def _note_extra(self) -> None:
        self.counters.extra_tuples = self.current.state_tuples()
        self.counters.peak_extra_tuples = max(self.counters.peak_extra_tuples, self.counters.extra_tuples)

    def executors(self) -> tuple[Executor, ...]:
        """Both plans."""
        return (self.old, self.current)


class GeneralizedHybrid(GeneralizedParallelTrack):
    """GHM: like GPT, but the new plan is fed from queues that start with the old tuples, in the background. With spare
    capacity it catches up in less than a window.

    Args:
        share: Tuples taken from the queue per new tuple that arrives. It must exceed one for the migration to end,
            unless `work` takes more.
        piece_tuples: The number of old tuples fed to the new plan at a time.
    """

    def __init__(
        self, old: Executor, new: Executor, cut: int, *, share: float = 4.0, piece_tuples: int = PIECE_TUPLES
    ) -> None:
        Migration.__init__(self, old, new, cut)
        self._share = share
        self._queue: deque[tuple[Mapping[str, Tuples], int]] = deque(history(self.sources, cut, piece_tuples))
        self._old_pieces = len(self._queue)
        self._replayed = 0
        self._taken = 0
        self._credit = 0.0
        self._over = not self._queue

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run the slice through the old plan, then as much of the queue as the credit allows through the new plan."""
        found = self.old.process(epoch, now)
        if epoch:
            self._queue.append((epoch, now))
        self.work(self._share * sum(len(tuples) for tuples in epoch.values()))
        return found

    def work(self, tuples: float) -> None:
        """Feed the new plan `tuples` more from the queue."""
        self._credit += tuples
        while self._queue and self._credit > 0:
            piece, at = self._queue.popleft()
            before = self.current.comparisons()
            self.current.process({alias: self._stored(tuples) for alias, tuples in piece.items()}, at)
            if self._old_pieces:
                self._old_pieces -= 1
                self._replayed += self.current.comparisons() - before
            taken = sum(len(tuples) for tuples in piece.values())
            self._taken += taken
            self._credit -= taken

    def spent(self) -> int:
        """Predicate evaluations on the old tuples in the new plan, and of the old plan since the cut."""
        return super().spent() + self._replayed

    def progress(self) -> tuple[int, int, str]:
        """The tuples that the new plan has seen, of those known so far."""
        waiting = sum(len(tuples) for piece, _ in self._queue for tuples in piece.values())
        return self._taken, self._taken + waiting, "tuples"

    def _stored(self, tuples: Tuples) -> Tuples:
        """Return the tuples without those that left their windows and their store while they waited."""
        kept = tuples.rows[0] >= self.sources.store(tuples.aliases[0]).lo
        return tuples if kept.all() else tuples.take(kept)

    def purge(self, cut: int) -> None:
        """Purge the old plan, and the new plan as far as it has caught up."""
        self.old.purge(cut)
        if self._queue:
            self.current.purge(self._queue[0][1])
        else:
            self.current.purge(cut)
        self._note_extra()
        self._over = not self._queue


def history(sources: Sources, cut: int, piece_tuples: int = PIECE_TUPLES) -> Iterator[tuple[dict[str, Tuples], int]]:
    """Return the streams' tuples that a tuple at or after `cut` can match, in pieces of event time, with each piece's
    start.

    HybMig requires the system to keep a copy of the sources' tuples; the stores are that copy.
    """
    whole = {s.alias: _alive(sources, s.alias, cut) for s in sources.query.sources if not s.is_static}
    stamps = np.sort(np.concatenate([tuples.ts for tuples in whole.values()]))
    bounds = [*dict.fromkeys(stamps[piece_tuples::piece_tuples].tolist()), None]
    begin = dict.fromkeys(whole, 0)
    for bound in bounds:
        piece: dict[str, Tuples] = {}
        for alias, tuples in whole.items():
            stop = len(tuples) if bound is None else int(np.searchsorted(tuples.ts, bound))
            if stop > begin[alias]:
                piece[alias] = tuples.take(np.arange(begin[alias], stop))
                begin[alias] = stop
        if piece:
            yield piece, min(int(tuples.ts[0]) for tuples in piece.values())


def _alive(sources: Sources, alias: str, cut: int) -> Tuples:
    store = sources.store(alias)
    rows = store.stored_rows()
    if alias in sources.rows_windows:
        rows = rows[rows >= sources.first_live_row(alias)]
    if sources.shared(alias):
        for predicate in selections(sources.query, alias):
            rows = rows[holds(predicate, sources.resolver((alias,), rows[np.newaxis]), len(rows))]
    ts = store.gather("_ts", rows).values.astype(np.int64, copy=False)
    tuples = Tuples((alias,), np.ascontiguousarray(rows[np.newaxis]), ts, sources.expiry(alias, rows, ts))
    return tuples.take(tuples.expiry >= cut)
