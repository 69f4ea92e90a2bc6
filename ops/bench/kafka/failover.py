"""`weir bench failover`: kills a worker with -9 under load, and measures how long until results can be read again.

- *In place*: a worker with the same state folder is started at once, as docker or systemd do.
- *Taken over*: another worker of the group takes over, without the folder. Kafka considers the dead worker alive until
  its session times out; no takeover can be faster.

The time runs from the kill to the first committed result of the worker that continues. That worker's log shows how the
time was spent. A state's size is that of its tuples in the window, by `BYTES_PER_TUPLE`.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ops.bench.kafka.feed import Feed
from ops.bench.kafka.kafka_log import make_topics, running_broker
from ops.bench.kafka.migrations import Arrivals
from ops.bench.kafka.topic_to_topic import KafkaSettings, paced
from ops.bench.kafka.worker_process import WorkerProcess
from ops.bench.measuring.measure import Progress
from ops.bench.measuring.report import Report
from schemas.errors import WeirError

EXPECTED = (
    "should win: in place, where a snapshot is at hand and the group need not wait for the dead worker.",
    "should lose: taken over, by the session timeout; and large states without a snapshot, which are read again.",
    "the broker, the worker, the producer and the measuring consumer share this machine's cores.",
)
BYTES_PER_TUPLE = 102
"""Size of a tuple in the engine's state, as `weir bench engine` measures it."""

WINDOWS_MS = (1_000, 10_000, 100_000)
"""At 10,000 events a second, states of 1, 10 and 100 MB."""

IN_FLIGHT_S = 0.2
"""Results that the dead worker has committed can still be on their way to the reader."""

PATIENCE_S = 60.0
STEPS = (
    ("worker starting", "the process: Python, modules, kernels, Kafka's topics"),
    ("task opening", "the group assigns the task, which fences the dead one"),
    ("task running", "the state comes back"),
)
"""Lines of a worker's log, and what the time up to each line was spent on; the rest is up to the first result."""


@dataclass(frozen=True, slots=True)
class FailoverSettings:
    """Sizes.

    Attributes:
        bootstrap: a broker that runs already; None starts one.
        runs: kills of each kind.
        rate: events per second, all streams together.
        windows_ms: of the query, one state size each.
        session_s: the session timeout.
    """

    bootstrap: str | None = None
    runs: int = 20
    rate: int = 10_000
    windows_ms: Sequence[int] = WINDOWS_MS
    session_s: float = 10.0
    seed: int = 1
    heap: str = "1g"


@dataclass(frozen=True, slots=True)
class _Trial:
    """One query under load: its topics and folders, and the results seen so far."""

    settings: FailoverSettings
    bootstrap: str
    query: Path
    folder: Path
    group: str
    arrivals: Arrivals
    feed: Feed

    def start(self, name: str) -> WorkerProcess:
        """Start a worker with a folder of its own by that name."""
        session = f"{self.settings.session_s:g}s"
        folder = self.folder / name
        (folder / "worker.log").unlink(missing_ok=True)
        return WorkerProcess(self.bootstrap, self.query, folder, self.group, "--session-timeout", session)

    def first_result(self, since: float) -> float:
        """When the first result arrived after an instant; both by the monotonic clock."""
        until = time.monotonic() + PATIENCE_S + self.settings.session_s
        while time.monotonic() < until:
            if not self.feed.running:
                self.feed.finish()
                raise WeirError("the paced producer ended too early")
            if self.arrivals.at and self.arrivals.at[-1] > since:
                return next(at for at in self.arrivals.at if at > since)
            time.sleep(0.01)
        raise WeirError(f"no result for {PATIENCE_S + self.settings.session_s:g} s after a kill")

    def catch_up(self) -> None:
        """Wait until a snapshot has been written, and until the worker has processed its backlog of records."""
        time.sleep(3.0)


def bench_failover(settings: FailoverSettings, progress: Progress) -> Report:
    """Kill workers, one state size after the other."""
    report = Report(
        "weir bench failover",
        EXPECTED,
        {
            "workload": f"the three-way join, {settings.rate:,} events/s, one task",
            "kills of each kind, session timeout, seed": (
                f"{settings.runs}, {settings.session_s:g} s, {settings.seed}"
            ),
        },
    )
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as name,
        running_broker(settings.bootstrap, settings.heap, Path(name) / "broker", progress) as (bootstrap, _, about),
    ):
        report.settings = {**report.settings, "broker": about}
        for window_ms in settings.windows_ms:
            _state_size(settings, report, progress, bootstrap, Path(name), window_ms)
    return report


