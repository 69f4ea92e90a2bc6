"""The ledger lists spilled parts, per join and partition group, that have not all been joined with each other.

`operators.spill.eviction` adds parts when groups are spilled. `operators.spill.cleanup.by_join` takes them out. What
the ledger lists determines which results are pending.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from operators.data.tuples import FOREVER
from operators.data.watermark import END, NEVER
from operators.plan.plan import Join
from operators.spill.spilled_part import SpilledPart, SpilledPiece
from operators.state.match import LEFT
from schemas.columns import I64

Group = tuple[int, int]
"""A join's number, children before parents, and the number of one of its partition groups."""


class Ledger:
    """The parts of one plan's joins.

    Until parts have been cleaned up, they have pending results with the entries in memory. So these entries may not be
    purged while the parts can still match them (`hold`). The paper leaves windows open; this is all that they need.

    Args:
        nodes: the joins of the plan, children before parents.
        lifetimes: per join, the minimum time that an entry of either state lives after its ts.

    Attributes:
        input_complete: other tasks below have no pending results with a smaller ts; END without such tasks.
    """

    def __init__(self, nodes: Sequence[Join], lifetimes: Sequence[int]) -> None:
        self._lifetimes = lifetimes
        self.input_complete = END
        self._parts: dict[Group, list[SpilledPart]] = {}
        # The least `since` of each group that has parts. A group may have many: one for each time it was spilled.
        self._since: dict[Group, int] = {}
        covers = [frozenset(node.aliases) for node in nodes]
        self._below = [[k for k in range(j) if covers[k] < covers[j]] for j in range(len(covers))]
        # Per join the least `since` of its groups; computed on demand.
        self._least: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, group: Group, part: SpilledPart) -> None:
        """Add a part that was spilled."""
        self._parts.setdefault(group, []).append(part)
        self._record_since(group, part.since)

    def add_late(self, group: Group, side: int, pieces: tuple[SpilledPiece, ...]) -> None:
        """Add results of a cleanup below, as tuples of one side of the group. Consecutive additions to a side make one
        part, since none of these tuples has been joined with anything."""
        parts = self._parts.setdefault(group, [])
        for at, part in enumerate(parts):
            if part.late and not part.pieces[1 - side]:
                parts[at] = _with_pieces(part, side, (*part.pieces[side], *pieces))
                return
        parts.append(SpilledPart((pieces, ()) if side == LEFT else ((), pieces), NEVER, late=True))
        self._record_since(group, NEVER)

    def _record_since(self, group: Group, since: int) -> None:
        self._since[group] = min(self._since.get(group, END), since)
        if group[0] in self._least:
            self._least[group[0]] = min(self._least[group[0]], since)

    def has(self, group: Group, side: int, piece: SpilledPiece) -> bool:
        """Whether this very piece is one of the group's."""
        return any(piece in part.pieces[side] for part in reversed(self._parts.get(group, ())))

    def replace(self, group: Group, side: int, piece: SpilledPiece, by: Sequence[SpilledPiece]) -> None:
        """Replace a piece by others that contain its tuples now."""
        parts = self._parts[group]
        # A piece that was in memory until now is in one of the last parts.
        for at in reversed(range(len(parts))):
            own = parts[at].pieces[side]
            if piece in own:
                k = own.index(piece)
                parts[at] = _with_pieces(parts[at], side, (*own[:k], *by, *own[k + 1 :]))
                return

    def pop(self, group: Group) -> list[SpilledPart]:
        """Remove and return the group's parts, oldest first."""
        parts = self._parts.pop(group, [])
        if parts:
            del self._since[group]
            self._least.pop(group[0], None)
        return parts

    def clear(self) -> None:
        """Remove all parts."""
        self._parts.clear()
        self._since.clear()
        self._least.clear()

    def items(self) -> Iterator[tuple[Group, list[SpilledPart]]]:
        """Every group that has parts."""
        return iter(self._parts.items())

    def groups(self, join: int) -> list[int]:
        """The groups of a join that have parts, ascending."""
        return sorted(g for j, g in self._parts if j == join)

    def late(self, join: int) -> set[int]:
        """The groups of a join that have late parts."""
        return {g for (j, g), parts in self._parts.items() if j == join and any(part.late for part in parts)}

    def due(self, join: int, cut: int, overdue_since: int = NEVER) -> list[int]:
        """The groups of a join that have to be cleaned up before `purge(cut)`, and those with a part that has had
        pending results since `overdue_since` or earlier; ascending."""
        oldest = self.since(join)
        if self._last_purge(join, oldest) >= cut and oldest > overdue_since:
            return []
        own = sorted((g, since) for (j, g), since in self._since.items() if j == join)
        return [g for g, since in own if self._last_purge(join, since) < cut or since <= overdue_since]

    def hold(self, join: int) -> int:
        """The last cut at which this join's states may be purged without losing pending results with their entries.

        The pending results of a join below have no smaller ts than the time when its oldest part left memory, and may
        match every entry that was alive then.
        """
        return min(self.input_complete, self._last_purge(join, self.since(join)), *map(self.since, self._below[join]))

    def since(self, join: int) -> int:
        """Since when the join's oldest part has had pending results; END when there is none. O(1) between cleanups."""
        if join not in self._least:
            self._least[join] = min((since for (j, _), since in self._since.items() if j == join), default=END)
        return self._least[join]

    def oldest(self) -> list[tuple[int, Group]]:
        """Every group that has parts, and since when its oldest part has had pending results; ascending by that."""
        return sorted((since, group) for group, since in self._since.items())

    def bound(self, join: int, cut: int) -> int:
        """Tuples that expired before this can match nothing that the join may still receive."""
        return min(self.input_complete, cut, *map(self.since, self._below[join]))

    def kept_from(self, join: int, groups: Sequence[int], cut: int) -> list[int]:
        """Per group of a join: entries in memory that expired before this have no pending results, neither with parts
        nor with what the join may still receive."""
        bound = self.bound(join, cut)
        return [min(bound, self._since.get((join, g), END)) for g in groups]

    def _last_purge(self, join: int, since: int) -> int:
        """The last cut for a purge that keeps all entries with which a part of this age has not been joined."""
        return min(since + self._lifetimes[join], FOREVER)

    def size(self, group: Group) -> int:
        """The number of tuples in a group's parts."""
        return sum(sum(part.sizes()) for part in self._parts.get(group, ()))

    def tuples(self) -> int:
        """The number of tuples in all parts."""
        return sum(sum(part.sizes()) for parts in self._parts.values() for part in parts)

    def unjoined_since(self, groups: int) -> dict[int, I64]:
        """Per join that has parts, (groups,) the ts since which entries in memory of a group have not been joined with
        all of its parts; END where there are no parts."""
        found: dict[int, I64] = {}
        for (j, g), since in self._since.items():
            if j not in found:
                found[j] = np.full(groups, END)
            found[j][g] = since
        return found

    def pending_pairs(self, memory: Mapping[int, tuple[I64, I64]]) -> int:
        """Upper bound of the pairs of tuples that have not been compared. 0 when all have been, even if parts stay on
        disk to be joined with later tuples.

        Args:
            memory: of joins that have parts, per side (groups,) the number of tuples that came since `unjoined_since`.
        """
        pairs = 0
        for (j, g), parts in self._parts.items():
            left = right = 0
            # Per instant the sizes of parts that left then: tuples of the second of such parts are older than the
            # instant too, so they were joined with the first.
            met: dict[int, tuple[int, int]] = {}
            for part in parts:
                a, b = part.sizes()
                own = met.get(part.since, (0, 0))
                pairs += a * (right - own[1]) + b * (left - own[0])
                if not part.late:
                    met[part.since] = own[0] + a, own[1] + b
                left, right = left + a, right + b
            pairs += left * int(memory[j][1][g]) + right * int(memory[j][0][g])
        return pairs


def _with_pieces(part: SpilledPart, side: int, pieces: tuple[SpilledPiece, ...]) -> SpilledPart:
    """A copy of the part with other pieces of one side."""
    left, right = part.pieces
    return SpilledPart((pieces, right) if side == LEFT else (left, pieces), part.since, part.late)
