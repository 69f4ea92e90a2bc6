"""The receiving end: blocks of several senders in one partition, as an engine's input.

Each channel is a partition of the engine's stream, with a clock of its own. A watermark moves it, and so do tuples:
they ascend by ts. What a channel has passed already comes again only when something has been written twice; it is
left out, and counted. So repeated blocks change nothing.

With feedback there are notices between the blocks (`operators.distributed.feedback`), and what they say holds until
others say otherwise. Then reading begins again only where a notice says all that is in force.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from operators.data.watermark import NEVER
from operators.distributed.decompose import Input
from operators.distributed.feedback import PlacedFeedback
from operators.distributed.replay_history import History
from operators.engine.engine import Engine
from operators.engine.intake import ReplayPoint
from schemas.codecs.exchange import ExchangeBlock, decode_exchange
from schemas.codecs.notice import Notice, decode_notice, is_notice
from schemas.errors import InvariantError, StateError


@dataclass(slots=True)
class Taken:
    """What became of a block: tuples taken, and tuples left out because they had come before."""

    tuples: int = 0
    repeated: int = 0


class Channels:
    """The channels of one partition.

    Args:
        points: per channel where reading begins, and what it had reached there, NEVER where it had sent nothing.
        feedback: the task's; needed where the edge has kinds.
    """

    def __init__(
        self, given: Input, points: Sequence[ReplayPoint], feedback: PlacedFeedback | None = None
    ) -> None:
        if given.edge is None:
            raise InvariantError(f"{given.stream.name} is a source: it has no channels")
        self.edge = given.edge
        self.stream = given.stream.name
        self._fields = given.edge.fields
        self._feedback = feedback if given.edge.kinds else None
        self._clocks = [point.max_ts for point in points]
        self._histories = [History() for _ in points]
        if self._feedback is not None:
            for history, point in zip(self._histories, points, strict=True):
                history.remember(point.offset, point.max_ts, point.max_ts)

    def restore_clocks(self, engine: Engine) -> None:
        """Set the engine's clocks to where reading begins."""
        for channel, clock in enumerate(self._clocks):
            if clock != NEVER:
                engine.set_clock(self.stream, channel, clock)

    def decode(self, raw: bytes | None, place: str) -> ExchangeBlock | Notice:
        """Read a record.

        Raises:
            StateError: it is no block and no notice, or not for here.
        """
        block: ExchangeBlock | Notice
        if self._feedback is not None and is_notice(raw or b""):
            block = decode_notice(self._fields, raw or b"", place)
        else:
            block = decode_exchange(self._fields, raw or b"", place)
        if not block.channel < self.edge.channels:
            raise StateError(f"block {place} is of channel {block.channel}, but {self.edge.channels} tasks write here")
        return block

    def take(self, engine: Engine, block: ExchangeBlock | Notice, offset: int, floor: int = 0) -> Taken:
        """Feed a record.

        Args:
            offset: of its record.
            floor: tuples with a smaller ts are in the engine already (`Intake.push`).
        """
        if isinstance(block, Notice):
            return self._notice(block, offset)
        channel, batch = block.channel, block.batch
        taken = Taken()
        if block.watermark <= self._clocks[channel]:
            # A block's tuples, and so the clock while its epoch lasts, are older than its watermark.
            taken.repeated = len(batch)
            return taken
        if len(batch):
            if self._feedback is not None:
                batch = self._feedback.demands[self.stream].marked(batch, channel)
            late = engine.push(self.stream, channel, batch, np.full(len(batch), offset, np.int64), floor=floor)
            taken.repeated = int(np.count_nonzero(late))
            taken.tuples = len(batch) - taken.repeated
            before = self._clocks[channel]
            self._clocks[channel] = max(before, int(batch.ts[-1]))
            if self._feedback is None:
                self._histories[channel].remember(offset, before, self._clocks[channel])
            else:
                self._histories[channel].extend(self._clocks[channel])
        if block.last:
            self._clocks[channel] = block.watermark
            engine.set_clock(self.stream, channel, block.watermark)
        return taken

    def _notice(self, notice: Notice, offset: int) -> Taken:
        assert self._feedback is not None
        if not self._feedback.note(self.stream, notice):
            return Taken(repeated=1)
        if notice.whole:
            clock = self._clocks[notice.channel]
            self._histories[notice.channel].remember(offset, clock, clock)
        return Taken(tuples=len(notice.late))

    def point(self, channel: int, horizon_ms: int, position: int) -> ReplayPoint:
        """The latest place from which reading again shows every tuple of a channel with ts >= horizon.

        Args:
            position: the next record to be taken.
        """
        found = self._histories[channel].point(horizon_ms)
        if found is None and self._feedback is not None:
            return self._histories[channel].last
        return ReplayPoint(position, self._clocks[channel]) if found is None else found

    def forget(self, horizon_ms: int) -> None:
        """Drop the history that no horizon will ask for any more."""
        for history in self._histories:
            history.forget(horizon_ms)
