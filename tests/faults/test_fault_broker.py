"""Brokers that fail: stopped and killed in mid-run, not started yet, with passwords."""

from __future__ import annotations

import dataclasses
import random
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.broker import broker as local_broker
from services.broker.settings import SaslUser
from tests.broker_fixture import RestartableBroker, Topics
from tests.faults.conftest import MakeTrial
from tests.faults.trial import Trial, logged_once, no_traceback, problems
from tests.faults.workload import workload
from tests.transaction_tearing import OFFSETS_TOPIC, Outcome, TearingError, Torn, describe, tear, transactional_ids

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("end", [RestartableBroker.stop, RestartableBroker.kill], ids=["stopped", "killed"])
def test_broker_restarted_in_mid_run(
    make_trial: MakeTrial,
    restartable_broker: RestartableBroker,
    fault_seed: int,
    end: Callable[[RestartableBroker], None],
) -> None:
    """The same process waits, logs it in one line, and continues when the broker is back.

    librdkafka's rebootstrapping left the worker's producer deadlocked for ever; its admin client kept asking
    with a leader epoch from before the restart.
    """
    trial = make_trial(workload(fault_seed, 700, 2), restartable_broker.topics)
    worker = trial.start()
    trial.wait(lambda: trial.taken() >= 200, "some records are taken", worker, flow=0.4)
    trial.send(0.6)
    end(restartable_broker)
    trial.wait(lambda: "no connection to Kafka" in worker.text(), "the worker notices", worker)
    restartable_broker.start()
    trial.finish(worker)
    logged_once(worker, f"warning weir.worker: no connection to Kafka; .*brokers={trial.bootstrap}")
    logged_once(worker, "info    weir.worker: connected to Kafka again")
    # Two threads where librdkafka's call does not return (`services.kafka.call_thread`).
    assert len(problems(worker)) <= 14, worker.with_log("a line for every attempt")
    no_traceback(worker)


@pytest.mark.parametrize("pattern", ["as seen", "random"])
def test_broker_that_forgets_markers(
    make_trial: MakeTrial, restartable_broker: RestartableBroker, fault_seed: int, pattern: str
) -> None:
    """A worker dies within a transaction; Kafka considers it committed, but some parts are aborted, the others open.

    Kafka 4.3.1 does that when it is killed (KAFKA-20734). As seen, the offsets were aborted and the results stayed
    open. The next commit made them visible, together with the same results written again: 15 were doubled. The worker
    reported nothing.
    """
    draw = random.Random(fault_seed)

    def outcome(topic: str) -> Outcome:
        if pattern == "as seen":
            return "abort" if topic == OFFSETS_TOPIC else "hang"
        return draw.choice(("abort", "hang"))

    trial = make_trial(workload(fault_seed, 900, 2), restartable_broker.topics)
    worker = trial.start()
    for share in (0.3, 0.6, 0.9):
        trial.wait(worker.running_tasks, "the worker runs", worker)
        while True:
            trial.pause_within_transaction(worker, flow=share)
            found = (describe(trial.bootstrap, name) for name in transactional_ids(trial.bootstrap))
            torn = [
                Torn(each.transactional_id, {part: outcome(part[0]) for part in each.parts})
                for each in found
                if each.state == "Ongoing"
            ]
            try:
                tear(restartable_broker, torn)
                break
            except TearingError:  # Its records have not all been sent.
                worker.signal(signal.SIGCONT)
        worker.kill()
        worker = trial.start()
    trial.finish(worker)
    no_traceback(worker)


def test_broker_that_comes_late(make_trial: MakeTrial, restartable_broker: RestartableBroker, fault_seed: int) -> None:
    """A worker that is started before its broker waits, logs once for what, and starts when the broker answers."""
    trial = make_trial(workload(fault_seed, 300, 1), restartable_broker.topics)
    trial.send(0.5)
    restartable_broker.stop()
    worker = trial.start()
    trial.wait(lambda: "no answer from Kafka" in worker.text(), "the worker says what it waits for", worker)
    refused = trial.start("--no-wait", state="none")
    trial.wait(lambda: refused.process.poll() is not None, "--no-wait ends the worker")
    assert refused.process.returncode == 1
    said = refused.text().strip()
    assert re.fullmatch(r"weir: no answer from Kafka at \S+: .*refused", said), refused.with_log("one line")
    restartable_broker.start()
    trial.finish(worker)
    logged_once(worker, "warning .*no answer from Kafka at .*; waiting")
    no_traceback(worker)


SECRET = SaslUser("operator", "s3cret-0f-the-operator!")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[local_broker.Broker]:
    """A broker with a listener that requires a password."""
    data_dir = tmp_path / "guarded-broker"
    try:
        yield local_broker.start(data_dir, 0, sasl=SECRET)
    finally:
        local_broker.stop(data_dir)


def as_user(trial: Trial, broker: local_broker.Broker, password: str) -> dict[str, str]:
    """Point a trial's workers at the guarded listener; returns the environment with the credentials."""
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
    assert re.search("(?i)authenticat", refused.text()), refused.with_log("the reason")
    no_traceback(refused)
    for each, password in ((worker, SECRET.password), (refused, wrong)):
        assert password not in each.text()
        assert not any(password in str(argument) for argument in each.process.args)
