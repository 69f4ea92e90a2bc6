"""The least rights that Weir's commands need of Kafka, as the table in ops/docs/security.md has them: with exactly
these they run through, and without one of them a line says which."""

from __future__ import annotations

import dataclasses
import os
import random
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from schemas.messages.control import RegisteredQuery
from services.process.security import KafkaClients
from services.registry.query_registry import register
from tests.group_workers import GroupTrial, select
from tests.secure_broker import SecureBroker
from tests.services.spill.test_cleanup import Left
from tests.services.worker import test_distributed_workers_feedback as test_placed_workers_feedback
from tests.services.worker.test_exactly_once import CLOSING, SENSORS, send
from tests.worker_harness import Case, Feed, Reader, WorkerProcess, Workers, assert_exact, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.deep]

TOPIC, GROUP, TRANSACTIONAL = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID


@dataclasses.dataclass(frozen=True)
class Right:
    """To do something with a resource, or with all whose names begin so."""

    kind: ResourceType
    name: str
    operation: str
    prefix: bool = False


def topics(names: Iterable[str], *operations: str, prefix: bool = False) -> list[Right]:
    return [Right(TOPIC, name, operation, prefix) for name in names for operation in operations]


def inputs(case: Case) -> list[str]:
    return sorted({stream.topic for stream in case.query.streams()})


def letters(name: str) -> list[str]:
    return [f"{name}.late", f"{name}.dead"]


def worker_rights(case: Case, group: str, sinks: Iterable[str], query: str) -> list[Right]:
    """What a worker needs: ops/docs/security.md, "Rights"."""
    return [
        *topics(inputs(case), "READ"),
        *topics([*sinks, *letters(query)], "READ", "WRITE", "CREATE", "DESCRIBE_CONFIGS"),
        *topics([f"{group}."], "READ", "WRITE", "CREATE", "DELETE", prefix=True),
        Right(GROUP, group, "READ", prefix=True),
        Right(TRANSACTIONAL, f"{group}.", "WRITE", prefix=True),
    ]


class Somebody:
    """A user of the broker who may do nothing but what is granted."""

    def __init__(self, secured: SecureBroker) -> None:
        self.name = f"user-{uuid.uuid4().hex[:8]}"
        self._secured = secured
        secured.add_scram_user(self.name)
        self.env = secured.scram(self.name)

    def may(self, rights: Iterable[Right]) -> Somebody:
        wanted = [self._binding(right) for right in rights]
        for future in (self._secured.admin.create_acls(wanted) if wanted else {}).values():
            future.result(30)
        return self

    def may_not(self, right: Right) -> None:
        binding = self._binding(right)
        given = (binding.restype, binding.name, binding.resource_pattern_type, binding.principal, "*")
        wanted = AclBindingFilter(*given, binding.operation, binding.permission_type)
        for future in self._secured.admin.delete_acls([wanted]).values():
            assert future.result(30)

    def _binding(self, right: Right) -> AclBinding:
        pattern = ResourcePatternType.PREFIXED if right.prefix else ResourcePatternType.LITERAL
        operation, user = AclOperation[right.operation], f"User:{self.name}"
        return AclBinding(right.kind, right.name, pattern, user, "*", operation, AclPermissionType.ALLOW)

    def at(self, case: Case) -> Case:
        """A case as this user reaches it."""
        return dataclasses.replace(case, bootstrap=self.env["WEIR_BOOTSTRAP"])


@pytest.fixture
def somebody(secured: SecureBroker) -> Somebody:
    return Somebody(secured)


def no_refusal(worker: WorkerProcess) -> None:
    """Nothing that the worker tried was refused."""
    assert not re.search("(?i)refuse|authoriz", worker.text()), worker.with_log("a refusal")


def test_a_worker_with_a_budget(secured: SecureBroker, tmp_path: Path, workers: Workers, somebody: Somebody) -> None:
    """A join that spills: its log is written, read again by a second worker, and trimmed."""
    case = Case.make(secured.topics, tmp_path, SENSORS)
    somebody.may(worker_rights(case, f"weir-{case.sink}", [case.sink], case.sink))
    feed, rng = Feed(case), random.Random(31)
    for begin, state in ((0, "one"), (150, "other")):
        options = ("--memory", "20KiB", "--snapshot", "200ms")
        worker = workers.start(somebody.at(case), *options, state=tmp_path / state, env=somebody.env).wait_running()
        send(feed, rng, begin, 150)
        wait_for(lambda worker=worker: worker.metric("spills_total") > 0, worker.with_log("spills"))
        if begin == 0:
            assert worker.stop() == 0
            no_refusal(worker)
    feed.finish(CLOSING)
    assert_exact(case, Reader(case.bootstrap, case.sink), worker)
    assert worker.stop() == 0
    no_refusal(worker)


