"""Fixtures of the tests of services."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.secure_broker import SecureBroker, secure_broker
from tests.worker_harness import Workers


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Starts workers and what belongs to them; kills those that a test leaves behind."""
    started = Workers(tmp_path)
    yield started
    started.end()


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """A broker that asks who is there, shared by the session's tests."""
    with secure_broker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker
