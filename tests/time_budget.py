"""A time budget for a test run: what does not begin within it is left out, and the run lists what that was.

`WEIR_TESTS_MINUTES=15 pytest ...` begins no test once 15 minutes have passed. Tests that run then go on to their end.
`.ci/run` gives `make test-deep` the time that is left.
"""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest

MINUTES = "WEIR_TESTS_MINUTES"
_UNTIL = "WEIR_TESTS_UNTIL"
"""Seconds since 1970. The first process sets it; the processes of xdist inherit it."""

REASON = "left out: the run's time was over"


def pytest_configure(config: pytest.Config) -> None:
    """Begin the budget."""
    if minutes := os.environ.get(MINUTES):
        os.environ.setdefault(_UNTIL, str(time.time() + 60 * float(minutes)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave the test out if the time is over."""
    until = os.environ.get(_UNTIL)
    if until is not None and time.time() > float(until):
        pytest.skip(REASON)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the files of which something was left out."""
    left_out = Counter(
        report.nodeid.partition("::")[0]
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and REASON in report.longrepr[2]
    )
    if left_out:
        terminalreporter.section("left out, since the run's time was over")
        for file, count in sorted(left_out.items()):
            terminalreporter.line(f"{file}: {count}")
