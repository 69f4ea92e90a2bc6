"""Workers that adapt their plan: no process beside them is needed, and nothing is lost or made twice when they die."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from operators.engine.engine import Engine
from schemas.columns import Batch, Column
from schemas.query import Query, Type
from tests.broker_fixture import Topics
from tests.feeding import to_rows
from tests.plan_changes import ONE_TASK, PER_PARTITION, Control, Load
from tests.worker_harness import FAR, Case, Feed, Reader, Row, WorkerProcess, Workers, canonical, wait_for

pytestmark = pytest.mark.kafka

STAR = """
CREATE STREAM a (b BIGINT, c BIGINT, d BIGINT, at TIMESTAMP) WITH (topic = '{a}', timestamp = 'at');
CREATE STREAM b (b BIGINT, at TIMESTAMP) WITH (topic = '{b}', timestamp = 'at');
CREATE STREAM c (c BIGINT, at TIMESTAMP) WITH (topic = '{c}', timestamp = 'at');
CREATE STREAM d (d BIGINT, at TIMESTAMP) WITH (topic = '{d}', timestamp = 'at');
INSERT INTO '{sink}' SELECT A.at AS a, B.at AS b, C.at AS c, D.at AS d
FROM a A, b B, c C, d D WINDOW RANGE 500 MILLISECONDS WHERE A.b = B.b AND A.c = C.c AND A.d = D.d
"""
ENDS: dict[str, Row] = {"a": {"b": -1, "c": -1, "d": -1}, "b": {"b": -2}, "c": {"c": -2}, "d": {"d": -2}}
EACH = 600
"""Rows per second and stream."""

MOST_SECONDS = 96
"""The longest phase."""


def second(number: int, distinct: dict[str, int], each: int = EACH) -> dict[str, list[Row]]:
    """A second of a star, whose columns have so many values."""
    rng = np.random.default_rng(number)
    found = {}
    for stream, columns in {"a": "bcd", "b": "b", "c": "c", "d": "d"}.items():
        drawn = {column: rng.integers(0, distinct[column], each).tolist() for column in columns}
        times = (number * 1000 + np.arange(1, each + 1) * 1000 // each).tolist()
        found[stream] = [{**{c: drawn[c][n] for c in columns}, "at": times[n]} for n in range(each)]
    return found


def exact(query: Query, rows: dict[str, list[list[Row]]], part: int = 0) -> list[dict[str, Any]]:
    """The results in one task of an engine whose plan does not change; other tests compare that with the oracle."""
    engine = Engine(query)
    for stream in query.streams():
        given = rows[stream.name][part]
        ts = np.array([row["at"] for row in given], np.int64)
        columns = {}
        for field in stream.fields:
            values = np.array([row[field.name] for row in given], np.int64)
            columns[field.name] = Column(Type.TIMESTAMP if field.name == "at" else Type.BIGINT, values)
        engine.push(stream.name, 0, Batch(ts, columns))
        engine.close(stream.name, 0)
    return to_rows(engine.advance())


def weir(command: str, case: Case, *options: str) -> str:
    """The output of a command about the running query."""
    line = [sys.executable, "-m", "services.cli", command, str(case.path), "--bootstrap", case.bootstrap, *options]
    found = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert found.returncode == 0, found.stderr
    return found.stdout


def decisions(case: Case) -> list[dict[str, Any]]:
    found = list(json.loads(weir("decisions", case, "--json")))
    lines = weir("decisions", case, "--evidence")
    for one in found:
        assert f"{one['from_plan']} -> {one['to_plan']}" in lines
    return found


class Stream:
    """Rows that a worker follows second by second."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.feed = Feed(case)
        self._second = 0

    def send(self, worker: WorkerProcess, distinct: dict[str, int], what: str, reached: Callable[[], bool]) -> None:
        """Send seconds until something is reached. How many that takes depends on the load of the machine."""
        most = self._second + MOST_SECONDS
        while not reached():
            self._second += 1
            assert self._second <= most, worker.with_log(what)
            for stream, rows in second(self._second, distinct).items():
                self.feed.send(stream, rows)
            self.feed.flush()
            until = self._second * 1000
            wait_for(
                lambda at=until: worker.metric("watermark_milliseconds") >= at, lambda: worker.with_log("progress")
            )


