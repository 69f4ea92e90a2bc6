"""A worker that reads JSON under a registry by its schema's columns, and writes results of that kind."""

from __future__ import annotations

import json
import random
from pathlib import Path

import orjson
import pytest
from confluent_kafka.schema_registry import Schema

from tests.broker_fixture import Topics
from tests.registry_fixture import client_of
from tests.worker_harness import FAR, Case, Feed, Reader, Row, Workers, assert_exact

pytestmark = pytest.mark.kafka

DECLARED = """
CREATE STREAM l (at BIGINT, k BIGINT, note STRING FROM 'body.note')
  WITH (topic = '{l}', format = 'json-schema', timestamp = 'at', disorder = '100 MILLISECONDS');
CREATE STREAM r (k BIGINT, v BIGINT, at TIMESTAMP)
  WITH (topic = '{r}', timestamp = 'at', disorder = '100 MILLISECONDS');
INSERT INTO '{sink}' WITH (format = 'json-schema', registry = 'URL')
SELECT L.k AS k, L.note AS note, R.v AS v FROM l L [RANGE 1 SECOND], r R [RANGE 1 SECOND] WHERE L.k = R.k
"""
SCHEMA = {
    "type": "object",
    "title": "L",
    "properties": {
        "k": {"type": "integer"},
        "at": {"type": "integer"},
        "body": {"type": "object", "properties": {"note": {"oneOf": [{"type": "null"}, {"type": "string"}]}}},
    },
}
BASE = 1_700_000_000_000


@pytest.mark.parametrize("declared", [True, False])
def test_a_worker(declared: bool, topics: Topics, tmp_path: Path, workers: Workers, registry: str) -> None:
    """With the columns that the query declares, or that the schema has."""
    case = Case.make(topics, tmp_path, DECLARED.replace("URL", registry))
    topic, client = case.topic("l"), client_of(registry)
    number = client.register_schema(f"{topic}-value", Schema(json.dumps(SCHEMA), "JSON"))
    if not declared:
        text = case.path.read_text()
        text = text.replace("l (at BIGINT, k BIGINT, note STRING FROM 'body.note')", "l")
        text = text.replace("L.note", "L.body_note")
        assert "CREATE STREAM l\n" in text
        case.path.write_text(text)
    frame = b"\0" + number.to_bytes(4, "big")
    feed, rng = Feed(case), random.Random(1)
    worker = workers.start(case, env={"WEIR_REGISTRY": registry}).wait_running()
    for i in range(150):
        row: Row = {"k": rng.randrange(20), "note": rng.choice([None, f"n{i}"]), "at": BASE + 10 * i}
        case.rows["l"][0].append(row)
        feed.raw("l", frame + orjson.dumps({"k": row["k"], "body": {"note": row["note"]}, "at": row["at"]}))
        feed.send("r", [{"k": rng.randrange(20), "v": i, "at": BASE + 10 * i}])
    feed.raw("l", b'{"k": 1}')
    feed.raw("l", frame + orjson.dumps({"k": -1, "at": BASE + FAR}))
    feed.raw("r", orjson.dumps({"k": -2, "v": 0, "at": BASE + 2 * FAR}))
    feed.flush()
    reader = Reader(case.bootstrap, case.sink, decode=lambda raw: dict(orjson.loads(raw[5:])))
    assert_exact(case, reader, worker)
    (dead,) = Reader(case.bootstrap, f"{case.query.name}.dead").wait_for_count(1)
    assert dead.headers["reason"].startswith("the record has no frame")
    latest = client.get_latest_version(f"{case.sink}-value")
    assert latest.schema.schema_type == "JSON"
    frame = b"\0" + (latest.schema_id or 0).to_bytes(4, "big")
    assert all((record.value or b"").startswith(frame) for record in reader.records)
    assert worker.stop() == 0
