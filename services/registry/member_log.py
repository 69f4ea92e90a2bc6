"""Reads the topic in which the tasks of a group record which queries they run; see `services.program.group_members`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from schemas.errors import StateError
from schemas.messages.control import MemberRecord, decode_control
from services.kafka.readback import read_to_end
from services.process.security import KafkaClients

BEGAN = ""
"""A task writes this name first, to record that it has begun to write."""


def read_members(clients: KafkaClients, topic: str, task: int | None = None) -> list[MemberRecord]:
    """The newest record of every query of a task, or of all tasks.

    Raises:
        BrokerError: Kafka does not answer.
        StateError: the topic holds something else.
    """
    found: dict[tuple[int, str], MemberRecord] = {}
    for member in _members(clients, topic, task, 0):
        if member.name == BEGAN:
            found = {key: known for key, known in found.items() if key[0] != member.task}
        found.pop((member.task, member.name), None)
        found[member.task, member.name] = member
    return list(found.values())


def newest_records(members: Iterable[MemberRecord]) -> list[MemberRecord]:
    """The newest of a task's records for each registration, since the task has begun; empty if it has not.

    Without transactions there may be earlier ones, of incarnations that ended before their first commit.
    """
    found: dict[str, MemberRecord] = {}
    has_begun = False
    for member in members:
        if member.name == BEGAN:
            has_begun = True
            found.clear()
        found.pop(member.id, None)
        found[member.id] = member
    return list(found.values()) if has_begun else []


def _members(clients: KafkaClients, topic: str, task: int | None, marked: int) -> Iterator[MemberRecord]:
    """All records of a task, or of all tasks, in order."""
    for offset, message in read_to_end(clients, (topic, 0), marked):
        member = decode_control(message.value(), f"{topic}[0]@{offset}")
        if isinstance(member, MemberRecord) and task in (None, member.task):
            yield member


def known_members(clients: KafkaClients, topic: str, task: int, marked: int = 0) -> list[MemberRecord]:
    """The newest record of every registration that a task has written. The task must have committed before.

    Args:
        marked: an offset after all records of the task (`services.delivery.sink.Sink.mark_end`).

    Raises:
        BrokerError: Kafka does not answer.
        StateError: the topic has no record of the task any more.
    """
    found = newest_records(_members(clients, topic, task, marked))
    if not found:
        raise StateError(
            f"topic {topic} does not say which queries task {task} runs, though it has committed: the topic was "
            "deleted; give the workers a new group (--group) to start anew"
        )
    return found
