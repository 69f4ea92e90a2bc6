"""The control topic as its readers see it: read from the beginning by a thread of its own, folded, appended to.

Everyone who takes part in the barrier needs every message, so this is a plain consumer without a group: an agent of
the worker's Faust app would share the topic's one partition with the other members of the group. Reading begins
anew with every process; the topic holds some hundred bytes per task and plan change (`TopicAdmin.control`).

Nothing here waits for anything to be written: whoever appends looks for the message in the log, and appends it
again. Only a task's `Opened` is waited for (`open`), since the task may not begin before it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from schemas.errors import BrokerError, NewerFormatError, StateError
from schemas.messages.control import (
    BarrierMessage,
    ControlMessage,
    Demanded,
    Opened,
    RegisteredQuery,
    Statistics,
    decode_control,
    encode_control,
)
from services.control.barrier import Barrier, View
from services.kafka.log_consumer import LogReader
from services.process.logs import get_log
from services.process.rights import reason
from services.process.security import KafkaClients

POLL_S = 0.1

MESSAGE_TIMEOUT_S = 10.0
"""What could not be written for so long is given up; see the module."""

OPEN_S = 30.0
"""How long a task's beginning waits for the control topic."""


class ControlLog:
    """One process's copy of the log.

    Attributes:
        view: what the log says as far as it has been read. Replaced, never changed: any thread may read it.
        refused: a newer Weir has written here; nothing more is read then, and whoever waits for it is told.
    """

    def __init__(self, clients: KafkaClients, topic: str, client_id: str) -> None:
        self.view = View()
        self.refused: NewerFormatError | None = None
        self._topic = topic
        self._log = get_log("control", topic=topic)
        self._barrier = Barrier()
        self._news = threading.Condition()
        self._next = 0
        self._at_end = False
        self._stop = False
        self._unwritten: set[str] = set()
        self._trouble = ""
        self._settings = clients.librdkafka(
            client__id=client_id,
            enable__idempotence=True,
            linger__ms=0,
            message__timeout__ms=int(MESSAGE_TIMEOUT_S * 1000),
            log_level=0,
        )
        self._producer = Producer(self._settings)
        self._timed_out = False
        self._reader = LogReader(clients, topic, client__id=client_id)
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> ControlLog:
        """Begin to read."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Write what is on its way, if that is quick, and stop reading."""
        self._stop = True
        with self._news:
            # Who begins a task meanwhile need not wait for what nobody reads any more.
            self._news.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        self._producer.flush(2.0)
        self._reader.close()

    # --- Writing ------------------------------------------------------------------------------------

    def append(self, *messages: BarrierMessage) -> None:
        """Send messages on their way."""
        for message in messages:
            self._send(self._topic, message)

    def publish(self, topic: str, key: str, message: Statistics | RegisteredQuery | Demanded) -> None:
        """Send a message to another topic's first partition."""
        self._send(topic, message, key.encode())

    def _send(self, topic: str, message: ControlMessage, key: bytes | None = None) -> None:
        try:
            self._producer.produce(topic, encode_control(message), key, partition=0, on_delivery=self._delivered)
        except BufferError:
            return  # Kafka has been away for long; as with every message that gets lost
        except KafkaException as error:
            self._log.warning("control message not accepted", reason=error.args[0].str())

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        topic = message.topic() or ""
        if error is None:
            self._unwritten.discard(topic)
            return
        self._look_at(error)
        if topic not in self._unwritten:
            self._unwritten.add(topic)
            why = reason(error, f"WRITE on topic {topic!r}")
            self._log.warning("control message not written", to=topic, reason=why)

    # --- Reading ------------------------------------------------------------------------------------

    def refuse(self, problem: NewerFormatError) -> None:
        """A newer Weir has written to a topic of the group."""
        with self._news:
            self.refused = self.refused or problem
            self._news.notify_all()

    def _wait_for(self, happened: Callable[[], object], seconds: float) -> bool:
        """Whether it happened in time.

        Raises:
            NewerFormatError: a newer Weir has written here.
        """
        found = self._news.wait_for(lambda: self.refused is not None or happened(), seconds)
        if self.refused is not None:
            raise self.refused
        return bool(found)

    def wait(self, seen: View, seconds: float) -> View:
        """The view, as soon as it is another one than `seen`, at the latest after `seconds`.

        Raises:
            NewerFormatError: a newer Weir has written here.
        """
        with self._news:
            self._wait_for(lambda: self.view is not seen or self._stop, seconds)
            return self.view

    def read_to_end(self, seconds: float) -> View:
        """The view once all that was in the log has been read.

        Raises:
            BrokerError: it could not be read in time.
            NewerFormatError: a newer Weir has written here.
        """
        with self._news:
            if not self._wait_for(lambda: self._at_end, seconds):
                raise BrokerError(f"control topic {self._topic} could not be read within {seconds:g} s{self._why()}")
            return self.view

    def open(self, task: int, life: str, tasks: int = 0) -> View:
        """Begin a new life of a task, one of so many: what the log says up to its `Opened`.

        Raises:
            BrokerError: Kafka does not answer.
            NewerFormatError: a newer Weir has written here.
        """
        written: list[int] = []
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._look_at(error)
                failed.append(error)
            else:
                written.append(message.offset() or 0)
            with self._news:
                self._news.notify_all()

        opened = encode_control(Opened(task=task, life=life, tasks=tasks))
        try:
            self._producer.produce(self._topic, opened, partition=0, on_delivery=delivered)
        except (BufferError, KafkaException) as error:
            raise BrokerError(f"control topic {self._topic} cannot be written: {error}") from None
        with self._news:
            self._wait_for(lambda: failed or self._stop or (written and self._next > written[0]), OPEN_S)
            if failed:
                why = reason(failed[0], f"WRITE on topic {self._topic!r}")
                raise BrokerError(f"control topic {self._topic} cannot be written: {why}")
            if not written or self._next <= written[0]:
                raise BrokerError(f"control topic {self._topic} does not answer within {OPEN_S:g} s{self._why()}")
            return self.view

    def _why(self) -> str:
        return self._trouble and f": {self._trouble}"

    def _run(self) -> None:
        trouble = ""
        while not self._stop and self.refused is None:
            try:
                self._producer.poll(0)
                if self._timed_out:
                    self._renew()
                messages = self._reader.read(POLL_S)
            except (KafkaException, RuntimeError) as error:
                messages = []
                trouble = self._told(trouble, str(error))
                time.sleep(POLL_S)
            if messages:
                trouble = self._told(trouble, self._read(messages))

    def _look_at(self, error: KafkaError) -> None:
        self._timed_out = self._timed_out or error.code() == KafkaError._MSG_TIMED_OUT

    def _renew(self) -> None:
        """Go on with another producer: one whose messages time out was seen never to get one through again."""
        former, self._producer = self._producer, Producer(self._settings)
        self._timed_out = False
        former.purge()
        former.flush(1.0)  # whoever waits for a message is told that it is lost

    def _told(self, before: str, now: str) -> str:
        self._trouble = now
        if now and now != before:
            self._log.warning("control topic cannot be read, trying on", reason=now)
        return now

    def _read(self, messages: Iterable[Message]) -> str:
        """Fold messages; what is wrong with the topic, if something is."""
        trouble = ""
        at_end, changed, following = self._at_end, False, self._next
        for message in messages:
            error = message.error()
            if error is not None:
                ended = error.code() == KafkaError._PARTITION_EOF
                at_end = at_end or ended
                trouble = trouble if ended else reason(error, f"READ on topic {self._topic!r}")
                continue
            following = (message.offset() or 0) + 1
            try:
                decoded = decode_control(message.value(), f"{self._topic}[0]@{following - 1}")
            except NewerFormatError as problem:
                self.refuse(problem)
                return trouble
            except StateError as problem:
                self._log.warning("control message passed over", reason=str(problem))
                continue
            if not isinstance(decoded, Statistics | RegisteredQuery | Demanded):
                self._barrier.apply(decoded)
                changed = True
        with self._news:
            self._at_end, self._next = at_end, following
            if changed:
                self.view = self._barrier.view()
            self._news.notify_all()
        return trouble