def test_joins_of_their_own_with_feedback(
    secured: SecureBroker, tmp_path: Path, workers: Workers, somebody: Somebody
) -> None:
    placed = test_placed_workers_feedback
    case = Case.make(secured.topics, tmp_path, placed.FOUR)
    somebody.may(worker_rights(case, f"weir-{case.sink}", [case.sink], case.sink))
    feed, rng = Feed(case), random.Random(32)
    worker = workers.start(somebody.at(case), *placed.PLACED, *placed.LEFT_DEEP, env=somebody.env)
    placed.send(feed, rng, 0, 100)
    wait_for(lambda: worker.metric("feedback_requests_total") > 5, lambda: worker.with_log("feedback"))
    feed.finish(placed.CLOSING)
    assert_exact(case, Reader(case.bootstrap, case.sink), worker)
    assert worker.stop() == 0
    no_refusal(worker)
    # An audit looks for commits between the joins. If it sees them, it comes to the results.
    auditor = Somebody(secured).may([*topics(inputs(case), "READ"), Right(GROUP, f"weir-{case.sink}", "DESCRIBE")])
    done = weir(auditor.env, "audit", str(case.path))
    assert f"this user needs DESCRIBE on topics 'weir-{case.sink}.*'" in done.stderr
    auditor.may(topics([f"weir-{case.sink}."], "DESCRIBE", prefix=True))
    done = weir(auditor.env, "audit", str(case.path))
    assert f"this user needs READ on topic '{case.sink}'" in done.stderr


def weir(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **env})


def test_a_group_and_who_registers_it(
    secured: SecureBroker, tmp_path: Path, workers: Workers, somebody: Somebody
) -> None:
    """Whoever registers queries needs no right to their topics; the worker may not write the registry."""
    trial = GroupTrial.make(secured.topics, tmp_path)
    rng = random.Random(33)
    trial.selects = {f"{trial.name}-{sink}": select(rng, joins=True) for sink in "ab"}
    file = trial.file({sink: trial.selects[f"{trial.name}-{sink}"] for sink in "ab"})
    registrar = Somebody(secured).may(topics(["weir.queries"], "READ", "WRITE", "CREATE"))
    done = weir(registrar.env, "query", "register", trial.name, str(file), "--group")
    assert done.returncode == 0, done.stderr
    group = f"weir-{trial.name}"
    rights = worker_rights(trial.case, group, [f"{trial.name}-"], trial.name)
    sinks = [dataclasses.replace(right, prefix=True) if right.name == f"{trial.name}-" else right for right in rights]
    somebody.may([*sinks, *topics(["weir.queries"], "READ")])
    worker = workers.start(somebody.at(trial.case), env=somebody.env).wait_running()
    feed = Feed(trial.case)
    send(feed, rng, 0, 100)
    feed.finish(CLOSING)
    trial.judge(worker)
    assert worker.stop() == 0
    no_refusal(worker)


def test_a_coordinator(secured: SecureBroker, tmp_path: Path, workers: Workers, somebody: Somebody) -> None:
    """It leads, with no right to read or write data; without the right to its log, a line says so."""
    case = Case.make(secured.topics, tmp_path, SENSORS)
    control = f"weir-{case.sink}.control"
    rights = [*topics(inputs(case), "DESCRIBE"), *topics([control], "READ", "WRITE", "CREATE")]
    for name in ("statistics", "history"):
        rights += topics([f"weir-{case.sink}.{name}"], "DESCRIBE", "CREATE")
    somebody.may(rights)
    coordinator = workers.coordinator(somebody.at(case), env=somebody.env).wait_running()
    coordinator.process.terminate()
    assert coordinator.process.wait(30) == 0
    assert "refuse" not in coordinator.text()
    somebody.may_not(Right(TOPIC, control, "READ"))
    coordinator = workers.coordinator(somebody.at(case), env=somebody.env)
    line = f"cannot be read.*this user needs READ on topic '{control}'"
    wait_for(lambda: re.search(line, coordinator.text()), coordinator.text)


