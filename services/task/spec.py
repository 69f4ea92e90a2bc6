"""What a task is to do, and how it can end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from operators.plan.plan import Plan
from schemas.errors import WeirError
from schemas.query import Query, Stream
from services.files.tables import Tables
from services.kafka.topics import Lane, OutputTopics
from services.placement.distributed import Part
from services.process.settings import WorkerSettings
from services.registry.group_watch import GroupWatch

Settlement = Callable[[], Mapping[Lane, int] | None]
"""Asks Kafka whether transactions are complete; see `services.delivery.sink.Sink.settlement`."""


class End(StrEnum):
    """How a task ended: as asked; because another worker has it; because Kafka did not take what it delivered; with a
    snapshot, or spilled state, that cannot be used; by an error that would come again."""

    FINISHED = "finished"
    FENCED = "fenced"
    RESTART = "restart"
    DAMAGED = "damaged"
    UNSPILLED = "unspilled"
    AGAIN = "again"
    FAILED = "failed"


class Again(WeirError):
    """A task is to begin anew at what it has just committed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`error` is None when it finished as asked."""

    end: End
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class GroupWork:
    """What tasks of a group need to know which queries to run.

    Attributes:
        members: the topic in which they write it down.
    """

    watch: GroupWatch
    members: str


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What all tasks of a worker share.

    Attributes:
        plan: of version 0; see `services.task.migrations`.
        streams: per input topic, the streams that read it.
        fingerprint: of the query; see `services.worker.worker`.
        since: event time from which on results are this plan's.
        group: where several queries run; `query` then stands for what they read.
        part: what the task runs of a plan whose joins run apart; then `query` and `plan` are the operator's.
        trim: deletes records of internal topics before the given offsets, once a sink's transactions are settled
            (`services.delivery.sink.Sink.settlement`).
        tables: the query's reference tables.
    """

    query: Query
    plan: Plan | None
    streams: Mapping[str, tuple[Stream, ...]]
    fingerprint: str
    cluster: str
    topics: OutputTopics
    settings: WorkerSettings
    group: GroupWork | None = None
    part: Part | None = None
    since: int = 0
    trim: Callable[[Settlement, Mapping[Lane, int]], None] | None = None
    tables: Tables = field(default_factory=Tables)


def streams_by_topic(streams: Sequence[Stream]) -> dict[str, tuple[Stream, ...]]:
    """The streams that read each topic."""
    found: dict[str, list[Stream]] = {}
    for stream in streams:
        found.setdefault(stream.topic, []).append(stream)
    return {topic: tuple(readers) for topic, readers in found.items()}
