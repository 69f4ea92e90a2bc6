"""Bad surroundings: silent partitions, missing topics, a broker that restarts, disks that fail or lie.

After each the sink holds, read_committed, exactly the oracle's results; where going on could lose or repeat
results the worker says so in one line and stops.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from schemas.query import Query
from services.broker.broker import Broker
from services.broker.settings import SaslUser
from tests.broker_fixture import RestartableBroker, Topics
from tests.worker_harness import FAR, Case, Feed, Reader, Row, Workers, assert_exact, canonical, wait_for

pytestmark = pytest.mark.kafka

PAIRS = """
CREATE STREAM l (k BIGINT, note STRING, at TIMESTAMP)
  WITH (topic = '{l}', format = 'json', timestamp = 'at', disorder = '100 MILLISECONDS' MORE);
CREATE STREAM r (k BIGINT, v BIGINT, at TIMESTAMP)
  WITH (topic = '{r}', format = 'json', timestamp = 'at', disorder = '100 MILLISECONDS' MORE);
INSERT INTO '{sink}'
SELECT L.k AS k, L.note AS note, R.v AS v FROM l L [RANGE 1 SECOND], r R [RANGE 1 SECOND] WHERE L.k = R.k
"""
PLAIN = PAIRS.replace(" MORE", "")
IDLE = PAIRS.replace(" MORE", ", idle_timeout = '400 MILLISECONDS'")

CLOSING: dict[str, Row] = {"l": {"k": -1, "note": "end"}, "r": {"k": -2, "v": 0}}
BASE = 1_700_000_000_000


def pairs(rng: random.Random, start: int, count: int) -> dict[str, list[Row]]:
    """`count` rows per stream, 10 ms apart, somewhat out of order."""

    def at(i: int) -> int:
        return BASE + 10 * i - rng.choice([0, 0, 30, 90])

    steps = range(start, start + count)
    return {
        "l": [{"k": rng.randrange(20), "note": f"n{i}", "at": at(i)} for i in steps],
        "r": [{"k": rng.randrange(20), "v": i, "at": at(i)} for i in steps],
    }


def send(feed: Feed, rng: random.Random, start: int, count: int) -> None:
    """Write some rows to all streams, by key where there are several partitions."""
    for stream, rows in pairs(rng, start, count).items():
        feed.spread(stream, rows, lambda row: row["k"])
    feed.flush()


@pytest.mark.deep
def test_broker_restarts(restartable_broker: RestartableBroker, tmp_path: Path, workers: Workers) -> None:
    """The broker goes away in mid-run, once as it should and once with kill -9; the worker stays."""
    case = Case.make(restartable_broker.topics, tmp_path, PLAIN)
    feed, rng = Feed(case), random.Random(1)
    worker = workers.start(case).wait_running()
    send(feed, rng, 0, 200)
    reader = Reader(case.bootstrap, case.sink)
    reader.wait_for_count(1)
    for life, end in enumerate([restartable_broker.stop, restartable_broker.kill], 1):
        send(feed, rng, 400 * life - 200, 200)
        end()
        restartable_broker.start()
        send(feed, rng, 400 * life, 200)
    feed.finish(CLOSING)
    assert_exact(case, reader, worker)
    assert worker.stop() == 0


@pytest.mark.deep
def test_stopped_while_the_broker_is_away(
    restartable_broker: RestartableBroker, tmp_path: Path, workers: Workers
) -> None:
    """SIGTERM while no broker answers: the worker ends.

    aiokafka's fetcher does not end well when a fetch that waits to be tried again is cancelled. The consumer's thread
    died of that before Faust heard that it had ended, and the worker waited for it for ever.
    """
    case = Case.make(restartable_broker.topics, tmp_path, PLAIN)
    worker = workers.start(case).wait_running()
    restartable_broker.kill()
    wait_for(lambda: "Failed fetch messages" in worker.text(), lambda: worker.with_log("a fetch that failed"))
    assert worker.stop() in (0, 1)
    assert "Traceback" not in worker.text(), worker.with_log("a stack trace")


@pytest.mark.deep
def test_the_broker_goes_away_while_a_worker_begins(
    restartable_broker: RestartableBroker, tmp_path: Path, workers: Workers
) -> None:
    """A worker that has found its topics waits for the broker, without a stack trace, and can be stopped meanwhile."""
    case = Case.make(restartable_broker.topics, tmp_path, PLAIN)
    for turn in range(2):
        worker = workers.start(case)
        wait_for(lambda w=worker: "worker starting" in w.text(), lambda w=worker: w.with_log("a start"))
        restartable_broker.kill()
        wait_for(lambda w=worker: "no connection to Kafka" in w.text(), lambda w=worker: w.with_log("patience"))
        assert worker.process.poll() is None, worker.with_log("the worker ended")
        assert "Traceback" not in worker.text(), worker.with_log("a stack trace")
        if turn == 0:
            assert worker.stop() in (0, 1)
        restartable_broker.start()
    worker.wait_running()
    assert worker.stop() == 0


@pytest.mark.deep
def test_idle_partitions(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """A silent partition stops holding results back. What it then brings behind them is late with reason
    `idle`, also in the eyes of a successor that reads it again."""
    case = Case.make(topics, tmp_path, IDLE, partitions=2)
    feed, rng = Feed(case), random.Random(2)
    rows = pairs(rng, 0, 200)
    feed.send("l", rows["l"], 0)
    feed.send("r", rows["r"], 0)
    feed.flush()
    worker = workers.start(case, "--commit", "100ms").wait_running()
    reader = Reader(case.bootstrap, case.sink)
    wait_for(lambda: worker.metric("watermark_milliseconds") >= _least_watermark(case), worker.with_log("progress"))
    # The other partition of l wakes up behind what is out, then goes on in step with the others.
    lost = [{"k": k, "note": "behind", "at": BASE + 10 * k} for k in range(20)]
    for row in lost:
        feed.raw("l", json.dumps(row).encode(), 1)
    feed.flush()
    letters = Reader(case.bootstrap, f"{case.sink}.late")
    letters.wait_for_count(20, lambda: None)
    assert {r.headers["reason"] for r in letters.records} == {"idle"}
    late_rows = pairs(rng, 200, 50)
    feed.send("l", late_rows["l"], 1)
    feed.send("r", late_rows["r"], 0)
    feed.flush()
    wait_for(lambda: worker.metric("watermark_milliseconds") >= BASE + 2000, worker.with_log("progress"))
    worker.kill()
    successor = workers.start(case, state=tmp_path / "empty").wait_running()
    assert "source=window" in successor.text()
    more = pairs(rng, 250, 50)
    feed.send("l", more["l"], 1)
    feed.send("r", more["r"], 0)
    feed.finish(CLOSING)
    # On a slow machine more partitions fall asleep: whatever that makes late is named once, and is in no result.
    wait_for(lambda: successor.metric("watermark_milliseconds") > BASE + FAR, successor.with_log("the end"))
    refused = [json.loads(letter.value or b"") for letter in letters.poll()]
    assert {letter.headers["reason"] for letter in letters.records} == {"idle"}
    places = {tuple(letter.headers[h] for h in ("topic", "partition", "offset")) for letter in letters.records}
    assert len(places) == len(refused)
    assert all(row in refused for row in lost)
    for parts in case.rows.values():
        for rows_of in parts:
            rows_of[:] = [row for row in rows_of if row not in refused]
    assert_exact(case, reader, successor)


def _least_watermark(case: Case) -> int:
    return min(max(row["at"] for row in parts[0]) for parts in case.rows.values()) - 100


def test_an_empty_topic_holds_back_or_times_out(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Without idle_timeout an empty topic is waited for, and nothing is lost when it fills."""
    case = Case.make(topics, tmp_path, PLAIN)
    feed, rng = Feed(case), random.Random(3)
    rows = pairs(rng, 0, 200)
    feed.send("l", rows["l"])
    feed.flush()
    worker = workers.start(case).wait_running()
    wait_for(lambda: worker.metric("input_tuples_total") == 200, worker.with_log("input"))
    assert worker.metric("watermark_milliseconds") == 0
    feed.send("r", rows["r"])
    feed.finish(CLOSING)
    assert_exact(case, Reader(case.bootstrap, case.sink), worker)


