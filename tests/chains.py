"""Runs a distributed plan without Kafka: topics are lists, and the test decides which task runs next.

Only encoded blocks pass between two tasks. Each task is an engine over its sub-query; it continues reading at its
position in each of its partitions. It can die and restart, as in the service: it restarts at its last commit's
replay points, or with its last snapshot, and sends nothing of what it reads again. As with `--guarantee at-least-once`
it may have sent epochs that it has not committed: it sends their results again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.data.positions import positions
from operators.data.watermark import END, NEVER
from operators.distributed.decompose import decompose
from operators.distributed.edge_reader import EdgeReader
from operators.distributed.edge_writer import EdgeWriter, ResultOrder
from operators.distributed.feedback.feedback import DistributedFeedback, has_feedback
from operators.distributed.feedback.on_demand import PlanStart
from operators.distributed.intake import SourceIntake
from operators.distributed.lineage import TaskProductivity
from operators.distributed.operator import DistributedOperator, OperatorInput
from operators.distributed.task_budget import task_budget, traces_results
from operators.engine.engine import Engine
from operators.engine.intake import ReplayPoint
from operators.plan.plan import Join, Plan
from operators.spill.spilling import MemoryBudget
from operators.state.checkpoint import Block, blocks_by_time
from operators.state.sources import Sources
from schemas.codecs.notice import Notice, decode_notice, is_notice
from schemas.columns import Batch
from schemas.messages.control import PartitionTotals
from schemas.messages.spills import SpillEvent
from schemas.query import Query, Stream
from tests.feeding import offsets_of, to_batch, to_rows
from tests.operators.spill.memory_blocks import MemoryBlocks

Row = dict[str, Any]
Lane = tuple[str, int]
Words = npt.NDArray[np.uint64]


def _declared(given: OperatorInput) -> Stream:
    """The stream, or table in a topic, of an input as its records have it: without the column of positions."""
    return replace(given.stream, fields=tuple(f for f in given.stream.fields if f.name != given.position))


def _within_ms(given: OperatorInput) -> int:
    """For how long tuples of an input repeat a first; 0 where repeats are not dropped."""
    return given.stream.deduplicate_within_ms


@dataclass
class FeedbackRequest:
    """A task's request to the tasks that write to one of its partitions."""

    lane: Lane
    suspend: Words
    resume: Words
    need: int


@dataclass
class Topics:
    """Logs by topic and partition: rows of sources, blocks of operators."""

    logs: dict[Lane, list[Any]] = field(default_factory=dict)

    def log(self, lane: Lane) -> list[Any]:
        return self.logs.setdefault(lane, [])


