"""PostgreSQL, Debezium in Kafka Connect, Kafka and workers, all of them real: tuples get the rows of their times."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Consumer, TopicPartition

from schemas.language.program import parse_program
from schemas.query import Stream
from tests.broker_fixture import Topics
from tests.debezium import connect as debezium
from tests.debezium.changes import DECLARED, ROWS_OF_WRITER, TABLE, Commit, Writers, state_at
from tests.debezium.connect import Connect, connector, in_avro, in_json, topic_of
from tests.debezium.postgres import Postgres
from tests.services.formats.test_changelogs import versions_of as decoded_versions
from tests.services.formats.test_records import Records
from tests.worker_harness import FAR, Case, Feed, Reader, Row, Workers, assert_exact, wait_for

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(bool(debezium.missing()), reason=debezium.missing() or "all is there"),
]

MANUAL = Path(__file__).parents[3] / "ops" / "docs" / "formats.md"
LARGE = "".join(f"{n * n:x}" for n in range(3000))
"""Compressed, it is still larger than PostgreSQL puts beside other values."""

QUERY = """
CREATE STREAM orders (id BIGINT, account BIGINT, at TIMESTAMP)
  WITH (topic = '{orders}', timestamp = 'at', disorder = '50 MILLISECONDS');
CREATE STREAM paid (id BIGINT, at TIMESTAMP)
  WITH (topic = '{paid}', timestamp = 'at', disorder = '50 MILLISECONDS');
DECLARED;
INSERT INTO '{sink}'
SELECT O.id AS id, O.account AS account, O.at AS at, P.at AS paid,
       A.name AS name, A.rate AS rate, A.amount AS amount, A.active AS active, A.seen AS seen, A.changed AS changed
FROM orders O [RANGE 1 SECOND] LEFT JOIN accounts FOR SYSTEM_TIME AS OF O._ts AS A ON A.id = O.account,
     paid P [RANGE 1 SECOND]
WHERE P.id = O.id
"""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Shop:
    """Sends orders and payments as time goes by."""

    def __init__(self, case: Case, seed: int) -> None:
        self._feed = Feed(case)
        self._rng = random.Random(seed)
        self._number = 0

    def sell(self, count: int) -> None:
        """Send this many of both, ten milliseconds apart, some a little late in the log."""
        rng = self._rng
        for _ in range(count):
            self._number += 1
            account = 100 * rng.choice([1, 2]) + rng.randrange(ROWS_OF_WRITER)
            at = now_ms() - rng.choice([0, 0, 20, 45])
            self._feed.send("orders", [{"id": self._number, "account": account, "at": at}])
            self._feed.send("paid", [{"id": rng.randrange(max(1, self._number - 9), self._number + 1), "at": now_ms()}])
            time.sleep(0.01)
        self._feed.flush()

    def close(self) -> None:
        """Let the streams' watermarks pass all that has been sent."""
        self._feed.raw("orders", orjson.dumps({"id": -1, "account": -1, "at": now_ms() + FAR}))
        self._feed.raw("paid", orjson.dumps({"id": -2, "at": now_ms() + FAR}))
        self._feed.flush()


def versions_of(commits: list[Commit], snapshot_ms: int) -> list[Row]:
    """What PostgreSQL had from the snapshot on, as the oracle takes it."""
    first = Commit(snapshot_ms, dict(state_at(commits, snapshot_ms)))
    return [
        {"id": key, "_ts": commit.ms} | ({"_op": "-"} if row is None else row)
        for commit in (first, *(one for one in commits if one.ms > snapshot_ms))
        for key, row in commit.changed.items()
    ]


