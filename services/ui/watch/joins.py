"""What the page shows of single joins beside their rates: feedback, how complete states are, and the time they take.

`services.ui.documents.picture` calls `feedback` and `completed`. `services.ui.watch.live` calls `busy_by_join`. All are
pure functions of what tasks have reported.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from operators.data.statistics import EngineStatistics, OperatorStatistics
from operators.explain.analyze import Observation
from operators.groups.statistics import GroupStatistics

Document = dict[str, Any]

_SUMMED = ("kept_back", "demanded", "late", "suppressed", "saved_bytes", "detecting_s")


def feedback(observations: Sequence[Observation], plans: Collection[str]) -> dict[str, list[Document]]:
    """Return the feedback that the sub-plans of a plan get, summed over tasks, by producer.

    Args:
        plans: the sub-plans; feedback between others is passed over.
    """
    edges = [edge for one in observations for edge in one.latest.feedback]
    found: dict[str, list[Document]] = {}
    for consumer, producer in dict.fromkeys((edge.consumer, edge.producer) for edge in edges):
        if consumer not in plans or producer not in plans:
            continue
        same = [edge for edge in edges if (edge.consumer, edge.producer) == (consumer, producer)]
        totals = {name: sum(getattr(edge, name) for edge in same) for name in _SUMMED}
        watching = any(edge.watching for edge in same)
        found.setdefault(producer, []).append({"consumer": consumer, "watching": watching} | totals)
    return found


def completed(
    operator: OperatorStatistics, observations: Sequence[Observation], plan: str
) -> tuple[float | None, float | None]:
    """Return what share of each state of an operator is there, left then right; None where that is not known.

    A state whose join keys have been counted is as complete as they are. Another one is taken to be as complete as the
    migration that it belongs to.

    Args:
        operator: summed over tasks.
        plan: the plan that the operator belongs to.
    """
    going = [
        migration
        for one in observations
        for migration in one.latest.migrations
        if migration.to_plan == plan and migration.began_at is not None and migration.finished_at is None
    ]
    done, total = sum(migration.done for migration in going), sum(migration.total for migration in going)

    def share(side: int) -> float | None:
        if operator.complete[side]:
            return 1.0
        if operator.total_keys[side]:
            return operator.completed_keys[side] / operator.total_keys[side]
        return done / total if total else None

    return share(0), share(1)


def busy_by_join(
    before: EngineStatistics | GroupStatistics, latest: EngineStatistics | GroupStatistics
) -> dict[str, float]:
    """Return how many seconds an engine has taken for each operator between two reports of one incarnation.

    The engine measures all operators together. An operator's part is its part of the tuples taken in and made. Those
    of a group of queries are not known.
    """
    if not isinstance(before, EngineStatistics) or not isinstance(latest, EngineStatistics):
        return {}
    then, now = _work(before), _work(latest)
    # An operator whose counters have fallen has begun anew, with another plan.
    work = {name: made - then[name] if made >= then[name] else made for name, made in now.items()}
    each_s = max(latest.busy_s - before.busy_s, 0.0) / max(sum(work.values()), 1)
    return {name: made * each_s for name, made in work.items() if made}


def _work(statistics: EngineStatistics) -> Counter[str]:
    """Return the tuples that each operator has taken in and made, by name: also of two plans that run together."""
    found: Counter[str] = Counter()
    for operator in statistics.operators:
        found[sys.intern(operator.name)] += operator.input_tuples + operator.results  # names stay in the history
    return found
