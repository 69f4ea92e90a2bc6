"""The feedback topic of a distributed query: tasks tell the tasks whose results they read what they need and await, and
what has come of their partition groups.

Each worker has one `FeedbackLog`, which reads the whole topic, starting from its end: tasks that still wait repeat
earlier messages (`services.task.feedback`, `services.task.silence`, `services.spill.productivity_link`). Results do not
depend on whether a message arrives, how often, or how soon.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable

from confluent_kafka import OFFSET_END

from schemas.errors import NewerFormatError, StateError
from schemas.messages.control import Awaited, Demanded, PartitionTotals, decode_control
from services.control.control_log import ControlLog
from services.kafka.log_consumer import LogBatch, LogFollower, position_of
from services.process.logs import get_log
from services.process.security import KafkaClients

POLL_S = 0.1

FeedbackMessage = Demanded | Awaited | PartitionTotals

Inbox = queue.SimpleQueue[FeedbackMessage]


class FeedbackLog:
    """One worker's connection to the feedback topic.

    Args:
        control: sends the worker's messages.
    """

    def __init__(self, clients: KafkaClients, topic: str, client_id: str, control: ControlLog) -> None:
        self._topic = topic
        self._control = control
        self._log = get_log("feedback", topic=topic)
        self._lock = threading.Lock()
        self._inboxes: dict[str, list[tuple[Inbox, Callable[[], None]]]] = {}
        self._read_error = ""
        more = {"client__id": client_id, "fetch__wait__max__ms": 50}
        self._follower = LogFollower(clients, topic, "feedback", self._take, poll_s=POLL_S, begin=OFFSET_END, **more)

    def start(self) -> FeedbackLog:
        """Start to read."""
        self._follower.start()
        return self

    def close(self) -> None:
        """Stop reading."""
        self._follower.close()

    def send(self, message: FeedbackMessage) -> None:
        """Queue a message for writing."""
        self._control.publish(self._topic, _address(message), message)

    def open(self, addresses: Iterable[str], wake: Callable[[], None] = lambda: None) -> Inbox:
        """An inbox for all later messages to the writers of some topics, or to the tasks of some operators.

        Args:
            wake: called from another thread when a message has arrived that another task waits for.
        """
        inbox: Inbox = queue.SimpleQueue()
        with self._lock:
            for address in addresses:
                self._inboxes.setdefault(address, []).append((inbox, wake))
        return inbox

    def leave(self, inbox: Inbox) -> None:
        """Put no more messages into an inbox."""
        with self._lock:
            for topic, entries in list(self._inboxes.items()):
                self._inboxes[topic] = remaining = [entry for entry in entries if entry[0] is not inbox]
                if not remaining:
                    del self._inboxes[topic]

    def _take(self, batch: LogBatch) -> None:
        """Distribute messages to inboxes."""
        if not batch:
            return
        if batch.problem and batch.problem != self._read_error:
            self._log.warning("feedback topic cannot be read, retrying; results may wait for it", reason=batch.problem)
        self._read_error = batch.problem
        for message in batch.records:
            try:
                decoded = decode_control(message.value(), position_of(message))
            except NewerFormatError as problem:
                self._control.refuse(problem)
                continue
            except StateError as problem:
                self._log.warning("feedback message passed over", reason=str(problem))
                continue
            if isinstance(decoded, FeedbackMessage) and _is_whole(decoded):
                with self._lock:
                    for inbox, wake in self._inboxes.get(_address(decoded), ()):
                        inbox.put(decoded)
                        if isinstance(decoded, Demanded) and decoded.resume:
                            wake()


def _address(message: FeedbackMessage) -> str:
    """Whom a message is for: the tasks that write to a topic, or those of an operator."""
    return message.operator if isinstance(message, PartitionTotals) else message.topic


def _is_whole(message: FeedbackMessage) -> bool:
    """Whether a message has no half signatures."""
    return not isinstance(message, Demanded) or len(message.suspend) % 8 == len(message.resume) % 8 == 0
