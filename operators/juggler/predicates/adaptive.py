"""When a visit's order of predicate types is looked at again, and when it changes (Juggler 3.4.2, 6.1.1).

A sample says what every order would cost (`operators.juggler.routing.sampling`), and costs itself. So one is taken
when the work done since the last is many times that, and more rarely the more samples have changed nothing. It is
taken at once
when tuples are about to look at many more entries than those before them: then the order in force has just become a bad
one, and no tuple need pay for it; and soon when types let through another share than since the last sample. Work is
counted, not timed: the same input gives the same samples, and the same orders.

An order is taken when it costs clearly less in two samples in a row, or far less in one. Nothing is rebuilt: all
structures are kept in any order.

Attributes of new tuples are evaluated as they are entered where that spares more than it costs: what satisfies nobody
is not kept then, and later ones do not find it. Else they are evaluated where a visit's order says.
"""

from __future__ import annotations

from dataclasses import dataclass

from operators.juggler.predicates.order import (
    EVALUATED_NS,
    FAR_LESS,
    LOOKED_NS,
    PAIRED_NS,
    PIECE_NS,
    Observed,
    Work,
    best_order,
    expected_costs,
    folded,
)

SAMPLE_NS = 1_000_000.0
"""What a sample costs."""
FIRST_WORK = 5.0
"""The first sample is taken after so many times its cost was spent."""
WORK_BETWEEN = 50.0
"""The next after so many times: a fiftieth goes into samples."""
MOST_PATIENCE = 16.0
"""Every sample that finds the order in force to be the best one doubles that, up to so many times as long: what changes
in between is seen by what tuples look at and what is let through."""
CONFIRMING_WORK = 5.0
"""After so many times where another order has been proposed, or the work has shifted."""
SURGE = 2.0
"""Tuples that look at so many times the entries of those before them are a reason to look again."""
BURST = 4.0
"""So are flights that look at so many times the entries of those before, all their tuples together."""
SHIFTED = 1.5
"""What is let through has shifted when it is so many times as much, or as little, twice in a row: candidates of one
tuple are alike, so once is no wonder."""
FAR_SHIFTED = 4.0
"""When it is so many times as much, or as little, once is enough."""
ENOUGH_TUPLES = 64
"""Fewer say nothing of that: more are waited for."""


@dataclass(slots=True)
class Flow:
    """Tuples that came to a type and were left of it."""

    before: int = 0
    after: int = 0

    @property
    def share(self) -> float:
        """What is left."""
        return (self.after + 0.5) / (self.before + 0.5)

    def add(self, before: int, after: int) -> None:
        """And so many others."""
        self.before += before
        self.after += after

    def far_from(self, usual: Flow, times: float) -> bool:
        """Whether so many times the usual share was left, or as little of it, and not by chance."""
        expected = usual.share * self.before
        by_chance = abs(self.after - expected) <= 4 * (expected + 4) ** 0.5
        return not (by_chance or 1 / times < self.share / usual.share < times)


