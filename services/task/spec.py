"""Defines what a task runs (`TaskSpec`) and how it can end (`TaskOutcome`).

`services.worker.worker` makes the `TaskSpec` of a plan. `services.task.task` reports the `TaskOutcome`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from operators.plan.plan import Plan
from schemas.errors import WeirError
from schemas.query import Query, Stream
from services.files.tables import Tables
from services.formats.decoders import Decoders
from services.formats.encoders import Encoders
from services.kafka.topics import Lane, OutputTopics
from services.placement.distributed import Part
from services.process.settings import WorkerSettings
from services.registry.group_watch import GroupWatch

CompletionCheck = Callable[[], Mapping[Lane, int] | None]
"""Asks Kafka whether transactions are complete; see `services.delivery.sink.Sink.completion_check`."""


class TaskEnd(StrEnum):
    """How a task ended.

    Attributes:
        FINISHED: as requested.
        FENCED: another worker has the task.
        RESTART: Kafka did not accept a delivery; the task must restart from its last commit.
        SNAPSHOT_DAMAGED: the snapshot cannot be used.
        SPILL_FAILED: spilled state cannot be written or read.
        REREAD: the task must restart to read more of its input again (`RereadNeeded`).
        FAILED: an error that a restart would repeat.
    """

    FINISHED = "finished"
    FENCED = "fenced"
    RESTART = "restart"
    SNAPSHOT_DAMAGED = "damaged"
    SPILL_FAILED = "unspilled"
    REREAD = "again"
    FAILED = "failed"


class RereadNeeded(WeirError):
    """A task must restart from its last commit, to read more of its input again."""


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """How a task ended, and its error; None if the task finished as requested."""

    end: TaskEnd
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class GroupWork:
    """Where the tasks of a group find which queries to run.

    Attributes:
        watch: the registered queries.
        members: the topic in which the tasks record which queries they run.
    """

    watch: GroupWatch
    members: str


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What all tasks of a worker share.

    Attributes:
        query: the query; for a group, the union of what its queries read.
        plan: of version 0; see `services.program.migrations`.
        streams: per input topic, the streams that read it.
        fingerprint: of the query; see `services.process.fingerprint`.
        group: None for a task of one query.
        part: the operator that the task runs of a distributed query; then `query` and `plan` are the operator's.
        tables: the query's reference tables.
        decoders: of the streams' records.
        encoders: of the results.
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
    tables: Tables = field(default_factory=Tables)
    decoders: Decoders = field(default_factory=Decoders)
    encoders: Encoders = field(default_factory=Encoders)


def streams_by_topic(streams: Sequence[Stream]) -> dict[str, tuple[Stream, ...]]:
    """The streams that read each topic."""
    found: dict[str, list[Stream]] = {}
    for stream in streams:
        found.setdefault(stream.topic, []).append(stream)
    return {topic: tuple(readers) for topic, readers in found.items()}
