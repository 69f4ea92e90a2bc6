"""A worker that joins what is in keys and headers of records, and what Kafka knows of them; on a real broker."""

from __future__ import annotations

import random
from pathlib import Path

import orjson
import pytest

from tests.broker_fixture import Topics
from tests.registry_fixture import key_serializer_of
from tests.worker_harness import FAR, Case, Feed, Reader, Row, Workers, assert_exact, wait_for

pytestmark = pytest.mark.kafka

QUERY = """
CREATE STREAM l (k BIGINT KEY, note STRING FROM '_headers["note"]', v BIGINT, place BIGINT FROM '_offset',
                 part BIGINT FROM '_partition', at TIMESTAMP FROM '_timestamp')
  WITH (topic = '{l}', disorder = '100 MILLISECONDS'OPTIONS);
CREATE STREAM r (k BIGINT, whole STRING FROM '_key', at TIMESTAMP)
  WITH (topic = '{r}', timestamp = 'at', disorder = '100 MILLISECONDS');
INSERT INTO '{sink}'
SELECT L.k AS k, L.note AS note, L.v AS v, L.place AS place, L.part AS part, R.whole AS whole, L.at AS at
FROM l L [RANGE 1 SECOND], r R [RANGE 1 SECOND] WHERE L.k = R.k
"""
BASE = 1_700_000_000_000


def send(feed: Feed, rng: random.Random, begin: int, key_of: object = None) -> None:
    """Write 100 records to each topic, of which some have no key or no header."""
    case = feed.case
    for i in range(begin, begin + 100):
        at = BASE + 10 * i - rng.choice([0, 0, 30, 90])
        key = rng.choice([None, *range(20)])
        note = rng.choice([None, f"n{i}"])
        row: Row = {"k": key, "note": note, "v": i, "place": i, "part": 0, "at": at}
        case.rows["l"][0].append(row)
        raw = None if key is None else key_of(key) if callable(key_of) else str(key).encode()
        headers = [] if note is None else [("note", b"no"), ("note", note.encode())]
        feed.raw("l", orjson.dumps({"v": i}), key=raw, timestamp=at, headers=headers)
        other = rng.randrange(20)
        case.rows["r"][0].append({"k": other, "whole": f"key {i}", "at": at})
        feed.raw("r", orjson.dumps({"k": other, "at": at}), key=f"key {i}".encode())
    feed.flush()


def finish(feed: Feed) -> None:
    feed.raw("l", b'{"v": 0}', key=b"-1", timestamp=BASE + FAR)
    feed.raw("r", orjson.dumps({"k": -2, "at": BASE + 2 * FAR}))
    feed.flush()


def test_keys_headers_and_offsets(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """The same after a kill -9, when records are read again. A key that is no number is a dead letter."""
    case = Case.make(topics, tmp_path, QUERY.replace("OPTIONS", ""))
    feed, rng = Feed(case), random.Random(1)
    worker = workers.start(case).wait_running()
    send(feed, rng, 0)
    wait_for(lambda: worker.metric("watermark_milliseconds") == case.watermark(), worker.with_log("progress"))
    worker.kill()
    worker = workers.start(case).wait_running()
    send(feed, rng, 100)
    feed.raw("l", b'{"v": 0}', key=b"none", timestamp=BASE + 2000)
    finish(feed)
    assert_exact(case, Reader(case.bootstrap, case.sink), worker)
    (dead,) = Reader(case.bootstrap, f"{case.query.name}.dead").wait_for_count(1)
    assert dead.headers["reason"].startswith("key: ")
    assert worker.stop() == 0


@pytest.mark.deep
def test_keys_in_avro(topics: Topics, tmp_path: Path, workers: Workers, registry: str) -> None:
    """A key of a primitive schema is the column."""
    options = f", key_format = 'avro', registry = '{registry}'"
    case = Case.make(topics, tmp_path, QUERY.replace("OPTIONS", options))
    key_of = key_serializer_of(registry, case.topic("l"))
    feed = Feed(case)
    worker = workers.start(case).wait_running()
    send(feed, random.Random(2), 0, key_of)
    feed.raw("l", b'{"v": 0}', key=key_of(-1), timestamp=BASE + FAR)
    feed.raw("r", orjson.dumps({"k": -2, "at": BASE + 2 * FAR}))
    feed.flush()
    assert_exact(case, Reader(case.bootstrap, case.sink), worker)
    assert worker.stop() == 0
