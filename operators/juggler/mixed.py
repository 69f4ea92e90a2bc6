"""Executes plans that mix multi-way operators and binary joins (Juggler Fig. 3.5 and 5.3), written `((B H T) K)`.

`operators.engine.executors` creates `MixedTree` for the `juggler` executor. One Juggler operator joins three or more
inputs that share one pair of parentheses. Binary joins join the rest and read the operator's results like those of
another join.

Invariants: the results are those of the plan with binary joins alone. Limits: a multi-way operator's inputs are
sources, not other joins; it takes the windows that `schemas.groups` takes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from operators.data.statistics import OperatorStatistics
from operators.data.tuples import Tuples
from operators.join.binary_join import BinaryJoin
from operators.join.executor import operator_statistics
from operators.juggler.operator import Juggler
from operators.juggler.predicates.order import ADAPTIVE
from operators.juggler.state.sources import GroupSources
from operators.plan.equalities import equality_classes
from operators.plan.plan import Join, Leaf, Plan, multiway_join, postorder
from operators.state.sources import Sources
from schemas.groups import QueryGroup, query_group
from schemas.query import Query, aliases_of


class _BorrowedSources(GroupSources):
    """Gives an operator over some of a query's sources the stores of that query."""

    def __init__(self, group: QueryGroup, owner: Sources) -> None:
        super().__init__(group)
        self.stores = {name: owner.stores[name] for name in self.stores}
        self._store_of = {source.alias: self.stores[source.stream.name] for source in group.inputs}
        self.scratch = owner.scratch


class MixedTree:
    """Executes a query's plan.

    Args:
        sources: the stores of the query's sources.
        plan: one Juggler operator executes the whole of a plan without multi-way joins.
        order: the order of predicate types in every operator.

    Attributes:
        plan: the plan executed.
        multi: each multi-way operator, by its aliases.
    """

    def __init__(self, sources: Sources, plan: Plan, order: str = ADAPTIVE) -> None:
        self.sources = sources
        if not any(isinstance(node, Join) and node.multiway for node in postorder(plan)):
            plan = multiway_join(plan)
        self.plan = plan
        self.multi: dict[frozenset[str], Juggler] = {}
        self._joins: list[tuple[Join, BinaryJoin]] = []
        self._grow(plan, order)

    def _grow(self, node: Plan, order: str) -> None:
        """Create the operators, children before parents."""
        if isinstance(node, Join) and not node.multiway:
            self._grow(node.left, order)
            self._grow(node.right, order)
            self._joins.append((node, BinaryJoin(self.sources, node.left.aliases, node.right.aliases)))
        elif isinstance(node, Join):
            group = query_group([part_of(self.sources.query, node.aliases)])
            self.multi[frozenset(node.aliases)] = Juggler(_BorrowedSources(group, self.sources), group, order)

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        outputs: dict[frozenset[str], Tuples] = {}
        for over, operator in self.multi.items():
            (found,) = operator.process({alias: epoch[alias] for alias in epoch if alias in over}, now).values()
            outputs[over] = found

        def new(node: Plan) -> Tuples:
            if isinstance(node, Leaf):
                return epoch.get(node.alias) or Tuples.empty((node.alias,))
            return outputs.pop(frozenset(node.aliases)).reorder(node.aliases)

        for node, join in self._joins:
            outputs[frozenset(node.aliases)] = join.process(new(node.left), new(node.right), now)
        return new(self.plan)

    def purge(self, cut: int) -> None:
        """Drop tuples that no tuple with ts >= cut can join, in every state."""
        for operator in self.multi.values():
            operator.purge(cut)
        for _, join in self._joins:
            join.purge(cut)

    def operators(self) -> tuple[OperatorStatistics, ...]:
        """Counters and sizes of the binary joins."""
        return tuple(
            operator_statistics(
                str(node), bool(join.match.condition.keys), join.counters, (join.states[0], join.states[1])
            )
            for node, join in self._joins
        )

    def comparisons(self) -> int:
        """Predicate evaluations so far."""
        multi = sum(operator.comparisons() for operator in self.multi.values())
        return multi + sum(join.counters.comparisons for _, join in self._joins)

    def intermediate_results(self) -> int:
        """Tuples produced that were no result: between the predicate types of an operator, by an operator or by a join
        below the topmost one."""
        below = [join.counters.results for node, join in self._joins if node is not self.plan]
        made = [sum(o.counters.results.values()) for over, o in self.multi.items() if over != set(self.plan.aliases)]
        return sum(operator.intermediate_results() for operator in self.multi.values()) + sum(below) + sum(made)

    def state_tuples(self) -> int:
        """Tuples in all states."""
        multi = sum(operator.state_tuples() for operator in self.multi.values())
        return multi + sum(len(state) for _, join in self._joins for state in join.states)

    def size_bytes(self) -> int:
        """Bytes of all states."""
        multi = sum(operator.size_bytes() for operator in self.multi.values())
        return multi + sum(state.size_bytes() for _, join in self._joins for state in join.states)


def part_of(query: Query, over: Collection[str]) -> Query:
    """The query restricted to some of its aliases.

    The result has the sources of these aliases and the predicates between them. It adds the equalities that follow from
    others, since a join above assumes that they hold. The engine has already applied predicates over one source, and
    looked tuples up: what was found are columns like any other.
    """
    written = tuple(p for p in query.predicates if len(aliases_of(p)) > 1 and aliases_of(p) <= set(over))
    classes = dict.fromkeys(equality_classes(query.predicates).values())
    return replace(
        query,
        sources=tuple(source for source in query.sources if source.alias in over),
        predicates=(*written, *(equality for one in classes for equality in one.missing(over))),
        outputs=(),
        partition_by=(),
        lookups=(),
    )
