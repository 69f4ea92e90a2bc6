"""Runs the demonstration from start to end: Kafka, topics, a worker, a year of records, results, the check.

Order matters in one place: the replay begins once every task of the worker runs, so that the display shows the
worker's pace and not its start.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ops.bench.kafka.worker_process import WorkerProcess
from ops.demo.compare import Comparison, compare, expected_results
from ops.demo.flights import AIRPORTS, QUERY, Feed, last_watermarks, load
from ops.demo.replay import Replay, create_topics, lanes_of
from ops.demo.results import Progress, ResultReader
from ops.demo.screen import SHOWN_RESULTS, Moment, Screen
from schemas.errors import BrokerError, UsageError
from schemas.query import Query
from services.broker import broker as brokers
from services.files.query_files import read_query
from services.formats.registry_access import RegistryAccess
from services.kafka.topics import Lane, TopicAdmin
from services.process.security import KafkaClients
from services.ui.serve import serve

GROUP = "weir-demo"
CATCH_UP_DEADLINE_S = 60.0
"""Time for the worker to finish, and for its last results to be read, after everything was produced."""

_LOOK_S = 0.5
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the demonstration.

    Attributes:
        seconds: from the first record produced to the last result read.
        metrics: the worker's, at the end, summed over tasks.
    """

    bootstrap: str
    query: Query
    records: int
    seconds: float
    metrics: dict[str, float]
    comparison: Comparison


def demonstrate(console: Console, folder: Path, seconds: float, keep: bool) -> Outcome:
    """Run the demonstration.

    Args:
        folder: for Kafka's data, the worker's state and logs, which are deleted at the end.
        seconds: for the replay; 0 is as fast as possible.
        keep: leave Kafka running, and the folder.

    Raises:
        UsageError: Kafka of an earlier demonstration still runs there, or a package is missing.
        BrokerError: Kafka or the worker fails; logs stay in the folder.
    """
    broker_folder = folder / "broker"
    if brokers.status(broker_folder) is not None:
        raise UsageError(
            f"Kafka of a demonstration still runs in {broker_folder}; "
            f"stop it with: weir broker stop --data {broker_folder}"
        )
    _clear(folder)
    folder.mkdir(parents=True, exist_ok=True)
    keep_logs = False
    try:
        with Screen(console) as screen, ThreadPoolExecutor(1, "demo") as threads:
            loading = threads.submit(load)
            screen.phase("starting Kafka")
            broker = brokers.start(broker_folder, 0, progress=lambda text: screen.phase(f"starting Kafka: {text}"))
            feeds = _awaited(loading, screen, "reading the data")
            outcome = _stream(screen, threads, feeds, broker.bootstrap, folder, seconds)
    except BaseException as error:
        keep_logs = not isinstance(error, KeyboardInterrupt)
        keep = False
        raise
    finally:
        if not keep:
            brokers.stop(broker_folder)
            _clear(folder, keep_logs)
    return outcome


def _clear(folder: Path, keep_logs: bool = False) -> None:
    """Remove what a demonstration makes in its folder, and the folder itself if it has nothing else."""
    data = (folder / "state", folder / "broker/log" if keep_logs else folder / "broker")
    for made in data:
        shutil.rmtree(made, ignore_errors=True)
    if not keep_logs:
        (folder / "worker.log").unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def produce(console: Console, bootstrap: str, seconds: float) -> int:
    """Only create the input topics and fill them, unless they hold records already.

    Returns:
        how many records were produced.
    """
    KafkaClients(bootstrap)
    query = read_query(QUERY, None, RegistryAccess())
    feeds = load()
    if held := create_topics(bootstrap, query.streams()):
        console.print(f"the topics hold {held:,} records already, nothing is produced", highlight=False)
        return 0
    replay = Replay(bootstrap, feeds, {stream.name: stream.topic for stream in query.streams()}, seconds)
    replay.run()
    topics = ", ".join(stream.topic for stream in query.streams())
    console.print(f"{replay.sent:,} records produced to {topics}", highlight=False)
    return replay.sent


def _awaited(future: Future[tuple[Feed, Feed]], screen: Screen, text: str) -> tuple[Feed, Feed]:
    while not future.done():
        screen.phase(text)
        time.sleep(_POLL_S)
    return future.result()


