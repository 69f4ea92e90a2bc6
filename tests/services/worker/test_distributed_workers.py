"""Joins of a plan in tasks of their own, spread over workers, on a real broker: the oracle's results once each."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import orjson
import pytest
from confluent_kafka import Producer

from services.kafka.topics import TopicAdmin
from services.process.security import KafkaClients
from tests import oracle
from tests.broker_fixture import Topics
from tests.services.worker import test_aggregate_faults, test_difference_faults
from tests.worker_harness import Case, Feed, Reader, Row, WorkerProcess, Workers, assert_exact, canonical, wait_for

pytestmark = pytest.mark.kafka

FOUR = """
CREATE STREAM a (k BIGINT, x BIGINT, note STRING, at TIMESTAMP)
  WITH (topic = '{a}', format = 'json', timestamp = 'at', disorder = '50 MILLISECONDS');
CREATE STREAM b (k BIGINT, y BIGINT, at TIMESTAMP)
  WITH (topic = '{b}', format = 'json', timestamp = 'at', disorder = '50 MILLISECONDS');
CREATE STREAM c (y BIGINT, v DOUBLE, at TIMESTAMP)
  WITH (topic = '{c}', format = 'json', timestamp = 'at', disorder = '50 MILLISECONDS');
CREATE STREAM d (k BIGINT, w BIGINT, at TIMESTAMP)
  WITH (topic = '{d}', format = 'json', timestamp = 'at', disorder = '50 MILLISECONDS');
INSERT INTO '{sink}'
SELECT A.k AS k, A.note, B.y, C.v, D.w
FROM a A [RANGE 400 MILLISECONDS], b B [RANGE 300 MILLISECONDS], c C [RANGE 400 MILLISECONDS],
     d D [RANGE 200 MILLISECONDS]
