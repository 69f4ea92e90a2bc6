"""Joins in tasks of their own that tell each other what is not demanded, on a real broker, with what can go wrong."""

from __future__ import annotations

import random
import re
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from schemas.messages.control import Demanded, decode_control
from tests.broker_fixture import Topics
from tests.services.worker.test_distributed_workers import decided, operators, spread
from tests.worker_harness import Case, Feed, Reader, Row, WorkerProcess, Workers, assert_exact, wait_for

pytestmark = pytest.mark.kafka

FOUR = """
CREATE STREAM a (k BIGINT, x BIGINT, at TIMESTAMP)
  WITH (topic = '{a}', format = 'json', timestamp = 'at', disorder = '20 MILLISECONDS');
CREATE STREAM b (k BIGINT, y BIGINT, at TIMESTAMP)
  WITH (topic = '{b}', format = 'json', timestamp = 'at', disorder = '20 MILLISECONDS');
CREATE STREAM c (y BIGINT, z BIGINT, at TIMESTAMP)
  WITH (topic = '{c}', format = 'json', timestamp = 'at', disorder = '20 MILLISECONDS');
CREATE STREAM d (x BIGINT, w BIGINT, at TIMESTAMP)
  WITH (topic = '{d}', format = 'json', timestamp = 'at', disorder = '20 MILLISECONDS');
INSERT INTO '{sink}'
SELECT A.k AS k, A.x, B.y, C.z, D.w
FROM a A [RANGE 400 MILLISECONDS], b B [RANGE 400 MILLISECONDS], c C [RANGE 100 MILLISECONDS],
     d D [RANGE 60 MILLISECONDS]
WHERE A.k = B.k AND B.y = C.y AND A.x = D.x
"""
CLOSING: dict[str, Row] = {
    "a": {"k": -1, "x": -1},
    "b": {"k": -2, "y": -1},
    "c": {"y": -2, "z": 0},
    "d": {"x": -2, "w": 0},
}
BASE = 1_700_000_000_000
PLACED = ("--placement", "per-operator", "--session-timeout", "6s", "--jit", "on")
LEFT_DEEP = ("--plan", "(((A B) C) D)")


