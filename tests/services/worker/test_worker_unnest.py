"""A worker whose topics have arrays: each result exactly once through kill -9, and each bad or late record once."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import orjson
import pytest

from tests import oracle
from tests.broker_fixture import Topics
from tests.services.worker.test_distributed_workers import PLACED, decided, operators, spread
from tests.worker_harness import (
    Case,
    Feed,
    Reader,
    Row,
    WorkerProcess,
    Workers,
    assert_exact,
    canonical,
    in_time,
    wait_for,
)

pytestmark = pytest.mark.kafka

BASE = 1_700_000_000_000
TEXT = """
CREATE STREAM orders (id BIGINT, code BIGINT, place BIGINT FROM '_offset', tag STRING FROM '_key',
                      items ARRAY<ROW(sku STRING, qty BIGINT)>, at TIMESTAMP)
  WITH (topic = '{orders}', timestamp = 'at', disorder = '100 MILLISECONDS'MORE);
CREATE STREAM moves (sku STRING, n BIGINT, at TIMESTAMP)
  WITH (topic = '{moves}', timestamp = 'at', disorder = '100 MILLISECONDS');
INSERT INTO '{sink}'
SELECT O.id AS id, O.place AS place, O.tag AS tag, I.sku AS sku, I.qty AS qty, I._ordinal AS ordinal, M.n AS n
FROM orders O WINDOW CROSS JOIN UNNEST(O.items) AS I, moves M WINDOW
WHERE I.sku = M.sku
"""
WITHOUT_REPEATS = ", deduplicate = 'code', deduplicate_within = '40 MILLISECONDS'"
CLOSING: dict[str, Row] = {"orders": {"id": -1, "items": [{"sku": "-"}]}, "moves": {"sku": "+", "n": -1}}


def send(feed: Feed, chance: random.Random, start: int, count: int) -> None:
    """Write some rows, 5 ms each, some out of order, and some of those late."""
    partitions = feed.case.partitions
    for n in range(start, start + count):
        at = BASE + 5 * n
        back = chance.choice([0, 0, 7, 99, 300 if n % 20 == 19 else 0])
        items = [
            {"sku": chance.choice("abcdefgh"), "qty": chance.randrange(9)} for _ in range(chance.choice([0, 1, 2, 3]))
        ]
        code = chance.choice([n, n - 1, n - 2, None])
        row: Row = {"id": n, "code": code, "items": chance.choice([items, items, items, None]), "at": at - back}
        partition = n % partitions
        places = feed.case.rows["orders"][partition]
        feed.raw("orders", orjson.dumps(row), partition, key=f"k{n}".encode())
        places.append(row | {"place": len(places), "tag": f"k{n}"})
        feed.send("moves", [{"sku": chance.choice("abcdefgh"), "n": n, "at": at - chance.choice([0, 60])}], partition)
    feed.flush()


@pytest.mark.parametrize(
    ("window", "more", "partitions", "options"),
    [
        ("[RANGE 80 MILLISECONDS]", WITHOUT_REPEATS, 2, ()),
        ("[ROWS 9]", "", 1, ()),
        pytest.param("[ROWS 9]", WITHOUT_REPEATS, 1, (), marks=pytest.mark.deep),
        pytest.param("[RANGE 80 MILLISECONDS]", "", 1, ("--memory", "20KiB"), marks=pytest.mark.deep),
        pytest.param("[RANGE 80 MILLISECONDS]", "", 1, ("--jit", "on"), marks=pytest.mark.deep),
    ],
)
def test_results_equal_the_oracle(
    window: str, more: str, partitions: int, options: tuple[str, ...], topics: Topics, tmp_path: Path, workers: Workers
) -> None:
    case = Case.make(topics, tmp_path, TEXT.replace("WINDOW", window).replace("MORE", more), partitions=partitions)
    feed, chance = Feed(case), random.Random(9)
    reader = Reader(case.bootstrap, case.sink)
    worker = workers.start(case, *options).wait_running()
    for part in range(3):
        seen = 0 if part == 0 else len(reader.poll())
        send(feed, chance, 100 * part, 100)
        if part < 2:
            wait_for(lambda seen=seen: len(reader.poll()) > seen, "more results")
            worker.kill()
            worker = workers.start(case, *options).wait_running()
    bad = b'{"id":0,"items":[{"sku":"a"},{"sku":7},8],"at":1700000000000}'
    feed.raw("orders", bad)
    feed.finish(CLOSING)
    expected = case.expected()
    assert expected.total() > 100
    reader.wait_for_count(expected.total(), worker.alive)
    found = [{name: value for name, value in row.items() if name != "_phase"} for row in reader.rows()]
    assert canonical(found) == expected
    assert_late_once(case)
    dead = Reader(case.bootstrap, f"{case.sink}.dead")
    dead.wait_for_count(1)
    assert [record.value for record in dead.records] == [bad]
    assert "element 2 of 'items'" in dead.records[0].headers["reason"]
    assert worker.stop() == 0


ORDER = ("ots", "place", "ordinal", "mts", "mplace", "pts", "other", "step")
THREE = TEXT.replace("n BIGINT, at", "n BIGINT, place BIGINT FROM '_offset', at").partition("SELECT")[0] + (
    "SELECT O._ts AS ots, O.place AS place, I._ordinal AS ordinal, M._ts AS mts, M.place AS mplace, M.n AS n, "
    "P._ts AS pts, P.place AS other, J._ordinal AS step, J.qty AS qty "
    "FROM orders O [RANGE 80 MILLISECONDS] CROSS JOIN UNNEST(O.items) AS I, moves M [RANGE 80 MILLISECONDS], "
    "orders P [RANGE 60 MILLISECONDS] CROSS JOIN UNNEST(P.items) AS J WHERE I.sku = M.sku AND J.sku = M.sku"
)
"""Elements of one record join each other, too. A result says its place in the order."""


def placed(topics: Topics, tmp_path: Path, partitions: int = 1) -> Case:
    """Three joined inputs, two of them elements of one stream without repeats."""
    return Case.make(topics, tmp_path, THREE.replace("MORE", WITHOUT_REPEATS), partitions=partitions)


def assert_late_once(case: Case) -> None:
    """Every late record is in the topic of late records once, whatever its elements."""
    late = {row["id"] for row in oracle.late(case.query, case.rows)["orders"]}
    letters = Reader(case.bootstrap, f"{case.sink}.late")
    wait_for(lambda: late <= {row.get("id") for row in letters.rows()}, "late records")
    assert sorted(row["id"] for row in letters.rows() if "id" in row) == sorted(late)
    assert late


def assert_in_order(reader: Reader) -> None:
    """Results of one task are in the total order, those of one instant and of one record, too."""
    places = [tuple(row[name] for name in ("_ts", *ORDER)) for row in reader.rows() if in_time(row)]
    assert places == sorted(places)


def killed_in_turn(case: Case, workers: Workers, tasks: int, *options: str) -> Reader:
    """Two workers run the tasks on no disk. The worker of each of some tasks dies; the others go on."""
    feed, chance, reader = MovesFeed(case), random.Random(9), Reader(case.bootstrap, case.sink)

    def start() -> WorkerProcess:
        return workers.start(case, *PLACED, "--plan", "((O M) P)", "--commit", "100ms", *options, state="none")

    team = [start(), start()]
    send(feed, chance, 0, 60)
    for number, task in enumerate((tasks - 1, 0), 1):
        at = spread(team, tasks)
        reader.wait_for_count(1, team[0].alive)
        victim = next(worker for worker, numbers in zip(team, at, strict=True) if task in numbers)
        send(feed, chance, 80 * number - 20, 40)
        victim.kill()
        team.remove(victim)
        team.append(start())
        send(feed, chance, 80 * number + 20, 40)
    feed.finish(CLOSING)
    assert_exact(case, reader, team[0])
    assert_late_once(case)
    return reader


class MovesFeed(Feed):
    """Tells the oracle the offsets of moves, too."""

    def send(self, stream: str, rows: Iterable[Row], partition: int = 0) -> None:
        begin = len(self.case.rows[stream][partition])
        super().send(stream, rows, partition)
        for place, row in enumerate(self.case.rows[stream][partition][begin:], begin):
            row["place"] = place


def test_joins_in_tasks_of_their_own(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Workers of the intake and of the top join die with kill -9, and nobody keeps a disk."""
    case = placed(topics, tmp_path)
    assert_in_order(killed_in_turn(case, workers, 3))


