"""`Autopilot` finds a better plan for a running engine, weighs the change, makes it, and checks what came of it.

The caller calls `observe` after each epoch. What measuring and plans cost is counted in the unit costs of
`operators.migration.sizes`, corrected by the engine's clock where it has one. Without one, what is decided depends on
the tuples and on when `observe` is called alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from operators.autopilot.adaptation import Adaptation, Effect
from operators.autopilot.changes import Changes, EngineChanges
from operators.autopilot.evidence import together
from operators.autopilot.pace import RECENT
from operators.autopilot.rule import (
    Account,
    Prices,
    Terms,
    accrue,
    charged,
    is_better,
    noticed,
    paid,
    pays_after_s,
    settled,
    verdict,
)
from operators.autopilot.search import PlanPrices, cheapest_plan, squared_error
from operators.autopilot.survey import Survey, Surveyed
from operators.engine.engine import Engine, Work
from operators.migration.advise import Advice, Goal, advise
from operators.migration.schedule import MigrationRecord
from operators.migration.sizes import MAKE_S
from operators.migration.strategies import strategy_of
from operators.plan.plan import Plan

Mode = Literal["on", "advise"]

_NOBODY: list[Surveyed] = []


def _nobody() -> list[Surveyed] | None:
    return _NOBODY


KEPT = 1_000
"""Decisions that are kept; the oldest go first."""

PIECE_S = 0.05
"""Pieces with less work, in seconds of one core, are not worth a look between: each is a further call of the joins."""

SETTLED_WINDOWS = 1.0
"""How long after the end of a change its outcome is measured, in windows; sooner if the next change comes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What changes may do, and by what they are decided.

    Attributes:
        goal: what the choice of a strategy minimizes, and the limits of its silence and its extra tuples.
        terms: when a change pays.
    """

    goal: Goal = field(default_factory=Goal)
    terms: Terms = field(default_factory=Terms)


@dataclass(frozen=True, slots=True)
class History:
    """What an earlier autopilot of the same query has left.

    Attributes:
        decisions: by number.
        account: after the last of them.
        first: the plan with which the query began.
    """

    decisions: Mapping[int, Adaptation]
    account: Account
    first: Plan


@dataclass(slots=True)
class _Pending:
    """A change that has been asked for, whose outcome is not known yet.

    Attributes:
        number: of the decision.
        at: event time of the decision.
        cost_s: what it has been predicted to cost, without measurements.
        without_s: seconds per tuple that the plan before it was expected to take.
        ended: the counters when it had ended.
    """

    number: int
    change: str
    plan: Plan
    at: int
    cost_s: float
    without_s: float
    ended: Work | None = None


class Autopilot:
    """Adapts the plan of one engine.

    Args:
        engine: a tree of binary joins (`why_not`).
        mode: `advise` decides and records, and changes nothing.
        changes: makes the changes; None to ask the engine itself.
        history: where to continue; None at the start of a query.
        others: returns what the query's other tasks, whose plan changes with this one's, have measured; None while that
            is not known. The same list as before says that nothing is new.
        look_always: measure at every call, however much that costs; for tests.

    Attributes:
        decisions: the latest ones by number, oldest first. One that was not made is replaced by the next one about the
            same change, and one whose outcome becomes known by itself with the outcome.
        account: what has been lost and spent so far.
        first: the plan with which the query began.
    """

    def __init__(
        self,
        engine: Engine,
        limits: Limits | None = None,
        *,
        mode: Mode = "on",
        changes: Changes | None = None,
        history: History | None = None,
        others: Callable[[], list[Surveyed] | None] = _nobody,
        look_always: bool = False,
    ) -> None:
        history = history or History({}, Account(), engine.plan)
        self.decisions: dict[int, Adaptation] = dict(history.decisions)
        self.account = history.account
        self.first = history.first
        self._engine = engine
        self._limits = limits or Limits()
        self._mode = mode
        self._changes = changes or EngineChanges(engine)
        self._others = others
        self._survey = Survey(engine, always=look_always)
        self._window_ms = self._survey.window_ms
        self._weighed: list[Surveyed] = []
        self._prices: Prices | None = None
        self._is_expected = False
        self._best = self._running = engine.plan
        self._advice: Advice | None = None
        self._told: tuple[bool, bool] | None = None
        self._weighed_s = 0.0
        self._at: int | None = None
        self._arrived = 0
        self._until: int | None = None
        self._pays_at: int | None = None
        self._heard: list[Surveyed] | None = _NOBODY
        self._pending: _Pending | None = None
        self._quiet_s = 0.0

    @property
    def adaptations(self) -> list[Adaptation]:
        """The decisions, oldest first."""
        return list(self.decisions.values())

    @property
    def found(self) -> Surveyed | None:
        """The last measurement of this engine; None before the first."""
        return self._survey.found

    def looks(self, span_ms: int, tuples: int) -> int:
        """Return into how many pieces to divide the processing of some tuples, so that looks between are worth it.

        Args:
            span_ms: their event time.
        """
        survey = self._survey
        least = 1 if self._pending is None else span_ms // self._window_ms
        return max(1, least, min(span_ms // survey.apart_ms, int(tuples * survey.tuple_s / PIECE_S)))

    def observe(self) -> None:
        """Look at the engine, if it is time; measure, if that is worth it; change the plan, if that pays."""
        if self._engine.busy_s < self._quiet_s and (self._others is _nobody or self._others() is self._heard):
            return
        self._observe()
        waits = self._pending is not None or self._until is not None or self._pays_at is not None
        self._quiet_s = 0.0 if waits else self._survey.quiet_s

    def _observe(self) -> None:
        engine, others = self._engine, self._others()
        work = self._survey.look(awaited=self._pending is not None)
        due = self._is_reached(self._until) or self._is_reached(self._pays_at)
        if work is None and others is self._heard and not due:
            return
        work, self._heard = work or engine.work, others
        changing = self._is_changing()
        if self._prices is not None and not changing and engine.plan != self._running:
            # Somebody else has changed the plan.
            self._prices = self._advice = None
            self._survey.changed()
        if self._prices is not None and self._at is not None:
            self.account = accrue(self.account, self._prices, self._passed_s(work), self._limits.terms)
        self._at, self._arrived = work.cut, sum(work.selected)
        self._settle(work)
        if changing:
            return
        measured, own = self._survey.measure(), self._survey.found
        if own is None or others is None:
            return
        if measured or not _same([own, *others], self._weighed):
            changed_s = self._survey.changed_ms / 1000 if measured else 0.0
            self._weigh([own, *others], changed_s)
            if measured and self._prices is not None:
                # What was seen longer ago was not worth a measurement.
                recently_s = min(changed_s, self._window_ms / 1000)
                self.account = noticed(self.account, self._prices, self._survey.lost_s, recently_s, self._limits.terms)
        if self._knows_all(own, others, measured=measured):
            self._decide()

    def _is_reached(self, until: int | None) -> bool:
        """Return whether an event time has come since the last call."""
        return until is not None and self._at is not None and self._at < until <= self._engine.cut

    def _passed_s(self, work: Work) -> float:
        """Return the event time since the last call, at the measured rates: in a pause of the input none passes."""
        rate = sum(one.rate for one in self._weighed[0].evidence.arrivals.values())
        return (sum(work.selected) - self._arrived) / rate

    def _knows_all(self, own: Surveyed, others: list[Surveyed], *, measured: bool) -> bool:
        """Return whether what the other tasks have measured is as recent as this task's measurement, or a window has
        passed in which they could have noticed that their data have changed, too."""
        cut = self._engine.cut
        if all(one.at >= own.at - self._window_ms // RECENT for one in others):
            self._until = None
            return True
        if self._until is None or (measured and cut - self._until >= self._window_ms):
            self._until = cut + self._window_ms
        return cut >= self._until

    def _is_changing(self) -> bool:
        """Return whether a change is under way that another one may not overlap."""
        if self._changes.busy:
            return True
        open_ones = [record for record in self._engine.migrations if record.open]
        return any(r.began_at is None or not strategy_of(r.strategy).overlaps for r in open_ones)

    def _weigh(self, known: list[Surveyed], changed_s: float) -> None:
        """Find the best plan for all tasks together.

        Args:
            known: what they have measured, this one first.
            changed_s: how long this task's work has been seen to differ; 0 where another task has measured.
        """
        before, self._weighed, self._running = self._prices, known, self._engine.plan
        since_s, self._weighed_s = self._weighed_s, self._survey.done_s
        self._best = best_for_all(known, self._engine.plan)
        self._prices = priced(known, self._engine.plan, self._best, self.first, self._limits.terms)
        if before is not None:
            # What was expected of a change may never have been true.
            expected = self._is_expected and changed_s > 0
            took_s = self._survey.changed_s if changed_s > 0 and not expected else self._survey.done_s - since_s
            # Other tasks have about as much work for as many tuples.
            rates = [sum(arrivals.rate for arrivals in one.evidence.arrivals.values()) for one in known]
            took_s *= sum(rates) / rates[0]
            self.account = settled(self.account, before, self._prices, math.inf if expected else changed_s, took_s)
        self._is_expected = False
        self._advice = self._advise() if is_better(self._prices, self._limits.terms) else None
        self._told = None

    def _advise(self) -> Advice:
        """Choose a strategy for the change of all tasks to the best plan, and predict its cost."""
        engine = self._engine
        return advise(
            engine.query,
            engine.plan,
            self._best,
            [engine.statistics(links=True), *(one.statistics for one in self._weighed[1:] if one.statistics)],
            executor=engine.executor,
            goal=self._limits.goal,
            load=engine.load,
            running=next((record.strategy for record in engine.migrations if record.open), None),
        )

    def _decide(self) -> None:
        """Change to the best plan if that has paid; keep one record of it, and another if it changes."""
        prices, advice, terms = self._prices, self._advice, self._limits.terms
        self._pays_at = None
        if prices is None or advice is None or not is_better(prices, terms):
            return
        cost_s = self._cost_s(advice)
        found = verdict(self.account, prices, cost_s, terms)
        reason, made = found.reason, found.change
        if not made:
            self._pays_at = self._engine.cut + math.ceil(1000 * pays_after_s(self.account, prices, cost_s, terms))
        if made and advice.exceeds:
            reason, made = f"{advice.strategy}: {advice.reason}", False
        if made and self._mode == "advise":
            reason, made = f"advised, not made: {reason}", False
        if made or self._told != (found.change, found.limited):
            self._told = found.change, found.limited
            number = self._record(advice, prices, reason)
            if made:
                self._make(number, advice, prices)

    def _cost_s(self, advice: Advice) -> float:
        """Return what a change takes, with the measurement that led to it and the one that follows it."""
        return advice.predicted.work_s + 2 * self._survey.measure_s

    def _make(self, number: int, advice: Advice, prices: Prices) -> None:
        """Ask for the change to the best plan."""
        engine, best, cost_s = self._engine, self._best, self._cost_s(advice)
        self._settle(engine.work, at_once=True)
        change = self._changes.ask(best, advice.strategy, self._limits.goal)
        own = self._weighed[0]
        without_s = float(PlanPrices([engine.plan]).of(own.evidence)[0]) + own.calls_s
        without_s /= sum(one.rate for one in own.evidence.arrivals.values())
        self._pending = _Pending(number, change, best, engine.cut, advice.predicted.work_s, without_s)
        self.decisions[number] = replace(self.decisions[number], made=True, change=change)
        self.account = paid(settled(self.account, prices, prices, 0.0), cost_s)
        self._survey.changed()
        # What is expected of the new plan; the next measurement shows what came of it.
        self._prices, self._is_expected = Prices(prices.best, prices.best, prices.first), True
        self._advice, self._running = None, best

    def withdraw(self, change: str, reason: str) -> None:
        """Note that a change that was asked for is not made: all stays as it was."""
        if self._pending is not None and self._pending.change == change:
            self.account = charged(self.account, -self._pending.cost_s)
            self._pending = self._prices = None
        for number, decision in self.decisions.items():
            if decision.change == change:
                self.decisions[number] = replace(decision, made=False, change="", reason=reason)

    def _record(self, advice: Advice, prices: Prices, reason: str) -> int:
        """Keep the decision, and return its number."""
        engine, evidence = self._engine, self._weighed[0].evidence
        saving = (prices.running - prices.best) / prices.running
        predicted = Effect(saving, advice.predicted.work_s, advice.predicted.silence_s)
        known = {alias: (one.rate, math.exp(math.sqrt(one.variance))) for alias, one in evidence.arrivals.items()}
        for shares in (evidence.pairs, evidence.joint):
            for aliases, share in shares.items():
                known[evidence.name(aliases)] = math.exp(share.log), math.exp(math.sqrt(share.variance))
        found = Adaptation(
            engine.cut, False, str(engine.plan), str(self._best), advice.strategy, reason, known, predicted
        )
        number, last = next(reversed(self.decisions.items()), (0, None))
        if last is None or last.made or (last.from_plan, last.to_plan) != (found.from_plan, found.to_plan):
            number += 1
        self.decisions[number] = found
        if len(self.decisions) > KEPT:
            del self.decisions[next(iter(self.decisions))]
        return number

    def _settle(self, now: Work, *, at_once: bool = False) -> None:
        """Find out what came of the last change, once it is over and windows hold what came since.

        What the plan before would have taken meanwhile is what it was expected to: data have changed, so what it took
        before says nothing.
        """
        pending = self._pending
        record = None if pending is None else self._migration(pending)
        if pending is None or record is None or record.finished_at is None:
            return
        if pending.ended is None:
            pending.ended = now
            return
        if now.cut - pending.ended.cut < SETTLED_WINDOWS * self._window_ms and not at_once:
            return
        self._pending = None
        decision = self.decisions.get(pending.number)
        tuples, busy_s = now.tuples - pending.ended.tuples, now.busy_s - pending.ended.busy_s
        if tuples <= 0 or busy_s <= 0 or decision is None:
            return
        cost_s = record.comparisons * MAKE_S
        if self._engine.spills:
            # What was spilled has been read back and rebuilt before the change began, which it does not count.
            cost_s = max(cost_s, record.longest_silence_s)
        measured = Effect(1 - busy_s / tuples / pending.without_s, cost_s, record.longest_silence_s)
        self.decisions[pending.number] = replace(decision, strategy=record.strategy, measured=measured)
        self.account = charged(self.account, measured.cost - pending.cost_s)

    def _migration(self, pending: _Pending) -> MigrationRecord | None:
        """The engine's record of a change; None while it does not know of it."""
        found = (r for r in reversed(self._engine.migrations) if r.cut >= pending.at and r.plan == pending.plan)
        return next(found, None)


