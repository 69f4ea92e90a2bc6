"""Feedback in a tree of joins (JIT III, IV): a join produces no result that its consumer cannot use yet, until it can.

The engine uses `TreeFeedback` in place of the executor; see `operators.feedback.feedback`.

**Suspending means taking out, and resuming means entering late.** A source tuple that some consumer cannot use is kept
back before it enters its first join, or is taken out of that join's state and of every state up to that consumer. When
the consumer can use it after all, the tuple enters its first join late. The results that it makes there go up, late
too, as far as that consumer. At any time a state therefore contains exactly what it would without feedback, less the
tuples made of kept-back tuples. The paper's blacklists record when a tuple was suspended, to tell which partners it has
missed. That fails if the partners were suspended too, and this scheme needs no such record.

Feedback reaches the sources at once. This is the paper's propagation (III-C, Fig. 6): producers relay it until it
reaches a producer whose inputs are the tuples themselves.

A slice is one pass over the plan. In each join the observed input's part runs first (`operators.feedback.watch`) and
its tuples resume what they match; then the suppressed input's part runs, then the join. Results of the query are never
late: a tuple that is kept back has no partner, so the partner that resumes it is new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from operators.data.statistics import EdgeStatistics
from operators.data.tuples import Tuples
from operators.feedback.blacklist import Blacklist
from operators.feedback.payoff import guard as payoff
from operators.feedback.payoff.tree_controller import TreeController
from operators.feedback.payoff.tree_cost import ENTRY_NS, work_of
from operators.feedback.tree_guard import TreeGuard
from operators.feedback.watch import BLOOM, Watch, suppressed_side
from operators.join.binary_join import BinaryJoin
from operators.join.tree import XJoinTree
from operators.plan.plan import Join, Leaf, Plan
from operators.state.match import LEFT, RIGHT
from operators.state.side_state import SideState
from schemas.errors import InvariantError

SWEEP_SHARE = 0.05
"""States are swept as often as this share of all work allows."""

ENTRY_WORDS = 4
"""The words of a state's entry besides its rows: ts, expiry, key and index."""

CHECK_EVERY_SLICES = 8
"""While all guards rest, one slice in this many checks whether they still do, or more often where balances are due."""


class LateTuples(NamedTuple):
    """Tuples that enter late, and how far their results go up.

    Attributes:
        tuples: The tuples.
        consumer_depth: The number of joins above the consumer that kept them back. Their results go up to that
            consumer. Its state and those above it contain everything made of these tuples already.
    """

    tuples: Tuples
    consumer_depth: int


@dataclass(slots=True)
class _JoinContext:
    """One join: its sub-plan, the number of joins above it, and the watch of its consumer."""

    node: Join
    join: BinaryJoin
    depth: int
    watch: Watch | None


@dataclass(slots=True)
class _Home:
    """A sub-plan at which tuples may be kept back: its path up the plan, and the consumers that may do so, nearest
    first."""

    node: Plan
    path: list[tuple[BinaryJoin, int, int]]
    watches: list[Watch]


