"""Fixtures of the fault tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker_fixture import SessionBroker, Topics
from tests.faults.trial import Trial
from tests.faults.workload import Workload

MakeTrial = Callable[..., Trial]


@pytest.fixture
def make_trial(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeTrial]:
    """Makes trials: on the session's broker, or with `topics=` on another broker. Kills their workers at the end."""
    made: list[Trial] = []

    def make(workload: Workload, topics: Topics | None = None, **more: Any) -> Trial:
        if topics is None:
            broker: SessionBroker = request.getfixturevalue("broker")
            topics = Topics(broker.bootstrap)
        folder = tmp_path / f"trial-{len(made)}"
        folder.mkdir()
        trial = Trial(topics, folder, workload, **more)
        made.append(trial)
        return trial

    yield make
    for trial in made:
        trial.close()


@pytest.fixture
def fault_seed() -> int:
    """Seed of the random workloads and kills: WEIR_FAULT_SEED, or the default. Shown when a test fails."""
    seed = int(os.environ.get("WEIR_FAULT_SEED", "20260117"))
    print(f"WEIR_FAULT_SEED={seed}")
    return seed
