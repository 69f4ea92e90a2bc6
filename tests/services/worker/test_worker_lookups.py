"""Tables in topics on a real broker: rows change while workers die, and each tuple gets the row of its own time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import orjson
import pytest

from services.kafka.topics import TopicAdmin
from services.process.security import KafkaClients
from tests.broker_fixture import Topics
from tests.worker_harness import Case, Feed, Reader, Row, WorkerProcess, Workers, assert_exact, wait_for

pytestmark = pytest.mark.kafka

DECLARED = """
CREATE STREAM orders (id BIGINT, cur STRING, amount BIGINT, at TIMESTAMP)
  WITH (topic = '{orders}', timestamp = 'at', disorder = '50 MILLISECONDS');
CREATE STREAM paid (id BIGINT, cur STRING, at TIMESTAMP)
  WITH (topic = '{paid}', timestamp = 'at', disorder = '50 MILLISECONDS');
CREATE TABLE rates (cur STRING PRIMARY KEY, rate BIGINT, at TIMESTAMP)
  WITH (topic = '{rates}', timestamp = 'at', disorder = '50 MILLISECONDS'IDLE);
"""
JOIN = DECLARED + (
    "INSERT INTO '{sink}' SELECT O.id AS id, O.amount * R.rate AS sum, R._ts AS since "
    "FROM orders O [RANGE 1 SECOND], rates FOR SYSTEM_TIME AS OF O._ts AS R, paid P [RANGE 1 SECOND] "
    "WHERE R.cur = O.cur AND P.id = O.id AND P.cur = O.cur"
)
KEYED = JOIN + " PARTITION BY O.cur, P.cur, R.cur"
KEPT = DECLARED + (
    "INSERT INTO '{sink}' SELECT O.id AS id, R.rate AS rate FROM orders O [RANGE 1 SECOND] "
    "LEFT JOIN rates FOR SYSTEM_TIME AS OF O._ts AS R ON R.cur = O.cur"
)
EXCEPT = DECLARED + (
    "INSERT INTO '{sink}' SELECT O.id AS id, O.amount * R.rate AS sum FROM orders O [RANGE 1 SECOND], "
    "rates FOR SYSTEM_TIME AS OF O._ts AS R, rates FOR SYSTEM_TIME AS OF P._ts AS S WHERE R.cur = O.cur "
    "EXCEPT paid P [RANGE 300 MILLISECONDS] ON P.id = O.id AND S.cur = P.cur AND S.rate <> R.rate"
)
BASE = 1_700_000_000_000
CURRENCIES = ("USD", "GBP", "SEK", "JPY", "CHF")
CLOSING: dict[str, Row] = {"orders": {"id": -1}, "paid": {"id": -2}, "rates": {"cur": "end", "rate": 0}}


def declared(text: str, idle: str = "") -> str:
    return text.replace("IDLE", idle)


class ChangeFeed(Feed):
    """Writes a table's rows as Kafka has them: the primary key in the record's key, the end of a row as a tombstone."""

    def raw(self, stream: str, value: bytes | None, partition: int = 0, **more: Any) -> None:
        if stream == "rates" and value is not None and not more:
            row = orjson.loads(value)
            gone, more = row.pop("_op", None) == "-", {"key": row.pop("cur"), "timestamp": row["at"]}
            value = None if gone else orjson.dumps(row)
        super().raw(stream, value, partition, **more)


def partition_of(cur: str, partitions: int) -> int:
    return CURRENCIES.index(cur) % partitions


def send(feed: Feed, rng: random.Random, start: int, count: int) -> None:
    """Some rows of all streams: changes of rates, ends of rows, late and disordered ones, several at one time."""
    for i in range(start, start + count):
        at = BASE + 10 * i
        for stream in ("orders", "paid", "rates"):
            cur = rng.choice(CURRENCIES)
            row: Row = {"cur": cur, "at": at - rng.choice([0, 0, 20, 40])}
            if stream == "rates":
                if rng.random() < 0.05:
                    row["at"] -= 300
                row |= {"_op": "-"} if rng.random() < 0.2 else {"rate": i}
            else:
                row |= {"id": rng.randrange(20), **({"amount": rng.randrange(5)} if stream == "orders" else {})}
            feed.send(stream, [row], partition_of(cur, feed.case.partitions))
    feed.flush()


def late_rates(case: Case) -> int:
    """How many versions are late."""
    found = 0
    for part in case.rows["rates"]:
        largest = 0
        for row in part:
            found += row["at"] < largest - 50
            largest = max(largest, row["at"])
    return found


@pytest.mark.parametrize("state", ["disk", pytest.param("none", marks=pytest.mark.deep)])
def test_a_killed_worker_looks_up_the_same(state: str, topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """It reads the table again: with a snapshot of the tuples on its disk, and without one."""
    case = Case.make(topics, tmp_path, declared(JOIN))
    feed, rng, reader = ChangeFeed(case), random.Random(1), Reader(case.bootstrap, case.sink)
    options = ("--snapshot", "100ms", "--commit", "100ms")
    worker: WorkerProcess | None = None
    for life in range(3):
        send(feed, rng, 150 * life, 150)
        worker = workers.start(case, *options, state="none" if state == "none" else None).wait_running()
        reader.wait_for_count(40 * (life + 1))
        if state == "disk":
            wait_for(lambda w=worker: w.metric("snapshot_watermark_milliseconds"), worker.with_log("a snapshot"))
        send(feed, rng, 150 * life + 75, 20)
        if life < 2:
            worker.kill()
    assert worker is not None
    feed.finish(CLOSING)
    assert_exact(case, reader, worker)
    letters = Reader(case.bootstrap, f"{case.sink}.late").wait_for_count(late_rates(case))
    assert sum(letter.headers["stream"] == "rates" for letter in letters) == late_rates(case) > 0
    assert worker.stop() == 0


@pytest.mark.deep
@pytest.mark.parametrize("state", ["disk", "none"])
def test_a_killed_worker_subtracts_the_same(state: str, topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Both streams of a set difference are looked up."""
    case = Case.make(topics, tmp_path, declared(EXCEPT))
    feed, rng, reader = ChangeFeed(case), random.Random(5), Reader(case.bootstrap, case.sink)
    options = ("--snapshot", "100ms", "--commit", "100ms")
    given = "none" if state == "none" else None
    send(feed, rng, 0, 150)
    worker = workers.start(case, *options, state=given).wait_running()
    reader.wait_for_count(100)
    if state == "disk":
        wait_for(lambda: worker.metric("snapshot_watermark_milliseconds"), worker.with_log("a snapshot"))
    send(feed, rng, 150, 20)
    worker.kill()
    worker = workers.start(case, *options, state=given).wait_running()
    send(feed, rng, 170, 100)
    feed.finish(CLOSING)
    assert_exact(case, reader, worker)
    kinds = [row["_op"] for row in reader.rows()]
    assert kinds.count("+") == kinds.count("-") > 150


