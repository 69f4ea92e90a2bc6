"""When a guard over SteMs watches: feedback that costs more than it saves turns itself down.

All is counted in units of work, about nanoseconds, from counters alone: the same input gives the same decisions.

A guard that rests costs nothing. Now and then it gets a trial, unless a glance at the newest tuples of both streams
says that most have partners: the observed stream's filter is made and a few of the guarded stream's tuples are looked
up in it, the newest, to see how many it would keep back, and the oldest, to see how many of those no partner would ever
bring back. If that promises to pay, it watches. From then on it has an account: it earns what the tuples that it keeps
back would have cost, pays for looking, sweeping and letting tuples in late, and rests again when a stake that it began
with is spent. Trials and stakes are paid from a purse that gets a small share of all the work that the executor does:
that share is what feedback may lose. One guard after the other is tried as the purse allows, so one that begins to pay
when the data change is found out, within some windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from operators.state.match import MatchCounters

LOSS_SHARE = 0.01
"""The share of the executor's work that goes into the purse."""

BOOKED_TUPLES = 4096
"""Accounts are settled after so many tuples."""

SAMPLED_TUPLES = 256
"""Newest and oldest tuples that a trial looks up."""

MARGIN = 0.5
"""A guard watches when what it would earn exceeds what it would pay by this share of the latter."""

PURSE = 3e6
"""What is in the purse at first."""

STAKE = 2.0
"""What a guard may lose before it rests again, in trials."""

ENTERED = 30.0
"""Entering a tuple into a state, or probing one with it."""

MADE = 100.0
"""Making a partial result and going on with it."""

COMPARED = 1.0
"""A comparison."""

CHECKED = 20.0
"""Computing a signature and looking it up, or adding it."""

CALLED = 25_000.0
"""What a guard costs per slice, however few its tuples."""

SCREENED_TUPLES = 2048
"""Newest tuples of the observed stream that are looked at before a trial."""

PARTNERED_AT_MOST = 0.5
"""No trial where a larger share of the newest tuples has partners among those."""

SCREENED = 75_000.0
"""What it costs to look at them."""

TRIED = 100_000.0
"""What a trial costs, however few the tuples."""

MERGED = 30.0
"""Putting a result in order while tuples that were let in late are among those of a stream."""

ROUTED = 100.0
"""An eddy's decision where to send a tuple."""

SWEPT = 8.0
"""Looking at an entry to make a filter anew."""

KEPT = 150.0
"""Listing a tuple in a blacklist."""

RETURNED = 300.0
"""Letting a tuple in late, beside entering it into its states."""

FADING = 0.8
"""What the past counts for against the latest booking, where tuples' costs are averaged."""


def work_of(counters: MatchCounters, probing: float) -> float:
    """What a half join has cost so far, at so much per tuple that probed."""
    return counters.input_tuples * probing + counters.comparisons * COMPARED + counters.results * MADE


@dataclass(slots=True)
class Burden:
    """What a tuple costs that is not kept back, averaged over the past, which fades.

    Attributes:
        states: how many states it is entered into.
        probing: what it costs to probe one.
        own: of the way that it goes before it comes to the observed stream.
        met: of being found by others on ways that have not come there yet, all its life.
        latest_met: how often tuples were found so of late.
    """

    states: int
    probing: float
    own: float = 0.0
    met: float = 0.0
    latest_met: int = 0
    _sums: tuple[float, float, float] = (0.0, 0.0, 0.0)
    _before: tuple[int, int, int, int] = (0, 0, 0, 0)

    def update(self, counted: tuple[int, int, int], tuples: int) -> None:
        """Take in what has been counted so far (`MJoin.burden`), and the tuples entered so far."""
        probes, found, met, entered = (now - then for now, then in zip((*counted, tuples), self._before, strict=True))
        self._before = *counted, tuples
        self.latest_met = met
        latest = probes * self.probing + found * MADE, met * MADE, float(entered)
        own, meeting, count = (FADING * past + one for past, one in zip(self._sums, latest, strict=True))
        self._sums = own, meeting, count
        if count > 0:
            self.own, self.met = own / count, meeting / count

    @property
    def saved(self) -> float:
        """What it saves to keep a tuple back for good."""
        return self.states * ENTERED + self.own + self.met - KEPT

    @property
    def returned(self) -> float:
        """What it costs to let a tuple in that was kept back: it is entered after all, and met as long as it lives."""
        return RETURNED + self.states * ENTERED + self.met / 2


class Cost(Protocol):
    """What a tuple costs in an executor: `Burden` in those without intermediate results, else `TreeBurden`."""

    @property
    def saved(self) -> float:
        """What it saves to keep a tuple back for good."""
        ...

    @property
    def returned(self) -> float:
        """What it costs to let a tuple in that was kept back."""
        ...


@dataclass(frozen=True, slots=True)
class Trial:
    """What a trial has seen.

    Attributes:
        useless: the share of the newest tuples that have no partner.
        lasting: the share of the oldest, which have almost lived, that have none.
        spent: what watching would cost per tuple of the guarded stream, in all.
    """

    useless: float
    lasting: float
    spent: float

    def gain(self, burden: Cost) -> float:
        """What watching would gain per tuple of the guarded stream, if those without a partner at the end had none in
        the beginning; negative if it would not pay."""
        brought_back = max(self.useless - self.lasting, 0.0)
        return self.useless * burden.saved - brought_back * burden.returned - self.spent

    def promises(self, burden: Cost) -> bool:
        """Whether watching would pay."""
        return self.gain(burden) > MARGIN * self.spent


def trial_cost(observed: int, each: float = SWEPT) -> float:
    """Of a trial with so many living observed tuples."""
    return observed * each + 2 * SAMPLED_TUPLES * CHECKED + TRIED


@dataclass(slots=True)
class Account:
    """A guard's account.

    Attributes:
        watching: whether the guard does.
        credit: what it may still lose.
    """

    watching: bool = False
    credit: float = 0.0
    _stake: float = 0.0

    def begin(self, stake: float) -> None:
        """Watch, with a stake."""
        self.watching, self.credit, self._stake = True, stake, stake

    @property
    def lost(self) -> float:
        """What has been lost of the stake, and beyond it."""
        return self._stake - self.credit

    def book(self, earned: float, spent: float, owed: float) -> bool:
        """Settle; False when the guard should rest from now on. Of what it has earned it keeps the stake, and what it
        would cost to let in all that is kept back."""
        self.credit = min(self.credit + earned - spent, self._stake + owed)
        self.watching = self.credit >= 0.0
        return self.watching
