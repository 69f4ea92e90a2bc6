"""Measures a running engine when that is worth its cost, and finds the best plan for what it has measured: `Survey`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np

from operators.autopilot.drift import Watch
from operators.autopilot.evidence import Arrivals, Evidence, measure, with_joint
from operators.autopilot.join_sample import JoinSample, Share
from operators.autopilot.learning import Learning
from operators.autopilot.pace import MEASURE_ROW_S, MEASURE_S, RECENT, Pace
from operators.autopilot.search import PlanPrices, cheapest_plan, price, same_tree, squared_error
from operators.autopilot.sizes import demanded
from operators.data.statistics import EdgeStatistics, EngineStatistics
from operators.data.tuples import FOREVER
from operators.engine.engine import Engine, Work
from operators.kernels.sampled import matching_pairs
from operators.migration.sizes import CALL_S, ENTER_S, MAKE_S, PROBE_S, SCAN_S, SLICE_S
from operators.plan.plan import Join, Leaf, Plan, aliases_in, parse_plan
from schemas.query import Query

SAMPLED_ROWS = 8_192
"""Rows per alias that a measurement joins."""

LEAST_RECENT_MS = 1

LOOK_AFTER_S = 0.06
"""After less work `look` does nothing: it takes some 30 microseconds, and some 120 between other code."""

LOOK_SOON_S = 0.008
"""The same while the work is beyond the usual, or has differed once."""

FASTER = 1.25
"""Work is beyond the usual if an event time takes so many times as much as it did between the last two looks."""

STEADY_WINDOWS = 2
"""Before so many windows have passed, the work per tuple grows while states fill, and is not compared."""

SIGHTINGS = 2
"""Looks in a row that must find drift. The second one comes soon after the first."""

BETTER = 0.05
"""A plan that saves less than this share of the work is not what a measurement was made for."""

ERRORS = 3.0
"""Standard errors by which the logarithm of what a plan costs less must exceed zero, or the measurement is repeated."""

ROUNDS = 4
"""Most times that a cheaper plan's sub-plans are measured, and the search repeated with them."""


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What one measurement has found.

    Attributes:
        at: event time of the measurement.
        best: the best plan for it; the running one if none is better.
        calls_s: work per second of event time that no plan saves: the fixed costs of calls.
        statistics: of the engine, with links, by which the cost of a change is predicted; None until it is published.
    """

    at: int
    evidence: Evidence
    best: Plan
    calls_s: float = 0.0
    statistics: EngineStatistics | None = None

    def document(self) -> dict[str, Any]:
        """Return JSON-compatible values."""
        statistics = None if self.statistics is None else self.statistics.document()
        return {
            "at": self.at,
            "evidence": self.evidence.document(),
            "best": str(self.best),
            "calls_s": self.calls_s,
            "statistics": statistics,
        }

    @staticmethod
    def from_document(document: Mapping[str, Any], query: Query) -> Surveyed:
        """Read what `document` has returned.

        Raises:
            KeyError, TypeError, ValueError, WeirError: it is damaged, or of another query.
        """
        evidence, given = Evidence.from_document(document["evidence"], query), document["statistics"]
        statistics = None if given is None else EngineStatistics.from_document(given)
        best, calls_s = parse_plan(document["best"], query), float(document["calls_s"])
        return Surveyed(int(document["at"]), evidence, best, calls_s, statistics)


class Survey:
    """Surveys one engine.

    Args:
        always: look and measure at every call, however much that costs; for tests.

    Attributes:
        window_ms: the longest window.
        tuple_s: the work per source tuple between the last two looks, in seconds of one core by the unit costs.
        found: the last measurement; None before the first.
    """

    def __init__(self, engine: Engine, *, always: bool = False) -> None:
        self.window_ms = _longest_window_ms(engine)
        self.tuple_s = ENTER_S + PROBE_S
        self.found: Surveyed | None = None
        self._next_s = 0.0
        self._engine = engine
        self._always = always
        self._watch = Watch()
        aliases = len(engine.query.sources)
        self._pace = Pace(self.window_ms, aliases * (MEASURE_S + SAMPLED_ROWS * MEASURE_ROW_S))
        self._first: int | None = None
        self._at: int | None = None
        self._busy_s = self._raw_s = self._done_s = 0.0
        self._learning = Learning(len(engine.query.sources) - 1)
        self._factors = self._learning.factors
        self._last: Work | None = None
        self._tuples = 0
        self._slices: tuple[int, int] | None = None
        self._looks = False
        self._usual = math.inf
        self._looked_at = 0
        self._looked_s = self._drifted_from_s = self._drifted_s = 0.0
        self._drifted_at: int | None = None
        self._drifted_ms = self._sightings = 0
        self._apart: frozenset[str] | None = None
        self._feedback: dict[tuple[str, str], EdgeStatistics] = {}

    @property
    def apart_ms(self) -> int:
        """The least event time between two looks."""
        return self._pace.apart_ms

    def look(self, *, awaited: bool = False) -> Work | None:
        """Return the engine's counters; None if too little has happened since the last look, unless one is awaited."""
        engine, at = self._engine, self._engine.cut
        if at <= 0 or (self._at is not None and at <= self._at):
            return None
        busy_s = engine.busy_s
        waits = self._at is not None and not self._always and not awaited
        self._next_s = busy_s + LOOK_SOON_S if busy_s and not self._always else 0.0
        if busy_s and waits and not self._is_time(busy_s - self._busy_s, at):
            return None
        raw_s = self._seconds(engine.comparisons)
        if not busy_s and waits and not self._is_time(raw_s - self._raw_s, at):
            return None
        self._first = at if self._first is None else self._first
        work = engine.work
        if work.tuples > self._tuples:
            self.tuple_s = (raw_s - self._raw_s) / (work.tuples - self._tuples)
        self._learning.note(work)
        if self._last is not None:
            self._done_s += float(self._learning.predicted(self._last, work) @ self._factors)
        if self._at is not None:
            self._usual = (busy_s - self._busy_s or raw_s - self._raw_s) / (at - self._at)
        self._last, self._at, self._busy_s, self._raw_s, self._tuples = work, at, busy_s, raw_s, work.tuples
        self._slices = self._slices or (work.slices, at)
        self._pace.work(self._done_s, at)
        self._looks = self._pace.looks(at) or self._always
        if self._looks and at - self._first >= STEADY_WINDOWS * self.window_ms:
            if not self._watch.drifted(work):
                self._drifted_at, self._sightings = None, 0
            else:
                if self._drifted_at is None:
                    self._drifted_at, self._drifted_from_s = self._looked_at, self._looked_s
                self._sightings += 1
            self._looked_at, self._looked_s = at, self._done_s
        return work

    def _is_time(self, spent_s: float, at: int) -> bool:
        """Return whether so much work since the last look is worth another one."""
        if spent_s >= LOOK_AFTER_S or self._at is None or at >= self._pace.follow_up_at:
            return True
        grows = self._pace.growing or self._sightings == 1 or spent_s > FASTER * self._usual * (at - self._at)
        return grows and spent_s >= LOOK_SOON_S

    def _seconds(self, made: int) -> float:
        """Return about the engine's work so far in seconds of one core, by the unit costs, for less than counting it.

        Args:
            made: intermediate results and results; comparisons are about as many, and known for less.
        """
        engine = self._engine
        calls = engine.slices * (SLICE_S + (len(engine.query.sources) - 1) * CALL_S)
        each = engine.processed_tuples * (ENTER_S + PROBE_S) + engine.comparisons * SCAN_S
        return calls + each + made * MAKE_S

    @property
    def quiet_s(self) -> float:
        """Until the engine has been busy for so many seconds, a look would do nothing, unless one is awaited."""
        return self._next_s if self._pace.follow_up_at == math.inf else 0.0

    @property
    def measure_s(self) -> float:
        """What a measurement takes, in seconds of one core, as far as is known."""
        return self._pace.measure_s

    @property
    def lost_s(self) -> float:
        """What a growth of the work had cost when it was measured, in seconds of one core."""
        return self._pace.lost_s

    @property
    def changed_ms(self) -> int:
        """For how much event time the running plan's work had been seen to differ when it was measured."""
        return max(self._pace.grown_ms, self._drifted_ms)

    @property
    def changed_s(self) -> float:
        """The work in that time, in seconds of one core."""
        return max(self._pace.grown_s, self._drifted_s)

    @property
    def done_s(self) -> float:
        """The work so far, in seconds of one core."""
        return self._done_s

    def changed(self) -> None:
        """Note that the plan changes. Whether that was right is measured once, whatever it costs."""
        self._pace.changed(self._engine.cut)

    def _evidence(self, recent_ms: int) -> tuple[Evidence | None, JoinSample]:
        """Measure rates and pairs; also by which aliases partners come far apart, unless the data have just changed."""
        sources, cut, apart = self._engine.sources, self._engine.cut, self._apart
        if self._pace.after_change and apart is not None:
            sampled = JoinSample(sources, cut, recent_ms, SAMPLED_ROWS, fresh=True, apart=apart)
            evidence = measure(sources, sampled, recent_ms)
            if evidence is not None:
                return evidence, sampled
        sampled = JoinSample(sources, cut, recent_ms, SAMPLED_ROWS)
        evidence = measure(sources, sampled, recent_ms)
        if evidence is not None and (apart is None or not self._pace.after_change):
            pairs = (Join(Leaf(a), Leaf(b)) for a, b in map(evidence.ordered, evidence.pairs))
            self._apart = frozenset(chain.from_iterable(p.aliases for p in pairs if sampled.comes_apart(p)))
        return evidence, sampled

    def _withheld(self, evidence: Evidence) -> float:
        """Return `Evidence.withheld`, from what feedback has kept from being made since the last measurement."""
        if evidence.query.subtracted:
            return 0.0
        before, now = self._feedback, {(edge.consumer, edge.producer): edge for edge in self._engine.feedback}
        self._feedback = now
        seen = could = 0.0
        for name, edge in now.items():
            old = before.get(name)
            made = edge.demanded - (old.demanded if old else 0)
            kept = edge.suppressed - (old.suppressed if old else 0)
            aliases = aliases_in(edge.producer)
            members = np.array([[source.alias in aliases for source in evidence.query.sources]])
            names = tuple(source.alias for source in evidence.query.sources)
            seen -= (made + kept) * math.log((made + 1) / (made + kept + 1))
            could -= (made + kept) * float(demanded(evidence, members, names)[0])
        return min(seen / could, 1.0) if could > 0 else 0.0

    def measure(self) -> bool:
        """Measure, if that is worth it after the last look; return whether that was done."""
        at = self._engine.cut
        if not self._looks:
            return False
        engine, began_s = self._engine, self._engine.clock()
        recent_ms = max(self.window_ms // RECENT, LEAST_RECENT_MS)
        drifted = self._drifted_at is not None and at - self._drifted_at >= recent_ms and self._sightings >= SIGHTINGS
        if not (self._always or self._pace.measures(at, drifted=drifted)):
            return False
        evidence, sampled = self._evidence(recent_ms)
        if evidence is None:
            return False
        self._watch.rebase()
        self._drifted_ms = 0 if self._drifted_at is None else at - self._drifted_at
        self._drifted_s = 0.0 if self._drifted_at is None else self._done_s - self._drifted_from_s
        self._drifted_at, self._sightings = None, 0
        self._factors = self._learning.factors
        evidence = replace(evidence, units=self._learning.units(), withheld=self._withheld(evidence))
        best = engine.plan
        for _ in range(ROUNDS):
            evidence = with_joint(evidence, sampled, (engine.plan, best))
            found = cheapest_plan(evidence, engine.plan)
            if same_tree(found, best):
                break
            best = found
        slices, since = self._slices or (engine.slices, at)
        calls_s = self._learning.calls_s(engine.slices - slices) * 1000 / max(at - since, 1)
        self._slices = engine.slices, at
        first, self.found = self.found is None, Surveyed(at, evidence, best, calls_s)
        plans = PlanPrices([engine.plan, best])
        running_s, best_s = plans.of(evidence).tolist()
        better, sure = running_s - best_s > BETTER * (running_s + calls_s), True
        if better:
            ratio = math.log((running_s + calls_s) / (best_s + calls_s))
            sure = ratio > ERRORS * math.sqrt(squared_error(plans, evidence, np.full(2, calls_s)))
        self._pace.found(better=better, sure=sure, changed_ms=self.changed_ms)
        took_s = engine.clock() - began_s
        if took_s > 0 and not first:  # the first one loads code
            self._pace.took(took_s)
        return True


def load_kernels(query: Query, plan: Plan) -> None:
    """Load what a measurement compiles or reads from the cache, so that the first does not halt the query."""
    aliases = plan.aliases
    share = Share(-1.0, -1.0, 0.1, 1)
    pairs = {frozenset(pair): share for pair in pairwise(aliases)}
    evidence = Evidence(query, {alias: Arrivals(1.0, 1.0, 0.1) for alias in aliases}, pairs, frozenset(pairs))
    price(evidence, cheapest_plan(evidence, plan))
    hashes = np.arange(2, dtype=np.uint64)
    matching_pairs(hashes, hashes, 1)


def _longest_window_ms(engine: Engine) -> int:
    lives = [life for life in engine.sources.life.values() if life < FOREVER // 2]
    return max(lives, default=60_000)
