"""Carries a distributed task's feedback through Kafka: requests through the feedback topic, answers among the blocks.

`services.worker.operator_tasks` makes a `TaskFeedback` for each task whose operator takes part in feedback. The task's
thread calls it after each batch that it reads, and in each epoch.

Feedback lets a reader suspend tuples that a producer below need not send (`operators.distributed.feedback`). A task
requests what it waits for at once, and again every RESEND_S until the answer arrives among the blocks, because a
request is lost if the worker that received it dies. As often it reports its progress, since producers keep what it may
still request. Suspensions are not urgent; they are sent together, every SUSPEND_S.

A task that learns that a reader waits at once requests from its own producers what it lacks, and begins an epoch when
it can answer (`serve`). Producers also listen to the readers further up, and need not wait for the tasks between. The
reader continues when it has the answer. So a result waits for one trip through Kafka per join below, not for epochs.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from operators.data.watermark import END, NEVER
from operators.distributed.feedback.consumer import ConsumerFeedback
from operators.distributed.feedback.feedback import DistributedFeedback
from operators.distributed.feedback.on_demand import PlanStart
from operators.distributed.feedback.producer import NONE
from operators.kernels.hashing import U64
from schemas.codecs.notice import Notice
from schemas.columns import Batch
from schemas.messages.control import Demanded
from services.control.feedback_log import FeedbackLog, Inbox
from services.delivery.epoch_output import BlockRecord
from services.placement.distributed import Part
from services.process.logs import Log
from services.process.metrics import TaskMetrics

RESEND_S = 1.0

SUSPEND_S = 0.2
"""Least time between messages that only suspend; suspensions also go with any request."""

PATIENCE_S = 30.0
"""After waiting this long for an answer, the task logs one warning."""

MOST_SIGNATURES = 32_768
"""Upper limit of signatures in one message: about 350 KB."""


class TaskFeedback:
    """The feedback of one incarnation of one task; used by its thread alone.

    Args:
        link: the feedback topic.
        notices: the task's own last notices, per partition that it writes to.
        committed_cut: the cut of the task's last commit.
        suspends, start: as of `DistributedFeedback`.

    Attributes:
        operator_feedback: the feedback state of the operator.
    """

    def __init__(
        self,
        part: Part,
        link: FeedbackLog,
        notices: Mapping[int, Sequence[Notice]],
        committed_cut: int,
        metrics: TaskMetrics,
        log: Log,
        *,
        suspends: bool = True,
        start: PlanStart | None = None,
    ) -> None:
        self.operator_feedback = DistributedFeedback(
            part.operator, part.share, time.monotonic, suspends=suspends, start=start
        )
        self._share = part.share
        self._link = link
        self._notices = notices
        self._committed_cut = committed_cut
        self._metrics = metrics
        self._log = log
        self._waiting_since: float | None = None
        self._silence_reported = False
        self._edge = part.operator.outputs[0] if part.operator.outputs else None
        self._inbox: Inbox | None = None
        self._requested: dict[str, U64] = {}
        self._limit = END
        self._suspended: dict[str, float] = {}
        self._sent = float("-inf")

    def listen(self, wake: Callable[[], None]) -> None:
        """Start to receive readers' requests; another thread calls `wake` when a reader waits for an answer."""
        if self._edge is not None:
            self._inbox = self._link.open((self._edge.topic, *self._edge.above), wake)

    def close(self) -> None:
        """Stop receiving requests."""
        if self._inbox is not None:
            self._link.leave(self._inbox)

    def restore(self) -> None:
        """Withhold again what the last notices list; called once the replay has ended."""
        self.operator_feedback.restore(self._notices)
        self._notices = {}

    @property
    def limit(self) -> int:
        """The largest cut to which the task may advance."""
        return self.operator_feedback.limit

    def waits_for(self, topic: str) -> bool:
        """True while the task waits for an answer through a topic, however far ahead the topic's input is."""
        ends = self.operator_feedback.consumer_ends.values()
        return any(demand.edge.topic == topic and demand.waiting for demand in ends)

    @property
    def foresees(self) -> bool:
        """Whether tuples that are not taken yet may need results on demand, and it is known which tuples."""
        return self.operator_feedback.foresees

    def foresee(self, stream: str, batch: Batch) -> None:
        """Request what tuples will need that are not taken yet."""
        self.operator_feedback.foresee(stream, batch)

    @property
    def waiting(self) -> bool:
        """True while the task lacks tuples that it has requested."""
        return any(demand.waiting for demand in self.operator_feedback.consumer_ends.values())

    def serve(self, watermark: int, now: float) -> bool:
        """Accept readers' requests, and request at once what they or the task itself need from below.

        Args:
            watermark: how far the task could advance if it had all tuples.

        Returns:
            True if an epoch should begin now: it would answer a reader, or the task has received what it waited for.
        """
        self._receive()
        can_resume = self.operator_feedback.can_resume()
        before, self._limit = self._limit, self.limit
        if self.waiting:
            self.send_requests(now)
        return can_resume or min(before, watermark) < min(self._limit, watermark)

    def _receive(self) -> None:
        while self._inbox is not None:
            try:
                request = self._inbox.get_nowait()
            except queue.Empty:
                return
            if not isinstance(request, Demanded):
                continue
            suspend, resume = _signatures(request.suspend), _signatures(request.resume)
            self.operator_feedback.ask(request.topic, request.partition, suspend, resume, request.need)

    def has_answers(self) -> bool:
        """True if a reader waits for an answer that the task can give."""
        return self.operator_feedback.has_answers()

    def answer(self, blocks: Iterable[BlockRecord], ending: bool) -> list[BlockRecord]:
        """Make the records to write behind an epoch's blocks.

        Args:
            ending: True if the task ends with this epoch; then it releases everything that it withholds.
        """
        for block in blocks:
            self.operator_feedback.written(block.partition, len(block.value))
        answers = self.operator_feedback.release() if ending else self.operator_feedback.answer()
        topic = "" if self._edge is None else self._edge.topic
        return [BlockRecord(topic, partition, raw, tuples) for partition, raw, tuples in answers]

    def nothing_suspended(self) -> bool:
        """True if no producer below withholds tuples from the task."""
        return all(demand.is_complete for demand in self.operator_feedback.consumer_ends.values())

    def committed(self, cut: int) -> None:
        """Note the cut of a commit that has succeeded."""
        self._committed_cut = cut

    def send_requests(self, now: float) -> None:
        """Send new requests at once, and from time to time suspensions and the requests that are still open."""
        self._check_silence(now)
        again = now - self._sent >= RESEND_S
        if again:
            self._sent = now
        need = max(min(self._committed_cut, self.operator_feedback.hold), NEVER)
        for demand in self.operator_feedback.consumer_ends.values():
            self._send(demand, need, again, now)

    def _check_silence(self, now: float) -> None:
        waiting = [demand.edge.producer for demand in self.operator_feedback.consumer_ends.values() if demand.waiting]
        if not waiting:
            self._waiting_since, self._silence_reported = None, False
            return
        self._waiting_since = self._waiting_since or now
        if not self._silence_reported and now - self._waiting_since > PATIENCE_S:
            self._silence_reported = True
            self._log.warning(
                "results wait for requested tuples that a task below keeps back: does a worker run that task?",
                operator=waiting[0],
            )

    def _send(self, demand: ConsumerFeedback, need: int, again: bool, now: float) -> None:
        wanted = demand.wanted
        before = self._requested.get(demand.stream)
        self._requested[demand.stream] = wanted
        resume = wanted if again or before is None else np.setdiff1d(wanted, before)
        sends = again or len(resume) > 0
        suspends = sends or now - self._suspended.get(demand.stream, float("-inf")) >= SUSPEND_S
        suspend = demand.take_suspends() if suspends else NONE
        if len(suspend):
            self._suspended[demand.stream] = now
        elif not sends:
            return
        pieces = max(1, -(-max(len(suspend), len(resume)) // MOST_SIGNATURES))
        for piece in range(pieces):
            own = slice(piece * MOST_SIGNATURES, (piece + 1) * MOST_SIGNATURES)
            self._link.send(
                Demanded(
                    topic=demand.edge.topic,
                    partition=self._share,
                    need=need,
                    suspend=suspend[own].astype("<u8").tobytes(),
                    resume=resume[own].astype("<u8").tobytes(),
                )
            )
            self._metrics.feedback_requests.inc()
            self._metrics.feedback_bytes.inc(8 * (len(suspend[own]) + len(resume[own])))


def _signatures(raw: bytes) -> U64:
    return np.frombuffer(raw, "<u8").astype(np.uint64)
