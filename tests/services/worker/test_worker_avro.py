"""Workers that read Avro: by a registry and by a file, while schemas change, and while the registry is away."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.broker_fixture import Topics
from tests.registry_fixture import RestartableRegistry, serializer_of
from tests.worker_harness import FAR, Case, Feed, Reader, Row, Workers, assert_exact, wait_for

pytestmark = pytest.mark.kafka

QUERY = """
CREATE STREAM l (k BIGINT, note STRING FROM 'body.note', at TIMESTAMP)
  WITH (topic = '{l}', format = 'avro', timestamp = 'at', disorder = '100 MILLISECONDS');
CREATE STREAM r (k BIGINT, v BIGINT, at TIMESTAMP)
  WITH (topic = '{r}', timestamp = 'at', disorder = '100 MILLISECONDS');
INSERT INTO '{sink}'
SELECT L.k AS k, L.note AS note, R.v AS v FROM l L [RANGE 1 SECOND], r R [RANGE 1 SECOND] WHERE L.k = R.k
"""
BASE = 1_700_000_000_000
CLOSING: dict[str, Row] = {"l": {"k": -1, "note": "end"}, "r": {"k": -2, "v": 0}}

BODY = {"type": "record", "name": "Body", "fields": [{"name": "note", "type": ["null", "string"]}]}
FIRST = {
    "type": "record",
    "name": "L",
    "fields": [
        {"name": "k", "type": "int"},
        {"name": "body", "type": BODY},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
SECOND = {
    "type": "record",
    "name": "L",
    "fields": [
        {"name": "more", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "body", "type": ["null", {**BODY, "fields": [{"name": "x", "type": "bytes"}, *BODY["fields"]]}]},
        {"name": "k", "type": "long"},
    ],
}


def as_first(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"k": row["k"], "body": {"note": row["note"]}, "at": row["at"]}


def as_second(row: Mapping[str, Any]) -> dict[str, Any]:
    body = None if row["note"] is None else {"x": b"\0\1", "note": row["note"]}
    return {"more": ["a", "b"], "at": row["at"] * 1000, "body": body, "k": row["k"]}


Write = Callable[[Mapping[str, Any]], bytes]


class Avro:
    """Serializes rows as a producer of Confluent's does."""

    def __init__(self, url: str, topic: str) -> None:
        self._context = SerializationContext(topic, MessageField.VALUE)
        self._first, self._second = (serializer_of(url, json.dumps(schema)) for schema in (FIRST, SECOND))

    def first(self, row: Mapping[str, Any]) -> bytes:
        return self._first(as_first(row), self._context) or b""

    def second(self, row: Mapping[str, Any]) -> bytes:
        return self._second(as_second(row), self._context) or b""


def send(case: Case, feed: Feed, rng: random.Random, start: int, write: Write) -> None:
    """Write 100 rows to each stream, those of `l` in Avro."""
    for i in range(start, start + 100):
        at = BASE + 10 * i - rng.choice([0, 0, 30, 90])
        row: Row = {"k": rng.randrange(20), "note": rng.choice([f"n{i}", None]), "at": at}
        case.rows["l"][0].append(row)
        feed.raw("l", write(row))
        feed.send("r", [{"k": rng.randrange(20), "v": i, "at": at}])
    feed.flush()


def finish(case: Case, feed: Feed, write: Write) -> None:
    """Close both streams."""
    last = max(row["at"] for parts in case.rows.values() for part in parts for row in part)
    feed.raw("l", write({**CLOSING["l"], "at": last + FAR}))
    feed.raw("r", json.dumps({**CLOSING["r"], "at": last + 2 * FAR}).encode())
    feed.flush()


def test_writers_change_their_schema(topics: Topics, tmp_path: Path, workers: Workers, registry: str) -> None:
    """Records of two schemas mixed, and bytes that are neither."""
    case = Case.make(topics, tmp_path, QUERY)
    feed, rng, avro = Feed(case), random.Random(1), Avro(registry, case.topic("l"))
    worker = workers.start(case, env={"WEIR_REGISTRY": registry}).wait_running()
    send(case, feed, rng, 0, avro.first)
    feed.raw("l", b'{"k": 1}')
    feed.raw("l", b"\0" + (987_654).to_bytes(4, "big") + b"\2")
    feed.raw("l", avro.first({"k": 1, "note": "cut", "at": BASE})[:-3])
    feed.raw("l", None)
    send(case, feed, rng, 100, avro.second)
    send(case, feed, rng, 200, lambda row: rng.choice([avro.first, avro.second])(row))
    finish(case, feed, avro.second)
    reader = Reader(case.bootstrap, case.sink)
    assert_exact(case, reader, worker)
    dead = Reader(case.bootstrap, f"{case.query.name}.dead").wait_for_count(4)
    reasons = [record.headers["reason"] for record in dead]
    assert "no frame of a schema registry" in reasons[0]
    assert reasons[1] == "the registry has no schema 987654"
    assert "broken Avro" in reasons[2]
    assert len(reasons) == 4
    assert worker.stop() == 0


def test_one_schema_in_a_file(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    case = Case.make(topics, tmp_path, QUERY.replace("format = 'avro'", "format = 'avro', schema = 'l.avsc'"))
    (tmp_path / "l.avsc").write_text(json.dumps(FIRST))
    parsed = fastavro.parse_schema(FIRST)

    def write(row: Mapping[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, as_first(row))
        return out.getvalue()

    feed = Feed(case)
    worker = workers.start(case).wait_running()
    send(case, feed, random.Random(2), 0, write)
    finish(case, feed, write)
    assert_exact(case, Reader(case.bootstrap, case.sink), worker)
    assert worker.stop() == 0


@pytest.mark.deep
def test_the_registry_is_away(
    topics: Topics, tmp_path: Path, workers: Workers, restartable_registry: RestartableRegistry
) -> None:
    """A schema comes that the worker does not know while the registry is dead; the worker waits and says so, is killed,
    waits again when it has to read again what it has read, and goes on where it was."""
    case = Case.make(topics, tmp_path, QUERY)
    feed, rng, avro = Feed(case), random.Random(3), Avro(restartable_registry.url, case.topic("l"))
    options: dict[str, Any] = {"env": {"WEIR_REGISTRY": restartable_registry.url}}
    worker = workers.start(case, state="none", **options).wait_running()
    send(case, feed, rng, 0, avro.first)
    reader = Reader(case.bootstrap, case.sink)
    reader.wait_for_count(1)
    avro.second({"k": 0, "note": "", "at": BASE})  # registers the schema
    restartable_registry.kill()
    send(case, feed, rng, 100, avro.second)
    for turn in range(2):

        def says_so(worker: Any = worker) -> bool:
            tasks = worker.health().get("tasks", [])
            return any(restartable_registry.url in str(task["waits_for"]) for task in tasks)

        wait_for(says_so, lambda w=worker: w.with_log("the missing schema at /healthz"))
        if turn == 0:
            worker.kill()
            worker = workers.start(case, state="none", **options)
    told = "the schema registry does not answer"
    wait_for(lambda: told in worker.text(), lambda: worker.with_log("one line about the registry"))
    assert worker.text().count(told) == 1
    restartable_registry.start()
    send(case, feed, rng, 200, avro.first)
    finish(case, feed, avro.second)
    assert_exact(case, reader, worker)
    assert worker.stop() == 0
