"""Queries of a registered group look tuples up in tables in topics: they come and go, workers die, and every output
topic is exact."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.broker_fixture import Topics
from tests.group_workers import GroupTrial
from tests.services.worker.test_worker_lookups import BASE, CLOSING, DECLARED, ChangeFeed, declared, send
from tests.worker_harness import Reader, Workers, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.unmeasured]

READS = (
    "SELECT O.id FROM orders O [RANGE 1 SECOND], paid P [RANGE 1 SECOND], rates FOR SYSTEM_TIME AS OF O._ts AS R "
    "WHERE R.cur = O.cur AND O.cur = P.cur PARTITION BY O.cur, P.cur, R.cur"
)
ORDER, PAYMENT = "orders O [RANGE 1 SECOND]", "paid P [RANGE 500 MILLISECONDS]"
OF_O, OF_P = "rates FOR SYSTEM_TIME AS OF O._ts AS R", "rates FOR SYSTEM_TIME AS OF P._ts AS R"
PLAIN = f"SELECT O.id, O.amount, P.cur FROM {ORDER}, {PAYMENT} WHERE O.id = P.id"
ORDERS = f"SELECT O.id, O.amount * R.rate AS sum FROM {ORDER}, {OF_O}, {PAYMENT} WHERE R.cur = O.cur AND P.id = O.id"
SINCE = f"SELECT O.id, R._ts AS since, R.rate AS r FROM {ORDER} LEFT JOIN {OF_O} ON R.cur = O.cur"
PAID = (
    f"SELECT O.id, R.rate AS r FROM {ORDER}, {PAYMENT}, {OF_P} "
    "WHERE R.cur = P.cur AND P.id = O.id AND R.rate > O.amount"
)
OTHER_KEY = f"SELECT P.id, R.rate AS r FROM {PAYMENT} LEFT JOIN {OF_P} ON R.cur = 'USD'"
COUNTED = (
    f"SELECT R.cur AS cur, COUNT(*) AS n, SUM(R.rate) AS sum FROM {ORDER}, {OF_O}, {PAYMENT} "
    "WHERE R.cur = O.cur AND P.id = O.id GROUP BY R.cur EMIT EVERY 250 MILLISECONDS"
)
EXCEPT = f"SELECT O.id, R.rate AS r FROM {ORDER}, {OF_O} WHERE R.cur = O.cur EXCEPT {PAYMENT} ON P.id = O.id"


def trial_of(topics: Topics, folder: Path, partitions: int = 1) -> GroupTrial:
    """A group that reads all streams and the table, without queries."""
    return GroupTrial.make(topics, folder, partitions, declared(DECLARED), READS)


@pytest.mark.deep
@pytest.mark.parametrize("options", ["", "--jit on"])
def test_queries_with_lookups_come_and_go(options: str, topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """The first worker of the group looks up nothing for any query. A query that comes later finds the rows that the
    table has had from its beginning; one that had one of its names before looked up something else."""
    trial = trial_of(topics, tmp_path)
    feed, rng = ChangeFeed(trial.case), random.Random(12)
    given = ("--commit", "100ms", *options.split())
    trial.register({"sum": ORDERS, "plain": PLAIN})
    trial.drop("sum")
    worker = workers.start(trial.case, *given, state="none").wait_running()
    send(feed, rng, 0, 100)
    wait_for(lambda: worker.metric("results_total") > 20, lambda: worker.with_log("results"))
    trial.register({"sum": ORDERS, "since": SINCE})
    trial.wait_begun(worker)
    send(feed, rng, 100, 50)
    worker.kill()
    worker = workers.start(trial.case, *given, state="none").wait_running()
    trial.register({"paid": PAID, "other": OTHER_KEY, "counted": COUNTED}, from_now=True)
    trial.register({"except": EXCEPT})
    trial.wait_begun(worker)
    send(feed, rng, 150, 100)
    trial.drop("plain")
    trial.register({"since": OTHER_KEY.replace("USD", "GBP")})
    trial.wait_begun(worker)
    send(feed, rng, 250, 50)
    worker.kill()
    worker = workers.start(trial.case, *given, state="none").wait_running()
    send(feed, rng, 300, 50)
    feed.finish(CLOSING)
    assert trial.judge(worker) > 500
    assert worker.stop() == 0


@pytest.mark.deep
def test_a_task_per_partition_reads_its_part_of_the_table(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    trial = trial_of(topics, tmp_path, partitions=2)
    feed, rng = ChangeFeed(trial.case), random.Random(13)
    both, all_three = " PARTITION BY O.cur, R.cur", " PARTITION BY O.cur, P.cur, R.cur"
    joined = "R.cur = P.cur AND P.cur = O.cur AND P.id = O.id"
    paid = f"SELECT O.id, R.rate AS r FROM {ORDER}, {PAYMENT}, {OF_P} WHERE {joined}"
    trial.register({"since": SINCE + both, "paid": paid + all_three})
    team = [workers.start(trial.case, state="none") for _ in range(2)]
    send(feed, rng, 0, 150)
    wait_for(lambda: sorted(t for w in team for t in w.running_tasks()) == [0, 1], team[0].with_log("tasks"))
    trial.register({"again": paid.replace("R.rate AS r", "R._ts AS t") + all_three})
    trial.wait_begun(team[0])
    send(feed, rng, 150, 50)
    team.pop(0).kill()
    team[0].wait_running((0, 1))
    send(feed, rng, 200, 100)
    feed.finish(CLOSING)
    assert trial.judge(team[0]) > 300


@pytest.mark.deep
def test_a_silent_table_may_idle(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """What it brings later is late for all queries, holds from where the group is, and does so in the eyes of a
    successor, too; a query that comes then has the newest row."""
    idle = declared(DECLARED, ", idle_timeout = '500 MILLISECONDS'")
    trial = GroupTrial.make(topics, tmp_path, 1, idle, READS)
    trial.register({"sum": ORDERS, "since": SINCE})
    feed, options = ChangeFeed(trial.case), ("--commit", "100ms")
    readers = {name: Reader(trial.case.bootstrap, f"{trial.name}-{name}") for name in ("sum", "since", "again")}
    worker = workers.start(trial.case, *options, state="none").wait_running()
    trial.wait_begun(worker)

    def both(first: int, count: int) -> None:
        """Tuples whose time follows from their number; the last of them is within the disorder."""
        for n in range(first, first + count):
            for stream, more in (("orders", {"amount": 1}), ("paid", {})):
                feed.send(stream, [{"id": n, "cur": "USD", "at": BASE + 100 * n, **more}])
        feed.flush()
        for name in ("sum", "since"):
            readers[name].wait_for_count(first + count - 1, worker.alive)

    feed.send("rates", [{"cur": "USD", "rate": 1, "at": BASE}])
    both(0, 50)
    feed.send("rates", [{"cur": "USD", "rate": 2, "at": BASE + 1000}])
    feed.flush()
    late = Reader(trial.case.bootstrap, f"{trial.name}.late")
    assert late.wait_for_count(1)[0].headers["reason"] == "idle"
    both(50, 10)
    worker.kill()
    worker = workers.start(trial.case, *options, state="none").wait_running()
    trial.register({"again": SINCE})
    trial.wait_begun(worker)
    both(60, 10)
    readers["again"].wait_for_count(9)
    for name, column in (("sum", "sum"), ("since", "r")):
        rates = {row["O.id"]: row[column] for row in readers[name].rows()}
        assert rates == {n: 1 if n < 49 else 2 for n in range(69)}, worker.with_log("versions")
    assert {row["r"] for row in readers["again"].rows()} == {2}
    assert len(late.poll()) == 1
    assert worker.stop() == 0
