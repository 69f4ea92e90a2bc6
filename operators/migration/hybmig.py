"""HybMig (HybMig 3): both plans run on shared states, and exactly one of them makes each result.

The migration is first decomposed by the sub-plans that both plans have (3.1, Fig. 5): the joins that compute such a
sub-plan are migrated on their own, and above them it counts as a source. Each remaining task joins sources whose states
both plans have. If both plans read the same columns of them there is one copy (3.2, state sharing). The new plan lacks
the intermediate states, so it misses the tuples of a lowest join whose components are all old. The old plan continues
to make those, and only those: its tuples are pruned as soon as they can no longer become part of one. The
characteristics table (Table 2) is a list of boxes: per component, the row id before which it must have arrived. Row ids
are the lineage, so nothing is stored per tuple and there may be any number of entries.

With background state computation (3.4) the missing states are computed bottom up, a few tuples per slice, in reverse
temporal order (Fig. 12), and prepended when they are complete. The paper passes over one thing: tuples that arrived
between the cut and that moment have not matched the state's old tuples in the new plan. The results made of both are
therefore missing one level up, and the parent's box accounts for them.

Results keep their order (3.3), since both plans' results of each slice are merged by timestamp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from operators.data.tuples import FOREVER, Tuples
from operators.join.binary_join import BinaryJoin
from operators.join.executor import Executor
from operators.join.tree import XJoinTree
from operators.migration.migration import Migration, states_by_aliases, tree_like
from operators.migration.moving_state import alive, dropped, moved
from operators.plan.plan import Join, Plan
from operators.state.match import LEFT, RIGHT, Match
from operators.state.side_state import SideState
from schemas.columns import I64, Mask

Aliases = frozenset[str]
Box = dict[str, int]
"""Per alias, the row before which the component must have arrived."""

CHUNK_TUPLES = 2_048
"""The number of old tuples that background computation joins at a time."""

SLICE_OLD_TUPLES = 8_192
"""The most old tuples that background computation joins in one slice, however many tuples arrived: no slice takes much
longer because of it."""


def within(tuples: Tuples, box: Box) -> Mask:
    """Return (n,) True where every component that has an entry in the box lies in it."""
    good = np.ones(len(tuples), np.bool_)
    for k, alias in enumerate(tuples.aliases):
        if alias in box:
            good &= tuples.rows[k] < box[alias]
    return good


@dataclass(slots=True)
class _Task:
    """One irreducible migration: joins over the same sources in the old and in the new plan.

    Attributes:
        node: The sub-plan that both compute; a node of the new plan.
        old: The old plan's joins, children before parents; empty if old and new are the same single join.
        new: The new plan's joins.
        missing: Per incomplete state of the new plan, by its aliases, the boxes of tuples that it lacks. The boxes of
            those whose inputs are complete make up the characteristics table.
    """

    node: Join
    old: list[tuple[Join, BinaryJoin]]
    new: list[tuple[Join, BinaryJoin]]
    missing: dict[Aliases, list[Box]] = field(default_factory=dict)

    def table(self) -> list[Box]:
        """Return the characteristics table."""
        return [box for boxes in self.missing.values() for box in boxes]


class HybMig(Migration):
    """Runs both plans on shared states.

    Args:
        background: Compute missing states in the background.
        share: The number of old tuples joined per new one; `work` joins more.
        decompose: Migrate sub-plans that both plans have on their own (3.1). False only to measure what that saves.
    """

    def __init__(
        self, old: Executor, plan: Plan, cut: int, *, background: bool, share: float = 1.0, decompose: bool = True
    ) -> None:
        new = tree_like(old, plan)
        super().__init__(old, new, cut)
        assert isinstance(old, XJoinTree)
        self._held = states_by_aliases(old)
        self.counters.dropped_tuples = dropped(self._held, plan)
        self._old_joins = {frozenset(node.aliases): (node, join) for node, join in old.joins}
        self._new_joins = {frozenset(node.aliases): (node, join) for node, join in new.joins}
        both = self._old_joins.keys() & self._new_joins.keys()
        self._shared: set[Aliases] = both if decompose else set()
        self._tasks: list[_Task] = []
        if isinstance(old.plan, Join) and isinstance(plan, Join):
            self._decompose(plan)
        self._missing = sum(len(task.missing) for task in self._tasks)
        self._over = not any(task.missing for task in self._tasks)
        self._background = _Background(self, share) if background else None

    # --- Decomposition (Fig. 5) ------------------------------------------------------------------------

    def _decompose(self, node: Join) -> None:
        """Create the task of a node that both plans have, after the tasks of the sources below it."""
        shared = self._shared

        def above(aliases: Aliases, joins: Mapping[Aliases, tuple[Join, BinaryJoin]]) -> list[tuple[Join, BinaryJoin]]:
            top, join = joins[aliases]
            found: list[tuple[Join, BinaryJoin]] = []
            for child in (top.left, top.right):
                if frozenset(child.aliases) in joins and frozenset(child.aliases) not in shared:
                    found += above(frozenset(child.aliases), joins)
            return [*found, (top, join)]

        whole = frozenset(node.aliases)
        new = above(whole, self._new_joins)
        # Sub-plans over tables alone are complete from the start.
        tables = self.sources.tables
        static = {frozenset(n.aliases) for n, _ in new if frozenset(n.aliases) <= tables}
        inside = {frozenset(n.aliases) for n, _ in new}
        for top, _ in new:
            for child in (top.left, top.right):
                if isinstance(child, Join) and frozenset(child.aliases) not in inside:
                    self._decompose(child)
        old = above(whole, self._old_joins) if len(new) > 1 else []
        task = _Task(node, old, new)
        for top, join in new:
            for side, child in enumerate((top.left, top.right)):
                aliases = frozenset(child.aliases)
                if aliases not in inside:
                    join.states[side] = moved(self.sources, self._held[aliases], join.match, side, self.cut)
        for top, _ in new[:-1]:
            if frozenset(top.aliases) in static:
                continue
            lowest = not any(frozenset(c.aliases) in inside - static for c in (top.left, top.right))
            boxes = [{a: self.first_new_row[a] for a in top.aliases if a not in tables}] if lowest else []
            task.missing[frozenset(top.aliases)] = boxes
        self._tasks.append(task)

    # --- Running both plans ----------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """True when the new plan lacks nothing that it needs."""
        return self._over

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice through both plans, then some of the background work."""
        outputs: dict[Aliases, Tuples] = {frozenset({alias}): tuples for alias, tuples in epoch.items()}
        for task in self._tasks:
            entered: set[int] = set()
            shared = {id(state) for _, join in task.new for state in join.states}
            table = task.table()
            found = Tuples.empty(task.node.aliases)
            if task.old and table:
                found = self._track(task.old, outputs, now, entered, shared, table).reorder(task.node.aliases)
            made = self._track(task.new, outputs, now, entered, shared, None)
            outputs[frozenset(task.node.aliases)] = Tuples.merge(found, made)
        self._note_extra()
        if self._background is not None:
            # Every arrived tuple is a possible partner, including the slice's last ones.
            latest = max((int(tuples.ts[-1]) for tuples in epoch.values() if len(tuples)), default=now)
            self._background.arrived(sum(len(tuples) for tuples in epoch.values()), latest)
        whole = outputs.get(frozenset(self.plan.aliases))
        return Tuples.empty(self.plan.aliases) if whole is None else whole

    def work(self, tuples: int, now: int) -> None:
        """Let the background join `tuples` more old tuples, as at `now`, because there is spare time."""
        if self._background is not None:
            self._background.work(float(tuples), now)

    def _track(
        self,
        joins: list[tuple[Join, BinaryJoin]],
        inputs: Mapping[Aliases, Tuples],
        now: int,
        entered: set[int],
        shared: set[int],
        table: list[Box] | None,
    ) -> Tuples:
        """Return the output of one plan's joins; with a `table`, only tuples that satisfy one of its entries."""
        made: dict[Aliases, Tuples] = {}

        def pruned(tuples: Tuples) -> Tuples:
            if table is None or len(tuples) == 0:
                return tuples
            good = np.zeros(len(tuples), np.bool_)
            for box in table:
                good |= within(tuples, box)
            return tuples if good.all() else tuples.take(good)

        out = Tuples.empty(joins[-1][1].aliases)
        for node, join in joins:
            match = join.match
            prepared = []
            for side, child in enumerate((node.left, node.right)):
                aliases = frozenset(child.aliases)
                tuples = made.get(aliases) if aliases in made else inputs.get(aliases)
                tuples = (Tuples.empty(child.aliases) if tuples is None else tuples).reorder(match.sides[side])
                state = join.states[side]
                probing = match.prepare(side, pruned(tuples))
                match.counters.input_tuples += len(probing)
                match.counters.left_tuples += len(probing) if side == LEFT else 0
                if id(state) not in entered:
                    # A state that both plans use contains what the new plan needs: every tuple.
                    entered.add(id(state))
                    match.enter(state, match.prepare(side, tuples) if id(state) in shared else probing, now)
                prepared.append(probing)
            found = [match.find(s, prepared[s], join.states[1 - s], strict=s == LEFT) for s in (LEFT, RIGHT)]
            out = made[frozenset(node.aliases)] = pruned(Tuples.merge(*found))
        return out

    def _note_extra(self) -> None:
        """Count the tuples that are stored only for the old plan."""
        kept = {id(state) for _, join in self._joins(self.current) for state in join.states}
        extra = {
            id(state): len(state) for task in self._tasks for _, join in task.old for state in join.states
            if task.missing and id(state) not in kept
        }  # fmt: skip
        self.counters.extra_tuples = sum(extra.values())
        self.counters.peak_extra_tuples = max(self.counters.peak_extra_tuples, self.counters.extra_tuples)

    def purge(self, cut: int) -> None:
        """Purge both plans, and check whether the old one is still needed."""
        self.old.purge(cut)
        self.current.purge(cut)
        if self.expired(cut):
            for task in self._tasks:
                task.missing.clear()
        self._over = not any(task.missing for task in self._tasks)

    def progress(self) -> tuple[int, int, str]:
        """The states computed, with background computation. Without it only time tells."""
        if self._background is None:
            return 0, 0, ""
        return self._missing - sum(len(task.missing) for task in self._tasks), self._missing, "states"

    def _states(self) -> list[SideState]:
        """Return the states of both plans while both run, shared ones once."""
        found = {id(s): s for executor in self.executors() for _, join in self._joins(executor) for s in join.states}
        return list(found.values())

    def state_tuples(self) -> int:
        """Tuples in all states, those that both plans share once."""
        return sum(len(state) for state in self._states())

    def size_bytes(self) -> int:
        """Bytes of all states, those that both plans share once."""
        return sum(state.size_bytes() for state in self._states())

    def _joins(self, executor: Executor) -> list[tuple[Join, BinaryJoin]]:
        return executor.joins if isinstance(executor, XJoinTree) else []

    def lacks(self, aliases: Aliases) -> bool:
        """Return True for states that the old plan still makes up for."""
        return any(aliases in task.missing for task in self._tasks)

    def executors(self) -> tuple[Executor, ...]:
        """Both plans while both run."""
        return (self.current,) if self._over else (self.old, self.current)

    def completed(self, task: _Task, node: Join) -> None:
        """Note that the state of a node is complete. Results made of its formerly missing tuples may still be missing
        in its parent's state (see the module's docstring)."""
        aliases = frozenset(node.aliases)
        boxes = task.missing.pop(aliases)
        parent = next(n for n, _ in task.new if node in (n.left, n.right))
        above = task.missing.get(frozenset(parent.aliases))
        if above is not None:
            others = [alias for alias in parent.aliases if alias not in aliases]
            above += [{**box, **{alias: self.sources.store(alias).hi for alias in others}} for box in boxes]
        self._over = not any(t.missing for t in self._tasks)

    @property
    def tasks(self) -> list[_Task]:
        """The irreducible migrations, those of sources first."""
        return self._tasks