FEW_B, FEW_D = {"b": 10_000, "c": 300, "d": 6}, {"b": 6, "c": 300, "d": 10_000}
POOR, BEST_B = "(((A D) C) B)", "(((A B) C) D)"
"""The first is the plan to avoid while D has few values, and the best while B has; the second the other way round."""


@pytest.mark.parametrize(
    "memory", [(), pytest.param(("--memory", "128KB", "--max-silence", "10s"), marks=pytest.mark.deep)]
)
def test_a_worker_follows_the_data(topics: Topics, tmp_path: Path, workers: Workers, memory: tuple[str, ...]) -> None:
    """Selectivities swap, and the worker is killed between two changes; no coordinator runs."""
    case = Case.make(topics, tmp_path, STAR)
    stream, reader = Stream(case), Reader(case.bootstrap, case.sink)
    options = ("--adapt", "on", "--epoch", "20ms", "--plan", POOR, *memory)
    worker = workers.start(case, *options).wait_running()

    stream.send(worker, FEW_B, "the first change", lambda: worker.metric("plan_version") >= 1)
    worker.kill()
    worker = workers.start(case, *options).wait_running()

    def follows() -> bool:
        last = [one["to_plan"] for one in decisions(case) if one["made"]][-1]
        return worker.metric("plan_version") >= 2 and ("(A D)" in last or "(D A)" in last)

    stream.send(worker, FEW_D, "the second change", follows)
    stream.feed.finish(ENDS)
    expected = exact(case.query, case.rows)
    reader.wait_for_count(len(expected), worker.alive)
    # With a budget results say whether they are late.
    found = [{name: value for name, value in row.items() if name != "_phase"} for row in reader.rows()]
    assert canonical(found) == canonical(expected)
    made = [one for one in decisions(case) if one["made"]]
    assert [one["change"] for one in made] == [f"adapt-{n}" for n in range(1, len(made) + 1)]
    assert made[0]["from_plan"] == POOR
    assert "(A B)" in made[0]["to_plan"] or "(B A)" in made[0]["to_plan"]
    assert worker.metric("decisions_total") > 0
    if memory:
        assert worker.metric("spills_total") > 0, "the budget is exceeded"
    shown = weir("explain", case, "--analyze")
    assert f"decision {len(decisions(case))}, " in shown
    assert len(json.loads(weir("explain", case, "--analyze", "--json"))["adaptations"]) == len(decisions(case))
    assert worker.stop() == 0


