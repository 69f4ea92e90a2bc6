"""`Autopilot` finds a better plan for a running engine, weighs the change, makes it, and checks what came of it.

The caller calls `observe` after each epoch. What it decides depends on the tuples and on when it is called, not on a
clock: what measuring and plans cost is counted in the unit costs of `operators.migration.sizes`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from operators.autopilot.adaptation import Adaptation, Effect
from operators.autopilot.changes import Changes, EngineChanges
from operators.autopilot.drift import Watch
from operators.autopilot.evidence import Evidence, measure, with_joint
from operators.autopilot.join_sample import JoinSample
from operators.autopilot.pace import MEASURE_ROW_S, MEASURE_S, Pace
from operators.autopilot.rule import Account, Prices, Terms, accrue, is_better, paid, verdict
from operators.autopilot.search import cheapest_plan, price, same_tree
from operators.data.tuples import FOREVER
from operators.engine.engine import Engine, Work
from operators.migration.advise import Advice, Goal, advise
from operators.migration.schedule import MigrationRecord
from operators.migration.sizes import CALL_S, ENTER_S, MAKE_S, PROBE_S, SCAN_S, SLICE_S
from operators.migration.strategies import strategy_of
from operators.plan.plan import Plan

Mode = Literal["on", "advise"]

SAMPLED_ROWS = 8_192
"""Rows per alias that a measurement joins."""

RECENT = 4
"""What has come within this part of the longest window is recent."""

LEAST_RECENT_MS = 1

LEAST_TUPLES = 4_096
"""After fewer tuples, and a smaller part of the window than RECENT says, `observe` does nothing: it takes some 15
microseconds, as much as 50 tuples of a join with few partners."""

ROUNDS = 4
"""Most times that a cheaper plan's sub-plans are measured, and the search repeated with them."""

KEPT = 1_000
"""Decisions that are kept; the oldest go first."""

KEPT_COUNTERS = 64
"""How many of the latest counters are kept, to tell what a change of plans saves."""

