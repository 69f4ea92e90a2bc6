"""A simulated processor: every comparison takes the same time, and a single processor does them all.

Figures that depend on saturation cannot be compared by the clock of a machine that is a thousand times faster
than the paper's. With a fixed cost per comparison, backlog, silence and spare time are those of a machine of that
capacity, and every run returns the same figures.
"""

from __future__ import annotations

from collections import defaultdict


class SimulatedClock:
    """Counts the time that work takes on the simulated processor.

    Attributes:
        now: seconds; the processor is busy until then.
        spent: comparisons by the second of simulated time in which they were done.
    """

    def __init__(self, comparisons_per_second: float) -> None:
        self.capacity = comparisons_per_second
        self.now = 0.0
        self.spent: dict[int, float] = defaultdict(float)

    def wait_until(self, time: float) -> None:
        """Be idle until `time`."""
        self.now = max(self.now, time)

    def work(self, comparisons: int) -> None:
        """Be busy with so many comparisons."""
        end = self.now + comparisons / self.capacity
        begin = self.now
        while begin < end:
            second = int(begin)
            stop = min(end, second + 1.0)
            if stop <= begin:  # a step too small for a float
                break
            self.spent[second] += (stop - begin) * self.capacity
            begin = stop
        self.now = end

    def spare(self, until: float) -> int:
        """Comparisons that can still be done before `until`."""
        return max(0, int((until - self.now) * self.capacity))
