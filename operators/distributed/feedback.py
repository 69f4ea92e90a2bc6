"""One task's part in feedback between placed operators: it speaks of its inputs, and hears of its output.

It takes the place of `operators.feedback` in the engine of a single join (`Engine(feedback=)`): the same results with
less on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from operators.data.statistics import EdgeStatistics
from operators.data.tuples import Tuples
from operators.data.watermark import END
from operators.distributed.decompose import CHANNEL, PlacedOperator
from operators.distributed.demand import Demand
from operators.distributed.withholding import NONE, Withholding
from operators.engine.engine import Engine
from operators.join.executor import Executor
from operators.join.tree import XJoinTree
from operators.kernels.hashing import U64
from schemas.codecs.notice import Notice
from schemas.columns import Batch
from schemas.errors import InvariantError
from schemas.query import Column, Type


def takes_part(operator: PlacedOperator) -> bool:
    """Whether an operator speaks, or is spoken to."""
    edges = [*operator.outputs, *(given.edge for given in operator.inputs if given.edge is not None)]
    return any(edge.kinds for edge in edges)


class PlacedFeedback:
    """Give `of` to the engine, then `attach` it.

    Args:
        operator: a join that `takes_part`.
        clock: seconds, for what detecting takes.

    Attributes:
        demands: by stream, of the inputs that it speaks of.
        supply: the other end, where it is spoken to.
    """

    def __init__(self, operator: PlacedOperator, share: int, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._operator = operator
        self._share = share
        self._clock = clock
        self.demands: dict[str, Demand] = {}
        self.supply: Withholding | None = None
        self._executor: Executor | None = None
        self._restored = False
        self._engine: Engine | None = None

    @property
    def columns_kept(self) -> tuple[Column, ...]:
        """What the operator's engine must store beside what its results need."""
        found: list[Column] = []
        for source, given in zip(self._operator.query.sources, self._operator.inputs, strict=True):
            if given.edge is not None and given.edge.marks_channels:
                found.append(Column(source.alias, CHANNEL, Type.BIGINT))
        return tuple(found)

    def of(self, executor: Executor) -> PlacedFeedback:
        """Feedback of the operator's executor."""
        if not isinstance(executor, XJoinTree) or len(executor.joins) != 1:
            raise InvariantError("a placed operator is one join")
        self._executor = executor
        ((_, join),) = executor.joins
        operator = self._operator
        if any(edge.kinds for edge in operator.outputs):
            self.supply = Withholding(operator, self._share, join, self._clock)
            self.supply.below = self._below
        for side, given in enumerate(operator.inputs):
            if given.edge is not None and given.edge.kinds:
                kept = None if self.supply is None else self.supply.kept[side]
                self.demands[given.stream.name] = Demand(operator, side, join, kept, self._clock)
        return self

    def attach(self, engine: Engine) -> None:
        """See what the engine is given, and hold what readers may ask for."""
        self._engine = engine
        engine.taken = self._observe
        if self.supply is not None:
            engine.hold = self.supply.hold

    @property
    def hold(self) -> int:
        """What expired before is needed by nobody that the task feeds."""
        return END if self.supply is None else self.supply.hold

    @property
    def limit(self) -> int:
        """How far the task may advance: beyond, it lacks what it has asked for."""
        return min((demand.limit for demand in self.demands.values()), default=END)

    # --- `operators.feedback.feedback.Feedback` ------------------------------------------------------------

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        executor, supply = self._executor, self.supply
        assert isinstance(executor, XJoinTree)
        hold = min(now, self.hold)
        ((_, join),) = executor.joins
        admitted = dict(epoch)
        by_side = {demand.side: demand for demand in self.demands.values()}
        for side, (alias,) in enumerate(join.match.sides):
            tuples = epoch.get(alias)
            if tuples is None or len(tuples) == 0:
                continue
            if side in by_side:
                with by_side[side].detecting:
                    by_side[side].detect(tuples, now, hold)
            if supply is not None:
                with supply.detecting:
                    admitted[alias] = supply.admit(side, tuples)
        return executor.process(admitted, hold)

    def settle(self, now: int) -> None:
        """Nothing: a placed operator's plan does not change."""

    def kept_back(self) -> int:
        """Tuples kept back now."""
        return 0 if self.supply is None else sum(len(kept) for kept in self.supply.kept)

    def size_bytes(self) -> int:
        """Bytes of all that feedback keeps."""
        demands = sum(demand.size_bytes() for demand in self.demands.values())
        return demands + (0 if self.supply is None else self.supply.size_bytes())

    def edges(self) -> tuple[EdgeStatistics, ...]:
        """What the task did at its ends of edges; the ends of one edge add up."""
        found: list[EdgeStatistics] = []
        for demand in self.demands.values():
            found.append(
                EdgeStatistics(
                    consumer=demand.edge.consumer,
                    producer=demand.edge.producer,
                    watching=demand.watching,
                    suspend=demand.suspends,
                    resume=demand.resumes,
                    demanded=demand.came,
                    late=demand.late,
                    checked=demand.checked,
                    detecting_s=demand.detecting.seconds,
                )
            )
        if self.supply is not None:
            (edge,) = self._operator.outputs
            suppressed = max(0, round(self.supply.suppressed) - self.supply.late)
            found.append(
                EdgeStatistics(
                    consumer=edge.consumer,
                    producer=edge.producer,
                    watching=False,
                    kept_back=self.kept_back(),
                    returned=self.supply.returned,
                    checked=self.supply.checked,
                    suppressed=suppressed,
                    saved_bytes=suppressed * 8 * (len(edge.fields) + 1),
                    detecting_s=self.supply.detecting.seconds,
                )
            )
        return tuple(found)

    # --- Input ------------------------------------------------------------------------------------------------

    def _observe(self, stream: str, batch: Batch) -> None:
        for demand in self.demands.values():
            if demand.observed == stream and len(batch):
                with demand.detecting:
                    demand.observe(batch)

    def note(self, stream: str, notice: Notice) -> bool:
        """A notice of a channel has been read; False where it had been before."""
        assert self._engine is not None
        demand = self.demands[stream]
        entering = demand.note(self._engine, notice, min(self.hold, self._engine.cut))
        if entering is None:
            return False
        if self.supply is not None:
            self.supply.enter_late(demand.side, entering)
            if self._restored:
                self._check(demand, notice.suspended)
        else:
            assert isinstance(self._executor, XJoinTree)
            ((_, join),) = self._executor.joins
            join.enter_late(demand.side, entering, self._engine.cut)
        return True

    def _check(self, demand: Demand, signatures: U64) -> None:
        """What is kept back for those further up, though the task has not told them so, must come at once: what it
        sends lacks nothing else."""
        assert self.supply is not None
        assert self._engine is not None
        demand.want(self.supply.missing(demand.passed_on(signatures)), self._engine.cut)

    # --- Output -----------------------------------------------------------------------------------------------

    def restore(self, notices: Mapping[int, Iterable[Notice]]) -> None:
        """All input of before has been read: keep back again what the task's own last notices to its partitions say."""
        self._restored = True
        if self.supply is None or self._engine is None:
            return
        for partition, said in notices.items():
            self.supply.restore(self._engine, partition, said)
        for demand in self.demands.values():
            self._check(demand, demand.withheld())

    def release(self) -> list[tuple[int, bytes, int]]:
        """Keep nothing back any more: the notices that say so."""
        assert self._engine is not None
        return [] if self.supply is None else self.supply.release(self._engine)

    def written(self, partition: int, size: int) -> None:
        """A block of so many bytes goes to a partition."""
        if self.supply is not None:
            self.supply.written(partition, size)

    def ask(self, topic: str, partition: int, suspend: U64, resume: U64, need: int) -> None:
        """What a reader says, or one further up, of a partition of a topic; see `Withholding.ask`."""
        if self.supply is None:
            return
        (edge,) = self._operator.outputs
        if topic == edge.topic:
            self.supply.ask(partition, suspend, resume, need)
        elif topic in edge.above:
            self.supply.overhear(partition, resume)

    def presses(self) -> bool:
        """True when a reader waits for something that can be given. What it needs in turn is asked for, else."""
        return self.supply is not None and self.supply.resuming and self._ready()

    def owes(self) -> bool:
        """True when a reader is to be told something, and can be."""
        return self.supply is not None and self.supply.owes() and self._ready()

    def answer(self) -> list[tuple[int, bytes, int]]:
        """The notices of an epoch, to be written behind its blocks; see `Withholding.answer`."""
        supply, engine = self.supply, self._engine
        if supply is None or engine is None:
            return []
        found = supply.answer(engine, self._ready())
        self._pass_on()
        engine.hold = supply.hold
        return found

    def _ready(self) -> bool:
        """Ask the task's own producers for what its readers have asked for; True when nothing is missing."""
        assert self.supply is not None
        assert self._engine is not None
        wanted, cut = self.supply.wanted(), self._engine.cut
        for demand in self.demands.values():
            demand.want(wanted, END)
        return not any(len(demand.withholds(wanted)) or demand.limit <= cut for demand in self.demands.values())

    def _below(self) -> U64:
        found = [demand.passed_on(demand.withheld()) for demand in self.demands.values()]
        return np.concatenate(found) if found else NONE

    def _pass_on(self) -> None:
        """Have those below keep back what the task would keep back of their results."""
        assert self.supply is not None
        assert self._engine is not None
        by_side = {demand.side: demand for demand in self.demands.values()}
        wanted = self.supply.wanted()
        for side, kind, signatures in self.supply.take_fresh():
            demand = by_side.get(side)
            if demand is not None and demand.has(kind):
                # Others were let in for a moment: what comes back before its answer is given.
                useless = np.concatenate([wanted, self.supply.missing(signatures)])
                signatures = signatures[~np.isin(signatures, useless)]
                demand.suspend(signatures, self._engine.cut + demand.life)
