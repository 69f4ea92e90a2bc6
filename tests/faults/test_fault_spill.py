"""Workers with a memory budget that die, lose their disk or each other, or change plans: exact output, late or not.

Budgets are so small that groups are spilled and cleaned up all the time: a fault at any moment finds a task in
the middle of it.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
from pathlib import Path

import pytest

from services.kafka.topics import ControlTopics
from tests.broker_fixture import Topics
from tests.faults.conftest import MakeTrial
from tests.faults.trial import Trial, logged_once, no_traceback, problems
from tests.faults.workload import PARTITIONED, workload
from tests.plan_changes import PER_PARTITION, PLANS, Control, Load
from tests.worker_harness import Case, Feed, Reader, Row, WorkerProcess, Workers, assert_exact, in_time, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SMALL = ("--memory", "8KiB", "--session-timeout", "6s")

OFTEN = ("--snapshot", "200ms")


def events_of(trial: Trial) -> str:
    """The topic of the query's spill events."""
    return ControlTopics.of(trial.group).spills


def judge(trial: Trial, *workers: WorkerProcess) -> None:
    """Send the rest of the workload and check all outputs; some results are late."""
    trial.finish(*workers)
    late = [record for record in trial.read(trial.sink) if b'"_phase"' in (record.value or b"")]
    assert late, workers[0].with_log("something was spilled")
    for worker in workers:
        no_traceback(worker)


@pytest.mark.parametrize("options", [(), ("--jit", "on")], ids=["", "jit"])
@pytest.mark.parametrize("disk", ["kept", "lost"])
def test_killed_while_spilling(make_trial: MakeTrial, fault_seed: int, disk: str, options: tuple[str, ...]) -> None:
    """kill -9 when an event has just been written and may not be committed; recovery by snapshot or by windows."""
    trial = make_trial(workload(fault_seed, 900, 1))
    incarnations = 6
    for number in range(incarnations):
        state = trial.folder / ("state" if disk == "kept" else f"state-{number}")
        worker = trial.start(*SMALL, *OFTEN, *options, state=state).wait_running()
        trial.flow_to((number + 0.5) / (incarnations + 1), worker)
        with trial.watch(events_of(trial)) as appeared:
            trial.wait(lambda seen=appeared: seen(0.05), "a spill", worker, flow=(number + 1) / (incarnations + 1))
            worker.kill()
        no_traceback(worker)
    judge(trial, trial.start(*SMALL, *options, state=state))


@pytest.mark.parametrize("strategy", ["bottom-up", "global-output"])
def test_killed_while_cleaning_up(make_trial: MakeTrial, fault_seed: int, strategy: str) -> None:
    """kill -9 when late results have just been written and may not be committed."""
    trial = make_trial(workload(fault_seed + 1, 900, 1))
    incarnations = 6
    seen = Reader(trial.bootstrap, trial.sink, "read_uncommitted")
    for number in range(incarnations):
        worker = trial.start(*SMALL, "--spill", strategy, *OFTEN).wait_running()
        before = late_results(seen)
        flow = (number + 1) / (incarnations + 1)
        trial.wait(lambda n=before: late_results(seen) > n, "late results", worker, flow=flow)
        worker.kill()
        no_traceback(worker)
    seen.close()
    judge(trial, trial.start(*SMALL, "--spill", strategy))


def late_results(reader: Reader) -> int:
    """How many late results there are, committed or not."""
    return sum(not in_time(row) for row in reader.rows())


def test_killed_at_random(make_trial: MakeTrial, fault_seed: int) -> None:
    """kill -9 at any time, also during start and recovery."""
    trial = make_trial(workload(fault_seed + 2, 900, 1))
    rng = random.Random(fault_seed)
    incarnations = 12
    for number in range(incarnations):
        worker = trial.start(*SMALL, *OFTEN)
        if rng.random() < 0.7:
            worker.wait_running()
            taken = trial.taken()
            trial.send((number + 1) / (incarnations + 1))
            trial.wait_taken(min(taken + rng.randrange(1, 200), trial.sent), worker)
        else:
            wait_for(lambda w=worker: "task opening" in w.text(), worker.with_log("a start"))
        worker.kill()
        no_traceback(worker)
    judge(trial, trial.start(*SMALL))