def _state_size(
    settings: FailoverSettings, report: Report, progress: Progress, bootstrap: str, folder: Path, window_ms: int
) -> None:
    """Both kinds of kills at one size of the state."""
    workload = paced(KafkaSettings(bootstrap, seed=settings.seed, window_ms=window_ms), settings.rate)
    size = f"{settings.rate * window_ms // 1000 * BYTES_PER_TUPLE / 1e6:,.0f} MB"
    group = f"weir-bench-{os.urandom(3).hex()}-failover"
    topics = {stream: f"{group}-{stream}" for stream in workload.streams}
    make_topics(bootstrap, [*topics.values(), group])
    query = folder / f"{group}.sql"
    query.write_text(workload.sql(group, topics))
    most_s = window_ms / 1000 + settings.runs * 2 * (settings.session_s + PATIENCE_S)
    arrivals = Arrivals(bootstrap, group)
    arrivals.start()
    feed = Feed(bootstrap, topics, settings.rate, most_s, workload.values, settings.seed)
    trial = _Trial(settings, bootstrap, query, folder / group, group, arrivals, feed)
    workers = [trial.start("one")]
    try:
        workers[0].wait_ready()
        progress.say(f"{size}: filling the window")
        trial.first_result(time.monotonic())
        time.sleep(window_ms / 1000)
        in_place, steps = [], []
        for run in range(settings.runs):
            progress.say(f"{size}, in place: kill {run + 1} of {settings.runs}")
            trial.catch_up()
            took, parts = _kill(trial, workers, "one")
            in_place.append(took)
            steps.append(parts)
        taken_over = []
        workers.append(trial.start("two"))
        for run in range(settings.runs):
            progress.say(f"{size}, taken over: kill {run + 1} of {settings.runs}")
            _until_idle_and_busy(workers)
            trial.catch_up()
            owner = next(i for i, worker in enumerate(workers) if worker.metrics().get("tasks", 0) >= 1)
            began = time.monotonic()
            workers[owner].kill()
            taken_over.append(trial.first_result(began + IN_FLIGHT_S) - began)
            workers[owner] = trial.start("one" if owner == 0 else "two")
    finally:
        for worker in workers:
            worker.kill()
        feed.stop()
        arrivals.end()
    report.add(f"in place, {size}: first result", "s after kill -9", in_place)
    report.add(f"in place, {size}: the longest", "s", [max(in_place)], at_most=5.0)
    for i, (_, what) in enumerate(STEPS):
        report.add(f"- {what}", "s", [parts[i] for parts in steps])
    report.add("- the first result", "s", [took - sum(parts) for took, parts in zip(in_place, steps, strict=True)])
    report.add(f"taken over, {size}: first result", "s after kill -9", taken_over)
    report.add(f"taken over, {size}: the longest", "s", [max(taken_over)], at_most=settings.session_s + 5.0)


def _kill(trial: _Trial, workers: list[WorkerProcess], name: str) -> tuple[float, list[float]]:
    """Kill the only worker and start it again; returns seconds to the first result, and those of the steps until
    then."""
    began, wall = time.monotonic(), time.time()
    workers[0].kill()
    workers[0] = trial.start(name)
    took = trial.first_result(began + IN_FLIGHT_S) - began
    log = workers[0].log_file.read_text()
    at, parts = wall, []
    for line, _ in STEPS:
        found = re.search(rf"^(\S+)Z .*: {line}", log, re.MULTILINE)
        if found is None:
            raise WeirError(f"the worker's log does not say {line!r}: {workers[0].log_file}")
        reached = datetime.fromisoformat(found[1] + "+00:00").timestamp()
        parts.append(reached - at)
        at = reached
    return took, parts


def _until_idle_and_busy(workers: Sequence[WorkerProcess]) -> None:
    """Wait until one worker has the task, and the other is in the group without a task."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        found = [worker.metrics() for worker in workers]
        if sorted(metrics.get("tasks", -1) for metrics in found) == [0, 1]:
            return
        time.sleep(0.2)
    raise WeirError(f"two workers have no one task between them after {PATIENCE_S:g} s")
