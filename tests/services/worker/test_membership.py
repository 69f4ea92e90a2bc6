"""A worker that its group keeps waiting joins anew, and a worker without tasks stays a member."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path

import pytest

from schemas.errors import BrokerError
from services.worker import membership
from services.worker.membership import Membership
from tests.broker_fixture import Topics
from tests.services.worker.test_worker_faults import CLOSING, PLAIN, send
from tests.worker_harness import Case, Feed, Reader, WorkerProcess, Workers, canonical, wait_for

PATIENCE_S = 0.3
STEP_S = 0.02

WAITS_FOR_EVER = """
import asyncio, sys
from aiokafka.consumer.consumer import AIOKafkaConsumer
from aiokafka.consumer.group_coordinator import CoordinatorGroupRebalance, GroupCoordinator
from services.cli import main
from services.worker import membership
from services.worker.task_manager import TaskManager

membership.PATIENCE_S = 8.0
call, calls = {owner}.{name}, 0

async def waits(self, *given):
    global calls
    calls += 1
    if calls == {which}:
        await asyncio.get_running_loop().create_future()
    return await call(self, *given)

{owner}.{name} = waits
sys.argv[0] = "weir"
main()
"""
"""`weir`, in which one call never returns."""

QUICK_CLOCK = """
import sys
from aiokafka.consumer.subscription_state import SubscriptionState
from services.cli import main

idle = SubscriptionState.fetcher_idle_time.fget
SubscriptionState.fetcher_idle_time = property(lambda self: 1_000 * idle(self))
sys.argv[0] = "weir"
main()
"""
"""`weir`, whose consumer seems to have read nothing for a thousand times as long as in truth."""

ANEW = "the consumer group does not answer, joining anew"


async def lost_after(member: Membership, seconds: float, *, assigned: bool = False, moves: bool = False) -> bool:
    """Whether a worker is lost within some time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if member.is_lost(assigned, time.monotonic() if moves else ("member", 1)):
            return True
        await asyncio.sleep(STEP_S)
    return False


@pytest.mark.parametrize("problem", [None, BrokerError("no broker")], ids=["Kafka answers", "Kafka does not"])
def test_a_worker_is_lost_that_waits_while_kafka_answers(
    problem: BrokerError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "PATIENCE_S", PATIENCE_S)

    async def judge() -> None:
        member = Membership(lambda: problem)
        assert not await lost_after(member, 2 * PATIENCE_S, assigned=True)
        assert not await lost_after(member, 2 * PATIENCE_S, moves=True), "rebalances make progress"
        assert not await lost_after(member, PATIENCE_S / 2)
        assert not await lost_after(member, STEP_S, assigned=True)
        assert not await lost_after(member, PATIENCE_S / 2), "it has been assigned since"
        assert await lost_after(member, 4 * PATIENCE_S) is (problem is None)

    asyncio.run(judge())


def test_a_process_that_stood_still_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(membership, "ABSENCE_S", PATIENCE_S / 2)

    async def judge() -> None:
        member = Membership(lambda: None)
        for _ in range(3):
            assert not await lost_after(member, PATIENCE_S / 2)
            time.sleep(PATIENCE_S)  # blocks the loop, as SIGSTOP does

    asyncio.run(judge())


@pytest.fixture
def case(topics: Topics, tmp_path: Path) -> Case:
    return Case.make(topics, tmp_path, PLAIN)


def changed(program: str) -> tuple[str, ...]:
    """A prefix that makes the harness start a changed `weir`: the rest of its command becomes arguments."""
    begin = "import sys; del sys.argv[1:4]\n"  # the interpreter, -m, services.cli
    return (sys.executable, "-c", begin + program)


def check_results(case: Case, *alive: WorkerProcess) -> None:
    """All tuples join, each once."""
    feed = Feed(case)
    send(feed, random.Random(1), 0, 50)
    feed.finish(CLOSING)
    expected = case.expected()
    reader = Reader(case.bootstrap, case.sink)
    reader.wait_for_count(expected.total(), lambda: [worker.alive() for worker in alive])
    assert canonical(reader.rows()) == expected


@pytest.mark.deep
@pytest.mark.kafka
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("GroupCoordinator", "ensure_coordinator_known"),
        ("AIOKafkaConsumer", "start"),
        ("CoordinatorGroupRebalance", "perform_group_join"),
        ("TaskManager", "assigned"),
    ],
)
def test_a_join_that_never_ends_is_begun_anew(case: Case, workers: Workers, owner: str, name: str) -> None:
    """A worker stayed "starting". Found by torture."""
    worker = workers.start(case, prefix=changed(WAITS_FOR_EVER.format(owner=owner, name=name, which=1)))
    worker.wait_running()
    assert ANEW in worker.text()
    check_results(case, worker)
    assert worker.stop() == 0
    assert "Traceback" not in worker.text()


@pytest.mark.deep
@pytest.mark.kafka
def test_a_rebalance_that_never_ends_is_left(case: Case, workers: Workers) -> None:
    """The worker has a task, and the group excludes it for its silence."""
    program = WAITS_FOR_EVER.format(owner="CoordinatorGroupRebalance", name="perform_group_join", which=2)
    worker = workers.start(case, prefix=changed(program)).wait_running()
    other = workers.start(case)
    wait_for(lambda: ANEW in worker.text(), lambda: worker.with_log("it joins anew"))
    wait_for(lambda: worker.running_tasks() | other.running_tasks() == {0}, lambda: other.with_log("one has the task"))
    check_results(case, worker, other)
    assert worker.stop() == 0
    assert other.stop() == 0


@pytest.mark.deep
@pytest.mark.kafka
def test_a_worker_without_tasks_remains_ready_to_take_over(case: Case, workers: Workers) -> None:
    """It left the group after ten minutes, since it had read nothing, and never came back."""
    working = workers.start(case, "--session-timeout", "6s").wait_running()
    ready = workers.start(case, "--session-timeout", "6s", prefix=changed(QUICK_CLOCK))
    wait_for(lambda: ready.health().get("status") == "ok", lambda: ready.with_log("it is a member"))
    time.sleep(3.0)  # fifty minutes
    working.kill()
    ready.wait_running()
    check_results(case, ready)
    assert ready.stop() == 0