def test_workers_share_and_lose_tasks(make_trial: MakeTrial, fault_seed: int) -> None:
    """Tasks with spilled state move from worker to worker: one joins, one leaves, one is killed, one freezes."""
    trial = make_trial(workload(fault_seed, 1200, 4, by_key=True), text=PARTITIONED)
    first = trial.start(*SMALL, *OFTEN).wait_running([0, 1, 2, 3])
    trial.flow_to(0.15, first)
    second = trial.start(*SMALL, *OFTEN)
    trial.wait(lambda: len(second.running_tasks()) == 2, "half of the tasks", second, flow=0.3)
    trial.flow_to(0.35, second)
    assert first.stop() == 0
    trial.wait(lambda: len(second.running_tasks()) == 4, "all tasks", second, flow=0.45)
    third = trial.start(*SMALL, *OFTEN, state=trial.folder / "elsewhere")
    trial.wait(lambda: len(third.running_tasks()) == 2, "half of the tasks", third, flow=0.6)
    second.signal(signal.SIGSTOP)
    trial.wait(lambda: len(third.running_tasks()) == 4, "all tasks", third, flow=0.75)
    second.signal(signal.SIGCONT)
    trial.wait(lambda: len(third.running_tasks()) == 2 == len(second.running_tasks()), "half again", third, flow=0.9)
    third.kill()
    judge(trial, second)


@pytest.mark.parametrize("strategy", ["moving-state", "jisc", "hybmig", "parallel-track"])
def test_plans_change_under_spill(topics: Topics, tmp_path: Path, strategy: str) -> None:
    """Plans of tasks with pending results change, with workers killed before, at and after the cut, and restarted with
    any plan.

    Results were lost where a worker restarted with another `--plan` before the first change had been committed: the
    groups that it had spilled under the old plan were taken for groups of the new plan.
    """
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng = random.Random(seed)
    workers = Workers(tmp_path)
    small = ("--memory", "4KiB", "--session-timeout", "6s")
    try:
        case = Case.make(topics, tmp_path, PER_PARTITION, partitions=2)
        running = [workers.start(case, "--plan", PLANS[0], *small) for _ in range(2)]
        workers.coordinator(case).wait_running()
        wait_for(lambda: all(worker.running_tasks() for worker in running), running[0].with_log("a task each"))
        load, control = Load(case, running[0], pace_s=0.05), Control(case)
        for change in range(8):
            asked = control.ask(PLANS[(change + 1) % len(PLANS)], strategy)
            if change % 2 == 0:
                step = rng.choice([lambda a: control.view.open, lambda a: a.decided(), lambda a: a.seen.started])
                load.until(lambda a=asked, s=step: a.ended() or s(a), "a step")
                which = rng.randrange(2)
                running[which].kill()
                running[which] = workers.start(case, "--plan", PLANS[rng.randrange(len(PLANS))], *small)
                load.worker = running[0]
            load.until(asked.ended, "the end of a change")
        assert len(control.view.changes) >= 4
        load.end()
        assert not all(map(in_time, load.reader.rows())), running[0].with_log("something was spilled")
    finally:
        workers.end()


# --- The disk -----------------------------------------------------------------------------------------

WIDE = """
CREATE STREAM l (k BIGINT, note STRING, at TIMESTAMP)
  WITH (topic = '{l}', format = 'json', timestamp = 'at', disorder = '100 MILLISECONDS');
CREATE STREAM r (k BIGINT, v BIGINT, tag STRING, at TIMESTAMP)
  WITH (topic = '{r}', format = 'json', timestamp = 'at', disorder = '100 MILLISECONDS');
INSERT INTO '{sink}'
SELECT L.k AS k, L.at AS at, R.v AS v FROM l L [RANGE 10 SECONDS], r R [RANGE 10 SECONDS]
WHERE L.k = R.k AND L.note > R.tag
"""

ENDING: dict[str, Row] = {"l": {"k": -1, "note": "end"}, "r": {"k": -2, "v": 0, "tag": ""}}

BASE = 1_700_000_000_000

STEP = 100
"""Rows per stream and step, STEP_MS apart: some 400 KB that do not compress."""

STEP_MS = 40


class Wide:
    """A join whose state has several thousand bytes per left tuple, so that blocks are soon written to disk."""

    def __init__(self, topics: Topics, folder: Path) -> None:
        self.case = Case.make(topics, folder, WIDE)
        self.feed = Feed(self.case)
        self.reader = Reader(self.case.bootstrap, self.case.sink)
        self.spilled = folder / "spilled"
        self._workers = Workers(folder)
        self._rng = random.Random(5)
        self.sent = 0

    def start(self) -> WorkerProcess:
        return self._workers.start(
            self.case, "--memory", "500KiB", "--spill-dir", str(self.spilled), "--transaction-timeout", "20s"
        )

    def more(self) -> None:
        """Send another step of rows."""
        steps = range(self.sent, self.sent + STEP)
        self.sent += STEP
        self.feed.send(
            "l",
            [{"k": self._rng.randrange(50), "note": os.urandom(4000).hex(), "at": BASE + STEP_MS * i} for i in steps],
        )
        self.feed.send(
            "r", [{"k": self._rng.randrange(50), "v": i, "tag": "", "at": BASE + STEP_MS * i} for i in steps]
        )
        self.feed.flush()

    def until(self, condition: object, worker: WorkerProcess, what: str) -> None:
        """Send steps until a condition holds, each when the worker has processed the one before."""

        def look() -> object:
            assert worker.process.poll() is None, worker.with_log("the worker ended")
            if condition():  # type: ignore[operator]
                return True
            if worker.metric("watermark_milliseconds") == self.case.watermark():
                self.more()
            return False

        self.more()
        wait_for(look, lambda: worker.with_log(what))

    def files(self) -> list[Path]:
        """The files with spilled blocks."""
        return sorted(self.spilled.glob("slot-*/*/spilled/task-0/*/blocks/*.sst"))

    def end(self, worker: WorkerProcess) -> None:
        """Close the input, and compare the results with the oracle."""
        self.feed.finish(ENDING)
        assert_exact(self.case, self.reader, worker)
        assert not all(map(in_time, self.reader.rows())), worker.with_log("something was spilled")
        no_traceback(worker)

    def close(self) -> None:
        self._workers.end()


