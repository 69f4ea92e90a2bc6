"""Feedback in M-Joins and eddies with SteMs (JIT V): a tuple stays out of its SteM while a stream has nothing for it.

There are no intermediate states here, so a half join that finds no partner for a tuple tells the tuple's own SteM. For
every two streams with an equality between them each keeps back the other's tuples: a new tuple that no living tuple of
the other stream matches is listed in a blacklist instead, enters no SteM and starts on no way. All similar tuples are
caught the same way when they come. A tuple of the other stream that matches brings those listed under its signature
back into their SteMs, before it starts on its own way. Nothing has to be produced then: every result they are part of
has a later component, which finds them, and until one has come that matches them there was none.

What lives is known of every stream, kept back or not, so no stream has to be observed before another; a slice is
observed as a whole before any of it is let in. While a stream has no living tuple at all, those of all others wait
unseen: the empty sub-tuple is not demanded (3.1), which is demand-driven operator execution.

A Bloom filter per two streams and side says what has no partner. It forgets the dead when it is made anew from the
stream's store, which costs O(1) per tuple that was added or looked up; then the SteMs are looked through for tuples
that have lost their last partner, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from operators.eddy import Eddy
from operators.feedback.blacklist import Blacklist
from operators.feedback.bloom import Bloom
from operators.feedback.counters import EdgeCounters
from operators.feedback.kinds import Kind, level_one
from operators.kernels.hashing import U64
from operators.match import LEFT, RIGHT, Match
from operators.mjoin import MJoin
from operators.sources import Sources
from operators.state import SideState
from operators.statistics import EdgeStatistics
from operators.tuples import FOREVER, Tuples
from operators.watermark import NEVER
from schemas.columns import I64, Mask

RENEWED_AFTER = 4
"""A filter is made anew after so many tuples added or looked up per entry that this looks at."""

LEAST_HANDLED = 1024
"""But not before so many."""


@dataclass(frozen=True, slots=True, eq=False)
class Hashed:
    """Tuples of one stream, and their signatures for each guard that keeps such tuples back."""

    tuples: Tuples
    hashes: list[U64]

    def __len__(self) -> int:
        return len(self.tuples)

    def take(self, index: I64 | Mask) -> Hashed:
        """The tuples at ascending positions, or where a mask is True."""
        return Hashed(self.tuples.take(index), [hashes[index] for hashes in self.hashes])


@dataclass(slots=True, eq=False)
class Guard:
    """What one stream says about another's tuples.

    Attributes:
        kind: the sub-tuples that it speaks of, by the columns in their stream's equalities with the speaking one.
        observed: the same equalities seen from the speaking stream, whose tuples it observes.
        place: which of the signatures of its stream's tuples are its own; `seen_at` the same for the observed.
        filter: the signatures of the observed tuples that live, and of some others.
        blacklist: the tuples that it keeps back.
        handled: tuples added to the filter or looked up since it was made; `due` of them make it due for a new one.
        admitted: tuples that it let through.
    """

    kind: Kind
    observed: Kind
    place: int
    seen_at: int = 0
    filter: Bloom = field(default_factory=Bloom)
    handled: int = 0
    due: int = LEAST_HANDLED
    admitted: int = 0
    blacklist: Blacklist = field(init=False)
    counters: EdgeCounters = field(default_factory=EdgeCounters)

    def __post_init__(self) -> None:
        self.blacklist = Blacklist(self.kind.aliases)

    def observe(self, hashes: U64, now: int) -> Tuples:
        """Take notice of observed tuples by their signatures; what these bring back."""
        self.filter.add(hashes)
        self.handled += len(hashes)
        self.counters.checked += len(hashes)
        before = self.blacklist.signatures
        back = self.blacklist.take(hashes, now)
        self.counters.resume += before - self.blacklist.signatures
        self.counters.returned += len(back)
        return back

    def admit(self, given: Hashed, now: int) -> Hashed:
        """Those of its stream's tuples that may have partners; the others are kept back."""
        if len(given) == 0:
            return given
        hashes = given.hashes[self.place]
        self.handled += len(hashes)
        self.counters.checked += len(hashes)
        perhaps = self.filter.contains(hashes)
        if perhaps.all():
            self.admitted += len(given)
            return given
        self.keep_back(given.tuples.take(~perhaps), hashes[~perhaps], now)
        passed = given.take(perhaps)
        self.admitted += len(passed)
        return passed

    def keep_back(self, tuples: Tuples, hashes: U64, now: int) -> None:
        """Suspend tuples that no observed tuple matches."""
        before = self.blacklist.signatures
        self.blacklist.put(tuples, hashes, now)
        self.counters.suspend += max(self.blacklist.signatures - before, 0)
        self.counters.kept_back += len(tuples)

    def size_bytes(self) -> int:
        """Bytes of the filter and the blacklist."""
        return self.filter.size_bytes() + self.blacklist.size_bytes()


