"""A registered group as a service: queries come and go while it runs, and every output topic is exact."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from schemas.errors import StateError, UsageError
from schemas.messages.control import MemberRecord, RegisteredQuery
from services.registry.member_log import known_members
from services.registry.query_registry import write
from tests.broker_fixture import Topics
from tests.group_workers import GroupTrial, select
from tests.registry_fixture import rows_of_avro
from tests.services.worker.test_exactly_once import BASE, CLOSING, send
from tests.worker_harness import Feed, Reader, Row, Workers, canonical, unmarked, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.unmeasured]


@pytest.mark.deep
@pytest.mark.parametrize("jit", ["off", "on"])
def test_twenty_queries_come_and_go_under_load_and_kills(
    topics: Topics, tmp_path: Path, workers: Workers, jit: str
) -> None:
    """Some are added with the past and some from now on, some dropped, some replaced, while input flows and workers are
    killed."""
    trial = GroupTrial.make(topics, tmp_path)
    feed, rng = Feed(trial.case), random.Random(6)
    trial.register({f"q{n}": select(rng) for n in range(16)})
    added = 16
    for life in range(3):
        worker = workers.start(trial.case, "--jit", jit).wait_running()
        for part in range(3):
            seen = worker.metric("group_results_total")
            send(feed, rng, 360 * life + 120 * part, 120)
            wait_for(
                lambda w=worker, n=seen: w.metric("group_results_total") > n, lambda w=worker: w.with_log("results")
            )
            if part == 0:
                trial.register({f"q{added + n}": select(rng) for n in range(2)}, from_now=life == 1)
                trial.register({f"q{life}": select(rng)})
                added += 2
            if part == 1:
                trial.drop(f"q{5 + life}")
                trial.wait_begun(worker)
        worker.kill()
    worker = workers.start(trial.case, "--jit", jit).wait_running()
    trial.register({"last": select(rng)})
    trial.wait_begun(worker)
    assert len(trial.selects) == 20
    send(feed, rng, 1080, 120)
    feed.finish(CLOSING)
    assert trial.judge(worker) > 2_000
    told = trial.weir("list")
    assert f"{trial.name}: a group of 20 over " in told
    assert f"  {trial.name}-last: runs since 2023-11-14T" in told
    assert f"  {trial.name}-q5: ended 2023-11-14T" in told
    assert worker.metric("group_queries") == 20
    assert worker.metric("group_results_total") == worker.metric("results_total")
    assert worker.stop() == 0


@pytest.mark.deep
def test_at_least_once_loses_nothing(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Queries are added and dropped while workers die without transactions: every topic has all results, and none that
    is not one."""
    trial = GroupTrial.make(topics, tmp_path)
    feed, rng = Feed(trial.case), random.Random(9)
    options = ("--guarantee", "at-least-once", "--commit", "500ms")
    trial.register({f"q{n}": select(rng, joins=True) for n in range(4)})
    for life in range(3):
        worker = workers.start(trial.case, *options).wait_running()
        seen = worker.metric("results_total")
        send(feed, rng, 120 * life, 120)
        wait_for(lambda w=worker, n=seen: w.metric("results_total") > n, lambda w=worker: w.with_log("results"))
        trial.register({f"q{4 + life}": select(rng, joins=True)})
        if life == 1:
            trial.drop("q0")
        worker.kill()
    worker = workers.start(trial.case, *options).wait_running()
    trial.wait_begun(worker)
    feed.finish(CLOSING)
    for sink, wanted in trial.expected().items():
        reader = Reader(trial.case.bootstrap, sink, "read_uncommitted")
        wait_for(lambda r=reader, e=wanted: not e - canonical(r.rows()), lambda w=worker: w.with_log("all results"))
        reader.close()
    assert worker.stop() == 0


