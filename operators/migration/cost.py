"""What each migration strategy would cost, from an engine's statistics. Pure: numbers in, numbers out.

`operators.migration.advise` compares the predictions. HybMig 4.4 and JISC 5 count the same things: the states that the
new plan lacks and the work of running the old one. With the sizes of `operators.migration.sizes`, each strategy costs

| strategy | comparisons | extra tuples | until |
| --- | --- | --- | --- |
| moving-state | every missing state, at the cut | the missing states | the cut |
| parallel-track | the old plan for a window; checks for old tuples | the old plan's states | a window |
| hybmig | the old plan on tuples that are old in some box, until they expire | the old plan's own states | a window |
| hybmig-bsc | every missing state; till then as hybmig | as hybmig | as many new tuples as it joins old ones |
| jisc | the entries of missing states that are probed before they expire | these entries | all keys, or a window |
| gms | the living input through the whole new plan, at the cut | none | the cut |
| gpt | the old plan for a window | the new plan's states | a window |
| ghm | as gms, and the old plan until the new one has caught up | the new plan's states | a share of a window |

The old plan's own states are those that the new plan does not have.

Executors without intermediate states (M-Join, eddy) have nothing to migrate: there the first five strategies except
parallel-track cost nothing. The expected error is a factor, as for any textbook model; the choice is meant for
strategies that are far apart.

Where a memory budget has spilled states, a change of plans joins what is pending, and runs the new plan over all living
tuples at the cut, whatever the strategy (`Engine._rebuild_spilled`).

Known limits: the model assumes uniform keys (a skewed key makes more tuples) and steady rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from operators.data.statistics import EngineStatistics, SpillStatistics
from operators.migration.black_box import PIECE_TUPLES
from operators.migration.hybmig import SLICE_OLD_TUPLES
from operators.migration.jisc.strategy import COUNTED_PER_TUPLE, COUNTED_TUPLES
from operators.migration.sizes import (
    CALL_S,
    COUNT_S,
    ENTER_S,
    PROBE_S,
    READ_S,
    SLICE_S,
    Aliases,
    Sizes,
    Work,
    below_root,
    joins_of,
    total,
)
from operators.plan.plan import Join, Plan
from operators.plan.predicates import Operand
from schemas.query import Query, aliases_of

BACKGROUND_SHARE = 1.0
"""Old tuples that `hybmig-bsc` joins per new one, but at most `SLICE_OLD_TUPLES` in a slice."""
CATCH_UP_SHARE = 4.0
"""Tuples that `ghm` feeds its new plan per new one, in pieces of `PIECE_TUPLES`."""

MAX_PACE = 4.0
"""The greatest factor by which a machine is assumed to be slower or faster than the unit costs."""

STEPS = 40
"""The steps of the numerical integration over a window."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The expected cost of a strategy, beyond what the new plan would have done anyway.

    Attributes:
        strategy: The strategy's name.
        silence_s: The longest halt of processing in seconds, including a usual slice.
        comparisons: Predicate evaluations, as `MigrationRecord` counts them.
        extra_tuples: Extra tuples, as `MigrationCounters.peak_extra_tuples` counts them.
        work_s: Seconds of one core.
        duration_ms: Event time from the cut to the end.
        beside_tuples: Tuples held beside those of the new plan's own states, which it will hold anyway.
    """

    strategy: str
    silence_s: float
    comparisons: float
    extra_tuples: float
    work_s: float
    duration_ms: float
    beside_tuples: float = 0.0


class CostOfMigration:
    """The cost of a change from one plan of a query to another.

    Args:
        query: The query.
        old: The current plan.
        new: The plan to change to.
        observed: The statistics of the running engine, with `links`.
        executor: The kind of executor.
        load: The share of one core's time that the query needs now; 0 where no user waits, as in a replay.
    """

    def __init__(
        self, query: Query, old: Plan, new: Plan, observed: EngineStatistics, *, executor: str, load: float = 0.0
    ) -> None:
        self.sizes = sizes = Sizes(query, observed)
        self.query = query
        self.load = load
        self.old = joins_of(old)
        self.new = joins_of(new)
        self.keeps_states = executor in ("xjoin", "stairs")
        there = {
            frozenset(operator.aliases[side])
            for operator in observed.operators
            for side in (0, 1)
            if operator.complete[side] and operator.track != "new"
        } | {frozenset({alias}) for alias in sizes.leaves}
        self._tables = tables = frozenset(source.alias for source in query.sources if source.is_static)
        self.missing = [j for aliases, j in below_root(new).items() if aliases not in there and not aliases <= tables]
        span_s = max(observed.span_ms / 1000, 1e-3)
        self.slices_per_s = observed.slices / span_s
        self.slice_tuples = sizes.arriving / max(self.slices_per_s, 1e-9)
        self.old_work = total([sizes.running(join) for join in self.old])
        expected_s = SLICE_S + len(self.old) * CALL_S + self.old_work.seconds / max(self.slices_per_s, 1e-9)
        self.slice_s = observed.busy_s / observed.slices if observed.slices and observed.busy_s else expected_s
        # The unit costs are those of an idle machine; the recent time per slice shows how fast this machine is.
        self.pace = min(max(self.slice_s / expected_s, 1 / MAX_PACE), MAX_PACE)
        self.new_work = total([sizes.running(join) for join in self.new])
        self._all_computed = total([sizes.computing(join) for join in self.new])
        self._kept = {sizes.signature(join, side) for join, side, _ in _inputs(self.new)}
        self._window_s = sizes.longest_s
        self._rebuilding_s = self._rebuilt_s(observed.spill, observed.state_tuples)

    def prediction(self, strategy: str) -> Prediction:
        """Return the expected cost of a strategy.

        Raises:
            KeyError: No strategy has this name.
        """
        if self._rebuilding_s:
            took_s = self._rebuilding_s * self.pace
            return Prediction(strategy, self.slice_s + took_s, 0.0, 0.0, took_s, 0.0)
        make: dict[str, Callable[[], Prediction]] = {
            "moving-state": self._moving_state,
            "parallel-track": self._parallel_track,
            "hybmig": self._hybmig,
            "hybmig-bsc": self._background,
            "jisc": self._jisc,
            "gms": self._gms,
            "gpt": self._gpt,
            "ghm": self._ghm,
        }
        return make[strategy]()

    def _predicted(
        self,
        strategy: str,
        work: Work,
        extra: float,
        duration_s: float,
        still_s: float,
        beside: float = 0.0,
        beside_tuples: float = 0.0,
    ) -> Prediction:
        """Return a prediction. `still_s` is the halt beyond a usual slice; `beside` is the work per second beside the
        new plan's own, in seconds."""
        if beside:
            # Every join of the old plan runs once more per slice.
            work += Work(0.0, len(self.old) * CALL_S * self.slices_per_s * duration_s)
        ratio = beside / max(self.new_work.seconds, 1e-12)
        behind_s = max(0.0, self.load * (1 + ratio) - 1) * duration_s if self.load else 0.0
        silence = self.slice_s * (1 + min(ratio, 4.0)) + still_s * self.pace + behind_s
        seconds = work.seconds * self.pace
        return Prediction(strategy, silence, work.comparisons, extra, seconds, duration_s * 1000, beside_tuples)

    # --- What they are made of ------------------------------------------------------------------------

    def _rebuilt_s(self, spill: SpillStatistics | None, in_memory: int) -> float:
        """The seconds to join what is pending, and to rebuild states that are partly on disk; 0 if none is."""
        if spill is None or not spill.on_disk_tuples:
            return 0.0
        pending = spill.on_disk_tuples / (spill.on_disk_tuples + in_memory)
        joining_s = (self.old_work.seconds * pending + self.new_work.seconds) * self._window_s
        return joining_s + spill.on_disk_tuples * READ_S

    def _moved(self) -> Work:
        """Work to re-index complete states whose other side is new."""
        held = {frozenset(child.aliases): (join, side) for join, side, child in _inputs(self.old)}
        found = 0.0
        for join, side, child in _inputs(self.new):
            former = held.get(frozenset(child.aliases))
            if former is not None and self.sizes.signature(*former) != self.sizes.signature(join, side):
                found += CALL_S + self.sizes.size(child).living * (ENTER_S + PROBE_S)
        return Work(0.0, found)

    def _decay(self, power: int, until_s: float) -> float:
        """The integral up to a time, in seconds, of a quantity that falls to zero over a window as (1 - t /
        w)^power."""
        w = self._window_s
        rest = max(0.0, 1 - until_s / w)
        return w * (1 - rest ** (power + 1)) / (power + 1)

    def _pruned_old(self, until_s: float) -> Work:
        """Work of the old plan, up to a time, on tuples whose components are old in some box (HybMig, Table 2)."""
        sizes, found = self.sizes, Work()
        old = {frozenset(join.aliases): join for join in self.old}
        shared = old.keys() & {frozenset(join.aliases) for join in self.new}
        for top in self.new:
            if frozenset(top.aliases) not in shared:
                continue
            inside = list(_inside(top, shared))
            within = {id(join) for join in inside}
            boxes = [
                frozenset(join.aliases) - self._tables
                for join in inside
                if join is not top and id(join.left) not in within and id(join.right) not in within
            ]
            if not boxes:
                continue
            for join in _inside(old[frozenset(top.aliases)], shared):
                whole = sizes.running(join)
                found += whole * min(1.0 * until_s, sum(self._old_share(join, box, until_s) for box in boxes))
        return found

    def _old_share(self, join: Join, box: Aliases, until_s: float) -> float:
        """The seconds' worth of a join's work that is left when it skips new tuples of a box's sources."""
        found = 0.0
        parts = []
        for side, child, other in ((0, join.left, join.right), (1, join.right, join.left)):
            turnover = {a: self.sizes.leaves[a].rate / max(self.sizes.leaves[a].living, 1.0) for a in child.aliases}
            passing = sum(v for a, v in turnover.items() if a not in box) / max(sum(turnover.values()), 1e-12)
            power = len(box & frozenset(child.aliases))
            if self.sizes.signature(join, 1 - side) not in self._kept:
                # The new plan does not use this state, so no new tuples of the box enter it.
                power += len(box & frozenset(other.aliases))
            size, state = self.sizes.size(child), self.sizes.size(other)
            parts.append(self.sizes.probing(join, size.rate, state, dead=True).comparisons + size.rate)
            found += parts[-1] * passing * self._decay(power, until_s)
        return found / max(sum(parts), 1e-12)

    def _all_old(self) -> float:
        """The tuples in the old plan's states."""
        return sum(self.sizes.size(child).held for _, _, child in _inputs(self.old))

    def _old_states(self) -> float:
        """The tuples in the old plan's states that the new plan does not have."""
        return sum(
            self.sizes.size(child).held
            for join, side, child in _inputs(self.old)
            if self.sizes.signature(join, side) not in self._kept
        )

    # --- The strategies -------------------------------------------------------------------------------

    def _moving_state(self) -> Prediction:
        if not self.keeps_states:
            return self._predicted("moving-state", Work(), 0.0, 0.0, self._moved().seconds)
        work = total([self.sizes.computing(join) for join in self.missing]) + self._moved()
        # A set difference stores one position per tuple and has no intermediate states.
        made = 0.0 if self.query.subtracted else sum(self.sizes.size(join).living for join in self.missing)
        return self._predicted("moving-state", work, made, 0.0, work.seconds)

    def _parallel_track(self) -> Prediction:
        looked = self.slices_per_s * self._window_s * self._looked_at()
        work = self.old_work * self._window_s + Work(looked, looked * ENTER_S)
        extra = self._all_old()
        return self._predicted("parallel-track", work, extra, self._window_s, 0.0, self.old_work.seconds, extra)

    def _looked_at(self) -> float:
        """The average number of the old plan's tuples checked to find an old one: states in turn, up to the first
        hit."""
        found = 0.0
        for k in range(STEPS):
            age = (k + 0.5) / STEPS * self._window_s
            for _, _, child in _inputs(self.old):
                found += self.sizes.size(child).held
                windows = [self.sizes.window_s[alias] for alias in child.aliases if alias not in self._tables]
                if age < max(windows, default=0.0):
                    break
        return found / STEPS

    def _hybmig(self) -> Prediction:
        if not self.keeps_states or not self.missing:
            return self._predicted("hybmig", Work() + self._moved(), 0.0, 0.0, self._moved().seconds)
        work = self._pruned_old(self._window_s)
        beside = work.seconds / self._window_s
        held = self._old_states()
        still = self._moved().seconds
        return self._predicted("hybmig", work + self._moved(), held, self._window_s, still, beside, held)

    def _background(self) -> Prediction:
        if not self.keeps_states or not self.missing:
            return self._predicted("hybmig-bsc", self._moved(), 0.0, 0.0, self._moved().seconds)
        sizes = self.sizes
        old = sum(sizes.size(join.left).living for join in self.missing)
        duration = old / max(BACKGROUND_SHARE * sizes.arriving, 1e-9) + 1 / max(self.slices_per_s, 1e-9)
        duration = min(duration, self._window_s)
        # Tuples that expire before their turn are not joined.
        share = self._decay(1, duration) / max(duration, 1e-9) if duration else 1.0
        made = Work()
        for join in self.missing:
            left, right = sizes.size(join.left), sizes.size(join.right)
            made += sizes.probing(join, left.living, right)
        made = made * share
        chunks = min(1.0, min(self.slice_tuples * BACKGROUND_SHARE, SLICE_OLD_TUPLES) / max(old, 1.0))
        pruned = self._pruned_old(duration)
        work = made + pruned + self._moved()
        beside = pruned.seconds / max(duration, 1e-9)
        still = max(made.seconds * chunks, self._moved().seconds)
        held = self._old_states()
        return self._predicted("hybmig-bsc", work, held, duration, still, beside, held)

    def _jisc(self) -> Prediction:
        if not self.keeps_states or not self.missing:
            return self._predicted("jisc", self._moved(), 0.0, 0.0, self._moved().seconds)
        work, still, extra, duration, counted = self._moved(), self._moved().seconds, 0.0, 0.0, 0.0
        for join in self.missing:
            completed = self._completing(join)
            work += completed.work
            still += completed.first_s
            counted += completed.counted
            extra += 0.0 if self.query.subtracted else completed.made
            duration = max(duration, completed.until_s)
        still += min(counted, max(COUNTED_TUPLES, COUNTED_PER_TUPLE * self.slice_tuples)) * COUNT_S
        return self._predicted("jisc", work, extra, duration, still)

    def _completing(self, join: Join) -> _Completing:
        """The cost of completing the state of a sub-plan on demand."""
        sizes = self.sizes
        parent, side = next((p, s) for p, s, child in _inputs(self.new) if child is join)
        key, values = self._asked(parent, side, join)
        left, right, made = sizes.size(join.left), sizes.size(join.right), sizes.size(join).living
        below = next((side for side, c in enumerate((join.left, join.right)) if _has(c, key)), None)
        if not key or below is None:
            # Only the whole state can be requested, so the first probe completes it.
            work = sizes.probing(join, left.living, right)
            work += Work(0.0, CALL_S + (made + left.living) * ENTER_S)
            return _Completing(work, work.seconds, made, 0.0)
        size = right if below else left
        probing = sizes.size(parent.left if side else parent.right).rate
        present = values * (1 - math.exp(-size.living / values))
        step = sizes.life_s(frozenset(join.aliases)) / STEPS
        whole, rooted, indexed = self._looking_up(join, below, key)
        share, kept, demanded = 0.0, 0.0, 0.0
        for k in range(STEPS):
            # Keys first probed in this step. The tuples looked up have begun to expire; those they join with have not,
            # since that includes the new.
            now = 1 - math.exp(-probing * (k + 1) * step / values)
            share += (now - demanded) * (1 - (k + 0.5) / STEPS) ** rooted
            kept += (now - demanded) * (1 - (k + 0.5) / STEPS) ** len(join.aliases)
            demanded = now
        first = 1 - math.exp(-probing / max(self.slices_per_s, 1e-9) / values)
        begun_s = CALL_S + indexed * (ENTER_S + PROBE_S)
        calls = min(present, probing * sizes.life_s(frozenset(join.aliases)), self.slices_per_s * self._window_s)
        work = whole * share + Work(0.0, begun_s + size.living * COUNT_S + calls * CALL_S)
        until = self._window_s if demanded < 0.999 else math.log(max(present, 2.0)) * values / max(probing, 1e-9)
        return _Completing(work, begun_s + whole.seconds * first, made * kept, min(until, self._window_s), size.living)

    def _asked(self, parent: Join, side: int, join: Join) -> tuple[tuple[Operand, ...], float]:
        """Return the columns by which entries of a state are requested (`migration.jisc.demand`), and their number of
        values if all are equally frequent: two tuples agree, or a tuple accepts a value, once in that many pairs."""
        condition = self.sizes.condition(parent)
        sides = frozenset(parent.left.aliases), frozenset(parent.right.aliases)
        key = tuple(term.operand(side) for term in condition.keys)
        if key:
            whole = 1.0 / max(self.sizes.share(*sides, of_key=True), 1e-12)
            parts = [tuple(o for o in key if _has(child, (o,))) for child in (join.left, join.right)]
            part = max(parts, key=len)
            return part, whole ** (len(part) / len(key))
        terms = condition.int_terms or condition.float_terms
        return tuple(term.operand(side) for term in terms[:1]), 1.0 / max(self.sizes.share(*sides), 1e-12)

    def _looking_up(self, join: Join, below: int, key: tuple[Operand, ...]) -> tuple[Work, int, float]:
        """Return the cost of looking up an incomplete sub-plan by a key of its input `below`.

        Returns:
            The work to find all its tuples by the key and to join them; the number of sources of the complete state in
                which the key is looked up in the end; and the number of tuples that are indexed for it if neither plan
                has an index by the key.
        """
        sizes = self.sizes
        child, beside = (join.right, join.left) if below else (join.left, join.right)
        found = sizes.probing(join, sizes.size(child).living, sizes.size(beside))
        if isinstance(child, Join) and any(child is lacking for lacking in self.missing):
            deeper = next((side for side, c in enumerate((child.left, child.right)) if _has(c, key)), None)
            if deeper is not None:
                beneath, rooted, indexed = self._looking_up(child, deeper, key)
                return found + beneath, rooted, indexed
        looked = sizes.size(child).living
        found += Work(looked, looked * PROBE_S)
        aliases = frozenset(child.aliases)
        held = [sizes.key(other, side) for other, side, c in _inputs(self.old) if frozenset(c.aliases) == aliases]
        return found, len(aliases), 0.0 if key in (sizes.key(join, below), *held) else looked

    def _gms(self) -> Prediction:
        return self._predicted("gms", self._all_computed, 0.0, 0.0, self._all_computed.seconds)

    def _gpt(self) -> Prediction:
        work = self.old_work * self._window_s
        extra = sum(self.sizes.size(child).held for _, _, child in _inputs(self.new))
        return self._predicted("gpt", work, extra, self._window_s, 0.0, self.old_work.seconds, self._all_old())

    def _ghm(self) -> Prediction:
        history = sum(size.living for size in self.sizes.leaves.values())
        duration = history / max((CATCH_UP_SHARE - 1) * self.sizes.arriving, 1e-9) + 1 / max(self.slices_per_s, 1e-9)
        work = self._all_computed + self.old_work * duration
        extra = sum(self.sizes.size(child).held for _, _, child in _inputs(self.new))
        still = self._all_computed.seconds * min(1.0, PIECE_TUPLES / max(history, 1.0))
        return self._predicted("ghm", work, extra, duration, still, self.old_work.seconds, self._all_old())


@dataclass(frozen=True, slots=True)
class _Completing:
    """The cost of completing a state.

    Attributes:
        work: The total work.
        first_s: Seconds in the first slice.
        made: The number of tuples made.
        until_s: How long it lasts, in seconds.
        counted: The number of tuples in which its keys are counted.
    """

    work: Work
    first_s: float
    made: float
    until_s: float
    counted: float = 0.0


def _inputs(joins: list[Join]) -> Iterator[tuple[Join, int, Plan]]:
    """Yield every side of every join."""
    for join in joins:
        for side, child in enumerate((join.left, join.right)):
            yield join, side, child


def _inside(top: Join, shared: frozenset[Aliases] | set[Aliases]) -> Iterator[Join]:
    """Yield the joins of the task that computes a shared sub-plan (HybMig, Fig. 5), children before parents."""
    for child in (top.left, top.right):
        if isinstance(child, Join) and frozenset(child.aliases) not in shared:
            yield from _inside(child, shared)
    yield top


def _has(plan: Plan, operands: tuple[Operand, ...]) -> bool:
    """Return whether a sub-plan has all columns of some operands."""
    return all(aliases_of(operand.expr) <= frozenset(plan.aliases) for operand in operands)
