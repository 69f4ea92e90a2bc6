"""A distributed operator with silent sources follows the tasks that wait for it, without Kafka."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schemas.messages.control import Awaited
from services.control.feedback_log import FeedbackLog, Inbox
from services.placement.distributed import Part
from services.task import silence
from services.task.block_lane import BlockLane
from services.task.lane import InputLane
from services.task.program import TaskEngine
from services.task.silence import Silence

ENGINE = cast(TaskEngine, None)


class Source(InputLane):
    """A partition of a source."""

    def __init__(self, reached: int, *, idle: bool) -> None:
        self.reached = reached
        self.idle = idle

    def watermark(self, engine: TaskEngine) -> int:
        return self.reached


class Edge(BlockLane):
    """A partition of an internal topic."""

    def __init__(self, reached: int) -> None:
        self.reached = reached
        self.idle = False

    def watermark(self, engine: TaskEngine) -> int:
        return self.reached


class Link:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int, int]] = []
        self.topics: set[str] = set()
        self.inbox: Inbox = queue.SimpleQueue()

    def open(self, topics: set[str]) -> Inbox:
        self.topics = topics
        return self.inbox

    def send(self, message: Awaited) -> None:
        self.sent.append((message.topic, message.partition, message.until))


def make(lanes: dict[tuple[str, int], Any], partitions: int = 2) -> tuple[Silence, Link]:
    """A task that writes to so many partitions of topic `out`."""
    edges = [SimpleNamespace(topic="out", partitions=partitions, forward=False)]
    part = cast(Part, SimpleNamespace(operator=SimpleNamespace(outputs=edges), share=0))
    link = Link()
    return Silence(part, lanes, cast(FeedbackLog, link)), link


def awaited(link: Link, partition: int, upto: int, topic: str = "out") -> None:
    link.inbox.put(Awaited(topic=topic, partition=partition, until=upto))


def test_a_silent_task_goes_as_far_as_all_its_readers_can() -> None:
    source = Source(10, idle=True)
    task, link = make({("s", 0): source})
    assert link.topics == {"out"}
    awaited(link, 0, 50)
    assert task.watermark(10) == 10, "the reader of the other partition does not wait for it"
    awaited(link, 1, 40)
    awaited(link, 1, 30)
    awaited(link, 7, 5)
    assert task.watermark(10) == 40
    assert task.watermark(60) == 60
    source.idle = False
    assert task.watermark(10) == 10


def test_a_task_that_waits_for_one_input_alone_tells_its_writers() -> None:
    task, link = make({("e", 3): Edge(5), ("s", 0): Source(20, idle=False), ("s", 1): Source(1, idle=True)})
    task.tell(ENGINE, 0.0)
    assert link.sent == [("e", 3, 20)]
    task.tell(ENGINE, silence.TELL_S)
    assert link.sent == [("e", 3, 20)], "once"
    task.tell(ENGINE, silence.REPEAT_S)
    assert link.sent == [("e", 3, 20)] * 2, "and again, for a writer that has only begun to listen"


@pytest.mark.parametrize("known", [False, True])
def test_what_is_awaited_is_passed_on(known: bool) -> None:
    """A task whose own sources are silent, too, passes on what its readers await."""
    task, link = make({("e", 0): Edge(5), ("s", 0): Source(1, idle=True)}, partitions=1)
    if known:
        awaited(link, 0, 90)
    assert task.watermark(5) == 5
    task.tell(ENGINE, 0.0)
    assert link.sent == ([("e", 0, 90)] if known else [])


def test_a_task_that_is_not_waited_for_is_told_nothing() -> None:
    task, link = make({("e", 0): Edge(30), ("f", 0): Edge(30)})
    task.tell(ENGINE, 0.0)
    assert link.sent == []