class Task:
    """One task of one operator."""

    def __init__(
        self,
        operator: DistributedOperator,
        number: int,
        topics: Topics,
        counts: dict[str, int],
        tables: Mapping[str, Batch],
        budget: MemoryBudget | None = None,
        suspends: bool = True,
        start: PlanStart | None = None,
    ) -> None:
        self.operator = operator
        self.suspends = suspends
        self.plan_start = start
        self.budget = budget if isinstance(operator.plan, Join) else None
        self.events: list[SpillEvent] = []
        self.productivity: TaskProductivity | None = None
        self.lives = 0
        self.announced = NEVER
        self.again = False
        self.tables = operator.with_row_numbers(tables)
        self.number = number
        self.topics = topics
        self.lanes: list[tuple[OperatorInput, int]] = []
        for given in {given.stream.name: given for given in operator.streams}.values():
            if given.edge is not None or operator.forward:
                self.lanes.append((given, number))
            else:
                self.lanes += [(given, p) for p in range(counts[given.stream.name])]
        self.routes = [EdgeWriter(edge, number) for edge in operator.outputs]
        self.finish = None if operator.outputs else ResultOrder(operator)
        self.results: list[Row] = []
        self.late: list[Row] = []
        self.repeated = 0
        self.cut = 0
        self.numbers: tuple[int, ...] = ()
        self.repeats: dict[str, list[int]] = {}
        self.over = False
        self.blocks: list[Block] = []
        self.saved: dict[Lane, list[ReplayPoint]] = {}
        self.saved_cut = self.floor = 0
        self.committed = {self._lane(given, p): 0 for given, p in self.lanes}
        self.points = {lane: [ReplayPoint(0, NEVER)] * self._channels(given) for given, p, lane in self._each()}
        self.window = dict(self.points)
        self.open()
        self.recall()

    def _lane(self, given: OperatorInput, partition: int) -> Lane:
        return given.stream.topic, partition

    def _channels(self, given: OperatorInput) -> int:
        return 1 if given.edge is None else given.edge.channels

    def _each(self) -> list[tuple[OperatorInput, int, Lane]]:
        return [(given, p, self._lane(given, p)) for given, p in self.lanes]

    def _productivity(self, sources: Sources, groups: int) -> TaskProductivity:
        self.productivity = TaskProductivity(sources, self.operator, self.number, groups)
        self.lives += 1
        return self.productivity

    def updates(self) -> list[PartitionTotals]:
        """What the task has counted for others."""
        if self.productivity is None:
            return []
        return self.productivity.exchange.updates("q", id(self), f"{id(self)}-{self.lives}")

    def open(self) -> None:
        """Start where the last commit says."""
        partitions: dict[str, list[int]] = {}
        for given, p in self.lanes:
            numbers = [p] if given.edge is None else list(range(given.edge.channels))
            partitions.setdefault(given.stream.name, []).extend(numbers)
        self.feedback = None
        if has_feedback(self.operator):
            start = None if self.plan_start is None else replace(self.plan_start, resumed_at=self.cut)
            self.feedback = DistributedFeedback(self.operator, self.number, suspends=self.suspends, start=start)
        self.engine: Any
        if self.operator.is_intake:
            self.engine = SourceIntake(self.operator.query, partitions, self.cut, self.numbers)
        else:
            self.engine = Engine(
                self.operator.query,
                plan=self.operator.plan,
                tables=self.tables,
                partitions=partitions,
                feedback=False if self.feedback is None else self.feedback.of,
                kept=[
                    *(() if self.feedback is None else self.feedback.columns_kept),
                    *(column for traced in self.operator.traced for column in traced.columns),
                ],
                numbered=self.operator.numbered,
                budget=self.budget,
                blocks=None if self.budget is None else MemoryBlocks(),
                productivity=self._productivity if self.operator.traced else None,
            )
        self.engine.record_repeats()
        for name, found in self.repeats.items():
            self.engine.resume_repeats(name, np.array(found, np.int64), self.cut)
        if self.budget is not None:
            self.engine.play_spills(self.events, self.cut)
        self.start, self.window, self.at = dict(self.saved or self.points), dict(self.points), {}
        self.floor = self.saved_cut
        self.channels: dict[Lane, EdgeReader] = {}
        for given, p, lane in self._each():
            points = self.start[lane]
            self.at[lane] = min(point.offset for point in points)
            if given.edge is not None:
                self.channels[lane] = EdgeReader(given, points, self.feedback)
                self.channels[lane].restore_clocks(self.engine)
            elif points[0].max_ts != NEVER:
                self.engine.set_clock(given.stream.name, p, points[0].max_ts)
        if self.keeps_snapshots:
            self.engine.durable = True
        if self.floor:
            self.engine.restore(self.floor, blocks_by_time(self.blocks))

    @property
    def keeps_snapshots(self) -> bool:
        """As in the service."""
        held = self.budget is not None or self.feedback is not None
        return not (held or self.operator.is_intake or self.operator.numbered)

    def save(self) -> None:
        """Write a snapshot, if everything is committed."""
        if not self.keeps_snapshots or (self.cut, self.committed) != (self.engine.cut, self.at):
            return
        checkpoint = self.engine.checkpoint()
        live = checkpoint.live_from
        blocks = (*self.blocks, *checkpoint.blocks)
        self.blocks = [block for block in blocks if block.first_row + len(block.batch) > live[block.stream]]
        self.saved_cut = checkpoint.cut
        self.saved = {
            lane: self._points(given, p, 0 if given.stream.is_versioned else checkpoint.cut - _within_ms(given))
            for given, p, lane in self._each()
        }

    def _points(self, given: OperatorInput, p: int, horizon: int) -> list[ReplayPoint]:
        """Per channel, where reading again yields all tuples with ts >= horizon."""
        lane = self._lane(given, p)
        if horizon < self.floor:
            # The engine never saw what a snapshot replaced.
            return self.window[lane]
        if given.edge is not None:
            return [self.channels[lane].point(channel, horizon) for channel in range(given.edge.channels)]
        found, (start,) = self.engine.replay_point(given.stream.name, p, horizon), self.start[lane]
        return [start if found.offset <= start.offset else found]

    def commit(self) -> None:
        """Record all positions, and the offsets from which a restart must read again for its windows."""
        self.cut, self.committed = self.engine.cut, dict(self.at)
        if self.operator.is_intake:
            self.numbers = self.engine.numbers
        for name, places in self.engine.take_repeats().items():
            self.repeats.setdefault(name, []).extend(places.tolist())
        if self.budget is not None:
            needed = self.engine.spills_needed_from() if self.operator.streams else -1
            self.events = [one for one in [*self.events, *self.engine.spill_events()] if one.at > needed]
        for given, p, lane in self._each():
            horizon = self.engine.replay_horizon(given.stream.name)
            self.points[lane] = self._points(given, p, horizon)
            if given.edge is not None:
                self.channels[lane].forget(horizon)

    def die(self, *, keeps: bool = False, piece: int = 1_000_000) -> None:
        """Restart from the last commit: read again what windows need, and discard the results of that.

        Args:
            keeps: whether the task keeps its disk, with its last snapshot.
            piece: how many records of each partition it reads before it processes them.
        """
        if not keeps:
            self.blocks, self.saved, self.saved_cut = [], {}, 0
        self.open()
        self.again = True
        while self._reads_again():
            for given, p, lane in self._each():
                self.read(given, p, min(self.at[lane] + piece, self.committed[lane]))
            if self._reads_again():
                cut = min(self.engine.watermark(), self.cut)
                if self.budget is not None:
                    read = {given.stream.name: self.at[lane] for given, _, lane in self._each()}
                    cut = min(cut, self.engine.replay_limit(read))
                if cut > self.engine.cut:
                    self.engine.advance(cut)
        for given, p, _ in self._each():
            self._set_idle(given, p, False)
        if self.cut > self.engine.cut:
            self.engine.advance(self.cut)
        self.again = False
        self.recall()

    def _reads_again(self) -> bool:
        """Whether a partition has not been read again as far as was committed. The others do not hold the watermark
        back."""
        for given, p, lane in self._each():
            self._set_idle(given, p, self.at[lane] >= self.committed[lane])
        return any(self.at[lane] < self.committed[lane] for lane in self.at)

    def _set_idle(self, given: OperatorInput, p: int, idle: bool) -> None:
        for partition in [p] if given.edge is None else range(given.edge.channels):
            self.engine.set_idle(given.stream.name, partition, idle)

    def recall(self) -> None:
        """Read the task's own notices again."""
        if self.feedback is None:
            return
        notices: dict[int, list[Notice]] = {}
        for edge in self.operator.outputs:
            for (topic, partition), log in self.topics.logs.items():
                if topic == edge.topic:
                    found = [decode_notice(edge.fields, raw, "a notice") for raw in log if is_notice(raw)]
                    notices[partition] = found
        self.feedback.restore(notices)

    def read(self, given: OperatorInput, partition: int, until: int) -> None:
        """Read records up to an offset."""
        lane = self._lane(given, partition)
        begin, self.at[lane] = self.at[lane], max(until, self.at[lane])
        records = self.topics.log(lane)[begin:until]
        if not records:
            return
        floor = self.floor if self.again else 0
        if given.edge is None:
            # A stream that is joined with itself is two inputs, and is read once.
            for one in {one.stream.name: one for one in self.operator.streams if one.stream.topic == lane[0]}.values():
                rows, offsets = to_batch(_declared(one), records), offsets_of(one.stream, records, begin)
                if one.position:
                    rows = Batch(rows.ts, {**rows.columns, one.position: positions(partition, offsets)})
                # A snapshot has no versions of tables' rows.
                refused = (0 if self.again else None) if one.stream.is_versioned else floor
                remembered = 0 if _within_ms(one) and self.again else None
                self.engine.push(one.stream.name, partition, rows, offsets, floor=refused, remembered=remembered)
            return
        channels = self.channels[lane]
        for offset, raw in enumerate(records, begin):
            block = channels.decode(raw, f"{lane}@{offset}")
            if offset >= self.start[lane][block.channel].offset:
                self.repeated += channels.take(self.engine, block, offset, floor, again=self.again).repeated

    def foresee(self, records: int) -> None:
        """Look at some records of the sources that have not been read yet."""
        if self.feedback is None or not self.feedback.foresees:
            return
        for given, _, lane in self._each():
            if given.edge is None:
                for one in (one for one in self.operator.streams if one.stream.topic == lane[0]):
                    seen = self.topics.log(lane)[self.at[lane] : self.at[lane] + records]
                    batch = to_batch(_declared(one), seen)
                    self.feedback.foresee(one.stream.name, batch)

    def close_sources(self) -> None:
        """Let partitions of sources that have been read to their end no longer hold the watermark back."""
        for given, p in self.lanes:
            lane = self._lane(given, p)
            if given.edge is None and self.at[lane] == len(self.topics.log(lane)):
                self.engine.close(given.stream.name, p)

    def epoch(self, end: int, *, commits: bool = True) -> None:
        """Advance, and send the results.

        Args:
            commits: False as with `--guarantee at-least-once` between two commits. Not for a task that has results of
                its own: they would come twice.
        """
        cut = min(self.engine.watermark(), end)
        if self.feedback is not None:
            cut = min(cut, max(self.feedback.limit, self.engine.cut))
        moved = cut > self.engine.cut
        late = self.send_late()
        answering = self.feedback is not None and self.feedback.has_answers()
        if not (moved or late or answering):
            return
        results = self.engine.advance(cut)
        if moved and self.feedback is not None and len(results) == 0:
            # As in the service: it may have halted only where its plan begins.
            results = self.engine.advance(max(cut, min(self.engine.watermark(), end, self.feedback.limit)))
        self.send_late()
        if self.budget is not None:
            moved = moved or self.engine.complete > self.announced
            self.announced = self.engine.complete
        if self.finish is not None:
            self.results += to_rows(self.finish(results))
        for route in self.routes if moved else ():
            batch = results
            if self.operator.is_intake:
                stream = self.operator.query.source(route.edge.aliases[0]).stream.name
                batch = results[stream] if stream in results else self.engine.nothing(stream)
            complete = None if self.budget is None else self.engine.complete
            for partition, raw, _ in route.blocks(batch, self.engine.cut, complete=complete):
                self.append(route.edge.topic, partition, raw)
                if self.feedback is not None:
                    self.feedback.written(partition, len(raw))
        if self.feedback is not None:
            for partition, raw, _ in self.feedback.answer():
                self.append(self.operator.outputs[0].topic, partition, raw)
        if commits or self.finish is not None:
            self.commit()

    def send_late(self) -> bool:
        """Send what cleanups have found; whether there is something to announce."""
        if self.budget is None:
            return False
        found = self.engine.cleaned()
        for batch in found:
            if self.finish is not None:
                self.late += to_rows(self.finish(batch))
            for route in self.routes:
                for partition, raw, _ in route.blocks(batch, self.engine.cut, complete=self.announced, late=True):
                    self.append(route.edge.topic, partition, raw)
        return bool(found) or self.engine.complete > self.announced

    def conclude(self, end: int) -> None:
        """End the plan: release all suppressed tuples, and stop. Call it only after the tasks that feed this one
        ended."""
        if self.over or self.feedback is None or self.cut < end:
            return
        if all(demand.is_complete for demand in self.feedback.consumer_ends.values()):
            self.over = True
            for partition, raw, _ in self.feedback.release():
                self.append(self.operator.outputs[0].topic, partition, raw)

    def append(self, topic: str, partition: int, raw: bytes) -> None:
        self.topics.log((topic, partition)).append(raw)

    def requests(self) -> list[FeedbackRequest]:
        """The task's current requests."""
        if self.feedback is None:
            return []
        need = min(self.cut, self.feedback.hold)
        return [
            FeedbackRequest((demand.edge.topic, self.number), demand.take_suspends(), demand.wanted, need)
            for demand in self.feedback.consumer_ends.values()
        ]

    def deliver(self, request: FeedbackRequest) -> None:
        """Receive a reader's request."""
        if self.feedback is not None:
            self.feedback.ask(*request.lane, request.suspend, request.resume, request.need)


