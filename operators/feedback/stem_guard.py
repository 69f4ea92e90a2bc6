"""A guard in plans without intermediate results: keeps back tuples of a stream without a partner in another (JIT V).

`operators.feedback.stems` drives the guards of an M-Join or an eddy. A Bloom filter tells which tuples have no partner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from operators.data.tuples import Tuples
from operators.feedback.bloom import Bloom
from operators.feedback.kinds import Kind
from operators.feedback.path_guard import PathGuard
from operators.feedback.payoff.guard import GuardWork
from operators.feedback.payoff.tuple_cost import MERGE_NS, RESULT_NS
from operators.kernels.hashing import U64
from operators.state.side_state import SideState
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


class StemGuard(PathGuard):
    """Observes one stream and keeps back the tuples of another that have no partner in it.

    Args:
        kind: The guarded stream's sub-tuples, by their columns in the equalities with the observed stream.
        observed: The same equalities seen from the observed stream.
        position: The index of the guard's signatures in `SignedTuples.hashes` of the guarded stream.
        states: The guarded stream's states.
        clock: Returns seconds.
        static: The observed stream is a table, whose rows never change.

    Attributes:
        peer: The guard of the same equalities in the other direction.
        filter: The signatures of the living observed tuples, and of some others.
        handled: Tuples added to the filter or looked up since it was built.
        rebuild_due: The value of `handled` above which the filter is rebuilt.
    """

    peer: StemGuard

    def __init__(
        self,
        kind: Kind,
        observed: Kind,
        position: int,
        states: Sequence[SideState],
        clock: Callable[[], float],
        *,
        static: bool,
    ) -> None:
        (alias,), (observed_alias,) = kind.aliases, observed.aliases
        super().__init__(alias, observed_alias, len(states), clock, static=static)
        self.kind = kind
        self.observed = observed
        self.position = position
        self.states = states
        self.filter = Bloom()
        self.handled = 0
        self.rebuild_due = MIN_HANDLED

    def observe(self, seen: SignedTuples, now: int) -> Tuples:
        """Add observed tuples to the filter and return the tuples that they resume."""
        hashes = seen.hashes[self.peer.position]
        self.filter.add(hashes)
        self.handled += len(hashes)
        self.counters.checked += len(hashes)
        return self._returned(self.take(hashes, now))

    def admit(self, signed: SignedTuples, now: int) -> SignedTuples:
        """Return those of the guarded stream's tuples that may have partners, and keep the others back."""
        hashes = signed.hashes[self.position]
        self.handled += len(hashes)
        self.counters.checked += len(hashes)
        perhaps = self.filter.contains(hashes)
        if not perhaps.all():
            self.refused += self.keep_back(signed.tuples.take(~perhaps), hashes[~perhaps], now)
            self.pruned = self.refused
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
        return self._returned(self.take(None, now))

    def _returned(self, back: Tuples) -> Tuples:
        self.counters.returned += len(back)
        return back

    def replace_filter(self, filter: Bloom, entries_read: int) -> None:
        """Continue with a rebuilt filter; `entries_read` entries were read to build it."""
        self.filter = filter
        self.swept += entries_read
        self.handled = 0
        self.rebuild_due = max(MIN_HANDLED, REBUILD_AFTER * entries_read)

    def spent(self, latest: GuardWork, slices: int) -> float:
        """Return what some work has cost, with the ordering of results while the states contain late tuples."""
        late = any(state.older is not None for state in self.states)
        ordering = self.tuple_cost.latest_met / RESULT_NS * MERGE_NS if late else 0.0
        return super().spent(latest, slices) + ordering

    def size_bytes(self) -> int:
        """Bytes of the filter and the blacklist."""
        return self.filter.size_bytes() + self.blacklist.size_bytes()
