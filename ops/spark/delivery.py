"""Delivers the results of a backlog to a topic, each once however often the cleanup restarts.

`services.commands.cleanup` writes to a `TopicDestination`. A group of the root is one transaction: its results in the
sink, and a commit record under the backlog's id and the group's number in `<query>.cleanup`, which Kafka compacts and
keeps for ever. Both are there or neither is. A cleanup that restarts reads the commit records first, and skips the
groups that have one. The transactional id is derived from the backlog's id. So of two processes that clean up the same
backlog, the later one fences the earlier one before it reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import msgspec

from schemas.codecs.results import ResultRecords
from schemas.columns import Batch
from schemas.errors import BrokerError, StateError
from schemas.query import CLEANUP_PHASE
from services.delivery.epoch_output import Delivery, RejectedRecord
from services.delivery.sink import Aborted, Fenced
from services.delivery.transactional import TransactionalSink
from services.kafka.readback import read_to_end
from services.kafka.topics import TopicAdmin
from services.process.security import KafkaClients
from services.spill.destinations import BeforeVisible

TRANSACTION_MS = 600_000
"""How long delivering a group's results may take; a broker allows 15 minutes unless it is configured otherwise."""


class CommitRecord(msgspec.Struct, frozen=True):
    """Marks a group as delivered."""

    debt: str
    query: str
    join: int
    group: int
    results: int


class TopicDestination:
    """Delivers a backlog's results to a topic."""

    def __init__(
        self,
        clients: KafkaClients,
        topic: str,
        query: str,
        backlog: str,
        root: int,
        begin: BeforeVisible,
        *,
        records: ResultRecords,
        say: Callable[[str], None],
        replication: int = -1,
    ) -> None:
        """Args:
            root: the topmost join's number.
            records: encodes the results.
            say: receives a text about results that are too large for the topic, or do not fit its schema.

        Raises:
            BrokerError: Kafka does not answer, or a topic cannot be made.
        """
        self._say = say
        self._records = records
        self._clients = clients
        self._query, self._backlog, self._root = query, backlog, root
        self._topic = topic
        self._begin = begin
        self._begun = False
        admin = TopicAdmin(clients)
        topics = admin.outputs(query, topic, 1, replication, None if records.key is None else 1, late=False)
        self._commits = admin.cleanup(query, replication)
        topics = replace(
            topics,
            partitions={**topics.partitions, self._commits: 1},
            limits={**topics.limits, self._commits: 1_000_000},
        )
        name = f"weir-cleanup-{backlog}"
        self._admin, self._log = admin, (admin.transactions(name, 1, replication), 0)
        self._sink = TransactionalSink(clients, name, 0, topics, threading.Event(), TRANSACTION_MS, admin, self._log)
        repair = self._sink.open()
        if repair.records:
            say(f"Kafka had ended a transaction in part: {sum(repair.records.values()):,} records written again")

    def delivered_groups(self) -> Mapping[int, int]:
        """The groups that have a commit record. A cleanup of another backlog may have a transaction open in the topic,
        which hides the records behind it: this waits until it has ended.

        Raises:
            BrokerError: Kafka does not answer, a transaction stays open, or another process cleans up this backlog.
            Aborted: Kafka does not let the topic's end be marked now.
            StateError: the topic holds something else.
        """
        found: dict[int, int] = {}
        lane = self._commits, 0
        try:
            end = self._sink.mark_end([lane])[lane]
        except Fenced:
            raise self._another() from None
        for offset, message in read_to_end(self._clients, lane, end):
            try:
                record = msgspec.json.decode(message.value() or b"", type=CommitRecord)
            except msgspec.DecodeError as error:
                raise StateError(
                    f"{self._commits}[0]@{offset} holds {message.value()!r}, no commit record of Weir: {error}"
                ) from None
            if record.debt == self._backlog:
                found[record.group] = record.results
        return found

    def write(self, group: int, batches: Iterable[Batch]) -> int:
        """Deliver a group's results.

        Raises:
            BrokerError: Kafka refuses, or another process cleans up this backlog; the commit records show what was
                delivered.
        """
        if not self._begun:
            self._begin()
            self._begun = True
        encoded = [(self._topic, self._records.encode(batch, CLEANUP_PHASE)) for batch in batches]
        results = sum(len(own) + len(own.refused) for _, own in encoded)
        record = CommitRecord(self._backlog, self._query, self._root, group, results)
        # The sink writes these beside the results, to the task's partition of their topic.
        commit = RejectedRecord(self._commits, msgspec.json.encode(record), f"{self._backlog}/{group}".encode(), ())
        try:
            refused = self._sink.deliver(Delivery(encoded, [commit], {}))
        except Fenced:
            raise self._another() from None
        except Aborted as error:
            raise BrokerError(f"group {group} was not delivered: {error}; repeat the cleanup to continue") from None
        if refused:
            self._say(f"{refused.total():,} results do not fit the topic or its schema, and are in {self._query}.dead")
        return results

    def _another(self) -> BrokerError:
        return BrokerError(f"another `weir cleanup` is cleaning up backlog {self._backlog}; let it finish")

    def finish(self) -> None:
        """Delete the log of the transactions, which is not needed any more: each group was delivered when written.

        Raises:
            BrokerError: Kafka does not say whether they are complete.
        """
        if self._sink.completion_check()() is not None:
            self._admin.delete([self._log[0]])

    def close(self) -> None:
        """Release connections; a transaction that is open is aborted."""
        self._sink.close()
