"""The engine of one task: intake, stores, executor and output of a query. Pure: no clock, no thread.

Push tuples as they arrive, ask for the watermark, advance to it, get results. Nothing an epoch does
depends on how the input was cut into pushes and epochs, so any cut gives the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from operators.aggregate import Aggregator
from operators.checkpoint import Block, Checkpoint, in_order, taken
from operators.choose import Statistics, choose_plan, declared_statistics
from operators.evaluate import Resolve, evaluate, holds
from operators.executor import Executor
from operators.executors import executor_of
from operators.feedback.feedback import Feedback, check_feedback, feedback_of
from operators.feedback.watch import BLOOM
from operators.intake import Intake, ReplayPoint
from operators.kernels.order import order_ties
from operators.links import measure_links
from operators.migration.advise import Advice, Goal, advise
from operators.migration.schedule import MigrationRecord, Schedule
from operators.migration.strategies import check_strategy
from operators.pipeline import change_kinds
from operators.plan import Plan, check_plan
from operators.predicates import constants, selections
from operators.slices import slices
from operators.sources import Sources
from operators.spill.block_store import BlockStore
from operators.spill.debt import Debt
from operators.spill.spilling import Budget
from operators.spill.spills import VOID, Spills, check_spillable
from operators.state import PARTITION_GROUPS
from operators.statistics import EdgeStatistics, EngineStatistics, SourceStatistics, added
from operators.tables import loaded
from operators.tuples import FOREVER, Tuples
from operators.watermark import END
from schemas.columns import I64, OP_KEY, Batch, Column, Mask
from schemas.errors import InvariantError, UsageError
from schemas.query import TABLE_TS, Query
from schemas.query import Column as ColumnRef
from schemas.spills import SpillEvent


class Engine:
    """Runs one query over the given partitions of its streams.

    Args:
        plan: the join tree; chosen from `statistics` when None.
        tables: the rows of each of the query's tables, by name.
        partitions: partition numbers per stream name; one partition 0 each when None.
        executor: one of `operators.executors`.
        hashed: False to make every join a nested loop, as papers do.
        feedback: let operators tell each other what is not demanded (`operators.feedback`); changes no result. Or what
            makes the executor's part in feedback that others give (`operators.placed.feedback`).
        kept: columns to store that only `feedback` reads.
        budget: keep states within so many bytes: what is too much leaves as blocks, and results are owed until `clean`.
        blocks: where it leaves to.
        detector: how what is not demanded is found in nested loops, one of `operators.feedback.watch.DETECTORS`.
        clock: seconds, for what migrations report of silence and feedback of detecting; the engine has none of its own.

    Attributes:
        load: the share of one core's time that keeping up with the input takes, set by who knows; 0 in a replay.
            Only for the choice of a migration strategy.
        hold: what had not expired before is kept, though the task is past it; END for no such need.
        taken: told of all tuples that are pushed.
        durable: `checkpoint` will be asked for source tuples; those that leave memory are kept for it until then.
    """

    def __init__(
        self,
        query: Query,
        *,
        plan: Plan | None = None,
        statistics: Statistics | None = None,
        tables: Mapping[str, Batch] | None = None,
        partitions: Mapping[str, Sequence[int]] | None = None,
        executor: str = "xjoin",
        hashed: bool = True,
        feedback: bool | Callable[[Executor], Feedback] = False,
        kept: Sequence[ColumnRef] = (),
        detector: str = BLOOM,
        budget: Budget | None = None,
        blocks: BlockStore | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.query = query
        statistics = statistics or declared_statistics(query, tables)
        self.plan = plan if plan is not None else choose_plan(query, statistics)
        streams = query.streams()
        self._intake = Intake(streams, partitions or {s.name: (0,) for s in streams})
        groups = PARTITION_GROUPS if budget is None else budget.groups
        self._sources = Sources(query, hashed=hashed, kept=kept, partition_groups=groups)
        self.executor = executor
        self._clock = clock
        self.load = 0.0
        self.hold = END
        self.taken: Callable[[str, Batch], None] | None = None
        self._executor: Executor = executor_of(executor, self._sources, self.plan, statistics)
        if feedback:
            check_feedback(query)
        self._feeds = feedback is True
        self._spills: Spills | None = None
        if (budget is None) != (blocks is None):
            raise InvariantError("a budget needs somewhere for blocks to go, and nothing goes there without one")
        if budget is not None and blocks is not None:
            check_spillable(query, executor)
            self._spills = Spills(budget, blocks, clock)
        self._detector = detector
        self._feedback: Feedback | None = None
        self._former_edges: tuple[EdgeStatistics, ...] = ()
        # What has just died still changes the answer of a set difference.
        lives = [life for alias, life in self._sources.life.items() if alias not in self._sources.tables]
        longest = min(max(lives) + bool(query.subtracted), FOREVER)
        self._schedule = Schedule(
            lambda plan: loaded(executor_of(executor, self._sources, plan, statistics)), longest, self._advise
        )
        self._aliases = tuple(source.alias for source in query.sources)
        self._answered = self._aliases[:1] if query.subtracted else self._aliases
        self._selections = {alias: selections(query, alias) for alias in self._aliases}
        names = dict.fromkeys([*(s.name for s in streams), *(t.name for t in query.tables())])
        self._aliases_of = {n: tuple(src.alias for src in query.sources if src.stream.name == n) for n in names}
        self._possible = all(holds(p, _no_column, 1)[0] for p in constants(query))
        self._shortest = min((life for life in self._sources.life.values()), default=FOREVER)
        self._exported = {s.name: 0 for s in streams}
        self._unsaved: list[Block] = []
        self.durable = False
        self._aggregator = None if query.aggregation is None else Aggregator(query, self._sources)
        self._input_tuples = 0
        self._seen = {alias: [0, 0] for alias in self._aliases}
        self._first_ts: int | None = None
        self._last_ts = 0
        self._slice_count = 0
        self._busy_s = 0.0
        self._results = 0
        self._peak_tuples = 0
        self._peak_bytes = 0
        self._tables = tables or {}
        self._load(self._tables)
        if self._spills is not None:
            self._spills.follow(self._executor, 0)
        if callable(feedback):
            self._feedback = feedback(self._executor)
        elif feedback:
            self._feedback = feedback_of(self._executor, 0, detector, clock)

    def _load(self, tables: Mapping[str, Batch]) -> None:
        """Begin with the tables' rows."""
        for table in self.query.tables():
            if table.name not in tables:
                raise InvariantError(f"the rows of {table} are not given")
            columns = tables[table.name].columns
            batches = {table.name: Batch(np.full(len(tables[table.name]), TABLE_TS), columns)}
            self._enter(table.name, batches[table.name], self._sources.horizons(batches)[table.name], restored=False)
        loaded(self._executor)

    @property
    def cut(self) -> int:
        """Everything with a smaller ts has been processed."""
        return self._intake.cut

    @property
    def pending_tuples(self) -> int:
        """Tuples taken in that wait for the watermark."""
        return self._intake.pending_tuples

    def push(
        self, stream: str, partition: int, batch: Batch, offsets: I64 | None = None, *, floor: int = 0
    ) -> Mask:
        """Take tuples of one partition in arrival order; True where late. See `Intake.push`."""
        late = self._intake.push(stream, partition, batch, offsets, floor)
        self._input_tuples += len(batch)
        if self.taken is not None:
            self.taken(stream, batch)
        return late

    def insert(self, stream: str, partition: int, batch: Batch) -> None:
        """Take tuples, ascending by ts, that the partition's clock has passed. See `Intake.insert`."""
        self._intake.insert(stream, partition, batch)
        self._input_tuples += len(batch)
        if self.taken is not None:
            self.taken(stream, batch)

    def withdraw(self, stream: str, partition: int, useless: Callable[[Batch], Mask]) -> int:
        """Forget tuples of a partition that wait for the watermark; how many."""
        return self._intake.withdraw(stream, partition, useless)

    def store(self, stream: str, batch: Batch) -> dict[str, Tuples]:
        """Store tuples, ascending by ts, that `cut` has passed: per alias, those that its selections let through."""
        self._input_tuples += len(batch)
        if self.taken is not None:
            self.taken(stream, batch)
        return self._enter(stream, batch, {}, restored=False)

    def results(self, found: Tuples) -> Batch:
        """Results of the join, ascending by ts, as `advance` returns them."""
        return self._output(found)

    def migrate(self, plan: Plan, strategy: str, cut: int, goal: Goal | None = None) -> None:
        """Change to another plan at an event time: what has ts < cut goes through the old plan.

        Results stay what they are, in the same order. May be called again before an earlier migration has
        finished, or begun.

        Args:
            strategy: one of `STRATEGIES`, or `auto`: chosen at the cut, for `goal`.

        Raises:
            UsageError: there is no such strategy, it cannot do this, or `cut` has passed.
        """
        check_strategy(strategy, self.executor, self.query)
        check_plan(plan, self.query)
        if cut < self.cut:
            raise UsageError(f"cannot change plans at {cut}: everything before {self.cut} has been processed")
        self._schedule.add(MigrationRecord(cut, plan, strategy, goal or Goal()))

    def _advise(self, executor: Executor, plan: Plan, goal: Goal, running: str | None) -> Advice:
        observed = self._statistics(executor, links=True)
        return advise(
            self.query,
            executor.plan,
            plan,
            [observed],
            executor=self.executor,
            goal=goal,
            load=self.load,
            running=running,
        )

    @property
    def migrations(self) -> tuple[MigrationRecord, ...]:
        """All migrations that were asked for, in the order of their cuts."""
        return tuple(self._schedule.records)

    def close(self, stream: str, partition: int) -> None:
        """The partition has ended."""
        self._intake.close(stream, partition)

    def set_idle(self, stream: str, partition: int, idle: bool) -> None:
        """Exclude a silent partition from the watermark; a push includes it again."""
        self._intake.set_idle(stream, partition, idle)

    def set_clock(self, stream: str, partition: int, max_ts: int) -> None:
        """Restore a partition's clock before a replay."""
        self._intake.set_clock(stream, partition, max_ts)

    def watermark(self) -> int:
        """The task's watermark: `advance` may go up to it. -1 while some partition has shown nothing."""
        return self._intake.watermark()

    def partition_watermark(self, stream: str, partition: int) -> int:
        """The watermark of one partition."""
        return self._intake.partition_watermark(stream, partition)

    def advance(self, cut: int | None = None) -> Batch:
        """Process all tuples with ts < cut (default: the watermark).

        Returns:
            The results, ascending by (ts, component row ids in FROM order): the same for every plan. Of a query
            with aggregates what they emit at the multiples before `cut`, ascending by (ts, group).
        """
        cut = self.watermark() if cut is None else cut
        if cut <= self.cut:
            return self._nothing()
        results: list[Batch] = []
        begin = self.cut
        for end in self._stops(begin, cut):
            batches = self._intake.take(end)
            for part, at in self._slices(batches, end):
                began = self._clock()
                results.append(self._process(part, at, restored=False))
                self._step(at)
                took = self._clock() - began
                self._schedule.stood_still(took)
                self._busy_s += took
                self._slice_count += 1
        self.plan = self._executor.plan
        for stream in self._exported:
            self._intake.forget(stream, self.horizon(stream))
        out = Batch.concat(results) if results else self._nothing()
        self._results += len(out)
        return out

    def _stops(self, begin: int, cut: int) -> list[int]:
        """Where slices must end: what is to happen between two of them, and last the cut itself."""
        spills = () if self._spills is None else self._spills.script.cuts(begin, cut)
        return [*sorted({*self._schedule.cuts(begin, cut), *spills}), cut]

    def _step(self, at: int) -> None:
        """Begin and end migrations when everything before `at` has been processed. Feedback waits while one runs: its
        strategy expects states to hold all that they can."""
        if self._feedback is not None and self._schedule.due(at):
            self._feedback.settle(at)
            self._former_edges = added(self._former_edges, self._feedback.edges())
            self._feedback = None
        if self._spills is not None and self._schedule.due(at):
            self._gather(at)
        self._executor = self._schedule.step(self._executor, at)
        if self._spills is not None:
            self._spills.follow(self._executor, at)
        owing = self._spills is not None and self._spills.owing
        if self._feeds and self._feedback is None and not self._schedule.migrating and not owing:
            self._feedback = feedback_of(self._executor, at, self._detector, self._clock)

    def _slices(self, batches: dict[str, Batch], cut: int) -> Iterator[tuple[dict[str, Batch], int]]:
        """An epoch in pieces that suit the cache, the shortest window and the memory."""
        total = sum(len(batch) for batch in batches.values())
        made = self._schedule.intermediate_results(self._executor) / max(self._input_tuples, 1)
        least = 0 if self._spills is None else self._spills.pieces(total, made)
        return slices(
            batches, cut, made=made, window=self._shortest, rows=self._sources.rows_windows.values(), least=least
        )

    def _process(self, batches: dict[str, Batch], cut: int, *, restored: bool) -> Batch:
        """One slice: store, join, purge. `restored` batches come from stores, selections already applied
        where the store is not shared."""
        horizons = self._sources.horizons(batches)
        epoch: dict[str, Tuples] = {}
        for name, batch in batches.items():
            epoch |= self._enter(name, batch, horizons[name], restored=restored)
        now = min((int(batch.ts[0]) for batch in batches.values()), default=cut)
        if batches:
            self._first_ts = now if self._first_ts is None else self._first_ts
            self._last_ts = max(int(batch.ts[-1]) for batch in batches.values())
        self._sources.cut = cut
        dead = now if self._spills is None else self._spills.hold(now)
        found = (self._feedback or self._executor).process(epoch, dead)
        kept_back = 0 if self._feedback is None else self._feedback.kept_back()
        self._peak_tuples = max(self._peak_tuples, self._executor.state_tuples() + kept_back)
        out = self._output(found) if self._aggregator is None else self._aggregator.process(found, cut)
        self._peak_bytes = max(self._peak_bytes, self._size_bytes(self._executor))
        self._purge(cut)
        return out

    def _purge(self, cut: int) -> None:
        """Drop what no tuple at or after `cut` can meet, and what is too much for the memory."""
        if self._spills is None or self._spills.active is None:
            self._executor.purge(min(cut, self.hold))
            self._sources.purge(self._held(cut))
            return
        if cut == END:
            # Nothing comes any more, but what is owed may be owed with anything that is held.
            return
        self._spills.purge(cut)
        self._sources.purge(self._held(cut))
        if self._spills.short(cut):
            if self._feedback is not None:
                # A group leaves with all its tuples, and meets all that is to come: none may be kept back.
                self._feedback.settle(cut)
                self._former_edges = added(self._former_edges, self._feedback.edges())
                self._feedback = None
            if self.durable:
                self._unsaved += self._export()
            self._spills.spill(cut)

    def _enter(
        self, stream: str, batch: Batch, horizons: Mapping[str, Column], *, restored: bool
    ) -> dict[str, Tuples]:
        """Store what some alias selects, all where it may count for a ROWS window; the new tuples per alias."""
        aliases = self._aliases_of[stream]
        n = len(batch)
        shared = self._sources.shared(aliases[0])
        chosen: dict[str, Mask | None] = {}
        for alias in aliases:
            good: Mask | None = None if self._possible else np.zeros(n, np.bool_)
            if shared or not restored:
                for predicate in self._selections[alias]:
                    passed = holds(predicate, batch_reader(batch), n)
                    good = passed if good is None else good & passed
            if VOID in batch.columns:
                real = batch.columns[VOID].values == 0
                good = real if good is None else good & real
            chosen[alias] = None if good is None or good.all() else good
            self._seen[alias][0] += n
            self._seen[alias][1] += n if good is None else int(np.count_nonzero(good))
        store = self._sources.stores[stream]
        masks = [mask for mask in chosen.values() if mask is not None]
        if len(masks) == len(aliases) and not restored and not self._sources.rows_windows:
            wanted = np.logical_or.reduce(masks)
            batch = batch.take(wanted)
            chosen = {alias: None if mask is None else mask[wanted] for alias, mask in chosen.items()}
        rows = store.append(Batch(batch.ts, {**batch.columns, **horizons}) if horizons else batch)
        out: dict[str, Tuples] = {}
        for alias, mask in chosen.items():
            ids, ts = (rows, batch.ts) if mask is None else (rows[mask], batch.ts[mask])
            out[alias] = Tuples((alias,), ids[np.newaxis], ts, self._sources.expiry(alias, ids, ts))
        return out

    def _held(self, cut: int) -> int:
        """Source tuples must be there for all from here on when everything before `cut` has been processed."""
        if self._spills is not None:
            return min(cut, self.hold, self._spills.hold(cut))
        return min(cut, self.hold) if self._aggregator is None else self._aggregator.held(cut)

    def _size_bytes(self, executor: Executor) -> int:
        above = 0 if self._aggregator is None else self._aggregator.size_bytes()
        beside = 0 if self._feedback is None else self._feedback.size_bytes()
        return executor.size_bytes() + self._sources.size_bytes() + above + beside

    def _nothing(self) -> Batch:
        """No results."""
        if self._aggregator is not None:
            return self._aggregator.nothing()
        return self._output(Tuples.empty(self._answered))

    def _output(self, found: Tuples) -> Batch:
        """Results with the SELECT list's columns, in their final order; changes of a set difference with `_op`."""
        if not self.query.subtracted:
            found = found.reorder(self._aliases)
            if len(found) > 1:
                found = found.take(order_ties(found.ts, found.rows))
        resolve = self._sources.resolver(found.aliases, found.rows)
        columns = {o.name: evaluate(o.expr, resolve, len(found)) for o in self.query.outputs}
        if self.query.subtracted:
            columns[OP_KEY] = change_kinds(found)
        return Batch(found.ts, columns)

    # --- Spilled state ------------------------------------------------------------------------------

    def clean(self, most: int | None = None) -> bool:
        """Find results that are owed for want of memory; `cleaned` has them.

        Args:
            most: partition groups at most, those that have waited longest; None for all.

        Returns:
            False when nothing was owed.

        Raises:
            StateError: a block cannot be read or written.
        """
        return self._spills is not None and self._spills.clean(self.cut, most)

    def debt(self) -> Debt | None:
        """In place of `clean`: put what is owed on disk, for somebody else to find; None when nothing is.

        Raises:
            StateError: a block cannot be written.
        """
        return None if self._spills is None else self._spills.debt(self.cut)

    def cleaned(self) -> list[Batch]:
        """What cleanups have found since this was last asked: each ascending by ts, late, and each result once."""
        if self._spills is None:
            return []
        found = self._spills.take()
        self._results += sum(len(batch) for batch in found)
        return found

    def spill_events(self) -> list[SpillEvent]:
        """What has happened to spilled state since this was last asked, for who must do it again after a death."""
        return [] if self._spills is None else self._spills.events()

    def play_spills(self, events: Sequence[SpillEvent], until: int) -> None:
        """Do up to the event time `until` exactly this to spilled state; what cleanups find meanwhile is out already.

        To be called before anything is processed or restored. The plan must be the one of the newest events.
        """
        if self._spills is None:
            raise InvariantError(f"{len(events)} events of spilled state for an engine without a budget")
        if self.cut:
            raise InvariantError(f"everything before {self.cut} has been processed without them")
        self._spills.play(events, until)

    def spills_needed_from(self) -> int:
        """Events up to this event time need not be done again: what they were about has expired."""
        return min(self.horizon(stream) for stream in self._exported)

    def _gather(self, at: int) -> None:
        """Before a plan changes: what is owed is paid, and what has been spilled goes through the new plan like new.

        A strategy takes states over as they are in memory. Where they are not all there, the tuples that still live
        are read back and processed by the new plan from nothing, within the budget; their results are known.
        """
        spills = self._spills
        if spills is None or not spills.owing:
            return
        spills.clean(at)
        if self.durable:
            self._unsaved += self._export()
        living, before = spills.living(), self._sources
        self._sources = Sources(self.query, hashed=before.hashed, partition_groups=before.partition_groups)
        for name in self._exported:
            # Tuples keep their numbers, which ROWS windows count and snapshots know.
            self._sources.stores[name].begin_at(living[name][0] if name in living else before.stores[name].hi)
        self._executor = executor_of(self.executor, self._sources, self._executor.plan, None)
        self._load(self._tables)
        for record in self._schedule.records:
            if record.began_at is None and record.cut <= at:
                record.strategy = "moving-state"
        self._executor = self._schedule.step(self._executor, at)
        spills.follow(self._executor, at, delivered=at)
        for piece, cut in self._slices({name: batch for name, (_, batch) in living.items()}, at):
            self._process(piece, cut, restored=True)

    # --- Durability ---------------------------------------------------------------------------------

    @property
    def unsaved_tuples(self) -> int:
        """Source tuples stored since the last checkpoint that are still needed."""
        stores = {name: self._sources.stores[name] for name in self._exported}
        new = sum(max(0, store.hi - max(self._exported[name], store.lo)) for name, store in stores.items())
        return new + sum(len(block.batch) for block in self._unsaved)

    def checkpoint(self) -> Checkpoint:
        """Source tuples stored since the last checkpoint. Cost: proportional to those."""
        blocks, self._unsaved = [*self._unsaved, *self._export()], []
        return Checkpoint(self.cut, tuple(blocks), {name: self._sources.stores[name].lo for name in self._exported})

    def _export(self) -> list[Block]:
        """Source tuples that were stored since this was last asked."""
        blocks: list[Block] = []
        for name in self._exported:
            store = self._sources.stores[name]
            first = max(self._exported[name], store.lo)
            if store.hi > first:
                blocks.append(Block(name, first, store.read(first, store.hi)))
            # While plans change, what has been exported is stored again.
            self._exported[name] = max(self._exported[name], store.hi)
        return blocks

    def restore(self, cut: int, blocks: Iterable[Block]) -> None:
        """Rebuild all state on a fresh engine: the plan is run over the blocks and its results discarded.

        Args:
            cut: the checkpoint's cut.
            blocks: ascending by their first tuple's ts; those of a stream in row order without gaps.

        Raises:
            StateError: a block does not follow the one before it.
        """
        stores = {name: self._sources.stores[name] for name in self._exported}
        if self.cut or self.pending_tuples or any(store.hi for store in stores.values()):
            raise InvariantError("restore needs a fresh engine")
        durable, self.durable = self.durable, False
        begin = 0
        for batches, end in in_order(blocks, stores, cut):
            for stop in self._stops(begin, end):
                ready = batches if stop == end else taken(batches, stop)
                for piece, at in self._slices(ready, stop):
                    self._process(piece, at, restored=True)
            begin = end
        self.durable = durable
        for name, store in stores.items():
            self._exported[name] = store.hi
        self._intake.cut = cut

    def horizon(self, stream: str) -> int:
        """The smallest ts whose tuples of `stream` some window still needs."""
        return self._sources.horizon(stream, self._held(self.cut))

    def replay_point(self, stream: str, partition: int, horizon_ms: int) -> ReplayPoint:
        """Where to read a partition from, to see again every tuple with ts >= horizon.

        As far as this engine has seen the partition: after `restore`, no horizon below the snapshot's cut.
        """
        return self._intake.replay_point(stream, partition, horizon_ms)

    # --- Introspection ------------------------------------------------------------------------------

    def statistics(self, *, links: bool = False) -> EngineStatistics:
        """Counters and sizes as of now; with `links` also how selective the predicates are, which takes a sample."""
        return self._statistics(self._executor, links=links)

    def _statistics(self, executor: Executor, *, links: bool) -> EngineStatistics:
        size = self._size_bytes(executor)
        return EngineStatistics(
            input_tuples=self._input_tuples,
            results=self._results,
            late=self._intake.late_tuples,
            comparisons=self._schedule.comparisons(executor),
            intermediate_results=self._schedule.intermediate_results(executor),
            state_tuples=executor.state_tuples(),
            state_bytes=size,
            peak_state_tuples=self._peak_tuples,
            peak_state_bytes=max(self._peak_bytes, size),
            pending_tuples=self.pending_tuples,
            operators=executor.operators(),
            plan=str(executor.plan),
            executor=self.executor,
            cut=self.cut,
            span_ms=self._span_ms(),
            slices=self._slice_count,
            busy_s=self._busy_s,
            sources=tuple(self._source_statistics(alias) for alias in self._aliases),
            links=measure_links(self._sources, self.cut) if links else (),
            migrations=self._schedule.statistics(self.cut),
            spill=None if self._spills is None else self._spills.statistics(),
            feedback=added(self._former_edges, () if self._feedback is None else self._feedback.edges()),
        )

    def _span_ms(self) -> int:
        return 0 if self._first_ts is None else self._last_ts - self._first_ts

    def _source_statistics(self, alias: str) -> SourceStatistics:
        seen, selected = self._seen[alias]
        living = self._sources.living(alias, self.cut)
        if self._sources.shared(alias):
            living = round(living * selected / max(seen, 1))
        # A window that has been filled once tells what comes lately.
        life, span = self._sources.life[alias], self._span_ms()
        per_second = living / life if 0 < life <= span else selected / max(span, 1)
        if alias in self._sources.tables:
            per_second = 0.0
        stream = self.query.source(alias).stream.name
        return SourceStatistics(alias, stream, seen, selected, living, per_second * 1000.0)


def _no_column(column: ColumnRef) -> Column:
    raise InvariantError(f"a constant predicate reads {column}")


def batch_reader(batch: Batch) -> Resolve:
    """Resolves columns of a source batch; `_ts` is its event time."""

    def resolve(column: ColumnRef) -> Column:
        if column.name == "_ts":
            return Column(column.type, batch.ts)
        return batch.columns[column.name]

    return resolve