class Chain:
    """All tasks of a plan, over rows (per stream and partition, in arrival order) that are complete from the start.

    Args:
        end: event time up to which tasks advance.
        ends: whether they end there, as where another plan takes over.
        begins: event time at which the plan takes over from another one. Its joins make what is before on demand. Until
            the caller decides on it (`decide`), tasks come as far as the caller says (`former`).

    Attributes:
        foresees: how many records of each source tasks look at before they read them, once the plan has taken over.
    """

    def __init__(
        self,
        query: Query,
        plan: Plan,
        rows: dict[str, list[list[Row]]],
        split: int | None,
        end: int = 1_000_000,
        *,
        tables: Mapping[str, Batch] | None = None,
        feedback: bool = False,
        ends: bool = False,
        budget: MemoryBudget | None = None,
        begins: int | None = None,
    ) -> None:
        self.begins, self.decided, self.former = begins, begins is None, 0
        start = None
        if begins is not None:
            start = PlanStart(lambda: begins if self.decided else END, lambda: END if self.decided else self.former)
        self.foresees = 0
        self.topics = Topics()
        counts = {name: len(parts) for name, parts in rows.items()}
        for topic, stream in {stream.topic: stream for stream in query.streams()}.items():
            for p, part in enumerate(rows[stream.name]):
                self.topics.log((topic, p)).extend(part)
        self.end = end
        self.ends = ends
        by_topic = {stream.topic: counts[stream.name] for stream in query.streams()}
        self.undelivered: list[FeedbackRequest] = []
        lineage = traces_results(plan, budget, feedback=feedback)
        self.operators = decompose(
            query, plan, by_topic, split, feedback=feedback, lineage=lineage, on_demand=begins is not None
        )
        if budget is not None:
            budget = task_budget(query, budget, feedback=feedback)
        self.tasks = [
            Task(operator, number, self.topics, counts, tables or {}, budget, feedback, start)
            for operator in self.operators
            for number in range(operator.tasks)
        ]

    def decide(self) -> None:
        """The plan has taken over."""
        self.decided = True

    def read(self, task: Task, records: int) -> None:
        """Let a task read some records of each partition."""
        for given, p in task.lanes:
            lane = task._lane(given, p)
            task.read(given, p, min(task.at[lane] + records, len(self.topics.log(lane))))

    def stand(self, task: Task, records: int) -> None:
        """Let a task read some records and commit, but not advance, as where the watermark stands still."""
        self.read(task, records)
        task.send_late()
        task.commit()

    def turn(self, task: Task, records: int, *, commits: bool = True) -> None:
        """Let a task read some records of each partition, and advance; see `Task.epoch`."""
        self.read(task, records)
        if task.over:
            return
        task.foresee(self.foresees)
        task.close_sources()
        task.epoch(self.end if self.decided else min(self.end, self.former), commits=commits)
        if self.ends:
            task.conclude(self.end)
        self.undelivered += task.requests()
        self.exchange(task)

    def exchange(self, task: Task) -> None:
        """Pass on to all tasks what one has counted for them."""
        for update in task.updates():
            for other in self.tasks:
                if other.productivity is not None:
                    other.productivity.exchange.merge(update)

    def deliver(self, request: FeedbackRequest) -> None:
        """Pass a request to all tasks."""
        for task in self.tasks:
            task.deliver(request)

    def finish(self) -> None:
        """Let tasks take turns until nothing is left to do."""
        unchanged = 0
        while unchanged <= len(self.operators):
            before = [(dict(task.at), task.engine.cut, task.engine.complete) for task in self.tasks]
            undelivered, self.undelivered = self.undelivered, []
            for request in undelivered:
                self.deliver(request)
            for task in reversed(self.tasks):
                if not task.operator.is_intake:
                    task.engine.clean()
                self.turn(task, 1_000_000)
            same = before == [(dict(task.at), task.engine.cut, task.engine.complete) for task in self.tasks]
            unchanged = unchanged + 1 if same else 0

    def results(self) -> list[list[Row]]:
        """The results of each task of the top operator."""
        return [task.results for task in self.tasks if task.finish is not None]

    def late(self) -> list[Row]:
        """Its late results."""
        return [row for task in self.tasks for row in task.late]


def merged(parts: Sequence[list[Row]]) -> list[Row]:
    """All results, in the order of their timestamps."""
    return sorted((row for part in parts for row in part), key=lambda row: row["_ts"])