class TreeFeedback:
    """Runs the joins of a tree with feedback between them; see `operators.feedback.feedback.Feedback`.

    Args:
        tree: An X-Join tree or STAIRs, whose states are complete.
        now: Every tuple with a smaller ts has been processed.
        detector: One of `operators.feedback.watch.DETECTORS`.
        clock: Returns seconds, to measure how long detection takes.

    Attributes:
        watches: The consumers that send feedback, in the order in which they observe.
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
        self._late: dict[int, LateTuples] = {}
        self._late_made = dict.fromkeys(self._joins, 0)
        self._returned: dict[tuple[str, ...], LateTuples] = {}
        self._epoch: Mapping[str, Tuples] = {}
        self._now = now
        self._admitting = True
        self._plan_steps(tree.plan, 0, [], [])
        for watch in self.watches:
            watch.observe([], now)
            watch.rebuild_filters(now)
        self._blacklists: dict[tuple[str, ...], list[Blacklist]] = {}
        self._guards = [(watch, guard) for watch in self.watches for guard in watch.guards]
        for _, guard in self._guards:
            self._blacklists.setdefault(guard.home.aliases, []).append(guard.blacklist)
        self._swept_work = self._work_done()
        self._controller = TreeController(self.watches, self._newest_and_oldest, self._swept_work)
        self._resting = False
        # The next slices that run without asking whether all guards still rest.
        self._unchecked_slices = 0
        self._size_bytes: int | None = None

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        self._controller.slices += 1
        if self._unchecked_slices:
            self._unchecked_slices -= 1
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
        """Return whether the tree can run as without feedback: no tuple is kept back, and none will be in this
        slice."""
        if self._controller.watching or self._returned or not self._admitting:
            return False
        rests = True
        for watch in self.watches:
            # No early exit: every watch notes when its observed input became empty.
            if watch.is_idle(self._now) or watch.idling:
                rests = False
        return rests

    def release_all(self, now: int) -> None:
        """Let all tuples enter that are kept back; the tree's states then contain what they would without feedback."""
        self._admitting = False
        for watch in self.watches:
            self._queue_return(watch.release(now), watch.depth)
        self.process({}, now)
        self._admitting = True

    def kept_back(self) -> int:
        """The number of tuples that are kept back now."""
        return 0 if self._resting else sum(watch.kept_back() for watch in self.watches)

    def size_bytes(self) -> int:
        """Bytes of all filters, buffers and blacklists. O(1) while all guards rest."""
        if not self._resting or self._size_bytes is None:
            self._size_bytes = sum(watch.size_bytes() for watch in self.watches)
        return self._size_bytes

    def edges(self) -> tuple[EdgeStatistics, ...]:
        """The statistics of each consumer and its producer."""
        return tuple(self._edge(watch) for watch in self.watches)

    def _edge(self, watch: Watch) -> EdgeStatistics:
        counters = watch.counters
        suppressed = max(0, round(sum(guard.tuple_cost.suppressed for guard in watch.guards)))
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
        """Append the steps of a slice for a sub-plan. `path` and `above` are the joins and the watches above it."""
        self._homes[node.aliases] = _Home(node, path, [watch for watch in above if watch.keeps_back_at(node)])
        if isinstance(node, Leaf):
            self._steps.append(partial(self._enter, node))
            return
        join = self._joins[id(node)]
        side = suppressed_side(node)
        watch = None
        if side is not None:
            sources, joins = self._tree.sources, self._joins
            watch = Watch(sources, node, joins, depth, side, self._detector, self._clock, suppressed_above=bool(above))
        context = _JoinContext(node, join, depth, watch)
        children = (node.left, node.right)
        for turn in (RIGHT, LEFT) if side is None or side == LEFT else (LEFT, RIGHT):
            watched = above if watch is None or turn != side else [watch, *above]
            if watch is not None and turn == side:
                self.watches.append(watch)
                self._steps.append(partial(self._observe, watch, children[1 - turn]))
            self._plan_steps(children[turn], depth + 1, [(join, turn, depth), *path], watched)
        self._steps.append(partial(self._join, context))

    def _enter(self, node: Leaf) -> None:
        """Pass up a source's new tuples that no consumer keeps back."""
        new = self._epoch.get(node.alias) or Tuples.empty((node.alias,))
        self._pass_up(node, new, [])

    def _pass_up(self, node: Plan, new: Tuples, late: list[LateTuples]) -> None:
        """Pass a sub-plan's new, late and resumed tuples up to its join, except those that are kept back."""
        home = self._homes[node.aliases]
        back = self._returned.pop(node.aliases, None)
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
                self._late[id(node)] = LateTuples(tuples, min(part.consumer_depth for part in late))

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
            # A guard may watch in place of the idle buffers.
            self._controller.recount()
        self._queue_return(back, watch.depth)

    def _queue_return(self, parts: list[Tuples], consumer_depth: int) -> None:
        for tuples in parts:
            held = self._returned.get(tuples.aliases)
            if held is not None:
                tuples = Tuples.concat([held.tuples, tuples], tuples.aliases)
                consumer_depth = min(consumer_depth, held.consumer_depth)
            self._returned[tuples.aliases] = LateTuples(tuples, consumer_depth)

    def _join(self, context: _JoinContext) -> None:
        """Run one join's part of a slice: late tuples first, then new ones."""
        join, node = context.join, context.node
        children = (node.left, node.right)
        suppressed = LEFT if context.watch is None else context.watch.suppressed
        observed = 1 - suppressed
        late = [self._late.pop(id(child), None) for child in children]
        late_results: list[LateTuples] = []
        late_suppressed, late_observed = late[suppressed], late[observed]
        if late_suppressed is not None and late_suppressed.consumer_depth >= context.depth:
            # This consumer kept them back, so its state holds no match for them.
            join.enter_late(suppressed, late_suppressed.tuples, self._now)
            late_suppressed = None
        if late_observed is not None:
            found = self._join_late(join, observed, late_observed.tuples)
            late_results.append(LateTuples(found, late_observed.consumer_depth))
            join.enter_late(observed, late_observed.tuples, self._now)
        if late_suppressed is not None:
            found = self._join_late(join, suppressed, late_suppressed.tuples)
            late_results.append(LateTuples(found, min(part.consumer_depth for part in late if part)))
            join.enter_late(suppressed, late_suppressed.tuples, self._now)
        self._late_made[id(node)] += sum(len(part.tuples) for part in late_results)
        new = [self._new.pop(id(child)) for child in children]
        has_new = len(new[LEFT]) or len(new[RIGHT])
        found = join.process(new[LEFT], new[RIGHT], self._now) if has_new else Tuples.empty(join.aliases)
        if context.watch is not None and self._admitting:
            with context.watch.detecting:
                context.watch.detect(new[suppressed], self._now)
        self._pass_up(node, found, late_results)

    def _join_late(self, join: BinaryJoin, side: int, late: Tuples) -> Tuples:
        """Join late tuples of one side with all living tuples of the other side, earlier or later."""
        match = join.match
        probing = match.prepare(side, late.reorder(match.sides[side]))
        found, compared = match.find_alive(side, probing, join.states[1 - side], self._now)
        join.counters.comparisons += compared
        join.counters.results += len(found)
        return found

    # --- Taking tuples without partners out of the states ---------------------------------------------

    def _sweep(self) -> None:
        """Find tuples in the states that no consumer can use any more, and take them out."""
        for watch in self.watches:
            with watch.detecting:
                watch.rebuild_filters(self._now)
        for watch, guard in self._guards:
            if guard.watching and not watch.idling:
                with watch.detecting:
                    self._sweep_home(self._homes[guard.home.aliases], watch, guard)

    def _sweep_home(self, home: _Home, watch: Watch, guard: TreeGuard) -> None:
        (join, side, _), *above = home.path
        found = False
        for state in _with_late(join.states[side]):
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
            for state in _with_late(join.states[side]):
                entries, tuples = state.living(self._now)
                lost = watch.made_of_suppressed(guard, tuples)
                if lost.any():
                    state.retract(entries[lost])
            # A tuple kept back there is produced again when its components return.
            for blacklist in self._blacklists.get(join.match.sides[side], ()):
                entries, tuples = blacklist.living(self._now)
                lost = watch.made_of_suppressed(guard, tuples)
                if lost.any():
                    blacklist.drop(entries[lost])

    # --- Which guards watch: `operators.feedback.payoff.tree_controller` -------------------------------------

    def _work_done(self) -> float:
        return sum(work_of(join) for _, join in self._tree.joins)

    def _after_slice(self, tuples: int) -> None:
        work, controller = self._work_done(), self._controller
        if not self._resting:
            controller.tuples += tuples
            for watch in self.watches:
                watch.purge_idle(self._now)
            if controller.watching:
                entries = self._tree.state_tuples() * controller.watching
                if SWEEP_SHARE * (work - self._swept_work) >= entries * ENTRY_NS:
                    self._sweep()
                    self._swept_work = work
        if controller.due(work):
            self._update_balances(work)
        elif self._resting:
            # Stop skipping when the balances are due at this pace.
            self._unchecked_slices = min(CHECK_EVERY_SLICES - 1, controller.slices_until_due(work))

    def _update_balances(self, work: float) -> None:
        stopping = self._controller.update(work, self._now)
        self._size_bytes = None
        if stopping is not None:
            watch, guard = stopping
            self._queue_return([watch.stop(guard, self._now)], watch.depth)

    def _newest_and_oldest(self, guard: TreeGuard) -> tuple[Tuples, Tuples]:
        """Return some of the newest and some of the oldest living tuples of a guard's home."""
        join, side, _ = self._homes[guard.home.aliases].path[0]
        state, count = join.states[side], payoff.SAMPLED_TUPLES
        newest = np.arange(max(state.lo, state.hi - count), state.hi)
        oldest = np.arange(state.lo, min(state.lo + count, state.hi))
        return state.living(self._now, newest)[1], state.living(self._now, oldest)[1]


def _with_late(state: SideState) -> list[SideState]:
    """Return a state and, if there is one, the state of its late tuples."""
    return [state] if state.older is None else [state, state.older]
