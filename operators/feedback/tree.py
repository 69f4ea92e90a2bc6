"""Feedback in a tree of joins (JIT 3, 4): what no consumer can use now is not produced, and is produced when one can.

**Suspending is taking out, resuming is entering late.** A source tuple that some consumer cannot use is kept back
before it enters its first join, or taken out of it and of every state up to that consumer. When the consumer can use
it after all, it enters its first join late, and what it makes there goes up, late too, as far as that consumer. So at
any time a state holds exactly what it would without feedback, less what is made of tuples kept back. The paper's
blacklists note when a tuple was suspended, to tell which partners it has missed; that fails when partners were
suspended too, and this needs no such note.

That feedback goes down to the sources at once is the paper's propagation (3.3, Fig. 6): producers relay it until
one has the tuples themselves for input.

A slice is one pass over the plan, in each join the observed input's part first (`operators.feedback.watch`): its
tuples bring back what they match, then the suppressed input's part runs, then the join. Results of the query are never
late: while something is kept back it has no partner, so the partner that brings it back is new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from operators.data.statistics import EdgeStatistics
from operators.data.tuples import Tuples
from operators.feedback import guard_payoff as trials
from operators.feedback.blacklist import Blacklist
from operators.feedback.burden import CHECKED, LOOKED_AT, work_of
from operators.feedback.tree_guard import TreeGuard
from operators.feedback.watch import BLOOM, SCREENED_TUPLES, Watch, suppressed_side
from operators.join.binary_join import BinaryJoin
from operators.join.tree import XJoinTree
from operators.plan.plan import Join, Leaf, Plan
from operators.state.match import LEFT, RIGHT
from operators.state.side_state import SideState
from schemas.errors import InvariantError

SWEEP_SHARE = 0.05
"""States are swept as often as that takes this share of all the work."""

ENTRY_WORDS = 4
"""Words of a state's entry beside its rows: ts, expiry, key and index."""

BOOKED_WORK = 5e6
"""Accounts are settled after so much work, if not before."""

RARELY = 8
"""While no guard watches nor any is worth a trial, accounts are settled up to so many times less often."""

MOST_WAITS = 3
"""A guard that promises nothing is passed over up to so many times."""

LOOKED_EVERY = 8
"""While all rest, only one in so many slices looks whether they still do, or oftener where accounts are settled."""

PAID_BACK = 8
"""A trial that promises to pay itself back in so many times the slices since the last booking need not be in the
purse."""

SCREENED = 200_000.0 + (2 * trials.SAMPLED_TUPLES + SCREENED_TUPLES) * CHECKED
"""What it costs to see whether a guard is worth a trial."""


class Late(NamedTuple):
    """Tuples that enter after their time. They go up as far as the consumer that has `until` joins above it: what it
    and those above it hold lacks nothing that is made of them."""

    tuples: Tuples
    until: int


@dataclass(slots=True)
class _Place:
    """One join: its inputs' nodes, what watches there, and how many joins are above."""

    node: Join
    join: BinaryJoin
    depth: int
    watch: Watch | None


@dataclass(slots=True)
class _Home:
    """A sub-plan at which tuples may be kept back: their way up the plan, and the consumers that may do so, nearest
    first."""

    node: Plan
    path: list[tuple[BinaryJoin, int, int]]
    watches: list[Watch]


