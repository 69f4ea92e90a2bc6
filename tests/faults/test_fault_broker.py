"""The broker goes away: stopped and killed in mid-run, not there yet, asking for a password."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.broker_fixture import RestartableBroker
from tests.faults.conftest import MakeTrial
from tests.faults.trial import no_traceback
from tests.faults.workload import workload

pytestmark = pytest.mark.kafka

SECRET = "s3cret-of-the-operator!"


@pytest.mark.parametrize("end", [RestartableBroker.stop, RestartableBroker.kill], ids=["stopped", "killed"])
def test_broker_restarted_in_mid_run(
    make_trial: MakeTrial,
    restartable_broker: RestartableBroker,
    fault_seed: int,
    end: Callable[[RestartableBroker], None],
) -> None:
    """The worker waits, says so, and goes on when the broker is back, in the same process."""
    trial = make_trial(workload(fault_seed, 700, 2), restartable_broker.topics)
    worker = trial.start()
    trial.wait(lambda: trial.taken() >= 200, "some records are taken", worker, flow=0.4)
    end(restartable_broker)
    restartable_broker.start()
    trial.finish(worker)
    no_traceback(worker)
