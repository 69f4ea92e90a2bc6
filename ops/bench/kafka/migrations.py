"""Plan changes on the Kafka path: measures for each strategy how long results stay away, and how many fewer arrive.

A worker runs the three-way join at a constant rate of input. Its plan is changed to and fro, by one strategy after
the other, while a consumer notes when committed results can be read. Between two changes lies a window and a
little more, so that each change meets full states.

With joins in tasks of their own, the time without results is that from the last result of the old tasks to the first
one of the new. The worker's processor time is compared with that of a quiet time of the same length.

Two silences are reported: the task's own (how long its processing stood still, the barrier included) and the consumer's
(the longest time without a result from a second before the cut to a second after the migration). Results arrive with
epochs, one transaction each, so the latter is never below the time of an epoch. The report first shows both silences
without any change.

With joins in tasks of their own only the consumer's silence is known. It lasts until the new plan's first results.

There are at least RESULTS_PER_S results a second, so that a consumer does not wait for lack of results: with a
sixteenth of a result per event, as in the three-way join, 1,000 events/s leave gaps of 200 ms by chance alone.

The producer sends its events every TICK_MS. Sending them every 5 ms took 0.15 of a core more, and as much again in the
broker, on a machine whose two cores a change of plans uses fully.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from ops.bench.kafka.feed import Feed
from ops.bench.kafka.kafka_log import make_topics, reader, running_broker
from ops.bench.kafka.topic_to_topic import KafkaSettings, paced
from ops.bench.kafka.worker_process import WorkerProcess
from ops.bench.measuring.measure import Progress
from ops.bench.measuring.report import Report
from ops.bench.workloads import Workload
from schemas.errors import WeirError
from schemas.language.program import parse_program
from schemas.messages.control import Done
from schemas.query import Query
from services.control.coordinator import Coordinator, CoordinatorSettings
from services.control.plan_requests import MigrationProgress as Migration
from services.control.plan_requests import PlanRequest
from services.process.security import KafkaClients

EXPECTED = (
    "should win: jisc and hybmig-bsc, which never stop for more than a slice of work.",
    "should lose: moving-state and gms, which compute all missing states at once; the longer the window, the longer.",
    "the broker, the worker, the producer and the measuring consumer share this machine's cores.",
)
PLANS = ("((A C) B)", "((A B) C)")
STRATEGIES = ("jisc", "hybmig-bsc", "hybmig", "moving-state", "parallel-track", "ghm", "gms", "gpt")
BETWEEN_TASKS = ("jisc", "hybmig-bsc", "moving-state")
REQUIRED = ("jisc", "hybmig-bsc")
"""These must have no silence above SILENCE_MS and no second with less than SHARE of the usual results."""

SILENCE_MS = 100.0
READER_MS = 200.0
"""With joins in tasks of their own: REQUIRED must have no longer time without results."""

SHARE = 0.9

RESULTS_PER_S = 1_000

TICK_MS = 20


@dataclass(frozen=True, slots=True)
class MigrationSettings:
    """Sizes.

    Attributes:
        runs: changes by every strategy.
        rate: events per second, all streams together.
        quiet_s: between two changes, beyond the window.
        per_operator: joins are tasks of their own; then only the strategies for that are measured.
    """

    bootstrap: str | None = None
    runs: int = 5
    rate: int = 50_000
    window_ms: int = 5_000
    quiet_s: float = 3.0
    seed: int = 1
    strategies: Sequence[str] = STRATEGIES
    per_operator: bool = False
    heap: str = "1g"


class Arrivals(threading.Thread):
    """Notes when how many results can be read; `at` ascends."""

    def __init__(self, bootstrap: str, sink: str) -> None:
        super().__init__(daemon=True)
        self._consumer = reader(bootstrap, [sink])
        self._over = threading.Event()
        self.at: list[float] = []
        self.counts: list[int] = []

    def run(self) -> None:
        while not self._over.is_set():
            count = len(self._consumer.consume(10_000, 0.005))
            if count:
                self.at.append(time.monotonic())
                self.counts.append(count)
        self._consumer.close()

    def end(self) -> None:
        """Stop reading."""
        self._over.set()
        self.join()

    def longest_gap_s(self, begin: float, end: float) -> float:
        """The longest time without results between two instants."""
        times = [begin, *(at for at in self.at if begin < at < end), end]
        return max(b - a for a, b in pairwise(times))

    def per_second(self, begin: float, end: float) -> list[int]:
        """Results of every whole second between two instants."""
        sums = [0] * int(end - begin)
        for at, count in zip(self.at, self.counts, strict=False):
            second = int(at - begin) if at >= begin else -1
            if 0 <= second < len(sums):
                sums[second] += count
        return sums


@dataclass(frozen=True, slots=True)
class _Run:
    """One change: silences in ms, the worst second's results as a share of the usual; `quiet_*` is the time after it.
    `cpu` is the processor time of the worker during the change, as a share of one core's time, likewise `quiet_cpu`."""

    task_ms: float
    reader_ms: float
    share: float
    extra_tuples: int
    quiet_ms: float
    quiet_share: float
    seconds: float
    cpu: float
    quiet_cpu: float


