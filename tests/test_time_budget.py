"""A run that is out of time leaves tests out, and lists them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import time_budget

ROOT = Path(__file__).resolve().parents[1]
FILE = "tests/schemas/test_sizes.py"


def _run(minutes: str) -> str:
    environment = {**os.environ, time_budget.MINUTES: minutes}
    environment.pop("WEIR_TESTS_UNTIL", None)
    command = [sys.executable, "-m", "pytest", FILE, "-p", "no:cacheprovider", "--numprocesses", "1"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_what_does_not_begin_in_time_is_left_out_and_listed() -> None:
    shown = _run("0")
    assert "passed" not in shown
    assert f"{FILE}: " in shown


@pytest.mark.deep
def test_enough_time_leaves_nothing_out() -> None:
    shown = _run("60")
    assert "skipped" not in shown
    assert FILE not in shown
