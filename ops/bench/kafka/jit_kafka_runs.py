"""Workloads with distributed joins, and the traffic of a worker that runs them, with or without feedback.

The tuples of a run are made beforehand and written at their pace by the clock, a millisecond of event time in each
millisecond of real time: feedback has to arrive before the tuples that it is about, as with live streams. (`together`
writes all at once: a history, which a worker reads as fast as it can.) At the end one tuple of every stream, far in the
future, makes the worker deliver all results.

Tuples and bytes are those of the whole run, from the worker's metrics and from the topics themselves, which are read at
the end. Processor time and delays count from the first full window on, when kernels have been loaded; for a history all
processor time counts.
"""

from __future__ import annotations

import bisect
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from operators.engine.engine import Engine
from operators.plan.plan import parse_plan
from ops.bench.kafka.kafka_log import DEADLINE_SECONDS, make_topics, reader
from ops.bench.kafka.worker_process import WorkerProcess
from ops.bench.workloads import BEGIN_MS
from schemas.codecs.notice import is_notice
from schemas.columns import Batch, Column
from schemas.errors import BrokerError, InvariantError
from schemas.language.program import parse_program
from schemas.query import Query, Type
from services.kafka.topics import ControlTopics

CLOSING_MS = 86_400_000
"""How far after all others the last tuples are: more than any window."""

TICK_SECONDS = 0.005

OPTIONS = ("--placement", "per-operator", "--state-dir", "none")

DIAGNOSTICS = (
    "late_tuples_total",
    "dead_letters_total",
    "task_restarts_total",
    "pending_tuples",
    "feedback_kept_back_tuples",
)
"""Those of a worker's metrics that may explain why results are missing."""

LOG_LINES = 20
"""How many lines from the end of its log are shown."""


@dataclass(frozen=True, slots=True)
class DistributedTask:
    """A query with distributed joins, and its tuples.

    Attributes:
        title: for people; about: what is special.
        equalities: such as `A.k = B.k`, with how many values both columns have, uniformly.
        rates: tuples per second, by stream.
        window_ms: of all streams.
        together: whether all tuples are there at once.
    """

    title: str
    about: str
    plan: str
    equalities: Mapping[str, int]
    rates: Mapping[str, float]
    window_ms: int = 4_000
    together: bool = False

    def scaled(self, share: float) -> DistributedTask:
        """A smaller task: a share of the rates, and of the values."""
        values = {equality: max(2, round(n * share)) for equality, n in self.equalities.items()}
        return replace(self, rates={name: rate * share for name, rate in self.rates.items()}, equalities=values)

    def columns(self, stream: str) -> dict[str, int]:
        """A stream's join columns and how many values each has."""
        pairs = [(side.split("."), n) for equality, n in self.equalities.items() for side in equality.split(" = ")]
        return {column: n for (alias, column), n in pairs if alias == stream}

    def sql(self, sink: str, topics: Mapping[str, str]) -> str:
        """The program; its results contain the ids of the tuples that they are made of."""
        lines = []
        for name in self.rates:
            fields = "".join(f", {column} BIGINT" for column in self.columns(name))
            lines.append(f"CREATE STREAM {name} (id BIGINT, ts TIMESTAMP{fields})")
            lines.append(f"  WITH (topic = '{topics[name]}', timestamp = 'ts');")
        chosen = ", ".join(f"{name}.id AS {name.lower()}" for name in self.rates)
        lines.append(f"INSERT INTO '{sink}' SELECT {chosen}")
        lines.append(f"FROM {', '.join(self.rates)} WINDOW RANGE {self.window_ms} MILLISECONDS")
        lines.append("WHERE " + " AND ".join(self.equalities) + ";")
        return "\n".join(lines) + "\n"

    def query(self) -> Query:
        """The program's query."""
        return parse_program(self.sql("sink", {name: name for name in self.rates})).queries[0]

    def batches(self, seconds: float, seed: int) -> dict[str, Batch]:
        """All tuples by stream, at random times, ascending."""
        rng = np.random.default_rng(seed)
        found = {}
        for name, rate in self.rates.items():
            count = max(1, round(rate * seconds))
            ts = BEGIN_MS + np.sort(rng.integers(0, round(1000 * seconds), count))
            columns = {"id": Column(Type.BIGINT, np.arange(count)), "ts": Column(Type.TIMESTAMP, ts)}
            for column, values in self.columns(name).items():
                columns[column] = Column(Type.BIGINT, rng.integers(1, values + 1, count))
            found[name] = Batch(ts, columns)
        return found


