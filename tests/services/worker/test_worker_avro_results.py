"""Workers that write results as Avro, by a registry: an ordinary consumer reads the oracle's results, each once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from confluent_kafka.serialization import MessageField

from tests.broker_fixture import Topics
from tests.group_workers import GroupTrial
from tests.registry_fixture import RestartableRegistry, client_of, rows_of_avro
from tests.services.worker.test_exactly_once import CLOSING, SENSORS, send
from tests.worker_harness import Case, Feed, Reader, Workers, assert_exact, canonical, in_time, wait_for

pytestmark = pytest.mark.kafka


def in_avro(text: str, url: str) -> str:
    """The query, with results as Avro under names that Avro has."""
    text = text.replace("INSERT INTO '{sink}'", f"INSERT INTO '{{sink}}' WITH (format = 'avro', registry = '{url}')")
    head, select, tail = text.partition("SELECT ")
    outputs, _, rest = tail.partition("FROM")
    names = [one.strip() for one in outputs.split(",")]
    named = [one if " AS " in one else f"{one} AS {one.replace('.', '_')}" for one in names]
    return f"{head}{select}{', '.join(named)}\nFROM{rest}"


def test_a_consumer_reads_the_results(topics: Topics, tmp_path: Path, workers: Workers, registry: str) -> None:
    """Through a kill -9."""
    case = Case.make(topics, tmp_path, in_avro(SENSORS, registry))
    feed, rng = Feed(case), random.Random(5)
    reader = Reader(case.bootstrap, case.sink, decode=rows_of_avro(registry, case.sink))
    worker = workers.start(case).wait_running()
    send(feed, rng, 0, 100)
    wait_for(lambda: worker.metric("watermark_milliseconds") == case.watermark(), worker.with_log("progress"))
    worker.kill()
    worker = workers.start(case).wait_running()
    send(feed, rng, 100, 100)
    feed.finish(CLOSING)
    assert_exact(case, reader, worker)
    assert client_of(registry).get_versions(f"{case.sink}-value") == [1]
    assert worker.stop() == 0


def test_keys_of_upserts(topics: Topics, tmp_path: Path, workers: Workers, registry: str) -> None:
    text = SENSORS.partition("INSERT INTO")[0] + (
        "INSERT INTO '{sink}' SELECT T.mote AS mote, COUNT(*) AS n "
        "FROM temperature T, humidity H, light L WINDOW RANGE 800 MILLISECONDS "
        "WHERE T.mote = H.mote AND H.mote = L.mote GROUP BY T.mote EMIT EVERY 250 MILLISECONDS"
    )
    insert, _, select = text.partition("INSERT INTO '{sink}'")
    text = f"{insert}INSERT INTO '{{sink}}' WITH (format = 'avro', registry = '{registry}'){select}"
    case = Case.make(topics, tmp_path, text)
    feed = Feed(case)
    reader = Reader(case.bootstrap, case.sink, decode=rows_of_avro(registry, case.sink))
    worker = workers.start(case).wait_running()
    send(feed, random.Random(6), 0, 150)
    feed.finish(CLOSING)
    assert_exact(case, reader, worker)
    key = rows_of_avro(registry, case.sink, MessageField.KEY)
    for record in reader.records:
        assert key(record.key or b"") == {"mote": reader.decode(record.value or b"")["mote"]}
    assert worker.stop() == 0


@pytest.mark.deep
@pytest.mark.parametrize("options", [("--memory", "20KiB"), ("--jit", "on")])
def test_every_way_of_execution(
    options: tuple[str, ...], topics: Topics, tmp_path: Path, workers: Workers, registry: str
) -> None:
    """Late results say that they are late."""
    case = Case.make(topics, tmp_path, in_avro(SENSORS, registry))
    feed, rng = Feed(case), random.Random(7)
    reader = Reader(case.bootstrap, case.sink, decode=rows_of_avro(registry, case.sink))
    worker = workers.start(case, *options).wait_running()
    for part in range(4):
        send(feed, rng, 100 * part, 100)
        wait_for(lambda: worker.metric("watermark_milliseconds") == case.watermark(), worker.with_log("progress"))
    if "--memory" in options:
        wait_for(lambda: not all(map(in_time, reader.rows())), worker.with_log("late results"))
    feed.finish(CLOSING)
    assert_exact(case, reader, worker)
    assert worker.stop() == 0


@pytest.mark.deep
def test_joins_in_tasks_of_their_own(topics: Topics, tmp_path: Path, workers: Workers, registry: str) -> None:
    case = Case.make(topics, tmp_path, in_avro(SENSORS, registry))
    feed = Feed(case)
    reader = Reader(case.bootstrap, case.sink, decode=rows_of_avro(registry, case.sink))
    worker = workers.start(case, "--placement", "per-operator")
    send(feed, random.Random(7), 0, 300)
    feed.finish(CLOSING)
    assert_exact(case, reader, worker)
    assert worker.stop() == 0


@pytest.mark.deep
def test_queries_of_a_group(topics: Topics, tmp_path: Path, workers: Workers, registry: str) -> None:
    """Each has a schema of its own, also one that comes later."""
    trial = GroupTrial.make(topics, tmp_path)
    feed, rng = Feed(trial.case), random.Random(8)
    join = "FROM temperature T [RANGE 300 MILLISECONDS], humidity H [RANGE 200 MILLISECONDS] WHERE T.mote = H.mote"
    trial.options = f"WITH (format = 'avro', registry = '{registry}')"
    trial.register({"q0": f"SELECT T.mote AS mote, H.percent AS percent {join}"})
    worker = workers.start(trial.case).wait_running()
    send(feed, rng, 0, 120)
    trial.register({"q1": f"SELECT T.celsius AS celsius, T.mote AS mote {join}"})
    trial.wait_begun(worker)
    send(feed, rng, 120, 120)
    feed.finish(CLOSING)
    for sink, wanted in trial.expected().items():
        assert wanted
        reader = Reader(trial.case.bootstrap, sink, decode=rows_of_avro(registry, sink))
        wait_for(lambda r=reader, e=wanted: canonical(r.rows()) == e, worker.with_log("the results"))
        reader.close()
    assert worker.stop() == 0


@pytest.mark.deep
def test_a_registry_that_is_away_at_the_start(
    topics: Topics, tmp_path: Path, workers: Workers, restartable_registry: RestartableRegistry
) -> None:
    """The worker waits for it and says so. Later it needs it no more."""
    url = restartable_registry.url
    case = Case.make(topics, tmp_path, in_avro(SENSORS, url))
    restartable_registry.kill()
    feed = Feed(case)
    worker = workers.start(case)
    send(feed, random.Random(9), 0, 100)
    wait_for(lambda: "the schema of the results is not registered yet" in worker.text(), worker.with_log("a warning"))
    assert "the schema registry" in str(worker.health())
    restartable_registry.start()
    worker.wait_running()
    reader = Reader(case.bootstrap, case.sink, decode=rows_of_avro(url, case.sink))
    reader.wait_for_count(1, worker.alive)
    reader.rows()
    restartable_registry.kill()
    feed.finish(CLOSING)
    assert_exact(case, reader, worker)
    assert worker.stop() == 0
