"""Results of a paid debt to a topic, each once however often the payment is begun.

A group of the root is one transaction: its results in the sink, and in `<query>.cleanup`, which Kafka compacts and
keeps for ever, a commit record under the debt's id and the group's number. Both are there or neither is. Whoever pays
the debt again reads the commit records first, and what has one is not paid again. The transactional id is the debt's,
so that of two who pay the same debt the later one ends the earlier, before it reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import msgspec

from ops.spark.topics import ends_of, records
from schemas.codecs.encode import CLEANUP_PHASE, encode_results
from schemas.columns import Batch
from schemas.errors import BrokerError, StateError
from services.delivery.epoch_output import Delivery, Letter
from services.delivery.sink import Aborted, Fenced
from services.delivery.transactional import TransactionalSink
from services.kafka.topics import TopicAdmin
from services.process.security import KafkaClients
from services.spill.destinations import Begin

TRANSACTION_MS = 600_000
"""How long a group's results may take; a broker allows 15 minutes unless it was told otherwise."""


class CommitRecord(msgspec.Struct, frozen=True):
    """That a group has been delivered."""

    debt: str
    query: str
    join: int
    group: int
    results: int


class TopicDestination:
    """A topic."""

    def __init__(
        self,
        clients: KafkaClients,
        topic: str,
        query: str,
        debt: str,
        root: int,
        begin: Begin,
        *,
        say: Callable[[str], None],
        replication: int = -1,
    ) -> None:
        """Args:
            root: the topmost join's number.
            say: told of results that are too large for the topic.

        Raises:
            BrokerError: Kafka does not answer, or a topic cannot be made.
        """
        self._say = say
        self._clients = clients
        self._query, self._debt, self._root = query, debt, root
        self._topic = topic
        self._begin = begin
        self._begun = False
        admin = TopicAdmin(clients)
        topics = admin.outputs(query, topic, 1, replication)
        self._commits = admin.cleanup(query, replication)
        topics = replace(
            topics,
            partitions={**topics.partitions, self._commits: 1},
            limits={**topics.limits, self._commits: 1_000_000},
        )
        payment = f"weir-cleanup-{debt}"
        self._admin, self._log = admin, (admin.transactions(payment, 1, replication), 0)
        self._sink = TransactionalSink(
            clients, payment, 0, topics, threading.Event(), TRANSACTION_MS, admin, self._log
        )
        repair = self._sink.open()
        if repair.records:
            say(f"Kafka had ended a transaction in part: {sum(repair.records.values()):,} records written again")

    def paid(self) -> Mapping[int, int]:
        """The groups that have a commit record.

        Raises:
            BrokerError: Kafka does not answer.
            StateError: the topic holds something else.
        """
        found: dict[int, int] = {}
        for _, messages in records(self._clients, ends_of(self._clients, [(self._commits, 0)])):
            for message in messages:
                try:
                    record = msgspec.json.decode(message.value() or b"", type=CommitRecord)
                except msgspec.DecodeError as error:
                    raise StateError(
                        f"{self._commits}[0]@{message.offset()} holds {message.value()!r}, no commit record of Weir: "
                        f"{error}"
                    ) from None
                if record.debt == self._debt:
                    found[record.group] = record.results
        return found

    def write(self, group: int, batches: Iterable[Batch]) -> int:
        """Deliver a group's results.

        Raises:
            BrokerError: Kafka refuses, or somebody else pays this debt; what was delivered is known there.
        """
        if not self._begun:
            self._begin()
            self._begun = True
        encoded = [(self._topic, encode_results(batch, CLEANUP_PHASE)) for batch in batches]
        results = sum(len(own.offsets) - 1 for _, own in encoded)
        record = CommitRecord(self._debt, self._query, self._root, group, results)
        commit = Letter(self._commits, msgspec.json.encode(record), f"{self._debt}/{group}".encode(), ())
        try:
            refused = self._sink.deliver(Delivery(encoded, [commit], {}))
        except Fenced:
            raise BrokerError(f"another `weir cleanup` pays debt {self._debt} now; let it finish") from None
        except Aborted as error:
            raise BrokerError(f"group {group} was not delivered: {error}; run it again, it goes on there") from None
        if refused:
            self._say(f"{refused.total():,} results were too large for the topic, and are in {self._query}.dead")
        return results

    def finish(self) -> None:
        """Each group is out when it has been written; the log of the transactions is not needed any more.

        Raises:
            BrokerError: Kafka does not say whether they are complete.
        """
        if self._sink.settlement()() is not None:
            self._admin.delete([self._log[0]])

    def close(self) -> None:
        """Release connections; a transaction that is open is aborted."""
        self._sink.close()
