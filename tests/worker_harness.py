"""Runs real workers against a real broker: rows in, a process to kill, committed results out.

A `Feed` writes rows of the streams of a query. At its end, `finish` writes to every partition one tuple far in
the future that joins with nothing, so that the watermark passes every row and the test can wait for all results that
the oracle expects.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from schemas.language.program import parse_program
from schemas.query import Query
from services.broker.background import free_port
from tests import oracle
from tests.broker_fixture import Topics

Row = dict[str, Any]

DEADLINE_S = 90.0

FAR = 7_200_000
"""How far beyond the last row the closing tuples lie, in ms: more than any window and disorder of a test."""


def wait_for(condition: Callable[[], Any], what: Callable[[], str] | str, deadline_s: float = DEADLINE_S) -> Any:
    """Wait for the first true value of `condition` and return it; fail when there is none in time."""
    deadline = time.monotonic() + deadline_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {deadline_s:g} s in vain: {what if isinstance(what, str) else what()}")
        time.sleep(0.02)


@dataclass
class Case:
    """A query over fresh topics, and the rows written so far (per stream and partition, in offset order)."""

    bootstrap: str
    query: Query
    path: Path
    partitions: int
    rows: dict[str, list[list[Row]]] = field(default_factory=dict)

    @staticmethod
    def make(topics: Topics, folder: Path, text: str, *, partitions: int = 1, stem: str = "q", **settings: str) -> Case:
        """Create topics for every `{name}` of `text` that a stream reads, and a sink name for `{sink}`."""
        names = {
            name: topics(f"{stem}-{name}", partitions, **settings)
            for name in sorted(set(re.findall(r"\{(\w+)\}", text)) - {"sink"})
        }
        sink = f"{stem}-out-{os.urandom(4).hex()}"
        path = folder / f"{sink}.sql"
        path.write_text(text.format(sink=sink, **names))
        (query,) = parse_program(path.read_text()).queries
        rows: dict[str, list[list[Row]]] = {s.name: [[] for _ in range(partitions)] for s in query.streams()}
        return Case(topics.bootstrap, query, path, partitions, rows)

    @property
    def sink(self) -> str:
        """The output topic."""
        assert self.query.sink is not None
        return self.query.sink

    def topic(self, stream: str) -> str:
        """The topic of a stream."""
        return next(s.topic for s in self.query.streams() if s.name == stream)

    def watermark(self) -> int:
        """How far results can be complete: the least, over all partitions, of the newest row less the disorder."""
        return min(
            max(row[str(s.timestamp)] for row in part) - s.disorder_ms
            for s in self.query.streams()
            for part in self.rows[s.name]
        )

    def expected(self) -> Counter[str]:
        """The oracle's results over the rows written so far."""
        return canonical(oracle.nested(self.query, row) for row in oracle.results(self.query, self.rows))


class Feed:
    """Writes rows of a case, in order per partition."""

    def __init__(self, case: Case, **conf: Any) -> None:
        self.case = case
        self.producer = Producer({"bootstrap.servers": case.bootstrap, "linger.ms": 2, "log_level": 0, **conf})
        self._refused: list[KafkaError] = []

    def send(self, stream: str, rows: Iterable[Row], partition: int = 0) -> None:
        """Append rows to one partition."""
        for row in rows:
            self.case.rows[stream][partition].append(row)
            self.raw(stream, orjson.dumps(row), partition)

    def spread(self, stream: str, rows: Iterable[Row], key: Callable[[Row], int]) -> None:
        """Append rows, each to partition `key(row) % partitions`."""
        for row in rows:
            self.send(stream, [row], key(row) % self.case.partitions)

    def raw(self, stream: str, value: bytes | None, partition: int = 0, **more: Any) -> None:
        """Append bytes that the oracle does not know."""
        while True:
            try:
                topic = self.case.topic(stream)
                self.producer.produce(topic, value, partition=partition, on_delivery=self._delivered, **more)
                return
            except BufferError:
                self.producer.poll(0.05)

    def flush(self) -> None:
        """Wait until everything is in the log."""
        assert self.producer.flush(30) == 0
        assert not self._refused, f"not in the log: {self._refused[:3]}"

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._refused.append(error)

    def finish(self, template: Mapping[str, Row]) -> None:
        """Close every partition: write one row per stream from `template`, with a time far beyond all others."""
        last = max(
            (row[_time(self.case, stream)] for stream, parts in self.case.rows.items() for p in parts for row in p),
            default=0,
        )
        for ordinal, stream in enumerate(self.case.rows):
            for partition in range(self.case.partitions):
                row = {**template[stream], _time(self.case, stream): last + FAR * (ordinal + 1)}
                self.raw(stream, orjson.dumps(row), partition)
        self.flush()


