"""Fixtures that provide a real Apache Kafka for tests.

`broker` (whole session): a container of the official image where a Docker engine answers, else
`services.broker.broker` on a free port; both are the release that `ops/kafka/pom.xml` pins.
`WEIR_TEST_BROKER=docker|local` overrides the choice. `restartable_broker` (one test): always local, with
`start`, `stop` and `kill`. `topics` makes topics with unique names, so that tests share the session's
broker without affecting each other.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from docker.errors import DockerException
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient

from services.broker import broker as local_broker
from services.broker.background import free_port
from services.broker.kafka_jars import kafka_version
from services.broker.settings import HOST, SINGLE_NODE_SETTINGS, SaslUser

READY_DEADLINE_S = 90.0


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = 30.0) -> None:
    """Return as soon as `condition` holds; fail the test if it does not within `deadline_s` seconds."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {deadline_s:g} s in vain: {what}")
        time.sleep(0.02)


@dataclass(frozen=True)
class Topics:
    """Makes topics on one broker."""

    bootstrap: str

    def create(self, stem: str = "topic", partitions: int = 1, **settings: str) -> str:
        """Make a topic and wait until every partition has a leader.

        Args:
            stem: the start of its name; the rest makes it unique.
            settings: topic settings with `_` for `.`, such as `cleanup_policy="compact"`.
        """
        name = f"{stem}-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        config = {key.replace("_", "."): value for key, value in settings.items()}
        admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)

        def led() -> bool:
            found = admin.list_topics(name, timeout=10).topics[name].partitions
            return len(found) == partitions and all(each.leader >= 0 for each in found.values())

        wait_until(led, f"leaders of {name}")
        return name

    __call__ = create

    def delete_before(self, name: str, offset: int, partition: int = 0) -> None:
        """Delete the records of a partition before an offset, as retention does."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for future in admin.delete_records([TopicPartition(name, partition, offset)]).values():
            future.result(30)


@dataclass(frozen=True)
class SessionBroker:
    """The session's broker: `bootstrap` is all a client needs."""

    bootstrap: str


class RestartableBroker:
    """A broker for a single test; its port and data stay the same over stops, kills and starts."""

    def __init__(self, data_dir: Path, sasl: SaslUser | None = None) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        self.bootstrap = f"{HOST}:{self.port}"
        self.sasl = sasl
        self.topics = Topics(self.bootstrap)

    def start(self) -> local_broker.Broker:
        return local_broker.start(self.data_dir, self.port, sasl=self.sasl)

    def stop(self) -> None:
        local_broker.stop(self.data_dir)

    def kill(self) -> None:
        """End the broker as a crash would."""
        local_broker.kill(self.data_dir)


def _discard(data_dir: Path) -> None:
    """Stop a broker and remove its data; its log stays with pytest's kept folders."""
    local_broker.stop(data_dir)
    shutil.rmtree(data_dir / "log", ignore_errors=True)


def _docker_answers() -> bool:
    try:
        client = docker.from_env(timeout=5)
        try:
            return bool(client.ping())
        finally:
            client.close()
    except DockerException:
        return False


def container_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Server settings as the environment variables that the `apache/kafka` image turns into settings."""
    spelled = str.maketrans({".": "_", "_": "__", "-": "___"})
    return {f"KAFKA_{name.translate(spelled).upper()}": value for name, value in settings.items()}


@contextlib.contextmanager
def _container() -> Iterator[str]:
    """The official image on a port of this machine that is the same inside and outside."""
    port = free_port()
    host = DockerClient().host()
    settings = {
        **SINGLE_NODE_SETTINGS,
        "listeners": f"PLAINTEXT://0.0.0.0:{port},CONTROLLER://127.0.0.1:9093",
        "advertised.listeners": f"PLAINTEXT://{host}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": "1@127.0.0.1:9093",
    }
    container = DockerContainer(f"apache/kafka:{kafka_version()}").with_bind_ports(port, port)
    for name, value in container_environment(settings).items():
        container.with_env(name, value)
    with container:
        bootstrap = f"{host}:{port}"
        wait_until(lambda: local_broker.answers(bootstrap), "an answer of the container", READY_DEADLINE_S)
        yield bootstrap


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionBroker]:
    """A real broker that all tests of the session share."""
    where = os.environ.get("WEIR_TEST_BROKER") or ("docker" if _docker_answers() else "local")
    if where == "docker":
        with _container() as bootstrap:
            yield SessionBroker(bootstrap)
        return
    data_dir = tmp_path_factory.mktemp("broker")
    try:
        yield SessionBroker(local_broker.start(data_dir, 0).bootstrap)
    finally:
        _discard(data_dir)


@pytest.fixture
def restartable_broker(tmp_path: Path) -> Iterator[RestartableBroker]:
    """A started broker that the test may stop, kill and start again."""
    own = RestartableBroker(tmp_path / "restartable-broker")
    try:
        own.start()
        yield own
    finally:
        _discard(own.data_dir)


@pytest.fixture
def topics(broker: SessionBroker) -> Topics:
    """Makes topics on the session's broker: `topics("input", partitions=3)` returns the name."""
    return Topics(broker.bootstrap)
