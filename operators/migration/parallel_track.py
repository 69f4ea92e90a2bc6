"""Parallel Track (HybMig 2.2; Zhu 2004): both plans run until the old one holds no old tuple any more.

The new plan starts empty and sees only new tuples. Results whose components are all new are dropped at the old plan's
root, since the new plan makes them too. The old plan is dropped when it holds only new tuples; checking for that is
part of the strategy's cost (JISC 3.3).

The paper requires that of two results the first has a component that is no later than the second's ("PT ordering"), and
holds the new plan's output back until the end to ensure it. That silences the query and breaks the order of the
results' timestamps. Here both outputs are merged by timestamp (max ordering, the contract of every plan), which is PT
ordering too: the second's latest component is no earlier than the first's of that alias. With `hold_back` the paper's
behaviour can be measured.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from operators.data.tuples import Tuples
from operators.join.executor import Executor
from operators.migration.migration import Migration, all_states


class ParallelTrack(Migration):
    """Runs both plans.

    Args:
        hold_back: Return the new plan's results only when the old plan is gone, with the next slice and out of order.
    """

    def __init__(self, old: Executor, new: Executor, cut: int, *, hold_back: bool = False) -> None:
        super().__init__(old, new, cut)
        self._hold_back = hold_back
        self._held: list[Tuples] = []
        self._over = False

    @property
    def finished(self) -> bool:
        """True when the old plan holds no old tuple, and nothing is held back."""
        return self._over and not self._held

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice through both plans. Once the old plan is gone, return what was held back, then the new plan's
        results."""
        if self._over:
            new = self.current.process(epoch, now).reorder(self.plan.aliases)
            held, self._held = [*self._held, new], []
            return Tuples.concat(held, self.plan.aliases)
        old = self.old.process(epoch, now)
        old = old.take(~self.all_new(old)).reorder(self.plan.aliases)
        new = self.current.process(epoch, now).reorder(self.plan.aliases)
        if self._hold_back:
            self._held += [new] if len(new) else []
            return old
        return Tuples.merge(old, new)

    def purge(self, cut: int) -> None:
        """Purge both plans, and check whether the old one is still needed."""
        self.old.purge(cut)
        self.current.purge(cut)
        self.counters.extra_tuples = self.old.state_tuples()
        self.counters.peak_extra_tuples = max(self.counters.peak_extra_tuples, self.counters.extra_tuples)
        # Every operator checks its states (JISC 3.3), even after one has found an old tuple.
        found = [self._holds_old(cut, state.tuples()) for state in all_states(self.old)] if not self._over else []
        self._over = not any(found)

    def _holds_old(self, cut: int, tuples: Tuples) -> bool:
        self.counters.comparisons += len(tuples)
        alive = tuples.take(tuples.expiry >= cut)
        rows_alive = self.sources.rows_alive(alive)
        if rows_alive is not None:
            alive = alive.take(rows_alive)
        return bool(np.any(~self.all_new(alive)))

    def executors(self) -> tuple[Executor, ...]:
        """Both plans."""
        return (self.old, self.current)