def bench_migrations(settings: MigrationSettings, progress: Progress) -> Report:
    """Measure every strategy in turns."""
    kafka = KafkaSettings(settings.bootstrap, seed=settings.seed, window_ms=settings.window_ms)
    workload = _dense(paced(kafka, settings.rate))
    report = Report(
        "weir bench migrations",
        EXPECTED,
        {
            "workload": f"the three-way join, windows of {settings.window_ms} ms, {settings.rate:,} events/s, "
            f"x,y in [1,{workload.values}]",
            "runs, seed": f"{settings.runs}, {settings.seed}",
        },
    )
    strategies = [s for s in settings.strategies if s in BETWEEN_TASKS or not settings.per_operator]
    placement = ("--placement", "per-operator") if settings.per_operator else ()
    runs: dict[str, list[_Run]] = {strategy: [] for strategy in strategies}
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as name,
        running_broker(settings.bootstrap, settings.heap, Path(name) / "broker", progress) as (bootstrap, _, about),
    ):
        report.settings = {**report.settings, "broker": about}
        sink = f"weir-bench-{os.urandom(3).hex()}-migrations"
        topics = {stream: f"{sink}-{stream}" for stream in workload.streams}
        make_topics(bootstrap, [*topics.values(), sink])
        path = Path(name) / "query.sql"
        path.write_text(workload.sql(sink, topics))
        (query,) = parse_program(path.read_text()).queries
        with WorkerProcess(bootstrap, path, Path(name) / "worker", sink, "--plan", PLANS[-1], *placement) as worker:
            worker.wait_ready()
            arrivals = Arrivals(bootstrap, sink)
            arrivals.start()
            between_s = settings.window_ms / 1000 + settings.quiet_s
            total = settings.runs * len(strategies) * (2 * between_s + 30)
            feed = Feed(bootstrap, topics, settings.rate, total, workload.values, settings.seed, TICK_MS)
            stop = threading.Event()
            coordinator = Coordinator(query, CoordinatorSettings(KafkaClients(bootstrap), sink))
            leader = threading.Thread(target=coordinator.run, args=(stop,))
            leader.start()
            try:
                progress.say("filling the window")
                _wait(feed, 2 * between_s)
                number = 0
                for run in range(settings.runs):
                    for strategy in strategies:
                        progress.say(f"{strategy}: change {run + 1} of {settings.runs}")
                        plan = PLANS[number % len(PLANS)]
                        number += 1
                        runs[strategy].append(
                            _change(query, bootstrap, sink, plan, strategy, feed, arrivals, worker, between_s)
                        )
            finally:
                feed.stop()
                stop.set()
                leader.join()
                arrivals.end()
    every = [run for found in runs.values() for run in found]
    report.add("between changes: longest time without results", "ms, read as committed", [r.quiet_ms for r in every])
    report.add("between changes: the worst second", "of the usual results", [run.quiet_share for run in every])
    report.add("between changes: processor time", "cores", [run.quiet_cpu for run in every])
    for strategy, found in runs.items():
        required = strategy in REQUIRED
        if not settings.per_operator:
            report.add(
                f"{strategy}: longest silence of the task",
                "ms",
                [run.task_ms for run in found],
                at_most=SILENCE_MS if required else None,
                note=f"{statistics.median(run.extra_tuples for run in found):,.0f} tuples more at most",
            )
        report.add(
            f"{strategy}: longest time without results",
            "ms, read as committed",
            [r.reader_ms for r in found],
            at_most=READER_MS if required and settings.per_operator else None,
        )
        report.add(
            f"{strategy}: processor time",
            "cores",
            [run.cpu for run in found],
            note=f"for {statistics.median(run.seconds for run in found):.1f} s from the request to the end",
        )
        report.add(
            f"{strategy}: the worst second",
            "of the usual results",
            [run.share for run in found],
            at_least=SHARE if required else None,
        )
    return report


def _dense(workload: Workload) -> Workload:
    """The workload with so few values that RESULTS_PER_S results come of it, or as it is.

    The three-way join has a sixteenth of a result per event. Results grow with the square of the matches per event.
    """
    results = workload.events_per_second / 16
    return replace(workload, values=max(10, int(workload.values * min(1.0, math.sqrt(results / RESULTS_PER_S)))))


def _wait(feed: Feed, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not feed.running:
            feed.finish()
            raise WeirError("the paced producer ended too early")
        time.sleep(0.05)


def _change(
    query: Query,
    bootstrap: str,
    group: str,
    plan: str,
    strategy: str,
    feed: Feed,
    arrivals: Arrivals,
    worker: WorkerProcess,
    between_s: float,
) -> _Run:
    """One change of plans, and the quiet time after it."""
    seen: list[float] = []

    def watch(migration: Migration) -> None:
        if migration.started and not seen:
            seen.append(time.monotonic())

    began, cpu = time.monotonic(), worker.cpu_seconds()
    request = PlanRequest(query, KafkaClients(bootstrap), group, watch)
    migration = request.run(plan, strategy, prefer="work", at=None, timeout_ms=20_000, wait=True)
    ended, used = time.monotonic(), worker.cpu_seconds() - cpu
    cpu = worker.cpu_seconds()
    _wait(feed, between_s)
    quiet_cpu = (worker.cpu_seconds() - cpu) / (time.monotonic() - ended)
    done: Done = migration.done[0]
    if done.error:
        raise WeirError(f"{strategy}: {done.error}")
    begin = max(began, (seen[0] if seen else ended) - 1.0)
    # Tasks of their own are done when the old plan is; then the new one begins.
    resumed = next((at for at in list(arrivals.at) if at > ended), ended)
    quiet = resumed + 1.0, time.monotonic()
    seconds = arrivals.per_second(*quiet) or [1]
    usual = max(statistics.median(seconds), 1)
    worst = min(arrivals.per_second(begin, resumed + 1.0), default=usual)
    return _Run(
        task_ms=done.longest_silence_s * 1000,
        reader_ms=arrivals.longest_gap_s(begin, resumed + 1.0) * 1000,
        share=worst / usual,
        extra_tuples=done.peak_extra_tuples,
        quiet_ms=arrivals.longest_gap_s(*quiet) * 1000,
        quiet_share=min(seconds) / usual,
        seconds=ended - began,
        cpu=used / (ended - began),
        quiet_cpu=quiet_cpu,
    )