Ids = tuple[int, ...]


def expected_results(task: DistributedTask, batches: Mapping[str, Batch]) -> Counter[Ids]:
    """The ids of all results' components, from one engine without feedback or Kafka."""
    query = task.query()
    engine = Engine(query, plan=parse_plan(task.plan, query))
    for name, batch in batches.items():
        engine.push(name, 0, batch)
    found = engine.advance(BEGIN_MS + CLOSING_MS)
    columns = [found.columns[name.lower()].values.tolist() for name in task.rates]
    return Counter(zip(*columns, strict=True))


@dataclass(frozen=True, slots=True)
class Written:
    """A record to be written: when, where, and its value."""

    ts: int
    stream: str
    value: bytes


def records(batches: Mapping[str, Batch]) -> list[Written]:
    """All tuples as JSON, by event time."""
    found = []
    for stream, batch in batches.items():
        columns = {name: column.values.tolist() for name, column in batch.columns.items()}
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        found += [Written(row["ts"], stream, orjson.dumps(row)) for row in rows]
    return sorted(found, key=lambda record: record.ts)


def closing(task: DistributedTask) -> list[Written]:
    """Tuples that make the worker deliver all results and make none: no two streams have a value in common."""
    found = []
    for number, stream in enumerate(task.rates, start=1):
        row = {"id": -1, "ts": BEGIN_MS + CLOSING_MS, **dict.fromkeys(task.columns(stream), -number)}
        found.append(Written(row["ts"], stream, orjson.dumps(row)))
    return found


