"""`weir cleanup --spark` on a real Spark: all pending results, each once, whatever fails on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from operators.spill.cleanup.offline import OfflineCleanup, clean_up_all
from ops.spark.cleanup import Cluster, forget, results_of_backlog
from ops.spark.cleanup_task import CleanupTask, Row
from ops.spark.session import spark_session
from ops.spark.share import Share
from schemas.columns import Batch
from schemas.errors import StateError, UsageError
from services.spill.backlog import OpenBacklog, manifest_in, open_backlog
from tests import oracle
from tests.broker_fixture import Topics
from tests.cases import Case
from tests.feeding import canonical, to_rows
from tests.operators.spill.memory_blocks import MemoryBlocks
from tests.operators.spill.test_spill_properties import BUDGETS, SPILLABLE
from tests.ops.backlogs import run_with_backlog
from tests.services.spill.test_cleanup import Left, check_own_schema, rows_of, weir
from tests.worker_harness import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

QUICK = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage": "false",
}
"""Settings that make Spark quick on few rows."""

Found = dict[int, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for all tests of this file that do not kill it: it takes seconds to start."""
    with spark_session("local[2,4]", tmp_path_factory.mktemp("spark"), **QUICK) as session:
        yield session


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return Left(tmp_path_factory.mktemp("left"))


@pytest.fixture
def folder(left: Left, tmp_path: Path) -> Path:
    """A copy of the backlog."""
    return Path(shutil.copytree(left.path("backlog"), tmp_path / "backlog"))


def read(groups: Iterable[tuple[int, Iterable[Batch]]]) -> Found:
    """Results by group of the root, in an order that does not depend on the program that found them."""
    found: Found = {}
    for group, batches in groups:
        assert group not in found
        rows = [row for batch in batches for row in to_rows(batch)]
        if rows:
            found[group] = sorted(rows, key=json.dumps)
    assert sorted(found) == list(found)
    return found


def locally(backlog: OpenBacklog) -> Found:
    contents = backlog.manifest.pending
    return read(clean_up_all(OfflineCleanup(backlog.query, contents), contents, backlog.blocks))


@dataclass(frozen=True)
class FailingOnce(CleanupTask):
    """Dies in the middle of its first task."""

    mark: str = ""

    def __call__(self, rows: Iterable[Row]) -> Iterator[Row]:
        for number, row in enumerate(super().__call__(rows)):
            if number == 1 and not os.path.exists(self.mark):
                Path(self.mark).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield row


