"""A placed task's part in feedback as Kafka carries it: requests through the feedback topic, answers in band.

What a task waits for it asks for again every RESEND_S, until the answer has come in band: requests may get lost with
the worker that heard them. How far it has come it says as often, since what it may still ask for is kept for it.
"""

from __future__ import annotations

import queue
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from operators.kernels.hashing import U64
from operators.placed.demand import Demand
from operators.placed.feedback import PlacedFeedback
from operators.watermark import NEVER
from schemas.codecs.notice import Notice
from schemas.control import Demanded
from services.delivery import BlockRecord
from services.feedback_log import FeedbackLog
from services.logs import Log
from services.metrics import TaskMetrics
from services.placed import Part

RESEND_S = 1.0

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
        self.placed = PlacedFeedback(part.operator, part.share)
        self._share = part.share
        self._link = link
        self._notices = notices
        self._committed_cut = committed_cut
        self._metrics = metrics
        self._log = log
        self._waiting_since: float | None = None
        self._told = False
        self._topic = part.operator.outputs[0].topic if part.operator.outputs else ""
        self._inbox = link.open(self._topic) if self._topic else None
        self._asked: dict[str, U64] = {}
        self._said = float("-inf")

    def close(self) -> None:
        """Listen no more."""
        if self._inbox is not None:
            self._link.leave(self._topic, self._inbox)

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

    def hear(self) -> None:
        """Take up what readers have asked for."""
        supply = self.placed.supply
        while self._inbox is not None:
            try:
                said = self._inbox.get_nowait()
            except queue.Empty:
                return
            if supply is not None:
                supply.ask(said.partition, _words(said.suspend), _words(said.resume), said.need)

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
        return [BlockRecord(self._topic, partition, raw, tuples) for partition, raw, tuples in said]

    def clear(self) -> bool:
        """True when nobody who feeds the task keeps anything back from it."""
        return not any(demand.suspended for demand in self.placed.demands.values())

    def committed(self, cut: int) -> None:
        """A commit has succeeded."""
        self._committed_cut = cut

    def say(self, now: float) -> None:
        """Send what there is to say: new demands at once, others again after a while."""
        self._look_for_silence(now)
        again = now - self._said >= RESEND_S
        if again:
            self._said = now
        need = max(min(self._committed_cut, self.placed.hold), NEVER)
        for demand in self.placed.demands.values():
            self._say(demand, need, again)

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

    def _say(self, demand: Demand, need: int, again: bool) -> None:
        suspend, wanted = demand.take_suspends(), demand.wanted
        before = self._asked.get(demand.stream)
        self._asked[demand.stream] = wanted
        resume = wanted if again or before is None else np.setdiff1d(wanted, before)
        if not (again or len(suspend) or len(resume)):
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