WHERE A.k = B.k AND B.y = C.y AND A.k = D.k AND C.v > 1 AND D.w > A.x
"""
CLOSING: dict[str, Row] = {
    "a": {"k": -1, "x": 0, "note": "end"},
    "b": {"k": -2, "y": -1},
    "c": {"y": -2, "v": 0.0},
    "d": {"k": -3, "w": 0},
}
BASE = 1_700_000_000_000
PLACED = ("--placement", "per-operator", "--session-timeout", "6s")


def send(feed: Feed, rng: random.Random, start: int, count: int) -> None:
    """`count` rows per stream, 10 ms apart, somewhat out of order, with nulls and a late one now and then."""
    for i in range(start, start + count):
        late = 300 if i % 40 == 39 else 0
        at = BASE + 10 * i - rng.choice([0, 0, 10, 49]) - late
        rows: dict[str, Row] = {
            "a": {"k": rng.choice([*range(8), None]), "x": rng.randrange(9), "note": f"n{i}ä", "at": at},
            "b": {"k": rng.randrange(8), "y": rng.randrange(6), "at": at},
            "c": {"y": rng.choice([*range(6), None]), "v": rng.uniform(0, 4), "at": at},
            "d": {"k": rng.randrange(8), "w": rng.randrange(9), "at": at},
        }
        for stream, row in rows.items():
            feed.send(stream, [row], i % feed.case.partitions)
    feed.flush()


def spread(team: list[WorkerProcess], tasks: int) -> list[set[int]]:
    """Wait until every task runs in one worker, evenly; which runs where."""
    found: list[set[int]] = []

    def even() -> bool:
        found[:] = [worker.alive() and worker.running_tasks() for worker in team]
        sizes = [len(numbers) for numbers in found]
        return sum(sizes) == tasks and set().union(*found) == set(range(tasks)) and max(sizes) - min(sizes) <= 1

    wait_for(even, lambda: "\n".join(worker.with_log(f"{found}") for worker in team))
    return found


def operators(team: list[WorkerProcess]) -> set[str]:
    """Which operators run somewhere."""
    tasks = [task for worker in team for task in worker.health().get("tasks", [])]
    return {task["operator"] for task in tasks if task["state"] == "running"}


def shown(case: Case) -> list[str]:
    """The plan and the tasks that `weir explain --analyze` shows."""
    command = [sys.executable, "-m", "services.cli", "explain", str(case.path), "--analyze"]
    done = subprocess.run([*command, "--bootstrap", case.bootstrap], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return re.findall(r"^query|^plan .*|^task \d+ at", done.stdout, re.MULTILINE)


def letters(case: Case, suffix: str) -> list[str]:
    """Where the letters of a topic say that their records came from."""
    reader = Reader(case.bootstrap, f"{case.sink}.{suffix}")
    places = [f"{r.headers['topic']}[{r.headers['partition']}]@{r.headers['offset']}" for r in reader.poll()]
    reader.close()
    return places


def test_three_workers_run_the_joins_of_one_plan(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """A join each; one is killed in the middle. Results in the fused order, late and dead letters once."""
    case = Case.make(topics, tmp_path, FOUR)
    feed, rng = Feed(case), random.Random(1)
    team = [workers.start(case, *PLACED, "--plan", "((A B) (C D))") for _ in range(3)]
    send(feed, rng, 0, 100)
    spread(team, 3)
    feed.raw("b", b"no JSON")
    reader = Reader(case.bootstrap, case.sink)
    reader.wait_for_count(1)
    send(feed, rng, 100, 100)
    team.pop().kill()
    send(feed, rng, 200, 100)
    feed.finish(CLOSING)
    assert_exact(case, reader, team[0])
    times = [row["_ts"] for row in reader.rows()]
    assert times == sorted(times), "one task writes them"
    late = sum(len(rows) for rows in oracle.late(case.query, case.rows).values())
    wait_for(lambda: len(letters(case, "late")) >= late > 0, "the late letters")
    assert len(set(letters(case, "late"))) == len(letters(case, "late")) == late
    assert len(letters(case, "dead")) == 1
    assert [worker.stop() for worker in team] == [0, 0]


@pytest.mark.slow
def test_each_worker_is_killed_in_turn(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """While records flow the worker of every join dies once, and a new one comes for it; nobody keeps a disk."""
    case = Case.make(topics, tmp_path, FOUR)
    feed, rng = Feed(case), random.Random(2)

    def start() -> WorkerProcess:
        return workers.start(case, *PLACED, "--plan", "(((A B) C) D)", state="none")

    team = [start() for _ in range(3)]
    send(feed, rng, 0, 60)
    for task in range(3):
        at = spread(team, 3)
        victim = next(worker for worker, numbers in zip(team, at, strict=True) if task in numbers)
        send(feed, rng, 60 + 60 * task, 30)
        victim.kill()
        team.remove(victim)
        team.append(start())
        send(feed, rng, 90 + 60 * task, 30)
    feed.finish(CLOSING)
    assert_exact(case, Reader(case.bootstrap, case.sink), team[0])


@pytest.mark.slow
def test_a_split_plan_moves_to_a_joining_worker(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Joins split over two partitions, sources read by intakes; a second worker takes half of ten tasks. A foreign
    hand writes every block of one topic a second time."""
    case = Case.make(topics, tmp_path, FOUR, partitions=2)
    feed, rng = Feed(case), random.Random(3)
    plan = ("--plan", "((A D) (B C))")
    first = workers.start(case, *PLACED, *plan).wait_running(range(10))
    send(feed, rng, 0, 120)
    reader = Reader(case.bootstrap, case.sink)
    reader.wait_for_count(1, first.alive)
    second = workers.start(case, *PLACED, *plan)
    send(feed, rng, 120, 60)
    spread([first, second], 10)
    assert shown(case)[1:] == ["plan   ((A D) (B C))", *(f"task {number} at" for number in range(10))]
    repeat(case, f"weir-{case.sink}.1.A-D")
    send(feed, rng, 180, 60)
    feed.finish(CLOSING)
    assert_exact(case, reader, second)
    wait_for(lambda: "came twice" in first.text() + second.text(), second.with_log("the warning"))
    assert [first.stop(), second.stop()] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["moving-state", "auto", "jisc"])
