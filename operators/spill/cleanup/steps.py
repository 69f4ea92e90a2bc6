"""Cleanups in instalments: between two slices so much of one as is no pause.

A cleanup goes through the joins from the sources to the root. At each it takes the groups that were due when it began,
and those to which joins below have owed something. It may stop after any group and go on when more tuples have been
processed: what was found waits as late parts of the joins above, and nothing that they can meet is forgotten meanwhile
(`Ledger.hold`). Another one begins when it has reached the root: what is due by then is cleaned up together.

Instalments grow when memory would be held for too long: by what is left of a cleanup, they are as large as it takes to
end within HELD_SHARE of the shortest window; and again so if by then that was not enough.

Limits: a group is cleaned up at once, however large it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from operators.spill.cleanup.by_join import Cleaning
from operators.spill.ledger import Ledger

CLEAN_TUPLES = 1 << 13
"""What an instalment merges at least, if there is so much: tuples of parts and in memory."""

HELD_SHARE = 1.0 / 4.0
"""Of the shortest window: how long a cleanup may take of it."""


class Instalments:
    """The cleanup of one plan that is going on.

    Args:
        joins: how many the plan has.
        life: of the shortest window, in ms.
        tell: told of the groups, by join, that have been cleaned up.
    """

    def __init__(
        self,
        cleaning: Cleaning,
        ledger: Ledger,
        joins: int,
        life: int,
        tell: Callable[[int, Mapping[int, Sequence[int]]], None],
    ) -> None:
        self._cleaning = cleaning
        self._ledger = ledger
        self._patience = max(1, int(life * HELD_SHARE))
        self._tell = tell
        self._due: list[set[int]] = [set() for _ in range(joins)]
        # The join that it has come to; behind the last when none is going on.
        self._at = joins
        self._end = self._before = 0

    def __bool__(self) -> bool:
        """Whether a cleanup has begun and not ended."""
        return self._at < len(self._due)

    def begin(self, due: Sequence[set[int]], cut: int) -> None:
        """Begin a cleanup of these groups, per join; what an earlier one has left belongs to it."""
        if not any(due) and not self:
            return
        self._due = [own | more for own, more in zip(self._due, due, strict=True)]
        self._at = 0
        self._before, self._end = cut, cut + self._patience

    def go_on(self, cut: int, kept_from: int) -> None:
        """An instalment.

        Args:
            cut: everything before it has been processed.
            kept_from: what expired before this is owed nothing, and its source tuples may be gone.

        Raises:
            StateError: a block could not be written or read.
        """
        if not self:
            return
        if self._before >= self._end:
            self._end = self._before + self._patience
        share = min((cut - self._before) / (self._end - self._before), 1.0)
        self._before = cut
        self._clean(cut, kept_from, max(CLEAN_TUPLES, int(share * self._left())))

    def finish(self, cut: int, kept_from: int, between: Callable[[], None] | None = None) -> None:
        """All that is left of it.

        Args:
            between: called now and then; may take what was found.

        Raises:
            StateError: a block could not be written or read.
        """
        self._clean(cut, kept_from, None, between)

    def _clean(
        self, cut: int, kept_from: int, most: int | None, between: Callable[[], None] | None = None
    ) -> None:
        done: dict[int, list[int]] = {}
        spent = 0
        while self and (most is None or spent < most):
            j = self._at
            groups = sorted(self._due[j] | self._ledger.late(j))
            if not groups:
                self._at += 1
                continue
            room = None if most is None else most - spent
            cleaned, tuples = self._cleaning.clean(j, groups, cut, kept_from, room, between)
            spent += tuples
            self._due[j].difference_update(cleaned)
            done.setdefault(j, []).extend(cleaned)
        self._tell(cut, done)

    def _left(self) -> int:
        """How many tuples are still to be merged, about: what comes from below goes to any group above."""
        return sum(
            self._ledger.size((j, g))
            for j in range(self._at, len(self._due))
            for g in (self._due[j] | self._ledger.late(j) if j == self._at else self._ledger.groups(j))
        )