def best_for_all(known: Sequence[Surveyed], running: Plan) -> Plan:
    """Return the cheapest for all tasks together of the running plan, what is best for one of them, and what would be
    best if one task had all data."""
    best = [one.best for one in known]
    if len(known) > 1:
        best.append(cheapest_plan(together([one.evidence for one in known]), running))
    plans = [running, *best]
    prices = PlanPrices(plans)
    return plans[int(np.argmin(np.sum([prices.of(one.evidence) for one in known], axis=0)))]


def priced(known: Sequence[Surveyed], running: Plan, best: Plan, first: Plan, terms: Terms) -> Prices:
    """Return what three plans cost all tasks together, with the error if the best one seems better."""
    plans = PlanPrices([running, best, first])
    # The fixed costs of calls are the same for every plan, and part of what a saving is a share of.
    each = np.array([plans.of(one.evidence) + one.calls_s for one in known])
    total = each.sum(axis=0)
    prices, error = Prices(*total.tolist()), 0.0
    if is_better(prices, terms):
        for one, own in zip(known, each, strict=True):
            error += squared_error(plans, one.evidence, total - own + one.calls_s)
    return replace(prices, error=math.sqrt(error))


def _same(a: list[Surveyed], b: list[Surveyed]) -> bool:
    return len(a) == len(b) and all(one is other for one, other in zip(a, b, strict=True))


def why_not(engine: Engine) -> str:
    """Return why the plan of an engine is not adapted; empty if it is."""
    if len(engine.query.sources) < 3:
        return "a join of two inputs has one plan"
    if engine.executor != "xjoin":
        return f"{engine.executor} keeps no tree of joins"
    return ""