def send(feed: Feed, rng: random.Random, start: int, count: int) -> None:
    """`count` rows of a and b, 10 ms apart; c and d have few, of few values that change as time goes on."""
    for i in range(start, start + count):
        at = BASE + 10 * i - rng.choice([0, 0, 5, 19])
        rows: dict[str, Row] = {
            "a": {"k": rng.randrange(4), "x": rng.randrange(8), "at": at},
            "b": {"k": rng.choice([*range(4), None]), "y": rng.randrange(6), "at": at},
        }
        if i % 4 == 0:
            rows["c"] = {"y": rng.choice([i // 60 % 6, rng.randrange(6)]), "z": i, "at": at}
        if i % 10 == 0:
            rows["d"] = {"x": i // 40 % 8, "w": i, "at": at}
        for stream, row in rows.items():
            every = {"c": 4, "d": 10}.get(stream, 1)
            feed.send(stream, [row], i // every % feed.case.partitions)
    feed.flush()


def said(team: list[WorkerProcess], name: str) -> float:
    """The sum of a counter over the workers' tasks."""
    return sum(worker.metric(name) for worker in team)


@pytest.mark.deep
def test_joins_in_three_workers_tell_each_other(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """One of three is killed in the middle; what is not demanded is kept back, and comes when it is."""
    case = Case.make(topics, tmp_path, FOUR)
    feed, rng = Feed(case), random.Random(1)
    team = [workers.start(case, *PLACED, *LEFT_DEEP) for _ in range(3)]
    send(feed, rng, 0, 150)
    spread(team, 3)
    reader = Reader(case.bootstrap, case.sink)
    wait_for(lambda: said(team, "feedback_requests_total") > 5, lambda: team[0].with_log("feedback"))
    send(feed, rng, 150, 100)
    team.pop().kill()
    send(feed, rng, 250, 100)
    feed.finish(CLOSING)
    assert_exact(case, reader, team[0])
    times = [row["_ts"] for row in reader.rows()]
    assert times == sorted(times), "one task writes them"
    assert [worker.stop() for worker in team] == [0, 0]


class Meddler:
    """Writes what is said in the feedback topics of a group again: at once, and long after."""

    def __init__(self, case: Case, group: str) -> None:
        self._stop = threading.Event()
        self._seen: list[tuple[str, bytes]] = []
        self.written = 0
        self._producer = Producer(
            {"bootstrap.servers": case.bootstrap, "linger.ms": 0, "enable.idempotence": True, "log_level": 0}
        )
        self._consumer = Consumer(
            {
                "bootstrap.servers": case.bootstrap,
                "group.id": f"{group}.meddler",
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 1000,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([f"^{re.escape(group)}.*feedback$"])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        rng = random.Random(7)
        mine: set[bytes] = set()
        while not self._stop.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and not message.error() and message.value() not in mine:
                found = decode_control(message.value(), "here")
                if isinstance(found, Demanded) and (found.suspend or found.resume):
                    self._seen.append((message.topic() or "", message.value() or b""))
            if self._seen and rng.random() < 0.5:
                topic, value = rng.choice(self._seen)
                mine.add(value)
                try:
                    self._producer.produce(topic, value, partition=0)
                except KafkaException:
                    # The topic of a plan that was left is deleted.
                    self._seen = [one for one in self._seen if one[0] != topic]
                    continue
                self._producer.poll(0)
                self.written += 1

    def end(self) -> None:
        """Stop; some must have been written."""
        self._stop.set()
        self._thread.join()
        self._consumer.close()
        self._producer.flush(10)
        assert self.written > 0


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["(((A B) C) D)", "((A B) (C D))"])
@pytest.mark.parametrize("split", ["1", "2"])
def test_nothing_is_lost_whatever_happens(
    topics: Topics, tmp_path: Path, workers: Workers, plan: str, split: str
) -> None:
    """Three workers; letters are repeated and come late; each worker is killed once, and one joins; the plan changes
    in the middle, twice, with a death right after the cut."""
    case = Case.make(topics, tmp_path, FOUR, partitions=2)
    feed, rng = Feed(case), random.Random(len(plan) + int(split))
    options = (*PLACED, "--plan", plan, "--operator-partitions", split)

    def start() -> WorkerProcess:
        return workers.start(case, *options, state="none")

    team = [start() for _ in range(3)]
    workers.coordinator(case).wait_running()
    send(feed, rng, 0, 80)
    reader = Reader(case.bootstrap, case.sink)
    reader.wait_for_count(1)
    if split == "1" or plan != "((A B) (C D))":
        # There the key of the split top join is of both A and B, so that it says nothing.
        wait_for(lambda: said(team, "feedback_requests_total") > 0, lambda: team[0].with_log("feedback"))
    meddler = Meddler(case, f"weir-{case.sink}")
    sent = 80

    def go_on(count: int) -> bool:
        nonlocal sent
        send(feed, rng, sent, count)
        sent += count
        return False

    for _ in range(2):
        go_on(60)
        team.pop(0).kill()
        go_on(40)
        team.append(start())
        count = len(reader.poll())
        wait_for(lambda count=count: go_on(1) or len(reader.poll()) > count, lambda: team[0].with_log("results go on"))
    others = [other for other in ("(((A B) C) D)", "((A B) (C D))") if other != plan]
    for turn, strategy in zip((*others, plan), ("auto", "jisc", "auto"), strict=False):
        change = workers.migrate(case, turn, strategy, "--wait", "--timeout", "60s")
        wait_for(lambda change=change: go_on(1) or change.ended() or decided(team), lambda: team[0].with_log("the cut"))
        team.pop(0).kill()
        team.append(start())
        wait_for(lambda change=change: go_on(1) or change.ended(), lambda: team[0].with_log("the other plan"))
        code, _, err = change.finish()
        assert code == 0, err
    wait_for(lambda: any(name.startswith(plan) for name in operators(team)), lambda: team[0].with_log("the first plan"))
    go_on(60)
    feed.finish(CLOSING)
    assert_exact(case, reader, team[0])
    meddler.end()
    if split == "1":
        times = [row["_ts"] for row in reader.rows()]
        assert times == sorted(times)
