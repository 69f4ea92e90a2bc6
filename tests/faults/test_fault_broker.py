"""The broker goes away: stopped and killed in mid-run, not there yet, asking for a password."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services import broker as local_broker
from services.broker_settings import SaslUser
from tests.broker_fixture import RestartableBroker, Topics
from tests.faults.conftest import MakeTrial
from tests.faults.trial import Trial, no_traceback, problems, said_once
from tests.faults.workload import workload

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("end", [RestartableBroker.stop, RestartableBroker.kill], ids=["stopped", "killed"])
def test_broker_restarted_in_mid_run(
    make_trial: MakeTrial,
    restartable_broker: RestartableBroker,
    fault_seed: int,
    end: Callable[[RestartableBroker], None],
) -> None:
    """The same process waits, says so in one line, and goes on when the broker is back.

    librdkafka's rebootstrapping left the worker's producer deadlocked for ever; its admin client kept asking
    with a leader epoch of before the restart.
    """
    trial = make_trial(workload(fault_seed, 700, 2), restartable_broker.topics)
    worker = trial.start()
    trial.wait(lambda: trial.taken() >= 200, "some records are taken", worker, flow=0.4)
    trial.send(0.6)
    end(restartable_broker)
    trial.wait(lambda: "no connection to Kafka" in worker.text(), "the worker notices", worker)
    restartable_broker.start()
    trial.finish(worker)
    said_once(worker, f"warning weir.worker: no connection to Kafka; .*brokers={trial.bootstrap}")
    said_once(worker, "info    weir.worker: connected to Kafka again")
    # Two of them where librdkafka's call does not return (`services.call_thread`).
    assert len(problems(worker)) <= 14, worker.said("a line for every attempt")
    no_traceback(worker)


def test_broker_that_comes_late(make_trial: MakeTrial, restartable_broker: RestartableBroker, fault_seed: int) -> None:
    """Started before its broker, a worker waits, says once for what, and begins when the broker answers."""
    trial = make_trial(workload(fault_seed, 300, 1), restartable_broker.topics)
    trial.send(0.5)
    restartable_broker.stop()
    worker = trial.start()
    trial.wait(lambda: "no answer from Kafka" in worker.text(), "the worker says what it waits for", worker)
    refused = trial.start("--no-wait", state="none")
    trial.wait(lambda: refused.process.poll() is not None, "--no-wait ends the worker")
    assert refused.process.returncode == 1
    assert re.fullmatch(r"weir: no answer from Kafka: .*refused", refused.text().strip()), refused.said("one line")
    restartable_broker.start()
    trial.finish(worker)
    said_once(worker, "warning .*no answer from Kafka: .*; waiting")
    no_traceback(worker)


SECRET = SaslUser("operator", "s3cret-0f-the-operator!")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[local_broker.Broker]:
    """A broker with a listener that asks for a password."""
    data_dir = tmp_path / "guarded-broker"
    try:
        yield local_broker.start(data_dir, 0, sasl=SECRET)
    finally:
        local_broker.stop(data_dir)


def as_user(trial: Trial, broker: local_broker.Broker, password: str) -> dict[str, str]:
    """Point a trial's workers at the guarded listener; the environment that identifies them."""
    assert broker.sasl_bootstrap is not None
    trial.case = dataclasses.replace(trial.case, bootstrap=broker.sasl_bootstrap)
    return {
        "WEIR_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "WEIR_KAFKA_SASL_MECHANISM": "PLAIN",
        "WEIR_KAFKA_SASL_USERNAME": SECRET.user,
        "WEIR_KAFKA_SASL_PASSWORD": password,
    }


def test_credentials_pass_through_and_are_never_shown(
    make_trial: MakeTrial, guarded: local_broker.Broker, fault_seed: int
) -> None:
    """SASL/PLAIN in both client libraries; neither a right nor a wrong password is in logs, pages or arguments."""
    trial = make_trial(workload(fault_seed, 300, 1), Topics(guarded.bootstrap))
    trial.send(0.5)
    worker = trial.start("--log-level", "debug", env=as_user(trial, guarded, SECRET.password))
    trial.finish(worker)
    no_traceback(worker)
    wrong = "wr0ng-guess-of-somebody"
    refused = trial.start("--no-wait", "--log-level", "debug", env=as_user(trial, guarded, wrong))
    trial.wait(lambda: refused.process.poll() is not None, "the wrong password is refused")
    assert refused.process.returncode == 1
    assert re.search("(?i)authenticat", refused.text()), refused.said("the reason")
    no_traceback(refused)
    for each, password in ((worker, SECRET.password), (refused, wrong)):
        assert password not in each.text()
        assert not any(password in str(argument) for argument in each.process.args)
