"""The receiving end: blocks of several senders in one partition, as an engine's input.

Each channel is a partition of the engine's stream, with a clock of its own. A watermark moves it, and so do tuples:
they ascend by ts. What a channel has passed already comes again only when something has been written twice; it is
left out, and counted. So repeated blocks change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from operators.engine import Engine
from operators.intake import ReplayPoint
from operators.placed.decompose import Input
from operators.placed.history import History
from operators.watermark import NEVER
from schemas.codecs.exchange import ExchangeBlock, decode_exchange
from schemas.errors import InvariantError, StateError


@dataclass(slots=True)
class Taken:
    """What became of a block: tuples taken, and tuples left out because they had come before."""

    tuples: int = 0
    repeated: int = 0


class Channels:
    """The channels of one partition.

    Args:
        clocks: what each channel had reached where reading begins, NEVER where it had sent nothing.
    """

    def __init__(self, given: Input, clocks: Sequence[int]) -> None:
        if given.edge is None:
            raise InvariantError(f"{given.stream.name} is a source: it has no channels")
        self.edge = given.edge
        self.stream = given.stream.name
        self._fields = given.edge.fields
        self._clocks = list(clocks)
        self._histories = [History() for _ in clocks]

    def restore_clocks(self, engine: Engine) -> None:
        """Set the engine's clocks to where reading begins."""
        for channel, clock in enumerate(self._clocks):
            if clock != NEVER:
                engine.set_clock(self.stream, channel, clock)

    def decode(self, raw: bytes | None, place: str) -> ExchangeBlock:
        """Read a block.

        Raises:
            StateError: it is none, or not for here.
        """
        block = decode_exchange(self._fields, raw or b"", place)
        if not block.channel < self.edge.channels:
            raise StateError(f"block {place} is of channel {block.channel}, but {self.edge.channels} tasks write here")
        return block

    def take(self, engine: Engine, block: ExchangeBlock, offset: int, floor: int = 0) -> Taken:
        """Feed a block.

        Args:
            offset: of its record.
            floor: tuples with a smaller ts are in the engine already (`Intake.push`).
        """
        channel, batch = block.channel, block.batch
        taken = Taken()
        if block.watermark <= self._clocks[channel]:
            # A block's tuples, and so the clock while its epoch lasts, are older than its watermark.
            taken.repeated = len(batch)
            return taken
        if len(batch):
            late = engine.push(self.stream, channel, batch, np.full(len(batch), offset, np.int64), floor=floor)
            taken.repeated = int(np.count_nonzero(late))
            taken.tuples = len(batch) - taken.repeated
            before = self._clocks[channel]
            self._clocks[channel] = max(before, int(batch.ts[-1]))
            self._histories[channel].remember(offset, before, self._clocks[channel])
        if block.last:
            self._clocks[channel] = block.watermark
            engine.set_clock(self.stream, channel, block.watermark)
        return taken

    def point(self, channel: int, horizon_ms: int, position: int) -> ReplayPoint:
        """The latest place from which reading again shows every tuple of a channel with ts >= horizon.

        Args:
            position: the next record to be taken.
        """
        found = self._histories[channel].point(horizon_ms)
        return ReplayPoint(position, self._clocks[channel]) if found is None else found

    def forget(self, horizon_ms: int) -> None:
        """Drop the history that no horizon will ask for any more."""
        for history in self._histories:
            history.forget(horizon_ms)
