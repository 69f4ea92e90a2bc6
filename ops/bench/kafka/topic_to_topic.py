"""`weir bench kafka`: measures a worker from topic to topic, exactly once, with the broker on the same machine."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from operators.engine.engine import Engine
from ops.bench.engine import agreement
from ops.bench.kafka.feed import Feed
from ops.bench.kafka.kafka_log import (
    count_records,
    decode_columns,
    decode_objects,
    fill,
    make_topics,
    read_through,
    reader,
    running_broker,
)
from ops.bench.kafka.worker_process import WorkerProcess, cpu_seconds
from ops.bench.measuring.commands import run_command
from ops.bench.measuring.measure import Progress, growth, tells_memory
from ops.bench.measuring.report import Report
from ops.bench.workloads import Workload, three_way
from schemas.errors import WeirError

EXPECTED = (
    "should win: throughput, since the worker handles batches and a bare loop handles records one by one.",
    "should lose: latency against a program that commits nothing; each epoch is a transaction of the broker.",
    "the broker, the worker, the producer and the measuring consumer share this machine's cores.",
)
LATENCY_RATE = 5_000
LATENCY_WARM_SECONDS = 3.0
"""The window need not be full, but the worker must be past its start."""


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Sizes of `weir bench kafka`.

    Attributes:
        bootstrap: a broker that runs already; None starts one.
        runs: repetitions of every figure.
        seconds: event time of the topics that throughput is measured on.
        latency_seconds: wall time of each measurement of latency.
        minutes: wall time at constant rate for the memory's growth.
        rate: events per second of that run.
        share: as in `EngineSettings`.
        window_ms: of the runs at a constant rate; filling it takes wall time.
    """

    bootstrap: str | None = None
    runs: int = 5
    seconds: int = 100
    latency_seconds: float = 10.0
    minutes: float = 2.0
    rate: int = 30_000
    seed: int = 1
    heap: str = "1g"
    share: float = 1.0
    window_ms: int = 10_000


@dataclass(frozen=True, slots=True)
class Bench:
    """What all measurements share."""

    report: Report
    settings: KafkaSettings
    progress: Progress
    bootstrap: str
    broker_pid: int | None
    folder: Path
    tag: str

    def query(self, workload: Workload, topics: Mapping[str, str], sink: str, *formats: str) -> Path:
        """Write the program to a file.

        Args:
            formats: of the topics and of the results, as `Workload.sql` has them.
        """
        path = self.folder / f"{sink}.sql"
        path.write_text(workload.sql(sink, topics, *formats))
        return path

    def topics(self, workload: Workload, name: str) -> dict[str, str]:
        """Make fresh input topics, by stream."""
        names = {stream: f"{self.tag}-{name}-{stream}" for stream in workload.streams}
        make_topics(self.bootstrap, list(names.values()))
        return names


def bench_kafka(settings: KafkaSettings, progress: Progress) -> Report:
    """Measure everything; the report's rows contain the required figures."""
    report = Report(
        "weir bench kafka",
        EXPECTED,
        {
            "workload": "that of weir bench engine, one topic of one partition per stream, one worker",
            "runs, seconds of event time, minutes, seed": (
                f"{settings.runs}, {settings.seconds}, {settings.minutes:g}, {settings.seed}"
            ),
        },
    )
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as name,
        running_broker(settings.bootstrap, settings.heap, Path(name) / "broker", progress) as (bootstrap, pid, about),
    ):
        report.settings = {**report.settings, "broker": about}
        bench = Bench(report, settings, progress, bootstrap, pid, Path(name), f"weir-bench-{os.urandom(3).hex()}")
        _throughput(bench)
        _latency(bench)
        if tells_memory():
            _memory(bench)
        else:
            report.skipped.append("memory (this system has no /proc/self/clear_refs)")
    return report


