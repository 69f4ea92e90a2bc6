"""Judges whether a trial kept its guarantees: outputs, rejected records, order, transactions, logs, health, exits."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from confluent_kafka import KafkaException

from tests.faults.trial import read_topic
from tests.faults.workload import canonical, reason_fits
from tests.torture.expected import Expected, Place, Stay, stays
from tests.torture.world import World
from tests.worker_harness import Record, WorkerProcess, in_time, unmarked

OPEN_S = 30.0
"""How long a transaction may stay open after all workers have stopped: longer than any timeout that is drawn."""

HEALTHY_S = 90.0
"""How long a worker may take to become healthy at the end: it may have been started a moment ago."""

UNREACHABLE = (
    r"no answer from Kafka|cannot be created|does not answer|Kafka does not|no connection|timed out"
    r"|port \d+ of \S+ is taken by another program"
)
"""Permitted last lines of a worker that could not start: without its broker, or without its port, which another run of
trials took first."""


@dataclass(frozen=True)
class Violation:
    """A violated guarantee."""

    kind: str
    text: str


class Judge:
    """Judges one world; `found` has the violations, `shown` the evidence to store, by file name."""

    def __init__(self, world: World) -> None:
        self.found: list[Violation] = []
        self.notes: list[str] = []
        self.shown: dict[str, Any] = {}
        self._world = world

    def violate(self, kind: str, text: str) -> None:
        """Note a violation."""
        self.found.append(Violation(kind, text))

    # --- Groups -------------------------------------------------------------------------------------

    def _members(self) -> list[bytes]:
        return [r.value for r in read_topic(self._world.client, self._world.members) if r.value is not None]

    def begun(self) -> bool:
        """Whether exactly the registered queries run in every task of the group."""
        try:
            found, _ = stays(self._members())
        except (KafkaException, AssertionError):
            return False
        scenario, registered = self._world.scenario, self._world.registered
        tasks = scenario.partitions if scenario.partition_by else 1
        running = {(stay.task, stay.sink): stay.text for stay in found if stay.ended is None}
        return running == {(task, sink): text for task in range(tasks) for sink, text in registered.items()}

    def stays(self) -> list[Stay]:
        """The runs of queries, as the group reports them."""
        found, wrong = stays(self._members())
        self.shown["members.json"] = [stay.__dict__ for stay in found]
        for text in wrong:
            self.violate("members", text)
        return found

    # --- Workers ------------------------------------------------------------------------------------

    def ended_early(self, worker: WorkerProcess) -> None:
        """Note a worker that did not begin."""
        if worker.process.poll() is not None:
            self.violate("ended", f"a worker did not begin: {worker.text()[-500:]}")

    def health(self) -> None:
        """Check that every worker is healthy, and that no task restarts from its last commit again and again."""
        workers = self._world.running()
        before = [worker.metric("task_restarts_total") for worker in workers]
        deadline = time.monotonic() + HEALTHY_S
        while time.monotonic() < deadline:
            ill = {w.log.name: w.health() for w in workers if w.health().get("status") != "ok"}
            if not ill:
                break
            time.sleep(0.2)
        else:
            self.violate("ill", f"/healthz at the end: {ill}")
        restarts = sum(worker.metric("task_restarts_total") for worker in workers) - sum(before)
        if restarts > 2:
            self.violate("restarts", f"{restarts:.0f} restarts of tasks after all was healed and done")

    def stopped(self, worker: WorkerProcess) -> None:
        """Stop a worker; check that it ends in time and with exit code 0."""
        try:
            code = worker.stop()
        except AssertionError as error:
            self.violate("does not stop", str(error)[-3000:])
            return
        if code != 0 and "worker starting" in worker.text():
            self.violate("exit code", f"{worker.log.name} ended with {code} after SIGTERM: {worker.text()[-600:]}")

    def look_at_logs(self) -> None:
        """Check that no log has a stack trace, and that no worker ended by itself, unless it could not start."""
        world = self._world
        for file in sorted(world.folder.glob("*.log")):
            text = file.read_text(errors="replace")
            if found := re.search(r"Traceback \(most recent call last\)|Fatal Python error", text):
                self.violate("traceback", f"{file.name}: {text[max(0, found.start() - 300) : found.start() + 2500]}")
        for slot in world.slots:
            for code, last, had_begun in slot.exits:
                if not had_begun and re.search(UNREACHABLE, last):
                    self.notes.append(f"a worker could not begin: {last}")
                else:
                    self.violate("ended", f"worker {slot.number} ended by itself with code {code}: {last}")

    # --- Topics -------------------------------------------------------------------------------------

    def outputs(self, expected: Expected) -> None:
        """Check that every output topic has exactly the expected records."""
        world = self._world
        lenient = world.scenario.at_least_once
        for sink, wanted in expected.results.items():
            records = read_topic(world.client, sink)
            wrong = wrong_results(wanted, records, lenient)
            self.found += [Violation(violation.kind, f"{sink}: {violation.text}") for violation in wrong]
            if wrong:
                name = sink.rpartition(".")[2]
                self.shown[f"expected-{name}.json"] = sorted(wanted.elements())
                self.shown[f"got-{name}.json"] = [
                    [record.partition, record.offset, orjson.loads(record.value or b"null")] for record in records
                ]
        late = {place: (value, "^late$") for place, value in expected.late.items()}
        late_found = read_topic(world.client, f"{world.stem}.late")
        dead_found = read_topic(world.client, f"{world.stem}.dead")
        self.found += wrong_rejected_records("late", late, late_found, lenient)
        self.found += wrong_rejected_records("dead", expected.dead, dead_found, lenient)

    def transactions(self) -> None:
        """Check that no transaction is open in any topic of this trial, or in the committed offsets."""
        deadline = time.monotonic() + OPEN_S
        while open_ := self._world.open_records():
            if time.monotonic() > deadline:
                self.violate("open transaction", f"after {OPEN_S:g} s: {open_}")
                return
            time.sleep(0.3)


def wrong_results(wanted: Counter[str], records: Sequence[Record], lenient: bool) -> list[Violation]:
    """The errors in a topic of results: results that are missing, superfluous, or out of order.

    Args:
        wanted: canonical rows.
        records: by partition and offset.
        lenient: whether results may be repeated and out of order (at-least-once).
    """
    rows = [orjson.loads(record.value or b"null") for record in records]
    got = canonical(unmarked(rows))
    missing, extra = wanted - got, got - wanted
    if lenient:
        extra = Counter({row: n for row, n in extra.items() if row not in wanted})
    found = []
    if missing:
        few = sorted(missing)[:4]
        found.append(Violation("missing", f"{missing.total()} of {wanted.total()} results missing, such as {few}"))
    if extra:
        twice = sum(n for row, n in extra.items() if row in wanted)
        found.append(
            Violation(
                "extra",
                f"{extra.total()} results too many beside {wanted.total()}, {twice} of them doubled, such as "
                f"{sorted(extra)[:4]}",
            )
        )
    return found if lenient else found + _disorder(records, rows)


def _disorder(records: Sequence[Record], rows: Sequence[dict[str, Any]]) -> list[Violation]:
    """The first result of a partition that is after a later one; results of cleanups have no order."""
    last: dict[int, int] = {}
    for record, row in zip(records, rows, strict=True):
        if not in_time(row):
            continue
        before = last.get(record.partition, row["_ts"])
        if row["_ts"] < before:
            where = f"partition {record.partition}, offset {record.offset}"
            return [Violation("order", f"{where}: {row} after _ts {before}")]
        last[record.partition] = row["_ts"]
    return []


def wrong_rejected_records(
    kind: str, wanted: Mapping[Place, tuple[bytes | None, str]], records: Sequence[Record], lenient: bool
) -> list[Violation]:
    """The errors in a topic of late tuples or dead letters.

    Args:
        wanted: the value and the pattern of the reason, by stream, partition and offset.
        lenient: whether records may be repeated.
    """
    found = []
    places: Counter[Place] = Counter()
    for record in records:
        headers = record.headers
        place = (headers["stream"], int(headers["partition"]), int(headers["offset"]))
        places[place] += 1
        if place not in wanted:
            found.append(Violation(f"{kind} letter", f"of a record that is not {kind}: {place} {headers}"))
            continue
        value, pattern = wanted[place]
        if (record.value or b"") != (value or b"") or not reason_fits(pattern, headers["reason"]):
            found.append(Violation(f"{kind} letter", f"{place}: {headers}, expected {pattern}, or another value"))
    missing = sorted(set(wanted) - set(places))
    if missing:
        found.append(Violation(f"{kind} letter", f"{len(missing)} of {len(wanted)} missing, such as {missing[:4]}"))
    twice = sorted(place for place, n in places.items() if n > 1)
    if twice and not lenient:
        found.append(Violation(f"{kind} letter", f"{len(twice)} twice, such as {twice[:4]}"))
    return found
