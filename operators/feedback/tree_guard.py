"""A guard of a consumer in a tree of joins keeps back suppressed tuples of one kind without a partner (JIT IV-A).

`operators.feedback.watch` creates and drives the guards of a consumer; `operators.feedback.payoff.tree_controller`
runs their trials.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from operators.data.tuples import Tuples
from operators.feedback.bloom import Bloom
from operators.feedback.kinds import Kind
from operators.feedback.payoff.guard import Guard, GuardWork, TrialResult
from operators.feedback.payoff.tree_cost import HASHED_PRICES, NESTED_PRICES, JoinInput, TreeTupleCost
from operators.feedback.signatures import Signatures
from operators.join.binary_join import BinaryJoin
from operators.kernels.hashing import U64
from operators.plan.plan import Plan
from schemas.columns import I64, Mask

MIN_RETURNED_SHARE = 0.02
"""A trial assumes that at least this share of the useless tuples will return."""


class TreeGuard(Guard):
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
        turns_to_skip: The guard's next turns at a trial that are skipped.
        skips: The value that `turns_to_skip` had after the latest screening; it grows with each failed screening in a
            row.
        arrived: The home's new tuples that were not kept back, between the last two updates of the balances.
        observed: The observed tuples between these updates.
        kept_back: Tuples kept back so far.
        returned: Those of them that returned.
        checked: Signatures computed for arriving tuples so far.
        late_slices: Slices so far in which some tuple returned.
    """

    tuple_cost: TreeTupleCost

    def __init__(
        self, kind: Kind, home: Plan, entry: JoinInput, below: list[BinaryJoin], consumer: JoinInput, *, lists_all: bool
    ) -> None:
        """Args: `entry` is where the home's tuples enter their first join. `below` are the joins up to the consumer.
        `consumer` is the observed input."""
        super().__init__(home.aliases, HASHED_PRICES if consumer.join.match.condition.keys else NESTED_PRICES)
        self.kind = kind
        self.home = home
        self.lists_all = lists_all
        self.unlisted = Signatures()
        self.filter = Bloom()
        self.tuple_cost = TreeTupleCost(entry, below, consumer.join)
        self._entry, self._consumer = entry, consumer
        self.turns_to_skip = self.skips = 0
        self._seen = entry.arrived, consumer.arrived
        self.arrived = self.observed = 0
        self.kept_back = self.returned = self.checked = self.late_slices = 0

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

    def done(self) -> GuardWork:
        """Return what the guard has done so far."""
        return GuardWork(self.kept_back, self.returned, self.checked, self.swept, self.late_slices)

    def update_cost(self) -> None:
        """Update `arrived`, `observed` and the tuple cost with what has arrived since the last call."""
        before, self._seen = self._seen, (self._entry.arrived, self._consumer.arrived)
        self.arrived, self.observed = self._seen[0] - before[0], self._seen[1] - before[1]
        self.tuple_cost.update(self.kept_back, self.returned)

    def may_pay(self, slices: int) -> bool:
        """Return whether watching could gain anything if no tuple had a partner. If not, screening is pointless."""
        return self.expected_gain((1.0, 1.0), slices) > 0.0

    def expected_gain(self, useless: Sequence[float], slices: int) -> float:
        """Return what watching would have gained in the last `slices` slices; 0.0 if the guard should not watch.

        Args:
            useless: The shares of tuples without a partner among the newest tuples and among the oldest.
            slices: The number of slices since the last update of the balances.
        """
        newest, oldest = useless
        came = max(self.arrived, 1)
        back = came * max(newest - oldest, MIN_RETURNED_SHARE) / slices
        slice_ns = self._prices.slice + self._prices.late_slice * (1.0 - math.exp(-back))
        spent = replace(self._prices, slice=slice_ns).cost(came + self.observed, slices=slices)
        trial = TrialResult(newest, oldest, spent / came)
        return came * trial.gain(self.tuple_cost) if trial.promises(self.tuple_cost) else 0.0
