"""What a consumer in a tree of joins says of some sources of its suppressed input (JIT 4.1), and whether that pays."""

from __future__ import annotations

import math
from collections.abc import Sequence

from operators.data.tuples import Tuples
from operators.feedback.blacklist import Blacklist
from operators.feedback.bloom import Bloom
from operators.feedback.burden import CALLED, CHECKED, LATE, LATE_HASHED, LOOKED_AT, Input, TreeBurden
from operators.feedback.guard_payoff import Account, Trial
from operators.feedback.kinds import Kind
from operators.feedback.signatures import Signatures
from operators.join.binary_join import BinaryJoin
from operators.kernels.hashing import U64
from operators.plan.plan import Plan
from schemas.columns import I64, Mask

LEAST_RETURNED = 0.02
"""A trial expects at least this share of the useless tuples to come back."""


class TreeGuard:
    """What a consumer says of some sources of its suppressed input.

    Attributes:
        kind: the sub-tuples that it speaks of, by the columns that its join reads of them.
        home: the lowest sub-plan that has them: where they are kept back.
        filter: signatures that observed tuples match, and some more.
        blacklist: the home's tuples that are kept back, by signature; those that it knows are suspended: no observed
            tuple matches them (the paper's MNS buffer).
        unlisted: signatures that are suspended without any tuple in the blacklist; see `lists`.
        lists: every suspended tuple is in the blacklist. Not so what a table will never match, which is forgotten, nor
            what the lattice has found in states, until it is taken out of them.
        burden: what a tuple of the home costs that is not kept back.
        account: whether it watches, and what it may lose.
        waits: so many times it is passed over when trials are given; `disappoints`: after each look at it so far that
            promised nothing.
        came, observed: new tuples of the home that were not kept back, and observed ones, as of the last booking.
        kept_back, returned, checked, swept: tuples that it kept back and that came back, signatures and entries looked
            at, since the last booking; late: slices in which some came back.
    """

    def __init__(
        self, kind: Kind, home: Plan, entry: Input, below: list[BinaryJoin], consumer: Input, *, lists: bool
    ) -> None:
        """Args: `entry` is where the home's tuples enter their first join, `consumer` the observed input."""
        self.kind = kind
        self.home = home
        self.lists = lists
        self.unlisted = Signatures()
        self.filter = Bloom()
        self.blacklist = Blacklist(home.aliases)
        self.burden = TreeBurden(below, consumer.join)
        self.account = Account()
        self._entry, self._consumer = entry, consumer
        self._late_price = LATE_HASHED if consumer.join.match.condition.keys else LATE
        self.waits = self.disappoints = 0
        self._before = self._came()
        self.came = self.observed = 0
        self.kept_back = self.returned = self.checked = self.swept = self.late = 0

    @property
    def watching(self) -> bool:
        """Whether it observes and keeps back."""
        return self.account.watching

    @property
    def signatures(self) -> int:
        """How many are suspended."""
        return self.blacklist.signatures if self.lists else len(self.unlisted)

    def suspends(self, hashes: U64) -> Mask:
        """(n,) True for signatures that are suspended."""
        return self.blacklist.has(hashes) if self.lists else self.unlisted.contains(hashes)

    def suspend(self, hashes: U64, expiry: I64) -> int:
        """Suspend signatures of tuples that are not in the blacklist; how many are new."""
        before = len(self.unlisted)
        self.unlisted.add(hashes, expiry)
        return len(self.unlisted) - before

    def keep_back(self, tuples: Tuples, hashes: U64, now: int) -> int:
        """Suspend tuples and list them under their signatures; how many of these are new."""
        begun = self.blacklist.put(tuples, hashes, now)
        return begun if self.lists else self.suspend(hashes, tuples.expiry)

    def resume(self, hashes: U64, now: int) -> tuple[int, Tuples]:
        """Take out what observed tuples match: how many signatures, and the tuples that live."""
        if self.lists:
            before = self.blacklist.signatures
            returned = self.blacklist.take(hashes, now)
            return before - self.blacklist.signatures, returned
        hit = self.unlisted.hit(hashes)
        self.unlisted.remove(hit)
        return len(hit), self.blacklist.take(hit, now)

    def release(self, now: int) -> tuple[int, Tuples]:
        """Take out everything, as `resume` does, and forget what is observed."""
        resumed, returned = self.signatures, self.blacklist.take_all(now)
        self.unlisted, self.filter = Signatures(), Bloom()
        return resumed, returned

    def size_bytes(self) -> int:
        """Bytes of all that it keeps."""
        return self.unlisted.size_bytes() + self.filter.size_bytes() + self.blacklist.size_bytes()

    def _came(self) -> tuple[int, int]:
        return self._entry.came, self._consumer.came

    def weigh(self) -> None:
        """Take in what has come since the last time."""
        now = self._came()
        self.came, self.observed = now[0] - self._before[0], now[1] - self._before[1]
        self._before = now
        self.burden.update(self.came + self.returned, self.kept_back - self.returned)

    def may_pay(self, slices: int) -> bool:
        """Whether it would promise anything if nothing at all were demanded: else no tuple need be looked at."""
        return self.promise((1.0, 1.0), slices) > 0.0

    def book(self, slices: int) -> float:
        """Settle what has been done in so many slices; what that has gained. See `watching` for whether it goes on."""
        spent = self.checked * CHECKED + self.swept * LOOKED_AT + slices * CALLED
        spent += self.returned * self.burden.returned + self.late * self._late_price
        earned = self.kept_back * self.burden.saved
        self.kept_back = self.returned = self.checked = self.swept = self.late = 0
        self.account.book(earned, spent, len(self.blacklist) * self.burden.returned)
        return earned - spent

    def promise(self, useless: Sequence[float], slices: int) -> float:
        """What watching would have gained in the last slices, with such shares of useless tuples among the newest and
        the oldest; nothing if it would not pay."""
        newest, oldest = useless
        came = max(self.came, 1)
        back = came * max(newest - oldest, LEAST_RETURNED) / slices
        spent = (came + self.observed) * CHECKED + slices * (CALLED + self._late_price * (1.0 - math.exp(-back)))
        trial = Trial(newest, oldest, spent / came)
        return came * trial.gain(self.burden) if trial.promises(self.burden) else 0.0