class AdaptiveOrder:
    """A visit's order and what is known for it.

    Attributes:
        order: in force; changed: how often it has changed.
        costs: expected of every order; empty before the first sample.
        work: done so far.
    """

    def __init__(self, order: str) -> None:
        self.order = order
        self.changed = 0
        self.costs: dict[str, float] = {}
        self._proposed: str | None = None
        self._patience = 0.5
        self.work = Work()
        self._sampled_at = self._taken_at = 0.0
        self._entries: float | None = None
        self._together: float | None = None
        self._flows: dict[str, Flow] = {}
        self._usual: dict[str, Flow] = {}
        self._odd: set[str] = set()
        self._shifted = False

    def asks(self, tuples: int, pieces: int, entries: int) -> bool:
        """Whether a sample is to be taken before so many tuples look at so many entries of structures' pieces."""
        ahead = pieces * PIECE_NS + entries * (LOOKED_NS + PAIRED_NS)
        if not self.costs:
            return self.work.ns() + ahead > FIRST_WORK * SAMPLE_NS
        usual = min(SURGE * (self._entries or 0.0) * tuples, BURST * (self._together or 0.0))
        if entries > usual and (entries - usual) * (LOOKED_NS + PAIRED_NS) > SAMPLE_NS:
            self._shifted = True
            return True
        wait = CONFIRMING_WORK if self._proposed or self._shifted else WORK_BETWEEN * self._patience
        return self.work.ns() - self._sampled_at > wait * SAMPLE_NS

    def learn(self, seen: Observed) -> None:
        """Decide by a sample."""
        newest = expected_costs(seen)
        # What was seen before a shift is of no use after it.
        self.costs = newest if self._shifted else folded(self.costs, newest)
        self._sampled_at, self._shifted = self.work.ns(), False
        self._flows, self._usual, self._odd = {}, {}, set()
        best = best_order(self.order, self.costs)
        self._patience = min(2 * self._patience, MOST_PATIENCE) if best == self.order else 1.0
        if best == self.order:
            self._proposed = None
        elif best == self._proposed or self.costs[best] < FAR_LESS * self.costs[self.order]:
            self.order, self._proposed = best, None
            self.changed += 1
            self._entries = self._together = None
        else:
            self._proposed = best

    def looked(self, tuples: int, pieces: int, entries: int, candidates: int) -> None:
        """So many tuples have looked at so many entries of structures' pieces, and got so many candidates."""
        if tuples:
            each = entries / tuples
            self._entries = each if self._entries is None else (self._entries + each) / 2
            self._together = entries if self._together is None else (self._together + entries) / 2
        self.work.pieces += pieces
        self.work.looked += entries
        self.work.paired += candidates

    def passed(self, kind: str, before: int, after: int) -> None:
        """So many tuples came to a type, so many were left."""
        self.work.evaluated += before
        self.work.kept += after
        flow = self._flows.setdefault(kind, Flow())
        flow.add(before, after)
        if flow.before < ENOUGH_TUPLES:
            return
        self._flows[kind] = Flow()
        usual = self._usual.setdefault(kind, Flow())
        if usual.before and flow.far_from(usual, SHIFTED):
            self._shifted |= kind in self._odd or flow.far_from(usual, FAR_SHIFTED)
            self._odd.add(kind)
        else:
            usual.add(flow.before, flow.after)
            self._odd.discard(kind)

    def taken(self) -> float:
        """Nanoseconds of work since this was last asked."""
        before, self._taken_at = self._taken_at, self.work.ns()
        return self._taken_at - before


CLEARLY_MORE = 1.5
"""What evaluating attributes at once spares must be so many times what it costs, or so little, to change that."""
NOW_AND_THEN_TUPLES = 1_024
"""New tuples after which it is looked at again."""


class AdaptiveEntry:
    """Whether an input's attributes are evaluated as its tuples are entered.

    Attributes:
        at_once: whether they are.
    """

    def __init__(self, predicates: int, at_once: bool) -> None:
        self.at_once = at_once
        self._predicates = predicates
        self._tuples = 0
        self._flow = Flow()
        self._work = 0.0

    def asks(self, tuples: int) -> bool:
        """Whether to try some of so many new tuples although they need not be evaluated."""
        return not self.at_once and self._tuples + tuples >= NOW_AND_THEN_TUPLES

    def passed(self, before: int, after: int) -> None:
        """So many queries of tuples were asked for, so many were left of them by their attributes."""
        self._flow.add(before, after)

    def end(self, tuples: int, work_ns: float) -> None:
        """So many new tuples; with them, and with earlier ones found by others, so much work was done by visits."""
        self._tuples += tuples
        self._work += work_ns
        if self._tuples < NOW_AND_THEN_TUPLES or not self._flow.before:
            return
        left = self._flow.share
        # Of the work without what is refused, where it was refused at once; of all work else.
        refused = (1 - left) / left if self.at_once else 1 - left
        spared = refused * self._work / self._tuples
        cost = self._predicates * EVALUATED_NS
        if spared > CLEARLY_MORE * cost:
            self.at_once = True
        elif CLEARLY_MORE * spared < cost:
            self.at_once = False
        self._tuples, self._work, self._flow = 0, 0.0, Flow()

