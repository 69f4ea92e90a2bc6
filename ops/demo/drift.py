"""`weir demo --drift`: selectivities swap in mid-run; a worker that adapts its plan beside one whose plan is pinned.

Both read the same topics. The pinned plan is the best one at first. Events carry the wall clock, so a worker's delay is
the wall clock less its watermark.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson
from confluent_kafka import Producer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from operators.autopilot.adaptation import Adaptation
from ops.bench.kafka.kafka_log import make_topics
from ops.bench.kafka.worker_process import WorkerProcess
from schemas.errors import UsageError
from services.broker import broker as brokers
from services.control.decisions import adaptation_of, read_decisions
from services.files.query_files import read_query
from services.formats.registry_access import RegistryAccess
from services.kafka.readback import read_to_end
from services.process.security import KafkaClients
from services.ui.serve import serve

QUERY = """\
CREATE STREAM orders (ts TIMESTAMP, customer BIGINT, article BIGINT, route BIGINT)
  WITH (topic = 'orders', timestamp = 'ts');
CREATE STREAM alerts (ts TIMESTAMP, customer BIGINT) WITH (topic = 'alerts', timestamp = 'ts');
CREATE STREAM prices (ts TIMESTAMP, article BIGINT) WITH (topic = 'prices', timestamp = 'ts');
CREATE STREAM delays (ts TIMESTAMP, route BIGINT) WITH (topic = 'delays', timestamp = 'ts');
INSERT INTO '{sink}'
SELECT O.ts AS order_ts, A.ts AS alert_ts, P.ts AS price_ts, D.ts AS delay_ts
FROM orders O, alerts A, prices P, delays D WINDOW RANGE 1 SECOND
WHERE O.customer = A.customer AND O.article = P.article AND O.route = D.route;
"""
FIRST = "(((O A) P) D)"
"""The best plan at first: few orders find an alert."""

COLUMNS = {"orders": ("customer", "article", "route"), "alerts": ("customer",), "prices": ("article",)}
COLUMNS["delays"] = ("route",)

RATE = 3_000
"""Events per second and stream."""

RARE, USUAL, FREQUENT = RATE * 500, RATE, 12
"""How many customers, articles and routes there are; RARE and FREQUENT swap."""

LOOK_S = 0.5
TICK_S = 0.02


@dataclass
class Contender:
    """A worker, and its delays in seconds by phase, looked at every LOOK_S."""

    name: str
    worker: WorkerProcess
    query: Path
    sink: str
    group: str
    delays: list[list[float]] = field(default_factory=list)
    version: int = 0

    def look(self, phase: int) -> None:
        """Note the delay."""
        self.worker.check()
        found = self.worker.metrics()
        while len(self.delays) <= phase:
            self.delays.append([])
        if "watermark_milliseconds" in found:
            self.delays[phase].append(time.time() - found["watermark_milliseconds"] / 1000)
            self.version = int(found.get("plan_version", 0))


@dataclass(frozen=True, slots=True)
class DriftOutcome:
    """What the demonstration has shown.

    Attributes:
        contenders: with their delays.
        decisions: of the worker that adapts.
        compared: results of both workers that were compared.
        equal: whether they are the same.
    """

    contenders: list[Contender]
    decisions: list[Adaptation]
    compared: int
    equal: bool

    def lines(self) -> list[str]:
        """Return the outcome for people."""
        found = []
        for one in self.contenders:
            phases = [
                f"phase {n + 1}: {statistics.median(phase):.2f} s, {max(phase):.2f} s at worst"
                for n, phase in enumerate(one.delays)
                if phase
            ]
            found.append(f"{one.name}: delay of results in {'; '.join(phases)}")
        verdict = "the same" if self.equal else "DIFFERENT"
        found.append(f"{self.compared:,} results of both, as far as the slower one has come: {verdict}")
        return found


class Events(threading.Thread):
    """Produces all streams; the selectivities swap at the end of each phase.

    Attributes:
        phase: the present one.
    """

    def __init__(self, bootstrap: str, phases: int, phase_s: float) -> None:
        super().__init__(daemon=True)
        self.phase = 0
        self._phases = phases
        self._phase_s = phase_s
        self._stop_now = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 10, "log_level": 0})
        self._rng = np.random.default_rng(1)

    def run(self) -> None:
        """Produce until the last phase ends."""
        began = sent_until = time.time()
        while not self._stop_now.is_set() and sent_until < began + self._phases * self._phase_s:
            now = time.time()
            self.phase = min(int((now - began) / self._phase_s), self._phases - 1)
            self._send(sent_until, now)
            sent_until = now
            self._stop_now.wait(TICK_S)
        self._producer.flush(10)

    def end(self) -> None:
        """End early."""
        self._stop_now.set()
        self.join()

    def _send(self, begin: float, end: float) -> None:
        count = round((end - begin) * RATE)
        rare_first = self.phase % 2 == 0
        distinct = {
            "customer": RARE if rare_first else FREQUENT,
            "article": USUAL,
            "route": FREQUENT if rare_first else RARE,
        }
        ts = np.linspace(begin * 1000, end * 1000, count, endpoint=False).astype(np.int64).tolist()
        for stream, columns in COLUMNS.items():
            drawn = {name: self._rng.integers(0, distinct[name], count).tolist() for name in columns}
            for n in range(count):
                row = {"ts": ts[n], **{name: values[n] for name, values in drawn.items()}}
                with contextlib.suppress(BufferError):
                    self._producer.produce(stream, orjson.dumps(row), partition=0)
        self._producer.poll(0)


def demonstrate_drift(console: Console, folder: Path, phases: int, phase_s: float) -> DriftOutcome:
    """Run the demonstration.

    Args:
        folder: for Kafka's data, queries, state and logs; deleted at the end.

    Raises:
        UsageError: Kafka of another demonstration runs there.
        BrokerError: Kafka or a worker fails.
    """
    if brokers.status(folder / "broker") is not None:
        raise UsageError(
            f"Kafka of a demonstration still runs; stop it with: weir broker stop --data {folder / 'broker'}"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        console.print("starting Kafka and two workers", highlight=False)
        broker = brokers.start(folder / "broker", 0)
        clients = KafkaClients(broker.bootstrap)
        make_topics(broker.bootstrap, list(COLUMNS))
        with _workers(broker.bootstrap, folder) as contenders:
            for one in contenders:
                one.worker.wait_ready()
            events = Events(broker.bootstrap, phases, phase_s)
            events.start()
            try:
                with contextlib.ExitStack() as pages:
                    for one in contenders:
                        query = read_query(one.query, None, RegistryAccess())
                        page = pages.enter_context(serve(clients, query, one.group))
                        console.print(f"{one.name}: {page.address}", highlight=False)
                    _watch(console, contenders, events, clients)
            finally:
                events.end()
            decisions = _decisions(clients, contenders[0].group)
            compared, equal = _compare(clients, contenders)
        return DriftOutcome(contenders, decisions, compared, equal)
    finally:
        brokers.stop(folder / "broker")
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _workers(bootstrap: str, folder: Path) -> Iterator[list[Contender]]:
    with contextlib.ExitStack() as stack:
        found = []
        for name, options in (("adapts", ("--adapt", "on")), ("pinned", ("--adapt", "off"))):
            own = folder / name
            own.mkdir()
            query = own / "query.sql"
            query.write_text(QUERY.format(sink=f"results-{name}"))
            group = f"weir-drift-{name}"
            worker = WorkerProcess(bootstrap, query, own, group, "--plan", FIRST, *options)
            found.append(Contender(name, stack.enter_context(worker), query, f"results-{name}", group))
        yield found


def _watch(console: Console, contenders: list[Contender], events: Events, clients: KafkaClients) -> None:
    """Show delays and decisions until all events have been produced."""
    version = told = 0
    live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
    with live or contextlib.nullcontext():
        while events.is_alive():
            time.sleep(LOOK_S)
            phase = events.phase
            for one in contenders:
                one.look(phase)
            if contenders[0].version > version:
                version, made = contenders[0].version, _decisions(clients, contenders[0].group)
                for decision in made[told:]:
                    console.print(decision.line(), highlight=False, markup=False, soft_wrap=True)
                told = len(made)
            if live is not None:
                live.update(_table(contenders, phase))


def _table(contenders: list[Contender], phase: int) -> Table:
    table = Table(border_style="dim", title=f"phase {phase + 1}: many {'delays' if phase % 2 == 0 else 'alerts'}")
    for title in ("worker", "delay now", "worst in this phase", "plan changes"):
        table.add_column(title, justify="right")
    for one in contenders:
        now = one.delays[phase] if len(one.delays) > phase else []
        shown = (f"{now[-1]:.2f} s", f"{max(now):.2f} s") if now else ("", "")
        table.add_row(one.name, *shown, str(one.version))
    return table


def _decisions(clients: KafkaClients, group: str) -> list[Adaptation]:
    return [one for message in read_decisions(clients, group).values() if (one := adaptation_of(message)).made]


def _compare(clients: KafkaClients, contenders: list[Contender]) -> tuple[int, bool]:
    """Compare the results as far as both workers have come: how many there are, and whether they are the same."""
    until = min(int(one.worker.metrics()["watermark_milliseconds"]) for one in contenders)
    found = []
    for one in contenders:
        rows = (orjson.loads(message.value() or b"") for _, message in read_to_end(clients, (one.sink, 0)))
        found.append(Counter(orjson.dumps(row) for row in rows if row["_ts"] < until))
    return found[0].total(), found[0] == found[1]
