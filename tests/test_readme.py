"""README.md holds: its tutorial prints what it says, its reference is the command line's, its names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from ops.reference import README, with_reference
from schemas.language.functions import FUNCTIONS
from services.broker import broker as brokers
from services.broker.kafka_jars import kafka_version
from services.process.metrics import WorkerMetrics

ROOT = README.parent
TEXT = README.read_text()
DEADLINE_S = 300


@dataclass(frozen=True)
class Step:
    """A ```bash block, and the block of another language that follows it and shows what it prints."""

    commands: str
    shown: str | None


def section(title: str) -> str:
    """The text below a heading of the second level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found.group(1)


def steps(text: str) -> list[Step]:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    out: list[Step] = []
    for number, (language, body) in enumerate(blocks):
        if language == "bash":
            after = blocks[number + 1] if number + 1 < len(blocks) else ("bash", "")
            out.append(Step(body, after[1] if after[0] in ("text", "json") else None))
    return out


def run_steps(tutorial: list[Step], folder: Path) -> list[str]:
    """Run all blocks in one shell, as somebody would who pastes them; what each prints."""
    mark = uuid.uuid4().hex
    script = "".join(f"{step.commands}echo {mark}\n" for step in tutorial)
    port = str(brokers.free_port())
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}",
        "WEIR_BROKER_PORT": port,
        "WEIR_BOOTSTRAP": f"127.0.0.1:{port}",
    }
    if cache := os.environ.get("WEIR_CACHE"):
        environment["WEIR_CACHE"] = cache
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        log = folder / "worker.log"
        assert done.returncode == 0, done.stderr + (log.read_text() if log.exists() else "")
    finally:
        brokers.stop(folder / ".weir/broker")
    printed = done.stdout.split(f"{mark}\n")
    assert printed.pop() == ""
    return printed


@pytest.mark.kafka
def test_the_tutorial_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    tutorial = steps(section("Five minutes"))
    assert len(tutorial) > 5
    for step, printed in zip(tutorial, run_steps(tutorial, tmp_path), strict=True):
        if step.shown is not None:
            assert printed == step.shown, step.commands


@pytest.mark.slow
def test_the_commands_over_history_print_what_is_said(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    files = [step for step in steps(section("Five minutes")) if step.commands.startswith("cat >")][:2]
    history = steps(section("History and audit"))
    assert sum(step.shown is not None for step in history) == 2
    for step, printed in zip(history, run_steps([*files, *history], tmp_path)[len(files) :], strict=True):
        if step.shown is not None:
            assert printed == step.shown, step.commands


def test_the_query_of_the_tutorial_is_told_apart_from_its_output() -> None:
    """The test above would pass if no block were taken for output."""
    assert sum(step.shown is not None for step in steps(section("Five minutes"))) >= 6


def test_the_command_reference_is_that_of_the_command_line() -> None:
    assert with_reference(TEXT) == TEXT, "python -m ops.reference writes it anew"


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    named = set(re.findall(r"^make ([a-z-]+)$|`make ([a-z-]+)`", TEXT, re.MULTILINE))
    names = {a or b for a, b in named}
    assert {"demo", "test"} <= names
    assert names <= targets


def test_linked_and_named_files_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    paths = re.findall(r"`((?:schemas|operators|services|ops|tests)/[\w/.-]*)`", TEXT)
    assert links
    assert paths
    assert [name for name in (*links, *paths) if not (ROOT / name).exists()] == []


def test_named_metrics_exist() -> None:
    metrics = WorkerMetrics("query")
    metrics.of("0")
    page = metrics.page().decode()
    named = set(re.findall(r"`(weir_\w+)`", TEXT))
    assert len(named) > 5
    assert [name for name in sorted(named) if name not in page] == []


def test_named_variables_exist() -> None:
    sources = [path for layer in ("services", "ops") for path in (ROOT / layer).rglob("*.py")]
    known = "".join(path.read_text() for path in (*sources, ROOT / "tests/broker_fixture.py"))
    compose = (ROOT / "docker-compose.yml").read_text()
    named = set(re.findall(r"`([A-Z][A-Z]+_[A-Z_]+)`", TEXT))
    assert [name for name in sorted(named) if name not in known + compose] == []


def test_every_function_of_the_language_is_named() -> None:
    assert [name for name in FUNCTIONS if name not in section("What a query means")] == []


def test_the_broker_that_guarantees_are_tested_on_is_the_pinned_one() -> None:
    assert f"Apache Kafka {kafka_version()}" in section("What is guaranteed")
