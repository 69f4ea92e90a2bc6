"""What the log says of memory that cannot be spilled."""

from __future__ import annotations

import logging

import pytest

from operators.data.statistics import SpillStatistics
from services.spill.budget import FixedMemoryLog


def test_most_of_the_budget_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    log = FixedMemoryLog()
    for fixed, lines in ((0, 0), (50, 0), (51, 1), (80, 1), (40, 1), (90, 1)):
        log.look(SpillStatistics("bottom-up", 100, used_bytes=90, fixed_bytes=fixed))
        said = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(said) == lines, fixed
    assert "cannot be spilled; give more with --memory" in said[0].getMessage()