class _Feed(threading.Thread):
    """Writes records at their pace.

    Attributes:
        began: the clock when event time was BEGIN_MS.
        late_s: how late a record was at worst.
    """

    def __init__(self, bootstrap: str, topics: Mapping[str, str], written: Sequence[Written], together: bool) -> None:
        super().__init__(daemon=True)
        # A record that is sent again after an error must not come after later ones: they would be late.
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 2, "enable.idempotence": True, "log_level": 0}
        )
        self._topics = topics
        self._records = written
        self._together = together
        self.began = time.time()
        self.late_s = 0.0

    def run(self) -> None:
        self.began = time.time()
        at = 0
        while at < len(self._records):
            passed_ms = (time.time() - self.began) * 1000
            due = len(self._records)
            if not self._together:
                due = bisect.bisect_right(self._records, BEGIN_MS + passed_ms, key=lambda record: record.ts)
                if due > at:
                    late_ms = passed_ms - (self._records[at].ts - BEGIN_MS)
                    self.late_s = max(self.late_s, late_ms / 1000 - TICK_SECONDS)
            self.write(self._records[at:due])
            at = due
            time.sleep(TICK_SECONDS)

    def write(self, some: Sequence[Written]) -> None:
        """Write now."""
        for record in some:
            while True:
                try:
                    self._producer.produce(self._topics[record.stream], record.value)
                    break
                except BufferError:
                    self._producer.poll(0.1)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all records are in the log."""
        if self._producer.flush(DEADLINE_SECONDS):
            raise BrokerError(f"not all tuples could be written in {DEADLINE_SECONDS:g} s")


class _Results(threading.Thread):
    """Reads the sink's committed results.

    Attributes:
        found: the ids of each result's components.
        ages: for each result its event time, and when it could be read.
    """

    def __init__(self, bootstrap: str, sink: str, names: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self._consumer = reader(bootstrap, [sink])
        self._names = names
        self._over = threading.Event()
        self.found: Counter[Ids] = Counter()
        self.ages: list[tuple[int, float]] = []

    def run(self) -> None:
        while not self._over.is_set():
            messages = self._consumer.consume(10_000, 0.01)
            now = time.time()
            for message in messages:
                if message.error() is None:
                    row = orjson.loads(message.value() or b"{}")
                    self.found[tuple(row[name] for name in self._names)] += 1
                    self.ages.append((row["_ts"], now))
        self._consumer.close()

    def end(self) -> None:
        """Stop reading."""
        self._over.set()
        self.join()


@dataclass(frozen=True, slots=True)
class Traffic:
    """The records in the topics between the joins, and in the feedback topic.

    Attributes:
        blocks, block_bytes: intermediate results with watermarks.
        notices, notice_bytes: answers to requests.
        requests, request_bytes: in the feedback topic, as written.
    """

    blocks: int = 0
    block_bytes: int = 0
    notices: int = 0
    notice_bytes: int = 0
    requests: int = 0
    request_bytes: int = 0

    @property
    def messages(self) -> int:
        """The number of all records."""
        return self.blocks + self.notices + self.requests

    @property
    def bytes(self) -> int:
        """The size of their values, uncompressed."""
        return self.block_bytes + self.notice_bytes + self.request_bytes


@dataclass(frozen=True, slots=True)
class Sent:
    """What a worker processed and sent.

    Attributes:
        tuples: intermediate results written, late ones included.
        commits: transactions.
        kept_back: tuples suppressed at the time when the last tuple had been written.
        state_bytes: of all states at that time.
        stored_bytes: disk space of the internal topics on the broker, compressed, with the markers of transactions; 0
            where the benchmark does not run the broker.
        cpu_s: of the worker, from the first full window on; for a history, of the whole run.
        ages_ms: for each result since then, from its last component's time to when it could be read; empty for a
            history.
        late_s: how late a tuple was written at worst.
    """

    tuples: int
    commits: int
    kept_back: int
    state_bytes: int
    traffic: Traffic
    stored_bytes: int
    cpu_s: float
    results: int
    ages_ms: Sequence[float]
    late_s: float


def run_worker(
    task: DistributedTask,
    batches: Mapping[str, Batch],
    expected: Counter[Ids],
    bootstrap: str,
    folder: Path,
    log: Path | None,
    *,
    feedback: bool,
) -> Sent:
    """Run a fresh worker over the tuples, in topics of its own.

    Args:
        log: the broker's data folder, where the benchmark runs the broker.

    Raises:
        InvariantError: its results are not the expected ones.
        BrokerError: it ended, or took too long; the message has its metrics and log.
    """
    group = f"weir-bench-{os.urandom(4).hex()}-jit"
    topics = {name: f"{group}-{name.lower()}" for name in task.rates}
    sink = f"{group}-out"
    make_topics(bootstrap, [*topics.values(), sink])
    query = folder / f"{group}.sql"
    query.write_text(task.sql(sink, topics))
    written = records(batches)
    feed = _Feed(bootstrap, topics, written, task.together)
    results = _Results(bootstrap, sink, [name.lower() for name in task.rates])
    results.start()
    options = (*OPTIONS, "--plan", task.plan, "--jit", "on" if feedback else "off")
    run = f"{task.title}, {'with' if feedback else 'without'} feedback"
    with WorkerProcess(bootstrap, query, folder / group, group, *options) as worker:
        try:
            worker.wait_ready()
            cpu = worker.cpu_seconds()
            feed.start()
            if not task.together:
                _until(lambda: time.time() >= feed.began + task.window_ms / 1000, worker, "the window fills")
                cpu = worker.cpu_seconds()
            _until(lambda: not feed.is_alive(), worker, "all tuples are written")
            feed.flush()
            at_end = worker.metrics()
            feed.write(closing(task))
            feed.flush()
            tasks = len(task.rates) - 1
            until = tasks * (BEGIN_MS + CLOSING_MS - 1)
            count = sum(expected.values())
            worker.wait(lambda m: m.get("watermark_milliseconds", 0) >= until, "all joins come to the end")
            _until(lambda: len(results.ages) >= count, worker, f"all {count} results")
            after = worker.metrics()
            cpu = worker.cpu_seconds() - cpu
        except BrokerError as error:
            results.end()
            known = shown(expected, results.found, read_results(bootstrap, sink, task), worker.metrics())
            log_end = worker.log_file.read_text(errors="replace").splitlines()[-LOG_LINES:]
            raise BrokerError("\n  ".join([f"{run}: {error}", known, *log_end])) from None
        finally:
            results.end()
    if results.found != expected:
        there = read_results(bootstrap, sink, task)
        raise InvariantError(f"{run}: {shown(expected, results.found, there, after)}")

    aged = [] if task.together else [(ts, at) for ts, at in results.ages if ts >= BEGIN_MS + task.window_ms]
    return Sent(
        tuples=round(after["internal_tuples_total"]),
        commits=round(after["commits_total"]),
        kept_back=round(at_end.get("feedback_kept_back_tuples", 0.0)),
        state_bytes=round(at_end.get("state_bytes", 0.0)),
        traffic=traffic(bootstrap, group),
        stored_bytes=0 if log is None else sum(_size(log, topic) for topic in between(bootstrap, group)),
        cpu_s=cpu,
        results=len(results.ages),
        ages_ms=[(at - feed.began) * 1000 - (ts - BEGIN_MS) for ts, at in aged],
        late_s=feed.late_s,
    )


def _until(condition: Callable[[], bool], worker: WorkerProcess, what: str) -> None:
    until = time.monotonic() + 2 * DEADLINE_SECONDS
    while not condition():
        worker.check()
        if time.monotonic() > until:
            raise BrokerError(f"waited {2 * DEADLINE_SECONDS:g} s in vain: {what}")
        time.sleep(TICK_SECONDS)


def shown(expected: Counter[Ids], read: Counter[Ids], there: Counter[Ids] | None, metrics: Mapping[str, float]) -> str:
    """Describe how results differ from the expected ones.

    Args:
        read: the results as they arrived.
        there: the results when the sink is read again; None where it cannot be read.
        metrics: the worker's; empty where it does not answer.
    """
    missing, more = expected - read, read - expected
    words = [f"{read.total()} of {expected.total()} results have come"]
    words.append("the sink cannot be read" if there is None else f"{there.total()} are in the sink")
    words.append(f"{missing.total()} are missing, {more.total()} too many")
    words += [f"first missing {found}" for found in sorted(missing)[:1]]
    words += [f"{name} {metrics[name]:g}" for name in DIAGNOSTICS if name in metrics]
    return "; ".join(words)


# --- The topics ---------------------------------------------------------------------------------------------------


def between(bootstrap: str, group: str) -> dict[str, int]:
    """The topics between a group's joins, and the feedback topic; how many partitions each has."""
    consumer = reader(bootstrap, [])
    found = consumer.list_topics(timeout=DEADLINE_SECONDS).topics
    consumer.close()
    internal = re.compile(re.escape(group) + r"\.\d+\.")
    wanted = ControlTopics.of(group).feedback
    return {name: len(about.partitions) for name, about in found.items() if internal.match(name) or name == wanted}


