"""Records what Debezium writes of a real PostgreSQL, and what PostgreSQL says was true.

`python -m tests.debezium.capture` starts PostgreSQL, Kafka, a schema registry and Kafka Connect, and lets two writers
change a table while three connectors begin with a snapshot: JSON, JSON with schemas, and Avro. The records and the
truth go to `tests/fixtures/debezium/capture.json.xz`, which `tests/services/formats/test_debezium_capture.py` reads.
"""

from __future__ import annotations

import base64
import lzma
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Consumer, TopicPartition

from services.broker import broker as brokers
from services.broker import registry as registries
from tests.debezium.changes import TABLE, Commit, Writers, state_at
from tests.debezium.connect import DEBEZIUM, Connect, connector, in_avro, in_json, topic_of
from tests.debezium.postgres import Postgres
from tests.registry_fixture import client_of

CAPTURE = Path(__file__).parents[1] / "fixtures" / "debezium" / "capture.json.xz"
_SECONDS = 3.0
_APART_MS = 5_000
"""Connectors begin within this time."""
_LAST_KEY = {"json": b'{"id":0}', "json-schemas": b'"payload":{"id":0}}', "avro": b"\0"}
"""How the key of the last record ends, by form: 0. No other number in Avro ends with a zero byte."""


def records_of(bootstrap: str, topic: str) -> Iterator[dict[str, Any]]:
    """The records of a topic's one partition from its beginning, without end; values and keys in Base64."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "capture", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None, f"no further record in {topic}"
            assert message.error() is None, message.error()
            yield {
                "offset": message.offset(),
                "timestamp": message.timestamp()[1],
                "key": _encoded(message.key()),
                "value": _encoded(message.value()),
                "headers": {name: _encoded(value) for name, value in message.headers() or []},
            }
    finally:
        consumer.close()


def _encoded(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def decoded(text: str | None) -> bytes | None:
    """Bytes of the capture."""
    return None if text is None else base64.b64decode(text)


def captured(seed: int, folder: Path) -> dict[str, Any]:
    """Run everything, and return what the file holds."""
    server, registry = Postgres(), registries.start(folder / "registry", 0)
    broker = brokers.start(folder / "broker", 0)
    forms = {
        "json": in_json(schemas=False),
        "json-schemas": in_json(schemas=True),
        "avro": in_avro(registry.url),
    }
    connectors = {form: connector(server, f"db-{form}", TABLE, settings) for form, settings in forms.items()}
    connect = Connect(folder / "connect", broker.bootstrap, *connectors.values())
    try:
        writers = Writers(server, seed, pause_s=0.1)
        writers.start()
        try:
            connect.start()
            connect.wait_running()
            for one in connectors.values():  # it has begun to read
                next(records_of(broker.bootstrap, topic_of(one)))
            time.sleep(_SECONDS)
        finally:
            writers.stop()
        writers.mark(0)
        topics = {form: _until_marked(broker.bootstrap, topic_of(one), form) for form, one in connectors.items()}
        commits = _since_snapshot(writers.commits(), topics["json"])
        return {
            "debezium": DEBEZIUM.version(),
            "postgres": server.version(),
            "topics": topics,
            "schemas": _schemas(registry.url, topics["avro"]),
            "commits": [[one.ms, list(one.changed.items())] for one in commits],
        }
    finally:
        connect.kill()
        brokers.kill(folder / "broker")
        registries.kill(folder / "registry")
        server.close()


def _until_marked(bootstrap: str, topic: str, form: str) -> list[dict[str, Any]]:
    """The records up to the one that was written last, whose key is 0."""
    found: list[dict[str, Any]] = []
    for record in records_of(bootstrap, topic):
        found.append(record)
        if (decoded(record["key"]) or b"").endswith(_LAST_KEY[form]):
            break
    return found


def _schemas(url: str, records: list[dict[str, Any]]) -> dict[int, str]:
    """The schemas that framed records name."""
    raw = [decoded(record[part]) for record in records for part in ("key", "value")]
    numbers = {int.from_bytes(one[1:5], "big") for one in raw if one is not None}
    return {number: str(client_of(url).get_schema(number).schema_str) for number in sorted(numbers)}


def _since_snapshot(commits: list[Commit], records: list[dict[str, Any]]) -> list[Commit]:
    """The commits with those as one that were long before all records."""
    changes = [orjson.loads(raw) for record in records if (raw := decoded(record["value"])) is not None]
    first = min(change["source"]["ts_ms"] for change in changes) - _APART_MS
    before = [commit for commit in commits if commit.ms < first]
    if not before:
        return commits
    return [Commit(before[-1].ms, dict(state_at(before, first))), *commits[len(before) :]]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        found = captured(int(sys.argv[1]) if len(sys.argv) > 1 else 1, Path(name))
    CAPTURE.parent.mkdir(parents=True, exist_ok=True)
    CAPTURE.write_bytes(lzma.compress(orjson.dumps(found, option=orjson.OPT_NON_STR_KEYS), preset=9))
    print({form: len(records) for form, records in found["topics"].items()}, CAPTURE.stat().st_size)