def test_a_worker_dies_while_the_plan_changes(strategy: str, topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Right after the cut is fixed one of three workers is killed, and another comes; then the plan changes back."""
    case = Case.make(topics, tmp_path, FOUR, partitions=2)
    feed, rng = Feed(case), random.Random(5)
    options = (*PLACED, "--plan", "((A B) (C D))", "--operator-partitions", "1")
    team = [workers.start(case, *options) for _ in range(3)]
    workers.coordinator(case).wait_running()
    send(feed, rng, 0, 80)
    spread(team, 3)
    for turn, plan in enumerate(["(((A B) C) D)", "((A D) (C B))"], 1):
        change = workers.migrate(case, plan, strategy, "--wait", "--timeout", "30s")
        send(feed, rng, 160 * turn - 80, 80)
        wait_for(lambda change=change: change.ended() or decided(team), team[0].with_log("the cut"))
        team.pop(0).kill()
        team.append(workers.start(case, *options))
        send(feed, rng, 160 * turn, 80)
        code, _, err = change.finish()
        assert code == 0, err
        wait_for(lambda plan=plan: plan in operators(team), lambda: team[0].with_log("the new plan"))
    feed.finish(CLOSING)
    reader = Reader(case.bootstrap, case.sink)
    assert_exact(case, reader, team[0])
    times = [row["_ts"] for row in reader.rows()]
    assert times == sorted(times)


@pytest.mark.deep
def test_a_worker_dies_while_a_plan_is_prepared(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """The change takes place all the same, once another worker has come."""
    case = Case.make(topics, tmp_path, FOUR, partitions=2)
    feed, rng = Feed(case), random.Random(8)
    options = (*PLACED, "--plan", "((A B) (C D))", "--operator-partitions", "1")
    team = [workers.start(case, *options) for _ in range(2)]
    workers.coordinator(case).wait_running()
    send(feed, rng, 0, 80)
    spread(team, 3)
    change = workers.migrate(case, "(((A B) C) D)", "hybmig-bsc", "--wait", "--timeout", "30s")
    wait_for(lambda: all("preparing a plan" in worker.text() for worker in team), team[0].with_log("the preparation"))
    team.pop(0).kill()
    team.append(workers.start(case, *options))
    send(feed, rng, 80, 80)
    code, _, err = change.finish()
    assert code == 0, err
    wait_for(lambda: "(((A B) C) D)" in operators(team), lambda: team[0].with_log("the new plan"))
    feed.finish(CLOSING)
    reader = Reader(case.bootstrap, case.sink)
    assert_exact(case, reader, team[0])
    times = [row["_ts"] for row in reader.rows()]
    assert times == sorted(times)
    late = letters(case, "late")
    assert len(late) == len({*late}) > 0


@pytest.mark.slow
def test_what_no_window_needs_is_deleted(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """An internal topic is cut off in front while records flow; a worker without a disk begins behind that."""
    case = Case.make(topics, tmp_path, FOUR)
    feed, rng = Feed(case), random.Random(6)
    options = (*PLACED, "--plan", "(((A B) C) D)")
    first = workers.start(case, *options, state="none").wait_running(range(3))
    lanes = [(f"weir-{case.sink}.{name}", 0) for name in ("1.A-B", "2.A-B-C")]
    admin, sent = TopicAdmin(KafkaClients(case.bootstrap)), 0

    def cut_off() -> bool:
        nonlocal sent
        send(feed, rng, sent, 1)
        sent += 1
        return all(begin > 0 for begin, _ in admin.log_ranges(lanes).values())

    wait_for(cut_off, first.with_log("records are deleted"))
    first.kill()
    successor = workers.start(case, *options, state="none")
    send(feed, rng, sent, 50)
    feed.finish(CLOSING)
    assert_exact(case, Reader(case.bootstrap, case.sink), successor)


def decided(team: list[WorkerProcess]) -> bool:
    """True when a worker knows that its plan will change."""
    return any("plan will change" in worker.text() for worker in team)


def repeat(case: Case, topic: str) -> None:
    """Append to each partition what has been committed to it."""
    reader = Reader(case.bootstrap, topic)
    wait_for(reader.poll, f"blocks in {topic}")
    producer = Producer({"bootstrap.servers": case.bootstrap, "enable.idempotence": True, "log_level": 0})
    for record in list(reader.records):
        producer.produce(topic, record.value, partition=record.partition)
    assert producer.flush(30) == 0
    reader.close()


@pytest.mark.deep
@pytest.mark.parametrize("strategy", ["moving-state", "hybmig-bsc", "jisc"])
def test_the_plan_changes(strategy: str, topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """At the cut the tasks of another plan take over, in the same workers; not by a strategy that needs both plans'
    states in one place."""
    case = Case.make(topics, tmp_path, FOUR)
    feed, rng = Feed(case), random.Random(4)
    team = [workers.start(case, *PLACED, "--plan", "(((A B) C) D)") for _ in range(2)]
    workers.coordinator(case).wait_running()
    send(feed, rng, 0, 100)
    spread(team, 3)
    reader = Reader(case.bootstrap, case.sink)
    reader.wait_for_count(1)
    refused = workers.migrate(case, "((A D) (B C))", "hybmig").finish()
    assert refused[0] == 1, refused
    assert "a plan change by hybmig does not go with --placement per-operator" in refused[2]
    change = workers.migrate(case, "((A D) (B C))", strategy, "--wait", "--timeout", "60s")
    send(feed, rng, 100, 100)
    code, out, err = change.finish()
    assert code == 0, err
    # On a busy machine a task may have been restarted meanwhile.
    assert out.count("changed at") + out.count("restarted in between, runs the new plan") == 3
    assert ("plan taken over" in "".join(worker.text() for worker in team)) == (strategy != "moving-state")
    send(feed, rng, 200, 100)
    wanted = {"((A D) (B C))", "(A D)", "(B C)"}

    def changed() -> bool:
        assert all(worker.health() for worker in team), "the port is there from one plan to the next"
        return operators(team) == wanted

    wait_for(changed, lambda: team[0].with_log("the new plan"))
    feed.finish(CLOSING)
    assert_exact(case, reader, team[0])
    times = [row["_ts"] for row in reader.rows()]
    assert times == sorted(times)
    late = letters(case, "late")
    assert len(late) == len({*late}) > 0
    assert [worker.stop() for worker in team] == [0, 0]


@pytest.mark.deep
@pytest.mark.parametrize("strategy", ["moving-state", "hybmig-bsc", "jisc"])
def test_the_plan_changes_before_there_is_input(
    strategy: str, topics: Topics, tmp_path: Path, workers: Workers
) -> None:
    case = Case.make(topics, tmp_path, FOUR)
    feed, rng = Feed(case), random.Random(5)
    team = [workers.start(case, *PLACED, "--plan", "(((A B) C) D)")]
    workers.coordinator(case).wait_running()
    spread(team, 3)
    code, out, err = workers.migrate(case, "((A D) (B C))", strategy, "--wait", "--timeout", "30s").finish()
    assert code == 0, err
    assert out.count("changed at") == 3
    send(feed, rng, 0, 100)
    feed.finish(CLOSING)
    assert_exact(case, Reader(case.bootstrap, case.sink), team[0])
    assert team[0].stop() == 0


TABLES = """
CREATE STREAM a (k BIGINT, x BIGINT, at TIMESTAMP) WITH (topic = '{a}', format = 'json', timestamp = 'at');
CREATE STREAM b (x BIGINT, y BIGINT, at TIMESTAMP) WITH (topic = '{b}', format = 'json', timestamp = 'at');
CREATE TABLE names (k BIGINT, name STRING) WITH (path = 'names.csv', format = 'csv');
CREATE TABLE kinds (y BIGINT, kind STRING) WITH (path = 'kinds.csv', format = 'csv');
INSERT INTO '{sink}'
SELECT "the.A".x AS x, N.name AS name, K.kind AS kind
FROM a "the.A" [RANGE 200 MILLISECONDS], names N, b B [RANGE 200 MILLISECONDS], kinds K
WHERE "the.A".k = N.k AND "the.A".x = B.x AND B.y = K.y
"""


@pytest.mark.deep
def test_tables_are_joined_where_their_join_is(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Every share of a join has the whole table; a worker is killed, and reads the tables again."""
    case = Case.make(topics, tmp_path, TABLES, partitions=2)
    tables: dict[str, list[Row]] = {
        "names": [{"k": k, "name": f"n{k}{twin}"} for k in range(4) for twin in "ab"],
        "kinds": [{"y": y, "kind": f"k{y}"} for y in range(3)],
    }
    for name, rows in tables.items():
        lines = [",".join(map(str, row)) for row in ([*rows[0]], *(row.values() for row in rows))]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    feed, rng = Feed(case), random.Random(5)

    def send_rows(start: int) -> None:
        for i in range(start, start + 100):
            at = BASE + 10 * i
            feed.send("a", [{"k": rng.randrange(6), "x": rng.randrange(5), "at": at}], i % 2)
            feed.send("b", [{"x": rng.randrange(5), "y": rng.randrange(4), "at": at}], i % 2)
        feed.flush()

    options = (*PLACED, "--operator-partitions", "2", "--plan", '((("the.A" N) B) K)')
    team = [workers.start(case, *options) for _ in range(2)]
    send_rows(0)
    spread(team, 8)
    team.pop().kill()
    send_rows(100)
    feed.finish({"a": {"k": -1, "x": -1}, "b": {"x": -2, "y": -1}})
    expected = canonical(oracle.results(case.query, {**case.rows, **tables}))
    reader = Reader(case.bootstrap, case.sink)
    reader.wait_for_count(expected.total(), team[0].alive)
    assert canonical(reader.rows()) == expected
    assert team[0].stop() == 0


@pytest.mark.deep
def test_silent_sources_hold_no_results_back(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Two sources of the lower joins fall silent, and the joins above go on; what then comes too late is a late
    tuple."""
    text = FOUR.replace("disorder = '50", "idle_timeout = '1 SECOND', disorder = '50")
    case = Case.make(topics, tmp_path, re.sub(r"RANGE \d+ MILLISECONDS", "RANGE 3 SECONDS", text))
    feed, rng = Feed(case), random.Random(13)
    worker = workers.start(case, *PLACED, "--plan", "(((A B) C) D)").wait_running(range(3))
    for i in range(30):
        at = BASE + 10 * i
        feed.send("a", [{"k": i % 4, "x": 0, "note": "", "at": at}])
        feed.send("b", [{"k": i % 4, "y": i % 3, "at": at}])
    for i in range(100):
        at = BASE + 300 + 10 * i
        feed.send("c", [{"y": rng.randrange(3), "v": 2.0, "at": at}])
        feed.send("d", [{"k": rng.randrange(4), "w": 5, "at": at}])
    feed.flush()
    reader = Reader(case.bootstrap, case.sink)
    last = BASE + 300 + 10 * 99 - 50
    wait_for(
        lambda: any(row["_ts"] >= last - 20 for row in reader.rows()), lambda: worker.with_log("results of the others")
    )
    feed.raw("a", orjson.dumps({"k": 0, "x": 0, "note": "too late", "at": BASE + 310}), 0)
    feed.flush()
    wait_for(lambda: letters(case, "late"), lambda: worker.with_log("a late tuple"))
    feed.finish(CLOSING)
    assert_exact(case, reader, worker)
    assert worker.stop() == 0


@pytest.mark.deep
def test_windows_that_count_tuples(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """One task counts for joins in six others. The workers are killed one after the other, and the plan changes:
    counting goes on where it was, and the new plan's task counts anew."""
    text = FOUR.replace("b B [RANGE 300 MILLISECONDS]", "b B [ROWS 25]").replace("d D [RANGE 200 ", "d D [RANGE 900 ")
    case = Case.make(topics, tmp_path, text.replace("c C [RANGE 400 MILLISECONDS]", "c C [ROWS 40]"), partitions=2)
    feed, rng = Feed(case), random.Random(15)
    options = (*PLACED, "--operator-partitions", "2", "--jit", "on", "--plan", "(((A B) C) D)")
    team = [workers.start(case, *options) for _ in range(2)]
    workers.coordinator(case).wait_running()
    send(feed, rng, 0, 150)
    spread(team, 7)
    reader = Reader(case.bootstrap, case.sink)
    reader.wait_for_count(1)
    team.pop().kill()
    send(feed, rng, 150, 100)
    team.append(workers.start(case, *options))
    spread(team, 7)
    team.pop(0).kill()
    team.append(workers.start(case, *options))
    send(feed, rng, 250, 100)
    spread(team, 7)
    change = workers.migrate(case, "((A D) (B C))", "moving-state", "--wait", "--timeout", "60s")
    wait_for(lambda: decided(team), lambda: team[0].with_log("a change of plans"))
    send(feed, rng, 350, 150)
    code, _, err = change.finish()
    assert code == 0, err
    team.pop(0).kill()
    send(feed, rng, 500, 50)
    feed.finish(CLOSING)
    assert_exact(case, reader, team[0])
    assert team[0].stop() == 0


@pytest.mark.deep
def test_joins_within_memory_budgets(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """What a task spills is late for the tasks above, through two kills and a plan change; in the end nothing is
    pending."""
    case = Case.make(topics, tmp_path, FOUR)
    feed, rng = Feed(case), random.Random(12)
    options = (*PLACED, "--memory", "8KiB", "--spill", "bottom-up", "--operator-partitions", "2")
    team = [workers.start(case, *options, "--plan", "(((A B) C) D)") for _ in range(2)]
    workers.coordinator(case).wait_running()
    spread(team, 10)
    reader = Reader(case.bootstrap, case.sink)
    send(feed, rng, 0, 100)
    reader.wait_for_count(1)
    wait_for(
        lambda: sum(worker.metric("spilled_groups_total") for worker in team) > 0, lambda: team[0].with_log("spills")
    )
    team.pop().kill()
    send(feed, rng, 100, 100)
    team.append(workers.start(case, *options, "--plan", "(((A B) C) D)"))
    spread(team, 10)
    change = workers.migrate(case, "((A D) (B C))", "moving-state", "--wait", "--timeout", "60s")
    wait_for(lambda: decided(team), lambda: team[0].with_log("a change of plans"))
    send(feed, rng, 200, 150)
    code, _, err = change.finish()
    assert code == 0, err
    send(feed, rng, 350, 50)
    team.pop(0).kill()
    feed.finish(CLOSING)
    assert_exact(case, reader, team[0])
    wait_for(lambda: team[0].metric("owed_pairs") == 0, lambda: team[0].with_log("no backlog"))
    assert team[0].stop() == 0


@pytest.mark.deep
@pytest.mark.parametrize("strategy", ["moving-state", "jisc"])
@pytest.mark.parametrize(
    ("module", "plans", "tasks"),
    [(test_aggregate_faults, ("(T H)", "(H T)"), 6), (test_difference_faults, ("((O P) H)", "((O H) P)"), 5)],
    ids=["aggregates", "difference"],
)
def test_changes_of_an_answer(
    module: ModuleType,
    plans: tuple[str, str],
    tasks: int,
    strategy: str,
    topics: Topics,
    tmp_path: Path,
    workers: Workers,
) -> None:
    """Two tasks share the groups, or the keys. A worker is killed, then another plan takes over: each change once, in
    order per partition."""
    case = Case.make(topics, tmp_path, module.QUERY)
    feed, rng = Feed(case), random.Random(8)
    options = (*PLACED, "--operator-partitions", "2", "--plan", plans[0])
    team = [workers.start(case, *options) for _ in range(2)]
    workers.coordinator(case).wait_running()
    spread(team, tasks)
    module.send(feed, rng, 0, 100)
    reader = Reader(case.bootstrap, case.sink)
    reader.wait_for_count(1)
    team.pop().kill()
    module.send(feed, rng, 100, 100)
    change = workers.migrate(case, plans[1], strategy, "--wait", "--timeout", "60s")
    wait_for(lambda: decided(team), lambda: team[0].with_log("a change of plans"))
    module.send(feed, rng, 200, 200)
    code, _, err = change.finish()
    assert code == 0, err
    module.send(feed, rng, 400, 50)
    feed.finish(module.CLOSING)
    expected = oracle.results(case.query, case.rows)
    reader.wait_for_count(len(expected), team[0].alive)
    assert canonical(reader.rows()) == canonical(expected), team[0].with_log("changes")
    for partition in {record.partition for record in reader.records}:
        times = [orjson.loads(r.value or b"")["_ts"] for r in reader.records if r.partition == partition]
        assert times == sorted(times)
    if case.query.aggregation is not None:
        keys = [record.key for record in reader.records]
        assert keys == [orjson.dumps({"room": row["room"]}) for row in reader.rows()]
    assert team[0].stop() == 0


@pytest.mark.deep
def test_at_least_once_loses_nothing(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """After kill -9 results may come twice, none is missing, and none is invented."""
    case = Case.make(topics, tmp_path, FOUR)
    feed, rng = Feed(case), random.Random(6)
    options = (*PLACED, "--guarantee", "at-least-once", "--commit", "500ms", "--plan", "((A B) (C D))")
    for turn in range(2):
        team = [workers.start(case, *options) for _ in range(2)]
        spread(team, 3)
        send(feed, rng, 150 * turn, 150)
        wait_for(lambda: sum(w.metric("results_total") for w in team) > 0, team[0].with_log("results"))  # noqa: B023
        for worker in team:
            worker.kill()
    worker = workers.start(case, *options)
    feed.finish(CLOSING)
    expected = case.expected()
    reader = Reader(case.bootstrap, case.sink)
    wait_for(lambda: not expected - canonical(reader.rows()), worker.with_log("all results"))
    assert set(canonical(reader.rows())) == set(expected)
    assert worker.stop() == 0


@pytest.mark.deep
def test_a_query_without_a_join_has_one_operator(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    begin, _, _ = FOUR.partition("INSERT")
    case = Case.make(topics, tmp_path, f"{begin} INSERT INTO '{{sink}}' SELECT A.x AS x FROM a A [RANGE 1 SECOND]")
    worker = workers.start(case, *PLACED).wait_running()
    feed, rng = Feed(case), random.Random(7)
    feed.send("a", [{"k": 1, "x": rng.randrange(9), "note": "", "at": BASE + 10 * i} for i in range(50)])
    feed.finish({"a": CLOSING["a"]})
    assert_exact(case, Reader(case.bootstrap, case.sink), worker)
    assert worker.stop() == 0
