"""Compares `weir worker`, with and without adaptation, with other engines on the events of a drift scenario.

All events are written to topics in advance, one topic of one partition for each stream. The contenders then read them
in turn, each as a process of its own, until all results are in a topic of the contender's own. Weir's two take part
always. They begin with the plan that is best for the first phase:

    python -m ops.bench.drift.topics --scenario recurring --contender "NAME=COMMAND"

A COMMAND is run without a shell. It finds in its environment BOOTSTRAP, WINDOW_MS, SINK, and TOPIC_A, TOPIC_B, ... by
stream. Records are flat JSON: `ts` (ms) and a column for each predicate. It joins tuples at most WINDOW_MS apart, each
pair of them, and writes for each result `{"a":..., "b":..., ...}`, the `ts` of its tuples. It is stopped by SIGTERM.

A last tuple of each stream, which matches nothing, comes five windows after the others. It moves every watermark past
all results.

What is compared: Weir delivers exactly once and in the order of event time. What others guarantee, their commands
decide. The clock begins BURST_S after the first result can be read, and the rate counts the tuples dated after those
read by then. Start-up is excluded, and so is what the first transaction brings.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
import polars as pl
from confluent_kafka import Producer

from operators.engine.engine import Engine
from ops.bench.drift.outcomes import EPOCH_MS
from ops.bench.drift.runs import DriftSettings, plan_of
from ops.bench.drift.scenarios import Scenario, scenarios
from ops.bench.kafka.kafka_log import CONSUMED_AT_ONCE, DEADLINE_SECONDS, make_topics, reader, running_broker
from ops.bench.kafka.worker_process import STOP_S, cpu_seconds
from ops.bench.measuring.commands import WEIR
from ops.bench.measuring.measure import Progress
from schemas.columns import I64, Batch, Column
from schemas.errors import BrokerError, UsageError, WeirError
from schemas.query import Type

CLOSES_AFTER_WINDOWS = 5
POLL_S = 0.02
BURST_S = 0.25
"""What is read so long after the first result is the first results: a transaction comes in several parts."""

QUIET_S = 1.0
"""Once all results are there, so long is waited for results too many."""

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one contender did.

    Attributes:
        seconds: from its first results to its last one; 0 if all came at once.
        whole_s: from its start to its last result.
        cpu_s: of all its processes, from its start to its last result.
        late_cpu_s: the same, from its first results on.
        broker_s: processor time of the broker, from the first results on; 0 if it is not known.
        tuples: those dated after the first results, up to the last one.
        results: how many it wrote.
        right: they are those of the engine.
    """

    name: str
    seconds: float
    whole_s: float
    cpu_s: float
    late_cpu_s: float
    broker_s: float
    tuples: int
    results: int
    right: bool

    def tuples_per_second(self) -> float:
        """Return the rate after the first results; NaN if all came at once."""
        return self.tuples / self.seconds if self.seconds else math.nan

    def line(self) -> str:
        """Return all figures as one line."""
        return (
            f"{self.name}: {self.tuples_per_second():,.0f} tuples/s ({self.tuples:,} in {self.seconds:.2f} s, "
            f"{self.late_cpu_s:.2f} processor s, broker {self.broker_s:.2f}); from start {self.whole_s:.2f} s, "
            f"{self.cpu_s:.2f} processor s; {self.results:,} results, {'right' if self.right else 'WRONG'}"
        )


@dataclass(frozen=True, slots=True)
class _Filled:
    """Topics with all events.

    Attributes:
        topics: by stream.
        dates: (n,) the ts of all tuples, ascending.
        rows: (m, streams) the ts of each result's tuples, sorted.
    """

    topics: Mapping[str, str]
    dates: I64
    rows: I64


