"""Feedback in M-Joins and eddies (JIT V): a tuple stays out of its SteM while some stream has no match for it.

The engine uses `StemFeedback` in place of the executor; see `operators.feedback.feedback`.

These plans have no intermediate states, so a half join that finds no partner for a tuple reports this to the tuple's
own SteM. For every two streams with an equality between them, each has a guard that keeps back the other's tuples. A
new tuple that no living tuple of the observed stream matches is put in a blacklist: it enters no SteM and starts no
probe path. Similar tuples are kept back in the same way when they arrive. When a matching tuple arrives in the observed
stream, the tuples listed under its signature enter their SteMs before it starts its own probe path. No results are
produced at that moment. Every result that contains a resumed tuple has a later component, which finds it, and before a
matching component arrived there was no result.

The engine knows which tuples of every stream are alive, kept back or not, so no stream has to be observed before
another. A whole slice is observed before any of it enters. While a stream has no living tuple, the tuples of all other
streams wait without being inspected: the empty sub-tuple is not demanded (III-A), which is demand-driven operator
execution.

Each guard has a Bloom filter that tells which tuples have no partner. The filter forgets expired tuples when it is
rebuilt from the stream's store, at O(1) per tuple that was added or looked up. The rebuild also sweeps the SteMs for
tuples that have lost their last partner. `operators.feedback.payoff.path_controller` decides which guards watch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from operators.data.statistics import EdgeStatistics
from operators.data.tuples import FOREVER, Tuples
from operators.data.watermark import NEVER
from operators.feedback.bloom import Bloom
from operators.feedback.kinds import level_one
from operators.feedback.payoff import guard as payoff
from operators.feedback.payoff.path_controller import PathController
from operators.feedback.payoff.tuple_cost import ENTER_NS, RESULT_NS, ROUTE_NS, trial_cost, work_of
from operators.feedback.stem_guard import SignedTuples, StemGuard
from operators.feedback.waiting import WaitingTuples
from operators.join.eddy import Eddy
from operators.join.mjoin import MJoin
from operators.kernels.hashing import U64
from operators.state.match import LEFT, RIGHT, Match
from operators.state.side_state import SideState
from operators.state.sources import Sources
from schemas.columns import I64, Mask

COMPACT_SHARE = 0.1
"""A SteM is compacted when a larger share of its tuples has lost the last partner."""

SCREENED_TUPLES = 2048
"""The number of newest observed tuples that the screening before a trial looks at."""

MAX_PARTNERED_SHARE = 0.5
"""No trial takes place if a larger share of the newest guarded tuples has partners among the screened ones."""

SCREEN_NS = 75_000.0
"""The cost of the screening."""


class StemFeedback:
    """Runs an M-Join or an eddy with SteMs, with feedback; see `operators.feedback.feedback.Feedback`.

    Args:
        executor: The executor.
        clock: Returns seconds, to measure how long detection takes.

    Attributes:
        guards: Two guards for every two streams with an equality between them, ordered by the guarded stream.
    """

    def __init__(self, executor: MJoin | Eddy, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._executor = executor
        self._clock = clock
        self._sources = executor.sources
        self._aliases = executor.plan.aliases
        self._probing = ENTER_NS + (ROUTE_NS if isinstance(executor, Eddy) else 0.0)
        self._stems: dict[str, list[tuple[Match, int, SideState]]] = {alias: [] for alias in self._aliases}
        for match, side, state in executor.stems():
            self._stems[state.aliases[0]].append((match, side, state))
        self._guards: dict[str, list[StemGuard]] = {alias: [] for alias in self._aliases}
        for n, first in enumerate(self._aliases):
            for second in self._aliases[n + 1 :]:
                self._add_guards(first, second)
        self.guards = [guard for alias in self._aliases for guard in self._guards[alias]]
        self._idle = {alias: WaitingTuples(alias) for alias in self._aliases}
        self._lives_until = {alias: _lives_until(self._sources, alias) for alias in self._aliases}
        self._empty_table = any(self._lives_until[alias] == NEVER for alias in self._sources.tables)
        self._watching: list[StemGuard] = []
        self._controller = PathController(self.guards, self, self._aliases, self._work_done())
        # Whether the guard whose turn it is merits a trial; None before its screening.
        self._merits_trial: bool | None = None

    def _add_guards(self, first: str, second: str) -> None:
        """Create the guards of two streams, if there are equalities between them."""
        match = Match(self._sources, (first,), (second,))
        kinds = [kind for side in (LEFT, RIGHT) for kind in level_one(match, side) if kind.equal]
        if len(kinds) < 2:
            return
        pair: list[StemGuard] = []
        for side, alias in enumerate((first, second)):
            states = [state for _, _, state in self._stems[alias]]
            static = (second, first)[side] in self._sources.tables
            position = len(self._guards[alias])
            pair.append(StemGuard(kinds[side], kinds[1 - side], position, states, self._clock, static=static))
        for side, guard in enumerate(pair):
            guard.peer = pair[1 - side]
            self._guards[guard.alias].append(guard)

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        arrived = {alias: tuples for alias, tuples in epoch.items() if len(tuples)}
        for alias, tuples in arrived.items():
            self._lives_until[alias] = max(self._lives_until[alias], int(tuples.expiry[-1]))
        idle = min(self._lives_until.values()) < now
        if idle:
            if not self._empty_table:
                for alias, tuples in arrived.items():
                    self._idle[alias].put(tuples)
            found = Tuples.empty(self._aliases)
        else:
            found = self._run(arrived, now)
        if idle or self._watching:
            self._purge(now)
        return found

    def _run(self, arrived: Mapping[str, Tuples], now: int) -> Tuples:
        """Run a slice in which every stream has a living tuple."""
        waited = {alias: idle.take_all(now) for alias, idle in self._idle.items() if len(idle)}
        admitted = self._observe_and_admit(arrived, waited, now) if waited or self._watching else arrived
        found = self._executor.process(admitted, now)
        for alias, tuples in arrived.items():
            self._controller.note(alias, len(tuples), len(admitted[alias]))
        for guard in self._watching:
            if guard.handled > guard.rebuild_due or guard.filter.full:
                with guard.detecting:
                    self._rebuild_filter(guard, now)
        if self._controller.end_slice():
            self._update_balances(now)
        return found

    def _observe_and_admit(
        self, arrived: Mapping[str, Tuples], waited: Mapping[str, Tuples], now: int
    ) -> dict[str, Tuples]:
        """Observe new and waiting tuples, enter what they resume, and return the new tuples that no guard keeps
        back."""
        new, old = ({alias: self._hashed(alias, part) for alias, part in seen.items()} for seen in (arrived, waited))
        back: dict[str, list[Tuples]] = {alias: [part.tuples] for alias, part in old.items()}
        for seen in (old, new):
            for alias, part in seen.items():
                for guard in self._guards[alias]:
                    if guard.peer.watching:
                        with guard.peer.detecting:
                            returned = guard.peer.observe(part, now)
                        back.setdefault(guard.observed_alias, []).append(returned)
        for alias, parts in back.items():
            self._let_in(alias, parts, now)
        return {alias: self._admit(alias, part, now).tuples for alias, part in new.items()}

    def release_all(self, now: int) -> None:
        """Enter all tuples that are kept back; the SteMs then contain what they would without feedback."""
        self._watching = []
        for guard in self.guards:
            guard.balance.watching = False
        for alias in self._aliases:
            kept = [guard.release(now) for guard in self._guards[alias]]
            self._let_in(alias, [self._idle[alias].take_all(now), *kept], now)

    def kept_back(self) -> int:
        """The number of source tuples that are kept back now."""
        return sum(len(idle) for idle in self._idle.values()) + sum(len(guard.blacklist) for guard in self.guards)

    def size_bytes(self) -> int:
        """Bytes of all filters and blacklists."""
        return sum(idle.size_bytes() for idle in self._idle.values()) + sum(guard.size_bytes() for guard in self.guards)

    def edges(self) -> tuple[EdgeStatistics, ...]:
        """The statistics of each guard."""
        return tuple(guard.statistics() for guard in self.guards)

    # --- Entering late and keeping back -------------------------------------------------------------------

    def _hashed(self, alias: str, tuples: Tuples) -> SignedTuples:
        """Return tuples with their signatures. Tuples with a null in a guard's columns are in no result and are
        dropped."""
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
        found = SignedTuples(tuples, hashes)
        return found if good is None or good.all() else found.take(good)

    def _admit(self, alias: str, signed: SignedTuples, now: int) -> SignedTuples:
        """Return those of a stream's tuples that no guard keeps back."""
        for guard in self._guards[alias]:
            if guard.watching and len(signed):
                with guard.detecting:
                    signed = guard.admit(signed, now)
        return signed

    def _let_in(self, alias: str, parts: list[Tuples], now: int) -> None:
        """Enter tuples late into their SteMs, unless a guard still keeps them back."""
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

    def _merge_late(self, alias: str, now: int) -> None:
        """Move tuples that entered late to the positions of a timely arrival, so that they need no separate probe."""
        for match, side, state in self._stems[alias]:
            if state.older is not None:
                held = state.tuples()
                state.older, state.older_until = None, FOREVER
                state.keep(np.zeros(state.hi - state.lo, np.bool_))
                match.enter(state, match.prepare(side, held.take(held.expiry >= now)), now)

    def _rebuild_filter(self, guard: StemGuard, now: int) -> None:
        """Rebuild a guard's filter from the living tuples, and keep back tuples that have lost their last partner."""
        filter, entries_read = self._filter(guard, now)
        self._merge_late(guard.alias, now)
        first, *others = self._stems[guard.alias]
        guard.replace_filter(filter, entries_read + len(first[2]))
        gone = self._sweep(guard, first[2], now)
        if len(gone):
            for _, _, state in others:
                state.keep(~np.isin(state.gather(np.arange(state.lo, state.hi))[0][0], gone))

    def _filter(self, guard: StemGuard, now: int) -> tuple[Bloom, int]:
        """Return a filter of the observed stream's living tuples, and the number of these tuples."""
        living = _living(self._sources, guard.observed_alias, _stored(self._sources, guard.observed_alias), now)
        hashes, valid = guard.observed.own_hashes(self._sources, living)
        filter = Bloom(2 * len(hashes))
        filter.add(hashes if valid is None else hashes[valid])
        return filter, len(hashes)

    def _sweep(self, guard: StemGuard, state: SideState, now: int) -> I64:
        """Remove the tuples without a partner from a state of the guarded stream; return their (n,) rows."""
        entries = np.arange(state.lo, state.hi)
        rows, expiry = state.gather(entries)
        tuples = Tuples(state.aliases, rows, state.ts[entries & (state.capacity - 1)], expiry)
        hashes, valid = guard.kind.own_hashes(self._sources, tuples)
        useless = ~guard.filter.contains(hashes) & (expiry >= now)
        if valid is not None:
            useless &= valid
        if np.count_nonzero(useless) <= COMPACT_SHARE * len(entries):
            useless[:] = False
        else:
            guard.keep_back(tuples.take(useless), hashes[useless], now)
            state.keep(~useless)
        return np.ascontiguousarray(rows[0, useless])

    def _purge(self, now: int) -> None:
        """Remove expired tuples that are kept back, where a purge is due."""
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

    def _work_done(self) -> float:
        return sum(work_of(counters, self._probing) for counters in self._executor.counters())

    def _update_balances(self, now: int) -> None:
        for guard in self._watching:
            self._update_cost(guard)
        self._controller.update(self._work_done(), now)
        self._watching = [guard for guard in self.guards if guard.watching]
        for alias in self._aliases:
            if not any(guard.watching for guard in self._guards[alias]):
                self._merge_late(alias, now)

    def _update_cost(self, guard: StemGuard) -> None:
        probes, found, met = self._executor.work_before(guard.alias, guard.observed_alias)
        own = probes * self._probing + found * RESULT_NS
        guard.tuple_cost.update(own, met * RESULT_NS, self._controller.entered[guard.alias])

    def take_turn(self, guard: StemGuard, now: int) -> bool:
        """Screen a resting guard and give it a trial; see `operators.feedback.payoff.path_controller.GuardedInputs`."""
        if self._merits_trial is None:
            if not self._controller.pay(SCREEN_NS):
                return False
            with guard.detecting:
                self._merits_trial = self._screen(guard, now)
        if self._merits_trial:
            cost = trial_cost(len(_stored(self._sources, guard.observed_alias)))
            if not self._controller.pay(cost):
                return False
            with guard.detecting:
                self._run_trial(guard, cost, now)
        self._merits_trial = None
        return True

    def _screen(self, guard: StemGuard, now: int) -> bool:
        """Return whether a guard merits a trial, by the newest tuples of its two streams."""
        self._update_cost(guard)
        if guard.tuple_cost.saved <= 0.0:
            return False
        own, other = (
            _living(self._sources, alias, _stored(self._sources, alias)[-count:], now)
            for alias, count in ((guard.alias, payoff.SAMPLED_TUPLES), (guard.observed_alias, SCREENED_TUPLES))
        )
        hashes, valid = guard.kind.own_hashes(self._sources, own)
        found = np.isin(hashes, guard.observed.own_hashes(self._sources, other)[0])
        if valid is not None:
            found &= valid
        return bool(np.count_nonzero(found) <= MAX_PARTNERED_SHARE * len(found))

    def _run_trial(self, guard: StemGuard, cost: float, now: int) -> None:
        """Give a guard a trial, and let it watch if the estimate is favourable."""
        rows = _stored(self._sources, guard.alias)
        ends = [
            _living(self._sources, guard.alias, part, now)
            for part in (rows[-payoff.SAMPLED_TUPLES :], rows[: payoff.SAMPLED_TUPLES])
        ]
        if not all(map(len, ends)):
            return
        filter, entries_read = self._filter(guard, now)
        newest, oldest = (filter.missing_share(*guard.kind.own_hashes(self._sources, part)) for part in ends)
        if self._controller.promises(guard, newest, oldest):
            guard.replace_filter(filter, entries_read)
            self._controller.start(guard, cost)

    def release(self, guard: StemGuard, now: int) -> int:
        """Let in what a guard keeps back, and return its number, with the dead."""
        held = len(guard.blacklist)
        self._let_in(guard.alias, [guard.release(now)], now)
        return held


def _stored(sources: Sources, alias: str) -> range:
    """Return the rows of a stream that may be alive. They include rows that a selection rejects, if these are stored
    too."""
    store = sources.store(alias)
    return range(max(store.lo, sources.first_live_row(alias)) if alias in sources.rows_windows else store.lo, store.hi)


def _living(sources: Sources, alias: str, rows: range, now: int) -> Tuples:
    """Return those of a stream's stored tuples that may be alive at `now`."""
    ids = np.arange(rows.start, rows.stop, dtype=np.int64)
    ts = np.asarray(sources.store(alias).gather("_ts", ids).values, np.int64)
    alive = ts >= now - sources.life[alias]
    ids, ts = ids[alive], ts[alive]
    return Tuples((alias,), ids[np.newaxis], ts, sources.expiry(alias, ids, ts))


def _lives_until(sources: Sources, alias: str) -> int:
    """Return the latest time at which a stored tuple of a stream is alive; NEVER if none is stored."""
    store = sources.store(alias)
    if store.hi == store.lo:
        return NEVER
    last = np.array([store.hi - 1], np.int64)
    ts = np.asarray(store.gather("_ts", last).values, np.int64)
    return int(sources.expiry(alias, last, ts)[0])
