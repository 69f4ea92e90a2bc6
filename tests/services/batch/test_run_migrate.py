"""`weir run --migrate`: the same bytes as without, and what the statistics say of the migrations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from operators.migration.strategies import STRATEGIES
from tests.services.four_streams import SOURCES, write_four_streams


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_four_streams(tmp_path_factory.mktemp("migrate"), 20)


def run(folder: Path, *options: str) -> tuple[bytes, dict[str, object]]:
    """The results and the statistics of `weir run`."""
    command = [sys.executable, "-m", "services.cli", "run", "q.sql", "--stats", "s.json", "--plan", "(((A B) C) D)"]
    done = subprocess.run([*command, *SOURCES, *options], cwd=folder, capture_output=True, check=True)
    return done.stdout, json.loads((folder / "s.json").read_bytes())


@pytest.mark.deep
def test_every_strategy_gives_the_same_bytes(folder: Path) -> None:
    expected, plain = run(folder)
    assert expected.count(b"\n") > 1000
    assert plain["migrations"] == []
    for strategy in STRATEGIES:
        found, stats = run(folder, f"--migrate=1970-01-01T00:00:04Z:(A (B (C D))):{strategy}")
        assert found == expected, strategy
        assert stats["plan"] == "(A (B (C D)))"
        assert isinstance(stats["migrations"], list)
        (migration,) = stats["migrations"]
        assert migration["strategy"] == strategy
        assert (migration["from_plan"], migration["to_plan"]) == ("(((A B) C) D)", "(A (B (C D)))")
        assert migration["cut"] == migration["began_at"] == 4000
        assert 4000 <= migration["finished_at"] <= 7000, strategy
        assert 0 < migration["longest_silence_s"] < 60
        assert (migration["completed_keys"] > 0) == (strategy == "jisc")
        assert migration["peak_extra_tuples"] > 0 or strategy == "gms"


def test_lazy_migrations_overlap(folder: Path) -> None:
    expected, _ = run(folder)
    plans = ["(A (B (C D)))", "((A B) (C D))", "(((D C) B) A)"]
    found, stats = run(folder, *(f"--migrate={4000 + 100 * n}:{plan}:jisc" for n, plan in enumerate(plans)))
    assert found == expected
    assert isinstance(stats["migrations"], list)
    assert [m["from_plan"] for m in stats["migrations"]] == ["(((A B) C) D)", *plans[:-1]]


@pytest.mark.deep
def test_a_cut_that_has_passed_waits_for_nothing(folder: Path) -> None:
    """The plan is changed at once where the cut lies before the first tuple."""
    expected, _ = run(folder)
    found, stats = run(folder, "--migrate=0:(A (B (C D))):moving-state")
    assert found == expected
    assert stats["plan"] == "(A (B (C D)))"


@pytest.mark.deep
def test_a_change_that_changes_nothing_is_said(folder: Path) -> None:
    """One to the plan that runs already, and one at a time that no tuple has reached, were passed over in silence."""
    expected, _ = run(folder)
    command = [sys.executable, "-m", "services.cli", "run", "q.sql", "--stats", "s.json", "--plan", "(((A B) C) D)"]
    command += [*SOURCES, "--migrate=4000:(((A B) C) D):jisc", "--migrate=5000:(A (B (C D))):jisc"]
    command += ["--migrate=2030-01-01:((A B) (C D)):jisc"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True, text=True)
    assert done.stdout.encode() == expected
    notes = [
        "the change to plan (((A B) C) D) at 1970-01-01T00:00:04Z changed nothing: that plan was running already",
        "the change to plan ((A B) (C D)) at 2030-01-01T00:00:00Z never came: the last tuple is of "
        "1970-01-01T00:00:09.980Z",
    ]
    assert done.stderr.splitlines() == [f"weir: --migrate: {note}" for note in notes]
    migrations = json.loads((folder / "s.json").read_bytes())["migrations"]
    assert [migration["note"] for migration in migrations] == [notes[0], None, notes[1]]


def test_auto_says_why_and_what_came_of_it(folder: Path) -> None:
    expected, _ = run(folder)
    command = [sys.executable, "-m", "services.cli", "run", "q.sql", "--stats", "s.json", "--plan", "(((A B) C) D)"]
    command += [f"--source={name}={name}.jsonl" for name in "abcd"]
    command += ["--migrate=4000:(A (B (C D))):auto", "--prefer", "memory", "-v"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True)
    assert done.stdout == expected
    (migration,) = json.loads((folder / "s.json").read_bytes())["migrations"]
    chosen = migration["strategy"]
    assert (migration["asked"], chosen in STRATEGIES) == ("auto", True)
    assert {prediction["strategy"] for prediction in migration["considered"]} == set(STRATEGIES)
    assert migration["predicted"] == next(p for p in migration["considered"] if p["strategy"] == chosen)
    said = done.stderr.decode().splitlines()
    assert f"weir: (((A B) C) D) -> (A (B (C D))) at 4000 by {chosen}" in said
    assert f"weir:   {chosen}: {migration['reason']}" in said
    assert said[-2].startswith("weir:   predicted ")
    assert said[-1].startswith("weir:   measured  ")