def compare(
    scenario: Scenario,
    settings: DriftSettings,
    others: Mapping[str, str],
    progress: Progress,
    *,
    bootstrap: str | None = None,
    limit_s: float = 600.0,
) -> Iterator[Delivery]:
    """Let Weir's two and the others deliver the results of a scenario, `settings.runs` times in turn.

    Args:
        others: commands, by name.
        bootstrap: a broker that runs already; None starts one.
        limit_s: a contender without all results is stopped after so long.

    Raises:
        UsageError: the scenario's events depend on plans.
        WeirError: a contender ended by itself.
    """
    if scenario.adversary:
        raise UsageError(f"scenario {scenario.name!r} answers changes of plans; accepted is one whose events are fixed")
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as name,
        running_broker(bootstrap, "1g", Path(name) / "broker", progress) as (address, pid, _),
    ):
        tag = f"weir-bench-{os.urandom(3).hex()}"
        plan = str(plan_of(scenario, scenario.at(0.0), settings, settings.seed))
        filled = _fill(scenario, settings, address, tag, progress)
        total = f"{len(filled.dates):,} tuples, {len(filled.rows):,} results"
        progress.tell(f"{scenario.name}, {settings.seconds} s: {total}, first plan {plan}")
        for run in range(settings.runs):
            for contender in ("Weir, adapt on", "Weir, adapt off", *others):
                progress.say(f"{contender}: run {run + 1} of {settings.runs}")
                sink = f"{tag}-out-{os.urandom(3).hex()}"
                make_topics(address, [sink])
                folder = Path(name) / sink
                folder.mkdir()
                command = shlex.split(others[contender]) if contender in others else []
                if not command:
                    (folder / "query.sql").write_text(scenario.program(settings.window_ms, filled.topics, sink))
                    command = [*WEIR, "worker", str(folder / "query.sql"), "--bootstrap", address, "--plan", plan]
                    command += ["--state-dir", str(folder / "state"), "--adapt", contender.rpartition(" ")[2]]
                yield _deliver(contender, command, filled, settings, address, sink, folder, pid, limit_s)


def events(scenario: Scenario, settings: DriftSettings) -> Iterator[dict[str, Batch]]:
    """Yield the events of `weir bench drift` epoch by epoch, and at last those that match nothing."""
    warm_ms = settings.window_ms + settings.window_ms // 2
    whole_ms = warm_ms + settings.seconds * 1000
    for begin in range(0, whole_ms, EPOCH_MS):
        phase = scenario.at(max(begin - warm_ms, 0) / (whole_ms - warm_ms))
        batches = scenario.events(phase, begin, EPOCH_MS, settings.window_ms, settings.seed)
        yield batches
    ts = np.array([whole_ms + CLOSES_AFTER_WINDOWS * settings.window_ms], dtype=np.int64)
    closing = {}
    for number, (name, batch) in enumerate(batches.items()):
        nothing = np.array([-1 - number], dtype=np.int64)
        others = {key: Column(Type.BIGINT, nothing) for key in batch.columns if key != "ts"}
        closing[name] = Batch(ts, {"ts": Column(Type.TIMESTAMP, ts), **others})
    yield closing


def _fill(scenario: Scenario, settings: DriftSettings, bootstrap: str, tag: str, progress: Progress) -> _Filled:
    """Write all events, and join them."""
    topics = {name: f"{tag}-{name}" for name in scenario.names}
    make_topics(bootstrap, list(topics.values()))
    # Without idempotence, requests that a busy machine repeats would change the order, and events would be late.
    ordered = {"linger.ms": 50, "batch.size": 1 << 20, "enable.idempotence": True, "log_level": 0}
    producer = Producer({"bootstrap.servers": bootstrap, **ordered})
    engine = Engine(scenario.query(settings.window_ms))
    rows, dates = list[I64](), list[I64]()
    for batches in events(scenario, settings):
        progress.say(f"filling topics: epoch {len(rows):,}")
        for name, batch in batches.items():
            engine.push(name, 0, batch)
            dates.append(batch.ts)
            frame = pl.DataFrame({key: np.asarray(column.values) for key, column in batch.columns.items()})
            for line in frame.write_ndjson().encode().splitlines():
                while True:
                    try:
                        producer.produce(topics[name], line)
                        break
                    except BufferError:
                        producer.poll(0.1)
        producer.poll(0)
        found = engine.advance(max(int(batch.ts[-1]) for batch in batches.values())).columns
        rows.append(np.column_stack([np.asarray(found[name.lower()].values) for name in scenario.names]))
    if left := producer.flush(DEADLINE_SECONDS):
        raise BrokerError(f"{left} records could not be written to {bootstrap} in {DEADLINE_SECONDS:g} s")
    return _Filled(topics, np.sort(np.concatenate(dates)), _sorted(np.concatenate(rows)))