class StemFeedback:
    """Drives an M-Join or an eddy with SteMs, with feedback; see `operators.feedback.feedback.Feedback`.

    Args:
        executor: its states keep expiry (`Sources.retracts`).
        now: everything with a smaller ts has been processed.

    Attributes:
        guards: two for every two streams with an equality between them.
    """

    def __init__(self, executor: MJoin | Eddy, now: int) -> None:
        self._executor = executor
        self._sources = executor.sources
        self._aliases = executor.plan.aliases
        self._stems: dict[str, list[tuple[Match, int, SideState]]] = {alias: [] for alias in self._aliases}
        for match, side, state in executor.stems():
            state.older_until = FOREVER  # from now on it keeps what is let in late
            self._stems[state.aliases[0]].append((match, side, state))
        self._guards: dict[str, list[Guard]] = {alias: [] for alias in self._aliases}
        for n, one in enumerate(self._aliases):
            for other in self._aliases[n + 1 :]:
                self._guard(one, other)
        self.guards = [guard for alias in self._aliases for guard in self._guards[alias]]
        self._watchers: dict[str, list[Guard]] = {alias: [] for alias in self._aliases}
        for guard in self.guards:
            self._watchers[guard.observed.aliases[0]].append(guard)
            self._renew(guard, now)
        self._idle = {alias: Blacklist((alias,)) for alias in self._aliases}
        self._lives_until = {alias: _lives_until(self._sources, alias) for alias in self._aliases}

    def _guard(self, one: str, other: str) -> None:
        """Two streams' guards, where there are equalities between them."""
        match = Match(self._sources, (one,), (other,))
        kinds = [kind for side in (LEFT, RIGHT) for kind in level_one(match, side) if kind.equal]
        if len(kinds) < 2:
            return
        places = [len(self._guards[alias]) for alias in (one, other)]
        for side, alias in enumerate((one, other)):
            self._guards[alias].append(Guard(kinds[side], kinds[1 - side], places[side], places[1 - side]))

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        new = {alias: self._hashed(alias, tuples) for alias, tuples in epoch.items() if len(tuples)}
        for alias, part in new.items():
            if len(part):
                self._lives_until[alias] = max(self._lives_until[alias], int(part.tuples.expiry.max()))
        if min(self._lives_until.values()) < now:
            for alias, part in new.items():
                self._idle[alias].put(part.tuples, np.zeros(len(part), np.uint64), now)
            found = Tuples.empty(self._aliases)
        else:
            found = self._run(new, now)
        self._forget(now)
        return found

    def _run(self, new: Mapping[str, Hashed], now: int) -> Tuples:
        """A slice in which every stream has something that lives."""
        waited = {alias: self._hashed(alias, idle.take_all(now)) for alias, idle in self._idle.items() if len(idle)}
        back: dict[str, list[Tuples]] = {alias: [part.tuples] for alias, part in waited.items()}
        for seen in (waited, new):
            for alias, part in seen.items():
                for guard in self._watchers[alias]:
                    brought = guard.observe(part.hashes[guard.seen_at], now)
                    if len(brought):
                        back.setdefault(guard.kind.aliases[0], []).append(brought)
        for alias, parts in back.items():
            self._let_in(alias, self._admit(alias, self._hashed(alias, Tuples.concat(parts, (alias,))), now), now)
        found = self._executor.process({alias: self._admit(alias, part, now) for alias, part in new.items()}, now)
        for guard in self.guards:
            if guard.handled > guard.due or guard.filter.full:
                self._renew(guard, now)
        return found

    def settle(self, now: int) -> None:
        """Let in everything that is kept back: the SteMs then hold what they do without feedback."""
        for alias in self._aliases:
            kept = [self._idle[alias].take_all(now)]
            for guard in self._guards[alias]:
                guard.counters.resume += guard.blacklist.signatures
                kept.append(guard.blacklist.take_all(now))
                guard.counters.returned += len(kept[-1])
            self._let_in(alias, Tuples.concat(kept, (alias,)), now)

    def kept_back(self) -> int:
        """Source tuples kept back now."""
        return sum(len(idle) for idle in self._idle.values()) + sum(len(guard.blacklist) for guard in self.guards)

    def size_bytes(self) -> int:
        """Bytes of all filters and blacklists."""
        return sum(idle.size_bytes() for idle in self._idle.values()) + sum(guard.size_bytes() for guard in self.guards)

    def edges(self) -> tuple[EdgeStatistics, ...]:
        """What each stream has said about each other one."""
        return tuple(
            EdgeStatistics(
                consumer=f"{guard.kind.aliases[0]} -> {guard.observed.aliases[0]}",
                producer=guard.kind.aliases[0],
                watching=True,
                suspend=guard.counters.suspend,
                resume=guard.counters.resume,
                demanded=guard.admitted,
                suppressed=guard.counters.kept_back - guard.counters.returned,
                kept_back=len(guard.blacklist),
                returned=guard.counters.returned,
                forgotten=guard.counters.forgotten,
                checked=guard.counters.checked + guard.counters.swept,
            )
            for guard in self.guards
        )

    def _hashed(self, alias: str, tuples: Tuples) -> Hashed:
        """Tuples with their signatures. Those whose columns are null somewhere are in no result: they are forgotten."""
        hashes: list[U64] = []
        good: Mask | None = None
        for guard in self._guards[alias]:
            own, valid = guard.kind.own_hashes(self._sources, tuples)
            hashes.append(own)
            if valid is not None:
                guard.counters.forgotten += len(tuples) - int(np.count_nonzero(valid))
                good = valid if good is None else good & valid
        found = Hashed(tuples, hashes)
        return found if good is None or good.all() else found.take(good)

    def _admit(self, alias: str, given: Hashed, now: int) -> Tuples:
        """Those of a stream's tuples that no guard keeps back."""
        for guard in self._guards[alias]:
            given = guard.admit(given, now)
        return given.tuples

    def _let_in(self, alias: str, tuples: Tuples, now: int) -> None:
        """Enter tuples into their SteMs after their time."""
        if len(tuples) == 0:
            return
        for match, side, state in self._stems[alias]:
            if state.older is None:
                state.older = match.new_state(side, sorted_by_ts=False)
            match.enter(state.older, match.prepare(side, tuples), now)

    def _renew(self, guard: Guard, now: int) -> None:
        """Make a filter anew from what lives, and keep back what has lost its last partner."""
        observed, alias = guard.observed.aliases[0], guard.kind.aliases[0]
        living = _living(self._sources, observed, now)
        hashes, valid = guard.observed.own_hashes(self._sources, living)
        guard.filter = Bloom(2 * len(hashes))
        guard.filter.add(hashes if valid is None else hashes[valid])
        looked_at = len(hashes)
        gone: list[I64] = []
        for _, _, state in self._stems[alias][:1]:
            for part in (state, state.older):
                if part is not None:
                    looked_at += part.hi - part.lo
                    gone.append(self._sweep(guard, part, now))
        rows = np.concatenate([np.zeros(0, np.int64), *gone])
        if len(rows):
            for _, _, state in self._stems[alias][1:]:
                for part in (state, state.older):
                    if part is not None:
                        entries = part.entries()
                        held, _ = part.gather(entries)
                        part.retract(entries[np.isin(held[0], rows)])
        guard.counters.swept += looked_at
        guard.handled = 0
        guard.due = max(LEAST_HANDLED, RENEWED_AFTER * looked_at)

    def _sweep(self, guard: Guard, state: SideState, now: int) -> I64:
        """Take out of a state of the guard's stream what has no partner; (n,) the rows."""
        entries = state.entries()
        rows, expiry = state.gather(entries)
        alive = expiry >= now
        entries, rows, expiry = entries[alive], np.compress(alive, rows, axis=1), expiry[alive]
        tuples = Tuples(state.aliases, rows, state.ts[entries & (state.capacity - 1)], expiry)
        hashes, valid = guard.kind.own_hashes(self._sources, tuples)
        useless = ~guard.filter.contains(hashes)
        if valid is not None:
            useless &= valid
        if not useless.any():
            return np.zeros(0, np.int64)
        guard.keep_back(tuples.take(useless), hashes[useless], now)
        state.retract(entries[useless])
        return np.ascontiguousarray(rows[0, useless])

    def _forget(self, now: int) -> None:
        """Let the dead go, now and then."""
        for alias in self._aliases:
            held = [self._idle[alias], *(guard.blacklist for guard in self._guards[alias])]
            for blacklist in held:
                if alias in self._sources.rows_windows:
                    blacklist.purge_rows(alias, self._sources.first_live_row(alias))
                blacklist.purge(now)


def _living(sources: Sources, alias: str, now: int) -> Tuples:
    """A stream's stored tuples that may live at `now`, with those that a selection refuses if they are stored too."""
    store = sources.store(alias)
    first = max(store.lo, sources.first_live_row(alias)) if alias in sources.rows_windows else store.lo
    rows = np.arange(first, store.hi, dtype=np.int64)
    ts = np.asarray(store.gather("_ts", rows).values, np.int64)
    alive = ts >= now - sources.life[alias]
    rows, ts = rows[alive], ts[alive]
    return Tuples((alias,), rows[np.newaxis], ts, sources.expiry(alias, rows, ts))


def _lives_until(sources: Sources, alias: str) -> int:
    """When the last stored tuple of a stream dies, at the latest; long ago where there is none."""
    store = sources.store(alias)
    if store.hi == store.lo:
        return NEVER
    last = np.array([store.hi - 1], np.int64)
    ts = np.asarray(store.gather("_ts", last).values, np.int64)
    return int(sources.expiry(alias, last, ts)[0])
