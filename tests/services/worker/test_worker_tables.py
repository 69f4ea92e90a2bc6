"""Reference tables on a real broker: read again at every start, and noticed when they have changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import oracle
from tests.broker_fixture import Topics
from tests.worker_harness import Case, Feed, Reader, Row, Workers, canonical, wait_for

pytestmark = pytest.mark.kafka

DECLARED = """
CREATE STREAM a (x BIGINT, n BIGINT, at TIMESTAMP) WITH (topic = '{a}', timestamp = 'at');
CREATE STREAM b (x BIGINT, n BIGINT, at TIMESTAMP) WITH (topic = '{b}', timestamp = 'at');
CREATE TABLE rooms (x BIGINT, floor BIGINT) WITH (path = 'rooms.csv');
"""
JOIN = DECLARED + (
    "INSERT INTO '{sink}' SELECT A.n AS one, B.n AS two, R.floor AS floor "
    "FROM a A [RANGE 1 HOUR], rooms R, b B [RANGE 1 HOUR] WHERE A.x = R.x AND R.x = B.x PARTITION BY A.x, B.x"
)
ANSWER = DECLARED + (
    "INSERT INTO '{sink}' SELECT A.n AS n FROM a A [RANGE 1 HOUR] EXCEPT rooms R ON A.x = R.x "
    "EXCEPT b B [RANGE 1 HOUR] ON A.x = B.x"
)
BASE = 1_700_000_000_000
TICK: Row = {"x": -1, "n": 0}


def write_rooms(folder: Path, floors: dict[int, int]) -> dict[str, list[Row]]:
    """Write the table; its rows."""
    lines = ["x,floor", *(f"{x},{floor}" for x, floor in floors.items())]
    (folder / "rooms.csv").write_text("\n".join(lines))
    return {"rooms": [{"x": x, "floor": floor} for x, floor in floors.items()]}


def send(feed: Feed, begin: int) -> None:
    """Rows of ten keys, then in every partition one that joins with nothing: what came before is out."""
    partitions = feed.case.partitions
    for i in range(begin, begin + 40):
        for stream in ("a", "b"):
            x = (7 * i + (stream == "b")) % 10
            feed.send(stream, [{"x": x, "n": i, "at": BASE + i}], x % partitions)
    for stream in ("a", "b"):
        for partition in range(partitions):
            feed.send(stream, [{**TICK, "at": BASE + begin + 40}], partition)
    feed.flush()


def results(case: Case, table: dict[str, list[Row]]) -> list[dict[str, Any]]:
    return oracle.results(case.query, {**case.rows, **table})


@pytest.mark.deep
def test_a_killed_worker_goes_on_with_the_table_that_is_there_now(
    topics: Topics, tmp_path: Path, workers: Workers
) -> None:
    """What is out stays, each later result comes once, of the new content, also those with older tuples."""
    case = Case.make(topics, tmp_path, JOIN, partitions=2)
    feed, reader = Feed(case), Reader(case.bootstrap, case.sink)
    before = write_rooms(tmp_path, {x: 10 + x for x in range(8)})
    worker = workers.start(case, "--snapshot", "200ms").wait_running((0, 1))
    send(feed, 0)
    first = results(case, before)
    reader.wait_for_count(len(first), worker.alive)
    wait_for(lambda: worker.metric("snapshot_watermark_milliseconds") > 0, lambda: worker.with_log("a snapshot"))
    worker.kill()

    after = write_rooms(tmp_path, {x: 20 + x for x in range(3, 10)})
    held = canonical(results(case, after))
    worker = workers.start(case).wait_running((0, 1))
    assert worker.text().count("table 'rooms' has changed since commit") == 2, worker.with_log("a note per task")
    send(feed, 50)
    expected = canonical(first) + (canonical(results(case, after)) - held)
    reader.wait_for_count(sum(expected.values()), worker.alive)
    assert worker.stop() == 0
    assert canonical(reader.rows()) == expected, worker.with_log("old results once, new ones of the new content")


@pytest.mark.slow
def test_the_changes_of_an_answer_do_not_go_on_with_another_table(
    topics: Topics, tmp_path: Path, workers: Workers
) -> None:
    case = Case.make(topics, tmp_path, ANSWER)
    feed, reader = Feed(case), Reader(case.bootstrap, case.sink)
    table = write_rooms(tmp_path, {1: 1, 2: 2})
    worker = workers.start(case).wait_running()
    send(feed, 0)
    told = [row for row in results(case, table) if row["_ts"] < BASE + 40]
    reader.wait_for_count(len(told), worker.alive)
    assert worker.stop() == 0
    write_rooms(tmp_path, {1: 1, 3: 2})
    worker = workers.start(case)
    assert worker.process.wait(60) == 1, worker.with_log("an end")
    assert "table 'rooms' has changed since commit" in worker.text()
    assert "with EXCEPT and aggregates" in worker.text()
    assert reader.rows() == told
