"""The memory budget of the tasks of a distributed query. Entries: `task_budget`, `traces_results`."""

from __future__ import annotations

from dataclasses import replace

from operators.engine.engine import for_aggregates
from operators.plan.plan import Plan
from operators.spill.spilling import MemoryBudget
from operators.state.sources import life_of
from schemas.query import Query


def task_budget(query: Query, budget: MemoryBudget, *, feedback: bool) -> MemoryBudget:
    """Return the budget of each task.

    Args:
        query: the whole query.
        budget: as the user gave it.
        feedback: whether tasks report to each other what they do not demand. A task could not keep back a tuple that it
            has spilled. Nor could a set difference take back what it has put out.
    """
    if feedback or query.subtracted:
        return replace(budget, in_time=True)
    if query.aggregation is not None:
        return for_aggregates(budget, min(map(life_of, query.sources)))
    return budget


def traces_results(plan: Plan, budget: MemoryBudget | None, *, feedback: bool) -> bool:
    """Return whether the results of joins carry what is needed to trace them (`operators.distributed.lineage`)."""
    return budget is not None and not feedback and len(plan.aliases) > 2