SETTLED_WINDOWS = 0.25
"""How long after the end of a change its outcome is measured, and what is measured before a change, in windows."""


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
        cost_s: what it has been predicted to cost.
        before_s: seconds per tuple before it; None without a clock.
        ended: the counters when it had ended.
    """

    number: int
    change: str
    plan: Plan
    at: int
    cost_s: float
    before_s: float | None
    ended: Work | None = None


class Autopilot:
    """Adapts the plan of one engine.

    Args:
        engine: a tree of binary joins (`why_not`).
        mode: `advise` decides and records, and changes nothing.
        changes: makes the changes; None to ask the engine itself.
        history: where to continue; None at the start of a query.
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
        self._look_always = look_always
        self._prices: Prices | None = None
        self._best = engine.plan
        self._evidence: Evidence | None = None
        self._watch = Watch()
        self._window_ms = _longest_window_ms(engine)
        aliases = len(engine.query.sources)
        self._pace = Pace(self._window_ms, aliases * (MEASURE_S + SAMPLED_ROWS * MEASURE_ROW_S))
        self._advice: Advice | None = None
        self._told: bool | None = None
        self._at: int | None = None
        self._tuples = 0
        self._drifted = False
        self._pending: _Pending | None = None
        self._recent: deque[Work] = deque(maxlen=KEPT_COUNTERS)

    @property
    def adaptations(self) -> list[Adaptation]:
        """The decisions, oldest first."""
        return list(self.decisions.values())

    @property
    def apart_ms(self) -> int:
        """The least event time between two looks."""
        return self._pace.apart_ms

    def observe(self) -> None:
        """Look at the engine, if it is time; measure, if that is worth it; change the plan, if that pays."""
        engine, at = self._engine, self._engine.cut
        if at <= 0 or (self._at is not None and at <= self._at) or not self._is_worth_it(at):
            return
        self._tuples = engine.processed_tuples
        if self._prices is not None and self._at is not None:
            passed = min(at - self._at, self._window_ms) / 1000
            self.account = accrue(self.account, self._prices, passed, self._limits.terms)
        self._at = at
        work = engine.work
        self._pace.work(_seconds(work, len(engine.query.sources) - 1), at)
        self._settle(work)
        self._recent.append(work)
        looks = self._pace.looks(at) or self._look_always
        if looks:
            self._drifted = self._watch.drifted(work)
        if self._is_changing():
            return
        unpriced = self._prices is None
        if looks and (self._look_always or self._pace.measures(at, drifted=self._drifted, unpriced=unpriced)):
            self._measure()
        self._decide()

    def _is_worth_it(self, at: int) -> bool:
        """Return whether enough has happened since the last call that was not skipped."""
        waited = self._at is None or at - self._at >= self._window_ms // RECENT
        return self._look_always or waited or self._engine.processed_tuples - self._tuples >= LEAST_TUPLES

    def _is_changing(self) -> bool:
        """Return whether a change is under way that another one may not overlap."""
        if self._changes.busy:
            return True
        open_ones = [record for record in self._engine.migrations if record.open]
        return any(r.began_at is None or not strategy_of(r.strategy).overlaps for r in open_ones)

    def _measure(self) -> None:
        """Measure anew, and find the best plan."""
        engine = self._engine
        recent_ms = max(self._window_ms // RECENT, LEAST_RECENT_MS)
        sampled = JoinSample(engine.sources, engine.cut, recent_ms, SAMPLED_ROWS)
        evidence = measure(engine.sources, sampled, recent_ms)
        if evidence is None:
            return
        self._watch.rebase()
        best = engine.plan
        for _ in range(ROUNDS):
            evidence = with_joint(evidence, sampled, (engine.plan, best))
            found = cheapest_plan(evidence, engine.plan)
            if same_tree(found, best):
                break
            best = found
        self._evidence, self._best = evidence, best
        self._prices = self._priced(evidence)
        self._advice = self._advise() if is_better(self._prices, self._limits.terms) else None
        self._told = None

    def _priced(self, evidence: Evidence) -> Prices:
        running, best = price(evidence, self._engine.plan), price(evidence, self._best)
        error = 0.0
        if best < running:
            for other in evidence.varied():
                error += (price(other, self._engine.plan) - price(other, self._best) - running + best) ** 2
        return Prices(running, best, price(evidence, self.first), math.sqrt(error))

    def _advise(self) -> Advice:
        """Choose a strategy for the change to the best plan, and predict its cost."""
        engine = self._engine
        return advise(
            engine.query,
            engine.plan,
            self._best,
            [engine.statistics(links=True)],
            executor=engine.executor,
            goal=self._limits.goal,
            load=engine.load,
            running=next((record.strategy for record in engine.migrations if record.open), None),
        )

    def _decide(self) -> None:
        """Change to the best plan if that has paid; keep one record of it, and another if it changes."""
        prices, evidence, advice, terms = self._prices, self._evidence, self._advice, self._limits.terms
        if prices is None or evidence is None or advice is None or not is_better(prices, terms):
            return
        cost_s = advice.predicted.work_s / advice.pace
        found = verdict(self.account, prices, cost_s, terms)
        reason, made = found.reason, found.change
        if made and advice.exceeds:
            reason, made = f"{advice.strategy}: {advice.reason}", False
        if made and self._mode == "advise":
            reason, made = f"advised, not made: {reason}", False
        if made or self._told != found.change:
            self._told = found.change
            number = self._record(advice, prices, evidence, reason)
            if made:
                self._make(number, advice, cost_s)

    def _make(self, number: int, advice: Advice, cost_s: float) -> None:
        """Ask for the change to the best plan."""
        engine, best = self._engine, self._best
        change = self._changes.ask(best, advice.strategy, self._limits.goal)
        since = engine.cut - SETTLED_WINDOWS * self._window_ms
        recent = [work for work in self._recent if work.cut >= since]
        recent = recent if len(recent) > 1 else [*self._recent][-2:]
        self._pending = _Pending(number, change, best, engine.cut, cost_s, _seconds_per_tuple(recent))
        self.decisions[number] = replace(self.decisions[number], made=True, change=change)
        self.account = paid(self.account, cost_s)
        self._pace.changed()
        self._prices = self._advice = None

    def withdraw(self, change: str, reason: str) -> None:
        """Note that a change that was asked for is not made: all stays as it was."""
        if self._pending is not None and self._pending.change == change:
            self.account = paid(self.account, -self._pending.cost_s)
            self._pending = None
        for number, decision in self.decisions.items():
            if decision.change == change:
                self.decisions[number] = replace(decision, made=False, change="", reason=reason)

    def _record(self, advice: Advice, prices: Prices, evidence: Evidence, reason: str) -> int:
        """Keep the decision, and return its number."""
        engine = self._engine
        predicted = Effect(
            (prices.running - prices.best) / prices.running, advice.predicted.work_s, advice.predicted.silence_s
        )
        known = {alias: (one.rate, math.exp(math.sqrt(one.variance))) for alias, one in evidence.arrivals.items()}
        for shares in (evidence.pairs, evidence.joint):
            for aliases, share in shares.items():
                name = " ".join(s.alias for s in engine.query.sources if s.alias in aliases)
                known[name] = math.exp(share.log), math.exp(math.sqrt(share.variance))
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

    def _settle(self, now: Work) -> None:
        """Find out what came of the last change, once it is over and the window shows it."""
        pending = self._pending
        record = None if pending is None else self._migration(pending)
        if pending is None or record is None or record.finished_at is None:
            return
        if pending.ended is None:
            pending.ended = now
            return
        if now.cut - pending.ended.cut < SETTLED_WINDOWS * self._window_ms:
            return
        after_s = _seconds_per_tuple([pending.ended, now])
        self._pending = None
        decision = self.decisions.get(pending.number)
        if after_s is None or not pending.before_s or decision is None:
            return
        measured = Effect(1 - after_s / pending.before_s, record.comparisons * MAKE_S, record.longest_silence_s)
        self.decisions[pending.number] = replace(decision, strategy=record.strategy, measured=measured)

    def _migration(self, pending: _Pending) -> MigrationRecord | None:
        """The engine's record of a change; None while it does not know of it."""
        found = (r for r in reversed(self._engine.migrations) if r.cut >= pending.at and r.plan == pending.plan)
        return next(found, None)


def _seconds_per_tuple(looks: list[Work]) -> float | None:
    """Return the processing time per tuple between the first and the last of some looks; None without a clock."""
    if len(looks) < 2:
        return None
    tuples = looks[-1].tuples - looks[0].tuples
    busy_s = looks[-1].busy_s - looks[0].busy_s
    return busy_s / tuples if tuples > 0 and busy_s > 0 else None


def _seconds(work: Work, joins: int) -> float:
    """Return the work of so many joins in seconds of one core, by the unit costs."""
    calls = work.slices * (SLICE_S + joins * CALL_S)
    return calls + work.tuples * (ENTER_S + PROBE_S) + work.comparisons * SCAN_S + work.made * MAKE_S


def why_not(engine: Engine) -> str:
    """Return why the plan of an engine is not adapted; empty if it is."""
    query = engine.query
    if query.subtracted:
        return "EXCEPT subtracts in the order that was chosen at the start"
    if len(query.sources) < 3:
        return "a join of two inputs has one plan"
    if engine.executor != "xjoin":
        return f"{engine.executor} keeps no tree of joins"
    if engine.spills:
        return "a change of plans with a memory budget reads back all that was spilled, which is not priced"
    return ""


def _longest_window_ms(engine: Engine) -> int:
    lives = [life for life in engine.sources.life.values() if life < FOREVER // 2]
    return max(lives, default=60_000)