class _Background:
    """Computes missing states from old tuples, newest first, in small pieces (HybMig 3.4)."""

    def __init__(self, migration: HybMig, share: float) -> None:
        self._migration = migration
        self._share = share
        self._credit = 0.0
        self._job: _Job | None = None

    def arrived(self, tuples: int, now: int) -> None:
        """Do as much work as `tuples` new tuples allow."""
        self.work(self._share * tuples, now)

    def work(self, tuples: float, now: int) -> None:
        """Join `tuples` more old tuples."""
        self._credit = min(self._credit + tuples, float(SLICE_OLD_TUPLES))
        while self._credit > 0:
            self._job = self._job or self._next(now)
            if self._job is None:
                return
            self._credit -= max(1, self._job.step(int(min(self._credit, CHUNK_TUPLES)) or 1, now))
            if self._job.done:
                self._job.attach()
                self._migration.completed(self._job.task, self._job.node)
                self._job = None

    def _next(self, now: int) -> _Job | None:
        """Return a job for the lowest missing state: inputs precede the states made of them."""
        for task in self._migration.tasks:
            for node, join in task.new[:-1]:
                if frozenset(node.aliases) in task.missing:
                    return _Job(self._migration, task, node, join, now)
        return None


class _Job:
    """Computes one missing state, box by box; a tuple of two boxes counts for the first."""

    def __init__(self, migration: HybMig, task: _Task, node: Join, join: BinaryJoin, now: int) -> None:
        self.task = task
        self.node = node
        self._migration = migration
        self._join = join
        parent, side = _join_above(task, node)
        self._state = parent.states[side]
        self._match: Match = parent.match
        self._side = side
        self._boxes = list(task.missing[frozenset(node.aliases)])
        self._older = self._match.new_state(side, sorted_by_ts=False)
        self._box = 0
        # Fixed now, so that tuples that arrive meanwhile are neither missed nor joined twice.
        self._base: Tuples = alive(migration.sources, join.states[LEFT], now)
        self._positions = self._pick(0)
        self._left = len(self._positions)

    @property
    def done(self) -> bool:
        """True when every box has been computed."""
        return self._box >= len(self._boxes)

    def _pick(self, number: int) -> I64:
        """Return the indexes of a box's base tuples."""
        if number >= len(self._boxes):
            return np.zeros(0, np.int64)
        return np.flatnonzero(within(self._base, self._boxes[number]))

    def step(self, most: int, now: int) -> int:
        """Join up to `most` old tuples, the newest first, and return how many were joined."""
        n = self._left
        self._left = max(0, n - most)
        chunk = self._base.take(self._positions[self._left : n])
        chunk = chunk.take((chunk.expiry >= now) & self._stored(chunk))
        self._join_chunk(chunk, now)
        joined = n - self._left
        if self._left == 0:
            self._box += 1
            self._positions = self._pick(self._box)
            self._left = len(self._positions)
        return joined

    def _stored(self, tuples: Tuples) -> Mask:
        sources = self._migration.sources
        good = np.ones(len(tuples), np.bool_)
        for k, alias in enumerate(tuples.aliases):
            good &= tuples.rows[k] >= sources.store(alias).lo
        return good

    def _join_chunk(self, chunk: Tuples, now: int) -> None:
        match = self._join.match
        if len(chunk) == 0:
            return
        found, compared = match.find_alive(LEFT, match.prepare(LEFT, chunk), self._join.states[RIGHT], now)
        self._migration.counters.comparisons += compared
        good = within(found, self._boxes[self._box])
        for box in self._boxes[: self._box]:
            good &= ~within(found, box)
        found = found.take(good).reorder(self._match.sides[self._side])
        self._match.enter(self._older, self._match.prepare(self._side, found), now)

    def attach(self) -> None:
        """Prepend the computed tuples to the state."""
        self._state.older = self._older
        self._migration.counters.made_tuples += len(self._older)
        if self._state.life < FOREVER:
            latest = self._older.ts[self._older.lo : self._older.hi].max(initial=self._migration.cut)
            self._state.older_until = int(latest) + self._state.life + 1


def _join_above(task: _Task, node: Join) -> tuple[BinaryJoin, int]:
    """Return the join that a node's tuples enter, and on which side."""
    for parent, join in task.new:
        for side, child in enumerate((parent.left, parent.right)):
            if child is node:
                return join, side
    raise KeyError(str(node))