@pytest.mark.deep
def test_tasks_that_die_and_drivers_that_do_not_finish(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    """The results are those of a local cleanup, although a task was killed; a second run reads them from the share."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    mark, stderr = tmp_path / "died", []

    def failing(query: Any, backlog: bytes) -> CleanupTask:
        return FailingOnce(query, backlog, str(mark))

    with open_backlog(folder) as backlog:
        here = Cluster("local[2]")
        expected = locally(backlog)
        assert read(results_of_backlog(backlog, here, stderr.append, failing)) == expected
        assert mark.exists()
        assert stderr == [
            "exporting parts",
            "joining level 1 of 3 with Spark",
            "joining level 2 of 3 with Spark",
            "joining level 3 of 3 with Spark",
            "delivering",
        ]

        share = folder / "share" / backlog.manifest.id
        files = {path: path.stat().st_mtime_ns for path in share.rglob("*")}
        assert read(results_of_backlog(backlog, here, stderr.append)) == expected
        assert {path: path.stat().st_mtime_ns for path in share.rglob("*")} == files
        forget(backlog, here)
    assert not (folder / "share").exists()


@pytest.mark.slow
@settings(
    max_examples=10,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
@given(case=SPILLABLE, budget=BUDGETS)
def test_any_backlog(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, case: Case, budget: Any) -> None:
    no_memory = replace(budget, limit_bytes=0)
    found, backlog = run_with_backlog(case, no_memory, MemoryBlocks(), tmp_path_factory.mktemp("backlog"))
    if backlog is not None:
        here = Cluster("local[2]", str(tmp_path_factory.mktemp("share")))
        for rows in read(results_of_backlog(backlog, here, lambda text: None)).values():
            found += rows
    assert canonical(found) == canonical(oracle.results(case.query, case.given))


@pytest.mark.slow
def test_what_was_not_written_to_its_end_is_written_again(spark: SparkSession, folder: Path) -> None:
    with open_backlog(folder) as backlog:
        here = Cluster("local[2]")
        expected = read(results_of_backlog(backlog, here, lambda text: None))
        share = folder / "share" / backlog.manifest.id
        for name in ("parts", "level-1"):
            (share / name / "_SUCCESS").unlink()
            for path in (share / name).glob("part-*"):
                path.unlink()
        assert read(results_of_backlog(backlog, here, lambda text: None)) == expected
        assert (share / "level-1" / "_SUCCESS").exists()


@pytest.mark.slow
def test_the_command(spark: SparkSession, left: Left, folder: Path, tmp_path: Path) -> None:
    rest, share = tmp_path / "rest.jsonl", tmp_path / "share"
    command = ("cleanup", str(folder), "--spark", "local[2]", "--share", str(share), "--out", str(rest))
    code, _, stderr = weir(*command)
    assert code == 0, stderr
    assert left.exact(rows_of(rest))
    assert list(share.iterdir()) == []
    code, _, stderr = weir(*command)
    assert code == 0
    assert "nothing to do" in stderr


@pytest.mark.slow
@pytest.mark.kafka
def test_results_by_a_schema_of_the_users_own(
    spark: SparkSession, topics: Topics, registry: str, tmp_path: Path
) -> None:
    share = str(tmp_path / "share")
    (tmp_path / "left").mkdir()
    check_own_schema(tmp_path / "left", topics, registry, "own.avsc", "--spark", "local[2]", "--share", share)


@pytest.mark.slow
def test_a_run_that_lets_spark_clean_up(spark: SparkSession, left: Left, tmp_path: Path) -> None:
    whole = left.folder / "both.jsonl"
    told = left.folder / "stats.json"
    budget = ("--memory", "60KiB", "--cleanup", "spark", "--spark", "local[2]")
    left.run(whole.name, *budget, "--stats", str(told))
    rows = rows_of(whole)
    assert left.exact([row for row in rows if "_phase" in row])
    assert [row for row in rows if "_phase" not in row] == rows[: left.found.total()]
    stats = json.loads(told.read_text())
    assert stats["results"] == len(rows)
    assert stats["spill"]["cleanup_results"] == len(rows) - left.found.total()
    assert 0 < stats["spill"]["cleanup_seconds"] < stats["seconds"]
    assert (stats["spill"]["owed"], stats["spill"]["on_disk_tuples"]) == (0, 0)


@pytest.mark.slow
def test_a_driver_that_is_killed(left: Left, folder: Path, tmp_path: Path) -> None:
    """The driver is killed after the first level; the second driver uses that level, and ends as if nothing
    happened."""
    rest = tmp_path / "rest.jsonl"
    command = [sys.executable, "-m", "services.cli", "cleanup", str(folder), "--spark", "local[2]", "--out", str(rest)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    share = folder / "share" / manifest_in(folder).id
    try:
        wait_for(lambda: (share / "level-0" / "_SUCCESS").exists() or rest.exists(), "the first level", 300)
    finally:
        process.kill()
        process.wait()
    first = (share / "level-0" / "_SUCCESS").stat().st_mtime_ns
    with open_backlog(folder) as backlog:
        read(results_of_backlog(backlog, Cluster("local[2]"), lambda text: None))
    assert (share / "level-0" / "_SUCCESS").stat().st_mtime_ns == first
    code, _, stderr = weir("cleanup", str(folder), "--spark", "local[2]", "--out", str(rest))
    assert code == 0, stderr
    assert left.exact(rows_of(rest))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backlog", "rest.jsonl"]


def test_shares(tmp_path: Path) -> None:
    share = Share(str(tmp_path / "a"))
    share.forget("")
    share.begin("parts")
    assert not share.whole("parts")
    share.done("parts")
    assert share.whole("parts")
    share.begin("parts")
    assert not share.whole("parts")
    assert share.uri("parts") == (tmp_path / "a" / "parts").as_uri()
    for scheme in ("s3", "s3a"):
        assert Share(f"{scheme}://bucket/folder/?region=us-east-1").uri("x") == "s3a://bucket/folder/x"
    with pytest.raises(UsageError, match=r"--share nowhere://x: .*; accepted: a folder, or a URI such as s3://"):
        Share("nowhere://x")
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match=r"cannot write file://.*/file/parts: .*; see that it has room"):
        Share(str(tmp_path / "file")).begin("parts")