def _stream(
    screen: Screen,
    threads: ThreadPoolExecutor,
    feeds: tuple[Feed, ...],
    bootstrap: str,
    folder: Path,
    seconds: float,
) -> Outcome:
    query = read_query(QUERY, None, RegistryAccess())
    sink = query.sink or query.name
    topics = {stream.name: stream.topic for stream in query.streams()}
    create_topics(bootstrap, query.streams())
    replay = Replay(bootstrap, feeds, topics, seconds)
    worker = WorkerProcess(bootstrap, QUERY, folder, GROUP)
    page = contextlib.ExitStack()
    try:
        worker.wait_ready(lambda: screen.phase("starting the worker"))
        served = page.enter_context(serve(KafkaClients(bootstrap), query, GROUP))
        screen.notes = [
            ("page", served.address),
            ("metrics", worker.metrics_url),
            ("topics", f"{', '.join(topics.values())} to {sink}, on Kafka at {bootstrap}"),
            ("query", str(QUERY)),
            ("stop", "Ctrl-C"),
        ]
        screen.phase(f"the page is at {served.address}")
        reader = ResultReader(bootstrap, sink, len(AIRPORTS))
        try:
            began = time.monotonic()
            producing = threads.submit(replay.run)
            _Follower(replay, producing, reader, worker, lanes_of(list(topics.values()))).follow(
                screen, last_watermarks(feeds, query)
            )
            took = time.monotonic() - began
            metrics = worker.metrics()
        finally:
            replay.stop()
            reader.close()
    finally:
        page.close()
        worker.stop()
    screen.phase("asking DuckDB the same question")
    comparison = compare(expected_results(feeds), reader.lines)
    return Outcome(bootstrap, query, replay.sent, took, metrics, comparison)


class _Follower:
    """Watches producer, worker and results of one replay."""

    def __init__(
        self,
        replay: Replay,
        producing: Future[None],
        reader: ResultReader,
        worker: WorkerProcess,
        lanes: list[Lane],
    ) -> None:
        self._replay = replay
        self._producing = producing
        self._reader = reader
        self._worker = worker
        self._lanes = lanes
        self._admin = TopicAdmin(KafkaClients(reader.bootstrap))
        self._progress = Progress(reader.bootstrap, GROUP, lanes)
        self._rates = _Rates(lambda: (replay.sent, len(reader.lines)))

    def follow(self, screen: Screen, watermarks: Mapping[int, int]) -> None:
        """Show results until the tasks have reached `watermarks` and every result is read.

        Raises:
            BrokerError: the worker ended, or is not done CATCH_UP_DEADLINE_S after the last record was sent.
        """
        settled: dict[int, int] | None = None
        deadline, looked, behind = float("inf"), 0.0, 0
        while settled is None or not self._reader.has_read(settled):
            self._reader.poll(_POLL_S)
            self._worker.check()
            now = time.monotonic()
            if self._producing.done() and deadline == float("inf"):
                self._producing.result()
                deadline = now + CATCH_UP_DEADLINE_S
            if now > deadline:
                raise BrokerError(
                    f"{behind:,} records are not taken {CATCH_UP_DEADLINE_S:g} s after the last was sent; "
                    f"log: {self._worker.log_file}"
                )
            if now - looked > _LOOK_S:
                looked = now
                self._progress.look()
                ends = self._admin.log_ranges(self._lanes)
                behind = self._progress.behind({lane: end for lane, (_, end) in ends.items()})
                if self._producing.done() and self._progress.reached(watermarks):
                    settled = self._reader.settled_ends()
            screen.show(self._moment(behind))

    def _moment(self, behind: int) -> Moment:
        replay, lines = self._replay, self._reader.lines
        sent_per_s, results_per_s = self._rates.now()
        return Moment(
            now_ms=replay.now_ms,
            share=replay.sent / replay.total,
            sent=replay.sent,
            sent_per_s=sent_per_s,
            results=len(lines),
            results_per_s=results_per_s,
            behind=behind,
            latest=lines[-SHOWN_RESULTS:],
        )


class _Rates:
    """Counts per second over the last few seconds."""

    def __init__(self, counts: Callable[[], tuple[int, int]], window_s: float = 3.0) -> None:
        self._counts = counts
        self._window_s = window_s
        self._seen = [(time.monotonic(), *counts())]

    def now(self) -> tuple[float, float]:
        self._seen.append((time.monotonic(), *self._counts()))
        while self._seen[-1][0] - self._seen[0][0] > self._window_s:
            del self._seen[0]
        first, last = self._seen[0], self._seen[-1]
        passed = max(last[0] - first[0], 1e-9)
        return (last[1] - first[1]) / passed, (last[2] - first[2]) / passed
