"""Decides when a visit samples the costs of its orders of predicate types, and when its order changes (3.4.2, 6.1.1).

`operators.juggler.operator` has one `AdaptiveOrder` per visit and one `AdaptiveEntry` per input. A sample estimates the
cost of every order (`operators.juggler.routing.sampling`), and itself costs time. So a visit takes a sample when the
work since the last one is many times that cost, and less often the more samples have changed nothing. It takes one at
once when tuples are about to examine many more entries than the tuples before them: the order in force has just become
bad, and no tuple need suffer from it. It takes one soon when types pass another share than since the last sample. Work
is counted, not timed, so the same input produces the same samples and the same orders.

A visit changes its order when another one costs clearly less in two samples in a row, or far less in one. Nothing is
rebuilt, since all structures exist under any order.

An input evaluates the attribute predicates of new tuples on entry where that saves more than it costs: tuples that
satisfy no query are then not stored, and later tuples do not find them. Otherwise a visit's order determines when they
are evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass

from operators.juggler.predicates.order import (
    EVALUATED_NS,
    FAR_LESS,
    LOOKED_NS,
    PAIRED_NS,
    PIECE_NS,
    VisitSample,
    VisitWork,
    best_order,
    expected_costs,
    smoothed,
)

SAMPLE_NS = 1_000_000.0
"""The estimated cost of a sample."""
FIRST_WORK = 5.0
"""A visit takes its first sample after this many times the cost of a sample."""
WORK_BETWEEN = 50.0
"""It takes the next one after this many times the cost, so samples take a fiftieth of the time."""
MOST_PATIENCE = 16.0
"""Every sample that confirms the order in force doubles that interval, up to this factor. Changes in between show in
the entries that tuples examine and in the shares that types pass."""
CONFIRMING_WORK = 5.0
"""The interval, in costs of a sample, after a sample has proposed another order or the work has shifted."""
SURGE = 2.0
"""A visit samples again when tuples each examine this many times the entries of the tuples before them."""
BURST = 4.0
"""It also does when a batch of tuples examines this many times the entries of the batches before."""
SHIFTED = 1.5
"""The share that passes a type has shifted when it is larger or smaller by this factor twice in a row. Once may be
chance, since candidates of one tuple are alike."""
FAR_SHIFTED = 4.0
"""If it is larger or smaller by this factor, once is enough."""
ENOUGH_TUPLES = 64
"""The least number of tuples from which to judge that share."""


@dataclass(slots=True)
class Selectivity:
    """Counts the tuples that arrived at a predicate type and those that passed it."""

    before: int = 0
    after: int = 0

    @property
    def share(self) -> float:
        """The share of tuples that passed."""
        return (self.after + 0.5) / (self.before + 0.5)

    def add(self, before: int, after: int) -> None:
        """Add further tuples."""
        self.before += before
        self.after += after

    def far_from(self, usual: Selectivity, times: float) -> bool:
        """Whether the share differs from the usual one by this factor, and not by chance."""
        expected = usual.share * self.before
        by_chance = abs(self.after - expected) <= 4 * (expected + 4) ** 0.5
        return not (by_chance or 1 / times < self.share / usual.share < times)


class AdaptiveOrder:
    """A visit's order of predicate types, and the estimates for it.

    Attributes:
        order: the order in force.
        changed: how often it has changed.
        costs: the expected cost of every order; empty before the first sample.
        work: the visit's work so far.
    """

    def __init__(self, order: str) -> None:
        self.order = order
        self.changed = 0
        self.costs: dict[str, float] = {}
        self._proposed: str | None = None
        self._patience = 0.5
        self.work = VisitWork()
        self._sampled_at = self._reported_at = 0.0
        self._entries_per_tuple: float | None = None
        self._entries_per_batch: float | None = None
        self._flows: dict[str, Selectivity] = {}
        self._usual: dict[str, Selectivity] = {}
        self._deviating: set[str] = set()
        self._shifted = False

    def wants_sample(self, tuples: int, pieces: int, entries: int) -> bool:
        """Whether to take a sample before the next tuples examine their entries.

        Args:
            tuples: the number of tuples in the batch.
            pieces: the pieces of structures that they will examine.
            entries: the entries of these pieces that they will examine.
        """
        ahead = pieces * PIECE_NS + entries * (LOOKED_NS + PAIRED_NS)
        if not self.costs:
            return self.work.ns() + ahead > FIRST_WORK * SAMPLE_NS
        usual = min(SURGE * (self._entries_per_tuple or 0.0) * tuples, BURST * (self._entries_per_batch or 0.0))
        if entries > usual and (entries - usual) * (LOOKED_NS + PAIRED_NS) > SAMPLE_NS:
            self._shifted = True
            return True
        wait = CONFIRMING_WORK if self._proposed or self._shifted else WORK_BETWEEN * self._patience
        return self.work.ns() - self._sampled_at > wait * SAMPLE_NS

    def learn(self, seen: VisitSample) -> None:
        """Update the expected costs by a sample, and choose the order."""
        newest = expected_costs(seen)
        # Samples from before a shift say nothing about the work after it.
        self.costs = newest if self._shifted else smoothed(self.costs, newest)
        self._sampled_at, self._shifted = self.work.ns(), False
        self._flows, self._usual, self._deviating = {}, {}, set()
        best = best_order(self.order, self.costs)
        self._patience = min(2 * self._patience, MOST_PATIENCE) if best == self.order else 1.0
        if best == self.order:
            self._proposed = None
        elif best == self._proposed or self.costs[best] < FAR_LESS * self.costs[self.order]:
            self.order, self._proposed = best, None
            self.changed += 1
            self._entries_per_tuple = self._entries_per_batch = None
        else:
            self._proposed = best

    def looked(self, tuples: int, pieces: int, entries: int, candidates: int) -> None:
        """Count the work of tuples that have examined entries of structures' pieces and found candidates."""
        if tuples:
            each = entries / tuples
            self._entries_per_tuple = each if self._entries_per_tuple is None else (self._entries_per_tuple + each) / 2
            batch = self._entries_per_batch
            self._entries_per_batch = entries if batch is None else (batch + entries) / 2
        self.work.pieces += pieces
        self.work.looked += entries
        self.work.paired += candidates

    def passed(self, kind: str, before: int, after: int) -> None:
        """Count the tuples that arrived at a type and those that passed it."""
        self.work.evaluated += before
        self.work.kept += after
        flow = self._flows.setdefault(kind, Selectivity())
        flow.add(before, after)
        if flow.before < ENOUGH_TUPLES:
            return
        self._flows[kind] = Selectivity()
        usual = self._usual.setdefault(kind, Selectivity())
        if usual.before and flow.far_from(usual, SHIFTED):
            self._shifted |= kind in self._deviating or flow.far_from(usual, FAR_SHIFTED)
            self._deviating.add(kind)
        else:
            usual.add(flow.before, flow.after)
            self._deviating.discard(kind)

    def work_since_last(self) -> float:
        """Nanoseconds of work since the last call."""
        before, self._reported_at = self._reported_at, self.work.ns()
        return self._reported_at - before


