"""Feedback in a set difference: a tuple whose match outlives it cannot return to the answer, and is looked up no more.

The engine uses `DifferenceFeedback` in place of the executor; see `operators.feedback.feedback`.

A tuple of the first stream that any subtracted stream covers to the end of its life is out of the answer for good. Its
other matches change nothing. So it leaves the left states of all operators, and later tuples of the subtracted streams
no longer find it: it is suspended, and nothing can resume it. Its latest match remains recorded, and the operators
still count it as stopped, so an operator that comes first in another plan stops it as well. With windows of one length,
every match that arrives after the tuple suspends it.

Suspended tuples are found in sweeps over the living tuples, after as many input tuples as SWEEP_SHARE of those. A sweep
that finds few makes the next wait longer, up to MAX_PAUSE times. So feedback costs at most a constant per input tuple,
and little where it saves nothing. A stream with a ROWS window suspends nothing: how long it covers is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from operators.data.statistics import EdgeStatistics
from operators.data.tuples import Tuples
from operators.difference.longest_match import Lifetimes
from operators.difference.pipeline import DifferencePipeline
from operators.kernels.ring import ring_read
from operators.plan.plan import Join, postorder
from operators.state.match import LEFT
from schemas.columns import I64, Mask

SWEEP_SHARE = 0.25
FEW_SHARE = 0.05
"""A sweep that suspends a smaller share of the tuples doubles the pause before the next."""

MAX_PAUSE = 64


class DifferenceFeedback:
    """Runs a set difference with feedback.

    Args:
        executor: The pipeline.
        clock: Returns seconds, to measure how long sweeps take.
    """

    def __init__(self, executor: DifferencePipeline, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._executor = executor
        self._clock = clock
        sources = executor.sources
        self._lifetimes = Lifetimes(sources, executor.first)
        self._covering = [one for one in executor.subtractions if one.alias not in sources.rows_windows]
        self._suspended = [0] * len(executor.subtractions)
        self._checked = [0] * len(executor.subtractions)
        self._sweeps_s = 0.0
        self._pause = 1
        self._input_tuples = 0

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        found = self._executor.process(epoch, now)
        self._input_tuples += sum(map(len, epoch.values()))
        entries = max(len(operator.states[LEFT]) for operator in self._executor.subtractions)
        if self._covering and self._input_tuples > self._pause * SWEEP_SHARE * entries:
            self._input_tuples = 0
            began = self._clock()
            self._sweep()
            self._sweeps_s += self._clock() - began
        return found

    def _sweep(self) -> None:
        suspended = entries = 0
        for number, operator in enumerate(self._executor.subtractions):
            state = operator.states[LEFT]
            rows = np.asarray(ring_read(state.rows[0], state.lo, state.hi))
            settled = self._settled(rows)
            count = int(np.count_nonzero(settled))
            if count:
                state.keep(~settled)
            self._suspended[number] += count
            self._checked[number] += len(rows)
            suspended, entries = suspended + count, entries + len(rows)
        self._pause = 1 if suspended >= FEW_SHARE * entries else min(2 * self._pause, MAX_PAUSE)

    def _settled(self, rows: I64) -> Mask:
        """Return (n,) bool: True where a recorded match lasts to the end of the row's life."""
        end = self._lifetimes.end(rows)
        settled = np.zeros(len(rows), np.bool_)
        for operator in self._covering:
            settled |= operator.latest.covered_to(rows) >= end
        return settled

    def release_all(self, now: int) -> None:
        """Do nothing: no suspended tuple is ever demanded again, whatever the plan."""

    def kept_back(self) -> int:
        """Return 0: suspended tuples are not kept."""
        return 0

    def size_bytes(self) -> int:
        """Return 0: it has no state of its own."""
        return 0

    def edges(self) -> tuple[EdgeStatistics, ...]:
        """Return the statistics of each operator: `forgotten` are the tuples that were suspended in its left state."""
        nodes = [node for node in postorder(self._executor.plan) if isinstance(node, Join)]
        return tuple(
            EdgeStatistics(
                str(node),
                str(node.left),
                self._pause < MAX_PAUSE,
                suspend=suspended,
                forgotten=suspended,
                checked=checked,
                detecting_s=self._sweeps_s / len(nodes),
            )
            for node, suspended, checked in zip(nodes, self._suspended, self._checked, strict=True)
        )
