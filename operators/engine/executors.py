"""The executors by name, and the choice of the cheapest. The engine calls `executor_of`."""

from __future__ import annotations

from collections.abc import Callable

from operators.difference.pipeline import DifferencePipeline
from operators.join.eddy import Eddy
from operators.join.executor import JUGGLER, Executor
from operators.join.mjoin import MJoin, probe_orders
from operators.join.stairs import Stairs
from operators.join.tree import XJoinTree
from operators.juggler.mixed import MixedTree
from operators.plan.choose import MAX_EXHAUSTIVE_ALIASES, CostModel, Statistics, declared_statistics
from operators.plan.plan import Join, Plan, postorder
from operators.state.sources import Sources
from schemas import refusals
from schemas.query import Query

EXECUTORS: dict[str, Callable[[Sources, Plan, Statistics | None], Executor]] = {
    "xjoin": lambda sources, plan, statistics: XJoinTree(sources, plan),
    "mjoin": MJoin,
    "eddy": lambda sources, plan, statistics: Eddy(sources, plan),
    "stairs": lambda sources, plan, statistics: Stairs(sources, plan),
}


def executor_of(name: str, sources: Sources, plan: Plan, statistics: Statistics | None = None) -> Executor:
    """Make the executor called `name` for a query's plan. A set difference has an executor of its own, named `xjoin`.

    Raises:
        UsageError: this executor cannot execute the query, or the plan does not fit it.
    """
    refusals.check(sources.query, refusals.executor(name))
    if name == JUGGLER:
        return MixedTree(sources, plan)
    if sources.query.subtracted:
        return DifferencePipeline(sources, plan)
    return EXECUTORS[name](sources, plan, statistics)


KEPT_COST = 4.0
"""Cost of storing an intermediate result and probing with it, in units of making one. Measured on the 4-way clique,
where tree and M-Join make about a hundred per tuple: the states of a tree do not fit the caches."""

CLEARLY_LESS = 0.9
"""An M-Join is chosen when it costs less than this share of the tree, since its plan is harder to read."""


def cheapest_executor(query: Query, plan: Plan, statistics: Statistics | None = None) -> str:
    """Return `xjoin` or `mjoin`, whichever the cost model expects to do less work for the plan's aliases.

    It is `xjoin` for more aliases than exhaustive search covers: the cost of so long a chain cannot be estimated well.
    """
    if query.subtracted or not 3 <= len(plan.aliases) <= MAX_EXHAUSTIVE_ALIASES or not isinstance(plan, Join):
        return "xjoin"
    model = CostModel(query, statistics or declared_statistics(query))
    sizes = model.estimates(plan)
    tree = 0.0
    for node in postorder(plan):
        if isinstance(node, Join) and node is not plan:
            tree += sizes[frozenset(node.aliases)].rate * (1.0 + KEPT_COST)
    tree += sum(model.leaf(alias).rate for alias in plan.aliases) * 2.0
    chain = 0.0
    states = set()
    for source, order in probe_orders(query, plan, statistics).items():
        rate = model.leaf(source).rate
        covered = frozenset({source})
        for alias in order:
            other = frozenset({alias})
            states.add((alias, covered if model.connected(covered, other) else None))
            chain += rate
            rate *= model.leaf(alias).alive * model.selectivity(covered, other)
            if not model.hashed(covered, other):
                chain += rate / max(model.selectivity(covered, other), 1e-9) * 0.1
            chain += rate
            covered |= other
    chain += sum(model.leaf(alias).rate for alias, _ in states)
    return "mjoin" if chain < CLEARLY_LESS * tree else "xjoin"