@pytest.mark.deep
def test_a_group_has_a_task_per_partition(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Two workers share the tasks. Queries come and go while one is killed, in each task from a cut of its own."""
    trial = GroupTrial.make(topics, tmp_path, partitions=3)
    feed, rng = Feed(trial.case), random.Random(11)
    by_mote = " PARTITION BY T.mote, H.mote"
    t, h = "temperature T [RANGE 300 MILLISECONDS]", "humidity H [RANGE 200 MILLISECONDS]"
    light = "light L [RANGE 300 MILLISECONDS]"
    trial.register(
        {
            "q0": f"SELECT T.mote, T.celsius, H.percent FROM {t}, {h} WHERE T.mote = H.mote AND T.celsius > 9{by_mote}",
            "q1": f"SELECT T.mote, COUNT(*) AS n FROM {t}, {h} WHERE T.mote = H.mote GROUP BY T.mote "
            f"EMIT EVERY 250 MILLISECONDS{by_mote}",
            "q2": f"SELECT T.mote, H.percent, L.lux FROM {t}, {h}, {light} WHERE T.mote = H.mote AND L.mote = H.mote "
            "PARTITION BY T.mote, H.mote, L.mote",
        }
    )
    team = [workers.start(trial.case) for _ in range(2)]
    send(feed, rng, 0, 120)

    def shared() -> bool:
        found = [worker.running_tasks() for worker in team]
        return all(found) and sorted(task for tasks in found for task in tasks) == [0, 1, 2]

    wait_for(shared, lambda: team[0].with_log("three tasks"))
    trial.register({"q3": f"SELECT T.mote, L.lux FROM {t}, {light} WHERE T.mote = L.mote PARTITION BY T.mote, L.mote"})
    trial.drop("q0")
    trial.wait_begun(team[0])
    send(feed, rng, 120, 120)
    team.pop(0).kill()
    team.append(workers.start(trial.case))
    send(feed, rng, 240, 120)
    feed.finish(CLOSING)
    assert trial.judge(team[-1]) > 300
    with pytest.raises(UsageError, match="has a task per partition, by column mote of"):
        trial.register({"q4": f"SELECT T.mote FROM {t}, {h} WHERE T.mote = H.mote"})
    assert [worker.stop() for worker in team] == [0, 0]


@pytest.mark.deep
def test_queries_share_a_memory_budget(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Many results come late, through kills and changes, and each once; in the end nothing is pending. A worker
    without a budget produces what others left pending."""
    trial = GroupTrial.make(topics, tmp_path)
    feed, rng = Feed(trial.case), random.Random(7)
    trial.register({f"q{n}": select(rng, joins=True) for n in range(6)})
    memory = ("--memory", "64KiB")
    spilled = 0.0
    for life in range(4):
        worker = workers.start(trial.case, *memory).wait_running()
        seen = worker.metric("results_total")
        send(feed, rng, 240 * life, 240)
        wait_for(lambda w=worker, n=seen: w.metric("results_total") > n, lambda w=worker: w.with_log("results"))
        if life % 2:
            trial.drop(f"q{life}")
        trial.register({f"q{6 + life}": select(rng, joins=True)}, from_now=life == 2)
        if life < 3:
            trial.wait_begun(worker)
        spilled += worker.metric("spills_total")
        worker.kill()
    assert spilled > 0
    worker = workers.start(trial.case).wait_running()
    assert "an earlier --memory left results pending" in worker.text()
    trial.wait_begun(worker)  # a query that begins later adds to the budget
    assert worker.stop() == 0
    worker = workers.start(trial.case, *memory).wait_running()
    wait_for(lambda: worker.metric("memory_budget_bytes") == 64 << 10, lambda: worker.with_log("a budget"))
    trial.wait_begun(worker)
    send(feed, rng, 960, 240)
    feed.finish(CLOSING)
    assert trial.judge(worker) > 1_000
    wait_for(lambda: worker.metric("owed_pairs") == 0, lambda: worker.with_log("nothing pending"))
    assert worker.metric("cleanup_results_total") > 0
    assert worker.stop() == 0


@pytest.mark.deep
def test_what_is_said_of_a_group(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """On the command line, and by a worker that finds in the registry what it cannot run."""
    trial = GroupTrial.make(topics, tmp_path)
    name, rng = trial.name, random.Random(3)
    hot = "SELECT T.mote, T.celsius FROM temperature T [RANGE 1 SECOND], light L [RANGE 1 SECOND] WHERE T.mote = L.mote"
    file = trial.file({"hot": hot, "all": hot.replace("T.celsius", "L.lux")})
    assert trial.weir("register", name, str(file), "--group") == (
        f"registered in group {name}: {name}-hot, {name}-all\n"
    )
    assert trial.weir("register", name, str(file), "--group") == f"registered in group {name}: nothing new\n"
    assert f"  {name}-all: not begun: does a worker run?" in trial.weir("list")
    assert "add --group, or take another name" in trial.weir("register", name, str(file), code=2)
    assert "--from-now is for queries that join" in trial.weir("register", "x", str(file), "--from-now", code=2)
    humid = trial.file({"humid": "SELECT H.mote FROM humidity H [RANGE 1 SECOND]"})
    assert "reads, and that is not read by group" in trial.weir("register", name, str(humid), "--group", code=2)
    assert f"has no query 'cold', it has '{name}-all'" in trial.weir("drop", name, "--query", "cold", code=2)
    odd = RegisteredQuery(name="odd", text="SELEC", pick="odd", group=name, id="odd")
    write(trial.clients, {f"{name}/odd": odd})
    worker = workers.start(trial.case).wait_running()
    assert "query left out" in worker.text()
    feed = Feed(trial.case)
    send(feed, rng, 0, 100)
    trial.selects = {f"{name}-{sink}": "" for sink in ("hot", "all")}
    trial.wait_begun(worker)
    assert trial.weir("drop", name, "--query", f"{name}-hot") == f"dropped {name}-hot of {name}\n"
    del trial.selects[f"{name}-hot"]
    trial.wait_begun(worker)
    assert worker.stop() == 0
    refused = workers.start(trial.case, "--placement", "per-operator")
    assert refused.process.wait(60) == 2
    assert "a group of queries does not go with --placement per-operator" in refused.text()
    log = f"weir-{name}.members"
    admin = AdminClient({"bootstrap.servers": trial.case.bootstrap})
    admin.delete_topics([log])[log].result(30)
    lost = workers.start(trial.case)
    wait_for(lambda: lost.process.poll() is not None, lambda: lost.with_log("it ends"))
    assert f"{log}[0] does not hold the" in lost.text()
    assert "the topic was deleted and made anew" in lost.text()
    with pytest.raises(StateError, match=f"topic {log} does not say which queries task 0 runs, though it has comm"):
        known_members(trial.clients, log, 0)
    trial.weir("drop", name)
    assert name not in trial.weir("list")


CHAIN = (
    'SELECT T.celsius AS a, H.room AS b, L.mote AS c, L.lux AS x, I.room AS "_headers.d" '
    "FROM temperature T, humidity H, light L, humidity I WINDOW RANGE {} MILLISECONDS "
    "WHERE T.mote = H.mote AND H.percent = L.lux AND L.mote = I.mote"
)
A_SECOND = 1_500
"""Tuples of a stream that come in one of event time: windows hold three times what the budget does."""
ILL_AFTER_S = 75.0
"""A worker that has committed nothing for a minute reports it, give or take."""


def chained(trial: GroupTrial, member: MemberRecord) -> Counter[str]:
    """What a query of CHAIN must have given: as the oracle says it, by look-ups, for it would take minutes."""
    window = int(member.text.partition(f"'{member.name}'")[2].partition("RANGE ")[2].split()[0])

    def by(stream: str, alias: str, column: str) -> dict[object, list[Row]]:
        found: dict[object, list[Row]] = defaultdict(list)
        for row in trial.case.rows[stream][0]:
            if row["at"] >= member.since.get(alias, 0):
                found[row[column]].append(row)
        return found

    h, light, other = by("humidity", "H", "mote"), by("light", "L", "lux"), by("humidity", "I", "mote")
    rows = []
    for t in (row for rows_ in by("temperature", "T", "mote").values() for row in rows_):
        for b in h[t["mote"]]:
            for c in light[b["percent"]]:
                for d in other[c["mote"]]:
                    times = [row["at"] for row in (t, b, c, d)]
                    if max(times) - min(times) <= window:
                        one = {"a": t["celsius"], "b": b["room"], "c": c["mote"], "x": c["lux"], "d": d["room"]}
                        rows.append({**one, "_ts": max(times)})
    end = 2**62 if member.ended is None else member.ended
    return canonical(row for row in rows if (member.began or 0) <= row["_ts"] < end)


def send_second(feed: Feed, rng: random.Random, number: int) -> None:
    """Produce the readings of one second, A_SECOND of each stream or a few more."""
    for at in range(1000 * number, 1000 * number + 1000):
        for _ in range(A_SECOND // 1000 + at % 2):
            mote, value, when = rng.randrange(A_SECOND), float(rng.randrange(A_SECOND)), BASE + at
            name = f"{at}-{rng.randrange(10**9)}"
            feed.send("temperature", [{"mote": mote, "room": name, "celsius": rng.random(), "at": when}])
            feed.send("humidity", [{"mote": rng.randrange(A_SECOND), "room": name, "percent": value, "at": when}])
            light = float(rng.randrange(A_SECOND))
            feed.send("light", [{"mote": rng.randrange(A_SECOND), "lux": light, "at": when}])
    feed.flush()


@pytest.mark.deep
def test_a_worker_commits_or_is_ill(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """The same, up to where the added query has begun: 0.1.0 committed nothing for minutes, and /healthz said ok."""
    trial = GroupTrial.make(topics, tmp_path)
    feed, rng = Feed(trial.case), random.Random(8)
    trial.register({"q0": CHAIN.format(1000), "q1": CHAIN.format(900)})
    worker = workers.start(trial.case, "--memory", "400KiB").wait_running()
    for number in range(6):
        send_second(feed, rng, number)
    wait_for(lambda: worker.metric("input_tuples_total") > 3 * A_SECOND, lambda: worker.with_log("input is read"))
    trial.register({"q2": CHAIN.format(800)}, from_now=True)
    trial.drop("q1")
    commits, moved = 0.0, time.monotonic()
    while not trial.begun():
        now = time.monotonic()
        if (count := worker.metric("commits_total")) > commits:
            commits, moved = count, now
        silent_s = now - moved
        assert silent_s < ILL_AFTER_S or worker.health()["status"] != "ok", worker.with_log(f"{silent_s:.0f} s")
        time.sleep(1.0)
    worker.process.kill()


@pytest.mark.deep
def test_a_small_budget_does_not_hold_a_group_up(
    topics: Topics, tmp_path: Path, workers: Workers, registry: str
) -> None:
    """A query is added and one is dropped while the backlog is large; the worker is told to end during the cleanup; and
    the next one produces the rest although no more input arrives. Before, added and dropped queries waited for the end
    of the cleanup, in one pause of minutes; nothing was committed meanwhile; and a worker that was told to end lost
    what it had produced.

    The next worker has never run the dropped query, and gives its results in Avro and with headers nevertheless."""
    trial = GroupTrial.make(topics, tmp_path)
    trial.options = f"WITH (format = 'avro', registry = '{registry}')"
    feed, rng = Feed(trial.case), random.Random(8)
    trial.register({"q0": CHAIN.format(1000), "q1": CHAIN.format(900)})
    memory = ("--memory", "400KiB")
    worker = workers.start(trial.case, *memory).wait_running()
    send_second(feed, rng, 0)
    send_second(feed, rng, 1)
    wait_for(lambda: worker.metric("spilled_tuples") > A_SECOND, lambda: worker.with_log("spills"))
    trial.register({"q2": CHAIN.format(800)}, from_now=True)
    trial.drop("q1")
    trial.wait_begun(worker)
    send_second(feed, rng, 2)
    feed.finish(CLOSING)
    began = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - began < 15
    dropped = len(Reader(trial.case.bootstrap, f"{trial.name}-q1").poll())
    worker = workers.start(trial.case, *memory).wait_running()
    for member in trial.members():
        expected = chained(trial, member)
        reader = Reader(trial.case.bootstrap, member.name, decode=rows_of_avro(registry, member.name))
        reader.wait_for_count(sum(expected.values()), worker.alive)
        rows = unmarked(reader.rows())
        for record, row in zip(reader.records, rows, strict=True):
            row["d"] = record.headers["d"]
        assert canonical(rows) == expected
        assert not member.name.endswith("q1") or len(rows) > dropped, "it had pending results"
        reader.close()
        assert sum(expected.values()) > 500
    assert worker.stop() == 0