def traffic(bootstrap: str, group: str) -> Traffic:
    """Count the committed records in a group's topics."""
    feedback = ControlTopics.of(group).feedback
    counts: Counter[str] = Counter()
    for topic, value in _records(bootstrap, between(bootstrap, group)):
        kind = "request" if topic == feedback else "notice" if is_notice(value) else "block"
        counts[f"{kind}s"] += 1
        counts[f"{kind}_bytes"] += len(value)
    return Traffic(**counts)


def read_results(bootstrap: str, sink: str, task: DistributedTask) -> Counter[Ids] | None:
    """The ids of the components of all committed results in a sink; None where it cannot be read."""
    found: Counter[Ids] = Counter()
    try:
        for _, value in _records(bootstrap, {sink: 1}):
            row = orjson.loads(value)
            found[tuple(row[name.lower()] for name in task.rates)] += 1
    except (BrokerError, KafkaException):
        return None
    return found


def _records(bootstrap: str, topics: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """The records of all partitions.

    Raises:
        BrokerError: their first records are deleted already, or cannot be read.
    """
    places = [TopicPartition(name, p, OFFSET_BEGINNING) for name, count in topics.items() for p in range(count)]
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"weir-bench-{os.urandom(4).hex()}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    try:
        for place in places:
            low, _ = consumer.get_watermark_offsets(place, timeout=DEADLINE_SECONDS)
            if low:
                raise BrokerError(f"{low} records of {place.topic} are deleted already: the run took too long")
        consumer.assign(places)
        left = {(place.topic, place.partition) for place in places}
        until = time.monotonic() + DEADLINE_SECONDS
        while left:
            if time.monotonic() > until:
                raise BrokerError(f"{', '.join(topics)} could not be read in {DEADLINE_SECONDS:g} s")
            for message in consumer.consume(10_000, 0.2):
                error = message.error()
                if error is None:
                    yield message.topic() or "", message.value() or b""
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard((message.topic() or "", message.partition() or 0))
                else:
                    raise BrokerError(f"{message.topic()} cannot be read: {error.str()}")
    finally:
        consumer.close()


def _size(log: Path, topic: str) -> int:
    """Bytes of a topic's segments."""
    return sum(file.stat().st_size for file in log.glob(f"{topic}-*/*.log"))
