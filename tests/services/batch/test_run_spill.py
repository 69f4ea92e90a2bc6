"""`weir run --memory`: the same results as without a budget, late ones marked, and what is said of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.services.four_streams import SOURCES, write_four_streams

PLAN = ("--plan", "(((A B) C) D)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_four_streams(tmp_path_factory.mktemp("spill"), 40)


def run(folder: Path, *options: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The results and the statistics of `weir run`."""
    command = [sys.executable, "-m", "services.cli", "run", "q.sql", "--stats", "s.json", *PLAN, *SOURCES, *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()], json.loads((folder / "s.json").read_bytes())


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(json.dumps({key: value for key, value in row.items() if key != "_phase"}) for row in rows)


def test_a_budget_gives_the_same_results(folder: Path) -> None:
    expected, plain = run(folder)
    assert plain["spill"]["spills"] == 0
    for strategy in ("bottom-up", "global-output-penalty"):
        found, stats = run(folder, "--memory", "100KiB", "--spill", strategy)
        assert counted(found) == counted(expected), strategy
        while_running = [row["_ts"] for row in found if "_phase" not in row]
        assert while_running == sorted(while_running)
        late = [row for row in found if "_phase" in row]
        assert {row["_phase"] for row in late} == {"cleanup"}
        spill = stats["spill"]
        assert spill["strategy"] == strategy
        assert spill["spills"] > 0
        assert spill["spilled_tuples"] > 0
        assert spill["spilled_bytes"] > 0
        assert spill["cleanup_results"] == len(late) > 0
        assert spill["cleanup_seconds"] > 0
        assert spill["owed"] == 0
        assert stats["results"] == len(found)


@pytest.mark.deep
def test_a_plan_change_with_spilled_groups(folder: Path) -> None:
    expected, _ = run(folder)
    change = "1970-01-01T00:00:05Z:((A B) (C D)):jisc"
    found, stats = run(folder, "--memory", "100KiB", "--spill-dir", "spilled", "--migrate", change)
    assert counted(found) == counted(expected)
    assert stats["plan"] == "((A B) (C D))"
    assert stats["migrations"][0]["strategy"] == "moving-state"
    assert list((folder / "spilled").iterdir()) == []


@pytest.mark.deep
def test_the_spill_folder_is_left_as_empty_as_it_was(folder: Path) -> None:
    """A run left RocksDB's files, LOCK and LOG in the folder of --spill-dir."""
    spilled = folder / "shared"
    run(folder, "--memory", "100KiB", "--spill-dir", "shared")
    assert list(spilled.iterdir()) == []
    run(folder, "--memory", "100KiB", "--spill-dir", "shared", "--cleanup", "none")
    owing = {path.name for path in spilled.iterdir()}
    assert owing == {"weir-spill", "debt.json", "blocks"}, "the backlog stays"
    cleanup = [sys.executable, "-m", "services.cli", "cleanup", "shared", "--out", "rest.jsonl"]
    subprocess.run(cleanup, cwd=folder, check=True, capture_output=True)
    (spilled / "blocks" / "mine").write_text("keep")
    (spilled / "mine").write_text("keep")
    run(folder, "--memory", "100KiB", "--spill-dir", "shared")
    found = sorted(str(path.relative_to(spilled)) for path in spilled.rglob("*"))
    assert found == ["blocks", "blocks/mine", "mine"], "files of others stay"


@pytest.mark.parametrize(("size", "hinted"), [("102400", True), ("100KiB", False)])
def test_a_budget_that_may_lack_its_unit_is_said(size: str, hinted: bool, folder: Path) -> None:
    """`--memory 64` for 64MiB was taken as 64 bytes without a word."""
    command = [sys.executable, "-m", "services.cli", "run", "q.sql", *PLAN, *SOURCES, "--out", "hint.jsonl"]
    done = subprocess.run([*command, "--memory", size], cwd=folder, capture_output=True, check=True, text=True)
    hint = "weir: --memory 102400 is 102400 bytes; is its unit missing, as in 102400MiB?\n"
    assert done.stderr == hint * hinted


def test_a_budget_takes_its_memory_from_malloc(folder: Path) -> None:
    """Arrow's own pool would keep, beside the budget, what was read. It is chosen when Arrow is imported, so before."""
    said = "from services.cli import main; import atexit; atexit.register(lambda: print(__import__('pyarrow')"
    program = f"{said}.default_memory_pool().backend_name)); main()"
    command = [sys.executable, "-c", program, "run", "q.sql", *PLAN, *SOURCES, "--out", "pool.jsonl"]
    environment = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    done = subprocess.run(
        [*command, "--memory", "1MiB"], cwd=folder, env=environment, capture_output=True, check=True, text=True
    )
    assert done.stdout == "system\n"


HELD = """
import atexit, sys
from operators.engine.engine import Engine
from operators.spill.cleanup import by_join
from services.cli import main

by_join.MERGED_TUPLES = 100
taken, cleaned = [], Engine.cleaned

def counted(self):
    found = cleaned(self)
    taken.append(sum(map(len, found)))
    return found

Engine.cleaned = counted
atexit.register(lambda: print(max(taken), sum(taken), file=sys.stderr))
main()
"""
"""A run that says how many late results it has taken at once at most, and in all."""


@pytest.mark.deep
def test_what_is_owed_at_the_end_is_written_between_merges(folder: Path) -> None:
    """All of it was held: 1 GiB for 21 million results beside a budget of 24 MiB. Without windows none was due."""
    text = (folder / "q.sql").read_text().replace("WINDOW RANGE 2 SECONDS", "WINDOW UNBOUNDED")
    (folder / "unbounded.sql").write_text(text)
    command = [sys.executable, "-c", HELD, "run", "unbounded.sql", *PLAN, *SOURCES, "--memory", "100KiB"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True)
    most, whole = map(int, done.stderr.split()[-2:])
    assert whole == sum(b'"_phase"' in line for line in done.stdout.splitlines())
    assert 0 < most < 0.5 * whole
