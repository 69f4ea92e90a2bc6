"""The least rights that Weir's commands need of Kafka, as the table in ops/docs/security.md has them: with exactly
these they run through, and without one of them a line says which."""

from __future__ import annotations

import dataclasses
import os
import random
import re
import subprocess
import sys
import uuid
from collections.abc import Iterable
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

from tests.group_workers import GroupTrial, select
from tests.secure_broker import SecureBroker
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


def weir(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **env})


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
        ([], "CREATE on topic 'weir.queries', or WRITE if it is there"),
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
