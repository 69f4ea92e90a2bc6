"""`weir audit` and `weir backfill` over topics: a real broker, real workers, a real Spark."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import orjson
import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from ops.spark.session import spark_session
from services.cli import app
from tests.broker_fixture import Topics
from tests.registry_fixture import rows_of_avro
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
    """A running Spark, which the commands find and leave running."""
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
    """Send rows of ten keys, some of them late, one that is not a tuple, and at the end the closing rows."""
    chance = random.Random(seed)
    partitions = feed.case.partitions
    for n in range(count):
        for stream, behind in (("a", 60), ("b", 0)):
            x = chance.randrange(10)
            row: Row = {"x": x, "n": n, "at": BASE + 5 * n - chance.randrange(behind + 1)}
            row["s"] = f"ä {x}" if x % 3 else None
            feed.send(stream, [row], x % partitions)
    feed.raw("b", b"{no tuple}")
    feed.finish({stream: {"x": -1, "n": 0} for stream in ("a", "b")})


@pytest.mark.parametrize("partitions", [2, 1])
def test_an_audit_of_a_worker_is_clean_until_its_output_is_damaged(
    topics: Topics, tmp_path: Path, workers: Workers, partitions: int
) -> None:
    # The oracle supports one count of rows only, that of a single task.
    split, window = (" PARTITION BY A.x, B.x", "[RANGE 90 MILLISECONDS]") if partitions > 1 else ("", "[ROWS 8]")
    text = DECLARED.replace("IDLE", "") + "INSERT INTO '{sink}' " + JOIN.replace("{window}", window) + split
    case = Case.make(topics, tmp_path, text, partitions=partitions)
    reader = Reader(case.bootstrap, case.sink)
    worker = workers.start(case).wait_running(range(partitions))
    send(Feed(case), 400, seed=3)
    expected = case.expected()
    reader.wait_for_count(sum(expected.values()), worker.alive)

    shown = ""

    def clean() -> bool:
        nonlocal shown
        code, shown, stderr = command(case, "audit")
        assert code == 0, shown + stderr
        return f"expected {sum(expected.values()):,} results" in shown

    # The last results may become visible a moment before another partition's cut does.
    wait_for(clean, lambda: f"an audit of {sum(expected.values())} results, the last said: {shown}")
    assert canonical(reader.rows()) == expected

    out_file = tmp_path / "past.jsonl"
    code, _, stderr = command(case, "backfill", "--out", str(out_file))
    assert code == 0, stderr
    assert "1 dead letter" in stderr
    assert canonical(orjson.loads(line) for line in out_file.read_bytes().splitlines()) == expected

    damage(case, reader)
    code, out, stderr = command(case, "audit")
    assert code == 1, out + stderr
    assert ": 3 missing, 1 extra, 2 doubled" in out
    assert '"one":-1' in out
    assert worker.stop() == 0


def damage(case: Case, reader: Reader) -> None:
    """Delete the first three results of a partition, write its last result twice more, and one that is wrong."""
    records = [record for record in reader.poll() if record.partition == 0]
    again, odd = records[-1], orjson.loads(records[-2].value or b"")
    producer = Producer({"bootstrap.servers": case.bootstrap, "log_level": 0})
    for value in (again.value, again.value, orjson.dumps({**odd, "one": -1})):
        producer.produce(case.sink, value, partition=0)
    assert producer.flush(30) == 0
    Topics(case.bootstrap).delete_before(case.sink, records[2].offset + 1)


def test_the_exact_answer_lacks_tuples_that_were_late_after_an_idle_timeout(
    topics: Topics, tmp_path: Path, workers: Workers
) -> None:
    text = DECLARED.replace("IDLE", ", idle_timeout = '300 MILLISECONDS'") + "INSERT INTO '{sink}' "
    case = Case.make(topics, tmp_path, text + JOIN.replace("{window}", "[RANGE 1 HOUR]"), partitions=2)
    feed = Feed(case)
    worker = workers.start(case).wait_running()
    for n in range(50):
        for stream in ("a", "b"):
            feed.raw(stream, orjson.dumps({"x": n % 5, "n": n, "at": BASE + 10 * n}), 0)
    feed.flush()
    reader, late = Reader(case.bootstrap, case.sink), Reader(case.bootstrap, f"{case.sink}.late")
    wait_for(lambda: worker.metric("watermark_milliseconds") > BASE + 400, worker.with_log("progress"))
    for n in range(20):
        feed.raw("a", orjson.dumps({"x": n % 5, "n": -n, "at": BASE + 10 * n}), 1)
    feed.flush()
    late.wait_for_count(20, worker.alive)
    assert all(record.headers["reason"] == "idle" for record in late.poll())
    code, out, stderr = command(case, "audit")
    assert code == 0, out + stderr
    assert f"{len(late.poll())} late" in out
    # The worker may have gone on since then.
    compared = re.search(r"results before (\S+) compared", out)
    assert compared is not None
    end = datetime.fromisoformat(compared[1]).timestamp() * 1000
    found = sum(row["_ts"] < end for row in reader.rows())
    assert found > 20
    assert f"found {found:,}" in out


def test_a_distributed_plan_is_audited_up_to_the_cut_of_its_last_join(
    topics: Topics, tmp_path: Path, workers: Workers
) -> None:
    text = DECLARED.replace("IDLE", "") + (
        "CREATE STREAM c (x BIGINT, at TIMESTAMP) WITH (topic = '{c}', timestamp = 'at');\n"
        "INSERT INTO '{sink}' SELECT A.n AS one, B.n AS two FROM a A [RANGE 40 MILLISECONDS], "
        "b B [RANGE 40 MILLISECONDS], c C [RANGE 40 MILLISECONDS] WHERE A.x = B.x AND B.x = C.x"
    )
    case = Case.make(topics, tmp_path, text)
    feed, reader = Feed(case), Reader(case.bootstrap, case.sink)
    worker = workers.start(case, "--placement", "per-operator", "--plan", "((A B) C)")
    for n in range(300):
        for stream in ("a", "b", "c"):
            row: Row = {"x": (n * (2 + len(stream)) + ord(stream)) % 4, "at": BASE + 5 * n}
            feed.send(stream, [row if stream == "c" else {**row, "n": n}])
    feed.finish({"a": {"x": -1, "n": 0}, "b": {"x": -2, "n": 0}, "c": {"x": -3}})
    expected = case.expected()
    assert sum(expected.values()) > 100
    reader.wait_for_count(sum(expected.values()), worker.alive)

    def whole() -> bool:
        code, out, stderr = command(case, "audit")
        assert code == 0, out + stderr
        return f"found {sum(expected.values()):,}:" in out

    wait_for(whole, "an audit of everything")
    damage(case, reader)
    code, out, stderr = command(case, "audit")
    assert code == 1, out + stderr
    assert ": 3 missing, 1 extra, 2 doubled" in out


def test_an_answer_that_retention_has_made_impossible_is_refused(
    topics: Topics, tmp_path: Path, workers: Workers
) -> None:
    text = DECLARED.replace("IDLE", "") + "INSERT INTO '{sink}' " + JOIN.replace("{window}", "[RANGE 90 MILLISECONDS]")
    case = Case.make(topics, tmp_path, text)
    code, _, stderr = command(case, "audit")
    assert code == 1
    assert "has committed nothing" in stderr
    worker = workers.start(case).wait_running()
    send(Feed(case), 200, seed=4)
    expected = case.expected()
    Reader(case.bootstrap, case.sink).wait_for_count(sum(expected.values()), worker.alive)
    Topics(case.bootstrap).delete_before(case.topic("b"), 50)
    code, _, stderr = command(case, "audit")
    assert code == 1
    found = re.search(r"begins at offset 50.* --from (\S+) leaves those out", stderr)
    assert found is not None, stderr
    code, out, stderr = command(case, "audit", "--from", found[1])
    assert code == 0, out + stderr
    assert f"results from {found[1]} before" in out
    other = Path(str(case.path).replace(".sql", "-other.sql"))
    other.write_text(case.path.read_text().replace("90 MILLI", "91 MILLI"))
    result = CliRunner().invoke(app, ["audit", str(other), "--bootstrap", case.bootstrap])
    assert "is of another query" in str(result.exception)


@pytest.mark.parametrize("window", ["[ROWS 8]", "[RANGE 60 MILLISECONDS]"])
def test_elements_of_arrays(topics: Topics, tmp_path: Path, workers: Workers, window: str) -> None:
    """Elements of one record have one offset, and are in the order of the array; ROWS windows count them."""
    declared = DECLARED.replace("IDLE", "").replace("n BIGINT,", "n BIGINT, parts ARRAY<BIGINT>,", 1)
    join = f"""SELECT A.n AS one, P._ordinal AS place, B.n AS two
               FROM a A {window} CROSS JOIN UNNEST(A.parts) AS P (part), b B {window} WHERE P.part = B.x"""
    case = Case.make(topics, tmp_path, f"{declared}INSERT INTO '{{sink}}' {join}")
    reader, feed, chance = Reader(case.bootstrap, case.sink), Feed(case), random.Random(8)
    worker = workers.start(case).wait_running()
    for n in range(200):
        parts = [chance.randrange(6) for _ in range(chance.randrange(4))]
        feed.send("a", [{"n": n, "parts": parts, "at": BASE + 5 * n - chance.choice([0, 20, 60])}])
        feed.send("b", [{"x": chance.randrange(6), "n": n, "at": BASE + 5 * n}])
    feed.finish({"a": {"parts": [-1]}, "b": {"x": -2}})
    expected = case.expected()
    reader.wait_for_count(sum(expected.values()), worker.alive)
    assert canonical(reader.rows()) == expected

    def clean() -> bool:
        code, shown, stderr = command(case, "audit")
        assert code == 0, shown + stderr
        return f"expected {sum(expected.values()):,} results, found {sum(expected.values()):,}" in shown

    wait_for(clean, "an audit of all results")
    assert worker.stop() == 0


def test_results_in_avro(topics: Topics, tmp_path: Path, workers: Workers, registry: str) -> None:
    """One output is in an object, others have names that Avro does not have; one task writes to two partitions."""
    options = f"KEY (two) WITH (format = 'avro', registry = '{registry}')"
    text = DECLARED.replace("IDLE", "") + f"INSERT INTO '{{sink}}' {options} "
    join = JOIN.replace("{window}", "[RANGE 90 MILLISECONDS]").replace("AS one", 'AS "the 1.one"')
    case = Case.make(topics, tmp_path, text + join, partitions=2)
    reader = Reader(case.bootstrap, case.sink, decode=rows_of_avro(registry, case.sink))
    worker = workers.start(case).wait_running()
    send(Feed(case), 200, seed=4)
    expected = case.expected()
    reader.wait_for_count(sum(expected.values()), worker.alive)
    assert Counter({row.replace("the_1", "the 1"): n for row, n in canonical(reader.rows()).items()}) == expected

    def clean() -> bool:
        code, shown, stderr = command(case, "audit")
        assert code == 0, shown + stderr
        return f"expected {sum(expected.values()):,} results, found {sum(expected.values()):,}" in shown

    wait_for(clean, "an audit of all results")
    first = [record for record in reader.records if record.partition == 0]
    assert 3 < len(first) < len(reader.records)
    Topics(case.bootstrap).delete_before(case.sink, first[2].offset + 1)
    code, out, stderr = command(case, "audit")
    assert code == 1, out + stderr
    assert ": 3 missing, 0 extra, 0 doubled" in out
    assert '"the 1":{"one":' in out
    assert worker.stop() == 0


OWN = {
    "own.avsc": """{"type": "record", "name": "Own", "fields": [{"name": "two", "type": ["int", "null"]},
      {"name": "more", "type": "string", "default": "m"}, {"name": "one", "type": "long"},
      {"name": "_ts", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}""",
    "own.proto": """syntax = "proto3"; import "google/protobuf/timestamp.proto";
      message Own { sint32 two = 3; string more = 2; int64 one = 1; google.protobuf.Timestamp _ts = 9; }""",
}


@pytest.mark.parametrize("schema", OWN)
def test_results_by_a_schema_of_ones_own(
    schema: str, topics: Topics, tmp_path: Path, workers: Workers, registry: str
) -> None:
    """With headers. A backfill writes the same results as JSON."""
    (tmp_path / schema).write_text(OWN[schema])
    format = "avro" if schema.endswith("avsc") else "protobuf"
    options = f"WITH (format = '{format}', schema = '{schema}', registry = '{registry}')"
    text = DECLARED.replace("IDLE", "").replace("n BIGINT, at", "n BIGINT, s STRING, at")
    join = JOIN.replace("{window}", "[RANGE 90 MILLISECONDS]").replace("AS two", 'AS two, A.s AS "_headers.s-of"')
    case = Case.make(topics, tmp_path, f"{text}INSERT INTO '{{sink}}' {options} {join}")
    reader = Reader(case.bootstrap, case.sink, decode=lambda raw: {"raw": raw})
    worker = workers.start(case).wait_running()
    send(Feed(case), 200, seed=4)
    expected = case.expected()
    reader.wait_for_count(expected.total(), worker.alive)

    def clean() -> bool:
        code, shown, stderr = command(case, "audit")
        assert code == 0, shown + stderr
        return f"expected {expected.total():,} results, found {expected.total():,}" in shown

    wait_for(clean, "an audit of all results")
    out_file = tmp_path / "past.jsonl"
    code, _, stderr = command(case, "backfill", "--out", str(out_file))
    assert code == 0, stderr
    assert canonical(orjson.loads(line) for line in out_file.read_bytes().splitlines()) == expected
    Topics(case.bootstrap).delete_before(case.sink, 3)
    code, out, stderr = command(case, "audit")
    assert code == 1, out + stderr
    assert ": 3 missing, 0 extra, 0 doubled" in out
    assert worker.stop() == 0


def test_results_with_headers(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """An output that is called as Kafka's own column is an output; a header that another has written is an error."""
    text = DECLARED.replace("IDLE", "").replace("n BIGINT, at", "n BIGINT, s STRING, at")
    join = JOIN.replace("{window}", "[RANGE 90 MILLISECONDS]").replace("AS two", 'AS _offset, A.s AS "_headers.s.of"')
    case = Case.make(topics, tmp_path, text + "INSERT INTO '{sink}' " + join)
    reader = Reader(case.bootstrap, case.sink)
    worker = workers.start(case).wait_running()
    send(Feed(case), 200, seed=4)
    expected = case.expected()
    reader.wait_for_count(sum(expected.values()), worker.alive)
    rows = reader.rows()
    for record, row in zip(reader.records, rows, strict=True):
        row["_headers"] = {"s.of": record.headers.get("s.of")}
    assert canonical(rows) == expected
    assert {len(record.headers) for record in reader.records} == {0, 1}

    def clean() -> bool:
        code, shown, stderr = command(case, "audit")
        assert code == 0, shown + stderr
        return f"expected {sum(expected.values()):,} results, found {sum(expected.values()):,}" in shown

    wait_for(clean, "an audit of all results")
    first = reader.records[0]
    producer = Producer({"bootstrap.servers": case.bootstrap, "log_level": 0})
    producer.produce(case.sink, first.value, headers=[("s.of", b"another")])
    assert producer.flush(30) == 0
    code, out, stderr = command(case, "audit")
    assert code == 1, out + stderr
    assert ": 0 missing, 1 extra, 0 doubled" in out
    assert '"_headers":{"s.of":"another"}' in out
    assert worker.stop() == 0
