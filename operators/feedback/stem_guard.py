"""A guard in plans without intermediate results: keeps back tuples of a stream without a partner in another (JIT V).

`operators.feedback.stems` drives the guards of an M-Join or an eddy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from operators.data.tuples import Tuples
from operators.feedback.blacklist import Blacklist
from operators.feedback.bloom import Bloom
from operators.feedback.counters import EdgeCounters
from operators.feedback.guard_payoff import MERGE_NS, SIGNATURE_NS, SLICE_NS, SWEEP_NS, Balance, StemTupleCost
from operators.feedback.kinds import Kind
from operators.feedback.stopwatch import Stopwatch
from operators.kernels.hashing import U64
from schemas.columns import I64, Mask

REBUILD_AFTER = 4
"""A filter is rebuilt after this many tuples added or looked up per entry that the rebuild reads."""

MIN_HANDLED = 1024
"""A filter is not rebuilt before this many tuples added or looked up."""

_NONE = np.zeros(0, np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class SignedTuples:
    """Tuples of one stream with their signatures.
    Attributes:
        tuples: The n tuples.
        hashes: Per guard of the stream, (n,) uint64 signatures; empty for a pair of guards that both rest.
    """

    tuples: Tuples
    hashes: list[U64]

    def __len__(self) -> int:
        return len(self.tuples)

    def take(self, index: I64 | Mask) -> SignedTuples:
        """Return the tuples at ascending positions, or where a mask is True."""
        taken = [hashes[index] if len(hashes) else _NONE for hashes in self.hashes]
        return SignedTuples(self.tuples.take(index), taken)


class StemGuard:
    """Observes one stream and keeps back the tuples of another that have no partner in it.
    Args:
        kind: The guarded stream's sub-tuples, by their columns in the equalities with the observed stream.
        observed: The same equalities seen from the observed stream.
        position: The index of the guard's signatures in `SignedTuples.hashes` of the guarded stream.
        tuple_cost: The cost of the guarded stream's tuples.
        clock: Returns seconds.
        static: The observed stream is a table, whose rows never change.

    Attributes:
        alias: The guarded stream.
        observed_alias: The observed stream.
        peer: The guard of the same equalities in the other direction.
        filter: The signatures of the living observed tuples, and of some others.
        blacklist: The tuples that the guard keeps back.
        handled: Tuples added to the filter or looked up since it was built.
        rebuild_due: The value of `handled` above which the filter is rebuilt.
        admitted: Tuples that the guard let through on arrival.
        refused: Tuples that the guard kept back on arrival.
        swept: Entries read to rebuild filters.
        counters: Counts of suspended and resumed signatures and tuples.
        balance: What the guard may still lose, and whether it watches.
        detecting: The time that the driver spends in this guard.
    """

    peer: StemGuard

    def __init__(
        self,
        kind: Kind,
        observed: Kind,
        position: int,
        tuple_cost: StemTupleCost,
        clock: Callable[[], float],
        *,
        static: bool,
    ) -> None:
        self.kind = kind
        self.observed = observed
        self.position = position
        self.static = static
        (self.alias,), (self.observed_alias,) = kind.aliases, observed.aliases
        self.filter = Bloom()
        self.blacklist = Blacklist(kind.aliases)
        self.handled = self.admitted = self.refused = self.swept = 0
        self.rebuild_due = MIN_HANDLED
        self.counters = EdgeCounters()
        self.detecting = Stopwatch(clock)
        self.balance = Balance()
        self.tuple_cost = tuple_cost
        self._counted_before = self._counted()

    @property
    def watching(self) -> bool:
        """Whether the guard observes and keeps back tuples."""
        return self.balance.watching

    def observe(self, seen: SignedTuples, now: int) -> Tuples:
        """Add observed tuples to the filter and return the tuples that they resume."""
        hashes = seen.hashes[self.peer.position]
        self.filter.add(hashes)
        self.handled += len(hashes)
        self.counters.checked += len(hashes)
        before = self.blacklist.signatures
        back = self.blacklist.take(hashes, now)
        self._count(before, back)
        return back

    def admit(self, signed: SignedTuples, now: int) -> SignedTuples:
        """Return those of the guarded stream's tuples that may have partners, and keep the others back."""
        hashes = signed.hashes[self.position]
        self.handled += len(hashes)
        self.counters.checked += len(hashes)
        perhaps = self.filter.contains(hashes)
        if not perhaps.all():
            self.refused += self.keep_back(signed.tuples.take(~perhaps), hashes[~perhaps], now)
            signed = signed.take(perhaps)
        self.admitted += len(signed)
        return signed

    def keep_back(self, tuples: Tuples, hashes: U64, now: int) -> int:
        """Suspend tuples that no observed tuple matches and return how many. With a static observed stream they can
        have no partner later, so they are dropped."""
        if self.static:
            self.counters.forgotten += len(tuples)
            return len(tuples)
        before = self.blacklist.signatures
        self.blacklist.put(tuples, hashes, now)
        self.counters.suspend += max(self.blacklist.signatures - before, 0)
        self.counters.kept_back += len(tuples)
        return len(tuples)

    def release(self, now: int) -> Tuples:
        """Return all tuples that the guard keeps back."""
        before = self.blacklist.signatures
        back = self.blacklist.take_all(now)
        self._count(before, back)
        return back

    def _count(self, before: int, back: Tuples) -> None:
        self.counters.resume += before - self.blacklist.signatures
        self.counters.returned += len(back)

    def start(self, filter: Bloom, entries_read: int, budget: float) -> None:
        """Start watching with a filter and a budget; `entries_read` entries were read to build the filter."""
        self.replace_filter(filter, entries_read)
        self._counted_before = self._counted()
        self.balance.start(budget)

    def replace_filter(self, filter: Bloom, entries_read: int) -> None:
        """Continue with a rebuilt filter; `entries_read` entries were read to build it."""
        self.filter = filter
        self.swept += entries_read
        self.handled = 0
        self.rebuild_due = max(MIN_HANDLED, REBUILD_AFTER * entries_read)

    def update_balance(self, slices: int, *, late: bool) -> bool:
        """Update the balance with what the guard has done since the last update.
        Args:
            slices: The number of slices since then.
            late: Tuples that entered late are in the guarded stream's states.

        Returns:
            False when the guard should rest from now on.
        """
        refused, returned, entries_read, swept = (
            now - then for now, then in zip(self._counted(), self._counted_before, strict=True)
        )
        self._counted_before = self._counted()
        spent = entries_read * SIGNATURE_NS + swept * SWEEP_NS + slices * SLICE_NS + returned * self.tuple_cost.returned
        if late:
            spent += self.tuple_cost.latest_matches * MERGE_NS
        saved = refused * self.tuple_cost.saved
        return self.balance.update(saved, spent, len(self.blacklist) * self.tuple_cost.returned)

    def _counted(self) -> tuple[int, int, int, int]:
        return self.refused, self.counters.returned, self.counters.checked, self.swept

    def size_bytes(self) -> int:
        """Bytes of the filter and the blacklist."""
        return self.filter.size_bytes() + self.blacklist.size_bytes()