def test_no_right_to_register(secured: SecureBroker, tmp_path: Path, somebody: Somebody) -> None:
    path = tmp_path / "q.sql"
    path.write_text(SENSORS.format(temperature="t", humidity="h", light="l", sink="out"))
    for granted, needed in (
        ([], "READ on topic 'weir.queries'"),
        (["READ", "CREATE"], "WRITE on topic 'weir.queries'"),
    ):
        somebody.may(topics(["weir.queries"], *granted))
        done = weir(somebody.env, "query", "register", "rights", str(path))
        assert done.returncode == 1
        assert re.fullmatch(rf"weir: .*: Kafka refuses it, this user needs {re.escape(needed)}\n", done.stderr)


LACKING = {
    "read an input": ("light", "READ", r"needs READ on topic '{light}'"),
    "read an input that it sees": ("humidity", "READ", r"needs READ on topic '{humidity}'"),
    "write results": ("sink", "WRITE", r"needs WRITE on topic '{sink}'"),
    "make the topic of results": ("sink", "CREATE", r"needs CREATE on topic '{sink}', or WRITE if it is there"),
    "know limits": ("sink", "DESCRIBE_CONFIGS", r"needs DESCRIBE_CONFIGS on topic '{sink}'"),
    "write late tuples": ("late", "WRITE", r"needs WRITE on topic '{sink}\.late'"),
    "read the control topic": ("own", "READ", r"needs READ on topic 'weir-{sink}\.control'"),
    "write internal topics": ("own", "WRITE", r"needs WRITE on topic 'weir-{sink}\.transactions'"),
    "make the control topic": ("own", "CREATE", r"needs CREATE on topic 'weir-{sink}\.control', or WRITE.*"),
    "be of the group": ("group", "READ", r"needs READ on group 'weir-{sink}'"),
    "commit": ("transactional", "WRITE", r"needs WRITE on transactional id 'weir-{sink}\.0'"),
    "delete spill events": ("own", "DELETE", r"needs DELETE on topic 'weir-{sink}\.spills'"),
}


@pytest.mark.parametrize("lack", LACKING)
def test_a_worker_without_one_right(
    lack: str, secured: SecureBroker, tmp_path: Path, workers: Workers, somebody: Somebody
) -> None:
    """A line names the resource and the right; Kafka's own words name neither. What is refused every time is said
    once."""
    resource, operation, line = LACKING[lack]
    case = Case.make(secured.topics, tmp_path, SENSORS)
    group = f"weir-{case.sink}"
    names = {
        "light": case.topic("light"),
        "humidity": case.topic("humidity"),
        "sink": case.sink,
        "late": f"{case.sink}.late",
        "own": f"{group}.",
        "group": group,
        "transactional": f"{group}.",
    }
    kind = {"group": GROUP, "transactional": TRANSACTIONAL}.get(resource, TOPIC)
    rights = worker_rights(case, group, [case.sink], case.sink)
    without = [r for r in rights if (r.kind, r.name, r.operation) != (kind, names[resource], operation)]
    assert len(without) == len(rights) - 1
    somebody.may(without)
    if resource == "humidity":
        somebody.may(topics([case.topic("humidity")], "DESCRIBE"))
    if (resource, operation) == ("sink", "WRITE"):
        # Who makes a topic need not be who writes it.
        secured.admin.create_topics([NewTopic(case.sink, 1, 1)])[case.sink].result(30)
    feed, rng = Feed(case), random.Random(34)
    send(feed, rng, 0, 200)
    options = ("--memory", "20KiB", "--snapshot", "100ms", "--no-wait")
    worker = workers.start(somebody.at(case), *options, env=somebody.env)
    pattern = line.format(**{name: re.escape(names[name]) for name in ("light", "humidity")}, sink=re.escape(case.sink))

    def said() -> bool:
        if operation == "DELETE" and worker.metric("watermark_milliseconds") == case.watermark():
            send(feed, rng, sum(map(len, case.rows["light"])), 100)  # until there is something to delete
        return re.search(rf"Kafka refuses it, this user {pattern}", worker.text()) is not None

    wait_for(said, lambda: worker.with_log(lack))
    assert "Traceback" not in worker.text(), worker.with_log("a traceback")


@dataclasses.dataclass(frozen=True)
class Running:
    """A query that runs and its coordinator, a group that nobody runs, and what a run over files has left to
    `weir cleanup`. The query and the group are registered."""

    case: Case
    trial: GroupTrial
    left: Left

    @property
    def group(self) -> str:
        return f"weir-{self.case.sink}"


