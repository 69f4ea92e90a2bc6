"""Workers whose results have headers: what the oracle has under `_headers` is in the headers of the records."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.broker_fixture import Topics
from tests.group_workers import GroupTrial
from tests.registry_fixture import rows_of_avro
from tests.services.worker.test_exactly_once import CLOSING, SENSORS, send
from tests.worker_harness import Case, Feed, Reader, Row, Workers, canonical, unmarked, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.unmeasured]

NAMES = ["room.of", "is-a"]
IS_A = """JSON_VALUE(CONCAT('{{"', T.room, '":"yes"}}'), '$.a')"""
PASSED = (
    SENSORS.replace("T.room,", f'H.room AS "_headers.{NAMES[0]}",', 1)
    .replace("T.celsius,", "T.celsius AS celsius,", 1)
    .replace("H.percent, L.lux\n", f'H.percent AS percent, L.lux AS lux, {IS_A} AS "_headers.{NAMES[1]}"\n')
)
assert PASSED.count("_headers") == 2


def rows_of(reader: Reader) -> list[Row]:
    """Results with their headers under `_headers`, null where there is none, as files have them."""
    rows = reader.rows()
    for record, row in zip(reader.records, rows, strict=True):
        assert "_headers" not in row
        assert record.headers.keys() <= set(NAMES)
        row["_headers"] = {name: record.headers.get(name) for name in NAMES}
    return rows


def check(case: Case, reader: Reader) -> None:
    expected = case.expected()
    reader.wait_for_count(expected.total())
    assert canonical(unmarked(rows_of(reader))) == expected
    assert {len(record.headers) for record in reader.records} == {1, 2}


def test_headers_and_keys_through_a_kill(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    keyed = PASSED.replace("INSERT INTO '{sink}'", "INSERT INTO '{sink}' KEY (mote)")
    case = Case.make(topics, tmp_path, keyed, partitions=3)
    feed, rng = Feed(case), random.Random(3)
    reader = Reader(case.bootstrap, case.sink)
    worker = workers.start(case).wait_running()
    send(feed, rng, 0, 100)
    wait_for(lambda: worker.metric("watermark_milliseconds") == case.watermark(), worker.with_log("progress"))
    worker.kill()
    worker = workers.start(case).wait_running()
    send(feed, rng, 100, 100)
    feed.finish(CLOSING)
    check(case, reader)
    for record, row in zip(reader.records, reader.rows(), strict=True):
        assert record.key == str(row["mote"]).encode()
    assert worker.stop() == 0


@pytest.mark.deep
@pytest.mark.parametrize(
    "options", [("--guarantee", "at-least-once"), ("--memory", "20KiB"), ("--placement", "per-operator")]
)
def test_every_way_of_execution(
    options: tuple[str, ...], topics: Topics, tmp_path: Path, workers: Workers, registry: str
) -> None:
    """Late results have headers, too. Values are in Avro."""
    given = f"INSERT INTO '{{sink}}' WITH (format = 'avro', registry = '{registry}')"
    case = Case.make(topics, tmp_path, PASSED.replace("INSERT INTO '{sink}'", given))
    feed, rng = Feed(case), random.Random(4)
    reader = Reader(case.bootstrap, case.sink, decode=rows_of_avro(registry, case.sink))
    worker = workers.start(case, *options)
    for part in range(3):
        send(feed, rng, 100 * part, 100)
    feed.finish(CLOSING)
    check(case, reader)
    worker.alive()
    assert worker.stop() == 0


@pytest.mark.deep
def test_a_group(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Late results, too. Only one of the queries has headers."""
    trial = GroupTrial.make(topics, tmp_path)
    windows = "temperature T [RANGE 400 MILLISECONDS], humidity H [RANGE 300 MILLISECONDS] WHERE T.mote = H.mote"
    trial.register(
        {
            "passed": f'SELECT T.mote, T.room AS "_headers.room", H.percent FROM {windows}',
            "plain": f"SELECT T.mote, T.room, H.percent FROM {windows}",
        }
    )
    feed, rng = Feed(trial.case), random.Random(5)
    worker = workers.start(trial.case, "--memory", "20KiB").wait_running()
    trial.wait_begun(worker)
    for part in range(3):
        send(feed, rng, 100 * part, 100)
    feed.finish(CLOSING)
    for sink, expected in trial.expected().items():
        reader = Reader(trial.case.bootstrap, sink)
        reader.wait_for_count(sum(expected.values()), worker.alive)
        rows = unmarked(reader.rows())
        if sink.endswith("passed"):
            for record, row in zip(reader.records, rows, strict=True):
                row["_headers.room"] = record.headers["room"]
        assert canonical(rows) == expected
    assert worker.stop() == 0
