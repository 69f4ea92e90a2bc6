"""Runs one trial: a workload goes to a real broker, real workers run, faults are injected, the outcome is judged.

    trial.send(0.5); worker = trial.start(); ...; trial.finish(worker)

`finish` sends the rest, waits until the group has committed every record of every input partition,
stops the workers gracefully and compares all output topics, read with read_committed to their ends, with the
workload's expectation: nothing missing, nothing twice, in timestamp order, no transaction left open. Because
the committed offsets show completion, a missing result is a difference and not a long wait.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from tests.broker_fixture import Topics
from tests.faults.workload import QUERY, Place, Record, Row, Workload, canonical, reason_fits
from tests.worker_harness import Case, WorkerProcess, Workers, in_time, unmarked, wait_for
from tests.worker_harness import Record as Found

DEADLINE_S = 180.0
"""For conditions that may take long on a loaded machine. Nothing waits for it in a good run."""

FLOW_RECORDS = 15
"""How many records are sent between two looks at a condition, where records flow meanwhile."""

QUIET = {"log_level": 0}


class Trial:
    """A workload with its own topics."""

    def __init__(
        self,
        topics: Topics,
        folder: Path,
        workload: Workload,
        text: str = QUERY,
        client: dict[str, Any] | None = None,
        **settings: str,
    ) -> None:
        """Make the input topics. `client` are settings for the test's own Kafka clients."""
        self.case = Case.make(topics, folder, text, partitions=workload.partitions, stem="fault", **settings)
        self.workload = workload
        self.bootstrap = topics.bootstrap
        self.folder = folder
        self.workers = Workers(folder)
        self.sent = 0
        self._client = {"bootstrap.servers": topics.bootstrap, **QUIET, **(client or {})}
        self._producer = Producer(
            {
                **self._client,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.max.bytes": 20_000_000,
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )
        self._admin = AdminClient(self._client)
        self._offsets = Consumer({**self._client, "group.id": self.group, "enable.auto.commit": False})
        self._known: dict[str, list[int]] = {}
        self._topics = {stream.name: stream.topic for stream in self.case.query.streams()}
        self._streams = {topic: name for name, topic in self._topics.items()}
        self._lanes = [TopicPartition(topic, p) for topic in self._streams for p in range(workload.partitions)]

    @property
    def sink(self) -> str:
        """The output topic."""
        return self.case.sink

    @property
    def group(self) -> str:
        """The consumer group that workers choose by default."""
        return f"weir-{self.sink}"

    def topic(self, stream: str) -> str:
        """The topic of a stream."""
        return self._topics[stream]

    # --- Input --------------------------------------------------------------------------------------

    def send(self, until: float | int = 1.0) -> None:
        """Produce the records up to a share (float) or number (int) of the workload, and wait until written."""
        stop = until if isinstance(until, int) else self._count(until)
        self.produce(self.workload.records[self.sent : stop])
        self.sent = max(self.sent, stop)

    def _count(self, share: float) -> int:
        return round(share * len(self.workload.records))

    def produce(self, records: Iterable[Record]) -> None:
        """Produce records and wait until they are in the log."""
        for record in records:
            while True:
                try:
                    self._producer.produce(self.topic(record.stream), record.value, partition=record.partition)
                    break
                except BufferError:
                    self._producer.poll(0.05)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                        raise
                    self._producer.poll(0.1)  # the partition has just been added
        wait_for(lambda: self._producer.flush(1) == 0, "the test's records are written", DEADLINE_S)

    def produce_at(self, stream: str, value: bytes, timestamp: int) -> None:
        """Produce one record with a Kafka timestamp of its own."""
        self._producer.produce(self.topic(stream), value, partition=0, timestamp=timestamp)
        wait_for(lambda: self._producer.flush(1) == 0, "the test's record is written", DEADLINE_S)

    def make_topic(self, name: str, partitions: int = 1, **settings: str) -> None:
        """Make a topic that neither worker nor trial would make, or not with these settings."""
        self._admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)

    def add_partitions(self, name: str, count: int) -> None:
        """Give a topic more partitions, and wait until they are there."""
        self._admin.create_partitions([NewPartitions(name, count)])[name].result(30)
        wait_for(
            lambda: len(self._admin.list_topics(name, 5).topics[name].partitions) == count,
            f"{name} has {count} partitions",
            DEADLINE_S,
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until it is gone."""
        self._admin.delete_topics([name])[name].result(30)
        wait_for(lambda: name not in self._admin.list_topics(timeout=10).topics, f"{name} is gone", DEADLINE_S)

    # --- Workers ------------------------------------------------------------------------------------

    def start(self, *options: str, state: Path | str | None = None, **more: Any) -> WorkerProcess:
        """Start a worker; workers of a trial share a state folder unless they are given others."""
        worker = self.workers.start(self.case, *options, state=state, **more)
        _ = self.workload.expected  # compute it while the worker starts
        return worker

    # --- Progress -----------------------------------------------------------------------------------

    def ends(self) -> dict[tuple[str, int], int]:
        """The end of each input partition's log."""
        return _ends(self._admin, self._lanes)

    def committed(self) -> dict[tuple[str, int], int]:
        """The group's committed offsets; empty while Kafka does not answer."""
        try:
            found = self._offsets.committed(self._lanes, 5)
        except KafkaException:
            return {}
        return {(tp.topic, tp.partition): max(tp.offset, 0) for tp in found if tp.error is None}

    def taken(self) -> int:
        """How many records have been committed."""
        return sum(self.committed().values())

    def caught_up(self) -> bool:
        """Whether every record in the input topics is committed."""
        committed = self.committed()
        return bool(committed) and committed == self.ends()

    def wait(
        self, condition: Callable[[], Any], what: str, worker: WorkerProcess | None = None, flow: float = 0.0
    ) -> Any:
        """Wait for a condition; a failure shows the worker's log, and a worker that ends is a failure.

        Args:
            flow: send records meanwhile, a few at a time, up to this share of the workload.
        """
        stop = self._count(flow)

        def look() -> Any:
            if self.sent < stop:
                self.send(min(self.sent + FLOW_RECORDS, stop))
            assert worker is None or worker.process.poll() is None, worker.with_log(f"worker ended; {what}")
            return condition()

        return wait_for(look, lambda: what if worker is None else worker.with_log(what), DEADLINE_S)

    def wait_caught_up(self, worker: WorkerProcess) -> None:
        """Wait until all records sent are committed."""
        self.wait(self.caught_up, "everything sent is committed", worker)

    def flow_to(self, share: float, worker: WorkerProcess) -> None:
        """Send records a few at a time up to a share of the workload, and wait until all is committed."""
        self.wait(lambda: self.sent >= self._count(share), "records are sent", worker, flow=share)
        self.wait_caught_up(worker)

    def wait_taken(self, records: int, worker: WorkerProcess) -> None:
        """Wait until so many records are committed."""
        self.wait(lambda: self.taken() >= records, f"{records} records are committed", worker)

    def pause_within_transaction(self, worker: WorkerProcess, flow: float) -> None:
        """SIGSTOP a worker between the first record of a transaction and its commit.

        Args:
            flow: how much of the workload may be sent to bring that about.
        """
        stop = self._count(flow)

        with self.watch(self.sink) as appeared:

            def caught() -> bool:
                assert self.sent < stop, worker.with_log("no transaction was seen open")
                self.send(min(self.sent + 3 * FLOW_RECORDS, stop))
                while not self.caught_up():
                    if appeared(0.2):
                        worker.signal(signal.SIGSTOP)
                        # It is still open at a second look, so its commit was not already on the way.
                        if all(self.open_records() > 0 for _ in range(3)):
                            return True
                        worker.signal(signal.SIGCONT)
                    assert worker.process.poll() is None, worker.with_log("worker ended")
                return False

            self.wait(caught, "a transaction is open", worker)

    @contextlib.contextmanager
    def watch(self, topic: str) -> Iterator[Callable[[float], bool]]:
        """Detect within a millisecond or two that records, committed or not, have arrived in an output topic.

        Yields:
            a function that waits up to some seconds for a record that arrived since its last call.
        """
        wait_for(lambda: self._partitions(topic), f"{topic} is there", DEADLINE_S)
        consumer = Consumer(
            {
                **self._client,
                "group.id": "weir-test-watch",
                "enable.auto.commit": False,
                "isolation.level": "read_uncommitted",
                "fetch.wait.max.ms": 5000,
            }
        )
        consumer.assign([TopicPartition(topic, p, OFFSET_END) for p in self._partitions(topic)])

        def appeared(seconds: float) -> bool:
            found = consumer.poll(seconds) is not None
            while found and consumer.poll(0) is not None:
                pass
            return found

        try:
            yield appeared
        finally:
            consumer.close()

    # --- Judgement ----------------------------------------------------------------------------------

    def finish(self, *workers: WorkerProcess) -> None:
        """Send the rest, wait until all is committed, stop the workers with SIGTERM, judge."""
        self.send()
        self.wait_caught_up(workers[0])
        for worker in workers:
            assert worker.stop() == 0, worker.with_log("worker stopped with an error")
        self.check()

    def check(self, at_least_once: bool = False) -> None:
        """Compare all three output topics with the expectation."""
        outputs = {name: self.read(topic) for name, topic in self._outputs().items()}
        self.check_results([orjson.loads(record.value or b"") for record in outputs["sink"]], at_least_once)
        self._check_rejected(outputs["late"], "late", at_least_once)
        self._check_rejected(outputs["dead"], "dead", at_least_once)
        if not at_least_once:
            self._check_order(outputs["sink"])
            for topic in self._outputs().values():
                assert self.open_records(topic) == 0, f"a transaction is left open in {topic}"

    def check_results(self, results: list[Row], at_least_once: bool = False) -> None:
        """Compare results with the expectation, as multisets."""
        expected, found = self.workload.expected.results, canonical(unmarked(results))
        missing, extra = expected - found, found - expected
        if at_least_once:
            extra = Counter({result: n for result, n in extra.items() if result not in expected})
        assert not missing, f"{missing.total()} results missing, such as {_few(missing)}"
        assert not extra, f"{extra.total()} results too many, such as {_few(extra)}"

    def _outputs(self) -> dict[str, str]:
        return {"sink": self.sink, "late": f"{self.sink}.late", "dead": f"{self.sink}.dead"}

    def _check_rejected(self, records: list[Found], kind: str, at_least_once: bool) -> None:
        expected = self.workload.expected
        wanted: dict[Place, Any] = expected.late if kind == "late" else expected.dead  # type: ignore[assignment]
        found: Counter[Place] = Counter()
        for record in records:
            headers = record.headers
            place = (headers["stream"], int(headers["partition"]), int(headers["offset"]))
            found[place] += 1
            assert headers["topic"] == self.topic(headers["stream"]), record
            assert place in wanted, f"{kind} letter of a record that is not {kind}: {record}"
            value, pattern = (wanted[place], "^late$") if kind == "late" else wanted[place]
            assert reason_fits(pattern, headers["reason"]), record
            assert (record.value or b"") == (value or b""), record
        missing = set(wanted) - set(found)
        assert not missing, f"{len(missing)} {kind} letters missing, such as {sorted(missing)[:3]}"
        twice = [place for place, n in found.items() if n > 1]
        assert at_least_once or not twice, f"{kind} letters twice: {twice[:3]}"

    def _check_order(self, results: list[Found]) -> None:
        last: dict[int, int] = {}
        for result in results:
            row = orjson.loads(result.value or b"")
            if not in_time(row):
                continue
            ts = row["_ts"]
            assert ts >= last.get(result.partition, 0), f"out of order: {result} after {last[result.partition]}"
            last[result.partition] = ts

    # --- Reading ------------------------------------------------------------------------------------

    def read(self, topic: str, isolation: str = "read_committed") -> list[Found]:
        """The contents of a topic, partition by partition in order of offset, as far as it can be read now."""
        return read_topic(self._client, topic, isolation)

    def open_records(self, topic: str | None = None) -> int:
        """How far read_committed lags behind the log of an output topic: > 0 within a transaction."""
        topic = topic or self.sink
        partitions = [TopicPartition(topic, p) for p in self._partitions(topic)]
        stable = _ends(self._admin, partitions, IsolationLevel.READ_COMMITTED)
        ends = _ends(self._admin, partitions, IsolationLevel.READ_UNCOMMITTED)
        return sum(ends[lane] - stable[lane] for lane in ends if lane in stable)

    def _partitions(self, topic: str) -> list[int]:
        """The partitions of an output topic, requested once it exists."""
        if topic not in self._known:
            try:
                described = self._admin.list_topics(topic, 5).topics[topic]
            except KafkaException:
                return []
            if described.error is not None:
                return []
            self._known[topic] = list(described.partitions)
        return self._known[topic]

    def close(self) -> None:
        """Kill workers that are left."""
        self.workers.end()
        self._offsets.close()


def _few(results: Counter[str]) -> list[str]:
    return [result[:500] for result in list(results)[:3]]


def read_topic(client: dict[str, Any], topic: str, isolation: str = "read_committed") -> list[Found]:
    """The contents of a topic up to its end for the given isolation level."""
    consumer = Consumer(
        {
            **client,
            "group.id": "weir-test-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    try:
        described = consumer.list_topics(topic, timeout=30).topics[topic]
        if described.error is not None:
            return []
        open_ = set(described.partitions)
        # From where the log begins now: retention may have deleted records, and an offset before that would mean its
        # end.
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in open_])
        found: list[Found] = []
        deadline = time.monotonic() + DEADLINE_S
        while open_:
            assert time.monotonic() < deadline, f"{topic} cannot be read to its end"
            for message in consumer.consume(5000, 0.5):
                error = message.error()
                if error is None:
                    headers = {name: value.decode() for name, value in message.headers() or []}
                    found.append(Found(message.value(), message.key(), headers, message.partition(), message.offset()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_.discard(message.partition())
                else:
                    assert error.retriable() or error.code() == KafkaError._TRANSPORT, error
        return sorted(found, key=lambda record: (record.partition, record.offset))
    finally:
        consumer.close()


def _ends(
    admin: AdminClient,
    lanes: list[TopicPartition],
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[tuple[str, int], int]:
    """Log ends; empty while Kafka does not answer."""
    if not lanes:
        return {}
    asked = {TopicPartition(tp.topic, tp.partition): OffsetSpec.latest() for tp in lanes}
    try:
        answers = admin.list_offsets(asked, isolation_level=isolation, request_timeout=5)
        return {(tp.topic, tp.partition): int(answer.result().offset) for tp, answer in answers.items()}
    except KafkaException:
        with contextlib.suppress(KafkaException):
            # Otherwise librdkafka asks with the leader epoch from before a broker's restart, and is refused for ever.
            admin.list_topics(timeout=5)
        return {}


def problems(worker: WorkerProcess, *, less: str | None = None) -> list[str]:
    """The warning and error lines of a worker's log, without those that match `less`."""
    lines = [line for line in worker.text().splitlines() if re.match(r"\S+ (warning|error) ", line)]
    return [line for line in lines if less is None or not re.search(less, line)]


def logged_once(worker: WorkerProcess, pattern: str) -> str:
    """The only line of a worker's log that matches."""
    lines = [line for line in worker.text().splitlines() if re.search(pattern, line)]
    assert len(lines) == 1, worker.with_log(f"{len(lines)} lines match {pattern!r}, expected one")
    return lines[0]


def no_traceback(worker: WorkerProcess) -> None:
    """Check that the log has no stack trace."""
    assert "Traceback" not in worker.text(), worker.with_log("a stack trace")
