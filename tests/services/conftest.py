"""Fixtures of the tests of services."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker_harness import Workers


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Starts workers and what belongs to them; kills those that a test leaves behind."""
    started = Workers(tmp_path)
    yield started
    started.end()
