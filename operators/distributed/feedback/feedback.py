"""One task's part in feedback between distributed operators: consumer of its inputs, producer of its output.

It takes the place of `operators.feedback` in the engine of a single join (`Engine(feedback=)`): the same results, with
fewer tuples on the edges. `services.task.feedback` carries its requests.

It also makes results on demand only, where the plan allows that (`operators.distributed.feedback.on_demand`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from operators.data.statistics import EdgeStatistics
from operators.data.tuples import Tuples
from operators.data.watermark import END, NEVER
from operators.distributed.feedback.consumer import ConsumerFeedback
from operators.distributed.feedback.kinds import are_of_kinds
from operators.distributed.feedback.on_demand import PlanStart
from operators.distributed.feedback.producer import NONE, ProducerFeedback
from operators.distributed.operator import CHANNEL, DistributedOperator
from operators.engine.engine import Engine
from operators.join.executor import Executor
from operators.join.tree import XJoinTree
from operators.kernels.hashing import U64
from schemas.codecs.notice import Notice
from schemas.columns import Batch
from schemas.errors import InvariantError
from schemas.query import ColumnRef, Type


def has_feedback(operator: DistributedOperator) -> bool:
    """Return whether an edge of an operator has feedback."""
    edges = [*operator.outputs, *(given.edge for given in operator.inputs if given.edge is not None)]
    return any(edge.kinds for edge in edges)


class DistributedFeedback:
    """The feedback of one task. Pass `of` to the engine.

    Args:
        operator: A join that `has_feedback`.
        share: The task's number among its operator's tasks.
        clock: Returns seconds, to measure how long detection takes.
        suspends: Whether the task suspends what it does not demand.
        start: When the plan began, where joins make earlier results on demand; else None.

    Attributes:
        consumer_ends: By stream, the consumer's end of each input with feedback.
        producer_end: The producer's end of the output; None if the output has no feedback.
    """

    def __init__(
        self,
        operator: DistributedOperator,
        share: int,
        clock: Callable[[], float] = lambda: 0.0,
        *,
        suspends: bool = True,
        start: PlanStart | None = None,
    ) -> None:
        self._suspends = suspends
        inputs = [given.edge for given in operator.inputs if given.edge is not None]
        on_demand = any(edge.on_demand for edge in operator.outputs or inputs)
        self._start = start if on_demand else None
        self._former = NEVER
        self._considers_all = self._has_considered_all = False
        self._examined = NONE
        self._pairs: tuple[U64, U64] = NONE, NONE
        self._operator = operator
        self._share = share
        self._clock = clock
        self.consumer_ends: dict[str, ConsumerFeedback] = {}
        self.producer_end: ProducerFeedback | None = None
        self._executor: Executor | None = None
        self._restored = False
        self._engine: Engine | None = None

    @property
    def columns_kept(self) -> tuple[ColumnRef, ...]:
        """The columns that the operator's engine must store besides those that its results need."""
        found: list[ColumnRef] = []
        for source, given in zip(self._operator.query.sources, self._operator.inputs, strict=True):
            if given.edge is not None and given.edge.marks_channels:
                found.append(ColumnRef(source.alias, CHANNEL, Type.BIGINT))
        return tuple(found)

    def of(self, executor: Executor, engine: Engine) -> DistributedFeedback:
        """Return the feedback of the operator's engine, which is this object.

        It observes what the engine reads, and keeps in its states what readers may request.
        """
        if not isinstance(executor, XJoinTree) or len(executor.joins) != 1:
            raise InvariantError("a distributed operator is one join")
        self._executor = executor
        ((_, join),) = executor.joins
        operator = self._operator
        if any(edge.kinds for edge in operator.outputs):
            self.producer_end = ProducerFeedback(operator, self._share, join, self._clock)
            self.producer_end.below = self._below
        for side, given in enumerate(operator.inputs):
            if given.edge is not None and given.edge.kinds:
                kept = None if self.producer_end is None else self.producer_end.kept[side]
                self.consumer_ends[given.stream.name] = ConsumerFeedback(
                    operator,
                    side,
                    join,
                    kept,
                    self._clock,
                    suspends=self._suspends,
                    start=self._start,
                    progress=lambda: min(engine.cut, self.hold),
                )
        self._engine = engine
        engine.on_push = self._observe
        if self.producer_end is not None:
            engine.hold = self.producer_end.hold
            engine.kept_back = self.producer_end.kept
        return self

    @property
    def hold(self) -> int:
        """The time before which an expired tuple is needed by no reader of the task."""
        return END if self.producer_end is None else self.producer_end.hold

    @property
    def limit(self) -> int:
        """How far the task may advance: beyond, its input lacks what it has requested back. It halts where the plan
        begins."""
        limit = min((demand.limit for demand in self.consumer_ends.values()), default=END)
        begin = self._not_begun
        return limit if begin is None else min(limit, begin)

    @property
    def _not_begun(self) -> int | None:
        """When the plan begins, if results at the task's cut are made on demand; None if they are not."""
        if self._start is None:
            return None
        assert self._engine is not None
        begin = self._start.begin()
        return begin if self._engine.cut < begin else None

    # --- `operators.feedback.feedback.Feedback` ------------------------------------------------------------

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        executor, producer_end = self._executor, self.producer_end
        assert isinstance(executor, XJoinTree)
        hold = min(now, self.hold)
        ((_, join),) = executor.joins
        admitted = dict(epoch)
        by_side = {demand.side: demand for demand in self.consumer_ends.values()}
        for side, (alias,) in enumerate(join.match.sides):
            tuples = epoch.get(alias)
            if tuples is None or len(tuples) == 0:
                continue
            if side in by_side:
                with by_side[side].detecting:
                    by_side[side].detect(tuples, now, hold)
            if producer_end is not None:
                with producer_end.detecting:
                    admitted[alias] = producer_end.admit(side, tuples)
        if self._start is None or now >= self._start.begin() or (producer_end is not None and producer_end.is_complete):
            return executor.process(admitted, hold)
        left, right = (admitted.get(alias) or Tuples.empty((alias,)) for (alias,) in join.match.sides)
        join.enter(left, right, hold)
        return Tuples.empty(join.aliases)

    def release_all(self, now: int) -> None:
        """Do nothing: a distributed operator's plan does not change."""

    def kept_back(self) -> int:
        """The number of tuples that are kept back now."""
        return 0 if self.producer_end is None else sum(len(kept) for kept in self.producer_end.kept)

    def size_bytes(self) -> int:
        """Bytes of all signatures and blacklists."""
        demands = sum(demand.size_bytes() for demand in self.consumer_ends.values())
        return demands + (0 if self.producer_end is None else self.producer_end.size_bytes())

    def edges(self) -> tuple[EdgeStatistics, ...]:
        """The statistics of the task's ends of edges; those of both ends of an edge add up."""
        found: list[EdgeStatistics] = []
        for demand in self.consumer_ends.values():
            found.append(
                EdgeStatistics(
                    consumer=demand.edge.consumer,
                    producer=demand.edge.producer,
                    watching=demand.watching,
                    suspend=demand.suspends,
                    resume=demand.resumes,
                    demanded=demand.arrived,
                    late=demand.late,
                    checked=demand.checked,
                    detecting_s=demand.detecting.seconds,
                )
            )
        if self.producer_end is not None:
            (edge,) = self._operator.outputs
            suppressed = max(0, round(self.producer_end.suppressed) - self.producer_end.late)
            found.append(
                EdgeStatistics(
                    consumer=edge.consumer,
                    producer=edge.producer,
                    watching=False,
                    kept_back=self.kept_back(),
                    returned=self.producer_end.returned,
                    checked=self.producer_end.checked,
                    suppressed=suppressed,
                    saved_bytes=suppressed * 8 * (len(edge.fields) + 1),
                    detecting_s=self.producer_end.detecting.seconds,
                )
            )
        return tuple(found)

    # --- Input ------------------------------------------------------------------------------------------------

    @property
    def foresees(self) -> bool:
        """Whether it is known which tuples that are not read yet may need results on demand."""
        return self._start is not None and self._start.begin() < END

    def foresee(self, stream: str, batch: Batch) -> None:
        """Request what tuples will need that will be read as soon as the former plan is over."""
        for demand in self.consumer_ends.values():
            if demand.observed == stream and len(batch):
                demand.foresee(batch)

    def _observe(self, stream: str, batch: Batch) -> None:
        for demand in self.consumer_ends.values():
            if demand.observed == stream and len(batch):
                with demand.detecting:
                    demand.observe(batch)

    def note(self, stream: str, notice: Notice) -> bool:
        """Apply a notice of a channel that has been read. Return False if it has been read before."""
        assert self._engine is not None
        demand = self.consumer_ends[stream]
        entering = demand.note(self._engine, notice, min(self.hold, self._engine.cut))
        if entering is None:
            return False
        if self.producer_end is not None:
            self.producer_end.enter_late(demand.side, entering)
            if self._restored:
                self._check(demand, notice.suspended)
        else:
            assert isinstance(self._executor, XJoinTree)
            ((_, join),) = self._executor.joins
            join.enter_late(demand.side, entering, self._engine.cut)
        return True

    def _check(self, demand: ConsumerFeedback, signatures: U64) -> None:
        """Request at once the signatures that the task's inputs suspend for readers further up although its own output
        does not: the task's results must be complete but for the signatures that its notices suspend."""
        assert self.producer_end is not None
        assert self._engine is not None
        demand.request_resume(self.producer_end.missing(demand.passed_on(signatures)), self._engine.cut)

    # --- Output -----------------------------------------------------------------------------------------------

    def restore(self, notices: Mapping[int, Iterable[Notice]]) -> None:
        """Keep back again what the task's own last notices to its partitions suspend. All earlier input must have been
        read."""
        self._restored = True
        if self.producer_end is None or self._engine is None:
            return
        for partition, last in notices.items():
            self.producer_end.restore(self._engine, partition, last)
        for demand in self.consumer_ends.values():
            self._check(demand, demand.withheld())

    def release(self) -> list[tuple[int, bytes, int]]:
        """Stop keeping tuples back, and return the notices that report it."""
        assert self._engine is not None
        if self.producer_end is None:
            return []
        complete = False
        if self._start is not None:
            (edge,) = self._operator.outputs
            progress = min(self._engine.cut, self.hold)
            complete = progress - self._start.begin() < min(edge.lifetimes)
        return self.producer_end.release(self._engine, complete=complete)

    def written(self, partition: int, size: int) -> None:
        """Count a block of `size` bytes that goes to a partition."""
        if self.producer_end is not None:
            self.producer_end.written(partition, size)

    def ask(self, topic: str, partition: int, suspend: U64, resume: U64, need: int) -> None:
        """Process a request of a reader, or of a reader further up, about a partition of a topic; see
        `ProducerFeedback.ask`."""
        if self.producer_end is None:
            return
        (edge,) = self._operator.outputs
        if topic == edge.topic:
            self.producer_end.ask(partition, suspend, resume, need)
        elif topic in edge.above:
            self.producer_end.relay_resume(partition, resume)

    def can_resume(self) -> bool:
        """Return whether a reader waits for something that the task can resume. Otherwise request what the task lacks
        for it."""
        return self.producer_end is not None and self.producer_end.resuming and len(self._ready()) > 0

    def has_answers(self) -> bool:
        """Return whether the task can answer a reader now."""
        if self.producer_end is None:
            return False
        if self._check_caught_up():
            self._considers_all = True
            return True
        if not self.producer_end.has_answers():
            return False
        return len(self._ready()) > 0 if self.producer_end.resuming else not self._is_incomplete

    def answer(self) -> list[tuple[int, bytes, int]]:
        """Return the notices of an epoch, to be written behind its blocks; see `ProducerFeedback.answer`."""
        producer_end, engine = self.producer_end, self._engine
        if producer_end is None or engine is None:
            return []
        found = self._all_if_few()
        found += producer_end.answer(engine, self._ready())
        self._pass_on()
        engine.hold = producer_end.hold
        return found

    def _check_caught_up(self) -> bool:
        """Read how far the former plan is, for the next call. Return whether it is time to consider sending all results
        on demand: the task has come as far as the former plan was at the last call, and nothing is on demand in its own
        inputs."""
        assert self._engine is not None
        assert self.producer_end is not None
        if self._start is None or self._has_considered_all or self.producer_end.is_complete:
            return False
        former, self._former = min(self._former, self._start.begin()), self._start.former()
        return NEVER < former <= self._engine.cut and not any(end.has_on_demand for end in self.consumer_ends.values())

    def _all_if_few(self) -> list[tuple[int, bytes, int]]:
        """Return notices with all results on demand, if it is time and they are few."""
        producer_end, engine = self.producer_end, self._engine
        assert engine is not None
        assert producer_end is not None
        if not self._considers_all or self._has_considered_all or self._is_incomplete:
            return []
        self._has_considered_all = True
        return producer_end.send_all(engine) if producer_end.are_few() else []

    @property
    def _is_incomplete(self) -> bool:
        """Whether tuples are missing that the task needs for results before its cut."""
        assert self._engine is not None
        cut = self._engine.cut
        return any(demand.limit < cut or demand.incomplete_from <= cut for demand in self.consumer_ends.values())

    def _ready(self) -> U64:
        """Return those signatures requested by readers for which nothing is missing; request what is missing for the
        others."""
        assert self.producer_end is not None
        wanted = self.producer_end.wanted()
        for demand in self.consumer_ends.values():
            demand.request_resume(wanted, END)
        if self._not_begun is not None:
            (edge,) = self._operator.outputs
            wanted = wanted[~are_of_kinds(wanted, edge.on_demand)]
        if len(wanted) == 0 or self._is_incomplete:
            return NONE
        for demand in self.consumer_ends.values():
            wanted = wanted[~np.isin(wanted, demand.withholds(wanted))]
        return self._with_partners(wanted)

    def _with_partners(self, wanted: U64) -> U64:
        """Return those of some signatures whose tuples in one input have all that they match in the other. Request what
        they lack of results on demand there."""
        ends = [demand for demand in self.consumer_ends.values() if demand.has_on_demand]
        if not ends or self._start is None:
            return wanted
        (demand,) = ends
        assert self.producer_end is not None
        words, partners = self._pairs
        still, new = np.isin(words, wanted), wanted[~np.isin(wanted, self._examined)]
        found, matched = self.producer_end.partners(1 - demand.side, new, self._start.first_new, demand.partners)
        demand.request_resume(matched, END)
        words, partners = np.concatenate([words[still], found]), np.concatenate([partners[still], matched])
        self._examined, self._pairs = wanted, (words, partners)
        lacking = words[np.isin(partners, demand.withholds(partners))]
        return wanted[~np.isin(wanted, lacking)]

    def _below(self) -> U64:
        found = [demand.passed_on(demand.withheld()) for demand in self.consumer_ends.values()]
        return np.concatenate(found) if found else NONE

    def _pass_on(self) -> None:
        """Request that the task's producers suspend what the task itself keeps back of their results."""
        assert self.producer_end is not None
        assert self._engine is not None
        by_side = {demand.side: demand for demand in self.consumer_ends.values()}
        wanted = self.producer_end.wanted()
        for side, kind, signatures in self.producer_end.take_newly_suspended():
            demand = by_side.get(side)
            if demand is not None and demand.has(kind):
                # Leave out signatures resumed in between: they are kept back only until the answer is written.
                useless = np.concatenate([wanted, self.producer_end.missing(signatures)])
                signatures = signatures[~np.isin(signatures, useless)]
                demand.suspend(signatures, self._engine.cut + demand.life)
