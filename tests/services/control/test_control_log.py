"""The control topic and the registry on a real broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from schemas.errors import NewerFormatError, UsageError
from schemas.messages.control import RegisteredQuery, Request, Withdraw, encode_control
from services.control.barrier import View
from services.control.control_log import ControlLog
from services.formats.registry_access import RegistryAccess
from services.kafka.topics import ControlTopics, TopicAdmin
from services.process.security import KafkaClients
from services.registry import query_registry as registry
from tests.broker_fixture import SessionBroker, Topics, wait_until

pytestmark = pytest.mark.kafka

QUERY = """
CREATE STREAM l (k BIGINT, at TIMESTAMP) WITH (topic = 'left', timestamp = 'at');
CREATE STREAM r (k BIGINT, at TIMESTAMP) WITH (topic = 'right', timestamp = 'at');
INSERT INTO 'pairs' SELECT L.k AS k FROM l L [RANGE 1 SECOND], r R [RANGE 1 SECOND] WHERE L.k = R.k
"""


@pytest.fixture
def clients(broker: SessionBroker) -> KafkaClients:
    return KafkaClients(broker.bootstrap)


@pytest.fixture
def logs(topics: Topics, clients: KafkaClients) -> Iterator[list[ControlLog]]:
    """Two readers of one control topic."""
    topic = topics("control")
    both = [ControlLog(clients, topic, name).start() for name in ("one", "two")]
    yield both
    for log in both:
        log.close()


def request(id_: str) -> Request:
    return Request(id=id_, plan="", strategy="", fingerprint="", asked_ms=0)


def test_all_readers_see_what_anybody_appends(logs: list[ControlLog]) -> None:
    one, two = logs
    assert one.read_to_end(30.0) == View()
    one.append(request("a"), request("b"))
    two.append(Withdraw(id="c", reason="", by=""))
    view = two.open(3, "life")
    assert view.incarnations == {3: "life"}
    for log in logs:
        wait_until(lambda log=log: len(log.view.waiting) == 2 and len(log.view.incarnations) == 1, "both requests")
    assert [r.id for r in one.view.waiting] == ["a", "b"]


def test_waiting_for_news(logs: list[ControlLog]) -> None:
    one, two = logs
    seen = two.read_to_end(30.0)
    assert two.wait(seen, 0.05) is seen
    one.append(request("a"))
    assert [r.id for r in two.wait(seen, 30.0).waiting] == ["a"]


def test_what_is_no_message_is_passed_over(
    topics: Topics, clients: KafkaClients, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics("control")
    producer = Producer({"bootstrap.servers": topics.bootstrap})
    producer.produce(topic, b"hello")
    producer.produce(topic, b'{"type": "cut", "v": 1}')
    assert producer.flush(30) == 0
    log = ControlLog(clients, topic, "test").start()
    try:
        log.append(request("a"))
        log.open(0, "life")
        assert [r.id for r in log.view.waiting] == ["a"]
    finally:
        log.close()
    assert "is no control message of Weir" in str(caplog.records[0].__dict__["fields"])
    assert "damaged 'cut' message" in str(caplog.records[1].__dict__["fields"]["reason"])


def test_what_a_newer_weir_has_written_ends_reading(topics: Topics, clients: KafkaClients) -> None:
    """It was passed over with a warning, and the log was folded on without it."""
    topic = topics("control")
    producer = Producer({"bootstrap.servers": topics.bootstrap})
    log = ControlLog(clients, topic, "test").start()
    try:
        seen = log.read_to_end(30.0)
        producer.produce(topic, b'{"type": "party", "v": 9}')
        producer.produce(topic, encode_control(request("a")))
        assert producer.flush(30) == 0
        newer = r"'party' message .*\[0\]@0 was written by a newer Weir \(format 9, this one reads 1\): upgrade"
        for waits in (lambda: log.wait(seen, 30.0), lambda: log.read_to_end(30.0), lambda: log.open(0, "life")):
            with pytest.raises(NewerFormatError, match=newer):
                waits()
        assert log.view.waiting == ()
    finally:
        log.close()


def test_topics_of_a_group(clients: KafkaClients, topics: Topics) -> None:
    """They are created once; a group may be called what a topic may not."""
    admin = TopicAdmin(clients)
    group = f"a group/{topics('group')}"
    made = admin.control(group, -1)
    assert made == admin.control(group, -1) == ControlTopics.of(group)
    assert admin.exists(made.control)
    assert admin.exists(made.history)
    assert not admin.exists(f"{made.control}-of-nobody")
    names = ("control", "statistics", "history", "feedback", "spills", "members", "transactions", "decisions")
    expected = ControlTopics(*(f"weir-alarms.{name}" for name in (*names, "repeats")))
    assert ControlTopics.of("weir-alarms") == expected
    assert admin.exists(admin.feedback(group, -1))
    assert ControlTopics.of("a/b") != ControlTopics.of("a_b")


def weir(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_registered_queries(clients: KafkaClients, tmp_path: Path) -> None:
    path = tmp_path / "pairs.sql"
    path.write_text(QUERY)
    where = ("--bootstrap", clients.bootstrap)
    registered = weir("query", "register", "my-pairs", str(path), *where)
    assert (registered.returncode, registered.stdout) == (0, "registered my-pairs: topic pairs\n")
    registry.register(clients, RegisteredQuery(name="other", text=QUERY, pick="pairs"), -1)
    registry.register(clients, RegisteredQuery(name="strange", text="SELECT THE MOON"), -1)
    listed = weir("query", "list", *where).stdout.splitlines()
    assert listed[:2] == ["my-pairs: left, right to topic pairs", "other: left, right to topic pairs"]
    assert listed[2].startswith("strange: cannot be read: ")
    registry.drop(clients, "strange")
    of_name = registry.find_query(Path("my-pairs"), None, clients, RegistryAccess())
    assert of_name == registry.find_query(path, None, clients, RegistryAccess())
    registry.drop(clients, "my-pairs")
    assert list(registry.registered(clients)) == ["other"]
    with pytest.raises(UsageError, match="'my-pairs' is no file, and no query of that name is registered"):
        registry.find_query(Path("my-pairs"), None, clients, RegistryAccess())
    with pytest.raises(UsageError, match="no query is registered as 'my-pairs'"):
        registry.drop(clients, "my-pairs")
    assert weir("query", "drop", "other", *where).stdout == "dropped other\n"
    assert registry.registered(clients) == {}
