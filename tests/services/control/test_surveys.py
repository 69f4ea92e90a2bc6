"""What tasks tell the one that decides about the data: published when it is new, and again for a new leader."""

from __future__ import annotations

from typing import cast

import pytest

from operators.engine.engine import Engine
from operators.plan.plan import parse_plan
from schemas.messages.control import Measured, encode_control
from services.control import surveys
from services.control.barrier import Change, View
from services.control.control_log import ControlLog
from services.control.surveys import REPEAT_S, SurveyLog, Surveyor, read_survey
from services.process.security import KafkaClients
from tests.broker_fixture import Topics
from tests.operators.autopilot.test_autopilot import events, star
from tests.worker_harness import wait_for

FEW_B = {"B": 64_000, "C": 4000, "D": 40}


@pytest.fixture(autouse=True)
def each_batch_is_worth_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """How soon a survey looks again does not depend on how fast the machine is."""
    monkeypatch.setattr("operators.autopilot.survey.LOOK_AFTER_S", 0.0)


class Control:
    """Keeps what is published."""

    def __init__(self) -> None:
        self.messages: list[Measured] = []

    def publish(self, topic: str, key: str, message: Measured) -> None:
        assert topic == "statistics"
        assert key == str(message.task)
        self.messages.append(message)


def surveyor(engine: Engine, control: Control, task: int = 1) -> Surveyor:
    return Surveyor(engine, task, cast(ControlLog, control), "statistics")


def feed(engine: Engine, found: Surveyor, number: int) -> None:
    for tenth in range(1, 11):
        for name, batch in events(number, FEW_B).items():
            engine.push(name, 0, batch.slice((tenth - 1) * 200, tenth * 200))
        engine.advance()
        found.observe()


def log_of(task: int = 0) -> SurveyLog:
    """One that reads nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(surveys, "LogFollower", lambda *given, **more: None)
        return SurveyLog(KafkaClients("localhost:1"), "statistics", star().query, task, 3)


def test_it_publishes_what_is_new_and_repeats_it() -> None:
    control, engine = Control(), star()
    task = surveyor(engine, control)
    view = View()
    task.look(view, 0.0)
    assert not control.messages
    for number in range(5):
        feed(engine, task, number)
    task.look(view, 1.0)
    task.look(view, 1.1)
    assert [message.task for message in control.messages] == [1]
    task.look(view, 1.0 + REPEAT_S)
    assert control.messages[0] == control.messages[1]
    change = Change(1, "m", str(engine.plan), "jisc", 0, 2, "work")
    task.look(View(changes=(change,)), 1.2 + REPEAT_S)
    for number in range(5, 10):
        feed(engine, task, number)
    task.look(view, 1.3 + REPEAT_S)
    assert len(control.messages) == 3
    assert control.messages[2] != control.messages[1]


def test_the_newest_of_each_task_is_kept() -> None:
    control, log = Control(), log_of()
    for task in (2, 1):
        engine = star()
        found = surveyor(engine, control, task)
        for number in range(5):
            feed(engine, found, number)
        found.look(View(), 0.0)
    second, first = control.messages
    log.add(second)
    log.add(first)
    before = log.found()
    assert len(before) == 2
    log.add(Measured(query=first.query, task=1, survey=first.survey))
    assert [a is b for a, b in zip(before, log.found(), strict=True)] == [True, True]
    log.add(Measured(query=first.query, task=1, survey={**first.survey, "best": "(((A D) C) B)"}))
    assert [str(one.best) for one in log.found()] == ["(((A D) C) B)", str(before[1].best)]
    for survey in ({}, {**first.survey, "best": "((A"}, {**first.survey, "evidence": {}}):
        log.add(Measured(query=first.query, task=1, survey=survey))
    log.add(Measured(query="another", task=1, survey=first.survey))
    assert str(log.found()[0].best) == "(((A D) C) B)"
    assert read_survey(Measured(query=first.query, task=1, survey={}), star().query) is None


@pytest.mark.kafka
def test_surveys_arrive(topics: Topics) -> None:
    control, engine = Control(), star()
    clients, topic = KafkaClients(topics.bootstrap), topics("statistics")
    found = surveyor(engine, control)
    for number in range(5):
        feed(engine, found, number)
    found.look(View(), 0.0)
    log = SurveyLog(clients, topic, engine.query, 0, 2).start()
    own = Measured(query=engine.query.name, task=0, survey=control.messages[0].survey)
    writer = ControlLog(clients, topics("control"), "test").start()
    try:

        def arrived() -> bool:
            for message in (own, control.messages[0]):
                writer.publish(topic, "1", message)
            return bool(log.found())

        wait_for(arrived, "a survey")
        assert len(log.found()) == 1
        assert str(log.found()[0].best) == str(parse_plan(control.messages[0].survey["best"], engine.query))
        assert encode_control(own)
    finally:
        log.close()
        writer.close()
