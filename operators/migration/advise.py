"""Chooses a migration strategy for `--strategy auto`. The choice is pure: the same numbers give the same advice.

    advice = advise(query, old, new, [engine.statistics(links=True)], executor="xjoin")
    advice.strategy                # 'jisc'
    for line in advice.lines():
        print(line)

`operators.migration.cost` predicts what each strategy costs. One is chosen among those that can migrate the query:

1. Strategies that would halt processing longer than `Goal.silence_s` are left out, and so are those that would hold
more tuples beside the new plan's own than `Goal.extra_share` of what the states hold now. If none is left, the strategy
that exceeds the limits least stays.
2. Of the rest, the best by `Goal.prefer` is found: least work, shortest silence or fewest tuples beside the new plan's.
3. Strategies that are worse by a factor below CLEARLY_WORSE, or by less than the absolute margins, count as equally
good: the model is no finer. Of these the one that ends first is chosen, then the one that is first in PREFERENCE.

Where every task has spilled states for its memory budget, there is no choice: all states are rebuilt at the cut, which
is called moving-state.

A running migration that may be overlapped (JISC 4.5) leaves no choice: any other strategy would wait for its end.

The choice takes a few milliseconds for a handful of sources and a tenth of a second for a hundred, at the cut.

The statistics of several tasks of a query may be passed. Each task migrates for itself, so the query halts as long as
the slowest task, and the tasks' work adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from operators.data.statistics import EngineStatistics
from operators.migration.cost import CostOfMigration, Prediction
from operators.migration.strategies import STRATEGIES, check_strategy
from operators.plan.plan import Plan
from schemas.errors import UsageError
from schemas.query import Query

SILENCE_S = 0.1
"""No user should wait longer for a result because a plan changes."""

EXTRA_SHARE = 1.0
"""A migration may hold this share of the tuples in the states in addition to them."""

EXTRA_TUPLES = 10_000
"""This many extra tuples are always allowed."""

SLICES = 2.0
"""A silence of this many usual slices is always allowed."""

CLEARLY_WORSE = 1.25
SAME_WORK_S = 0.002
SAME_SILENCE_S = 0.002
SAME_TUPLES = 1_000.0
"""A prediction counts as equally good if it is worse by a factor below CLEARLY_WORSE or by less than these margins."""

PREFERENCE = ("jisc", "moving-state", "hybmig-bsc", "hybmig", "ghm", "gms", "gpt", "parallel-track")
"""Among equally good strategies, the one that depends least on the model being right comes first: JISC computes only
what turns out to be needed."""

MOVING_STATE = "moving-state"

Preference = Literal["work", "silence", "memory"]
PREFERENCES: tuple[Preference, ...] = ("work", "silence", "memory")


@dataclass(frozen=True, slots=True)
class Goal:
    """What the user cares for.

    Attributes:
        prefer: What is to be least within the limits.
        silence_s: The longest silence, in seconds.
        extra_share: The most extra tuples, as a share of the tuples in the states.
    """

    prefer: Preference = "work"
    silence_s: float = SILENCE_S
    extra_share: float = EXTRA_SHARE


@dataclass(frozen=True, slots=True)
class Advice:
    """The chosen strategy and the reason.

    Attributes:
        strategy: The chosen strategy.
        reason: Why it was chosen.
        predictions: The predictions for all strategies that can migrate the query, best first; those over a limit last.
        over: Per strategy that was left out, the limit that it exceeds.
        refused: Per strategy that cannot migrate the query, the reason.
        exceeds: True if every strategy exceeds a limit, so that even the chosen one does.
        pace: By what factor this machine is slower than the unit costs say; predicted times contain it.
    """

    strategy: str
    reason: str
    predictions: tuple[Prediction, ...]
    over: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    exceeds: bool = False
    pace: float = 1.0

    @property
    def predicted(self) -> Prediction:
        """The prediction for the chosen strategy."""
        return next(p for p in self.predictions if p.strategy == self.strategy)

    def document(self) -> dict[str, Any]:
        """Return the advice as JSON-compatible values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return a table for people, with the reason below it."""
        rows = [("strategy", "silence", "comparisons", "extra tuples", "work", "over after", "")]
        for p in self.predictions:
            note = "chosen" if p.strategy == self.strategy else self.over.get(p.strategy, "")
            counts = f"{p.comparisons:,.0f}", f"{p.extra_tuples:,.0f}"
            times = seconds(p.work_s), seconds(p.duration_ms / 1000)
            rows.append((p.strategy, seconds(p.silence_s), *counts, *times, note))
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        out = []
        for row in rows:
            cells = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:6], widths[1:6], strict=True))]
            out.append("  ".join([*cells, row[6]]).rstrip())
        refused = [f"not considered: {why}" for why in self.refused.values()]
        return [*out, *refused, f"{self.strategy}: {self.reason}"]


def seconds(value: float) -> str:
    """Format a duration with three digits."""
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if value < limit:
            return f"{value * factor:.3g} {unit}" if value > 0 else "0 s"
    return f"{value:.3g} s" if value < 1000 else f"{value:.0f} s"


def advise(
    query: Query,
    old: Plan,
    new: Plan,
    observed: Sequence[EngineStatistics],
    *,
    executor: str,
    goal: Goal | None = None,
    load: float = 0.0,
    running: str | None = None,
) -> Advice:
    """Choose the strategy for a change from one plan to another.

    Args:
        query: The query.
        old: The current plan.
        new: The plan to change to.
        observed: The statistics of each task of the query, with links.
        executor: The kind of executor.
        goal: What the user cares for.
        load: The share of one core that the busiest task needs now; 0 for a replay, where no user waits.
        running: The strategy of a migration that has not finished.

    Raises:
        UsageError: There are no statistics.
    """
    if not observed:
        raise UsageError("no task has published statistics to choose a migration strategy by: name one instead")
    goal = goal or Goal()
    refused: dict[str, str] = {}
    for name in STRATEGIES:
        try:
            check_strategy(name, executor, query)
        except UsageError as error:
            refused[name] = str(error)
    able = [name for name in PREFERENCE if name in STRATEGIES and name not in refused]
    rebuilt = all(one.spill is not None and one.spill.on_disk_tuples for one in observed)
    if rebuilt and MOVING_STATE in able:
        able = [MOVING_STATE]
    costs = [CostOfMigration(query, old, new, one, executor=executor, load=load) for one in observed]
    pace = max(cost.pace for cost in costs)
    predictions = {name: together([cost.prediction(name) for cost in costs]) for name in able}
    if running is not None and running in able and STRATEGIES[running].overlaps:
        reason = f"the {running} migration before it has not finished; any other strategy would wait for its end"
        return Advice(running, reason, tuple(predictions.values()), {}, refused, pace=pace)
    held = sum(one.state_tuples for one in observed)
    usual_s = max(cost.slice_s for cost in costs)
    longest_s = max(goal.silence_s, SLICES * usual_s)
    most = max(goal.extra_share * held, EXTRA_TUPLES)
    over = {p.strategy: why for p in predictions.values() if (why := _over(p, longest_s, most))}
    left = [p for p in predictions.values() if p.strategy not in over]
    within = f"within {seconds(longest_s)} of silence and {most:,.0f} tuples beside the new plan's"
    within += ", with all that was spilled to be read back" if rebuilt else ""
    if not left:
        chosen = min(predictions.values(), key=lambda p: max(p.silence_s / longest_s, p.beside_tuples / most))
        reason = f"none stays {within}; this one is nearest"
        del over[chosen.strategy]
    else:
        chosen = _best(left, goal.prefer)
        reason = f"{_WHY[goal.prefer]} of the {len(left)} {within}"
        best = min(left, key=_KEYS[goal.prefer])
        equals = [p.strategy for p in left if p is not chosen and as_good(p, best, goal.prefer)]
        if equals:
            reason += f"; {' and '.join(equals)} would do about as well, and end no earlier"
    order = sorted(predictions.values(), key=lambda p: (p is not chosen, p.strategy in over, _KEYS[goal.prefer](p)))
    return Advice(chosen.strategy, reason, tuple(order), over, refused, not left, pace)


_WHY = {"work": "least work", "silence": "shortest silence", "memory": "fewest tuples beside the new plan's"}
_KEYS: dict[Preference, Callable[[Prediction], float]] = {
    "work": lambda p: p.work_s,
    "silence": lambda p: p.silence_s,
    "memory": lambda p: p.beside_tuples,
}
_MARGINS = {"work": SAME_WORK_S, "silence": SAME_SILENCE_S, "memory": SAME_TUPLES}


def as_good(prediction: Prediction, best: Prediction, prefer: Preference) -> bool:
    """Return True if the model cannot distinguish a prediction from a better one."""
    value, least = _KEYS[prefer](prediction), _KEYS[prefer](best)
    return value <= least * CLEARLY_WORSE or value <= least + _MARGINS[prefer]


def _best(predictions: list[Prediction], prefer: Preference) -> Prediction:
    """Return the first, by duration and then PREFERENCE, of the predictions that are as good as the best."""
    best = min(predictions, key=_KEYS[prefer])
    equals = [p for p in predictions if as_good(p, best, prefer)]
    return min(equals, key=lambda p: (p.duration_ms, PREFERENCE.index(p.strategy)))


def _over(prediction: Prediction, longest_s: float, most: float) -> str:
    """Return which limit a strategy exceeds; empty if none."""
    if prediction.silence_s > longest_s:
        return f"silence over {seconds(longest_s)}"
    if prediction.beside_tuples > most:
        return f"holds {prediction.beside_tuples:,.0f} beside the new plan"
    return ""


def together(predictions: Sequence[Prediction]) -> Prediction:
    """Return the prediction for one strategy in several tasks."""
    return Prediction(
        predictions[0].strategy,
        max(p.silence_s for p in predictions),
        sum(p.comparisons for p in predictions),
        sum(p.extra_tuples for p in predictions),
        sum(p.work_s for p in predictions),
        max(p.duration_ms for p in predictions),
        sum(p.beside_tuples for p in predictions),
    )
