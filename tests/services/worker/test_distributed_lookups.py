"""Tables in topics beside joins in tasks of their own, on a real broker: an intake reads them and looks tuples up."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests import oracle
from tests.broker_fixture import Topics
from tests.services.worker.test_distributed_workers import PLACED, decided, operators, spread
from tests.services.worker.test_worker_lookups import BASE, CLOSING, DECLARED, KEYED, ChangeFeed, declared, send
from tests.worker_harness import Case, Reader, WorkerProcess, Workers, assert_exact, canonical, wait_for

pytestmark = pytest.mark.kafka

JOINS = DECLARED + (
    "INSERT INTO '{sink}' SELECT O.id AS id, O.amount * R.rate AS sum, R._ts AS since, S.rate AS paid, N.amount AS n "
    "FROM orders O [RANGE 1 SECOND], rates FOR SYSTEM_TIME AS OF O._ts AS R, paid P [RANGE 500 MILLISECONDS] "
    "LEFT JOIN rates FOR SYSTEM_TIME AS OF P._ts AS S ON S.cur = P.cur, orders N [RANGE 300 MILLISECONDS] "
    "WHERE R.cur = O.cur AND P.id = O.id AND N.id = P.id AND N.amount <= R.rate"
)
INTAKE = "orders, paid, rates"


def assert_late_once(case: Case) -> None:
    """Every late version, and every late tuple, is in the topic of late records once."""
    late = sum(len(rows) for rows in oracle.late(case.query, case.rows).values())
    found = Reader(case.bootstrap, f"{case.sink}.late").wait_for_count(late)
    places = {tuple(record.headers[name] for name in ("topic", "partition", "offset")) for record in found}
    assert len(places) == len(found) == late > 0


def test_workers_die_and_look_up_the_same(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """The worker of the intake is killed, and those of the joins; nobody keeps a disk. A version that is late is so
    once, though two streams are looked up in the table."""
    case = Case.make(topics, tmp_path, declared(JOINS))
    feed, rng, reader = ChangeFeed(case), random.Random(1), Reader(case.bootstrap, case.sink)

    def start() -> WorkerProcess:
        return workers.start(case, *PLACED, "--plan", "((O P) N)", "--commit", "100ms", state="none")

    team = [start() for _ in range(2)]
    send(feed, rng, 0, 100)
    for task in (2, 0):
        at = spread(team, 3)
        assert operators(team) == {"((O P) N)", "(O P)", INTAKE}
        reader.wait_for_count(1)
        victim = next(worker for worker, numbers in zip(team, at, strict=True) if task in numbers)
        send(feed, rng, 100 + 40 * task, 40)
        victim.kill()
        team.remove(victim)
        team.append(start())
        send(feed, rng, 140 + 40 * task, 40)
    feed.finish(CLOSING)
    assert_exact(case, reader, team[0])
    assert_late_once(case)
    times = [row["_ts"] for row in reader.rows()]
    assert times == sorted(times), "one task writes them"
    spread(team, 3)  # the last worker, too, has begun by now and can be stopped
    assert [worker.stop() for worker in team] == [0, 0]


@pytest.mark.deep
@pytest.mark.parametrize("options", ["", "--jit on", "--memory 8KiB"])
def test_joins_that_are_split(options: str, topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """What is looked up travels; one task reads all partitions of the table. A worker dies."""
    case = Case.make(topics, tmp_path, declared(JOINS), partitions=2)
    feed, rng, reader = ChangeFeed(case), random.Random(2), Reader(case.bootstrap, case.sink)
    team = [workers.start(case, *PLACED, "--plan", "(O (P N))", *options.split(), state="none") for _ in range(2)]
    spread(team, 5)
    send(feed, rng, 0, 150)
    reader.wait_for_count(20)
    team.pop(0).kill()
    send(feed, rng, 150, 100)
    feed.finish(CLOSING)
    assert_exact(case, reader, team[0])
    assert_late_once(case)


@pytest.mark.deep
def test_a_task_per_partition(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """With PARTITION BY each intake reads the partition of its keys of the table, too."""
    case = Case.make(topics, tmp_path, declared(KEYED), partitions=2)
    feed, rng, reader = ChangeFeed(case), random.Random(3), Reader(case.bootstrap, case.sink)
    team = [workers.start(case, *PLACED, state="none") for _ in range(2)]
    spread(team, 4)
    send(feed, rng, 0, 200)
    reader.wait_for_count(20)
    team.pop(0).kill()
    send(feed, rng, 200, 100)
    feed.finish(CLOSING)
    assert_exact(case, reader, team[0])
    assert_late_once(case)


@pytest.mark.deep
def test_at_least_once(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Workers die between writing and committing: results come twice, and have the row that they had; none is missing,
    and none is another."""
    case = Case.make(topics, tmp_path, declared(JOINS))
    feed, rng = ChangeFeed(case), random.Random(6)
    reader = Reader(case.bootstrap, case.sink, "read_uncommitted")
    options = (*PLACED, "--plan", "((O P) N)", "--guarantee", "at-least-once", "--commit", "500ms")
    team = [workers.start(case, *options, state="none") for _ in range(2)]
    spread(team, 3)
    for life in range(2):
        seen = len(reader.poll())
        send(feed, rng, 120 * life, 120)
        wait_for(lambda n=seen: len(reader.poll()) > n, lambda: team[0].with_log("results"))
        team.pop(0).kill()
        team.append(workers.start(case, *options, state="none"))
        spread(team, 3)
    feed.finish(CLOSING)
    expected = case.expected()
    wait_for(lambda: not expected - canonical(reader.rows()), lambda: team[0].with_log("all results"))
    assert canonical(reader.rows()).keys() == expected.keys()
    spread(team, 3)
    assert [worker.stop() for worker in team] == [0, 0]


