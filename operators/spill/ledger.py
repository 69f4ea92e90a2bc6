"""What is owed: per join and partition group, the parts that left memory and were not all joined with each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from operators.match import LEFT
from operators.plan import Join
from operators.spill.part import FAR_PAST, Part, Piece
from operators.tuples import FOREVER
from operators.watermark import END
from schemas.columns import I64

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
        # Per join the least `since` and `_until` of its parts; what is missing is found when it is asked for.
        self._least: dict[int, tuple[int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, group: Group, part: Part) -> None:
        """A part has left memory."""
        self._parts.setdefault(group, []).append(part)
        join = group[0]
        if join in self._least:
            since, until = self._least[join]
            self._least[join] = (min(since, part.since), min(until, self._until(join, part)))

    def add_late(self, group: Group, side: int, pieces: tuple[Piece, ...]) -> None:
        """Results of a cleanup below have come, tuples of one side of the group: those that come one after the other
        make one part, since none has been joined with anything."""
        parts = self._parts.setdefault(group, [])
        for at, part in enumerate(parts):
            if part.late and not part.pieces[1 - side]:
                parts[at] = _with(part, side, (*part.pieces[side], *pieces))
                return
        parts.append(Part((pieces, ()) if side == LEFT else ((), pieces), FAR_PAST, late=True))
        self._least.pop(group[0], None)

    def has(self, group: Group, side: int, piece: Piece) -> bool:
        """Whether this very piece is one of the group's."""
        return any(own is piece for part in self._parts.get(group, ()) for own in part.pieces[side])

    def replace(self, group: Group, side: int, piece: Piece, by: Sequence[Piece]) -> None:
        """The tuples of a piece are now in these."""
        parts = self._parts[group]
        for at, part in enumerate(parts):
            own = part.pieces[side]
            if any(one is piece for one in own):
                parts[at] = _with(part, side, tuple(new for one in own for new in (by if one is piece else (one,))))

    def pop(self, group: Group) -> list[Part]:
        """The group's parts, oldest first, which are owed no more."""
        parts = self._parts.pop(group, [])
        if parts:
            self._least.pop(group[0], None)
        return parts

    def clear(self) -> None:
        """Nothing is owed."""
        self._parts.clear()
        self._least.clear()

    def items(self) -> Iterator[tuple[Group, list[Part]]]:
        """Every group that has parts."""
        return iter(self._parts.items())

    def groups(self, join: int) -> list[int]:
        """The groups of a join that have parts, ascending."""
        return sorted(g for j, g in self._parts if j == join)

    def late(self, join: int) -> set[int]:
        """The groups of a join that have parts which came after their time."""
        return {g for (j, g), parts in self._parts.items() if j == join and any(part.late for part in parts)}

    def due(self, join: int, cut: int, overtaken: int = FAR_PAST) -> list[int]:
        """The groups of a join that have to be cleaned up before `purge(cut)`, and those of which a part has been owed
        since `overtaken` or longer; ascending."""
        since, until = self._earliest(join)
        if until >= cut and since > overtaken:
            return []
        return [
            g
            for g in self.groups(join)
            if any(self._until(join, part) < cut or part.since <= overtaken for part in self._parts[join, g])
        ]

    def hold(self, join: int) -> int:
        """The last cut at which this join's states may be purged: what is owed with their entries goes on to be found.

        Results that a join below owes come no earlier than its oldest part left, and may meet all that lived then.
        """
        return min([self._earliest(join)[1], *map(self.since, self._below[join])])

    def since(self, join: int) -> int:
        """Since when the join's oldest part has been owed; END when there is none. O(1) between cleanups."""
        return self._earliest(join)[0]

    def bound(self, join: int, cut: int) -> int:
        """What expired before this can be met by nothing that is still to come to the join."""
        return min([cut, *map(self.since, self._below[join])])

    def kept_from(self, group: Group, cut: int) -> int:
        """What expired before this and is in the group's memory is owed nothing, neither by parts nor by what is to
        come."""
        return min([self.bound(group[0], cut), *(part.since for part in self._parts.get(group, ()))])

    def _until(self, join: int, part: Part) -> int:
        """A purge beyond it would drop entries that the part has not been joined with."""
        return part.since if part.late else min(part.since + self._lives[join], FOREVER)

    def _earliest(self, join: int) -> tuple[int, int]:
        if join not in self._least:
            parts = [part for (j, _), own in self._parts.items() if j == join for part in own]
            since = min((part.since for part in parts), default=END)
            until = min((self._until(join, part) for part in parts), default=FOREVER)
            self._least[join] = (since, until)
        return self._least[join]

    def size(self, group: Group) -> int:
        """How many tuples a group's parts have."""
        return sum(sum(part.sizes()) for part in self._parts.get(group, ()))

    def tuples(self) -> int:
        """How many tuples are in parts."""
        return sum(sum(part.sizes()) for parts in self._parts.values() for part in parts)

    def unmet_since(self, groups: int) -> dict[int, I64]:
        """Per join that has parts, (groups,) since when what is in memory of a group has not met all of its parts; END
        where there are none."""
        found: dict[int, I64] = {}
        for (j, g), parts in self._parts.items():
            if j not in found:
                found[j] = np.full(groups, END)
            found[j][g] = min(part.since for part in parts)
        return found

    def owed_pairs(self, memory: Mapping[int, tuple[I64, I64]]) -> int:
        """Pairs of tuples that have not been compared, at most. 0 when all have been, though parts may stay on disk for
        what is to come.

        Args:
            memory: of joins that have parts, per side (groups,) how many tuples have come since `unmet_since`.
        """
        owed = 0
        for (j, g), parts in self._parts.items():
            left = right = 0
            # Per instant what left then: the second of such parts came before it too, so it has met the first.
            met: dict[int, tuple[int, int]] = {}
            for part in parts:
                a, b = part.sizes()
                own = met.get(part.since, (0, 0))
                owed += a * (right - own[1]) + b * (left - own[0])
                if not part.late:
                    met[part.since] = own[0] + a, own[1] + b
                left, right = left + a, right + b
            owed += left * int(memory[j][1][g]) + right * int(memory[j][0][g])
        return owed


def _with(part: Part, side: int, pieces: tuple[Piece, ...]) -> Part:
    """The part with other pieces of a side."""
    left, right = part.pieces
    return replace(part, pieces=(pieces, right) if side == LEFT else (left, pieces))