@pytest.mark.deep
@pytest.mark.parametrize("options", ["--jit on", "--memory 20KiB"])
def test_joins_in_tasks_of_their_own_with(options: str, topics: Topics, tmp_path: Path, workers: Workers) -> None:
    case = placed(topics, tmp_path)
    assert_in_order(killed_in_turn(case, workers, 3, *options.split()))


@pytest.mark.deep
def test_joins_that_are_split(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Elements of one record go to different tasks."""
    killed_in_turn(placed(topics, tmp_path, partitions=2), workers, 6)


@pytest.mark.deep
@pytest.mark.parametrize("strategy", ["moving-state", "hybmig-bsc", "jisc"])
def test_the_plan_changes(strategy: str, topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """The tasks of the next plan take over repeats of records with all their elements. A worker dies meanwhile."""
    case = placed(topics, tmp_path)
    feed, chance, reader = MovesFeed(case), random.Random(6), Reader(case.bootstrap, case.sink)
    options = (*PLACED, "--plan", "((O M) P)", "--commit", "100ms")
    team = [workers.start(case, *options, state="none") for _ in range(2)]
    workers.coordinator(case).wait_running()
    send(feed, chance, 0, 80)
    spread(team, 3)
    reader.wait_for_count(5)
    change = workers.migrate(case, "(O (P M))", strategy, "--wait", "--timeout", "60s")
    send(feed, chance, 80, 60)
    wait_for(lambda: change.ended() or decided(team), lambda: team[0].with_log("the cut"))
    team.pop(0).kill()
    team.append(workers.start(case, *options, state="none"))
    send(feed, chance, 140, 60)
    code, _, err = change.finish()
    assert code == 0, err
    wait_for(lambda: "(O (P M))" in operators(team), lambda: team[0].with_log("the new plan"))
    send(feed, chance, 200, 60)
    feed.finish(CLOSING)
    assert_exact(case, reader, team[0])
    assert_late_once(case)
    assert_in_order(reader)
