"""What one stream says about another's tuples, where no intermediate results are between the two (JIT V)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from operators.data.tuples import Tuples
from operators.feedback.blacklist import Blacklist
from operators.feedback.bloom import Bloom
from operators.feedback.counters import EdgeCounters
from operators.feedback.guard_payoff import CALLED, CHECKED, MERGED, SWEPT, Account, Burden
from operators.feedback.kinds import Kind
from operators.feedback.stopwatch import Stopwatch
from operators.kernels.hashing import U64
from schemas.columns import I64, Mask

RENEWED_AFTER = 4
"""A filter is made anew after so many tuples added or looked up per entry that this looks at."""

LEAST_HANDLED = 1024
"""But not before so many."""

_NONE = np.zeros(0, np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class Hashed:
    """Tuples of one stream, and their signatures for the guards between it and others: empty for those that rest."""

    tuples: Tuples
    hashes: list[U64]

    def __len__(self) -> int:
        return len(self.tuples)

    def take(self, index: I64 | Mask) -> Hashed:
        """The tuples at ascending positions, or where a mask is True."""
        return Hashed(self.tuples.take(index), [hashes[index] if len(hashes) else _NONE for hashes in self.hashes])


class StemGuard:
    """What one stream says about another's tuples.

    Args:
        kind: the sub-tuples that it speaks of, by the columns in their stream's equalities with the speaking one.
        observed: the same equalities seen from the speaking stream, whose tuples it observes.
        place: which of the signatures of its stream's tuples are its own.
        burden: what its stream's tuples cost.
        static: it observes a table, whose rows never change.
        clock: seconds.

    Attributes:
        alias, by: the stream whose tuples it keeps back, and the one that it observes.
        peer: the guard of the same equalities the other way round.
        filter: the signatures of the observed tuples that live, and of some others.
        blacklist: the tuples that it keeps back.
        handled: tuples added to the filter or looked up since it was made; `due` of them make it due for a new one.
        admitted, refused: tuples that it let through and that it did not, on arrival.
        swept: entries looked at to make filters anew.
        account: whether it watches.
        detecting: runs while its driver has it look for what is not demanded.
    """

    peer: StemGuard

    def __init__(
        self, kind: Kind, observed: Kind, place: int, burden: Burden, clock: Callable[[], float], *, static: bool
    ) -> None:
        self.kind = kind
        self.observed = observed
        self.place = place
        self.static = static
        (self.alias,), (self.by,) = kind.aliases, observed.aliases
        self.filter = Bloom()
        self.blacklist = Blacklist(kind.aliases)
        self.handled = self.admitted = self.refused = self.swept = 0
        self.due = LEAST_HANDLED
        self.counters = EdgeCounters()
        self.detecting = Stopwatch(clock)
        self.account = Account()
        self.burden = burden
        self._settled = self._booked()

    @property
    def watching(self) -> bool:
        """Whether it observes and keeps back."""
        return self.account.watching

    def observe(self, seen: Hashed, now: int) -> Tuples:
        """Take notice of observed tuples; what these bring back."""
        hashes = seen.hashes[self.peer.place]
        self.filter.add(hashes)
        self.handled += len(hashes)
        self.counters.checked += len(hashes)
        before = self.blacklist.signatures
        back = self.blacklist.take(hashes, now)
        self._count(before, back)
        return back

    def admit(self, given: Hashed, now: int) -> Hashed:
        """Those of its stream's tuples that may have partners; the others are kept back."""
        hashes = given.hashes[self.place]
        self.handled += len(hashes)
        self.counters.checked += len(hashes)
        perhaps = self.filter.contains(hashes)
        if not perhaps.all():
            self.refused += self.keep_back(given.tuples.take(~perhaps), hashes[~perhaps], now)
            given = given.take(perhaps)
        self.admitted += len(given)
        return given

    def keep_back(self, tuples: Tuples, hashes: U64, now: int) -> int:
        """Suspend tuples that no observed tuple matches; how many. Where none will ever come they are forgotten."""
        if self.static:
            self.counters.forgotten += len(tuples)
            return len(tuples)
        before = self.blacklist.signatures
        self.blacklist.put(tuples, hashes, now)
        self.counters.suspend += max(self.blacklist.signatures - before, 0)
        self.counters.kept_back += len(tuples)
        return len(tuples)

    def release(self, now: int) -> Tuples:
        """Everything that it keeps back."""
        before = self.blacklist.signatures
        back = self.blacklist.take_all(now)
        self._count(before, back)
        return back

    def _count(self, before: int, back: Tuples) -> None:
        self.counters.resume += before - self.blacklist.signatures
        self.counters.returned += len(back)

    def begin(self, filter: Bloom, looked_at: int, stake: float) -> None:
        """Watch from now on, with a filter and a stake."""
        self.renew(filter, looked_at)
        self._settled = self._booked()
        self.account.begin(stake)

    def renew(self, filter: Bloom, looked_at: int) -> None:
        """Go on with a filter made anew."""
        self.filter = filter
        self.swept += looked_at
        self.handled = 0
        self.due = max(LEAST_HANDLED, RENEWED_AFTER * looked_at)

    def settle(self, slices: int, *, late: bool) -> bool:
        """Book what has been done since the last time, in so many slices; False when it should rest from now on.

        Args:
            late: tuples that were let in late are among its stream's.
        """
        refused, returned, looked_at, swept = (
            now - then for now, then in zip(self._booked(), self._settled, strict=True)
        )
        self._settled = self._booked()
        spent = looked_at * CHECKED + swept * SWEPT + slices * CALLED + returned * self.burden.returned
        if late:
            spent += self.burden.latest_met * MERGED
        return self.account.book(refused * self.burden.saved, spent, len(self.blacklist) * self.burden.returned)

    def _booked(self) -> tuple[int, int, int, int]:
        return self.refused, self.counters.returned, self.counters.checked, self.swept

    def size_bytes(self) -> int:
        """Bytes of the filter and the blacklist."""
        return self.filter.size_bytes() + self.blacklist.size_bytes()