def _time(case: Case, stream: str) -> str:
    name = next(s.timestamp for s in case.query.streams() if s.name == stream)
    assert name is not None
    return name


def canonical(rows: Iterable[Row]) -> Counter[str]:
    """A multiset of rows; keys in any order."""
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


def in_time(row: Row) -> bool:
    """Whether a result was produced in time, and not by a cleanup."""
    return "_phase" not in row


def unmarked(rows: Iterable[Row]) -> list[Row]:
    """Results without the mark that they are late."""
    return [{name: value for name, value in row.items() if name != "_phase"} for row in rows]


@dataclass(frozen=True)
class Record:
    """A record read back from a topic."""

    value: bytes | None
    key: bytes | None
    headers: dict[str, str]
    partition: int
    offset: int


class Reader:
    """Reads a topic from its beginning as a read_committed consumer, continuously; `decode` makes a row of a value."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        isolation: str = "read_committed",
        decode: Callable[[bytes], Row] = orjson.loads,
    ) -> None:
        self._topic = topic
        self.decode = decode
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"reader-{os.urandom(4).hex()}",
                "isolation.level": isolation,
                "log_level": 0,
                "enable.auto.commit": False,
            }
        )
        self._assigned: set[int] = set()
        self.records: list[Record] = []

    def poll(self) -> list[Record]:
        """All records read so far, newly arrived ones included."""
        if not self._assigned:
            found = self._consumer.list_topics(self._topic, timeout=10).topics[self._topic]
            if found.error is not None or not found.partitions:
                return self.records
            self._assigned = set(found.partitions)
            self._consumer.assign([TopicPartition(self._topic, p, 0) for p in self._assigned])
        while messages := self._consumer.consume(10_000, 0.05):
            for message in messages:
                assert message.error() is None, message.error()
                headers = {name: value.decode() for name, value in message.headers() or []}
                self.records.append(
                    Record(message.value(), message.key(), headers, message.partition(), message.offset())
                )
        return self.records

    def rows(self) -> list[Row]:
        """The records' values."""
        return [self.decode(record.value or b"null") for record in self.poll()]

    def wait_for_count(
        self, count: int, also: Callable[[], None] = lambda: None, why: Callable[[], str] = str
    ) -> list[Record]:
        """Wait for at least `count` records, as long as some arrive; `why` explains a failure when none does."""
        had = -1

        def more() -> bool:
            also()
            return len(self.poll()) > had

        while had < count:
            wait_for(more, lambda: f"{count} records in {self._topic}, have {len(self.records)}{why()}")
            had = len(self.records)
        return self.records

    def close(self) -> None:
        self._consumer.close()


