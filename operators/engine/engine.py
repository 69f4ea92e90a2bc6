"""The engine of one task: intake, stores, executor and output of a query. It is pure: no clock, no thread.

The caller pushes tuples as they arrive, asks for the watermark, advances to it, and gets results. Results do not depend
on how the input was cut into pushes and epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np

from operators.aggregate import Aggregator
from operators.data.evaluate import evaluate
from operators.data.slices import slices
from operators.data.statistics import FILES, EdgeStatistics, EngineStatistics, SpillStatistics, merged_edges
from operators.data.tuples import FOREVER, Tuples
from operators.data.watermark import END
from operators.difference.pipeline import change_kinds
from operators.engine.executors import executor_of
from operators.engine.hot_keys import hot_keys
from operators.engine.intake import Intake, IntakeMethods, LateRows
from operators.engine.lookups import TableLookups
from operators.engine.numbered import NumberedPurge
from operators.engine.selection import SourceSelection
from operators.engine.selectivity import measure_links
from operators.feedback.blacklist import Blacklist
from operators.feedback.feedback import Feedback, feedback_of
from operators.feedback.watch import BLOOM
from operators.join.executor import XJOIN, Executor
from operators.join.tables import load_tables
from operators.kernels.order import order_ties
from operators.kernels.pages import RingMemory
from operators.migration.advise import Advice, Goal, advise
from operators.migration.schedule import MigrationRecord, Schedule
from operators.migration.strategies import check_strategy
from operators.plan.choose import Statistics, choose_plan, declared_statistics
from operators.plan.plan import Plan, check_plan
from operators.spill.backlog import Backlog
from operators.spill.block_store import StateDisk
from operators.spill.plan_spilling import PlanSpilling
from operators.spill.spilled_part import ROW
from operators.spill.spilling import MakeProductivity, MemoryBudget
from operators.state.checkpoint import Block, Checkpoint, take_before
from operators.state.durability import Durability
from operators.state.numbered import NumberColumn, NumberedWindows
from operators.state.side_state import PARTITION_GROUPS
from operators.state.sources import Sources
from schemas.columns import I64, Batch, Column, Mask
from schemas.errors import InvariantError, StateError, UsageError
from schemas.messages.spills import SpillEvent
from schemas.query import OP_KEY, TABLE_TS, ColumnRef, Query, Type, qualified

LONGEST_DUE_MS = 10_000
"""With a memory budget, parts are cleaned up for aggregates after a quarter of the shortest window, and at the latest
after this event time. Emissions wait for as long, and for the cleanup itself."""


def for_aggregates(budget: MemoryBudget, shortest_window_ms: int) -> MemoryBudget:
    """Return the budget of joins whose results are aggregated; see LONGEST_DUE_MS."""
    due_ms = min(shortest_window_ms // 4, LONGEST_DUE_MS)
    return replace(budget, due_ms=due_ms) if budget.due_ms is None else budget


def must_be_in_time(query: Query, executor: str, budget: MemoryBudget) -> bool:
    """Return whether state beyond a memory budget must stay at hand, in files, rather than be spilled.

    Spilled state gives results late. A set difference would have to take back what it has put out; an aggregate over
    [ROWS n] does not know when spilled tuples leave their windows; and only trees of binary joins have partition groups
    to spill.
    """
    counted = any(source.window.kind == "ROWS" for source in query.sources)
    return budget.in_time or executor != XJOIN or bool(query.subtracted) or (query.aggregation is not None and counted)


@dataclass(frozen=True, slots=True)
class Work:
    """Counters of an engine since its start.

    Attributes:
        cut: everything with a smaller ts has been processed.
        tuples: source tuples processed.
        selected: those of each alias that passed its selections, in FROM order.
        slices: slices processed.
        comparisons: predicate evaluations.
        made: intermediate results and results.
        busy_s: seconds spent processing, by the engine's clock.
    """

    cut: int
    tuples: int
    selected: tuple[int, ...]
    slices: int
    comparisons: int
    made: int
    busy_s: float


class Engine(IntakeMethods):
    """Runs one query over the given partitions of its streams.

    Args:
        plan: the join tree; chosen from `statistics` when None.
        statistics: for the choice of the plan and of probe orders; the declared ones when None.
        tables: the rows of each of the query's tables, by name.
        partitions: partition numbers per stream name; one partition 0 each when None.
        executor: one of `operators.engine.executors`.
        hashed: False to make every join a nested loop, as papers do.
        feedback: True to let operators report to each other which tuples are not demanded (`operators.feedback`). That
            changes no result. Or a function that makes the part in feedback between distributed operators
            (`operators.distributed.feedback`) of the executor and of this engine, which is ready but for it.
        kept: columns to store that only `feedback` reads.
        numbered: by stream, its columns with horizons, where another operator has counted the tuples of ROWS windows.
            They are stored. For a plan of one join.
        detector: how tuples that are not demanded are detected in nested loops, one of
            `operators.feedback.watch.DETECTORS`.
        budget: a memory budget for the states. State beyond it is spilled as blocks, and its results are pending until
            `clean`; or it is kept in files (`must_be_in_time`).
        productivity: makes what ranks partition groups for spilling; for a join of a distributed query
            (`operators.distributed.lineage`).
        blocks: where blocks and files are stored; given exactly if `budget` is.
        clock: seconds, for reported times of processing, silence and detection; the engine has no clock of its own.

    Attributes:
        query: the query.
        plan: the plan that runs.
        executor: the name of the executor.
        load: the share of one core's time that keeping up with the input takes, set by the caller; 0 in a replay. Only
            used to choose a migration strategy.
        hold: tuples that had not expired before this event time are kept, even if the task has passed it; END for no
            such limit.
        beside_bytes: bytes outside the engine that count against its budget, set by the caller.
        on_push: called with the stream and the batch of all tuples taken in; None for no call.
        kept_back: tuples that feedback between distributed operators keeps back from the states.
        durable: True if `checkpoint` will be called: source tuples that leave memory are kept for it until then.
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
        feedback: bool | Callable[[Executor, Engine], Feedback] = False,
        kept: Sequence[ColumnRef] = (),
        numbered: Mapping[str, Sequence[NumberColumn]] | None = None,
        detector: str = BLOOM,
        budget: MemoryBudget | None = None,
        blocks: StateDisk | None = None,
        productivity: MakeProductivity | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.query = query
        statistics = statistics or declared_statistics(query, tables)
        self.plan = plan if plan is not None else choose_plan(query, statistics)
        streams = query.streams()
        self._intake = Intake(streams, partitions or {s.name: (0,) for s in streams})
        groups = PARTITION_GROUPS if budget is None else budget.groups
        numbered = numbered or {}
        columns = (
            ColumnRef(source.alias, column.name, Type.BIGINT)
            for source in query.sources
            for column in numbered.get(source.stream.name, ())
        )
        self._sources = Sources(query, hashed=hashed, kept=[*kept, *columns], partition_groups=groups)
        self._numbered: NumberedPurge | None = None
        if numbered:
            self._sources.numbered = NumberedWindows(numbered)
            self._numbered = NumberedPurge(self._sources, self._sources.numbered)
        self.executor = executor
        self._clock = clock
        self.load = 0.0
        self.hold = END
        self.beside_bytes = 0
        self.on_push: Callable[[str, Batch], None] | None = None
        self.kept_back: Sequence[Blacklist] = ()
        self._executor: Executor = executor_of(executor, self._sources, self.plan, statistics)
        self._feeds = feedback is True
        self._aggregator = None if query.aggregation is None else Aggregator(query, self._sources)
        self._spills: PlanSpilling | None = None
        self._memory: RingMemory | None = None
        if (budget is None) != (blocks is None):
            raise InvariantError("a budget needs somewhere for blocks to go, and nothing goes there without one")
        if budget is not None and blocks is not None:
            if must_be_in_time(query, executor, budget):
                rings = None if budget.shared is None else budget.shared.rings
                self._memory = RingMemory(budget.limit_bytes, blocks.map_file, rings)
            elif self._aggregator is None:
                self._spills = PlanSpilling(budget, blocks, clock, productivity=productivity, fixed=self._fixed_bytes)
            else:
                waiting = for_aggregates(budget, min(self._sources.life.values()))
                self._spills = PlanSpilling(
                    waiting, blocks, clock, self._aggregator.enter_late, fixed=self._fixed_bytes
                )
        self._detector = detector
        self._feedback: Feedback | None = None
        self._former_edges: tuple[EdgeStatistics, ...] = ()
        # A tuple that has just died still changes the answer of a set difference.
        lives = [life for alias, life in self._sources.life.items() if alias not in self._sources.tables]
        longest = min(max(lives) + bool(query.subtracted), FOREVER)
        self._schedule = Schedule(
            lambda plan: load_tables(executor_of(executor, self._sources, plan, statistics)), longest, self._advise
        )
        self._aliases = tuple(source.alias for source in query.sources)
        self._answered = self._aliases[:1] if query.subtracted else self._aliases
        self._selection = SourceSelection(query)
        self._shortest = min((life for life in self._sources.life.values()), default=FOREVER)
        self._streams = tuple(s.name for s in query.joined_streams())
        self._lookups = TableLookups([query])
        self._durability = Durability(self._streams)
        self.durable = False
        self._input_tuples = 0
        self._processed_tuples = 0
        self._first_ts: int | None = None
        self._last_ts = 0
        self._slice_count = 0
        self._busy_s = 0.0
        self._results = 0
        self._complete: dict[tuple[str, int], int] = {}
        self._peak_tuples = 0
        self._peak_bytes = 0
        self._tables = tables or {}
        with self._rings():
            self._load(self._tables)
        if self._spills is not None:
            self._spills.attach(self._executor, 0)
        if callable(feedback):
            self._feedback = feedback(self._executor, self)
        elif feedback:
            self._feedback = feedback_of(self._executor, 0, detector, clock)

    def _rings(self) -> AbstractContextManager[None]:
        """Within the context, rings are made where the budget says."""
        return nullcontext() if self._memory is None else self._memory.used()

    def _load(self, tables: Mapping[str, Batch]) -> None:
        """Store the tables' rows and load them into the executor."""
        for table in self.query.tables():
            if table.name not in tables:
                raise InvariantError(f"the rows of {table} are not given")
            columns = tables[table.name].columns
            batches = {table.name: Batch(np.full(len(tables[table.name]), TABLE_TS), columns)}
            horizons = self._sources.horizons(batches)[table.name]
            self._selection.enter(self._sources, table.name, batches[table.name], horizons, restored=False)
        load_tables(self._executor)

    def push(
        self,
        stream: str,
        partition: int,
        batch: Batch,
        offsets: I64 | None = None,
        *,
        floor: int | None = None,
        remembered: int | None = None,
    ) -> LateRows:
        """Take tuples of one partition in arrival order. See `Intake.push`."""
        found = self._intake.push(stream, partition, batch, offsets, floor, remembered)
        self._input_tuples += len(batch)
        if self.on_push is not None:
            self.on_push(stream, batch)
        return found

    def insert(self, stream: str, partition: int, batch: Batch) -> None:
        """Take tuples, ascending by ts, that the partition's clock has passed. See `Intake.insert`."""
        self._intake.insert(stream, partition, batch)
        self._input_tuples += len(batch)
        if self.on_push is not None:
            self.on_push(stream, batch)

    def enter_late(self, stream: str, offset: int, batch: Batch, *, again: bool) -> None:
        """Take results of a cleanup in another task, in any order; the engine has a memory budget.

        Args:
            stream: the other task's results, an input of the plan's only join.
            offset: of the record in its log.
            again: an earlier incarnation of this task has taken the record.

        Raises:
            StateError: the engine has no memory budget.
        """
        if self._spills is None:
            raise StateError(
                f"results of {stream} come late, since another task has a memory budget: give all workers --memory"
            )
        alias = next(source.alias for source in self.query.sources if source.stream.name == stream)
        columns = {qualified(alias, name): column for name, column in batch.columns.items()}
        columns[qualified(alias, "_ts")] = Column(Type.TIMESTAMP, batch.ts)
        columns[qualified(alias, ROW)] = Column(Type.BIGINT, np.zeros(len(batch), np.int64))
        stored = [qualified(alias, name) for name in (*self._sources.store(alias).columns, ROW)]
        side = self._aliases.index(alias)
        tuples = Batch(batch.ts, {name: columns[name] for name in stored})
        if self._sources.numbered is not None:
            self._sources.numbered.note_late(stream, batch)
        self._spills.enter_late(side, offset, tuples, self.cut, again=again)

    def set_complete(self, stream: str, partition: int, ts: int) -> None:
        """Set the event time before which another task has no pending results for a partition of a stream."""
        self._complete[stream, partition] = max(ts, self._complete.get((stream, partition), ts))
        if self._spills is not None:
            self._spills.set_input_complete(min(self._complete.values()))

    @property
    def spills(self) -> bool:
        """Whether the engine has a memory budget by which results may come late."""
        return self._spills is not None

    @property
    def complete(self) -> int:
        """The event time before which neither this task nor those whose results it reads have pending results."""
        return min([self.cut, *self._complete.values()]) if self._spills is None else self._spills.hold(self.cut)

    def withdraw(self, stream: str, partition: int, useless: Callable[[Batch], Mask]) -> int:
        """Forget the useless tuples of a partition that wait for the watermark; return how many."""
        return self._intake.withdraw(stream, partition, useless)

    def store(self, stream: str, batch: Batch) -> dict[str, Tuples]:
        """Store tuples, ascending by ts, that `cut` has passed. Return per alias those that its selections accept."""
        self._input_tuples += len(batch)
        if self.on_push is not None:
            self.on_push(stream, batch)
        if self._sources.numbered is not None:
            self._sources.numbered.note_late(stream, batch)
        with self._rings():
            return self._selection.enter(self._sources, stream, batch, {}, restored=False)

    def results(self, found: Tuples) -> Batch:
        """Convert results of the join, ascending by ts, to the form in which `advance` returns them."""
        return self._output(found)

    def migrate(self, plan: Plan, strategy: str, cut: int, goal: Goal | None = None) -> None:
        """Change to another plan at an event time: tuples with ts < cut are processed by the old plan.

        Results and their order do not change. May be called again before an earlier migration has finished, or begun.

        Args:
            strategy: one of `STRATEGIES`, or `auto`: chosen at the cut, for `goal`.
            cut: the event time.
            goal: by which `auto` chooses; the default goal when None.

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
    def sources(self) -> Sources:
        """The stores of all streams, to read."""
        return self._sources

    @property
    def processed_tuples(self) -> int:
        """Source tuples processed since the start."""
        return self._processed_tuples

    @property
    def comparisons(self) -> int:
        """Predicate evaluations since the start. Cost: less than a microsecond."""
        return self._schedule.comparisons(self._executor)

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds, as given; always 0.0 without a clock."""
        return self._clock

    @property
    def busy_s(self) -> float:
        """Seconds spent processing, by its clock."""
        return self._busy_s

    @property
    def slices(self) -> int:
        """Slices processed since the start."""
        return self._slice_count

    @property
    def work(self) -> Work:
        """What has been done since the start. Cost: a few microseconds."""
        return Work(
            cut=self.cut,
            tuples=self._processed_tuples,
            selected=self._selection.counts(),
            slices=self._slice_count,
            comparisons=self.comparisons,
            made=self._schedule.intermediate_results(self._executor) + self._results,
            busy_s=self._busy_s,
        )

    @property
    def migrations(self) -> tuple[MigrationRecord, ...]:
        """All requested migrations, in the order of their cuts."""
        return tuple(self._schedule.records)

    def advance(self, cut: int | None = None) -> Batch:
        """Process all tuples with ts < cut (default: the watermark).

        Returns:
            The results, ascending by (ts, component row ids in FROM order): the same for every plan. For a query with
            aggregates their emissions at the multiples before `cut`, ascending by (ts, group).
        """
        cut = self.watermark() if cut is None else cut
        if cut <= self.cut:
            return self._nothing()
        with self._rings():
            return self._advance(cut)

    def _advance(self, cut: int) -> Batch:
        results: list[Batch] = []
        begin = self.cut
        for end in self._stops(begin, cut):
            batches = self._lookups.look_up(self._intake.take(end))
            for piece, at in self._slices(batches, end):
                began = self._clock()
                results.append(self._process(piece, at, restored=False))
                self._step(at)
                took = self._clock() - began
                self._schedule.stood_still(took)
                self._busy_s += took
                self._slice_count += 1
        self.plan = self._executor.plan
        for stream in self._streams:
            self._intake.forget(stream, self.replay_horizon(stream))
        out = Batch.concat(results) if results else self._nothing()
        self._results += len(out)
        return out

    def take_versions(self) -> int:
        """Apply the versions of tables' rows that have been read and are older than `cut`; return how many.

        Called while a task replays its input after a snapshot.
        """
        with self._rings():
            return self._lookups.take_versions(self._intake, self.cut)

    def _stops(self, begin: int, cut: int) -> list[int]:
        """Return the event times at which slices must end, since an action is due between two slices; last the cut."""
        spills = () if self._spills is None else self._spills.pending_replay.cuts(begin, cut)
        return [*sorted({*self._schedule.cuts(begin, cut), *spills}), cut]

    def _step(self, at: int) -> None:
        """Begin and end migrations when everything before `at` has been processed.

        Feedback stops during a migration, since migration strategies expect states to have all their entries.
        """
        if self._feedback is not None and self._schedule.due(at):
            self._feedback.release_all(at)
            self._former_edges = merged_edges(self._former_edges, self._feedback.edges())
            self._feedback = None
        if self._spills is not None and self._spills.has_backlog and self._schedule.due(at):
            self._rebuild_spilled(self._spills, at)
        else:
            self._executor = self._schedule.step(self._executor, at)
        if self._spills is not None:
            self._spills.attach(self._executor, at)
        has_backlog = self._spills is not None and self._spills.has_backlog
        if self._feeds and self._feedback is None and not self._schedule.migrating and not has_backlog:
            self._feedback = feedback_of(self._executor, at, self._detector, self._clock)

    def _slices(self, batches: dict[str, Batch], cut: int) -> Iterator[tuple[dict[str, Batch], int]]:
        """Cut an epoch into slices that suit the cache, the shortest window and the memory budget."""
        total = sum(len(batch) for batch in batches.values())
        made_per_tuple = self._schedule.intermediate_results(self._executor) / max(self._processed_tuples, 1)
        min_slices = 0 if self._spills is None else self._spills.min_slices(total, made_per_tuple)
        return slices(
            batches,
            cut,
            made_per_tuple=made_per_tuple,
            window=self._shortest,
            rows=self._sources.rows_windows.values(),
            min_slices=min_slices,
        )

    def _process(self, batches: dict[str, Batch], cut: int, *, restored: bool, known: bool = False) -> Batch:
        """Process one slice: store, join, purge.

        Args:
            restored: the batches come from stores; selections have been applied where the store is not shared.
            known: the results have been found before; none are returned.
        """
        horizons = self._sources.horizons(batches)
        epoch: dict[str, Tuples] = {}
        for name, batch in batches.items():
            epoch |= self._selection.enter(self._sources, name, batch, horizons[name], restored=restored)
            self._processed_tuples += len(batch)
        now = min((int(batch.ts[0]) for batch in batches.values()), default=cut)
        if batches:
            self._first_ts = now if self._first_ts is None else self._first_ts
            self._last_ts = max(int(batch.ts[-1]) for batch in batches.values())
        self._sources.cut = cut
        dead = now if self._spills is None else self._spills.hold(now)
        found = (self._feedback or self._executor).process(epoch, dead)
        kept_back = 0 if self._feedback is None else self._feedback.kept_back()
        self._peak_tuples = max(self._peak_tuples, self._executor.state_tuples() + kept_back)
        if known:
            out = self._nothing()
        elif self._aggregator is None:
            out = self._output(found)
        elif self._spills is None:
            out = self._aggregator.process(found, cut)
        else:
            self._aggregator.enter(found, self._sources)
        self._peak_bytes = max(self._peak_bytes, self._size_bytes(self._executor))
        if self._sources.numbered is not None:
            self._sources.numbered.note(batches, cut)
        self._purge(cut)
        if self._aggregator is not None and self._spills is not None and not known:
            out = self._aggregator.emit(self._spills.hold(cut))
        return out

    def _purge(self, cut: int) -> None:
        """Drop entries that no tuple with ts >= `cut` can meet, and spill state beyond the memory budget."""
        if self._memory is not None:
            self._memory.fixed_bytes = self._fixed_bytes()
        if self._numbered is not None:
            self._numbered.purge(self._executor, self.kept_back, self._needed_from(cut))
        if self._spills is None or self._spills.active is None:
            self._executor.purge(min(cut, self.hold))
            self._sources.purge(self._needed_from(cut))
            return
        if cut == END:
            # No tuple arrives any more, but pending results may need any stored tuple.
            return
        self._spills.purge(cut)
        self._sources.purge(self._needed_from(cut))
        if self._spills.needs_spill(cut):
            if self._feedback is not None:
                # A spilled group takes all its tuples along and meets all future tuples: none may be kept back.
                self._feedback.release_all(cut)
                self._former_edges = merged_edges(self._former_edges, self._feedback.edges())
                self._feedback = None
                # Some tuples kept back have left their ROWS windows meanwhile, and their rows are gone from the stores.
                self._spills.purge(cut)
            if self.durable:
                self._durability.retain(self._sources)
            self._spills.spill(cut)

    def _needed_from(self, cut: int) -> int:
        """Return the event time from which source tuples are needed when everything before `cut` has been processed."""
        complete = cut if self._spills is None else self._spills.hold(cut)
        return min(self.hold, complete if self._aggregator is None else self._aggregator.needed_from(complete))

    def _size_bytes(self, executor: Executor) -> int:
        above = 0 if self._aggregator is None else self._aggregator.size_bytes()
        beside = 0 if self._feedback is None else self._feedback.size_bytes()
        beside += self._intake.repeats_bytes() + self._lookups.size_bytes()
        return executor.size_bytes() + self._sources.size_bytes() + above + beside

    def _fixed_bytes(self) -> int:
        """Return the bytes that count against the budget and can neither be spilled nor be in files."""
        tables = self._lookups.used_bytes() if self._memory is None else self._lookups.keys_bytes()
        return tables + self._intake.repeats_bytes() + self.beside_bytes

    def _nothing(self) -> Batch:
        """Return no results."""
        if self._aggregator is not None:
            return self._aggregator.nothing()
        return self._output(Tuples.empty(self._answered))

    def _output(self, found: Tuples) -> Batch:
        """Compute the SELECT list of results, in their final order; for changes of a set difference also `_op`."""
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

    def clean(self, most: int | None = None, between: Callable[[], None] | None = None) -> bool:
        """Produce results that are pending because state was spilled; `cleaned` returns them.

        Args:
            most: the largest number of partition groups to clean up, those that have waited longest; None for all.
            between: called now and then while all groups are cleaned up, so that the caller can take results through
                `cleaned` meanwhile; results not taken stay in memory.

        Returns:
            False when no results were pending.

        Raises:
            StateError: a block cannot be read or written.
        """
        return self._spills is not None and self._spills.clean(self.cut, most, between)

    def write_backlog(self) -> Backlog | None:
        """Write the backlog of pending results to disk instead of producing them; None when none are pending.

        An offline cleanup produces them (`operators.spill.cleanup.offline`).

        Raises:
            StateError: a block cannot be written.
        """
        return None if self._spills is None else self._spills.write_backlog(self.cut)

    def cleaned(self) -> list[Batch]:
        """Take the late results of the cleanups since the last call: each batch ascends by ts, each result once.

        For a query with aggregates, whose emissions have waited for them: the emissions that are now final.
        """
        if self._spills is None:
            return []
        found = self._spills.take()
        if self._aggregator is not None:
            # Cleanups have given it their results.
            emitted = self._aggregator.emit(self._spills.hold(self.cut))
            found = [emitted] if len(emitted) else []
        self._results += sum(len(batch) for batch in found)
        return found

    def least_budget(self) -> int:
        """Return the smallest budget with which the engine works: 0.

        With any budget, cleanup steps keep pace: spilled state is cleaned up before windows forget it.
        """
        return 0

    def spill_events(self) -> list[SpillEvent]:
        """Take the events of spilled state since the last call, for the recovery that must repeat them."""
        return [] if self._spills is None else self._spills.events()

    def leave_budget(self) -> None:
        """The engine is not used any more: what it has no longer counts against a budget that it shares."""
        if self._spills is not None:
            self._spills.close()
        if self._memory is not None:
            self._memory.fixed_bytes = 0

    def play_spills(self, events: Sequence[SpillEvent], until: int) -> None:
        """Repeat exactly these events of spilled state up to the event time `until`.

        The results of cleanups until then have already been put out. To be called before anything is processed or
        restored. The plan must be that of the newest events.
        """
        if self._spills is None:
            if events:
                raise InvariantError(f"{len(events)} events of spilled state for an engine that spills nothing")
            return
        if self.cut:
            raise InvariantError(f"everything before {self.cut} has been processed without them")
        self._spills.start_replay(events, until)

    def replay_limit(self, read: Mapping[str, int]) -> int:
        """Return the event time up to which `advance` may go in a replay before more is read.

        Args:
            read: by stream, the offset up to which the other task's results have been read again.
        """
        if self._spills is None:
            return END
        sides = enumerate(self.query.source(alias).stream.name for alias in self._aliases)
        return self._spills.pending_replay.limit({side: read[name] for side, name in sides if name in read})

    def spills_needed_from(self) -> int:
        """Return the event time up to which events need not be repeated, since the tuples concerned have expired.

        A table's rows never expire: with a table all events are needed, -1. Events are few beside their tuples.
        """
        if self.query.tables():
            return -1
        # State spilled at the horizon itself still has pending results with the tuples that arrived then.
        expired = min(self.horizon(stream) for stream in self._streams) - 1
        return expired if self._spills is None else self._spills.needed_from(expired)

    def _rebuild_spilled(self, spills: PlanSpilling, at: int) -> None:
        """Before a change of plans, produce all pending results, and rebuild spilled states by the new plan.

        A migration strategy takes over states in memory. Where states are partly spilled, all living tuples are read
        back, and the new plan processes them from empty states, within the budget. Their results are discarded, since
        they are known already.
        """
        spills.clean(at)
        if self.durable:
            self._durability.retain(self._sources)
        self._durability.replace(self._sources, at, self._needed_from(at))
        living, before = spills.stored_tuples(), self._sources
        self._sources = Sources(
            self.query, hashed=before.hashed, kept=before.kept, partition_groups=before.partition_groups
        )
        for name in self._streams:
            # Tuples keep their numbers, which ROWS windows count and snapshots contain.
            self._sources.stores[name].begin_at(living[name][0] if name in living else before.stores[name].hi)
        self._schedule.rebuild(self._executor, at)
        self._executor = executor_of(self.executor, self._sources, self._executor.plan, None)
        self._load(self._tables)
        self._executor = self._schedule.step(self._executor, at)
        spills.attach(self._executor, at, delivered=at)
        if self._aggregator is not None:
            self._aggregator.sources = self._sources
        for piece, cut in self._slices({name: batch for name, (_, batch) in living.items()}, at):
            self._process(piece, cut, restored=True, known=True)

    # --- Durability ---------------------------------------------------------------------------------

    @property
    def unsaved_tuples(self) -> int:
        """Source tuples stored since the last checkpoint that are still needed."""
        return self._durability.unsaved_tuples(self._sources)

    def checkpoint(self) -> Checkpoint:
        """Return the source tuples stored since the last checkpoint. Cost: proportional to their number."""
        return self._durability.checkpoint(self._sources, self.cut, self._needed_from(self.cut))

    def restore(self, cut: int, blocks: Iterable[Block]) -> None:
        """Rebuild all state on a fresh engine: run the plan over the blocks and discard the results.

        Args:
            cut: the checkpoint's cut.
            blocks: ascending by their first tuple's ts; those of a stream in row order without gaps.

        Raises:
            StateError: a block does not follow the block before it.
        """
        if self.cut or self.pending_tuples:
            raise InvariantError("restore needs a fresh engine")
        durable, self.durable = self.durable, False
        begin = 0
        with self._rings():
            for batches, end in self._durability.read_back(self._sources, blocks, cut):
                for stop in self._stops(begin, end):
                    ready = batches if stop == end else take_before(batches, stop)
                    for piece, at in self._slices(ready, stop):
                        self._process(piece, at, restored=True)
                begin = end
        self.durable = durable
        self._intake.cut = cut

    def horizon(self, stream: str) -> int:
        """Return the smallest ts of tuples of `stream` that some window still needs; 0 for a table that tuples are
        looked up in, of which a row's newest version may be as old as the table."""
        return 0 if stream in self._lookups else self._sources.horizon(stream, self._needed_from(self.cut))

    # --- Introspection ------------------------------------------------------------------------------

    def statistics(self, *, links: bool = False, hot: bool = False) -> EngineStatistics:
        """Return counters and sizes as of now; from a sample also selectivities with `links`, hot keys with `hot`."""
        return self._statistics(self._executor, links=links, hot=hot)

    def _statistics(self, executor: Executor, *, links: bool, hot: bool = False) -> EngineStatistics:
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
            sources=tuple(
                self._selection.statistics(self._sources, alias, self.cut, self._span_ms()) for alias in self._aliases
            ),
            links=measure_links(self._sources, self.cut) if links else (),
            hot_keys=hot_keys(self._sources, self.cut) if hot else None,
            migrations=self._schedule.statistics(self.cut),
            spill=self._spill_statistics(),
            feedback=self.feedback,
            deduplicated=self._intake.repeats,
        )

    @property
    def feedback(self) -> tuple[EdgeStatistics, ...]:
        """The feedback between its operators since the start, over all plans."""
        return merged_edges(self._former_edges, () if self._feedback is None else self._feedback.edges())

    def _spill_statistics(self) -> SpillStatistics | None:
        if self._memory is not None:
            memory = self._memory
            return SpillStatistics(
                FILES,
                memory.limit_bytes,
                used_bytes=memory.in_memory,
                file_bytes=memory.in_files,
                fixed_bytes=memory.fixed_bytes,
            )
        return None if self._spills is None else self._spills.statistics()

    def _span_ms(self) -> int:
        return 0 if self._first_ts is None else self._last_ts - self._first_ts
