"""Delivers epochs to Kafka exactly once: results, late and dead-letter records, and offsets.

One transactional producer per task. Its transactional id names the group and the task, so `open` (init_transactions)
makes Kafka refuse every older producer of the same task: a worker that was cut off, paused or believed dead cannot add
anything afterwards. An epoch is one transaction. Offsets are sent with the group but without a member generation:
Apache Kafka accepts that from transactions while the group has members, and fencing rests on the transactional id
alone, which holds also when group and task disagree about who is who.

**What Kafka has completed is verified.** A broker that dies between the decision about a transaction and its markers
may forget markers; then some parts of the transaction are visible and others are not (`services.delivery.completion`).
So before committed offsets are read, `open`

1. reads the last transactions back from the task's transaction log, and from each partition what became of them. A
   broker that its peers have cut off answers as if it led its partitions still, and shows as open or missing what has
   long been committed. So the log is read up to a record that is written for that alone, and so are the partitions
   where something seems not to be committed (`mark_end`);
2. aborts whatever this task's producers have left open: the producer's next marker would decide about it;
3. writes again what is missing of the transactions that have happened, from the records in the partitions themselves,
   and commits their offsets, in one transaction.

While a task runs, `settlement` asks twice a minute whether Kafka has ended its transactions everywhere. If it has not
for a minute, the task begins anew, which repairs it.

**Limits.** A transactional id that was not used for a week (Kafka's `transactional.id.expiration.ms`) gets another
producer number, and what the former one has left open cannot be aborted by the new one: a warning says so. Of a
running task's transactions only the newest parts are looked at: a marker that aborts one partition's share of an older
transaction, which no broker writes by itself, goes unnoticed.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from schemas.errors import StateError
from services.delivery.completion import Fate, Mark, Missing, Transaction, complete
from services.delivery.epoch_output import Delivery
from services.delivery.sink import ATTEMPT_S, PATIENCE_S, Aborted, Headers, ProducerSink, Repair, sorted_error
from services.delivery.transaction_log import TransactionLog, read_back, records_of
from services.kafka.call_thread import CallThread
from services.kafka.partition_log import PartitionLogs
from services.kafka.topics import Lane, OutputTopics, TopicAdmin
from services.process.security import KafkaClients
from services.recovery.starting_point import Committed

OVERDUE_S = 2 * ATTEMPT_S
"""When an attempt that has not returned is given up: librdkafka does not always keep to its time limits."""

ENDED_S = 10.0
"""How long Kafka may take to show that an open transaction has been aborted."""

ATTEMPTS = 3
"""How often aborting it is tried."""

HELD_S = 60.0
"""How long a transaction may seem open after it was committed: another task's can be open as long in the same partition
(`transaction_timeout_ms`)."""

OFFSETS_S = 30.0
"""How long Kafka may answer with committed offsets that are older than the newest commit."""

SETTLED_S = 1.0
"""How long `settlement` waits for transactions that are just being ended."""

ENDED = (Fate.COMMITTED, Fate.ABORTED)
"""What does not change any more, whoever tells it."""

POLL_S = 0.05

NOTHING: tuple[None, bytes, Headers] = (None, b"weir", [("weir", b"aborted")])
"""Value, key and headers of a record that is written to be aborted."""


class TransactionalSink(ProducerSink):
    """Exactly once.

    Args:
        log: the task's partition of the group's transaction log.
        writes: partitions that the task may write to, as far as they are known.
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
        own = ((topic, task % count) for topic, count in topics.partitions.items())
        self._writes = {*writes, *own, log}
        self._patience_s = min(PATIENCE_S, transaction_timeout_ms / 1000)
        self._admin = admin
        self._member = self._offsets.consumer_group_metadata()
        self._calls = CallThread(f"offsets-{task}")
        self._written = TransactionLog(log, self.transactional_id, lambda lane: admin.log_ranges([lane])[lane][1])
        self._transactions = self._written
        self._unsettled = ""
        self._commit_known: Mark | None = None
        self._late: dict[Lane, tuple[int, float]] = {}

    @property
    def incarnation(self) -> str:
        """What its commits are signed with."""
        return self._written.incarnation

    # --- Taking over ------------------------------------------------------------------------------------

    def open(self) -> Repair:
        """Fence every older producer of this task, and complete its transactions.

        Raises:
            Fenced, Aborted, BrokerError: see `services.delivery.sink`.
            StateError: the transaction log cannot be read, or records of a transaction are lost.
        """
        right = f"WRITE on transactional id {self.transactional_id!r}"
        self._until_done(lambda: self._producer.init_transactions(ATTEMPT_S), "task cannot be taken over", right)
        written, admin = self._written, self._admin
        until = self.mark_end([written.lane])
        first, _ = admin.log_ranges([written.lane])[written.lane]
        with PartitionLogs(self._clients) as logs:
            transactions = read_back(logs, written.lane, first, written.key, until)
            fates = [item for each in transactions for item in each.fates.items()]
            if doubtful := {lane for lane, fate in fates if fate not in ENDED} - until.keys():
                until |= self.mark_end(doubtful)
                transactions = read_back(logs, written.lane, first, written.key, until)
            lanes = self._writes.union(*(each.prepared.written for each in transactions))
            held = {lane: end for lane, (stable, end) in admin.stable_ends(lanes).items() if stable < end}
            if transactions or held:
                self._abort_open(held)
            for lane, (_, end) in admin.stable_ends(lanes).items():
                written.ends[lane] = max(written.ends.get(lane, 0), end)
            completion = complete(transactions, self._mark(transactions))
            records = self._complete(logs, completion.missing) if completion.missing else {}
            self._commit_known = completion.commit
        ended = {lane for each in transactions for lane, fate in each.fates.items() if fate is Fate.OPEN}
        return Repair(records, sum(each.offsets for each in completion.missing), tuple(sorted(ended)))

    def committed(self, lanes: Iterable[Lane]) -> dict[Lane, Committed]:
        """As `Sink.committed`, and not before they are of the newest commit that the transaction log knows.

        Kafka's group coordinator answers for a moment with older offsets, or with none, while a broker restarts: it
        loses the leadership of its topic while it reads it. A task that believed it began anew and doubled results.

        Raises:
            StateError: Kafka has lost them.
        """
        lanes, deadline = list(lanes), time.monotonic() + OFFSETS_S
        while True:
            found = super().committed(lanes)
            mark, known = _mark_of(found), self._commit_known
            if known is None or mark == known or (mark is not None and mark.incarnation == self.incarnation):
                return found
            if self._give_up.is_set():
                raise Aborted("stopped while committed offsets were read")
            if time.monotonic() > deadline:
                said = "none" if mark is None else f"those of commit {mark.epoch}"
                topic, number = self._written.lane
                raise StateError(
                    f"group {self._group!r} should have the offsets of commit {known.epoch}, which {topic}[{number}] "
                    f"tells of, and Kafka has {said}: they have expired, or somebody has deleted or set them. Give the "
                    "query a new group (--group) to start anew"
                )
            time.sleep(POLL_S)

    def mark_end(self, lanes: Iterable[Lane]) -> dict[Lane, int]:
        """As `Sink.mark_end`: a record in each, of a transaction that is aborted. Only the true leader can confirm it.

        Raises:
            Fenced, Aborted, BrokerError: see `services.delivery.sink`.
        """
        offsets: dict[Lane, int] = {}
        try:
            self._begin()
            for lane in set(lanes):
                self._produce_one(lane, *NOTHING, written=partial(offsets.__setitem__, lane))
            self._flush("the end of its transactions was found")
            if self._failed:
                # Says why, where Kafka has refused the transaction.
                self._send([TopicPartition(*self._written.lane, 0)])
                raise Aborted(f"the end of its transactions is not found: {self._failed}")
            self._abort()
        except KafkaException as error:
            raise sorted_error(error, "transaction") from None
        return offsets

    def _flush(self, before: str) -> None:
        # Not by `flush`: it calls back for more records after a fatal error has been raised, and then raises anything.
        while len(self._producer):
            self._producer.poll(POLL_S)
            if self._give_up.is_set():
                raise Aborted(f"stopped before {before}")

    def _abort(self) -> None:
        right = f"WRITE on transactional id {self.transactional_id!r}"
        self._until_done(lambda: self._producer.abort_transaction(ATTEMPT_S), "not aborted", right)

    def _abort_open(self, ends: Mapping[Lane, int]) -> None:
        """End what this producer's predecessors have left open, by a transaction that is aborted.

        Args:
            ends: of the partitions in which somebody has something open. The group's offsets are always seen to.
        """
        held = dict(ends)
        for _ in range(ATTEMPTS):
            try:
                self._begin()
                for lane in held:
                    self._produce_one(lane, *NOTHING)
                # Of the log itself, whose committed offset nobody reads.
                self._send([TopicPartition(*self._written.lane, 0)])
                self._flush("transactions that Kafka had left open were ended")
                self._abort()
            except KafkaException as error:
                raise sorted_error(error, "transaction") from None
            held = self._held_back(held, time.monotonic() + ENDED_S / ATTEMPTS)
            if not held:
                return
        for (topic, number), end in held.items():
            self._log.warning(
                f"readers of {topic}[{number}] do not come to offset {end}: a transaction is open there that this task "
                "cannot end; see `kafka-transactions.sh find-hanging`",
                task=self._task,
            )

    def _held_back(self, ends: Mapping[Lane, int], deadline: float) -> dict[Lane, int]:
        """Those partitions whose committed records do not reach the given ends in time."""
        held = dict(ends)
        while held:
            stable = self._admin.stable_ends(held)
            held = {lane: end for lane, end in held.items() if lane in stable and stable[lane][0] < end}
            if time.monotonic() > deadline:
                break
            if held:
                time.sleep(POLL_S)
        return held

    def _mark(self, transactions: Iterable[Transaction]) -> Mark | None:
        """Which commit the committed offsets are of, as far as the transactions' partitions say."""
        lanes = {lane for each in transactions for lane in each.prepared.offsets}
        return _mark_of(super().committed(lanes)) if lanes else None

    def _complete(self, logs: PartitionLogs, todo: Iterable[Missing]) -> dict[Lane, int]:
        """Write again what is missing, and commit; how many records, by partition."""
        records: Counter[Lane] = Counter()
        offsets: dict[Lane, tuple[int, str]] = {}
        try:
            self._begin()
            for each in todo:
                for lane in each.partitions:
                    for record in records_of(logs, lane, each.transaction):
                        headers, timestamp = list(record.headers), max(0, record.timestamp or 0)
                        self._produce_one(lane, record.value, record.key, headers, timestamp=timestamp)
                        records[lane] += 1
                if each.offsets:
                    offsets |= each.transaction.prepared.offsets
            self._commit(offsets)
        except KafkaException as error:
            raise sorted_error(error, "transaction") from None
        return dict(records)

    # --- Epochs -----------------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> Counter[str]:
        """One transaction.

        Raises:
            Fenced, Aborted, BrokerError: see `services.delivery.sink`; after Aborted the sink must be made anew.
        """
        if self._unsettled:
            raise Aborted(self._unsettled)
        try:
            self._begin()
            refused = self._produce(delivery)
            self._commit(delivery.offsets)
            return refused
        except KafkaException as error:
            raise sorted_error(error, "transaction") from None

    def _begin(self) -> None:
        if self._written.blind:
            raise Aborted("Kafka has confirmed a record without its offset")
        self._producer.begin_transaction()
        self._written.begin()

    def _commit(self, offsets: Mapping[Lane, tuple[int, str]]) -> None:
        self._produce_one(self._written.lane, self._written.prepared(offsets), self._written.key)
        if offsets:
            sent = [TopicPartition(topic, number, at, text) for (topic, number), (at, text) in offsets.items()]
            self._send(sent)
        right = f"WRITE on transactional id {self.transactional_id!r}"
        self._until_done(lambda: self._producer.commit_transaction(ATTEMPT_S), "epoch not committed", right)

    def _send(self, offsets: list[TopicPartition]) -> None:
        right = f"READ on group {self._group!r} and on topics {', '.join(sorted({tp.topic for tp in offsets}))}"
        self._until_done(lambda: self._send_offsets(offsets), "offsets not accepted", right)

    def _send_offsets(self, offsets: list[TopicPartition]) -> None:
        """One attempt. When it does not return, the transaction stays open until the task's next producer fences this
        one: whatever still becomes of the call, nobody commits it."""
        producer, member = self._producer, self._member
        try:
            self._calls.run(lambda: producer.send_offsets_to_transaction(offsets, member, ATTEMPT_S), OVERDUE_S)
        except TimeoutError:
            raise Aborted(f"offsets not accepted: the Kafka client has not come back for {OVERDUE_S:g} s") from None

    def settlement(self) -> Callable[[], Mapping[Lane, int] | None]:
        """A question that another thread may ask Kafka: are the transactions up to now complete everywhere?

        The answer is None when they are not, or what may be deleted of the transaction log when they are.
        """
        ends = dict(self._written.ends)

        def settled() -> Mapping[Lane, int] | None:
            now = time.monotonic()
            held = self._held_back(ends, now + SETTLED_S)
            self._late = {lane: self._late.get(lane, (ends[lane], now)) for lane in held}
            for (topic, number), (end, since) in self._late.items():
                if now - since > HELD_S and self._held_back({(topic, number): end}, now):
                    self._unsettled = f"Kafka has not ended a committed transaction in {topic}[{number}], offset {end}"
            # The newest record stays: it says which incarnation was the last.
            return None if held else {self._written.lane: ends[self._written.lane] - 1}

        return settled

    def close(self) -> None:
        """As `Sink.close`."""
        self._calls.close()
        super().close()

    def _until_done(self, call: Callable[[], Any], what: str, right: str) -> None:
        """Repeat a call that Kafka calls retriable: its outcome is unknown until it returns.

        In the end the task begins anew, with another client: Kafka has aborted the transaction by then, or will, or it
        has happened, which `open` finds out.
        """
        told, deadline = False, time.monotonic() + self._patience_s
        while True:
            try:
                call()
                if told:
                    self._log.info("Kafka answers again", task=self._task)
                return
            except KafkaException as error:
                cause = error.args[0]
                if not cause.retriable() or cause.txn_requires_abort() or self._give_up.is_set():
                    if cause.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                        # Of all partitions of a transaction at once, without a name.
                        denied = self._admin.not_writable(topic for topic, _ in self._written.ends)
                        right = f"WRITE on topic {denied[0]!r}" if denied else right
                    problem = sorted_error(error, what, right)
                    if self._failed and isinstance(problem, Aborted):
                        raise Aborted(f"{problem}; a record was not written: {self._failed}") from None
                    raise problem from None
                if time.monotonic() > deadline:
                    raise Aborted(f"{what}: no answer from Kafka for {self._patience_s:g} s: {cause.str()}") from None
                if not told:
                    told = True
                    self._log.warning(f"{what} yet, trying on", task=self._task, reason=cause.str())


def _mark_of(committed: Mapping[Lane, Committed]) -> Mark | None:
    """The newest commit that committed offsets are of."""
    newest = max((found.message for found in committed.values()), key=lambda message: message.epoch, default=None)
    return None if newest is None else Mark(newest.incarnation, newest.epoch)