class WorkerProcess:
    """`weir worker` in a process of its own."""

    def __init__(
        self,
        case: Case,
        state: Path | str,
        *options: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        module: str = "services.cli",
    ) -> None:
        self.port = free_port()
        self.log = log
        command = [
            sys.executable,
            "-m",
            module,
            "worker",
            str(case.path),
            "--bootstrap",
            case.bootstrap,
        ]
        command += [
            "--state-dir",
            str(state),
            "--http-port",
            str(self.port),
            "--http-bind",
            "127.0.0.1",
            *options,
        ]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [*prefix, *command],
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONFAULTHANDLER": "1", **(env or {})},
                start_new_session=True,
            )

    def health(self) -> dict[str, Any]:
        """The answer of /healthz; empty while there is none."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=5) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            return dict(json.load(error))
        except (OSError, ValueError):
            return {}

    def metric(self, name: str) -> float:
        """The sum of a metric over the worker's tasks; 0 while the worker does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return 0.0
        found = re.findall(rf"^weir_{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    def running_tasks(self) -> set[int]:
        """Tasks that this worker runs, recovery done."""
        return {t["task"] for t in self.health().get("tasks", []) if t["state"] == "running"}

    def wait_running(self, tasks: Sequence[int] = (0,)) -> WorkerProcess:
        """Wait until the worker runs exactly the given tasks."""
        wait_for(lambda: self.alive() and self.running_tasks() == set(tasks), lambda: self.with_log(f"tasks {tasks}"))
        return self

    def alive(self) -> bool:
        """True while the process runs; fails the test if it has ended."""
        assert self.process.poll() is None, self.with_log("the worker ended")
        return True

    def with_log(self, what: str) -> str:
        """`what` with the worker's log, for a failing test."""
        return f"{what}; log of the worker:\n{self.text()[-6000:]}"

    def text(self) -> str:
        """Its log."""
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def signal(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def stop(self) -> int:
        """Send SIGTERM; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            # Its log then shows the stacks of its threads.
            self.process.send_signal(signal.SIGABRT)
            self.process.wait()
            raise AssertionError(self.with_log("the worker does not stop")) from None


class CoordinatorProcess:
    """`weir coordinator` in a process of its own."""

    def __init__(self, case: Case, *options: str, log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        command = [sys.executable, "-m", "services.cli", "coordinator", str(case.path)]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [*command, "--bootstrap", case.bootstrap, *options],
                stdout=out,
                stderr=out,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    def wait_running(self) -> CoordinatorProcess:
        """Wait until it has read the log."""
        wait_for(lambda: "coordinator running" in self.text(), lambda: f"a coordinator; its log:\n{self.text()}")
        return self

    def text(self) -> str:
        """Its log."""
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()


class MigrateProcess:
    """`weir migrate` in a process of its own."""

    def __init__(self, case: Case, plan: str, strategy: str, *options: str) -> None:
        command = [sys.executable, "-m", "services.cli", "migrate", str(case.path), "--bootstrap", case.bootstrap]
        self.process = subprocess.Popen(
            [*command, "--plan", plan, "--strategy", strategy, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ended(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None

    def finish(self) -> tuple[int, str, str]:
        """The exit code and the output."""
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out, err


class Workers:
    """Starts workers of one test and ends them after it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[WorkerProcess] = []
        self._others: list[CoordinatorProcess | MigrateProcess] = []

    def start(self, case: Case, *options: str, state: Path | str | None = None, **more: Any) -> WorkerProcess:
        """Start a worker; workers without a `state` share one."""
        log = self._folder / f"worker-{len(self._started)}.log"
        worker = WorkerProcess(case, state or self._folder / "state", *options, log=log, **more)
        self._started.append(worker)
        return worker

    def coordinator(self, case: Case, *options: str, **more: Any) -> CoordinatorProcess:
        """Start a coordinator."""
        started = CoordinatorProcess(case, *options, log=self._folder / f"coordinator-{len(self._others)}.log", **more)
        self._others.append(started)
        return started

    def migrate(self, case: Case, plan: str, strategy: str, *options: str) -> MigrateProcess:
        """Request another plan."""
        started = MigrateProcess(case, plan, strategy, *options)
        self._others.append(started)
        return started

    def end(self) -> None:
        """Kill all processes that are left."""
        for other in self._others:
            if other.process.poll() is None:
                other.process.kill()
                other.process.wait()
        for worker in self._started:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGCONT)
                worker.kill()


def _not_processed(case: Case) -> str:
    """The input rows that a worker has set aside."""
    aside = {kind: Reader(case.bootstrap, f"{case.sink}.{kind}").poll() for kind in ("late", "dead")}
    return "".join(
        f"; {len(records)} {kind} input rows, {[(r.headers, r.value) for r in records[:3]]}"
        for kind, records in aside.items()
    )


def assert_exact(case: Case, reader: Reader, worker: WorkerProcess) -> None:
    """Check that the sink has, read_committed, exactly the oracle's multiset; per partition in timestamp order, except
    for the results of cleanups."""
    expected = case.expected()

    def difference() -> str:
        found = canonical(unmarked(reader.rows()))
        missing, extra = expected - found, found - expected
        if not missing and not extra:
            return ""
        return (
            f"; {missing.total()} results missing, {extra.total()} too many; "
            f"missing {list(missing)[:20]}, too many {list(extra)[:20]}"
        )

    reader.wait_for_count(expected.total(), worker.alive, lambda: difference() + _not_processed(case))
    if wrong := difference():
        raise AssertionError(worker.with_log(wrong))
    for partition in {record.partition for record in reader.records}:
        rows = [reader.decode(r.value or b"") for r in reader.records if r.partition == partition]
        times = [row["_ts"] for row in rows if in_time(row)]
        assert times == sorted(times), f"results of partition {partition} are not in the order of their timestamps"