@pytest.fixture(scope="module")
def running(secured: SecureBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("running")
    case, trial = Case.make(secured.topics, folder, SENSORS), GroupTrial.make(secured.topics, folder)
    everything = KafkaClients(case.bootstrap)
    register(everything, RegisteredQuery(name=case.sink, text=case.path.read_text()), -1)
    trial.register({"a": select(random.Random(35), joins=True)})
    workers = Workers(folder)
    try:
        workers.coordinator(case).wait_running()
        worker = workers.start(case).wait_running()
        feed = Feed(case)
        send(feed, random.Random(36), 0, 200)
        feed.finish(CLOSING)
        assert_exact(case, Reader(case.bootstrap, case.sink), worker)
        yield Running(case, trial, Left(folder))
    finally:
        workers.end()


REGISTERED = topics(["weir.queries"], "READ")
"""What is needed to name a query by its registration in place of a file."""


def cleanup_rights(query: str, sink: str) -> list[Right]:
    """In an order in which the lack of each shows: first as no topic is there, then as no result is written, and, once
    all are written and the log of the transactions has not been deleted, as if the cleanup had died then. If it had
    written dead letters, it would read them, too."""
    outputs, commits, own = [sink, f"{query}.dead"], f"{query}.cleanup", ["weir-cleanup-"]
    return [
        *topics([f"{query}."], "CREATE", prefix=True),
        *topics(own, "CREATE", "WRITE", prefix=True),
        Right(TRANSACTIONAL, *own, "WRITE", prefix=True),
        *topics([*outputs, commits], "WRITE"),
        *topics(own, "DELETE", "READ", prefix=True),
        *topics([sink, commits], "READ"),
        Right(GROUP, *own, "READ", prefix=True),
        *topics(outputs, "DESCRIBE_CONFIGS"),
    ]


Command = Callable[[Running], tuple[list[str], list[Right]]]
"""Arguments and rights."""

COMMANDS: dict[str, Command] = {
    "list": lambda it: (
        ["query", "list"],
        [*REGISTERED, *topics([f"weir-{it.trial.name}.members"], "READ")],
    ),
    "inspect": lambda it: (["inspect", it.case.topic("light")], topics([it.case.topic("light")], "READ")),
    "analyze": lambda it: (
        ["explain", it.case.sink, "--analyze"],
        [*REGISTERED, *topics([f"{it.group}.statistics", f"{it.group}.decisions"], "READ")],
    ),
    "migrate": lambda it: (
        ["migrate", it.case.sink, "--plan", "((H L) T)"],
        [*REGISTERED, *topics([f"{it.group}.control"], "READ", "WRITE")],
    ),
    "cleanup": lambda it: (
        ["cleanup", it.left.path("backlog"), "--topic", "results.rest"],
        cleanup_rights("results", "results.rest"),
    ),
    "backfill": lambda it: (["backfill", it.case.sink], [*REGISTERED, *topics(inputs(it.case), "READ")]),
    "audit": lambda it: (
        ["audit", it.case.sink],
        [
            *REGISTERED,
            *topics([*inputs(it.case), it.case.sink, f"{it.case.sink}.late"], "READ"),
            Right(GROUP, it.group, "DESCRIBE"),
        ],
    ),
    "drop": lambda it: (["query", "drop", it.case.sink], topics(["weir.queries"], "READ", "WRITE")),
}
SLOW = {"backfill", "audit"}
"""They start Spark."""


def refusal(right: Right) -> str:
    """A pattern of the line that names a missing right."""
    kind = {TOPIC: "topic", GROUP: "group", TRANSACTIONAL: "transactional id"}[right.kind]
    # Committed offsets are read by those who also commit.
    operation = "READ" if right.kind == GROUP else right.operation
    rest = "[^']*" if right.prefix else ""
    return f"this user needs {operation} on {kind} '{re.escape(right.name)}{rest}'"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in COMMANDS]
)
def test_a_command_runs_with_these_rights_and_names_one_that_is_missing(
    name: str, secured: SecureBroker, tmp_path: Path, running: Running, somebody: Somebody
) -> None:
    arguments, rights = COMMANDS[name](running)
    somebody.may(rights)
    for number, lacking in enumerate([*rights, None]):
        again = list(arguments)
        if name == "cleanup":
            again[1] = str(shutil.copytree(arguments[1], tmp_path / str(number)))
        if lacking is not None:
            somebody.may_not(lacking)
        done = weir(somebody.env, *again)
        said = done.stdout + done.stderr
        if lacking is None:
            assert done.returncode == 0, said
        else:
            assert re.search(refusal(lacking), said), f"{lacking}: {said}"
            somebody.may([lacking])
        assert "Traceback" not in said, said
        others = [right for right in rights if right != lacking and re.search(refusal(right), said)]
        assert not others, f"{others}: {said}"