def test_advice_is_listed_and_not_followed(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    case = Case.make(topics, tmp_path, STAR)
    worker = workers.start(case, "--adapt", "advise", "--plan", POOR).wait_running()
    Stream(case).send(worker, FEW_B, "advice", lambda: worker.metric("decisions_total") > 0)
    assert worker.metric("plan_version") == 0
    assert worker.stop() == 0
    assert not any(one["made"] for one in decisions(case))


PARTED = (
    STAR.replace("(b BIGINT, c", "(p BIGINT, b BIGINT, c")
    .replace("BIGINT, at", "BIGINT, p BIGINT, at")
    .replace("d BIGINT, p BIGINT, at", "d BIGINT, at", 1)
    .replace("WHERE", "WHERE A.p = B.p AND A.p = C.p AND A.p = D.p AND")
    + " PARTITION BY A.p, B.p, C.p, D.p"
)


def test_all_tasks_are_considered(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Task 0, which decides, has little work, and another plan would suit it."""
    case = Case.make(topics, tmp_path, PARTED, partitions=2)
    feed, reader = Feed(case), Reader(case.bootstrap, case.sink)
    worker = workers.start(case, "--adapt", "on", "--plan", POOR, "--epoch", "20ms").wait_running((0, 1))
    number = 0
    while worker.metric("plan_version") < 2 or number < 20:
        number += 1
        assert number < MOST_SECONDS, worker.with_log("the poor first plan is not left")
        for part, (distinct, each) in enumerate([(FEW_D, EACH // 6), (FEW_B, EACH)]):
            for stream, rows in second(number, distinct, each).items():
                feed.send(stream, [{**row, "p": part} for row in rows], part)
        feed.flush()
        wait_for(
            lambda at=number: worker.metric("watermark_milliseconds") >= 2 * at * 1000, worker.with_log("progress")
        )
    made = [one for one in decisions(case) if one["made"]]
    assert not any("(A D)" in one["to_plan"] or "(D A)" in one["to_plan"] for one in made)
    for part in (0, 1):
        for ordinal, stream in enumerate("abcd"):
            row = {**ENDS[stream], "p": part, "at": number * 1000 + FAR * (ordinal + 1)}
            feed.raw(stream, json.dumps(row).encode(), part)
    feed.flush()
    expected = [row for part in (0, 1) for row in exact(case.query, case.rows, part)]
    reader.wait_for_count(len(expected), worker.alive)
    assert canonical(reader.rows()) == canonical(expected)
    assert worker.stop() == 0


@pytest.mark.deep
def test_decisions_do_not_depend_on_who_dies(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Three phases in three workers, of which one is killed in each phase; and the same without.

    A phase lasts until the plan is the best one for it. When that is depends on the load of the machine.
    """
    wanted = (BEST_B, POOR, BEST_B)
    for kills in (True, False):
        case = Case.make(topics, tmp_path, PARTED, partitions=3)
        feed, reader = Feed(case), Reader(case.bootstrap, case.sink)
        options = ("--adapt", "on", "--epoch", "20ms", "--session-timeout", "6s")
        running = [workers.start(case, *options) for _ in range(3)]
        number = 0
        for phase in range(3):
            weighed: list[dict[str, Any]] = []
            for tick in range(MOST_SECONDS):
                number += 1
                for part in range(3):
                    seed = 3 * number + part
                    for stream, rows in second(seed, (FEW_B, FEW_D)[phase % 2]).items():
                        shift = (number - seed) * 1000
                        feed.send(stream, [{**row, "p": part, "at": row["at"] + shift} for row in rows], part)
                feed.flush()
                if kills and tick == 2:
                    running.pop(0).kill()
                    running.append(workers.start(case, *options))
                until = 3 * number * 1000
                wait_for(
                    lambda until=until, running=running: (
                        sum(worker.metric("watermark_milliseconds") for worker in running) >= until
                    ),
                    lambda running=running: running[0].with_log("progress"),
                )
                if tick % 8 == 7:
                    weighed = [one for one in decisions(case) if one["made"]]
                    if tick > 20 and weighed[-1]["to_plan"] == wanted[phase]:
                        break
            told = [f"{one['at']} {one['from_plan']} -> {one['to_plan']}: {one['reason']}" for one in weighed]
            assert weighed[-1]["to_plan"] == wanted[phase], (phase, number, told)
            # Each change follows the one before: none is made twice, and none by a task that has lost its place.
            assert [one["from_plan"] for one in weighed[1:]] == [one["to_plan"] for one in weighed[:-1]], told
        for part in range(3):
            for ordinal, stream in enumerate("abcd"):
                row = {**ENDS[stream], "p": part, "at": number * 1000 + FAR * (ordinal + 1)}
                feed.raw(stream, json.dumps(row).encode(), part)
        feed.flush()
        expected = [row for part in range(3) for row in exact(case.query, case.rows, part)]
        reader.wait_for_count(len(expected))
        assert canonical(reader.rows()) == canonical(expected)
        for worker in running:
            assert worker.stop() == 0


@pytest.mark.deep
@pytest.mark.parametrize("text", [ONE_TASK, PER_PARTITION])
def test_leaders_die_again_and_again(text: str, topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """The plan changes all the time, to plans drawn at random, and a worker is killed four times."""
    case = Case.make(topics, tmp_path, text, partitions=2 if text is PER_PARTITION else 1)
    options = ("--adapt", "on", "--epoch", "20ms", "--session-timeout", "6s")

    def start() -> Any:
        return workers.start(case, *options, module="tests.hasty_worker")

    running = [start() for _ in range(2)]
    load = Load(case, running[0], pace_s=0.01)
    control = Control(case)
    for _ in range(4):
        changes = len(control.view.changes)
        leading = next((w for w in running if 0 in w.running_tasks()), running[0])
        load.worker = leading
        load.until(lambda n=changes: len(control.view.changes) > n + 1, "plans that change")
        leading.kill()
        running.remove(leading)
        running.append(start())
        load.worker = running[0]
    load.until(lambda: any(0 in w.running_tasks() for w in running), "a leader")
    load.end()
    ids = [change.id for change in control.view.changes]
    assert len(set(ids)) == len(ids)
    made = [one["change"] for one in decisions(case) if one["made"]]
    assert len(set(made)) == len(made)
    assert set(made) >= set(ids[:-1])
    for worker in running:
        assert worker.stop() == 0
