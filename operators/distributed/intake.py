"""The engine of an intake: it reads sources in their order, for the operators that join them.

An intake decides which tuples are late, and sends each stream's tuples, once, to all operators that read it. It is an
operator of its own where several operators read a stream, or split it between their tasks; where streams share a topic,
since a partition is read by one task; where tuples are looked up in tables in topics, which it then does
(`operators.engine.lookups`); and where ROWS windows count tuples, since only a task that reads all streams knows how
many tuples precede another. Then each tuple carries its horizons (`operators.distributed.rows_windows`).

Numbers go on where they were at the last commit: `numbers` is committed with the cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from operators.data.statistics import FILES, EngineStatistics, SourceStatistics, SpillStatistics
from operators.data.tuples import FOREVER
from operators.data.watermark import END
from operators.distributed.rows_windows import counted_windows
from operators.engine.intake import Intake, IntakeMethods, LateRows
from operators.engine.lookups import TableLookups
from operators.spill.spilling import MemoryBudget
from operators.state.sources import HORIZON, horizons_of, life_of
from schemas.columns import I64, Batch, Column
from schemas.errors import InvariantError
from schemas.query import ColumnRef, Query, Type


class SourceIntake(IntakeMethods):
    """The engine of one task of an intake.

    Args:
        query: its sources are those to be read. A ROWS window asks for the tuples of its stream to be counted; the
            others say how long a restart must read back. Its outputs are columns of the sources, or looked up.
        partitions: partition numbers per stream name, and per table that tuples are looked up in.
        cut: that of the last commit; what a restart reads again is before it.
        numbers: per stream that is counted, how many tuples were numbered before `cut`.
        clock: seconds, for reported times of processing.
        former: in a handover, the event time that the former plan's task had reached; 0 otherwise. What ends before it
            is in no result.
        budget: of this and other tasks. Tables and what is remembered of deduplicated streams count against it.

    Attributes:
        hold, load: as of `operators.engine.engine.Engine`; both without effect.
        numbers: per stream that is counted, how many tuples have been numbered.
        spills: False: no result comes late because of an intake.
    """

    spills = False

    def __init__(
        self,
        query: Query,
        partitions: Mapping[str, Sequence[int]],
        cut: int = 0,
        numbers: Sequence[int] = (),
        clock: Callable[[], float] = lambda: 0.0,
        former: int = 0,
        budget: MemoryBudget | None = None,
    ) -> None:
        self._intake = Intake(query.streams(), partitions)
        self.hold = END
        self.load = 0.0
        self._clock = clock
        self._former = former
        self._busy_s = 0.0
        self._counted = counted_windows(query)
        if cut and len(numbers) != len(self._counted):
            raise InvariantError(f"the last commit numbers {len(numbers)} of the streams {', '.join(self._counted)}")
        self.numbers: tuple[int, ...] = (0,) * len(self._counted)
        self._resumed = cut, tuple(numbers)
        self._lookups = TableLookups([query])
        self._ordinals = {stream.name: number for number, stream in enumerate(query.joined_streams())}
        self._lives: dict[str, int] = {}
        for source in query.sources:
            if source.window.kind != "ROWS":
                name = source.stream.name
                self._lives[name] = max(life_of(source), self._lives.get(name, 0))
        # The times of the newest tuples of each counted stream, and their number.
        self._newest: dict[str, deque[I64]] = {name: deque() for name in self._counted}
        self._known = dict.fromkeys(self._counted, 0)
        self._outputs: dict[str, dict[str, ColumnRef]] = {name: {} for name in self._ordinals}
        for output in query.outputs:
            if not isinstance(output.expr, ColumnRef):
                raise InvariantError(f"an intake computes nothing: {output.expr}")
            self._outputs[query.source(output.expr.alias).stream.name][output.name] = output.expr
        self._input_tuples = {stream.name: 0 for stream in query.streams()}
        self._results = 0
        self._peak_bytes = 0
        self._budget = budget
        self._share = None if budget is None or budget.shared is None else budget.shared.enter()

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
        self._input_tuples[stream] += len(batch)
        return self._intake.push(stream, partition, batch, offsets, floor, remembered)

    def advance(self, cut: int | None = None) -> dict[str, Batch]:
        """Process all tuples with ts < cut (default: the watermark).

        Returns:
            By stream, its tuples in their order, with the columns that travel. Streams without tuples are absent.
        """
        began = self._clock()
        cut = self.watermark() if cut is None else cut
        resumed_at, numbers = self._resumed
        if self.cut < resumed_at < cut:
            raise InvariantError(f"the last commit is of {resumed_at}: a restart must stop there, not at {cut}")
        if cut <= self.cut:
            return {}
        batches = self._lookups.look_up(self._intake.take(cut))
        if self._share is not None:
            self._share.hold(self._used_bytes())
        if self._counted:
            self._number(batches)
        if cut == resumed_at:
            self.numbers = numbers
        for stream in self._ordinals:
            self._intake.forget(stream, self.replay_horizon(stream))
        found = {name: self._travelling(name, batch) for name, batch in batches.items()}
        self._results += sum(map(len, found.values()))
        self._busy_s += self._clock() - began
        return found

    def take_versions(self) -> int:
        """Apply the versions of tables' rows that have been read and are older than every tuple that can still be in a
        result; return how many. Outside of a handover there are none."""
        if self._counted:
            return 0  # a tuple in a ROWS window may be of any age
        return self._lookups.take_versions(self._intake, max(self._former - max(self._lives.values()), 0))

    def _number(self, batches: dict[str, Batch]) -> None:
        """Add the columns with horizons to tuples that follow in the order."""
        newest = {name: count - 1 for name, count in zip(self._counted, self.numbers, strict=True)}
        columns = horizons_of(batches, newest, self._ordinals)
        for name, batch in batches.items():
            own = dict(columns[name])
            if name in newest:
                numbers = newest[name] + np.arange(1, len(batch) + 1, dtype=np.int64)
                own[HORIZON + name] = Column(Type.BIGINT, numbers)
                self._remember(name, batch.ts)
            batches[name] = Batch(batch.ts, {**batch.columns, **own})
        taken = (len(batches[name]) if name in batches else 0 for name in self._counted)
        self.numbers = tuple(count + more for count, more in zip(self.numbers, taken, strict=True))

    def _remember(self, stream: str, ts: I64) -> None:
        """Keep the times of the newest tuples of a counted stream: as many as its largest window has. The first of
        these is in the first array."""
        newest, size = self._newest[stream], self._counted[stream]
        newest.append(ts[-size:])
        known = self._known[stream] + len(newest[-1])
        while known - len(newest[0]) >= size:
            known -= len(newest.popleft())
        self._known[stream] = known

    def _travelling(self, stream: str, batch: Batch) -> Batch:
        """Return the columns that travel under the names of the outputs."""
        columns = {name: batch.columns[column.name] for name, column in self._outputs[stream].items()}
        return Batch(batch.ts, columns)

    def nothing(self, stream: str) -> Batch:
        """Return no tuples of a stream, with the columns that travel."""
        columns = {name: Column.from_values([], column.type) for name, column in self._outputs[stream].items()}
        return Batch(np.zeros(0, np.int64), columns)

    def horizon(self, stream: str) -> int:
        """Return the smallest ts of tuples of the stream that a restart needs: for the operators of another plan, and
        to count the tuples in ROWS windows; 0 for a table that tuples are looked up in."""
        if stream in self._lookups:
            return 0
        life = self._lives.get(stream, 0)
        bound = 0 if life >= FOREVER else max(self.cut - life, 0)
        newest, size = self._newest.get(stream), self._counted.get(stream, 0)
        if newest:
            bound = min(bound, int(newest[0][max(self._known[stream] - size, 0)]))
        return bound

    def _used_bytes(self) -> int:
        return self._lookups.used_bytes() + self._intake.repeats_bytes()

    def leave_budget(self) -> None:
        """The engine is not used any more: what it has no longer counts against a budget that it shares."""
        if self._share is not None:
            self._share.leave()

    @property
    def complete(self) -> int:
        """The event time before which no results are pending: `cut`."""
        return self.cut

    def cleaned(self) -> list[Batch]:
        """Return no late results."""
        return []

    def statistics(self) -> EngineStatistics:
        """Return the numbers of tuples taken and sent, and the bytes of tables' rows and of what finds repeats."""
        taken = self._input_tuples
        size = self._lookups.size_bytes() + self._intake.repeats_bytes()
        self._peak_bytes = max(self._peak_bytes, size)
        return EngineStatistics(
            input_tuples=sum(taken.values()),
            results=self._results,
            late=self._intake.late_tuples,
            comparisons=0,
            intermediate_results=0,
            state_tuples=0,
            state_bytes=size,
            peak_state_tuples=0,
            peak_state_bytes=self._peak_bytes,
            pending_tuples=self.pending_tuples,
            operators=(),
            cut=self.cut,
            busy_s=self._busy_s,
            sources=tuple(SourceStatistics(name, name, count, count, 0, 0.0) for name, count in taken.items()),
            deduplicated=self._intake.repeats,
            spill=self._spill_statistics(),
        )

    def _spill_statistics(self) -> SpillStatistics | None:
        if self._budget is None:
            return None
        strategy, used = FILES if self._budget.in_time else self._budget.strategy, self._used_bytes()
        return SpillStatistics(strategy, self._budget.limit_bytes, used_bytes=used, fixed_bytes=used)