@pytest.mark.deep
@pytest.mark.parametrize("strategy", ["moving-state", "hybmig-bsc", "jisc"])
def test_the_plan_changes(strategy: str, topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """The next plan's intake reads the table from its beginning, too. A worker dies meanwhile."""
    case = Case.make(topics, tmp_path, declared(JOINS))
    feed, rng, reader = ChangeFeed(case), random.Random(4), Reader(case.bootstrap, case.sink)
    options = (*PLACED, "--plan", "((O P) N)", "--commit", "100ms")
    team = [workers.start(case, *options, state="none") for _ in range(2)]
    workers.coordinator(case).wait_running()
    send(feed, rng, 0, 100)
    spread(team, 3)
    reader.wait_for_count(5)
    change = workers.migrate(case, "(O (N P))", strategy, "--wait", "--timeout", "60s")
    send(feed, rng, 100, 80)
    wait_for(lambda: change.ended() or decided(team), lambda: team[0].with_log("the cut"))
    team.pop(0).kill()
    team.append(workers.start(case, *options, state="none"))
    send(feed, rng, 180, 80)
    code, _, err = change.finish()
    assert code == 0, err
    wait_for(lambda: operators(team) == {"(O (N P))", "(N P)", INTAKE}, lambda: team[0].with_log("the new plan"))
    feed.finish(CLOSING)
    assert_exact(case, reader, team[0])
    assert_late_once(case)


def test_a_silent_table_may_idle(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """What it brings later is late, holds from where the query is, and does so in the eyes of a successor, too."""
    case = Case.make(topics, tmp_path, declared(JOINS, ", idle_timeout = '500 MILLISECONDS'"))
    feed, reader = ChangeFeed(case), Reader(case.bootstrap, case.sink)
    options = (*PLACED, "--plan", "((O P) N)", "--commit", "100ms")
    worker = workers.start(case, *options, state="none").wait_running(range(3))

    def both(first: int, count: int, at: int) -> None:
        for n in range(first, first + count):
            feed.send("orders", [{"id": n, "cur": "USD", "amount": 1, "at": at + 100 * (n - first)}])
            feed.send("paid", [{"id": n, "cur": "USD", "at": at + 100 * (n - first)}])
        feed.flush()

    feed.send("rates", [{"cur": "USD", "rate": 1, "at": BASE}])
    both(0, 50, BASE)
    reader.wait_for_count(49)  # one is within the disorder
    feed.send("rates", [{"cur": "USD", "rate": 2, "at": BASE + 1000}])
    feed.flush()
    late = Reader(case.bootstrap, f"{case.sink}.late")
    assert late.wait_for_count(1)[0].headers["reason"] == "idle"
    both(50, 10, BASE + 5000)
    reader.wait_for_count(59)
    worker.kill()
    worker = workers.start(case, *options, state="none").wait_running(range(3))
    both(60, 10, BASE + 6000)
    reader.wait_for_count(69)
    found = sorted((row["id"], row["sum"], row["paid"]) for row in reader.rows())
    assert found == [(n, rate, rate) for n in range(69) for rate in [1 if n < 49 else 2]], worker.with_log("versions")
    assert len(late.poll()) == 1
    assert worker.stop() == 0
