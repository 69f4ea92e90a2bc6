"""The reading end of an edge: blocks of several senders in one partition become an engine's input.

`services.task.block_lane` calls it with the records of a partition. Each channel is a partition of the engine's stream,
with a clock of its own. A watermark advances the clock, and so do tuples, since they ascend by ts. A tuple that its
channel's clock has already passed has been written twice; it is left out and counted. Repeated blocks therefore change
nothing.

With feedback there are notices between the blocks (`operators.distributed.feedback`). A notice holds until another
notice changes what it reports. Reading then restarts only at a notice that reports everything in force.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from operators.data.watermark import NEVER
from operators.distributed.feedback.feedback import DistributedFeedback
from operators.distributed.operator import OperatorInput
from operators.distributed.replay_history import ReplayHistory
from operators.engine.engine import Engine
from operators.engine.intake import ReplayPoint
from schemas.codecs.exchange import ExchangeBlock, decode_exchange
from schemas.codecs.notice import Notice, decode_notice, is_notice
from schemas.errors import InvariantError, StateError


@dataclass(slots=True)
class ReadCounts:
    """The outcome of a record.

    Attributes:
        tuples: Tuples fed to the engine.
        repeated: Tuples left out because they had been read before.
    """

    tuples: int = 0
    repeated: int = 0


class EdgeReader:
    """The channels of one partition.

    Args:
        given: The operator's input.
        points: Per channel, the offset where reading starts and the clock there; NEVER if it had sent nothing.
        feedback: The task's feedback; needed if the edge has kinds.

    Attributes:
        edge: The input's edge.
        stream: The name of the input's stream.
    """

    def __init__(
        self, given: OperatorInput, points: Sequence[ReplayPoint], feedback: DistributedFeedback | None = None
    ) -> None:
        if given.edge is None:
            raise InvariantError(f"{given.stream.name} is a source: it has no channels")
        self.edge = given.edge
        self.stream = given.stream.name
        self._fields = given.edge.fields
        self._feedback = feedback if given.edge.kinds else None
        self._in_order = given.in_order
        self._clocks = [point.max_ts for point in points]
        # Where each channel's last epoch begins, with the clock there, and whether all of it has been read.
        self._last_epochs = list(points)
        self._are_whole = [True] * len(points)
        self._reached = [point.max_ts for point in points]
        # With tuples in order: how far those have come that are in time. The clocks wait for those that are late.
        self._in_time = [point.max_ts for point in points]
        self._histories = [ReplayHistory() for _ in points]
        if self._feedback is not None:
            for history, point in zip(self._histories, points, strict=True):
                history.remember(point.offset, point.max_ts, point.max_ts)

    def restore_clocks(self, engine: Engine) -> None:
        """Set the engine's clocks to the values at which reading starts."""
        for channel, clock in enumerate(self._clocks):
            engine.set_complete(self.stream, channel, 0)  # until the channel's task says more; time begins at 0
            if clock != NEVER:
                engine.set_clock(self.stream, channel, clock)

    def decode(self, raw: bytes | None, place: str) -> ExchangeBlock | Notice:
        """Decode a record; `place` describes it in error messages.

        Raises:
            StateError: It is neither a block nor a notice, or is not for this partition.
        """
        block: ExchangeBlock | Notice
        if self._feedback is not None and is_notice(raw or b""):
            block = decode_notice(self._fields, raw or b"", place)
        else:
            block = decode_exchange(self._fields, raw or b"", place)
        if not block.channel < self.edge.channels:
            raise StateError(f"block {place} is of channel {block.channel}, but {self.edge.channels} tasks write here")
        return block

    def take(
        self, engine: Engine, block: ExchangeBlock | Notice, offset: int, floor: int = 0, *, again: bool = False
    ) -> ReadCounts:
        """Feed a record to the engine.

        Args:
            engine: The engine.
            block: The decoded record.
            offset: The record's offset.
            floor: Tuples with a smaller ts are in the engine already (`Intake.push`).
            again: An earlier incarnation of the task has taken the record.
        """
        if isinstance(block, Notice):
            return self._notice(block, offset)
        channel, batch = block.channel, block.batch
        if self._are_whole[channel]:
            self._last_epochs[channel] = ReplayPoint(offset, self._clocks[channel])
        self._are_whole[channel] = block.last
        taken = ReadCounts()
        if block.last:
            engine.set_complete(self.stream, channel, block.complete)
        if self._in_order:
            return self._take_in_order(engine, block, offset, floor)
        if block.late:
            engine.enter_late(self.stream, offset, batch, again=again)
            # As long as one of them is needed, reading must begin here. They precede their epoch's results, so some may
            # be newer than the clock.
            self._remember(channel, offset, int(batch.ts.max()))
            taken.tuples = len(batch)
            return taken
        if block.watermark <= self._clocks[channel]:
            # A block's tuples have a smaller ts than its watermark, and so has the clock during its epoch.
            taken.repeated = len(batch)
            return taken
        if len(batch):
            if self._feedback is not None:
                batch = self._feedback.consumer_ends[self.stream].with_channel(batch, channel)
            found = engine.push(self.stream, channel, batch, np.full(len(batch), offset, np.int64), floor=floor)
            taken.repeated = int(np.count_nonzero(found.late))
            taken.tuples = len(batch) - taken.repeated
            newest = int(batch.ts[-1])
            if self._feedback is None:
                self._remember(channel, offset, newest)
            self._clocks[channel] = max(self._clocks[channel], newest)
            if self._feedback is not None:
                self._histories[channel].extend(self._clocks[channel])
        if block.last:
            self._clocks[channel] = block.watermark
            engine.set_clock(self.stream, channel, block.watermark)
        return taken

    def _take_in_order(self, engine: Engine, block: ExchangeBlock, offset: int, floor: int) -> ReadCounts:
        """Feed a block to an engine whose clocks stay behind all late tuples that may follow."""
        channel, batch, clock = block.channel, block.batch, self._clocks[block.channel]
        below, read = np.searchsorted(batch.ts, [floor, clock if block.late else self._in_time[channel]]).tolist()
        taken = ReadCounts(repeated=max(0, read - below))
        taken.tuples = len(batch) - taken.repeated
        if len(batch):
            new = batch.slice(max(below, read), len(batch))
            if len(new):
                engine.insert(self.stream, channel, new)
            newest = int(batch.ts[-1])
            self._remember(channel, offset, newest)
            if not block.late:
                self._in_time[channel] = max(self._in_time[channel], newest)
        if block.last:
            self._in_time[channel] = max(self._in_time[channel], block.watermark)
            self._clocks[channel] = max(clock, block.complete)
            engine.set_clock(self.stream, channel, self._clocks[channel])
        return taken

    def _remember(self, channel: int, offset: int, newest: int) -> None:
        """Remember where to read again for tuples up to the ts `newest`; the clock is still that before the record."""
        self._reached[channel] = max(self._reached[channel], newest)
        self._histories[channel].remember(offset, self._clocks[channel], self._reached[channel])

    def _notice(self, notice: Notice, offset: int) -> ReadCounts:
        assert self._feedback is not None
        if not self._feedback.note(self.stream, notice):
            return ReadCounts(repeated=1)
        history = self._histories[notice.channel]
        if notice.whole:
            clock = self._clocks[notice.channel]
            history.remember(offset, clock, clock)
        if len(notice.late):
            # They come after their time, perhaps in a stretch without any other tuple.
            history.extend(int(notice.late.ts[-1]))
        return ReadCounts(tuples=len(notice.late))

    def point(self, channel: int, horizon_ms: int) -> ReplayPoint:
        """Return the latest point from which reading again yields every tuple of a channel with ts >= horizon.

        It is not behind the beginning of the channel's last epoch. What lies before the points of all channels is
        deleted, but from its last epoch on, the records tell the channel's task whether its last transaction has
        happened (`services.delivery.completion`).

        Args:
            channel: The channel.
            horizon_ms: The horizon.
        """
        found = self._histories[channel].point(horizon_ms)
        if found is None and self._feedback is not None:
            found = self._histories[channel].last
        last_epoch = self._last_epochs[channel]
        return last_epoch if found is None or found.offset > last_epoch.offset else found

    def forget(self, horizon_ms: int) -> None:
        """Drop the history that no later horizon will need."""
        for history in self._histories:
            history.forget(horizon_ms)
