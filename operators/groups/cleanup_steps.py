"""Settles what a shared operator owes in rounds, and each of them in instalments: between two slices no pause.

It is time to settle when half of what is on disk is dead, when there is nothing else to do (`some`), and at the end. In
each round the results up to some time are found, step by step (`operators.groups.cleanup`); they are given when it is
over, all at once, and `settled` moves then. So what has been given is told by two things, when tuples left and
`settled`, and who has the same tuples again can go on from them.

A round goes no further than to where tuples have left, if it can: what it is over has left together, blocks are full,
and memory is not asked. In the time in which n tuples come what RATE times as many owe is settled, so what is on disk
is at most two and a half times what windows hold. Slices are made so small that an instalment is none too large.

What is due does not wait for what is owed: for each tuple that comes MOST_WORK are looked at, whatever that settles.
Where more is owed than that, the disk takes it until there is time.

Limits: a step is taken at once. What a round has found waits in memory for its end.
"""

from __future__ import annotations

from collections.abc import Callable

from operators.data.tuples import Tuples
from operators.groups.cleanup import Join, Queries, Settlement
from operators.groups.spill import GroupSpill
from operators.juggler.state.sources import GroupSources
from schemas.columns import Batch
from schemas.groups import Member

DEAD_SHARE = 0.5
"""It is time to settle when so much of what is on disk is dead."""

RATE = 2.0
"""Of how many tuples the debts are settled for one that comes."""

MOST_WORK = 128.0
"""How many tuples are looked at for one that comes, at most: what is due does not wait for what is owed."""

INSTALMENT_TUPLES = 1 << 15
"""What an instalment looks at, about, if that takes no smaller slices than a budget may ask for."""

Output = Callable[[Member, Tuples, GroupSources], Batch]
"""A query's results of what was found, rows of those stores."""


class Rounds:
    """What is owed by a spill, and when it is found.

    Args:
        join: see `Settlement.go_on`.
    """

    def __init__(self, spill: GroupSpill, join: Join, output: Output) -> None:
        self._spill = spill
        self._join = join
        self._output = output
        self._round: Settlement | None = None
        # Up to where it is time to settle, and how many tuples' debts may be settled.
        self._until: int | None = None
        self._credit = 0.0
        # How many tuples may be looked at before more come; below 0 too many have been.
        self._allowed = 0.0
        # How many are looked at to settle the debts of one, as it was last.
        self._work = 0.0
        self._found: dict[str, list[Batch]] = {}
        self._given: dict[str, list[Batch]] = {}

    @property
    def going_on(self) -> bool:
        """Whether blocks are being read now and then."""
        return self._until is not None

    @property
    def slice_tuples(self) -> int:
        """How many tuples a slice may have, that an instalment be no larger than it should."""
        return max(1, int(INSTALMENT_TUPLES / min(max(RATE * self._work, 1.0), MOST_WORK)))

    @property
    def keeps_up(self) -> float:
        """How many times as fast as tuples come their debts may be settled; below 1 ever more is owed."""
        return MOST_WORK / max(self._work, 1.0)

    def take(self) -> dict[str, list[Batch]]:
        """By query, what was found since this was last asked: each ascending by ts."""
        given, self._given = self._given, {}
        return given

    def go_on(self, queries: Queries, sources: GroupSources, cut: int, tuples: int) -> None:
        """An instalment, if it is time to settle.

        Args:
            cut: everything before it has been processed.
            tuples: that have come since the last instalment.

        Raises:
            StateError: a block cannot be read.
        """
        spill = self._spill
        if self._until is None:
            if not spill.on_disk_tuples or spill.dead_tuples(sources, cut) < DEAD_SHARE * spill.on_disk_tuples:
                return
            self._until = spill.left_until(cut)
        self._credit += RATE * tuples
        self._allowed = min(self._allowed, 0.0) + MOST_WORK * tuples
        while self._until is not None and self._credit > 0 and self._allowed > 0:
            self._allowed -= self._step(queries, sources, cut, self._until)

    def some(self, queries: Queries, sources: GroupSources, cut: int, most: int) -> bool:
        """So many steps at most though it be not time yet; False where nothing is owed.

        Raises:
            StateError: a block cannot be read.
        """
        if self._until is None:
            if self._spill.settled is None or self._spill.settled.ts >= cut:
                return False
            self._until = self._spill.left_until(cut)
        for _ in range(most):
            if self._until is not None:
                self._step(queries, sources, cut, self._until)
        self._credit = max(self._credit, 0.0)
        return True

    def finish(self, queries: Queries, sources: GroupSources, cut: int) -> None:
        """Find all that is owed of results before `cut`, to which everything has been processed.

        Raises:
            StateError: a block cannot be read.
        """
        self._until = cut
        while self._until is not None:
            self._step(queries, sources, cut, cut)

    def _step(self, queries: Queries, sources: GroupSources, cut: int, until: int) -> int:
        """A step of a round, or begin one, or end; the tuples that it looked at."""
        if self._round is None:
            self._round = self._spill.settlement(queries, sources, cut, until)
            if self._round is None:
                self._until, self._credit = None, 0.0
                return 0
            self._estimate(self._round)
        looked = 0
        if self._round:
            before = self._round.settled
            found, looked = self._round.go_on(sources, self._join)
            self._credit -= self._round.settled - before
            for own, member, tuples in found:
                self._found.setdefault(member.name, []).append(self._output(member, tuples, own))
        if not self._round:
            for name, batches in self._found.items():
                self._given.setdefault(name, []).extend(batches)
            self._spill.forget(sources, self._round.end, cut)
            self._estimate(self._round)
            self._round, self._found = None, {}
        return looked

    def _estimate(self, of: Settlement) -> None:
        self._work = of.work / max(of.tuples, 1)
