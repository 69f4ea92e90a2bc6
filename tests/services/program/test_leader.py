"""The leader of plan changes, with engines and a control log in memory: its requests, and what its successor knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import pytest

from operators.autopilot.adaptation import Adaptation, Effect
from operators.autopilot.autopilot import Mode
from operators.autopilot.rule import Account
from operators.data.statistics import EngineStatistics
from operators.engine.engine import Engine
from operators.plan.plan import parse_plan
from schemas.columns import Batch, Column
from schemas.errors import StateError
from schemas.messages.control import Answer, BarrierMessage, Cut, Decision, Done, Measured, Opened, Request, Withdraw
from schemas.query import Type
from services.control.barrier import Barrier, View
from services.control.control_log import ControlLog, PublishedMessage
from services.control.coordinator import QueryCoordination
from services.control.decisions import adaptation_of, history_of
from services.control.surveys import REPEAT_S, SurveyPublisher, read_survey
from services.process.fingerprint import fingerprint
from services.process.logs import get_log
from services.process.metrics import WorkerMetrics
from services.program.leader import Leader, next_id
from services.program.migrations import StartingPlan, TaskMigrations
from tests.hasty import always_another, hasty
from tests.services.program.test_task_migrations import OTHER, OWN, QUERY, THIRD


class Log:
    """A control log whose messages are read as soon as they are appended; beside it what is published."""

    def __init__(self) -> None:
        self.messages: list[BarrierMessage] = []
        self.decisions: dict[int, Decision] = {}
        self.measured: list[Measured] = []
        self.loses = 0
        self.loses_decisions = 0

    @property
    def view(self) -> View:
        barrier = Barrier()
        for message in self.messages:
            barrier.apply(message)
        return barrier.view()

    def append(self, *messages: BarrierMessage) -> None:
        for message in messages:
            if self.loses:
                self.loses -= 1
            else:
                self.messages.append(message)

    def publish(
        self, topic: str, key: str, message: PublishedMessage, written: Callable[[], None] = lambda: None
    ) -> None:
        if isinstance(message, Measured):
            assert (topic, key) == ("statistics", "0")
            self.measured.append(message)
            return
        assert topic == "decisions"
        assert isinstance(message, Decision)
        assert key == str(message.number)
        if self.loses_decisions:
            self.loses_decisions -= 1
            return
        self.decisions[message.number] = message
        written()

    def requests(self) -> list[Request]:
        return [message for message in self.messages if isinstance(message, Request)]


class Task:
    """An incarnation of task 0, which leads, with a tuple of each stream every 10 ms."""

    def __init__(self, log: Log, best: str, *, plan: str = OWN, mode: Mode = "on", until: int = 0) -> None:
        self.log = log
        self.best = parse_plan(best, QUERY)
        name = f"incarnation-{len(log.messages)}"
        log.append(Opened(task=0, incarnation=name))
        view, logger, metrics = log.view, get_log("test"), WorkerMetrics("out").of("0")
        version = len(view.changes)
        start = StartingPlan(version, parse_plan(view.changes[-1].plan if version else plan, QUERY))
        self.engine = Engine(QUERY, plan=start.plan)
        control = cast(ControlLog, log)
        self.leader = Leader(
            self.engine,
            QueryCoordination(QUERY, 1, logger),
            control,
            "decisions",
            mode=mode,
            limits=hasty(),
            history=history_of(log.decisions, QUERY, view, logger),
            surveys=None,
            publisher=SurveyPublisher(self.engine, 0, control, "statistics"),
            log=logger,
            metrics=metrics,
        )
        self.leader._autopilot._survey._always = True
        self.migrations = TaskMigrations(
            self.engine,
            start,
            task=0,
            tasks=1,
            incarnation=name,
            fingerprint=fingerprint(QUERY),
            committed_cut=until,
            control=log,
            view=view,
            log=logger,
            metrics=metrics,
            observer=self.leader,
        )
        self._pushed = 0
        if until:
            self._push(until)
            self.engine.advance(until)

    def _push(self, until: int) -> None:
        ts = np.arange(self._pushed + 10, until + 1, 10, dtype=np.int64)
        self._pushed = until
        for stream in "abc":
            columns = {"k": Column(Type.BIGINT, np.zeros(len(ts), np.int64)), "at": Column(Type.TIMESTAMP, ts)}
            self.engine.push(stream, 0, Batch(ts, columns))

    def epoch(self, until: int, now: float) -> None:
        """Run one epoch, in which another plan is found to be the best."""
        self._push(until)
        with always_another(lambda running: self.best):
            self.migrations.look(now, now)
            self.migrations.advanced(self.engine.advance(self.migrations.limit(until, now)), now)
            self.migrations.observe()

    def decide(self) -> None:
        """Run until a change has been decided and not asked for yet."""
        self.epoch(100, 0.1)
        assert self.leader.busy

    def run(self, begin: int, epochs: int) -> None:
        """Run epochs of 100 ms of event time, a tenth of a second apart."""
        for number in range(epochs):
            self.epoch(begin + 100 * (number + 1), (begin + 100 * (number + 1)) / 1000)


def decisions(log: Log) -> list[Adaptation]:
    return [adaptation_of(message) for message in log.decisions.values()]


def test_it_requests_coordinates_and_reports() -> None:
    log = Log()
    task = Task(log, OTHER)
    task.run(0, 20)
    assert str(task.engine.plan) == OTHER
    assert [(change.id, change.plan) for change in log.view.changes] == [("adapt-1", OTHER)]
    made = [one for one in decisions(log) if one.made]
    assert [(one.from_plan, one.to_plan, one.change) for one in made] == [(OWN, OTHER, "adapt-1")]
    assert log.decisions[1].first_plan == OWN
    assert log.decisions[1].account["spent"] > 0


def test_it_publishes_what_it_measures_at_the_pace_of_the_other_tasks() -> None:
    log = Log()
    task = Task(log, OWN)
    statistics, counted = task.engine.statistics, [0]

    def counting(*, links: bool = False) -> EngineStatistics:
        counted[0] += links
        return statistics(links=links)

    task.engine.statistics = counting  # type: ignore[method-assign]
    task.run(0, round(2 * REPEAT_S / 0.1) + 5)
    assert len(log.measured) == 3
    assert counted == [3]
    now = 100.0
    for later in (0.0, 0.9 * REPEAT_S, REPEAT_S):
        task.leader.look(log.view, now + later)
    assert len(log.measured) == 5
    assert counted == [4]
    assert log.measured[3] == log.measured[4]
    found = read_survey(log.measured[4], QUERY)
    assert found is not None
    assert found.statistics is not None
    assert found.statistics.links
    assert (log.measured[4].task, found.statistics.plan, str(found.best)) == (0, OWN, OWN)


def test_advice_requests_nothing() -> None:
    log = Log()
    Task(log, OTHER, mode="advise").run(0, 10)
    assert not log.requests()
    assert [one.made for one in decisions(log)] == [False]


def test_a_lost_request_is_sent_again_and_only_once_made() -> None:
    log = Log()
    task = Task(log, OTHER)
    task.decide()
    log.loses = 1
    task.epoch(300, 0.3)
    assert not log.requests()
    task.run(300, 30)
    assert len({request.id for request in log.requests()}) == 1
    assert len(log.view.changes) == 1


def test_no_change_is_requested_before_its_reason_is_written() -> None:
    log = Log()
    task = Task(log, OTHER)
    task.decide()
    log.loses_decisions = 1
    task.run(100, 9)
    assert not log.decisions
    assert not log.requests()
    task.run(1000, 20)
    assert [one.change for one in decisions(log) if one.made] == ["adapt-1"]
    assert [request.id for request in log.requests()] == ["adapt-1"]


@pytest.mark.parametrize("proposed", [False, True])
def test_a_successor_takes_up_the_request(proposed: bool) -> None:
    log = Log()
    former = Task(log, OTHER)
    former.decide()
    for _ in range(1 + proposed):
        former.leader.look(log.view, 0.2)
    assert len(log.requests()) == 1
    assert (log.view.open is not None) == proposed  # and the process ends
    successor = Task(log, OTHER, until=200)
    assert [one.made for one in successor.leader._autopilot.adaptations] == [True]
    successor.run(200, 20)
    assert [change.id for change in log.view.changes] == ["adapt-1"]
    assert [one.change for one in decisions(log) if one.made] == ["adapt-1"]


def test_a_decision_without_a_request_is_decided_anew() -> None:
    log = Log()
    former = Task(log, OTHER)
    former.decide()
    former.leader._publish(log.view, 0.2)  # and the process ends
    assert [one.made for one in decisions(log)] == [True]
    assert not log.requests()
    successor = Task(log, THIRD, until=200)
    successor.run(200, 20)
    assert [(change.id, change.plan) for change in log.view.changes] == [("adapt-1", THIRD)]
    assert [(one.to_plan, one.made) for one in decisions(log)] == [(THIRD, True)]


def test_of_two_leaders_only_the_first_request_counts() -> None:
    log = Log()
    zombie = Task(log, THIRD)
    zombie.decide()
    leader = Task(log, OTHER, until=200)
    leader.epoch(300, 0.3)
    assert leader.leader.busy
    zombie.migrations.look(0.35, 0.35)
    assert [request.plan for request in log.requests()] == [THIRD]
    leader.run(300, 20)
    assert [request.id for request in log.requests()][:1] == ["adapt-1"]
    assert log.view.changes[0].plan == THIRD
    own = next(one for one in decisions(log) if one.to_plan == OTHER)
    assert not own.made
    assert "decided otherwise" in own.reason
    assert len({change.id for change in log.view.changes}) == len(log.view.changes)
    assert str(leader.engine.plan) == log.view.changes[-1].plan


def test_what_the_tasks_refuse_was_not_made() -> None:
    log = Log()
    task = Task(log, OTHER)
    task.decide()
    log.append(
        Request(id="adapt-1", plan=OTHER, strategy="jisc", fingerprint=fingerprint(QUERY), asked_ms=0),
        Withdraw(id="adapt-1", reason="no time", by="task 3"),
    )
    task.migrations.look(0.3, 0.3)
    task.migrations.look(0.4, 0.4)
    first = decisions(log)[0]
    assert not first.made
    assert "no time" in first.reason
    task.run(200, 20)
    assert [change.id for change in log.view.changes] == ["adapt-1.2"]


def test_the_longest_silence_of_all_tasks_is_reported() -> None:
    log = Log()
    task = Task(log, OTHER)
    task.run(0, 20)
    found = task.leader._autopilot.decisions
    log.append(Done(id="adapt-1", task=1, version=1, longest_silence_s=0.5))
    found[1] = Adaptation(**{**_fields(found[1]), "measured": Effect(0.5, 0.1, 0.01)})
    task.leader.look(log.view, 9.0)
    assert decisions(log)[0].measured == Effect(0.5, 0.1, 0.5)


def _fields(one: Adaptation) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__slots__}


def test_ids_follow_from_the_log() -> None:
    log = Log()
    assert next_id(log.view) == "adapt-1"
    for id_ in ("adapt-1", "adapt-1.2"):
        log.append(
            Request(id=id_, plan=OTHER, strategy="jisc", fingerprint="f", asked_ms=0),
            Withdraw(id=id_, reason="no", by="me"),
        )
    assert next_id(log.view) == "adapt-1.3"


def test_a_decision_survives_its_message() -> None:
    one = Adaptation(
        1, True, OWN, OTHER, "jisc", "it pays", {"A": (2.0, 1.5), "A B": (0.25, 2.0)}, Effect(0.5, 1.0, 0.1), None, "x"
    )
    assert Adaptation.from_document(one.document()) == one
    message = Decision(query="q", number=1, adaptation={"at": 1}, account={}, first_plan=OWN)
    with pytest.raises(StateError, match="decision 1"):
        adaptation_of(message)
    assert one.evidence_lines() == [
        "A: 2/s, within a factor of 1.50",
        "A B: one of 4 combinations matches, within a factor of 2.00",
    ]


def test_damaged_decisions_are_passed_over() -> None:
    good = Adaptation(1, False, OWN, OTHER, "jisc", "no", {}, Effect(0.5, 1.0, 0.1))
    account = {"excess": 1.0, "work": 2.0, "saved": 3.0, "spent": 4.0}
    messages = {
        1: Decision(query="q", number=1, adaptation=good.document(), account=account, first_plan=OWN),
        2: Decision(query="q", number=2, adaptation={}, account=account, first_plan=OWN),
        3: Decision(query="q", number=3, adaptation=good.document(), account=account, first_plan="((A"),
    }
    found = history_of(messages, QUERY, View(), get_log("test"))
    assert found is not None
    assert list(found.decisions) == [1]
    assert found.account == Account(1.0, 2.0, 3.0, 4.0)
    assert history_of({}, QUERY, View(), get_log("test")) is None


def test_no_change_is_asked_for_while_another_is_open() -> None:
    log = Log()
    task = Task(log, OTHER)
    log.append(Request(id="by hand", plan=THIRD, strategy="jisc", fingerprint=fingerprint(QUERY), asked_ms=2**53))
    task.run(0, 3)
    assert [request.id for request in log.requests()] == ["by hand"]
    task.best = parse_plan(THIRD, QUERY)
    task.run(300, 10)
    assert [change.id for change in log.view.changes] == ["by hand"]


def test_messages_of_the_barrier_are_the_coordinators() -> None:
    log = Log()
    Task(log, OTHER).run(0, 20)
    kinds = [type(message) for message in log.messages]
    assert [kind for kind in kinds if kind in (Answer, Cut)] == [Answer, Cut]
