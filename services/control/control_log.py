"""Reads, folds and appends to a query's control topic. Workers, coordinators and `weir migrate` use `ControlLog`.

A thread reads the topic from the beginning. Every participant of the barrier needs every message, so this is a plain
consumer without a group: an agent of the worker's Faust app would share the topic's one partition with the other
members of the group. Every process reads the whole topic; it holds some hundred bytes per task and plan change
(`TopicAdmin.control`).

Appending does not wait for the write: the sender looks for its message in the log, and appends it again if it is
missing. Only `open` waits for the task's `Opened`, since the task may not start before it is written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from schemas.errors import BrokerError, NewerFormatError, StateError
from schemas.messages.control import (
    Awaited,
    BarrierMessage,
    ControlMessage,
    Decision,
    Demanded,
    Measured,
    Opened,
    PartitionTotals,
    RegisteredQuery,
    TaskHealth,
    TaskStatistics,
    decode_control,
    encode_control,
)
from services.control.barrier import Barrier, View
from services.kafka.log_consumer import LogBatch, LogFollower, position_of
from services.process.logs import get_log
from services.process.rights import reason
from services.process.security import KafkaClients

PublishedMessage = (
    TaskStatistics | TaskHealth | RegisteredQuery | Measured | Decision | Demanded | Awaited | PartitionTotals
)
"""A message of another topic than the control topic."""

POLL_S = 0.1

MESSAGE_TIMEOUT_S = 10.0
"""A message that could not be written for so long is given up; see the module."""

OPEN_S = 30.0
"""How long opening a task waits for the control topic."""


class ControlLog:
    """One process's copy of the log.

    Attributes:
        view: the state of the barrier as far as the log has been read. Replaced, never changed: any thread may read it.
        refused: set when a newer Weir has written to the topic; then reading ends, and waiting calls raise this error.
    """

    def __init__(self, clients: KafkaClients, topic: str, client_id: str) -> None:
        self.view = View()
        self.refused: NewerFormatError | None = None
        self._topic = topic
        self._log = get_log("control", topic=topic)
        self._barrier = Barrier()
        self._updated = threading.Condition()
        self._next_offset = 0
        self._at_end = False
        self._unwritten: set[str] = set()
        self._read_error = ""
        self._settings = clients.librdkafka(
            client__id=client_id,
            enable__idempotence=True,
            linger__ms=0,
            message__timeout__ms=int(MESSAGE_TIMEOUT_S * 1000),
            log_level=0,
        )
        self._producer = Producer(self._settings)
        self._timed_out = False
        self._follower = LogFollower(
            clients, topic, "control", self._take, poll_s=POLL_S, before=self._call_back, client__id=client_id
        )

    def start(self) -> ControlLog:
        """Start to read."""
        self._follower.start()
        return self

    def close(self) -> None:
        """Write the queued messages, if that is quick, and stop reading."""
        self._follower.stop()
        with self._updated:
            # A thread that waits in `open` must not wait for a follower that has stopped.
            self._updated.notify_all()
        self._follower.close()
        self._producer.flush(2.0)

    # --- Writing ------------------------------------------------------------------------------------

    def append(self, *messages: BarrierMessage) -> None:
        """Queue messages for writing."""
        for message in messages:
            self._send(self._topic, message)

    def publish(
        self, topic: str, key: str, message: PublishedMessage, written: Callable[[], None] | None = None
    ) -> None:
        """Queue a message for the first partition of another topic.

        Args:
            written: called once Kafka has the message, in another thread.
        """
        self._send(topic, message, key.encode(), written)

    def _send(
        self,
        topic: str,
        message: ControlMessage,
        key: bytes | None = None,
        written: Callable[[], None] | None = None,
    ) -> None:
        def delivered(error: KafkaError | None, sent: Message) -> None:
            self._delivered(error, sent)
            if error is None and written is not None:
                written()

        try:
            self._producer.produce(topic, encode_control(message), key, partition=0, on_delivery=delivered)
        except BufferError:
            return  # Kafka has been unreachable for long; the sender appends again, as after every loss
        except KafkaException as error:
            self._log.warning("control message not accepted", reason=error.args[0].str())

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        topic = message.topic() or ""
        if error is None:
            self._unwritten.discard(topic)
            return
        self._note_timeout(error)
        if topic not in self._unwritten:
            self._unwritten.add(topic)
            why = reason(error, f"WRITE on topic {topic!r}")
            self._log.warning("control message not written", to=topic, reason=why)

    # --- Reading ------------------------------------------------------------------------------------

    def refuse(self, problem: NewerFormatError) -> None:
        """Note that a newer Weir has written to a topic of the group."""
        with self._updated:
            self.refused = self.refused or problem
            self._follower.stop()
            self._updated.notify_all()

    def _wait_for(self, happened: Callable[[], object], seconds: float) -> bool:
        """Wait for a condition; whether it became true in time.

        Raises:
            NewerFormatError: a newer Weir has written here.
        """
        found = self._updated.wait_for(lambda: self.refused is not None or happened(), seconds)
        if self.refused is not None:
            raise self.refused
        return bool(found)

    def wait(self, seen: View, seconds: float) -> View:
        """The view, as soon as it differs from `seen`, at the latest after `seconds`.

        Raises:
            NewerFormatError: a newer Weir has written here.
        """
        with self._updated:
            self._wait_for(lambda: self.view is not seen or self._follower.stopped, seconds)
            return self.view

    def read_to_end(self, seconds: float) -> View:
        """The view after the reader has reached the end of the log.

        Raises:
            BrokerError: the log could not be read in time.
            NewerFormatError: a newer Weir has written here.
        """
        with self._updated:
            if not self._wait_for(lambda: self._at_end, seconds):
                raise BrokerError(f"control topic {self._topic} could not be read within {seconds:g} s{self._why()}")
            return self.view

    def open(self, task: int, incarnation: str, tasks: int = 0) -> View:
        """Start a new incarnation of a task: append its `Opened`, and wait until the log has been read up to there.

        Args:
            incarnation: a name that no other incarnation of any task has.
            tasks: how many tasks the query has; 0 where readers know that without it.

        Returns:
            the view after that `Opened`.

        Raises:
            BrokerError: Kafka does not answer.
            NewerFormatError: a newer Weir has written here.
        """
        written: list[int] = []
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._note_timeout(error)
                failed.append(error)
            else:
                written.append(message.offset() or 0)
            with self._updated:
                self._updated.notify_all()

        opened = encode_control(Opened(task=task, incarnation=incarnation, tasks=tasks))
        try:
            self._producer.produce(self._topic, opened, partition=0, on_delivery=delivered)
        except (BufferError, KafkaException) as error:
            raise BrokerError(f"control topic {self._topic} cannot be written: {error}") from None
        with self._updated:
            self._wait_for(
                lambda: failed or self._follower.stopped or (written and self._next_offset > written[0]), OPEN_S
            )
            if failed:
                why = reason(failed[0], f"WRITE on topic {self._topic!r}")
                raise BrokerError(f"control topic {self._topic} cannot be written: {why}")
            if not written or self._next_offset <= written[0]:
                raise BrokerError(f"control topic {self._topic} does not answer within {OPEN_S:g} s{self._why()}")
            return self.view

    def _why(self) -> str:
        return self._read_error and f": {self._read_error}"

    def _call_back(self) -> None:
        """Run the delivery callbacks that are due."""
        self._producer.poll(0)
        if self._timed_out:
            self._replace_producer()

    def _note_timeout(self, error: KafkaError) -> None:
        self._timed_out = self._timed_out or error.code() == KafkaError._MSG_TIMED_OUT

    def _replace_producer(self) -> None:
        """Replace the producer. Tests have shown producers that never wrote again once messages had timed out."""
        former, self._producer = self._producer, Producer(self._settings)
        self._timed_out = False
        former.purge()
        former.flush(1.0)  # calls the delivery callbacks, so that `open` learns that its message is lost

    def _take(self, batch: LogBatch) -> None:
        """Fold what has been read."""
        if not batch:
            return
        if batch.problem and batch.problem != self._read_error:
            self._log.warning("control topic cannot be read, retrying", reason=batch.problem)
        self._read_error = batch.problem
        changed = False
        for message in batch.records:
            try:
                decoded = decode_control(message.value(), position_of(message))
            except NewerFormatError as refused:
                self.refuse(refused)
                return
            except StateError as damaged:
                self._log.warning("control message passed over", reason=str(damaged))
                continue
            if not isinstance(decoded, PublishedMessage):
                self._barrier.apply(decoded)
                changed = True
        with self._updated:
            self._at_end = self._at_end or batch.at_end
            if batch.records:
                self._next_offset = (batch.records[-1].offset() or 0) + 1
            if changed:
                self.view = self._barrier.view()
            self._updated.notify_all()
