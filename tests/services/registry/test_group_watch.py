"""`GroupWatch` on a real broker: which queries a group is to run while one has neither a topic nor a schema."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schemas.errors import BrokerError, UsageError
from schemas.messages.control import RegisteredQuery
from services.broker.background import free_port
from services.kafka.log_consumer import LogBatch
from services.kafka.topics import OutputTopics
from services.registry import group_watch
from services.registry.group_registry import find_group
from services.registry.group_watch import GroupWatch, WantedQuery
from services.task.spec import GroupWork
from services.worker.group_tasks import GroupTasks
from tests.broker_fixture import Topics
from tests.group_workers import GroupTrial, select
from tests.worker_harness import wait_for

pytestmark = pytest.mark.kafka


@pytest.fixture
def trial(topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GroupTrial:
    """A group; its queries have five seconds to become ready."""
    monkeypatch.setattr(group_watch, "BEGIN_S", 5.0)
    return GroupTrial.make(topics, tmp_path)


def register(trial: GroupTrial, sink: str, options: str = "") -> None:
    trial.options = options
    trial.register({sink: select(random.Random(1))})


def unreachable() -> str:
    """The options of results whose registry is away."""
    return f"WITH (format = 'avro', registry = 'http://127.0.0.1:{free_port()}')"


@contextmanager
def watching(trial: GroupTrial) -> Iterator[GroupWatch]:
    entry = find_group(trial.clients, trial.name)
    assert entry is not None
    watch = GroupWatch(trial.clients, entry.query(), OutputTopics("", "late", "dead", {}, {}), 1, -1).start()
    try:
        yield watch
    finally:
        watch.close()


def shown(watch: GroupWatch) -> dict[str, bool]:
    """The queries to run, without the group's name, and whether they are ready."""
    return {one.message.name.rpartition("-")[2]: one.query is not None for one in watch.wanted or ()}


def test_a_query_without_a_schema_holds_no_other_up(trial: GroupTrial, caplog: pytest.LogCaptureFixture) -> None:
    """While the registry of one query was away, no query could be added or dropped, and a worker that began ended."""
    register(trial, "a")
    register(trial, "b", unreachable())
    register(trial, "c")
    with watching(trial) as watch:
        assert shown(watch) == {"a": True, "b": False, "c": True}
        first = watch.wanted
        trial.drop("a")
        register(trial, "d")
        wait_for(lambda: shown(watch) == {"b": False, "c": True, "d": True}, "the change")
        register(trial, "e", unreachable())
        wait_for(lambda: shown(watch) == {"b": False, "c": True, "d": True, "e": False}, "a second that waits")
        register(trial, "b")
        wait_for(lambda: shown(watch) == {"b": True, "c": True, "d": True, "e": False}, "it is ready")
        assert first is not None
        assert {one.message.id for one in first} & {one.message.id for one in watch.wanted or ()}
        trial.drop("e")
        wait_for(lambda: shown(watch) == {"b": True, "c": True, "d": True}, "one that waited is dropped")
    said = [record.args for record in caplog.records if "waits for its topic" in str(record.args)]
    assert len(said) == 2, "each says so once"


def test_a_group_of_which_no_query_is_ready_does_not_begin(trial: GroupTrial) -> None:
    register(trial, "a", unreachable())
    with pytest.raises(BrokerError, match=f"^query {trial.name}-a waits: the schema registry .* does not answer"):
        watching(trial).__enter__()


def test_a_task_that_is_opened_knows_what_its_former_worker_knew(trial: GroupTrial) -> None:
    """A worker that had not read yet of a query which its predecessor had begun ended it, and began it again when it
    had: the results in between were lost."""
    register(trial, "a")
    start: Any = SimpleNamespace(number=0, recovery=SimpleNamespace(source="fresh", cut=0), spill=None)
    reads, may_read = threading.Event(), threading.Event()
    with watching(trial) as watch, ThreadPoolExecutor(1) as opener:
        reader, none = watch._follower._reader, cast(Any, None)
        read = reader.read
        tasks = GroupTasks(none, GroupWork(watch, "members"), 1, none, none)

        def late(seconds: float) -> LogBatch:
            reads.set()
            assert may_read.wait(60)
            return read(seconds)

        reader.read = late  # type: ignore[method-assign]
        assert reads.wait(60)
        register(trial, "b")
        trial.drop("a")
        opened = opener.submit(tasks._starting_queries, start)
        with pytest.raises(TimeoutError):
            opened.result(1)
        may_read.set()
        assert [name.rpartition("-")[2] for name in opened.result(60).running] == ["b"]


def test_a_query_that_is_left_out_is_still_registered(trial: GroupTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that began while a proxy answered for the schema registry, with status 404, ended the query where it
    ran. The results until some worker began anew were lost."""
    prepare = GroupWatch._prepare

    def refused(watch: GroupWatch, message: RegisteredQuery) -> WantedQuery:
        if message.name.endswith("-b"):
            raise UsageError("the schema registry refuses it")
        return prepare(watch, message)

    monkeypatch.setattr(GroupWatch, "_prepare", refused)
    register(trial, "a")
    register(trial, "b")
    with watching(trial) as watch:
        assert shown(watch) == {"a": True, "b": False}
        trial.drop("b")
        wait_for(lambda: shown(watch) == {"a": True}, "the change")
