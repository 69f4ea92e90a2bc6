"""A placed task's part in feedback as Kafka carries it: requests through the feedback topic, answers in band.

What a task waits for it asks for at once, and again every RESEND_S, until the answer has come in band: requests may get
lost with the worker that heard them. How far it has come it says as often, since what it may still ask for is kept for
it. What it does not demand is not urgent, and said of SUSPEND_S together.

Who hears that a reader waits asks those below at once for what it lacks itself, and begins an epoch when it can answer
(`attend`); those below listen to the readers further up, too, and need not wait for it. The reader goes on when it has
the answer. So a result waits for a trip through Kafka per join below, not for their epochs.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from operators.data.watermark import END, NEVER
from operators.distributed.demand import Demand
from operators.distributed.feedback import PlacedFeedback
from operators.distributed.withholding import NONE
from operators.kernels.hashing import U64
from schemas.codecs.notice import Notice
from schemas.messages.control import Demanded
from services.control.feedback_log import FeedbackLog, Inbox
from services.delivery.epoch_output import BlockRecord
from services.placement.distributed import Part
from services.process.logs import Log
from services.process.metrics import TaskMetrics

RESEND_S = 1.0

SUSPEND_S = 0.2
"""What a task does not demand it says at most so often, unless it asks for something, too."""

PATIENCE_S = 30.0
"""Waiting for an answer longer than this is told once."""

MOST_SIGNATURES = 32_768
"""Signatures in one message: some 350 KB."""


class TaskFeedback:
    """One life of one task; used by its thread alone.

    Args:
        notices: the task's own last notices, per partition that it writes to.
        committed_cut: where the task's commits stand.
    """

    def __init__(
        self,
        part: Part,
        link: FeedbackLog,
        notices: Mapping[int, Sequence[Notice]],
        committed_cut: int,
        metrics: TaskMetrics,
        log: Log,
    ) -> None:
        self.placed = PlacedFeedback(part.operator, part.share, time.monotonic)
        self._share = part.share
        self._link = link
        self._notices = notices
        self._committed_cut = committed_cut
        self._metrics = metrics
        self._log = log
        self._waiting_since: float | None = None
        self._told = False
        self._edge = part.operator.outputs[0] if part.operator.outputs else None
        self._inbox: Inbox | None = None
        self._asked: dict[str, U64] = {}
        self._limit = END
        self._suspended: dict[str, float] = {}
        self._said = float("-inf")

    def listen(self, wake: Callable[[], None]) -> None:
        """Hear from now on what readers say; `wake` is called, from another thread, when one waits for an answer."""
        if self._edge is not None:
            self._inbox = self._link.open((self._edge.topic, *self._edge.above), wake)

    def close(self) -> None:
        """Listen no more."""
        if self._inbox is not None:
            self._link.leave(self._inbox)

    def restore(self) -> None:
        """All input of before has been read: keep back again what the last notices say."""
        self.placed.restore(self._notices)
        self._notices = {}

    @property
    def limit(self) -> int:
        """How far the task may advance."""
        return self.placed.limit

    def waits_for(self, topic: str) -> bool:
        """True while the task waits for what comes through a topic, however far ahead that is."""
        return any(demand.edge.topic == topic and demand.waiting for demand in self.placed.demands.values())

    @property
    def waiting(self) -> bool:
        """True while the task lacks something that it has asked for."""
        return any(demand.waiting for demand in self.placed.demands.values())

    def attend(self, watermark: int, now: float) -> bool:
        """Take up what readers have asked for, and ask at once for what is needed for it, or for the task itself.

        Args:
            watermark: how far the task could go if it had all.

        Returns:
            True when an epoch should begin now: it would answer a reader, or has got what the task waited for.
        """
        self._hear()
        presses = self.placed.presses()
        before, self._limit = self._limit, self.limit
        if self.waiting:
            self.say(now)
        return presses or min(before, watermark) < min(self._limit, watermark)

    def _hear(self) -> None:
        while self._inbox is not None:
            try:
                said = self._inbox.get_nowait()
            except queue.Empty:
                return
            self.placed.ask(said.topic, said.partition, _words(said.suspend), _words(said.resume), said.need)

    def owes(self) -> bool:
        """True when a reader waits for an answer that can be given."""
        return self.placed.owes()

    def answer(self, blocks: Iterable[BlockRecord], ending: bool) -> list[BlockRecord]:
        """What to write behind an epoch's blocks.

        Args:
            ending: the task ends here: everything is let go.
        """
        for block in blocks:
            self.placed.written(block.partition, len(block.value))
        said = self.placed.release() if ending else self.placed.answer()
        topic = "" if self._edge is None else self._edge.topic
        return [BlockRecord(topic, partition, raw, tuples) for partition, raw, tuples in said]

    def clear(self) -> bool:
        """True when nobody who feeds the task keeps anything back from it."""
        return not any(demand.suspended for demand in self.placed.demands.values())

    def committed(self, cut: int) -> None:
        """A commit has succeeded."""
        self._committed_cut = cut

    def say(self, now: float) -> None:
        """Send what there is to say: new demands at once, what is not demanded and old demands once in a while."""
        self._look_for_silence(now)
        again = now - self._said >= RESEND_S
        if again:
            self._said = now
        need = max(min(self._committed_cut, self.placed.hold), NEVER)
        for demand in self.placed.demands.values():
            self._say(demand, need, again, now)

    def _look_for_silence(self, now: float) -> None:
        waiting = [demand.edge.producer for demand in self.placed.demands.values() if demand.waiting]
        if not waiting:
            self._waiting_since, self._told = None, False
            return
        self._waiting_since = self._waiting_since or now
        if not self._told and now - self._waiting_since > PATIENCE_S:
            self._told = True
            self._log.warning(
                "results wait for tuples that a task below keeps back and was asked for; is there a worker for it?",
                operator=waiting[0],
            )

    def _say(self, demand: Demand, need: int, again: bool, now: float) -> None:
        wanted = demand.wanted
        before = self._asked.get(demand.stream)
        self._asked[demand.stream] = wanted
        resume = wanted if again or before is None else np.setdiff1d(wanted, before)
        speaks = again or len(resume) > 0
        ripe = speaks or now - self._suspended.get(demand.stream, float("-inf")) >= SUSPEND_S
        suspend = demand.take_suspends() if ripe else NONE
        if len(suspend):
            self._suspended[demand.stream] = now
        elif not speaks:
            return
        pieces = max(1, -(-max(len(suspend), len(resume)) // MOST_SIGNATURES))
        for piece in range(pieces):
            place = slice(piece * MOST_SIGNATURES, (piece + 1) * MOST_SIGNATURES)
            self._link.send(
                Demanded(
                    topic=demand.edge.topic,
                    partition=self._share,
                    need=need,
                    suspend=suspend[place].astype("<u8").tobytes(),
                    resume=resume[place].astype("<u8").tobytes(),
                )
            )
            self._metrics.feedback_requests.inc()
            self._metrics.feedback_bytes.inc(8 * (len(suspend[place]) + len(resume[place])))


def _words(raw: bytes) -> U64:
    return np.frombuffer(raw, "<u8").astype(np.uint64)