def _throughput(bench: Bench) -> None:
    """The ceilings and the worker in turns, all over the same topics."""
    settings, report, progress = bench.settings, bench.report, bench.progress
    workload = three_way().scaled(settings.share)
    topics = bench.topics(workload, "in")
    fill(bench.bootstrap, workload, topics, settings.seconds, settings.seed, progress)
    events = settings.seconds * workload.events_per_second
    expected = expected_results(workload, settings)
    loops = {
        "confluent-kafka and orjson, consume and decode": decode_objects,
        "confluent-kafka and Weir's decoder, consume and decode": decode_columns(workload, topics),
    }
    ceilings: dict[str, list[float]] = {name: [] for name in loops}
    whole: list[float] = []
    per_cpu: list[float] = []
    broker_cpu: list[float] = []
    counts = []
    for run in range(1, settings.runs + 1):
        for name, decode in loops.items():
            progress.say(f"{name}: run {run} of {settings.runs}")
            ceilings[name].append(read_through(bench.bootstrap, list(topics.values()), events, decode))
        progress.say(f"weir worker: run {run} of {settings.runs}")
        sink = f"{bench.tag}-out-{run}"
        rate, cpu, broker = drain(bench, workload, bench.query(workload, topics, sink), sink)
        whole.append(rate)
        per_cpu.append(cpu)
        broker_cpu.append(broker)
        counts.append(count_records(bench.bootstrap, sink, expected))
    for name, rates in ceilings.items():
        report.add(name, "events/s", rates)
    report.add(
        "weir worker, exactly once",
        "events/s",
        whole,
        at_least=200_000,
        note=f"{agreement(counts[-1], expected)}; {statistics.median(per_cpu):,.0f} per processor second",
    )
    if any(count != expected for count in counts):
        report.skipped.append(f"WRONG RESULTS: {counts} records in the sinks, expected {expected} in each")
    fastest = max(ceilings, key=lambda name: statistics.median(ceilings[name]))
    for name in ceilings:
        report.add(
            f"share of {name}",
            "of the ceiling",
            [a / b for a, b in zip(whole, ceilings[name], strict=True)],
            at_least=0.4 if name == fastest else None,
            note="the fastest of the loops" if name == fastest else "",
        )
    if bench.broker_pid is not None:
        report.add("processor time of the broker meanwhile", "cores", broker_cpu)
    _naive(bench, workload, topics)


def expected_results(workload: Workload, settings: KafkaSettings) -> int:
    """How many results are delivered once everything has been read: the last millisecond waits for later tuples."""
    engine = Engine(workload.query())
    results = 0
    for number in range(settings.seconds):
        for stream, batch in workload.second(number, settings.seed).items():
            engine.push(stream, 0, batch)
        results += len(engine.advance())
    return results


