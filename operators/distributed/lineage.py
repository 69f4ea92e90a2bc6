"""Traces the results of a join in a task of its own to partition groups in other tasks (state-spill 5, Algorithm 2).

Global spill strategies rank a group by the query's results that came from it. In a distributed plan these are made in
another task than the one that has the group. Results carry the columns that the joins below hash
(`operators.distributed.decompose.TracedJoin`), so a task can compute the group that each result went through, and which
task of a split join had it: both depend on the hash alone. `TaskProductivity` counts for all joins of its part of the
plan. What it has counted for groups of other tasks goes to them by way of `exchange`.
"""

from __future__ import annotations

import numpy as np

from operators.data.keys import key_hashes
from operators.data.tuples import Tuples
from operators.distributed.edge_writer import partition_of
from operators.distributed.operator import AGGREGATES, DistributedOperator
from operators.kernels.partition import groups_of
from operators.spill.exchange import ProductivityExchange
from operators.spill.productivity import Counts, Productivity, heights_of
from operators.state.sources import Sources
from schemas.columns import I64

ENTRY_BYTES = 40
VALUE_BYTES = 8
"""Approximate memory of a result in the state of the join above: its entry, and each of its columns."""


class DistributedLineage:
    """The split functions of the joins in a part of a distributed plan; an `operators.spill.productivity.Tracing`.

    The groups of a join with several tasks are numbered through: group g of task t is t * groups + g.

    Args:
        operator: the join that makes the results.
        share: the number of its task.
        groups: partition groups per task of a join.
    """

    def __init__(self, sources: Sources, operator: DistributedOperator, share: int, groups: int) -> None:
        self._sources = sources
        self._operator = operator
        self._share = share
        self._groups = groups
        every = np.arange(len(operator.traced), dtype=np.int64)
        self.below = [every[: number + 1] for number in range(len(operator.traced))]

    def trace(self, join: int, results: Tuples) -> I64:
        """Return (joins, n) the groups that results of the task's own join, the last one, went through."""
        n = len(results)
        resolve = self._sources.resolver(results.aliases, results.rows)
        found = np.zeros((len(self._operator.traced), n), np.int64)
        for number, traced in enumerate(self._operator.traced):
            if traced.key:
                hashes, _ = key_hashes([operand.values(resolve, n) for operand in traced.key])
                found[number] = groups_of(hashes, self._groups)
                if not self._operator.forward and traced.tasks > 1:
                    found[number] += self._groups * partition_of(hashes, traced.tasks)
            if self._operator.forward:
                found[number] += self._groups * self._share
        return found


class TaskProductivity:
    """The productivity of one task's partition groups; an `operators.spill.productivity.GroupProductivity` of one join.

    Args:
        operator: the task's join; it traces results.
        share: the number of the task among the join's.
        groups: partition groups per task.

    Attributes:
        heights: of the join, over the sources.
        exchange: the counts of other tasks' groups, and what other tasks have counted for this one's.
    """

    def __init__(self, sources: Sources, operator: DistributedOperator, share: int, groups: int) -> None:
        joins = operator.traced
        self._join, self._first, self._groups = len(joins) - 1, share * groups, groups
        self.heights = heights_of([traced.aliases for traced in joins])[-1:]
        self._final = not operator.outputs or operator.outputs[0].consumer == AGGREGATES
        cells = groups * max(operator.tasks if operator.forward else traced.tasks for traced in joins)
        owned = np.zeros((len(joins), cells), np.bool_)
        owned[self._join, self._first : self._first + groups] = True
        result_bytes = 0 if self._final else ENTRY_BYTES + VALUE_BYTES * (1 + len(operator.outputs[0].fields))
        self._counts = Productivity(
            DistributedLineage(sources, operator, share, groups),
            [0] * self._join + [result_bytes],
            cells,
            owned=owned,
        )
        self.exchange = ProductivityExchange(self._counts, [traced.name for traced in joins])

    @property
    def local(self) -> Counts:
        """(1, groups) results of the join."""
        return self._own(self._counts.local)

    @property
    def output(self) -> Counts:
        """(1, groups) results of the query."""
        return self._own(self._counts.output)

    @property
    def inter(self) -> Counts:
        """(1, groups) bytes of intermediate results."""
        return self._own(self._counts.inter)

    def _own(self, counts: Counts) -> Counts:
        return counts[self._join : self._join + 1, self._first : self._first + self._groups]

    def note(self, join: int, produced: Tuples, *, final: bool) -> None:
        """Count results that the join has just made."""
        self._counts.note(self._join, produced, final=self._final)

    def age(self, share: float) -> None:
        """Fade the own counts after tuples have arrived."""
        self._counts.age(share)

    def spilled(self, joins: I64, groups: I64, share: float) -> None:
        """Reset the counts of spilled groups and fade the others."""
        self._counts.spilled(joins + self._join, groups + self._first, share)
