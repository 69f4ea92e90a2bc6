"""The feedback topic as a worker's tasks use it: they send what they demand, and hear what their readers do.

Every worker reads all of it, from its end: what was asked before is asked again by those who still wait
(`services.task.feedback`). Nothing depends on a message being heard, or heard once, or soon.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, Message

from schemas.errors import NewerFormatError, StateError
from schemas.messages.control import Demanded, decode_control
from services.control.control_log import ControlLog
from services.kafka.log_consumer import LogReader
from services.process.logs import get_log
from services.process.security import KafkaClients

POLL_S = 0.1

Inbox = queue.SimpleQueue[Demanded]


class FeedbackLog:
    """One worker's end.

    Args:
        control: what sends for the worker.
    """

    def __init__(self, clients: KafkaClients, topic: str, client_id: str, control: ControlLog) -> None:
        self._topic = topic
        self._control = control
        self._log = get_log("feedback", topic=topic)
        self._lock = threading.Lock()
        self._inboxes: dict[str, list[tuple[Inbox, Callable[[], None]]]] = {}
        self._stop = False
        self._reader = LogReader(clients, topic, OFFSET_END, client__id=client_id, fetch__wait__max__ms=50)
        self._thread = threading.Thread(target=self._run, name="feedback", daemon=True)

    def start(self) -> FeedbackLog:
        """Begin to read."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop reading."""
        self._stop = True
        if self._thread.is_alive():
            self._thread.join()
        self._reader.close()

    def send(self, message: Demanded) -> None:
        """Send a message on its way."""
        self._control.publish(self._topic, f"{message.topic}[{message.partition}]", message)

    def open(self, topics: Iterable[str], wake: Callable[[], None] = lambda: None) -> Inbox:
        """What is said from now on to those who write to some topics.

        Args:
            wake: called, from another thread, when somebody waits for what has been put in.
        """
        inbox: Inbox = queue.SimpleQueue()
        with self._lock:
            for topic in topics:
                self._inboxes.setdefault(topic, []).append((inbox, wake))
        return inbox

    def leave(self, inbox: Inbox) -> None:
        """Somebody listens no more."""
        with self._lock:
            for topic, listening in list(self._inboxes.items()):
                self._inboxes[topic] = left = [one for one in listening if one[0] is not inbox]
                if not left:
                    del self._inboxes[topic]

    def _run(self) -> None:
        trouble = ""
        while not self._stop:
            try:
                found = self._read(self._reader.read(POLL_S))
            except (KafkaException, RuntimeError) as error:
                found = str(error)
                time.sleep(POLL_S)
            if found and found != trouble:
                self._log.warning("feedback topic cannot be read, trying on; results may wait for it", reason=found)
            trouble = found or trouble

    def _read(self, messages: Iterable[Message]) -> str:
        """Hand messages out; what is wrong with the topic, if something is."""
        trouble = ""
        for message in messages:
            error = message.error()
            if error is not None:
                trouble = trouble if error.code() == KafkaError._PARTITION_EOF else error.str()
                continue
            try:
                said = decode_control(message.value(), f"{self._topic}[0]@{message.offset()}")
            except NewerFormatError as problem:
                self._control.refuse(problem)
                continue
            except StateError as problem:
                self._log.warning("feedback message passed over", reason=str(problem))
                continue
            if isinstance(said, Demanded) and len(said.suspend) % 8 == len(said.resume) % 8 == 0:
                with self._lock:
                    for inbox, wake in self._inboxes.get(said.topic, ()):
                        inbox.put(said)
                        if said.resume:
                            wake()
        return trouble
