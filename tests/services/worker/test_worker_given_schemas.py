"""Workers whose results have a schema of the user's own: what has no place in it is a dead letter, all else exact."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import orjson
import pytest
from confluent_kafka.schema_registry import Schema

from tests.broker_fixture import Topics
from tests.registry_fixture import client_of, rows_of_avro
from tests.services.worker.test_exactly_once import CLOSING, SENSORS, send
from tests.worker_harness import Case, Feed, Reader, Workers, canonical, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.unmeasured]

SCHEMA = """{"type": "record", "name": "com.acme.Alarm", "fields": [
  {"name": "source", "type": "string", "default": "weir"},
  {"name": "T_room", "type": {"type": "enum", "name": "com.acme.Room", "symbols": ["b", "a"]}},
  {"name": "note", "type": ["null", "string"]},
  {"name": "lux", "type": ["double", "null"]},
  {"name": "_ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
  {"name": "mote", "type": "int"},
  {"name": "_phase", "type": ["null", "string"], "default": null}]}"""
NAMED = SENSORS.replace("T.celsius, H.percent, L.lux\n", 'L.lux AS lux, H.room AS "_headers.room-of"\n', 1)
"""Of rooms, "ä" is no symbol."""


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        ("alarm.avsc", ("--memory", "20KiB")),
        pytest.param("registered", ("--guarantee", "at-least-once"), marks=pytest.mark.deep),
        pytest.param("alarm.avsc", ("--placement", "per-operator"), marks=pytest.mark.deep),
        pytest.param("registered", ("--placement", "per-operator", "--memory", "60KiB"), marks=pytest.mark.deep),
    ],
)
def test_results_by_a_schema_of_ones_own(
    schema: str, options: tuple[str, ...], topics: Topics, tmp_path: Path, workers: Workers, registry: str
) -> None:
    """With headers, which dead letters have as files do. Results are counted once, delivered or as dead letters."""
    written = f"INSERT INTO '{{sink}}' WITH (format = 'avro', schema = '{schema}', registry = '{registry}')"
    case = Case.make(topics, tmp_path, NAMED.replace("INSERT INTO '{sink}'", written))
    if schema == "registered":
        client_of(registry).register_schema(f"{case.sink}-value", Schema(SCHEMA, "AVRO"))
    else:  # beside the query
        (tmp_path / schema).write_text(SCHEMA)
    feed, rng = Feed(case), random.Random(8)
    reader = Reader(case.bootstrap, case.sink, decode=rows_of_avro(registry, case.sink))
    worker = workers.start(case, *options)
    for part in range(3):
        send(feed, rng, 100 * part, 100)
    feed.finish(CLOSING)
    expected: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for text, count in case.expected().items():
        row = orjson.loads(text)
        known = row["T.room"] in ("a", "b")
        row = {name.replace("T.room", "T_room") if known else name: value for name, value in row.items()}
        row |= {"source": "weir", "note": None} if known else {}
        (expected if known else refused)[next(iter(canonical([row])))] += count
    assert expected
    assert refused
    reader.wait_for_count(expected.total(), worker.alive)
    rows = [{name: value for name, value in row.items() if name != "_phase"} for row in reader.rows()]
    for record, row in zip(reader.records, rows, strict=True):
        row["_headers"] = record.headers
    assert canonical(rows) == expected
    letters = Reader(case.bootstrap, f"{case.sink}.dead")
    letters.wait_for_count(refused.total(), worker.alive)
    rows = [{name: value for name, value in row.items() if name != "_phase"} for row in letters.rows()]
    assert canonical(rows) == refused
    why = "field 'T_room' of the results' schema cannot have 'ä'"
    assert all(letter.headers == {"reason": why, "topic": case.sink} for letter in letters.records)
    wait_for(lambda: worker.metric("dead_letters_total") == refused.total(), worker.with_log("dead letters"))
    assert worker.metric("results_total") == expected.total()
    assert worker.stop() == 0
