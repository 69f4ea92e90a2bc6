"""What came of a run of `weir bench drift`: the time of each contender by epoch, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from operators.kernels.hashing import F64
from ops.bench.drift.scenarios import Phase, Scenario

EPOCH_MS = 100
"""Event time between two calls of `advance`."""


@dataclass(frozen=True, slots=True)
class Track:
    """What one contender has taken.

    Attributes:
        seconds: processor time by epoch.
        answers: by epoch, how much of it passed until the results were there; the rest is for measuring and deciding.
        plans: the plan by epoch.
        pauses_s: for how long each change of plans halted the processing.
        memory_bytes: the most memory of states.
        decisions: one line each.
    """

    seconds: tuple[float, ...]
    answers: tuple[float, ...] = ()
    plans: tuple[str, ...] = ()
    pauses_s: tuple[float, ...] = ()
    memory_bytes: int = 0
    decisions: tuple[str, ...] = ()

    def delays_ms(self) -> F64:
        """Return (epochs,) the time from the end of each epoch until its results, if events come as fast as they are
        dated: what is not done before the next epoch ends, that one waits for."""
        found, behind_s = np.zeros(len(self.seconds)), 0.0
        for number, (answer_s, whole_s) in enumerate(zip(self.answers, self.seconds, strict=True)):
            found[number] = (behind_s + answer_s) * 1000
            behind_s = max(behind_s + whole_s - EPOCH_MS / 1000, 0.0)
        return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of one scenario.

    Attributes:
        tracks: by the contender's name; those of static plans by their text.
        static: the names of the static plans.
        first: epochs before what is compared.
        swaps: epochs at which a phase began, from the second phase on.
        phases: by epoch.
        window_ms: the length of all windows.
    """

    scenario: Scenario
    tracks: dict[str, Track]
    static: tuple[str, ...]
    first: int
    swaps: list[int]
    phases: list[Phase]
    window_ms: int

    def total(self, name: str, begin: int | None = None, end: int | None = None) -> float:
        """Return the processor seconds of a contender between two epochs."""
        return sum(self.tracks[name].seconds[self.first if begin is None else begin : end])

    def clairvoyant_epochs(self) -> list[float]:
        """Return the seconds, from epoch `first` on, of the best static plan of each phase, changed for free."""
        bounds = [self.first, *self.swaps, len(self.tracks["adapt"].seconds)]
        found: list[float] = []
        for begin, end in pairwise(bounds):
            best = min(self.static, key=lambda name: self.total(name, begin, end))
            found += self.tracks[best].seconds[begin:end]
        return found

    def clairvoyant(self) -> float:
        """Return the seconds of the best static plan of each phase, changed for free."""
        return sum(self.clairvoyant_epochs())

    def regret_s(self, name: str) -> F64:
        """Return what a contender has taken beyond the clairvoyant, from epoch `first` on, added up by epoch."""
        own = np.array(self.tracks[name].seconds[self.first :])
        return np.asarray(np.cumsum(own - np.array(self.clairvoyant_epochs())))

    def until_right(self) -> list[float]:
        """Return the milliseconds from each swap until the plan is within 5% of the phase's best, by their own times.

        Where not all static plans run, that of `adapt` in the phase's second half need not be among them.
        """
        adapt = self.tracks["adapt"]
        bounds = [*self.swaps, len(adapt.seconds)]
        found = []
        for begin, end in pairwise(bounds):
            later = begin + (end - begin) // 2
            costs = {name: self.total(name, later, end) for name in self.static}
            if len(own := set(adapt.plans[later:end])) == 1:
                costs[own.pop()] = self.total("adapt", later, end)
            least = min(costs[name] for name in self.static)
            right = {name for name, seconds in costs.items() if seconds <= 1.05 * least}
            reached = next((e for e in range(begin, end) if same_in(adapt.plans[e], right)), end)
            found.append((reached - begin) * EPOCH_MS)
        return found


def same_in(plan: str, names: set[str]) -> bool:
    """Return whether a plan makes the sub-plans of one of some plans, whichever inputs are left."""
    return shape_of(plan) in {shape_of(name) for name in names}


def shape_of(plan: str) -> frozenset[frozenset[str]]:
    """Return the sets of one-letter aliases that a plan joins."""
    found, stack = set(), []
    for letter in plan:
        if letter == "(":
            stack.append(set[str]())
        elif letter == ")":
            done = frozenset(stack.pop())
            found.add(done)
            if stack:
                stack[-1] |= done
        elif letter != " " and stack:
            stack[-1].add(letter)
    return frozenset(found)