@pytest.mark.deep
def test_a_task_per_partition(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """A task reads the partition of its keys of the table, too; one of two workers dies."""
    case = Case.make(topics, tmp_path, declared(KEYED), partitions=2)
    feed, rng, reader = ChangeFeed(case), random.Random(2), Reader(case.bootstrap, case.sink)
    team = [workers.start(case, state="none"), workers.start(case, state="none")]
    wait_for(lambda: sorted(t for w in team for t in w.running_tasks()) == [0, 1], team[0].with_log("tasks"))
    send(feed, rng, 0, 200)
    reader.wait_for_count(20)
    team[0].kill()
    team[1].wait_running((0, 1))
    send(feed, rng, 200, 100)
    feed.finish(CLOSING)
    assert_exact(case, reader, team[1])


@pytest.mark.deep
@pytest.mark.parametrize("options", ["--jit on", "--memory 1MiB", "--adapt on"])
def test_with_everything_else(options: str, topics: Topics, tmp_path: Path, workers: Workers) -> None:
    case = Case.make(topics, tmp_path, declared(JOIN))
    feed, rng, reader = ChangeFeed(case), random.Random(3), Reader(case.bootstrap, case.sink)
    worker = workers.start(case, *options.split()).wait_running()
    send(feed, rng, 0, 200)
    reader.wait_for_count(20)
    worker.kill()
    worker = workers.start(case, *options.split()).wait_running()
    send(feed, rng, 200, 100)
    feed.finish(CLOSING)
    assert_exact(case, reader, worker)


@pytest.mark.deep
def test_the_plan_changes(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    case = Case.make(topics, tmp_path, declared(JOIN))
    feed, rng, reader = ChangeFeed(case), random.Random(4), Reader(case.bootstrap, case.sink)
    worker = workers.start(case, "--plan", "(O P)").wait_running()
    workers.coordinator(case).wait_running()
    send(feed, rng, 0, 100)
    reader.wait_for_count(5)
    change = workers.migrate(case, "(P O)", "jisc", "--wait", "--timeout", "60s")
    sent = 100

    def ended() -> bool:
        nonlocal sent
        send(feed, rng, sent, 10)
        sent += 10
        return change.ended()

    wait_for(ended, lambda: worker.with_log("the other plan"))
    code, _, err = change.finish()
    assert code == 0, err
    feed.finish(CLOSING)
    assert_exact(case, reader, worker)


def test_a_silent_table_holds_results_back_unless_it_may_idle(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """/healthz names the table. With an idle timeout, what it brings later is late, holds from then on, and does so in
    the eyes of a successor, too."""
    case = Case.make(topics, tmp_path, declared(KEPT, ", idle_timeout = '500 MILLISECONDS'"))
    feed, reader = ChangeFeed(case), Reader(case.bootstrap, case.sink)
    worker = workers.start(case, "--commit", "100ms", state="none").wait_running()
    feed.send("rates", [{"cur": "USD", "rate": 1, "at": BASE}])
    feed.send("orders", [{"id": n, "cur": "USD", "at": BASE + 100 * n} for n in range(50)])
    feed.flush()
    reader.wait_for_count(49)  # one is within the disorder
    assert {row["rate"] for row in reader.rows()} == {1}
    feed.send("rates", [{"cur": "USD", "rate": 2, "at": BASE + 1000}])
    feed.flush()
    found = Reader(case.bootstrap, f"{case.sink}.late").wait_for_count(1)
    assert found[0].headers["reason"] == "idle"
    feed.send("orders", [{"id": 50 + n, "cur": "USD", "at": BASE + 5000 + 100 * n} for n in range(10)])
    feed.flush()
    reader.wait_for_count(55)
    worker.kill()
    worker = workers.start(case, "--commit", "100ms", state="none").wait_running()
    feed.send("orders", [{"id": 60 + n, "cur": "USD", "at": BASE + 6000 + 100 * n} for n in range(10)])
    feed.flush()
    reader.wait_for_count(69)
    rates = {row["id"]: row["rate"] for row in reader.rows()}
    assert [rates[n] for n in range(69)] == [1] * 49 + [2] * 20, worker.with_log("late versions")
    assert worker.stop() == 0


def test_the_latest_orders_are_looked_up_in_the_whole_table(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """With `--from latest` the table is still read from its beginning."""
    case = Case.make(topics, tmp_path, declared(KEPT))
    feed, reader = ChangeFeed(case), Reader(case.bootstrap, case.sink)
    feed.send("rates", [{"cur": "USD", "rate": 7, "at": BASE}])
    feed.send("orders", [{"id": 1, "cur": "USD", "at": BASE + 1}])
    feed.flush()
    worker = workers.start(case, "--from", "latest").wait_running()
    feed.send("rates", [{"cur": "GBP", "rate": 9, "at": BASE + 1000}])
    feed.send("orders", [{"id": 2, "cur": "USD", "at": BASE + 500}, {"id": 3, "cur": "GBP", "at": BASE + 2000}])
    feed.flush()
    wait_for(lambda: "rates" in str(worker.health()["tasks"]), lambda: worker.with_log("who is waited for"))
    feed.finish(CLOSING)
    reader.wait_for_count(2)
    assert [(row["id"], row["rate"]) for row in reader.rows()][:2] == [(2, 7), (3, 9)]
    assert worker.stop() == 0


@pytest.mark.deep
def test_a_table_whose_beginning_is_gone(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """A successor would look tuples up in what is left of it: it says so, and does not start."""
    case = Case.make(topics, tmp_path, declared(KEPT))
    feed, reader = ChangeFeed(case), Reader(case.bootstrap, case.sink)
    worker = workers.start(case, "--commit", "100ms", state="none").wait_running()
    feed.send("rates", [{"cur": cur, "rate": n, "at": BASE + n} for n, cur in enumerate(CURRENCIES)])
    feed.send("orders", [{"id": n, "cur": "USD", "at": BASE + 100 * n} for n in range(5)])
    feed.finish(CLOSING)
    reader.wait_for_count(5)
    assert worker.stop() == 0
    TopicAdmin(KafkaClients(case.bootstrap)).trim({(case.topic("rates"), 0): 3})
    successor = workers.start(case, state="none")
    assert successor.process.wait(60) == 1
    assert f"records 0 to 2 of {case.topic('rates')}[0]" in successor.text(), successor.text()
