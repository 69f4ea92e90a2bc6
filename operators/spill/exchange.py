"""What tasks tell each other of partition groups (state-spill 5, Algorithm 2).

Where a plan's joins, or shares of one, run in tasks of their own, a result is traced to groups that other tasks hold.
A task counts those too and tells their holders, who count them with their own: `local` of the paper's two kinds of IDs
is what a task holds, `remote` what it does not.

What is told are totals of a task's life. They never fall, so a holder adds by how much one exceeds what it knew:
however often and in whatever order messages come, it ends at the same. What has faded with the holder since stays so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from operators.spill.productivity import Counts, Productivity
from schemas.columns import Mask
from schemas.errors import InvariantError, StateError
from schemas.messages.control import PartitionTotals


class Exchange:
    """A task's part.

    Args:
        counts: the task's own, with `held`.
        operators: what each of its joins is called among tasks: the sub-plan.
    """

    def __init__(self, counts: Productivity, operators: Sequence[str]) -> None:
        if counts.held is None:
            raise InvariantError("a task that holds all groups has nothing to tell")
        self._counts = counts
        self._held: Mask = counts.held
        self._joins = {operator: join for join, operator in enumerate(operators)}
        self._told: tuple[Counts, Counts] = (np.zeros_like(counts.output), np.zeros_like(counts.inter))
        self._known: dict[tuple[int, str, int], tuple[Counts, Counts]] = {}

    def updates(self, query: str, task: int, life: str) -> list[PartitionTotals]:
        """What there is to tell of groups held elsewhere since the last call, a message per operator."""
        now = (self._counts.output, self._counts.inter)
        changed = ~self._held & ((now[0] > self._told[0]) | (now[1] > self._told[1]))
        found = []
        for operator, join in self._joins.items():
            groups = np.flatnonzero(changed[join])
            if len(groups):
                output, inter = (counts[join, groups].tolist() for counts in now)
                found.append(
                    PartitionTotals(
                        query=query,
                        task=task,
                        life=life,
                        operator=operator,
                        groups=groups.tolist(),
                        output=output,
                        inter_bytes=inter,
                    )
                )
        self._told = (now[0].copy(), now[1].copy())
        return found

    def merge(self, message: PartitionTotals) -> None:
        """Count what another task tells; of operators and groups that are not here, nothing.

        Raises:
            StateError: it names groups that the operator does not have, or not as many totals as groups.
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
        teller = (message.task, message.life, join)
        none = np.zeros(self._counts.groups)
        known = self._known.setdefault(teller, (none, none.copy()))
        own = (self._counts.output, self._counts.inter)
        for mine, before, totals in zip(own, known, (message.output, message.inter_bytes), strict=True):
            gained = np.zeros(self._counts.groups)
            np.maximum.at(gained, groups, np.array(totals, np.float64))
            gained = np.maximum(gained - before, 0.0)
            before += gained
            mine[join] += np.where(self._held[join], gained, 0.0)