CLEARLY_MORE = 1.5
"""An input changes its choice when evaluation on entry saves this many times what it costs, or the reverse."""
RECHECK_TUPLES = 1_024
"""An input reconsiders its choice after this many new tuples."""


class AdaptiveEntry:
    """Decides whether an input's attribute predicates are evaluated on entry of its tuples.

    Args:
        predicates: the number of the input's attribute lists.
        at_once: the first choice.

    Attributes:
        at_once: whether they are evaluated on entry.
    """

    def __init__(self, predicates: int, at_once: bool) -> None:
        self.at_once = at_once
        self._predicates = predicates
        self._tuples = 0
        self._flow = Selectivity()
        self._work = 0.0

    def wants_sample(self, tuples: int) -> bool:
        """Whether to evaluate a sample of this many new tuples, although they are not evaluated on entry."""
        return not self.at_once and self._tuples + tuples >= RECHECK_TUPLES

    def passed(self, before: int, after: int) -> None:
        """Count the queries of tuples before and after their attribute predicates were evaluated."""
        self._flow.add(before, after)

    def end(self, tuples: int, work_ns: float) -> None:
        """Count new tuples and the visits' work since the last call, and choose again if enough tuples arrived.

        Args:
            tuples: the number of new tuples of the input.
            work_ns: nanoseconds of visits from the input and to it.
        """
        self._tuples += tuples
        self._work += work_ns
        if self._tuples < RECHECK_TUPLES or not self._flow.before:
            return
        left = self._flow.share
        # The work saved per unit of measured work, which excludes refused tuples if `at_once` and includes them if not.
        refused = (1 - left) / left if self.at_once else 1 - left
        spared = refused * self._work / self._tuples
        cost = self._predicates * EVALUATED_NS
        if spared > CLEARLY_MORE * cost:
            self.at_once = True
        elif CLEARLY_MORE * spared < cost:
            self.at_once = False
        self._tuples, self._work, self._flow = 0, 0.0, Selectivity()

