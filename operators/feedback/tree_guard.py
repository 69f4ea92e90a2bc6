"""A guard of a consumer in a tree of joins keeps back suppressed tuples of one kind without a partner (JIT IV-A).

`operators.feedback.watch` creates and drives the guards of a consumer, `operators.feedback.tree` their trials.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from operators.data.tuples import Tuples
from operators.feedback.blacklist import Blacklist
from operators.feedback.bloom import Bloom
from operators.feedback.guard_payoff import Balance, TrialResult
from operators.feedback.kinds import Kind
from operators.feedback.signatures import Signatures
from operators.feedback.tree_cost import (
    ENTRY_NS,
    LATE_SLICE_HASHED_NS,
    LATE_SLICE_NS,
    SIGNATURE_NS,
    SLICE_NS,
    JoinInput,
    TreeTupleCost,
)
from operators.join.binary_join import BinaryJoin
from operators.kernels.hashing import U64
from operators.plan.plan import Plan
from schemas.columns import I64, Mask

MIN_RETURNED_SHARE = 0.02
"""A trial assumes that at least this share of the useless tuples will return."""


class TreeGuard:
    """Keeps back tuples of a consumer's suppressed input by one kind of sub-tuples.
    Attributes:
        kind: The sub-tuples, by the columns that the consumer's join reads of them.
        home: The lowest sub-plan whose tuples contain these sub-tuples. The tuples are kept back there.
        filter: The signatures of observed tuples, and of some others.
        blacklist: The home's tuples that are kept back, by signature. The signatures in it are suspended (the paper's
            MNS buffer): no observed tuple matches them.
        unlisted: Suspended signatures that need not have a tuple in the blacklist; see `lists_all`.
        lists_all: Every suspended tuple is in the blacklist. False for a consumer that observes a table, whose
            suspended tuples are dropped, and for the lattice detector, which finds them in states, before they are
            taken out.
        tuple_cost: The cost of a tuple of the home.
        balance: What the guard may still lose, and whether it watches.
        turns_to_skip: The guard's next turns at a trial that are skipped.
        skips: The value that `turns_to_skip` had after the latest screening; it grows with each failed screening in a
            row.
        arrived: The home's new tuples that were not kept back, as of the last update of the balances.
        observed: The observed tuples, as of the last update.
        kept_back: Tuples kept back since the last update.
        returned: Tuples that returned since then.
        checked: Signatures computed for arriving tuples since then.
        swept: Entries of states read since then.
        late_slices: Slices since then in which some tuple returned.
    """

    def __init__(
        self, kind: Kind, home: Plan, entry: JoinInput, below: list[BinaryJoin], consumer: JoinInput, *, lists_all: bool
    ) -> None:
        """Args: `entry` is where the home's tuples enter their first join. `below` are the joins up to the consumer.
        `consumer` is the observed input."""
        self.kind = kind
        self.home = home
        self.lists_all = lists_all
        self.unlisted = Signatures()
        self.filter = Bloom()
        self.blacklist = Blacklist(home.aliases)
        self.tuple_cost = TreeTupleCost(below, consumer.join)
        self.balance = Balance()
        self._entry, self._consumer = entry, consumer
        self._late_price = LATE_SLICE_HASHED_NS if consumer.join.match.condition.keys else LATE_SLICE_NS
        self.turns_to_skip = self.skips = 0
        self._before = self._arrivals()
        self.arrived = self.observed = 0
        self.kept_back = self.returned = self.checked = self.swept = self.late_slices = 0

    @property
    def watching(self) -> bool:
        """Whether the guard observes and keeps back tuples."""
        return self.balance.watching

    @property
    def signatures(self) -> int:
        """The number of suspended signatures."""
        return self.blacklist.signatures if self.lists_all else len(self.unlisted)

    def suspends(self, hashes: U64) -> Mask:
        """Return (n,) True for suspended signatures."""
        return self.blacklist.has(hashes) if self.lists_all else self.unlisted.contains(hashes)

    def suspend(self, hashes: U64, expiry: I64) -> int:
        """Suspend signatures of tuples that are not in the blacklist, and return how many are new."""
        before = len(self.unlisted)
        self.unlisted.add(hashes, expiry)
        return len(self.unlisted) - before

    def keep_back(self, tuples: Tuples, hashes: U64, now: int) -> int:
        """Suspend tuples, put them in the blacklist, and return how many of their signatures are new."""
        added = self.blacklist.put(tuples, hashes, now)
        return added if self.lists_all else self.suspend(hashes, tuples.expiry)

    def resume(self, hashes: U64, now: int) -> tuple[int, Tuples]:
        """Resume what observed tuples match. Return the number of signatures and the living tuples."""
        if self.lists_all:
            before = self.blacklist.signatures
            returned = self.blacklist.take(hashes, now)
            return before - self.blacklist.signatures, returned
        hit = self.unlisted.hit(hashes)
        self.unlisted.remove(hit)
        return len(hit), self.blacklist.take(hit, now)

    def release(self, now: int) -> tuple[int, Tuples]:
        """Resume everything, return as `resume` does, and clear the filter."""
        resumed, returned = self.signatures, self.blacklist.take_all(now)
        self.unlisted, self.filter = Signatures(), Bloom()
        return resumed, returned

    def size_bytes(self) -> int:
        """Bytes of the filter, the signatures and the blacklist."""
        return self.unlisted.size_bytes() + self.filter.size_bytes() + self.blacklist.size_bytes()

    def _arrivals(self) -> tuple[int, int]:
        return self._entry.arrived, self._consumer.arrived

    def update_cost(self) -> None:
        """Update `arrived`, `observed` and the tuple cost with what has arrived since the last call."""
        now = self._arrivals()
        self.arrived, self.observed = now[0] - self._before[0], now[1] - self._before[1]
        self._before = now
        self.tuple_cost.update(self.arrived + self.returned, self.kept_back - self.returned)

    def may_pay(self, slices: int) -> bool:
        """Return whether watching could gain anything if no tuple had a partner. If not, screening is pointless."""
        return self.expected_gain((1.0, 1.0), slices) > 0.0

    def update_balance(self, slices: int) -> float:
        """Update the balance with what the guard has done in the last `slices` slices, and return its net gain.
        `watching` tells whether the guard continues."""
        spent = self.checked * SIGNATURE_NS + self.swept * ENTRY_NS + slices * SLICE_NS
        spent += self.returned * self.tuple_cost.returned + self.late_slices * self._late_price
        earned = self.kept_back * self.tuple_cost.saved
        self.kept_back = self.returned = self.checked = self.swept = self.late_slices = 0
        self.balance.update(earned, spent, len(self.blacklist) * self.tuple_cost.returned)
        return earned - spent

    def expected_gain(self, useless: Sequence[float], slices: int) -> float:
        """Return what watching would have gained in the last `slices` slices; 0.0 if the guard should not watch.
        Args:
            useless: The shares of tuples without a partner among the newest tuples and among the oldest.
            slices: The number of slices since the last update of the balances.
        """
        newest, oldest = useless
        came = max(self.arrived, 1)
        back = came * max(newest - oldest, MIN_RETURNED_SHARE) / slices
        spent = (came + self.observed) * SIGNATURE_NS + slices * (SLICE_NS + self._late_price * (1.0 - math.exp(-back)))
        trial = TrialResult(newest, oldest, spent / came)
        return came * trial.gain(self.tuple_cost) if trial.promises(self.tuple_cost) else 0.0
