"""`weir audit` and `weir backfill` over topics: a real broker, real workers, a real Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from ops.spark.session import spark_session
from services.cli import app
from tests.broker_fixture import Topics
from tests.worker_harness import Case, Feed, Reader, Row, Workers, canonical, wait_for

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.kafka, pytest.mark.slow]

DECLARED = """
CREATE STREAM a (x BIGINT, n BIGINT, at TIMESTAMP)
  WITH (topic = '{a}', timestamp = 'at', disorder = '30 MILLISECONDS'IDLE);
CREATE STREAM b (x BIGINT, n BIGINT, at TIMESTAMP) WITH (topic = '{b}', timestamp = 'at'IDLE);
"""
JOIN = "SELECT A.n AS one, B.n AS two FROM a A [RANGE 40 MILLISECONDS], b B {window} WHERE A.x = B.x"
BASE = 1_700_000_000_000


@pytest.fixture(scope="module", autouse=True)
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The commands find a Spark that runs and leave it running."""
    quick = {
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.sql.codegen.wholeStage": "false",
    }
    with spark_session("local[2]", tmp_path_factory.mktemp("spark"), **quick):
        yield


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    started = Workers(tmp_path)
    yield started
    started.end()


def command(case: Case, name: str, *options: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command over a case's topics."""
    result = CliRunner().invoke(app, [name, str(case.path), "--bootstrap", case.bootstrap, *options])
    return result.exit_code, result.stdout, result.stderr + str(result.exception or "")


def send(feed: Feed, count: int, seed: int) -> None:
    """Rows of ten keys, some of them late, one that is no tuple, and at the end what closes all partitions."""
    chance = random.Random(seed)
    partitions = feed.case.partitions
    for n in range(count):
        for stream, behind in (("a", 60), ("b", 0)):
            x = chance.randrange(10)
            row: Row = {"x": x, "n": n, "at": BASE + 5 * n - chance.randrange(behind + 1)}
            feed.send(stream, [row], x % partitions)
    feed.raw("b", b"{no tuple}")
    feed.finish({stream: {"x": -1, "n": 0} for stream in ("a", "b")})


@pytest.mark.parametrize("partitions", [2, 1])
def test_an_audit_of_a_worker_is_clean_until_its_output_is_damaged(
    topics: Topics, tmp_path: Path, workers: Workers, partitions: int
) -> None:
    # The oracle knows one count of rows only, that of a single task.
    split, window = (" PARTITION BY A.x, B.x", "[RANGE 90 MILLISECONDS]") if partitions > 1 else ("", "[ROWS 8]")
    text = DECLARED.replace("IDLE", "") + "INSERT INTO '{sink}' " + JOIN.replace("{window}", window) + split
    case = Case.make(topics, tmp_path, text, partitions=partitions)
    reader = Reader(case.bootstrap, case.sink)
    worker = workers.start(case).wait_running(range(partitions))
    send(Feed(case), 400, seed=3)
    expected = case.expected()
    reader.wait_for_count(sum(expected.values()), worker._alive)

    shown = ""

    def clean() -> bool:
        nonlocal shown
        code, shown, said = command(case, "audit")
        assert code == 0, shown + said
        return f"expected {sum(expected.values()):,} results" in shown

    # The last results may be out a moment before the cut of another partition is.
    wait_for(clean, lambda: f"an audit of {sum(expected.values())} results, the last said: {shown}")
    assert canonical(reader.rows()) == expected

    out_file = tmp_path / "past.jsonl"
    code, _, said = command(case, "backfill", "--out", str(out_file))
    assert code == 0, said
    assert "1 dead letters" in said
    assert canonical(orjson.loads(line) for line in out_file.read_bytes().splitlines()) == expected

    damage(case, reader)
    code, out, said = command(case, "audit")
    assert code == 1, out + said
    assert ": 3 missing, 1 extra, 2 doubled" in out
    assert '"one":-1' in out
    assert worker.stop() == 0


def damage(case: Case, reader: Reader) -> None:
    """Take the first three results of a partition away, write its last one twice more, and one that is none."""
    records = [record for record in reader.poll() if record.partition == 0]
    again, odd = records[-1], orjson.loads(records[-2].value or b"")
    producer = Producer({"bootstrap.servers": case.bootstrap, "log_level": 0})
    for value in (again.value, again.value, orjson.dumps({**odd, "one": -1})):
        producer.produce(case.sink, value, partition=0)
    assert producer.flush(30) == 0
    admin = AdminClient({"bootstrap.servers": case.bootstrap, "log_level": 0})
    for future in admin.delete_records([TopicPartition(case.sink, 0, records[2].offset + 1)]).values():
        future.result()