@pytest.fixture
def wide(topics: Topics, tmp_path: Path):  # type: ignore[no-untyped-def]
    made = Wide(topics, tmp_path)
    yield made
    made.close()


def damage(files: list[Path]) -> None:
    """Change every byte in the middle of some files; files that are gone by now are skipped."""
    for file in files:
        with contextlib.suppress(FileNotFoundError), file.open("r+b") as out:
            data = out.read()
            out.seek(len(data) // 8)
            out.write(bytes(byte ^ 0x55 for byte in data[len(data) // 8 : len(data) * 7 // 8]))


UNUSABLE = "error .*spilled state cannot be used: the task goes back to its last commit"


def test_a_damaged_block(wide: Wide) -> None:
    """The worker logs one line, and rebuilds the lost state from the input."""
    worker = wide.start().wait_running()
    wide.until(lambda: len(wide.files()) >= 2, worker, "files on disk")

    def found() -> bool:
        damage(wide.files())
        return "spilled state cannot be used" in worker.text()

    wide.until(found, worker, "the damage is found")
    wide.until(lambda: worker.running_tasks() == {0}, worker, "it runs again")
    wide.end(worker)
    assert "Corruption" in logged_once(worker, UNUSABLE)
    assert len(problems(worker)) == 1, worker.with_log("one line is enough")
    assert worker.metric("spill_failures_total") == 1


def test_what_retention_took_is_said(wide: Wide) -> None:
    """A damaged block whose tuples are gone from the log: the worker stops, and reports which records are missing."""
    worker = wide.start().wait_running()
    wide.until(lambda: len(wide.files()) >= 2, worker, "files on disk")
    wait_for(lambda: worker.metric("watermark_milliseconds") == wide.case.watermark(), worker.with_log("all is taken"))
    topic = wide.case.topic("l")
    Topics(wide.case.bootstrap).delete_before(topic, wide.sent - 50)

    def stopped() -> bool:
        damage(wide.files())
        if worker.process.poll() is None and worker.metric("watermark_milliseconds") == wide.case.watermark():
            wide.more()
        return worker.process.poll() is not None

    wait_for(stopped, lambda: worker.with_log("the worker stops"))
    assert worker.process.returncode == 1
    logged_once(worker, UNUSABLE)
    last = worker.text().strip().splitlines()[-1]
    assert f"of {topic}[0], needed to rebuild its window, are gone from the log" in last, worker.with_log("why")
    no_traceback(worker)


def test_a_full_disk(wide: Wide) -> None:
    """The task waits for room, and logs it once; then it continues. Nothing is lost or repeated."""
    worker = wide.start().wait_running()
    wide.until(lambda: len(wide.files()) >= 1, worker, "files on disk")
    before = resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, (200_000, before[1]))
    wide.until(lambda: worker.metric("spill_failures_total") > 0, worker, "the disk is full")
    wide.more()
    wait_for(lambda: worker.metric("spill_failures_total") > 2, worker.with_log("it tries again"))
    # It logs it at each request, although the task runs in between.
    (seen,) = worker.health()["tasks"]
    assert seen["problem"].endswith("the disk is full: free some room or give a folder on another disk")
    assert seen["failures"] > 2
    assert (seen["task"], len(seen["since"])) == (0, len("2026-01-01T00:00:00Z"))
    resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, before)
    wide.until(lambda: worker.metric("watermark_milliseconds") == wide.case.watermark(), worker, "it goes on")
    # The commit counts in the metrics a moment before the event loop looks at it.
    wait_for(lambda: worker.health()["tasks"][0]["failures"] == 0, worker.with_log("healthy again"))
    (seen,) = worker.health()["tasks"]
    assert (seen["problem"], seen["since"], seen["failures"]) == ("", None, 0)
    wide.end(worker)
    line = logged_once(worker, UNUSABLE)
    assert "the disk is full: free some room or give a folder on another disk" in line, line
    assert len(problems(worker)) == 1, worker.with_log("one line is enough")
