"""Feedback in M-Joins and eddies with SteMs (JIT V): a tuple stays out of its SteM while a stream has nothing for it.

There are no intermediate states here, so a half join that finds no partner for a tuple tells the tuple's own SteM. For
every two streams with an equality between them each has a guard that keeps back the other's tuples: a new tuple that no
living tuple of the observed stream matches is listed in a blacklist instead, enters no SteM and starts on no way. All
similar tuples are caught the same way when they come. A tuple of the observed stream that matches brings those listed
under its signature back into their SteMs, before it starts on its own way. Nothing has to be produced then: every
result that they are part of has a later component, which finds them, and until one came that matches them there was
none.

What lives is known of every stream, kept back or not, so no stream has to be observed before another; a slice is
observed as a whole before any of it is let in. While a stream has no living tuple at all, those of all others wait
unseen: the empty sub-tuple is not demanded (3.1), which is demand-driven operator execution.

A Bloom filter per guard says what has no partner. It forgets the dead when it is made anew from the stream's store,
which costs O(1) per tuple that was added or looked up; then the SteMs are looked through for tuples that have lost
their last partner, too. Which guards watch is decided in `operators.feedback.guard_payoff`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from operators.data.statistics import EdgeStatistics
from operators.data.tuples import FOREVER, Tuples
from operators.data.watermark import NEVER
from operators.feedback import guard_payoff as trials
from operators.feedback.bloom import Bloom
from operators.feedback.guard_payoff import Burden, Trial, trial_cost, work_of
from operators.feedback.kinds import level_one
from operators.feedback.stem_guard import Hashed, StemGuard
from operators.feedback.waiting import Waiting
from operators.join.eddy import Eddy
from operators.join.mjoin import MJoin
from operators.kernels.hashing import U64
from operators.state.match import LEFT, RIGHT, Match
from operators.state.side_state import SideState
from operators.state.sources import Sources
from schemas.columns import I64, Mask

SWEPT_SHARE = 0.1
"""A SteM is compacted when a larger share of it has lost its last partners."""


class StemFeedback:
    """Drives an M-Join or an eddy with SteMs, with feedback; see `operators.feedback.feedback.Feedback`.

    Args:
        clock: seconds, for what detecting takes.

    Attributes:
        guards: two for every two streams with an equality between them, by the stream that they guard.
    """

    def __init__(self, executor: MJoin | Eddy, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._executor = executor
        self._clock = clock
        self._sources = executor.sources
        self._aliases = executor.plan.aliases
        self._probing = trials.ENTERED + (trials.ROUTED if isinstance(executor, Eddy) else 0.0)
        self._stems: dict[str, list[tuple[Match, int, SideState]]] = {alias: [] for alias in self._aliases}
        for match, side, state in executor.stems():
            self._stems[state.aliases[0]].append((match, side, state))
        self._guards: dict[str, list[StemGuard]] = {alias: [] for alias in self._aliases}
        for n, one in enumerate(self._aliases):
            for other in self._aliases[n + 1 :]:
                self._add_guards(one, other)
        self.guards = [guard for alias in self._aliases for guard in self._guards[alias]]
        self._idle = {alias: Waiting(alias) for alias in self._aliases}
        self._lives_until = {alias: _lives_until(self._sources, alias) for alias in self._aliases}
        self._never = any(self._lives_until[alias] == NEVER for alias in self._sources.tables)
        self._watching: list[StemGuard] = []
        self._entered = dict.fromkeys(self._aliases, 0)
        # Since the accounts were settled last: tuples that came, and slices.
        self._came = dict.fromkeys(self._aliases, 0)
        self._slices = 0
        self._work = self._worked()
        self._purse = trials.PURSE
        self._turn = 0
        self._screened = False

    def _add_guards(self, one: str, other: str) -> None:
        """Two streams' guards, where there are equalities between them."""
        match = Match(self._sources, (one,), (other,))
        kinds = [kind for side in (LEFT, RIGHT) for kind in level_one(match, side) if kind.equal]
        if len(kinds) < 2:
            return
        pair: list[StemGuard] = []
        for side, alias in enumerate((one, other)):
            burden = Burden(len(self._stems[alias]), self._probing)
            static = (other, one)[side] in self._sources.tables
            place = len(self._guards[alias])
            pair.append(StemGuard(kinds[side], kinds[1 - side], place, burden, self._clock, static=static))
        for side, guard in enumerate(pair):
            guard.peer = pair[1 - side]
            self._guards[guard.alias].append(guard)

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        came = {alias: tuples for alias, tuples in epoch.items() if len(tuples)}
        for alias, tuples in came.items():
            self._lives_until[alias] = max(self._lives_until[alias], int(tuples.expiry[-1]))
        idle = min(self._lives_until.values()) < now
        if idle:
            if not self._never:
                for alias, tuples in came.items():
                    self._idle[alias].put(tuples)
            found = Tuples.empty(self._aliases)
        else:
            found = self._run(came, now)
        if idle or self._watching:
            self._forget(now)
        return found

    def _run(self, came: Mapping[str, Tuples], now: int) -> Tuples:
        """A slice in which every stream has something that lives."""
        waited = {alias: idle.take_all(now) for alias, idle in self._idle.items() if len(idle)}
        admitted = self._sifted(came, waited, now) if waited or self._watching else came
        found = self._executor.process(admitted, now)
        for alias, tuples in came.items():
            self._came[alias] += len(tuples)
            self._entered[alias] += len(admitted[alias])
        self._slices += 1
        for guard in self._watching:
            if guard.handled > guard.due or guard.filter.full:
                with guard.detecting:
                    self._renew(guard, now)
        if sum(self._came.values()) >= trials.BOOKED_TUPLES:
            self._book(now)
        return found

    def _sifted(self, came: Mapping[str, Tuples], waited: Mapping[str, Tuples], now: int) -> dict[str, Tuples]:
        """Observe what came and what has waited unseen, and let in what that brings back; what came, if admitted."""
        new, old = ({alias: self._hashed(alias, part) for alias, part in seen.items()} for seen in (came, waited))
        back: dict[str, list[Tuples]] = {alias: [part.tuples] for alias, part in old.items()}
        for seen in (old, new):
            for alias, part in seen.items():
                for guard in self._guards[alias]:
                    if guard.peer.watching:
                        with guard.peer.detecting:
                            returned = guard.peer.observe(part, now)
                        back.setdefault(guard.by, []).append(returned)
        for alias, parts in back.items():
            self._let_in(alias, parts, now)
        return {alias: self._admit(alias, part, now).tuples for alias, part in new.items()}

    def settle(self, now: int) -> None:
        """Let in everything that is kept back: the SteMs then hold what they do without feedback."""
        self._watching = []
        for guard in self.guards:
            guard.account.watching = False
        for alias in self._aliases:
            kept = [guard.release(now) for guard in self._guards[alias]]
            self._let_in(alias, [self._idle[alias].take_all(now), *kept], now)

    def kept_back(self) -> int:
        """Source tuples kept back now."""
        return sum(len(idle) for idle in self._idle.values()) + sum(len(guard.blacklist) for guard in self.guards)

    def size_bytes(self) -> int:
        """Bytes of all filters and blacklists."""
        return sum(idle.size_bytes() for idle in self._idle.values()) + sum(guard.size_bytes() for guard in self.guards)

    def edges(self) -> tuple[EdgeStatistics, ...]:
        """What each stream has said about each other one. A result not made is a tuple that started on no way."""
        return tuple(
            EdgeStatistics(
                consumer=f"{guard.alias} -> {guard.by}",
                producer=guard.alias,
                watching=guard.watching,
                suspend=guard.counters.suspend,
                resume=guard.counters.resume,
                demanded=guard.admitted,
                suppressed=guard.refused,
                kept_back=len(guard.blacklist),
                returned=guard.counters.returned,
                forgotten=guard.counters.forgotten,
                checked=guard.counters.checked + guard.swept,
                detecting_s=guard.detecting.seconds,
            )
            for guard in self.guards
        )

    # --- Letting in and keeping back ----------------------------------------------------------------------

    def _hashed(self, alias: str, tuples: Tuples) -> Hashed:
        """Tuples with their signatures. Those whose columns are null somewhere are in no result: they are forgotten."""
        hashes: list[U64] = []
        good: Mask | None = None
        for guard in self._guards[alias]:
            own, valid = np.zeros(0, np.uint64), None
            if guard.watching or guard.peer.watching:
                with (guard if guard.watching else guard.peer).detecting:
                    own, valid = guard.kind.own_hashes(self._sources, tuples)
            hashes.append(own)
            if valid is not None:
                guard.counters.forgotten += len(tuples) - int(np.count_nonzero(valid))
                good = valid if good is None else good & valid
        found = Hashed(tuples, hashes)
        return found if good is None or good.all() else found.take(good)

    def _admit(self, alias: str, given: Hashed, now: int) -> Hashed:
        """Those of a stream's tuples that no guard keeps back."""
        for guard in self._guards[alias]:
            if guard.watching and len(given):
                with guard.detecting:
                    given = guard.admit(given, now)
        return given

    def _let_in(self, alias: str, parts: list[Tuples], now: int) -> None:
        """Enter tuples into their SteMs after their time, as far as no guard keeps them back still."""
        late = Tuples.concat([part for part in parts if len(part)], (alias,))
        if len(late):
            late = self._admit(alias, self._hashed(alias, late), now).tuples
        if len(late) == 0:
            return
        until = min(int(late.expiry.max()) + 1, FOREVER)
        for match, side, state in self._stems[alias]:
            if state.older is None:
                state.older, state.older_until = match.new_state(side, sorted_by_ts=False), NEVER
            state.older_until = max(state.older_until, until)
            match.enter(state.older, match.prepare(side, late), now)

    def _fold(self, alias: str, now: int) -> None:
        """Put what was let in late where it would be had it come in time, so that it need not be probed apart."""
        for match, side, state in self._stems[alias]:
            if state.older is not None:
                held = state.tuples()
                # In the order of their coming, equal ts too: by it ROWS windows find the dead.
                held = held.take(np.argsort(held.rows[0]))
                state.older, state.older_until = None, FOREVER
                state.keep(np.zeros(state.hi - state.lo, np.bool_))
                match.enter(state, match.prepare(side, held.take(held.expiry >= now)), now)

    def _renew(self, guard: StemGuard, now: int) -> None:
        """Make a filter anew from what lives, and keep back what has lost its last partner."""
        filter, looked_at = self._filter(guard, now)
        self._fold(guard.alias, now)
        first, *others = self._stems[guard.alias]
        guard.renew(filter, looked_at + len(first[2]))
        gone = self._sweep(guard, first[2], now)
        if len(gone):
            for _, _, state in others:
                state.keep(~np.isin(state.gather(np.arange(state.lo, state.hi))[0][0], gone))

    def _filter(self, guard: StemGuard, now: int) -> tuple[Bloom, int]:
        """A filter of the observed stream's living tuples, and how many these are."""
        living = _living(self._sources, guard.by, _stored(self._sources, guard.by), now)
        hashes, valid = guard.observed.own_hashes(self._sources, living)
        filter = Bloom(2 * len(hashes))
        filter.add(hashes if valid is None else hashes[valid])
        return filter, len(hashes)

    def _sweep(self, guard: StemGuard, state: SideState, now: int) -> I64:
        """Take out of a state of the guard's stream what has no partner; (n,) the rows."""
        entries = np.arange(state.lo, state.hi)
        rows, expiry = state.gather(entries)
        tuples = Tuples(state.aliases, rows, state.ts[entries & (state.capacity - 1)], expiry)
        hashes, valid = guard.kind.own_hashes(self._sources, tuples)
        useless = ~guard.filter.contains(hashes) & (expiry >= now)
        if valid is not None:
            useless &= valid
        if np.count_nonzero(useless) <= SWEPT_SHARE * len(entries):
            useless[:] = False
        else:
            guard.keep_back(tuples.take(useless), hashes[useless], now)
            state.keep(~useless)
        return np.ascontiguousarray(rows[0, useless])

    def _forget(self, now: int) -> None:
        """Let the dead go, now and then."""
        for alias in self._aliases:
            blacklists = [guard.blacklist for guard in self._guards[alias]]
            if alias in self._sources.rows_windows:
                first_row = self._sources.first_live_row(alias)
                self._idle[alias].purge_rows(first_row)
                for blacklist in blacklists:
                    blacklist.purge_rows(alias, first_row)
            self._idle[alias].purge(now)
            for blacklist in blacklists:
                blacklist.purge(now)

    # --- Which guards watch -------------------------------------------------------------------------------

    def _worked(self) -> float:
        return sum(work_of(counters, self._probing) for counters in self._executor.counters())

    def _book(self, now: int) -> None:
        """Settle all accounts, and give trials to guards that rest, one after the other, while the purse lasts."""
        work = self._worked()
        self._purse += trials.LOSS_SHARE * (work - self._work)
        self._work = work
        for guard in self._watching:
            self._weigh(guard)
            late = any(state.older is not None for _, _, state in self._stems[guard.alias])
            if not guard.settle(self._slices, late=late):
                self._purse -= guard.burden.returned * len(guard.blacklist)
                self._let_in(guard.alias, [guard.release(now)], now)
        for _ in self.guards:
            guard = self.guards[self._turn % len(self.guards)]
            if not guard.watching:
                if not self._screened:
                    if self._purse < trials.SCREENED:
                        break
                    self._purse -= trials.SCREENED
                    with guard.detecting:
                        self._screened = self._may_pay(guard, now)
                cost = trial_cost(len(_stored(self._sources, guard.by))) if self._screened else 0.0
                if self._purse < cost:
                    break
                self._purse -= cost
                if self._screened:
                    with guard.detecting:
                        begun = self._try(guard, trials.STAKE * cost, now)
                    self._purse -= trials.STAKE * cost if begun else 0.0
                self._screened = False
            self._turn += 1
        self._watching = [guard for guard in self.guards if guard.watching]
        for alias in self._aliases:
            if not any(guard.watching for guard in self._guards[alias]):
                self._fold(alias, now)
        self._came = dict.fromkeys(self._aliases, 0)
        self._slices = 0

    def _may_pay(self, guard: StemGuard, now: int) -> bool:
        """Whether a guard is worth a trial, by its stream's newest tuples and the newest that it observes."""
        self._weigh(guard)
        if guard.burden.saved <= 0.0:
            return False
        own, other = (
            _living(self._sources, alias, _stored(self._sources, alias)[-count:], now)
            for alias, count in ((guard.alias, trials.SAMPLED_TUPLES), (guard.by, trials.SCREENED_TUPLES))
        )
        hashes, valid = guard.kind.own_hashes(self._sources, own)
        found = np.isin(hashes, guard.observed.own_hashes(self._sources, other)[0])
        if valid is not None:
            found &= valid
        return bool(np.count_nonzero(found) <= trials.PARTNERED_AT_MOST * len(found))

    def _weigh(self, guard: StemGuard) -> None:
        guard.burden.update(self._executor.burden(guard.alias, guard.by), self._entered[guard.alias])

    def _try(self, guard: StemGuard, stake: float, now: int) -> bool:
        """Give a guard a trial, and let it watch with a stake if it promises to pay; whether it does."""
        rows = _stored(self._sources, guard.alias)
        newest, oldest = (
            _living(self._sources, guard.alias, part, now)
            for part in (rows[-trials.SAMPLED_TUPLES :], rows[: trials.SAMPLED_TUPLES])
        )
        if len(newest) == 0 or len(oldest) == 0:
            return False
        filter, looked_at = self._filter(guard, now)
        shares = []
        for part in (newest, oldest):
            hashes, valid = guard.kind.own_hashes(self._sources, part)
            useless = ~filter.contains(hashes)
            shares.append(float(useless.mean() if valid is None else (useless | ~valid).mean()))
        came = max(self._came[guard.alias], 1)
        spent = (came + self._came[guard.by]) * trials.CHECKED + self._slices * trials.CALLED
        seen = Trial(shares[0], shares[1], spent / came)
        if not seen.promises(guard.burden):
            return False
        guard.begin(filter, looked_at, stake)
        return True


def _stored(sources: Sources, alias: str) -> range:
    """The rows of a stream that may live, with those that a selection refuses if they are stored too."""
    store = sources.store(alias)
    return range(max(store.lo, sources.first_live_row(alias)) if alias in sources.rows_windows else store.lo, store.hi)


def _living(sources: Sources, alias: str, rows: range, now: int) -> Tuples:
    """Those of a stream's stored tuples that may live at `now`."""
    ids = np.arange(rows.start, rows.stop, dtype=np.int64)
    ts = np.asarray(sources.store(alias).gather("_ts", ids).values, np.int64)
    alive = ts >= now - sources.life[alias]
    ids, ts = ids[alive], ts[alive]
    return Tuples((alias,), ids[np.newaxis], ts, sources.expiry(alias, ids, ts))


def _lives_until(sources: Sources, alias: str) -> int:
    """When the last stored tuple of a stream dies, at the latest; long ago where there is none."""
    store = sources.store(alias)
    if store.hi == store.lo:
        return NEVER
    last = np.array([store.hi - 1], np.int64)
    ts = np.asarray(store.gather("_ts", last).values, np.int64)
    return int(sources.expiry(alias, last, ts)[0])