@pytest.mark.deep
def test_history_is_read_in_step(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """One topic holds a long history that the other lacks: the fast one is paused, memory stays bounded."""
    case = Case.make(topics, tmp_path, PLAIN)
    feed, rng = Feed(case), random.Random(4)
    history = 400_000
    for i in range(history):  # matches nothing, so the oracle need not know
        feed.raw("l", b'{"k": 100, "note": "a long history", "at": %d}' % (BASE - 10 * (history - i)))
    rows = pairs(rng, 0, 200)
    feed.send("l", rows["l"])
    feed.send("r", [{"k": 0, "v": 0, "at": BASE - 10 * history}])
    feed.flush()
    worker = workers.start(case, "--max-ahead", "20s", "--max-pending", "1000").wait_running()
    wait_for(lambda: worker.metric("paused_partitions") == 1, worker.with_log("pause"))
    wait_for(lambda: worker.metric("watermark_milliseconds") > 0, worker.with_log("progress"))
    assert worker.metric("input_tuples_total") < history / 2
    feed.send("r", rows["r"])
    feed.finish(CLOSING)
    assert_exact(case, Reader(case.bootstrap, case.sink), worker)
    assert worker.metric("input_tuples_total") == history + 403


@pytest.mark.deep
def test_missing_topics(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """With --no-wait one line and exit code 1; otherwise the worker waits and begins when they come."""
    case = Case.make(topics, tmp_path, PLAIN)
    missing = f"later-{case.sink}"
    text = case.path.read_text().replace(case.topic("r"), missing)
    case.path.write_text(text)
    impatient = workers.start(case, "--no-wait")
    assert impatient.process.wait(60) == 1
    assert impatient.text().strip().splitlines()[-1] == f"weir: missing input topic: {missing}"
    patient = workers.start(case)
    wait_for(lambda: f"missing input topic: {missing}; waiting" in patient.text(), patient.with_log("a line"))
    admin = AdminClient({"bootstrap.servers": case.bootstrap})
    admin.create_topics([NewTopic(missing, 1, 1)])[missing].result(30)
    patient.wait_running()
    assert patient.text().count("missing input topic") == 1
    assert patient.stop() == 0


@pytest.mark.deep
def test_no_broker(tmp_path: Path, topics: Topics, workers: Workers) -> None:
    """Nobody answers: one line and exit code 1 with --no-wait."""
    case = Case.make(topics, tmp_path, PLAIN)
    case.bootstrap = "127.0.0.1:1"
    worker = workers.start(case, "--no-wait")
    assert worker.process.wait(60) == 1
    assert worker.text().startswith("weir: no answer from Kafka")


@pytest.mark.deep
def test_changed_query_is_refused(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Committed state of another query must not be continued; the SELECT list may change."""
    case = Case.make(topics, tmp_path, PLAIN)
    feed, rng = Feed(case), random.Random(5)
    send(feed, rng, 0, 100)
    worker = workers.start(case).wait_running()
    Reader(case.bootstrap, case.sink).wait_for_count(1)
    assert worker.stop() == 0
    text = case.path.read_text()
    case.path.write_text(text.replace("L.note AS note, ", ""))
    again = workers.start(case).wait_running()
    assert again.stop() == 0
    case.path.write_text(text.replace("l L [RANGE 1 SECOND]", "l L [RANGE 2 SECONDS]"))
    changed = workers.start(case)
    assert changed.process.wait(60) == 1
    assert "the query has changed since its commit" in changed.text().strip().splitlines()[-1]


@pytest.mark.deep
def test_expired_offsets_are_refused(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Offsets that have expired are known from the transaction log. Without it a snapshot tells that starting over
    would repeat results."""
    case = Case.make(topics, tmp_path, PLAIN)
    send(Feed(case), random.Random(6), 0, 100)
    worker = workers.start(case, "--snapshot", "100ms").wait_running()
    wait_for(lambda: worker.metric("snapshot_watermark_milliseconds") > 0, worker.with_log("snapshot"))
    assert worker.stop() == 0
    admin = AdminClient({"bootstrap.servers": case.bootstrap})
    group = f"weir-{case.sink}"
    admin.delete_consumer_groups([group])[group].result(30)
    worker = workers.start(case).wait_running()
    assert worker.metric("transaction_repairs_total") == 1
    assert worker.stop() == 0
    assert canonical(Reader(case.bootstrap, case.sink).rows()) <= case.expected()
    log = f"{group}.transactions"
    admin.delete_topics([log])[log].result(30)
    admin.delete_consumer_groups([group])[group].result(30)
    worker = workers.start(case)
    assert worker.process.wait(60) == 1
    assert "Kafka has no committed offsets" in worker.text().strip().splitlines()[-1]


@pytest.mark.deep
def test_lost_input_is_refused_or_accepted(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Retention deleted records that were not yet taken: stop, or go on when told to."""
    case = Case.make(topics, tmp_path, PLAIN)
    feed, rng = Feed(case), random.Random(7)
    send(feed, rng, 0, 100)
    worker = workers.start(case).wait_running()
    wait_for(lambda: worker.metric("watermark_milliseconds") == case.watermark(), worker.with_log("progress"))
    assert worker.stop() == 0
    send(feed, rng, 100, 100)
    Topics(case.bootstrap).delete_before(case.topic("l"), 150)
    worker = workers.start(case)
    assert worker.process.wait(60) == 1
    assert f"records 100 to 149 of {case.topic('l')}[0], not yet taken, are gone" in worker.text()
    worker = workers.start(case, "--accept-loss").wait_running()
    feed.finish(CLOSING)
    wait_for(lambda: worker.metric("watermark_milliseconds") > case.watermark(), worker.with_log("progress"))
    found, expected = canonical(Reader(case.bootstrap, case.sink).rows()), case.expected()
    assert found < expected
    assert worker.stop() == 0


@pytest.mark.deep
def test_damaged_snapshot_is_rebuilt(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """A flipped bit in a block: one warning, the window is read again, nothing is wrong."""
    case = Case.make(topics, tmp_path, PLAIN)
    feed, rng = Feed(case), random.Random(8)
    send(feed, rng, 0, 300)
    worker = workers.start(case, "--snapshot", "100ms").wait_running()
    wait_for(lambda: worker.metric("snapshot_watermark_milliseconds") == case.watermark(), worker.with_log("snapshot"))
    worker.kill()
    _flip_a_bit(tmp_path / "state", case.query)
    worker = workers.start(case).wait_running()
    assert worker.text().count("snapshot unusable, rebuilding from Kafka") == 1
    assert worker.metric("snapshot_failures_total") == 1
    send(feed, rng, 300, 100)
    feed.finish(CLOSING)
    assert_exact(case, Reader(case.bootstrap, case.sink), worker)


def _flip_a_bit(state: Path, query: Query) -> None:
    """Change the last byte of the first stored block, through RocksDB, whose own checksums stay right."""
    from rocksdict import Options, Rdict

    (table,) = state.glob("slot-*/*/task-0")
    options = Options(raw_mode=True)
    with Rdict(str(table), options) as rows:
        key = next(bytes(key) for key in rows.keys() if bytes(key)[:1] == b"b")  # noqa: SIM118
        block = bytearray(rows[key])
        block[-1] ^= 1
        rows[key] = bytes(block)


def _may_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.deep
@pytest.mark.skipif(not _may_mount(), reason="needs the right to mount a tmpfs in a namespace of its own")
def test_full_disk(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """The disk fills: one error line, results stay right, and the next start reads windows again."""
    case = Case.make(topics, tmp_path, PLAIN)
    feed, rng = Feed(case), random.Random(9)
    small = tmp_path / "small"
    small.mkdir()
    mount = f'mount -t tmpfs -o size=1m tmpfs {small} && exec "$@"'
    prefix = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    worker = workers.start(case, "--snapshot", "100ms", state=small, prefix=prefix).wait_running()
    start = 0
    while worker.metric("snapshot_failures_total") == 0:
        rows = pairs(rng, start, 200)
        feed.send("l", ({**row, "note": random.Random(row["at"]).randbytes(400).hex()} for row in rows["l"]))
        feed.send("r", rows["r"])
        feed.flush()
        start += 200
        assert start < 20_000, worker.with_log("the disk does not fill")
        wait_for(lambda: worker.metric("watermark_milliseconds") >= case.watermark(), worker.with_log("progress"))
        time.sleep(0.1)
    assert worker.text().count(" error ") == 1, worker.with_log("one line")
    assert "No space left on device" in worker.text()
    send(feed, rng, start, 100)
    feed.finish(CLOSING)
    assert_exact(case, Reader(case.bootstrap, case.sink), worker)
    assert worker.health()["status"] == "ok"


@pytest.mark.deep
def test_large_records(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """A 10 MB tuple joins; results beyond the sink's limit, and 10 MB of garbage, become dead letters."""
    case = Case.make(topics, tmp_path, PLAIN, max_message_bytes=str(16 << 20))
    admin = AdminClient({"bootstrap.servers": case.bootstrap})
    admin.create_topics([NewTopic(case.sink, 1, 1, config={"max.message.bytes": str(1 << 20)})])[case.sink].result(30)
    feed = Feed(case, **{"message.max.bytes": 16 << 20})
    feed.send("l", [{"k": 1, "note": "x" * (10 << 20), "at": BASE}, {"k": 2, "note": "small", "at": BASE}])
    feed.raw("l", b"y" * (10 << 20))
    feed.send("r", [{"k": 2, "v": 7, "at": BASE}])
    worker = workers.start(case).wait_running()
    expected = case.expected()
    feed.raw("r", json.dumps({"k": 1, "v": 8, "at": BASE}).encode())
    feed.finish(CLOSING)
    dead = Reader(case.bootstrap, f"{case.sink}.dead")
    dead.wait_for_count(2)
    sizes = sorted(len(record.value or b"") for record in dead.records)
    assert sizes[0] == 10 << 20
    assert sizes[1] > 10 << 20
    assert any("result of" in record.headers["reason"] for record in dead.records)
    reader = Reader(case.bootstrap, case.sink)
    reader.wait_for_count(1)
    assert canonical(reader.rows()) == expected
    assert worker.metric("results_total") == 1
    assert worker.stop() == 0


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Broker]:
    """A broker with a SASL listener beside the plain one."""
    own = RestartableBroker(tmp_path / "secured", SaslUser("weir", "s3cret-word"))
    try:
        yield own.start()
    finally:
        own.stop()


@pytest.mark.deep
def test_sasl(secured: Broker, tmp_path: Path, workers: Workers) -> None:
    """Both client libraries log in; the password is nowhere in the log."""
    case = Case.make(Topics(secured.bootstrap), tmp_path, PLAIN)
    feed, rng = Feed(case), random.Random(10)
    send(feed, rng, 0, 100)
    plain = case.bootstrap
    assert secured.sasl_bootstrap is not None
    case.bootstrap = secured.sasl_bootstrap
    env = {
        "WEIR_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "WEIR_KAFKA_SASL_USERNAME": "weir",
        "WEIR_KAFKA_SASL_PASSWORD": "s3cret-word",
    }
    worker = workers.start(case, "--log-level", "debug", env=env).wait_running()
    feed.finish(CLOSING)
    assert_exact(case, Reader(plain, case.sink), worker)
    assert worker.stop() == 0
    assert "s3cret-word" not in worker.text()
    wrong = workers.start(case, "--no-wait", env={**env, "WEIR_KAFKA_SASL_PASSWORD": "wr0ng-word"})
    assert wrong.process.wait(60) == 1
    assert "wr0ng-word" not in wrong.text()
