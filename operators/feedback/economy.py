"""Whether to watch: feedback that costs more than it saves turns itself down.

Each guard has an account in units of work, about a nanosecond of a hash join. It pays for what it looks at and for
tuples that it keeps back and must let in late, and earns what the tuples that it keeps back would have cost. Besides it
gets a small share of all the work that the plan does, which is what feedback may lose at most: with nothing left a
guard rests, and when it can pay for another trial it begins again. So a guard that never pays costs its share, one
that begins to pay when the data change is found out, and one that pays never stops. Deterministic: no clock.
"""

from __future__ import annotations

from operators.join import BinaryJoin

LOSS_SHARE = 0.01
"""The share of a plan's work that its guards may lose together."""

CHECKED = 40.0
"""Computing a signature and looking it up."""

SWEPT = 20.0
"""Looking at a state's entry to make a filter anew."""

ENTERED = 60.0
"""Entering a tuple into a state and probing the other one."""

MADE = 100.0
"""Making an intermediate result, keeping it and probing with it."""

COMPARED = 1.0
"""A comparison."""

RETURNED = 150.0
"""Letting a tuple in late, beside what it then makes."""

JOINED = 100_000.0
"""A join's fixed cost of a slice: calls of the interpreter, however few the tuples."""

GUARDED = 40_000.0
"""A guard's."""

TRIAL_TUPLES = 4096
"""Tuples that a trial looks at."""

FADING = 0.9
"""What the past counts for against the latest slice, where tuples' costs are averaged."""


def work_of(join: BinaryJoin) -> float:
    """What a join has cost so far."""
    counters = join.counters
    return counters.input_tuples * ENTERED + counters.comparisons * COMPARED + counters.results * (MADE - ENTERED)


class Account:
    """One guard's account.

    Args:
        below: the joins that a tuple which is kept back would have gone through, the consumer left out.

    Attributes:
        open: whether the guard watches.
        suppressed: results that were not made, estimated.
    """

    def __init__(self, below: list[BinaryJoin], trial: float) -> None:
        self._below = below
        self._before = [work_of(join) for join in below]
        self._made_before = sum(join.counters.results for join in below)
        self._work = self._made = self._admitted = 0.0
        self.credit = trial
        self.open = True
        self.suppressed = 0.0

    def settle(self, admitted: int, kept_back: int, returned: int, spent: float, granted: float, trial: float) -> None:
        """Book one slice.

        Args:
            admitted, kept_back, returned: tuples that went through, did not, or came back after all.
            spent: work of watching.
            granted: this guard's part of what may be lost.
            trial: what another trial would cost.
        """
        work = [work_of(join) for join in self._below]
        made = sum(join.counters.results for join in self._below)
        self._work = self._work * FADING + sum(work) - sum(self._before)
        self._made = self._made * FADING + made - self._made_before
        self._admitted = self._admitted * FADING + admitted + returned
        self._before, self._made_before = work, made
        each = (self._work / self._admitted if self._admitted else 0.0) + ENTERED
        self.suppressed += (kept_back - returned) * (self._made / self._admitted if self._admitted else 0.0)
        spent += GUARDED if self.open else 0.0
        self.credit += granted + kept_back * each - returned * (each + RETURNED) - spent
        self.credit = min(self.credit, 4 * trial)
        if self.open and self.credit < 0:
            self.open, self.credit = False, 0.0
        elif not self.open and self.credit >= trial:
            self.open = True
