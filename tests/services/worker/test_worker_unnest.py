"""A worker whose topics have arrays: each result exactly once through kill -9, and each bad or late record once."""

from __future__ import annotations

import random
from pathlib import Path

import orjson
import pytest

from tests import oracle
from tests.broker_fixture import Topics
from tests.worker_harness import Case, Feed, Reader, Row, Workers, canonical, wait_for

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
    late = {row["id"] for row in oracle.late(case.query, case.rows)["orders"]}
    assert late
    letters = Reader(case.bootstrap, f"{case.sink}.late")
    wait_for(lambda: late <= {row.get("id") for row in letters.rows()}, "late records")
    numbers = [row["id"] for row in letters.rows() if "id" in row]
    assert sorted(numbers) == sorted(late), "each record once, whatever its elements"
    dead = Reader(case.bootstrap, f"{case.sink}.dead")
    dead.wait_for_count(1)
    assert [record.value for record in dead.records] == [bad]
    assert "element 2 of 'items'" in dead.records[0].headers["reason"]
    assert worker.stop() == 0


def test_joins_in_tasks_of_their_own_are_refused(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    case = Case.make(topics, tmp_path, TEXT.replace("WINDOW", "[ROWS 9]").replace("MORE", ""))
    worker = workers.start(case, "--placement", "per-operator")
    assert worker.process.wait(60) == 2
    assert "--placement per-operator does not go with UNNEST of O" in worker.text()
