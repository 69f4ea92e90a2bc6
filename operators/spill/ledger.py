"""What is owed: per join and partition group, the parts that left memory and were not all joined with each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from operators.plan import Join
from operators.spill.part import Part
from operators.tuples import FOREVER

Group = tuple[int, int]
"""A join's number, children before parents, and one of its partition groups."""


class Ledger:
    """The parts of one plan's joins.

    Until they have been cleaned up, parts are owed results with what is in memory, so that may not be forgotten before
    its time has passed for them too (`hold`). The paper leaves windows open; this is all that they need.

    Args:
        nodes: the joins of the plan, children before parents.
        lives: per join, how long an entry of either state lives after its ts, at least.
    """

    def __init__(self, nodes: Sequence[Join], lives: Sequence[int]) -> None:
        self._lives = lives
        self._parts: dict[Group, list[Part]] = {}
        covers = [frozenset(node.aliases) for node in nodes]
        self._below = [[k for k in range(j) if covers[k] < covers[j]] for j in range(len(covers))]

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, group: Group, part: Part) -> None:
        """A part has left memory."""
        self._parts.setdefault(group, []).append(part)

    def pop(self, group: Group) -> list[Part]:
        """The group's parts, oldest first, which are owed no more."""
        return self._parts.pop(group, [])

    def clear(self) -> None:
        """Nothing is owed."""
        self._parts.clear()

    def items(self) -> Iterator[tuple[Group, list[Part]]]:
        """Every group that has parts."""
        return iter(self._parts.items())

    def groups(self, join: int) -> list[int]:
        """The groups of a join that have parts, ascending."""
        return sorted(g for j, g in self._parts if j == join)

    def due(self, join: int, cut: int) -> list[int]:
        """The groups of a join that have to be cleaned up before `purge(cut)`, ascending."""
        return [g for g in self.groups(join) if any(self._until(join, p) < cut for p in self._parts[join, g])]

    def hold(self, join: int) -> int:
        """The last cut at which this join's states may be purged: what is owed with their entries goes on to be found.

        Results that a join below owes come no earlier than its oldest part left, and may meet all that lived then.
        """
        own = (self._until(join, part) for part in self._of([join]))
        below = (part.since for part in self._of(self._below[join]))
        return min([FOREVER, *own, *below])

    def bound(self, join: int, cut: int) -> int:
        """What expired before this can be met by nothing that is still to come to the join."""
        return min([cut, *(part.since for part in self._of(self._below[join]))])

    def kept_from(self, group: Group, cut: int) -> int:
        """What expired before this and is in the group's memory is owed nothing, neither by parts nor by what is to
        come."""
        return min([self.bound(group[0], cut), *(part.since for part in self._parts.get(group, ()))])

    def _until(self, join: int, part: Part) -> int:
        """A purge beyond it would drop entries that the part has not been joined with."""
        return part.since if part.late else min(part.since + self._lives[join], FOREVER)

    def _of(self, joins: Iterable[int]) -> Iterator[Part]:
        wanted = set(joins)
        for (join, _), parts in self._parts.items():
            if join in wanted:
                yield from parts

    def tuples(self) -> int:
        """How many tuples are in parts."""
        return sum(sum(part.sizes()) for parts in self._parts.values() for part in parts)

    def owed_pairs(self, memory: Iterable[tuple[Group, tuple[int, int]]]) -> int:
        """Pairs of tuples that have not been compared, at most: 0 when nothing is owed.

        Args:
            memory: of groups that have parts, how many tuples each side has in memory.
        """
        owed = 0
        held = dict(memory)
        for group, parts in self._parts.items():
            left = right = 0
            for a, b in [*(part.sizes() for part in parts), held.get(group, (0, 0))]:
                owed += a * right + b * left
                left, right = left + a, right + b
        return owed
