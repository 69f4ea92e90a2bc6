"""The X-Join tree executor: a plan of binary joins, run slice by slice, children before parents.

`operators.engine.executors` creates `XJoinTree`, the executor of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from operators.data.statistics import OperatorStatistics
from operators.data.tuples import Tuples
from operators.join.binary_join import BinaryJoin
from operators.join.executor import operator_statistics
from operators.plan.plan import Join, Leaf, Plan, postorder
from operators.state.match import Prepared
from operators.state.sources import Sources


class XJoinTree:
    """Executes a plan of binary joins; an `Executor`.

    Attributes:
        sources: the stores that tuples' row ids refer to.
        plan: the plan.
        joins: the plan's joins, children before parents, with the sub-plan of each.
        produced: called with the number of a join in `joins` and its new results; None for no call.
    """

    def __init__(self, sources: Sources, plan: Plan) -> None:
        self.sources = sources
        self.plan = plan
        self.produced: Callable[[int, Tuples], None] | None = None
        self.joins: list[tuple[Join, BinaryJoin]] = []
        for node in postorder(plan):
            if isinstance(node, Join):
                self.joins.append((node, BinaryJoin(sources, node.left.aliases, node.right.aliases)))

    def process(self, epoch: Mapping[str, Tuples | Prepared], now: int) -> Tuples:
        """Run one slice.

        Args:
            epoch: new tuples per alias, ascending by ts; aliases without new tuples may be absent. They may already be
                prepared for their join.
            now: the slice's first instant.

        Returns:
            The query's new results, ascending by ts, with rows in the plan's alias order.
        """

        def new(node: Plan) -> Tuples | Prepared:
            if isinstance(node, Leaf):
                return epoch.get(node.alias) or Tuples.empty((node.alias,))
            return outputs.pop(id(node))

        outputs: dict[int, Tuples] = {}
        for number, (node, join) in enumerate(self.joins):
            left, right = new(node.left), new(node.right)
            made = join.process(left, right, now) if len(left) or len(right) else Tuples.empty(join.aliases)
            outputs[id(node)] = made
            if self.produced is not None and len(made):
                self.produced(number, made)
        found = new(self.plan)
        return found.tuples if isinstance(found, Prepared) else found

    def purge(self, cut: int) -> None:
        """Drop the entries that no tuple with ts >= cut can meet, in every state."""
        for _, join in self.joins:
            join.purge(cut)

    def operators(self) -> tuple[OperatorStatistics, ...]:
        """Return counters and sizes per join, children before parents."""
        return tuple(
            operator_statistics(
                str(node), bool(join.match.condition.keys), join.counters, (join.states[0], join.states[1])
            )
            for node, join in self.joins
        )

    def comparisons(self) -> int:
        """Return the number of predicate evaluations so far."""
        return sum(join.counters.comparisons for _, join in self.joins)

    def intermediate_results(self) -> int:
        """Return the number of results so far of all joins but the topmost."""
        return sum(join.counters.results for _, join in self.joins[:-1])

    def state_tuples(self) -> int:
        """Return the number of tuples in all states."""
        return sum(len(state) for _, join in self.joins for state in join.states)

    def size_bytes(self) -> int:
        """Return the bytes of all states."""
        return sum(state.size_bytes() for _, join in self.joins for state in join.states)