def _deliver(
    name: str,
    command: Sequence[str],
    filled: _Filled,
    settings: DriftSettings,
    bootstrap: str,
    sink: str,
    folder: Path,
    broker_pid: int | None,
    limit_s: float,
) -> Delivery:
    """Run one contender until its results are there, and stop it."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WEIR_")}
    environment |= {"BOOTSTRAP": bootstrap, "SINK": sink, "WINDOW_MS": str(settings.window_ms)}
    environment |= {f"TOPIC_{stream}": topic for stream, topic in filled.topics.items()}
    consumer, values = reader(bootstrap, [sink]), list[bytes]()
    log = folder / "contender.log"
    began = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

    def now() -> tuple[float, float, float]:
        broker = 0.0 if broker_pid is None else cpu_seconds(broker_pid)
        return time.monotonic(), session_cpu_seconds(process.pid), broker

    def more(patience_s: float) -> int:
        messages = [message.value() for message in consumer.consume(CONSUMED_AT_ONCE, patience_s)]
        values.extend(value for value in messages if isinstance(value, bytes))
        return len(messages)

    try:
        first = last = now()
        begun, head = 0.0, 0
        while len(values) < len(filled.rows) and time.monotonic() < began + limit_s:
            if more(POLL_S):
                last = now()
                if not head or last[0] - begun < BURST_S:
                    begun = begun if head else last[0]
                    first, head = last, len(values)
            if (code := process.poll()) is not None:
                words = "\n  ".join(log.read_text(errors="replace").splitlines()[-5:])
                raise WeirError(
                    f"{name} ended with code {code} before its results were there; its log ends:\n  {words}"
                )
        while more(QUIET_S) and len(values) < 2 * len(filled.rows):
            pass
    finally:
        _stop(process)
        consumer.close()
    rows = np.array([[row[s.lower()] for s in filled.topics] for row in map(orjson.loads, values)], dtype=np.int64)
    begin, end = np.searchsorted(filled.dates, (rows[:head].max(), rows.max()), "right") if head else (0, 0)
    right = rows.shape == filled.rows.shape and bool((_sorted(rows) == filled.rows).all())
    seconds, late_cpu, broker = (b - a for a, b in zip(first, last, strict=True))
    return Delivery(name, seconds, last[0] - began, last[1], late_cpu, broker, int(end - begin), len(values), right)


def _sorted(rows: I64) -> I64:
    return rows[np.lexsort(rows.T)] if len(rows) else rows


def session_cpu_seconds(pid: int) -> float:
    """Return the processor time of all processes of a session, and of their ended children (Linux)."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[3]) == pid:
            found += sum(map(int, fields[11:15]))
    return found / _TICKS


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a session's processes with a signal, and kill them after STOP_S."""
    for number, patience_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description="Compares Weir with other engines, topic to topic, under drift.")
    parser.add_argument("--scenario", default="recurring", help="by default `recurring`")
    parser.add_argument("--seconds", type=int, default=120, help="event time after the windows are filled")
    parser.add_argument("--rate", type=float, default=2_000.0, help="events per second and stream")
    parser.add_argument("--runs", type=int, default=1, help="of each contender, in turn")
    parser.add_argument("--contender", action="append", default=[], metavar="NAME=COMMAND", help="may be repeated")
    parser.add_argument("--bootstrap", help="a broker that runs already; by default one is started")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that each may take")
    given = parser.parse_args()
    settings = DriftSettings(seconds=given.seconds, rate=given.rate, runs=given.runs)
    known = {scenario.name: scenario for scenario in scenarios(settings.rate, settings.phases)}
    others = dict(text.partition("=")[::2] for text in given.contender)
    if given.scenario not in known or not all(others.values()):
        parser.error(f"a contender is NAME=COMMAND, a scenario one of {', '.join(known)}")
    with Progress() as progress:
        scenario = known[given.scenario]
        found = []
        for run in compare(scenario, settings, others, progress, bootstrap=given.bootstrap, limit_s=given.limit):
            print(run.line(), flush=True)
            found.append(run)
    for name in dict.fromkeys(run.name for run in found):
        rates = [run.tuples_per_second() for run in found if run.name == name]
        print(f"{name}: median {statistics.median(rates):,.0f} tuples/s, {min(rates):,.0f} to {max(rates):,.0f}")
    if not all(run.right for run in found):
        sys.exit("results differ")


if __name__ == "__main__":
    main()
