"""What is owed: per join and partition group, the parts that left memory and were not all joined with each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from operators.data.tuples import FOREVER
from operators.data.watermark import END
from operators.plan.plan import Join
from operators.spill.spilled_part import FAR_PAST, Part, Piece
from operators.state.match import LEFT
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
        # Of each group that has parts the least `since`: groups may have many, as many as they have left memory.
        self._since: dict[Group, int] = {}
        covers = [frozenset(node.aliases) for node in nodes]
        self._below = [[k for k in range(j) if covers[k] < covers[j]] for j in range(len(covers))]
        # Per join the least of its groups'; what is missing is found when it is asked for.
        self._least: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, group: Group, part: Part) -> None:
        """A part has left memory."""
        self._parts.setdefault(group, []).append(part)
        self._note(group, part.since)

    def add_late(self, group: Group, side: int, pieces: tuple[Piece, ...]) -> None:
        """Results of a cleanup below have come, tuples of one side of the group: those that come one after the other
        make one part, since none has been joined with anything."""
        parts = self._parts.setdefault(group, [])
        for at, part in enumerate(parts):
            if part.late and not part.pieces[1 - side]:
                parts[at] = _with(part, side, (*part.pieces[side], *pieces))
                return
        parts.append(Part((pieces, ()) if side == LEFT else ((), pieces), FAR_PAST, late=True))
        self._note(group, FAR_PAST)

    def _note(self, group: Group, since: int) -> None:
        self._since[group] = min(self._since.get(group, END), since)
        if group[0] in self._least:
            self._least[group[0]] = min(self._least[group[0]], since)

    def has(self, group: Group, side: int, piece: Piece) -> bool:
        """Whether this very piece is one of the group's."""
        return any(piece in part.pieces[side] for part in reversed(self._parts.get(group, ())))

    def replace(self, group: Group, side: int, piece: Piece, by: Sequence[Piece]) -> None:
        """The tuples of a piece are now in these."""
        parts = self._parts[group]
        # What was in memory until now came last, or nearly.
        for at in reversed(range(len(parts))):
            own = parts[at].pieces[side]
            if piece in own:
                k = own.index(piece)
                parts[at] = _with(parts[at], side, (*own[:k], *by, *own[k + 1 :]))
                return

    def pop(self, group: Group) -> list[Part]:
        """The group's parts, oldest first, which are owed no more."""
        parts = self._parts.pop(group, [])
        if parts:
            del self._since[group]
            self._least.pop(group[0], None)
        return parts

    def clear(self) -> None:
        """Nothing is owed."""
        self._parts.clear()
        self._since.clear()
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
        oldest = self.since(join)
        if self._until(join, oldest) >= cut and oldest > overtaken:
            return []
        own = sorted((g, since) for (j, g), since in self._since.items() if j == join)
        return [g for g, since in own if self._until(join, since) < cut or since <= overtaken]

    def hold(self, join: int) -> int:
        """The last cut at which this join's states may be purged: what is owed with their entries goes on to be found.

        Results that a join below owes come no earlier than its oldest part left, and may meet all that lived then.
        """
        return min([self._until(join, self.since(join)), *map(self.since, self._below[join])])

    def since(self, join: int) -> int:
        """Since when the join's oldest part has been owed; END when there is none. O(1) between cleanups."""
        if join not in self._least:
            self._least[join] = min((since for (j, _), since in self._since.items() if j == join), default=END)
        return self._least[join]

    def oldest(self) -> list[tuple[int, Group]]:
        """Every group that has parts and since when the oldest of them has been owed, ascending by that."""
        return sorted((since, group) for group, since in self._since.items())

    def bound(self, join: int, cut: int) -> int:
        """What expired before this can be met by nothing that is still to come to the join."""
        return min([cut, *map(self.since, self._below[join])])

    def kept_from(self, join: int, groups: Sequence[int], cut: int) -> list[int]:
        """Of each of a join's groups: what expired before this and is in its memory is owed nothing, neither by parts
        nor by what is to come."""
        bound = self.bound(join, cut)
        return [min(bound, self._since.get((join, g), END)) for g in groups]

    def _until(self, join: int, since: int) -> int:
        """A purge beyond it would drop entries that a part owed since then has not been joined with."""
        return min(since + self._lives[join], FOREVER)

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
        for (j, g), since in self._since.items():
            if j not in found:
                found[j] = np.full(groups, END)
            found[j][g] = since
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
    return Part((pieces, right) if side == LEFT else (left, pieces), part.since, part.late)