def drain(bench: Bench, workload: Workload, query: Path, sink: str, *options: str) -> tuple[float, float, float]:
    """Let a fresh worker read everything.

    The clock runs from when the window has filled until the last results are committed.

    Args:
        options: more ones of the worker.

    Returns:
        events per second, events per second of its processor time, and the broker's cores.
    """
    seconds = bench.settings.seconds
    last = int(workload.second(seconds - 1, bench.settings.seed)["A"].ts[-1])
    full = min(workload.window_ms // 1000, seconds // 2) * workload.events_per_second
    with WorkerProcess(bench.bootstrap, query, bench.folder / sink, sink, *options) as worker:
        found = worker.wait(lambda m: m.get("input_tuples_total", 0) >= full, "the window fills")
        began, cpu = time.perf_counter(), worker.cpu_seconds()
        broker = cpu_seconds(bench.broker_pid) if bench.broker_pid is not None else 0.0
        before = found["input_tuples_total"]
        found = worker.wait(lambda m: m.get("watermark_milliseconds", 0) >= last, f"watermark {last}")
        took = time.perf_counter() - began
        events = max(1.0, found["input_tuples_total"] - before)  # of tiny topics, all may have been read before
        used = worker.cpu_seconds() - cpu
        shared = cpu_seconds(bench.broker_pid) - broker if bench.broker_pid is not None else 0.0
    return events / took, events / max(used, 0.01), shared / took


def _naive(bench: Bench, workload: Workload, topics: Mapping[str, str]) -> None:
    events = min(30, bench.settings.seconds) * workload.events_per_second
    rates = []
    for run in range(1, bench.settings.runs + 1):
        bench.progress.say(f"naive program: run {run} of {bench.settings.runs}")
        out = f"{bench.tag}-naive-{run}"
        make_topics(bench.bootstrap, [out])
        command = [sys.executable, "-m", "ops.bench.kafka.naive_kafka", "--bootstrap", bench.bootstrap]
        command += ["--window", str(workload.window_ms), "--events", str(events), "--out", out]
        done = run_command([*command, *(f"{stream}={topic}" for stream, topic in topics.items())])
        rates.append(events / json.loads(done.output)["seconds"])
    bench.report.add("naive program on Kafka, dicts and orjson, transactions", "events/s", rates)


def paced(settings: KafkaSettings, rate: int) -> Workload:
    """The three-way join at another rate of all streams together, with the same number of results per event."""
    whole = three_way()
    each = max(1, rate // len(whole.streams))
    values = whole.values * each // whole.rate * settings.window_ms // whole.window_ms
    return replace(whole, rate=each, values=max(10, values), window_ms=settings.window_ms)


def _latency(bench: Bench) -> None:
    settings, report = bench.settings, bench.report
    rate = max(60, int(LATENCY_RATE * settings.share))
    workload = paced(settings, rate)
    topics = bench.topics(workload, "latency")
    sink = f"{bench.tag}-latency-out"
    make_topics(bench.bootstrap, [sink])
    fills = workload.window_ms / 1000
    total = fills + LATENCY_WARM_SECONDS + settings.runs * settings.latency_seconds
    query = bench.query(workload, topics, sink)
    with WorkerProcess(bench.bootstrap, query, bench.folder / sink, sink) as worker:
        worker.wait(lambda m: m.get("tasks", 0) >= 1, "the task runs")
        feed = Feed(bench.bootstrap, topics, rate, total, workload.values, settings.seed)
        try:
            bench.progress.say("latency: filling the window")
            ages = _ages(bench, sink, feed, fills + LATENCY_WARM_SECONDS)
            outcome = feed.finish()
        finally:
            feed.stop()
    parts = [ages[number] for number in sorted(ages) if ages[number]]
    if not parts:
        raise WeirError("no result came while latency was measured")
    count = sum(len(part) for part in parts)
    late = outcome["latest_seconds"] * 1000
    note = f"{count:,} results in {len(parts)} stretches; producer at most {late:.0f} ms late"
    for share, limit in ((0.5, 150), (0.99, 500)):
        report.add(
            f"latency at {rate:,} events/s, p{share * 100:g}",
            "ms, produced to read as committed",
            [_quantile(part, share) for part in parts],
            at_most=limit,
            note=note if share == 0.5 else "",
        )
    report.add("latency, the worst result", "ms", [max(part) for part in parts])


def _ages(bench: Bench, sink: str, feed: Feed, skip: float) -> dict[int, list[float]]:
    """Milliseconds from producing a result's last component to reading the result; all results, by stretch."""
    ages: dict[int, list[float]] = {}
    consumer = reader(bench.bootstrap, [sink])
    began = time.time()
    each = bench.settings.latency_seconds
    while feed.running:
        messages = consumer.consume(1000, 0.005)
        now = time.time()
        stretch = math.floor((now - began - skip) / each)
        if stretch >= bench.settings.runs:
            continue
        bench.progress.say(f"latency: {max(0.0, now - began):.0f} s")
        for message in messages:
            if stretch >= 0 and message.error() is None:
                produced = orjson.loads(message.value())["_ts"]  # type: ignore[arg-type]
                ages.setdefault(stretch, []).append(now * 1000 - produced)
    consumer.close()
    return ages


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _memory(bench: Bench) -> None:
    """Measure at a constant rate how much memory the worker has, and whether it grows."""
    settings, report = bench.settings, bench.report
    rate = max(60, int(settings.rate * settings.share))
    workload = paced(settings, rate)
    topics = bench.topics(workload, "steady")
    sink = f"{bench.tag}-steady-out"
    query = bench.query(workload, topics, sink)
    fills = workload.window_ms / 1000 + 2
    seconds = max(4.0, settings.minutes * 60)
    with WorkerProcess(bench.bootstrap, query, bench.folder / sink, sink) as worker:
        worker.wait(lambda m: m.get("tasks", 0) >= 1, "the task runs")
        first = Feed(bench.bootstrap, topics, 60, 2.0, 10, settings.seed)
        first.finish()
        worker.wait(lambda m: m.get("input_tuples_total", 0) > 0, "the first tuples")
        empty = worker.resident_bytes()
        feed = Feed(bench.bootstrap, topics, rate, fills + seconds, workload.values, settings.seed)
        try:
            samples, cpu = _watch(bench, worker, feed, fills, seconds)
            outcome = feed.finish()
        finally:
            feed.stop()
        peak = worker.peak_bytes()
    live = rate * workload.window_ms // 1000
    about = f"{live:,} live; beyond {empty / 1e6:.0f} MB of an idle worker"
    report.add(
        f"memory of the worker at {rate:,} events/s",
        "bytes per live source tuple",
        [(statistics.median(samples) - empty) / live],
        at_most=120,
        note=about,
    )
    report.add("at its highest moment", "bytes per live source tuple", [(peak - empty) / live])
    report.add(
        f"growth over {seconds / 60:g} minutes at {rate:,} events/s",
        "% from the second to the last quarter",
        [100 * growth(samples)],
        at_most=1.0,
        note=f"{samples[-1] / 1e6:.0f} MB at the end; {outcome['events']:,.0f} events, {cpu:.2f} cores busy",
    )


def _watch(bench: Bench, worker: WorkerProcess, feed: Feed, skip: float, seconds: float) -> tuple[list[int], float]:
    """Resident bytes, sampled evenly once `skip` seconds have passed; and the worker's share of a core."""
    samples: list[int] = []
    began = time.monotonic()
    every = min(1.0, seconds / 40)
    started, cpu = began, worker.cpu_seconds()
    while feed.running:
        time.sleep(every)
        passed = time.monotonic() - began
        bench.progress.say(f"memory at constant rate: {passed:.0f} of {skip + seconds:.0f} s")
        if passed < skip:
            started, cpu = time.monotonic(), worker.cpu_seconds()
        else:
            samples.append(worker.resident_bytes())
    return samples, (worker.cpu_seconds() - cpu) / max(time.monotonic() - started, 0.01)
