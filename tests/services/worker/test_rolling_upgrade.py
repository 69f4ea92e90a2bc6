"""An older Weir's place is taken by this one: its state is read, and both run in one group while workers are replaced.

`fixtures/weir-808f51c.tar.xz` is `git archive 808f51c operators schemas services`: what ran before durable formats were
gathered in `schemas.messages.formats`. It stays; a release that changes a format adds its own.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from services.kafka.topics import ControlTopics
from tests.broker_fixture import Topics
from tests.services.worker.test_exactly_once import CLOSING, PARTITIONED, SENSORS, send
from tests.worker_harness import Case, Feed, Reader, WorkerProcess, Workers, assert_exact, in_time, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.unmeasured]

ROOT = Path(__file__).parents[3]
OLDER = ROOT / "tests" / "fixtures" / "weir-808f51c.tar.xz"
KERNELS = ("operators/kernels", "schemas/codecs/kernels")

Environment = dict[str, str]


@pytest.fixture(scope="module")
def older(request: pytest.FixtureRequest) -> Environment:
    """The environment in which `services.cli` is the older Weir. It stays in pytest's cache, with compiled kernels."""
    cache = request.config.cache
    assert cache is not None
    folder = cache.mkdir("weir-808f51c") / "source"
    if not folder.exists():
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        with tarfile.open(OLDER) as archive:
            archive.extractall(made, filter="data")
        for kernels in KERNELS:
            # Kernels that have not changed since need not be compiled again; of others the cache minds the sources.
            shutil.copytree(ROOT / kernels / "__pycache__", made / kernels / "__pycache__", dirs_exist_ok=True)
        try:
            made.rename(folder)
        except OSError:  # another process of pytest was faster
            shutil.rmtree(made)
    environment = {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    where = "import services, pathlib; print(pathlib.Path(services.__file__).parents[1])"
    found = subprocess.run([sys.executable, "-c", where], env=environment, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()) == folder
    return environment


@pytest.mark.deep
def test_an_older_workers_state_is_taken_over(
    topics: Topics, tmp_path: Path, workers: Workers, older: Environment
) -> None:
    """A query that it registered, its snapshot and its commits, after a kill -9 under load."""
    case = Case.make(topics, tmp_path, SENSORS)
    name = f"registered-{case.sink}"
    command = [sys.executable, "-m", "services.cli", "query", "register", name, str(case.path)]
    command += ["--bootstrap", case.bootstrap]
    done = subprocess.run(command, env=older, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    named = replace(case, path=Path(name))
    feed, rng = Feed(case), random.Random(31)
    first = workers.start(named, "--snapshot", "200ms", env=older).wait_running()
    send(feed, rng, 0, 200)
    wait_for(lambda: first.metric("snapshot_watermark_milliseconds"), first.with_log("a snapshot"))
    send(feed, rng, 200, 200)
    wait_for(lambda: first.metric("results_total"), first.with_log("results"))
    first.kill()
    second = workers.start(named, "--snapshot", "200ms").wait_running()
    assert "source=snapshot" in second.text(), second.with_log("recovery")
    send(feed, rng, 400, 100)
    feed.finish(CLOSING)
    assert_exact(case, Reader(case.bootstrap, case.sink), second)
    assert second.stop() == 0


@pytest.mark.deep
def test_what_an_older_worker_spilled_is_paid(
    topics: Topics, tmp_path: Path, workers: Workers, older: Environment
) -> None:
    """Its log of spills says what is pending; the disk is another one."""
    case = Case.make(topics, tmp_path, SENSORS)
    feed, rng = Feed(case), random.Random(32)
    reader = Reader(case.bootstrap, case.sink)
    small = ("--memory", "20KiB", "--spill", "bottom-up")
    first = workers.start(case, *small, env=older).wait_running()
    for part in range(3):
        send(feed, rng, 100 * part, 100)
        wait_for(lambda: first.metric("watermark_milliseconds") == case.watermark(), first.with_log("progress"))
    wait_for(lambda: not all(map(in_time, reader.rows())), first.with_log("late results"))
    assert first.metric("spilled_bytes_total") > 0
    first.kill()
    spills = Reader(case.bootstrap, ControlTopics.of(f"weir-{case.sink}").spills)
    assert spills.poll()
    second = workers.start(case, *small, state=tmp_path / "another").wait_running()
    send(feed, rng, 300, 100)
    feed.finish(CLOSING)
    assert_exact(case, reader, second)
    wait_for(lambda: second.metric("owed_pairs") == 0, second.with_log("no backlog"))
    assert second.stop() == 0


@pytest.mark.deep
def test_older_workers_are_replaced_one_after_the_other(
    topics: Topics, tmp_path: Path, workers: Workers, older: Environment
) -> None:
    """One leaves as it should, one is killed; in between old and new share the group, whoever leads it."""
    case = Case.make(topics, tmp_path, PARTITIONED, partitions=2)
    feed, rng = Feed(case), random.Random(33)
    timeout = ("--session-timeout", "6s")

    def shared(*running: WorkerProcess) -> None:
        def both() -> bool:
            tasks = [worker.running_tasks() for worker in running]
            return all(map(len, tasks)) and sorted(task for own in tasks for task in own) == [0, 1]

        wait_for(both, lambda: "\n".join(worker.with_log("its task") for worker in running))

    one, two = (workers.start(case, *timeout, state=tmp_path / name, env=older) for name in ("one", "two"))
    shared(one, two)
    send(feed, rng, 0, 150)
    assert one.stop() == 0
    send(feed, rng, 150, 50)
    one = workers.start(case, *timeout, state=tmp_path / "one")
    shared(one, two)
    send(feed, rng, 200, 150)
    two.kill()
    send(feed, rng, 350, 50)
    two = workers.start(case, *timeout, state=tmp_path / "two")
    shared(one, two)
    send(feed, rng, 400, 100)
    feed.finish(CLOSING)
    assert_exact(case, Reader(case.bootstrap, case.sink), one)
    assert (one.stop(), two.stop()) == (0, 0)
