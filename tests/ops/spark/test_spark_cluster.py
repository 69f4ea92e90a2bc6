"""`weir cleanup --spark spark://...` on a Spark cluster like that of the compose file, started on this machine."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.services.spill.test_cleanup import Left, rows_of, weir
from tests.worker_harness import wait_for

pyspark = pytest.importorskip("pyspark")

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
PLACE = "spark://spark-master:7077"


def command_of(service: str, **replaced: str) -> list[str]:
    """A Spark service's command, with the parts replaced that depend on the container network."""
    assert COMPOSE[service]["entrypoint"] == ["spark-class"]
    given: list[str] = COMPOSE[service]["command"]
    assert set(replaced.values()).isdisjoint(given)
    return [str(SPARK_CLASS), *(replaced.get(word, word) for word in given)]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a Spark with one worker."""
    from ops.spark.session import check_installed

    check_installed()
    logs = {name: tmp_path / f"{name}.log" for name in ("spark-master", "spark-worker")}
    # Executors find Weir as if it were installed beside them.
    environment = os.environ | {"SPARK_DAEMON_MEMORY": "256m", "PYTHONPATH": str(ROOT)}
    with ExitStack() as ending:

        def start(name: str, command: list[str]) -> subprocess.Popen[bytes]:
            with logs[name].open("wb") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            ending.callback(process.wait)
            ending.callback(process.terminate)
            return process

        def seen(name: str, process: subprocess.Popen[bytes], pattern: str) -> str:
            def look() -> str | None:
                found = re.search(pattern, logs[name].read_text())
                assert found or process.poll() is None, logs[name].read_text()
                return found and found[0]

            return str(wait_for(look, lambda: logs[name].read_text()))

        own = {"spark-master": "127.0.0.1", "7077": "0", "8080": "0"}
        begun = start("spark-master", command_of("spark-master", **own))
        place = seen("spark-master", begun, r"spark://127\.0\.0\.1:\d+")
        work = str(tmp_path / "work")
        command = command_of("spark-worker", **{PLACE: place, "/tmp/spark": work})
        more = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "2", "--memory", "1g"]
        begun = start("spark-worker", command + more)
        seen("spark-worker", begun, "Successfully registered with master")
        yield place


@pytest.mark.slow
def test_a_cluster_cleans_up_a_backlog(master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = Left(tmp_path)
    monkeypatch.chdir(tmp_path)
    code, _, stderr = weir("cleanup", "backlog", "--spark", master, "--out", "rest.jsonl")
    assert code == 0, stderr
    assert left.exact(rows_of(tmp_path / "rest.jsonl"))
    # The worker's executors did it.
    assert list((tmp_path / "work").glob("app-*/0"))
    assert not (tmp_path / "backlog" / "share").exists()