class TreeFeedback:
    """Drives the joins of a tree, with feedback between them.

    Args:
        tree: an X-Join tree or STAIRs, whose states are complete.
        detector: one of `operators.feedback.watch.DETECTORS`.
        clock: seconds, for what detecting takes.

    Attributes:
        watches: the consumers that give feedback, in the order in which they observe.
    """

    def __init__(
        self, tree: XJoinTree, now: int, detector: str = BLOOM, clock: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._tree = tree
        self._detector = detector
        self._clock = clock
        self._joins = {id(node): join for node, join in tree.joins}
        self._steps: list[Callable[[], None]] = []
        self._homes: dict[tuple[str, ...], _Home] = {}
        self.watches: list[Watch] = []
        self._new: dict[int, Tuples] = {}
        self._late: dict[int, Late] = {}
        self._late_made = dict.fromkeys(self._joins, 0)
        self._back: dict[tuple[str, ...], Late] = {}
        self._epoch: Mapping[str, Tuples] = {}
        self._now = now
        self._admitting = True
        self._plan_steps(tree.plan, 0, [], [])
        for watch in self.watches:
            watch.observe([], now)
            watch.renew(now)
        self._blacklists: dict[tuple[str, ...], list[Blacklist]] = {}
        self._guards = [(watch, guard) for watch in self.watches for guard in watch.guards]
        for _, guard in self._guards:
            self._blacklists.setdefault(guard.home.aliases, []).append(guard.blacklist)
        self._watching = self._count_watching()
        self._work = self._swept_work = self._worked()
        self._purse = trials.PURSE
        self._turn = self._slices = self._tuples = 0
        self._lacking: Sequence[float] | None = None
        # So many times less often than else accounts are settled.
        self._rarely = 1
        self._resting = False
        # So many slices more rest without a look.
        self._unlooked = 0
        self._size_bytes: int | None = None

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        self._slices += 1
        if self._unlooked:
            self._unlooked -= 1
            return self._tree.process(epoch, now)
        self._epoch, self._now = epoch, now
        self._resting = self._rests()
        if self._resting:
            found = self._tree.process(epoch, now)
        else:
            for step in self._steps:
                step()
            found = self._new.pop(id(self._tree.plan))
            if self._late.pop(id(self._tree.plan), None) is not None:
                raise InvariantError("feedback: a result of the query was produced late")
        if self._guards and self._admitting:
            self._after_slice(sum(map(len, epoch.values())))
        return found

    def _rests(self) -> bool:
        """Whether the tree can run as it does without feedback: nothing is kept back, nor will be in this slice."""
        if self._watching or self._back or not self._admitting:
            return False
        rests = True
        for watch in self.watches:
            # All are asked, since they note when their input became empty.
            if watch.is_idle(self._now) or watch.idling:
                rests = False
        return rests

    def settle(self, now: int) -> None:
        """Let everything through that is kept back: the tree's states then are what they are without feedback."""
        self._admitting = False
        for watch in self.watches:
            self._bring_back(watch.release(now), watch.depth)
        self.process({}, now)
        self._admitting = True

    def kept_back(self) -> int:
        """Source tuples kept back now."""
        return 0 if self._resting else sum(watch.kept_back() for watch in self.watches)

    def size_bytes(self) -> int:
        """Bytes of all that feedback keeps. O(1) while all rest."""
        if not self._resting or self._size_bytes is None:
            self._size_bytes = sum(watch.size_bytes() for watch in self.watches)
        return self._size_bytes

    def edges(self) -> tuple[EdgeStatistics, ...]:
        """What each consumer has told its producer."""
        return tuple(self._edge(watch) for watch in self.watches)

    def _edge(self, watch: Watch) -> EdgeStatistics:
        counters = watch.counters
        suppressed = max(0, round(sum(guard.burden.suppressed for guard in watch.guards)))
        return EdgeStatistics(
            consumer=str(watch.node),
            producer=str(watch.producer),
            watching=any(guard.watching for guard in watch.guards),
            suspend=counters.suspend,
            resume=counters.resume,
            mark=counters.mark,
            unmark=counters.unmark,
            demanded=self._joins[id(watch.producer)].counters.results,
            late=self._late_made[id(watch.producer)],
            kept_back=watch.kept_back(),
            returned=counters.returned,
            forgotten=counters.forgotten,
            checked=counters.checked,
            suppressed=suppressed,
            saved_bytes=suppressed * 8 * (len(watch.producer.aliases) + ENTRY_WORDS),
            detecting_s=watch.detecting.seconds,
        )

    # --- The order of a slice -------------------------------------------------------------------------

    def _plan_steps(self, node: Plan, depth: int, path: list[tuple[BinaryJoin, int, int]], above: list[Watch]) -> None:
        """Append what a slice does for a sub-plan. `path` and `above` are its way up and what watches there."""
        self._homes[node.aliases] = _Home(node, path, [watch for watch in above if watch.speaks_of(node)])
        if isinstance(node, Leaf):
            self._steps.append(partial(self._enter, node))
            return
        join = self._joins[id(node)]
        side = suppressed_side(node)
        watch = None
        if side is not None:
            sources, joins = self._tree.sources, self._joins
            watch = Watch(sources, node, joins, depth, side, self._detector, self._clock, told=bool(above))
        place = _Place(node, join, depth, watch)
        children = (node.left, node.right)
        for turn in (RIGHT, LEFT) if side is None or side == LEFT else (LEFT, RIGHT):
            watched = above if watch is None or turn != side else [watch, *above]
            if watch is not None and turn == side:
                self.watches.append(watch)
                self._steps.append(partial(self._observe, watch, children[1 - turn]))
            self._plan_steps(children[turn], depth + 1, [(join, turn, depth), *path], watched)
        self._steps.append(partial(self._join, place))

    def _enter(self, node: Leaf) -> None:
        """A source's new tuples, as far as they are not kept back."""
        new = self._epoch.get(node.alias) or Tuples.empty((node.alias,))
        self._let_pass(node, new, [])

    def _let_pass(self, node: Plan, new: Tuples, late: list[Late]) -> None:
        """Hand a sub-plan's tuples up, new ones, late ones and those that were brought back, but for those that are
        kept back."""
        home = self._homes[node.aliases]
        back = self._back.pop(node.aliases, None)
        if back is not None:
            late = [*late, back]
        if self._admitting:
            for watch in home.watches:
                with watch.detecting:
                    new = watch.admit(node, new, self._now)
        self._new[id(node)] = new
        late = [part for part in late if len(part.tuples)]
        if late:
            tuples = Tuples.concat([part.tuples for part in late], node.aliases)
            if self._admitting:
                for watch in home.watches:
                    with watch.detecting:
                        tuples = watch.admit(node, tuples, self._now)
            if len(tuples):
                self._late[id(node)] = Late(tuples, min(part.until for part in late))

    def _observe(self, watch: Watch, observed: Plan) -> None:
        if not self._admitting:
            return
        arrived = [self._new[id(observed)]]
        late = self._late.get(id(observed))
        if late is not None:
            arrived.append(late.tuples)
        idling = watch.idling
        with watch.detecting:
            back = watch.observe(arrived, self._now)
        if idling and not watch.idling:
            # A guard may have taken over.
            self._watching = self._count_watching()
            self._rarely = 1
        self._bring_back(back, watch.depth)

    def _bring_back(self, parts: list[Tuples], until: int) -> None:
        for tuples in parts:
            held = self._back.get(tuples.aliases)
            if held is not None:
                tuples, until = Tuples.concat([held.tuples, tuples], tuples.aliases), min(until, held.until)
            self._back[tuples.aliases] = Late(tuples, until)

    def _join(self, place: _Place) -> None:
        """One join's part of a slice: what comes late first, then what is new."""
        join, node = place.join, place.node
        children = (node.left, node.right)
        suppressed = LEFT if place.watch is None else place.watch.suppressed
        observed = 1 - suppressed
        late = [self._late.pop(id(child), None) for child in children]
        made: list[Late] = []
        ours, theirs = late[suppressed], late[observed]
        if ours is not None and ours.until >= place.depth:
            # Kept back for this consumer: nothing that it holds matches them.
            join.enter_late(suppressed, ours.tuples, self._now)
            ours = None
        if theirs is not None:
            made.append(Late(self._joined(join, observed, theirs.tuples), theirs.until))
            join.enter_late(observed, theirs.tuples, self._now)
        if ours is not None:
            made.append(Late(self._joined(join, suppressed, ours.tuples), min(part.until for part in late if part)))
            join.enter_late(suppressed, ours.tuples, self._now)
        self._late_made[id(node)] += sum(len(part.tuples) for part in made)
        new = [self._new.pop(id(child)) for child in children]
        some = len(new[LEFT]) or len(new[RIGHT])
        found = join.process(new[LEFT], new[RIGHT], self._now) if some else Tuples.empty(join.aliases)
        if place.watch is not None and self._admitting:
            with place.watch.detecting:
                place.watch.detect(new[suppressed], self._now)
        self._let_pass(node, found, made)

    def _joined(self, join: BinaryJoin, side: int, late: Tuples) -> Tuples:
        """Late tuples of one side with all of the other side that live, earlier or later."""
        match = join.match
        probing = match.prepare(side, late.reorder(match.sides[side]))
        found, compared = match.find_alive(side, probing, join.states[1 - side], self._now)
        join.counters.comparisons += compared
        join.counters.results += len(found)
        return found

    # --- Taking out what has lost its partners ----------------------------------------------------------

    def _sweep(self) -> None:
        """Look for tuples in the states that no consumer can use any more, and take them out."""
        for watch in self.watches:
            with watch.detecting:
                watch.renew(self._now)
        for watch, guard in self._guards:
            if guard.watching and not watch.idling:
                with watch.detecting:
                    self._sweep_home(self._homes[guard.home.aliases], watch, guard)

    def _sweep_home(self, home: _Home, watch: Watch, guard: TreeGuard) -> None:
        (join, side, _), *above = home.path
        found = False
        for state in _parts(join.states[side]):
            entries, tuples = state.living(self._now)
            useless = watch.sweep(guard, tuples, self._now)
            if useless.any():
                found = True
                state.retract(entries[useless])
        if not found:
            return
        for join, side, depth in above:
            if depth < watch.depth:
                break
            for state in _parts(join.states[side]):
                entries, tuples = state.living(self._now)
                lost = watch.lost(guard, tuples)
                if lost.any():
                    state.retract(entries[lost])
            # What is kept back there will be made again when its parts return.
            for blacklist in self._blacklists.get(join.match.sides[side], ()):
                entries, tuples = blacklist.held(self._now)
                lost = watch.lost(guard, tuples)
                if lost.any():
                    blacklist.drop(entries[lost])

    # --- Which guards watch ---------------------------------------------------------------------------

    def _count_watching(self) -> int:
        return sum(guard.watching for _, guard in self._guards)

    def _worked(self) -> float:
        return sum(work_of(join) for _, join in self._tree.joins)

    def _after_slice(self, tuples: int) -> None:
        work = self._worked()
        if self._resting:
            worked, due = work - self._work, BOOKED_WORK * self._rarely
            if worked >= due:
                self._book(work)
            else:
                # No longer than until accounts are due at this pace.
                self._unlooked = min(LOOKED_EVERY - 1, int((due - worked) * self._slices / max(worked, 1.0)))
            return
        self._tuples += tuples
        for watch in self.watches:
            watch.forget(self._now)
        if self._watching:
            entries = self._tree.state_tuples() * self._watching
            if SWEEP_SHARE * (work - self._swept_work) >= entries * LOOKED_AT:
                self._sweep()
                self._swept_work = work
        if self._tuples >= trials.BOOKED_TUPLES * self._rarely or work - self._work >= BOOKED_WORK * self._rarely:
            self._book(work)

    def _book(self, work: float) -> None:
        """Settle all accounts. Of the guards whose stake is spent the one that has lost most gives up: what each saves
        depends on the others, and those that are left may pay now. What it has kept back enters with the next slice.
        If none gives up, one that rests may get a trial."""
        worked = work - self._work
        spent: list[tuple[Watch, TreeGuard]] = []
        for watch, guard in self._guards:
            guard.weigh()
            if guard.watching:
                worked += max(guard.book(self._slices), 0.0)
                if not guard.watching:
                    spent.append((watch, guard))
        # No more is kept than what the dearest trial takes.
        most = trials.PURSE + max(map(_trial_cost, self.watches)) * (1 + trials.STAKE)
        self._purse = min(self._purse + trials.LOSS_SHARE * worked, most)
        if spent:
            self._give_up(spent)
        else:
            self._grant()
        self._watching = self._count_watching()
        self._work = work
        self._slices = self._tuples = 0

    def _give_up(self, spent: list[tuple[Watch, TreeGuard]]) -> None:
        watch, worst = min(spent, key=lambda one: one[1].account.credit)
        for _, guard in spent:
            self._purse -= guard.account.lost
            if guard is not worst:
                guard.account.begin(0.0)
        self._purse -= worst.burden.returned * len(worst.blacklist)
        self._bring_back([watch.rest(worst, self._now)], watch.depth)

    def _grant(self) -> None:
        """Look at guards that rest, one after the other, as far as the purse goes, and give those that are worth it a
        trial, until one watches."""
        begun = False
        for _ in self._guards:
            watch, guard = self._guards[self._turn]
            if guard.waits > 0:
                guard.waits -= 1
            elif not guard.watching and len(watch.state) and guard.may_pay(self._slices):
                if self._lacking is None:
                    if self._purse < SCREENED:
                        return
                    self._purse -= SCREENED
                    with watch.detecting:
                        self._lacking = watch.screen(guard, self._ends(guard), self._now)
                promise = guard.promise(self._lacking, self._slices)
                cost = _trial_cost(watch)
                guard.disappoints = 0 if promise else min(2 * guard.disappoints + 1, MOST_WAITS)
                guard.waits = guard.disappoints
                if promise:
                    if max(self._purse, PAID_BACK * promise) < cost * (1 + trials.STAKE):
                        return
                    self._purse -= cost
                    with watch.detecting:
                        begun = watch.try_out(guard, self._ends(guard), self._slices, trials.STAKE * cost, self._now)
            self._turn = (self._turn + 1) % len(self._guards)
            self._lacking = None
            if begun:
                self._rarely = 1
                self._size_bytes = None
                return
            if self._turn == 0 and not self._watching:
                self._rarely = min(2 * self._rarely, RARELY)

    def _ends(self, guard: TreeGuard) -> tuple[Tuples, Tuples]:
        """Some of the newest and of the oldest living tuples of a guard's home."""
        join, side, _ = self._homes[guard.home.aliases].path[0]
        state, some = join.states[side], trials.SAMPLED_TUPLES
        newest = np.arange(max(state.lo, state.hi - some), state.hi)
        oldest = np.arange(state.lo, min(state.lo + some, state.hi))
        return state.living(self._now, newest)[1], state.living(self._now, oldest)[1]


def _trial_cost(watch: Watch) -> float:
    return LOOKED_AT * len(watch.state) + trials.TRIED


def _parts(state: SideState) -> list[SideState]:
    """A state and what has entered it late."""
    return [state] if state.older is None else [state, state.older]
