"""Exchanges productivity counts of partition groups between tasks (state-spill 5, Algorithm 2).

When a plan's joins, or shares of a join, run in tasks of their own, a result's lineage leads to groups that other tasks
own. A task counts those too and sends the counts to the owners, who add them to their own. In the paper's terms,
`localIDs` are the groups that a task owns, and `remoteIDs` are all others.

The messages have totals over a task's incarnation. Totals never fall, so an owner adds the amount by which a total
exceeds the one that it knew. However often and in whatever order messages arrive, the result is the same. Counts that
have faded at the owner since then stay faded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from operators.spill.productivity import Counts, Productivity
from schemas.columns import Mask
from schemas.errors import InvariantError, StateError
from schemas.messages.control import PartitionTotals


class ProductivityExchange:
    """One task's side of the exchange.

    Args:
        counts: the task's own, with `owned`.
        operators: per join the name that tasks use for it: the sub-plan.

    Raises:
        InvariantError: the task owns all groups.
    """

    def __init__(self, counts: Productivity, operators: Sequence[str]) -> None:
        if counts.owned is None:
            raise InvariantError("a task that owns all groups has nothing to report")
        self._counts = counts
        self._owned: Mask = counts.owned
        self._joins = {operator: join for join, operator in enumerate(operators)}
        self._reported: tuple[Counts, Counts] = (np.zeros_like(counts.output), np.zeros_like(counts.inter))
        self._known: dict[tuple[int, str, int], tuple[Counts, Counts]] = {}

    def updates(self, query: str, task: int, incarnation: str) -> list[PartitionTotals]:
        """Messages about groups owned elsewhere whose totals changed since the last call, at most one per operator."""
        now = (self._counts.output, self._counts.inter)
        changed = ~self._owned & ((now[0] > self._reported[0]) | (now[1] > self._reported[1]))
        found = []
        for operator, join in self._joins.items():
            groups = np.flatnonzero(changed[join])
            if len(groups):
                output, inter = (counts[join, groups].tolist() for counts in now)
                found.append(
                    PartitionTotals(
                        query=query,
                        task=task,
                        incarnation=incarnation,
                        operator=operator,
                        groups=groups.tolist(),
                        output=output,
                        inter_bytes=inter,
                    )
                )
        self._reported = (now[0].copy(), now[1].copy())
        return found

    def merge(self, message: PartitionTotals) -> None:
        """Add another task's totals to the own counts. Operators and groups that are not owned here are ignored.

        Raises:
            StateError: the message names groups that the operator does not have, or the numbers of totals and groups
                differ.
        """
        join = self._joins.get(message.operator)
        if join is None:
            return
        groups = np.array(message.groups, np.int64)
        if not len(groups) == len(message.output) == len(message.inter_bytes):
            raise StateError(
                f"partition totals of task {message.task} for {message.operator}: {len(groups)} groups, "
                f"{len(message.output)} outputs, {len(message.inter_bytes)} sizes; all must be as many"
            )
        if len(groups) and not 0 <= groups.min() <= groups.max() < self._counts.groups:
            raise StateError(
                f"partition totals of task {message.task} for {message.operator}: groups {groups.min()} to "
                f"{groups.max()}; there are 0 to {self._counts.groups - 1}"
            )
        sender = (message.task, message.incarnation, join)
        none = np.zeros(self._counts.groups)
        known = self._known.setdefault(sender, (none, none.copy()))
        own = (self._counts.output, self._counts.inter)
        for mine, before, totals in zip(own, known, (message.output, message.inter_bytes), strict=True):
            gained = np.zeros(self._counts.groups)
            np.maximum.at(gained, groups, np.array(totals, np.float64))
            gained = np.maximum(gained - before, 0.0)
            before += gained
            mine[join] += np.where(self._owned[join], gained, 0.0)