def time_of_snapshot(bootstrap: str, topic: str) -> int:
    """The record's own time of the first record of a topic, at which the snapshot had begun."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "first", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        message = consumer.poll(60)
        assert message is not None, f"{topic} stays empty"
        return int(message.timestamp()[1])
    finally:
        consumer.close()


@pytest.fixture
def server() -> Iterator[Postgres]:
    found = Postgres()
    yield found
    found.close()


@pytest.mark.parametrize("form", ["json", "avro"])
def test_while_workers_and_the_connector_die(
    form: str, server: Postgres, topics: Topics, tmp_path: Path, workers: Workers, registry: str
) -> None:
    """A killed Kafka Connect writes its last changes again; a killed worker reads the table again."""
    converters = in_avro(registry) if form == "avro" else in_json(schemas=False)
    settings = connector(server, f"db-{os.urandom(4).hex()}", TABLE, converters)
    options = f"format = 'debezium-{form}'" + (f", registry = '{registry}'" if form == "avro" else "")
    declared = DECLARED.format(accounts=topic_of(settings), options=options)
    writers, connect = Writers(server, 1), Connect(tmp_path / "connect", topics.bootstrap, settings)
    writers.start()
    try:
        connect.start()
        connect.wait_running()
        begun = time_of_snapshot(topics.bootstrap, topic_of(settings))
        case = Case.make(topics, tmp_path, QUERY.replace("DECLARED", declared))
        shop, reader = Shop(case, 1), Reader(case.bootstrap, case.sink)
        worker = workers.start(case, "--snapshot", "100ms", "--commit", "100ms").wait_running()
        shop.sell(150)
        reader.wait_for_count(40, worker.alive)
        worker.kill()
        shop.sell(50)
        connect.kill()
        worker = workers.start(case, "--snapshot", "100ms", "--commit", "100ms").wait_running()
        shop.sell(50)
        connect.start()
        shop.sell(200)
        connect.wait_running()
        shop.sell(100)
        writers.stop()
        writers.mark(0)
        shop.close()
        case.rows["accounts"] = [versions_of(writers.commits(), begun)]
        assert_exact(case, reader, worker)
        rows = reader.rows()
        assert sum(row["seen"] is None for row in rows) > 20
        assert len({row["name"] for row in rows}) > 20
        assert not Reader(case.bootstrap, f"{case.sink}.late").poll()
        assert worker.stop() == 0
    finally:
        writers.stop()
        connect.kill()


def test_the_settings_in_the_manual(server: Postgres, topics: Topics, tmp_path: Path) -> None:
    """And what it says of rows, types, large values and of a database that is silent but for Debezium's heartbeat."""
    section = MANUAL.read_text().partition("## Changes of a database\n")[2].partition("\n## ")[0]
    blocks: dict[str, str] = {}
    for kind, text in re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL):
        blocks[kind] = blocks.get(kind, "") + text
    (query,) = parse_program(blocks["sql"]).queries
    table = query.lookups[0].table
    settings = dict(line.split("=", 1) for line in blocks["properties"].splitlines())
    here = connector(server, "shop", "customers", {})
    given = {key: here[key] for key in ("database.hostname", "database.port", "database.dbname")}
    beat = {"heartbeat.interval.ms": "500", "heartbeat.action.query": "UPDATE customers SET name = 'beat' WHERE id = 0"}
    session = server.session()
    session.run(
        "CREATE TABLE customers (id bigint PRIMARY KEY, name text, credit numeric(10, 2), joined timestamp)",
        "INSERT INTO customers VALUES (1, NULL, 12.34, '2026-01-02 03:04:05.678901')",
        "INSERT INTO customers VALUES (0), (2), (3)",
        *(
            line.strip()
            for line in blocks["postgresql"].replace("shop", here["database.dbname"]).split(";")
            if line.strip()
        ),
    )
    connect = Connect(tmp_path / "connect", topics.bootstrap, {**settings, **given, **beat})
    versions = Versions(topics.bootstrap, table)
    try:
        connect.start()
        connect.wait_running()
        versions.wait_for(3)
        at = session.transaction(
            [
                f"UPDATE customers SET name = '{LARGE}' WHERE id = 2",
                "DELETE FROM customers WHERE id = 3",
                "UPDATE customers SET id = 4 WHERE id = 1",
            ],
            nullcontext(),
        )
        versions.wait_for(4)
        session.run("UPDATE customers SET credit = 0.5 WHERE id = 2", "TRUNCATE customers")
        session.run("ALTER TABLE customers REPLICA IDENTITY FULL", "INSERT INTO customers VALUES (0)")
        session.run(f"INSERT INTO customers VALUES (5, '{LARGE}')")
        session.run("UPDATE customers SET credit = 1 WHERE id = 5")
        versions.wait_for(5, "credit", 1.0)
        beats = len(versions.of(0))
        wait_for(lambda: len(versions.of(0)) > beats + 1, "Debezium's heartbeat")
    finally:
        connect.kill()
        session.close()
    joined = 1767323045678
    first, gone, tombstone = versions.of(1)
    assert first[1:] == (1, None, 12.34, joined, False)
    assert gone == (at, 1, None, None, None, True)
    assert tombstone == (0, 1, None, None, None, True)
    assert set(versions.keys()) == {b"%d" % number for number in range(6)}
    assert versions.of(4) == [(at, 4, None, 12.34, joined, False)]
    assert versions.of(2)[1:] == [(at, 2, LARGE, None, None, False)]
    assert versions.of(3)[1:] == [(at, 3, None, None, None, True), (0, 3, None, None, None, True)]
    assert [row[2:4] for row in versions.of(5)] == [(LARGE, None), (LARGE, 1.0)]
    assert [letter.partition(":")[0] for letter in versions.letters] == [
        "field 'name' is a large value that the change leaves out"
    ]


class Versions:
    """What Weir reads of the topic of a table.

    Attributes:
        letters: why records are dead letters.
    """

    def __init__(self, bootstrap: str, table: Stream) -> None:
        self.letters: list[str] = []
        self._reader = Reader(bootstrap, table.topic)
        self._table = table

    def of(self, key: int) -> list[tuple[Any, ...]]:
        """The versions of a row: their times, columns, and whether the row ends."""
        records = self._reader.poll()
        found = decoded_versions(self._table, Records([one.value for one in records], [one.key for one in records]))
        self.letters = [one for one in found if isinstance(one, str)]
        return [one for one in found if isinstance(one, tuple) and one[1] == key]

    def keys(self) -> list[bytes | None]:
        """The keys of all records."""
        return [record.key for record in self._reader.poll()]

    def wait_for(self, key: int, column: str = "id", value: Any = None) -> None:
        """Wait for a row, or for one with a value."""
        names = [field.name for field in self._table.fields]

        def there() -> bool:
            return any(value in (None, row[1 + names.index(column)]) for row in self.of(key))

        wait_for(there, lambda: f"row {key} in {self._table.topic}")
