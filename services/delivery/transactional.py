"""Delivers epochs to Kafka exactly once: results, late and dead-letter records, and offsets.

Entry: `TransactionalSink`. Each task has one transactional producer, and an epoch is one transaction. The transactional
id names the group and the task, so `open` (init_transactions) makes Kafka refuse every older producer of the same task:
a worker that was cut off, paused or believed dead cannot add anything afterwards. Offsets are sent with the group but
without a member generation. Apache Kafka accepts that from transactions while the group has members. Fencing therefore
rests on the transactional id alone, which holds even if group and task disagree about the owner.

**The sink verifies what Kafka has completed.** A broker that dies between the decision about a transaction and its
markers may forget markers; then some parts of the transaction are visible and others are not
(`services.delivery.completion`). So before committed offsets are read, `open` takes three steps:

1. It reads the last transactions from the task's transaction log, and their fates from each partition. A broker that
   its peers have cut off still answers as if it led its partitions, and shows long-committed records as open or
   missing. So the sink writes a record to the log for this purpose alone and reads the log up to it. It does the same
   in partitions where something seems uncommitted (`mark_end`).
2. It aborts whatever this task's producers have left open, because the producer's next marker would decide its fate.
3. It writes again what is missing of the transactions that have happened, from the records in the partitions
   themselves, and commits their offsets, in one transaction.

While a task runs, `completion_check` asks twice a minute whether Kafka has ended its transactions everywhere. If Kafka
has not for a minute, the task restarts, which repairs it.

**Limits.** A transactional id that was not used for a week (Kafka's `transactional.id.expiration.ms`) gets another
producer id. The new producer cannot abort what the former one left open; a warning reports that. The check of a running
task looks only at the end of each partition. It misses a marker that aborts one partition's share of an older
transaction, which no broker writes by itself.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from schemas.errors import StateError, WeirError
from services.delivery.completion import CommitId, Fate, Transaction, TransactionRepair, complete, newest_commit_id
from services.delivery.epoch_output import Delivery
from services.delivery.sink import (
    ATTEMPT_S,
    PATIENCE_S,
    POLL_S,
    Aborted,
    Headers,
    ProducerSink,
    Repair,
    delivery_error,
)
from services.delivery.transaction_log import TransactionLog, read_back, records_of
from services.kafka.call_thread import CallThread
from services.kafka.partition_log import PartitionLogs
from services.kafka.topics import Lane, OutputTopics, TopicAdmin
from services.process.security import KafkaClients
from services.recovery.starting_point import Committed

OFFSETS_ATTEMPT_S = 2.0
"""How long one attempt to send offsets may take."""

OVERDUE_S = 2 * OFFSETS_ATTEMPT_S
"""When the sink gives up such an attempt, because librdkafka does not always keep to the limit: it may wait for a
coordinator that has died (`services.kafka.call_thread`). The task stands still until then, so the time is short. The
limit is half of it: an attempt that a slow coordinator has delayed returns, and is repeated."""

ENDED_S = 10.0
"""How long Kafka may take to show that an open transaction has been aborted."""

ATTEMPTS = 3
"""How often aborting it is tried."""

MAX_OPEN_S = 60.0
"""How long a transaction may seem open after its commit. Another task's transaction can be open this long in the same
partition (`transaction_timeout_ms`)."""

OFFSETS_S = 30.0
"""How long Kafka may report committed offsets that are older than the newest commit."""

CHECK_WAIT_S = 1.0
"""How long `completion_check` waits for transactions that Kafka is just ending."""

FINAL_FATES = (Fate.COMMITTED, Fate.ABORTED)
"""Fates that cannot change any more, even if a stale broker reports them."""

ABORTED_RECORD: tuple[None, bytes, Headers] = (None, b"weir", [("weir", b"aborted")])
"""Value, key and headers of a record that is only written to be aborted."""


class TransactionalSink(ProducerSink):
    """Exactly once.

    Args:
        log: the task's partition of the group's transaction log.
        writes: further partitions that the task may write to, as far as they are known.
    """

    def __init__(
        self,
        clients: KafkaClients,
        group: str,
        task: int,
        topics: OutputTopics,
        give_up: threading.Event,
        transaction_timeout_ms: int,
        admin: TopicAdmin,
        log: Lane,
        writes: Iterable[Lane] = (),
    ) -> None:
        self.transactional_id = f"{group}.{task}"
        super().__init__(
            clients,
            group,
            task,
            topics,
            give_up,
            transactional__id=self.transactional_id,
            transaction__timeout__ms=transaction_timeout_ms,
        )
        self._clients = clients
        self._writes = {*writes, *topics.lanes(task), log}
        self._patience_s = min(PATIENCE_S, transaction_timeout_ms / 1000)
        self._admin = admin
        self._group_metadata = self._offsets.consumer.consumer_group_metadata()
        self._call_thread = CallThread(f"offsets-{task}")
        self._transactions = self._transaction_log = TransactionLog(
            log, self.transactional_id, lambda lane: admin.log_ranges([lane])[lane][1]
        )
        self._incomplete = ""
        self._commit_known: CommitId | None = None
        self._open_since: dict[Lane, tuple[int, float]] = {}

    @property
    def incarnation(self) -> str:
        """The name of this incarnation, which its commits carry."""
        return self._transaction_log.incarnation

    # --- Taking over ------------------------------------------------------------------------------------

    def open(self) -> Repair:
        """Fence every older producer of this task, and complete its transactions.

        Raises:
            Fenced, Aborted, BrokerError: see `services.delivery.sink`.
            StateError: the transaction log cannot be read, or records of a transaction are lost.
        """
        right = f"WRITE on transactional id {self.transactional_id!r}"
        self._until_done(
            lambda: self._producer.init_transactions(ATTEMPT_S),
            right,
            waiting="task cannot be taken over yet, retrying",
            failed="task cannot be taken over",
        )
        written, admin = self._transaction_log, self._admin
        until = self.mark_end([written.lane])
        with PartitionLogs(self._clients) as logs:
            transactions = read_back(logs, written.lane, self._first_offset, written.key, until)
            fates = [item for each in transactions for item in each.fates.items()]
            if doubtful := {lane for lane, fate in fates if fate not in FINAL_FATES} - until.keys():
                until |= self.mark_end(doubtful)
                transactions = read_back(logs, written.lane, self._first_offset, written.key, until)
            lanes = self._writes.union(*(each.prepared.written for each in transactions))
            blocked = {lane: end for lane, (stable, end) in admin.stable_ends(lanes).items() if stable < end}
            if transactions or blocked:
                self._abort_open(blocked)
            for lane, (_, end) in admin.stable_ends(lanes).items():
                written.ends[lane] = max(written.ends.get(lane, 0), end)
            completion = complete(transactions, self._committed_id(transactions))
            records = self._complete(logs, completion.missing) if completion.missing else {}
            self._commit_known = completion.commit
        ended = {lane for each in transactions for lane, fate in each.fates.items() if fate is Fate.OPEN}
        return Repair(records, sum(each.offsets for each in completion.missing), tuple(sorted(ended)))

    def _first_offset(self, lane: Lane) -> int:
        return self._admin.log_ranges([lane])[lane][0]

    def committed(self, lanes: Iterable[Lane]) -> dict[Lane, Committed]:
        """As `Sink.committed`, but wait until the offsets are of the newest commit in the transaction log.

        While a broker restarts, Kafka's group coordinator briefly reports older offsets, or none: it loses the
        leadership of its topic while it reads it. A task that trusted such an answer would restart from it and
        duplicate results.

        Raises:
            StateError: Kafka has lost the offsets.
        """
        lanes, deadline = list(lanes), time.monotonic() + OFFSETS_S
        while True:
            found = super().committed(lanes)
            commit_id, known = newest_commit_id(each.message for each in found.values()), self._commit_known
            own = commit_id is not None and commit_id.incarnation == self.incarnation
            if known is None or commit_id == known or own:
                return found
            if self._give_up.is_set():
                raise Aborted("stopped while committed offsets were read")
            if time.monotonic() > deadline:
                reported = "none" if commit_id is None else f"those of commit {commit_id.epoch}"
                topic, number = self._transaction_log.lane
                raise StateError(
                    f"group {self._group!r} should have the offsets of commit {known.epoch}, which {topic}[{number}] "
                    f"tells of, and Kafka has {reported}: they have expired, or somebody has deleted or set them. Give "
                    "the query a new group (--group) to start anew"
                )
            time.sleep(POLL_S)

    def mark_end(self, lanes: Iterable[Lane]) -> dict[Lane, int]:
        """As `Sink.mark_end`: write a record to each partition and abort. Only the true leader can confirm it.

        Raises:
            Fenced, Aborted, BrokerError: see `services.delivery.sink`.
        """
        offsets: dict[Lane, int] = {}
        try:
            self._begin()
            for lane in set(lanes):
                self._produce_one(lane, *ABORTED_RECORD, written=partial(offsets.__setitem__, lane))
            self._flush("the end of its transactions was found")
            if self._failed:
                # Raises the reason if Kafka has refused the transaction.
                self._send([TopicPartition(*self._transaction_log.lane, 0)])
                raise Aborted(f"the end of its transactions is not found: {self._failed}")
            self._abort()
        except KafkaException as error:
            raise delivery_error(error, "transaction") from None
        return offsets

    def _refusal(self, error: KafkaException, what: str) -> WeirError:
        """As `ProducerSink._refusal`. A producer whose transaction has failed, or that cannot go on, refuses records
        without a reason. A fenced producer is one of them, and only calls about transactions tell."""
        if error.args[0].code() in (KafkaError._FATAL, KafkaError._STATE):
            try:
                self._producer.begin_transaction()
            except KafkaException as cause:
                error = cause
        return delivery_error(error, what)

    def _abort(self) -> None:
        right = f"WRITE on transactional id {self.transactional_id!r}"
        self._until_done(
            lambda: self._producer.abort_transaction(ATTEMPT_S),
            right,
            waiting="transaction not aborted yet, retrying",
            failed="transaction not aborted",
        )

    def _abort_open(self, ends: Mapping[Lane, int]) -> None:
        """Abort what this producer's predecessors left open, by a transaction that is itself aborted.

        Args:
            ends: the end offset of each partition that holds an open transaction of any producer. The group's offsets
                are always included.
        """
        blocked = dict(ends)
        for _ in range(ATTEMPTS):
            try:
                self._begin()
                for lane in blocked:
                    self._produce_one(lane, *ABORTED_RECORD)
                # The committed offset of the log itself, which nothing reads.
                self._send([TopicPartition(*self._transaction_log.lane, 0)])
                self._flush("transactions that Kafka had left open were ended")
                self._abort()
            except KafkaException as error:
                raise delivery_error(error, "transaction") from None
            blocked = self._lanes_behind(blocked, time.monotonic() + ENDED_S / ATTEMPTS)
            if not blocked:
                return
        for (topic, number), end in blocked.items():
            self._log.warning(
                f"readers of {topic}[{number}] do not come to offset {end}: a transaction is open there that this task "
                "cannot end; see `kafka-transactions.sh find-hanging`",
                task=self._task,
            )

    def _lanes_behind(self, ends: Mapping[Lane, int], deadline: float) -> dict[Lane, int]:
        """Find the partitions whose committed records do not reach the given ends by the deadline."""
        blocked = dict(ends)
        while blocked:
            stable = self._admin.stable_ends(blocked)
            blocked = {lane: end for lane, end in blocked.items() if lane in stable and stable[lane][0] < end}
            if time.monotonic() > deadline:
                break
            if blocked:
                time.sleep(POLL_S)
        return blocked

    def _committed_id(self, transactions: Iterable[Transaction]) -> CommitId | None:
        """Find the commit of the committed offsets, judged by the transactions' partitions."""
        lanes = {lane for each in transactions for lane in each.prepared.offsets}
        return newest_commit_id(found.message for found in super().committed(lanes).values()) if lanes else None

    def _complete(self, logs: PartitionLogs, todo: Iterable[TransactionRepair]) -> dict[Lane, int]:
        """Write missing records again, and commit; returns how many records, by partition."""
        records: Counter[Lane] = Counter()
        offsets: dict[Lane, tuple[int, str]] = {}
        try:
            self._begin()
            for each in todo:
                for lane in each.partitions:
                    for record in records_of(logs, lane, each.transaction, self._first_offset):
                        headers, timestamp = list(record.headers), max(0, record.timestamp or 0)
                        self._produce_one(lane, record.value, record.key, headers, timestamp=timestamp)
                        records[lane] += 1
                if each.offsets:
                    offsets |= each.transaction.prepared.offsets
            self._commit(offsets)
        except KafkaException as error:
            raise delivery_error(error, "transaction") from None
        return dict(records)

    # --- Epochs -----------------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> Counter[str]:
        """Deliver an epoch in one transaction.

        Raises:
            Fenced, Aborted, BrokerError: see `services.delivery.sink`; after Aborted the caller must make a new sink.
        """
        if self._incomplete:
            raise Aborted(self._incomplete)
        try:
            self._begin()
            refused = self._produce(delivery)
            self._commit(delivery.offsets)
            return refused
        except KafkaException as error:
            raise delivery_error(error, "transaction") from None

    def _begin(self) -> None:
        if self._transaction_log.offsets_unknown:
            raise Aborted("Kafka has confirmed a record without its offset")
        self._producer.begin_transaction()
        self._transaction_log.begin()

    def _commit(self, offsets: Mapping[Lane, tuple[int, str]]) -> None:
        log = self._transaction_log
        self._produce_one(log.lane, log.prepared(offsets), log.key)
        if offsets:
            sent = [TopicPartition(topic, number, at, text) for (topic, number), (at, text) in offsets.items()]
            self._send(sent)
        right = f"WRITE on transactional id {self.transactional_id!r}"
        self._until_done(
            lambda: self._producer.commit_transaction(ATTEMPT_S),
            right,
            waiting="epoch not committed yet, retrying",
            failed="epoch not committed",
        )

    def _send(self, offsets: list[TopicPartition]) -> None:
        right = f"READ on group {self._group!r} and on topics {', '.join(sorted({tp.topic for tp in offsets}))}"
        self._until_done(
            lambda: self._send_offsets(offsets),
            right,
            waiting="offsets not accepted yet, retrying",
            failed="offsets not accepted",
        )

    def _send_offsets(self, offsets: list[TopicPartition]) -> None:
        """Make one attempt. If the call does not return, the transaction stays open until the task's next producer
        fences this one. Nothing commits it, whatever the call still does."""
        producer, member = self._producer, self._group_metadata
        try:
            self._call_thread.run(
                lambda: producer.send_offsets_to_transaction(offsets, member, OFFSETS_ATTEMPT_S), OVERDUE_S
            )
        except TimeoutError:
            raise Aborted(f"offsets not accepted: the Kafka client has not come back for {OVERDUE_S:g} s") from None

    def completion_check(self) -> Callable[[], Mapping[Lane, int] | None]:
        """As `Sink.completion_check`, of the transaction log."""
        ends = dict(self._transaction_log.ends)

        def check() -> Mapping[Lane, int] | None:
            now = time.monotonic()
            blocked = self._lanes_behind(ends, now + CHECK_WAIT_S)
            self._open_since = {lane: self._open_since.get(lane, (ends[lane], now)) for lane in blocked}
            for (topic, number), (end, since) in self._open_since.items():
                if now - since > MAX_OPEN_S and self._lanes_behind({(topic, number): end}, now):
                    self._incomplete = f"Kafka has not ended a committed transaction in {topic}[{number}], offset {end}"
            # The newest record stays: it names the last incarnation.
            return None if blocked else {self._transaction_log.lane: ends[self._transaction_log.lane] - 1}

        return check

    def close(self) -> None:
        """As `Sink.close`."""
        self._call_thread.close()
        super().close()

    def _until_done(self, call: Callable[[], Any], right: str, *, waiting: str, failed: str) -> None:
        """Repeat a call while its error is retriable, since its outcome is unknown until it returns.

        After the time limit the task restarts with a new client. By then Kafka has aborted the transaction, or will
        abort it, or the transaction has happened; `open` finds out which.

        Args:
            right: the permission that may be missing.
            waiting: what the log says once, when the call is repeated.
            failed: what the error says, when the call is given up.
        """
        reported, deadline = False, time.monotonic() + self._patience_s
        while True:
            try:
                call()
                if reported:
                    self._log.info("Kafka answers again", task=self._task)
                return
            except KafkaException as error:
                cause = error.args[0]
                if not cause.retriable() or cause.txn_requires_abort() or self._give_up.is_set():
                    if cause.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                        # The error covers all partitions of a transaction and names none.
                        denied = self._admin.not_writable(topic for topic, _ in self._transaction_log.ends)
                        right = f"WRITE on topic {denied[0]!r}" if denied else right
                    problem = delivery_error(error, failed, right)
                    if self._failed and isinstance(problem, Aborted):
                        raise Aborted(f"{problem}; a record was not written: {self._failed}") from None
                    raise problem from None
                if time.monotonic() > deadline:
                    raise Aborted(f"{failed}: no answer from Kafka for {self._patience_s:g} s: {cause.str()}") from None
                if not reported:
                    reported = True
                    self._log.warning(waiting, task=self._task, reason=cause.str())
