"""Opening a task on a real broker, where what it is built of fails."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import BrokerError
from schemas.language.program import parse_program
from services.control.control_log import ControlLog
from services.control.task_statistics import Publisher
from services.kafka.topics import OutputTopics, TopicAdmin
from services.placement.tasks import lay_out
from services.process.fingerprint import fingerprint
from services.process.metrics import WorkerMetrics
from services.process.security import KafkaClients
from services.process.settings import Guarantee, WorkerSettings
from services.process.tracing import Traces
from services.task.spec import TaskSpec, streams_by_topic
from services.worker import query_tasks
from services.worker.query_tasks import QueryTasks
from services.worker.task_opener import ActivePlan, TaskOpener
from tests.broker_fixture import Topics

pytestmark = pytest.mark.kafka


def threads() -> set[str]:
    """The names of all threads."""
    return {thread.name for thread in threading.enumerate()}


def test_a_task_that_cannot_be_built_leaves_nothing_behind(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread and the consumer that read what other tasks measure ran on, once more with each attempt."""
    streams = "".join(
        f"CREATE STREAM {name} (k BIGINT, at TIMESTAMP) WITH (topic = '{topics(name)}', timestamp = 'at'); "
        for name in "abc"
    )
    (query,) = parse_program(
        f"{streams} INSERT INTO 'out' SELECT A.k FROM a A, b B, c C WINDOW RANGE 1 SECOND WHERE A.k = B.k AND B.k = C.k"
    ).queries
    clients, group = KafkaClients(topics.bootstrap), topics("group")
    admin = TopicAdmin(clients)
    names = admin.control(group, 1)
    admin.decisions(group, 1)
    settings = WorkerSettings(clients, group, guarantee=Guarantee.AT_LEAST_ONCE, adapt="on")
    outputs = OutputTopics("out", "out.late", "out.dead", {}, {})
    spec = TaskSpec(query, None, streams_by_topic(query.streams()), fingerprint(query), "c", outputs, settings)
    layout = lay_out(query, dict.fromkeys(spec.streams, 1))
    running: set[str] = set()

    def failing(*given: Any, **more: Any) -> None:
        running.update(threads())
        raise BrokerError("not now")

    monkeypatch.setattr(query_tasks, "TaskMigrations", failing)
    control = ControlLog(clients, names.control, "test").start()
    try:
        kind = QueryTasks(spec, 2, control, Publisher(control, names, query.name, 2, "test"))
        with ThreadPoolExecutor(1) as executor:
            opener = TaskOpener(
                ActivePlan(0, group, layout, spec),
                kind,
                control,
                admin,
                WorkerMetrics(query.name),
                None,
                tmp_path,
                executor,
                lambda offsets: True,
                False,
                Traces(query.name),
            )
            with pytest.raises(BrokerError, match="not now"):
                opener(0, threading.Event(), lambda task, outcome: None, lambda: None)
    finally:
        control.close()
    assert "surveys" in running
    assert "surveys" not in threads()
