"""Settings of a worker: `WorkerSettings`, which the command line makes from options and WEIR_* variables."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from schemas import refusals
from schemas.query import Query
from services.process.security import KafkaClients

if TYPE_CHECKING:
    from operators.autopilot.autopilot import Limits, Mode
    from operators.spill.spilling import MemoryBudget

EXECUTOR = "xjoin"
"""The executor of workers: it runs any plan as a tree, so that a user can request every plan."""


class Guarantee(StrEnum):
    """Whether a crash of a worker can duplicate results."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class Placement(StrEnum):
    """Where the joins of a plan run."""

    FUSED = "fused"
    PER_OPERATOR = "per-operator"


class Start(StrEnum):
    """Where a query without committed offsets begins to read."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How one worker runs one query.

    Attributes:
        clients: how to reach Kafka.
        group: consumer group; also the prefix of transactional ids.
        state_dir: the folder of snapshots; None runs without them (recovery then replays windows from Kafka).
        guarantee: exactly once or at least once.
        start: where a query without committed offsets starts to read.
        plan: the join tree as text; None to choose one.
        epoch_ms: how often results are computed and committed.
        commit_ms: how often offsets are committed when there is nothing to deliver.
        snapshot_ms: how often state is written to `state_dir`.
        idle_timeout_ms: of streams that declare none; None waits for ever.
        max_pending_tuples: how many tuples a task buffers ahead of its watermark before it stops reading the
            partitions that are ahead.
        max_ahead_ms: how far in event time a partition may run ahead of the task's watermark.
        transaction_timeout_ms: after which the broker aborts the transaction of a worker that went silent.
        session_timeout_ms: after which the group gives a silent worker's partitions to others.
        wait: for brokers and input topics: True waits for ever, False not at all; None waits for ever, but only
            `patience_ms` while Kafka refuses the worker.
        patience_ms: how long a task may have work without a commit until /healthz reports it, and how long Kafka may
            refuse the worker until it ends.
        replication: of topics that the worker creates; -1 is the broker's default.
        placement: all joins of a plan in one task, or each in tasks of its own.
        operator_partitions: into how many tasks a distributed join with an equality key is split; None for as many as
            the sources' topics have partitions.
        jit: just-in-time feedback between joins about results that are not demanded.
        budget: memory budget of a task, beyond which state is spilled to disk; None for no limit.
        spill_dir: the folder of spilled state; None for `state_dir`, or without one for a temporary folder.
        adapt: whether the plan follows the data: `on`, or `advise` to decide and change nothing; None for neither.
        limits: what changes of plans may cost, and when they pay; None for the default.
        client_id: prefix of the client ids.
    """

    clients: KafkaClients
    group: str
    state_dir: Path | None = None
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    start: Start = Start.EARLIEST
    plan: str | None = None
    epoch_ms: int = 50
    commit_ms: int = 1_000
    snapshot_ms: int = 10_000
    idle_timeout_ms: int | None = None
    max_pending_tuples: int = 500_000
    max_ahead_ms: int = 300_000
    transaction_timeout_ms: int = 60_000
    session_timeout_ms: int = 10_000
    wait: bool | None = None
    patience_ms: int = 60_000
    replication: int = -1
    placement: Placement = Placement.FUSED
    operator_partitions: int | None = None
    jit: bool = False
    budget: MemoryBudget | None = None
    spill_dir: Path | None = None
    adapt: Mode | None = None
    limits: Limits | None = None
    client_id: str = field(default="weir")

    def refusable(self) -> tuple[str, ...]:
        """The settings with which some features do not go (`schemas.refusals`)."""
        distributed = self.placement is Placement.PER_OPERATOR
        given = {
            refusals.PER_OPERATOR: distributed,
            refusals.PLAN: self.plan is not None,
        }
        return tuple(setting for setting, is_given in given.items() if is_given)

    def has_idle_timeout(self, query: Query) -> bool:
        """Whether a silent stream of the query may stop to hold results back."""
        return self.idle_timeout_ms is not None or any(s.idle_timeout_ms is not None for s in query.streams())

    @property
    def transactional(self) -> bool:
        """True when results become visible with their offsets."""
        return self.guarantee is Guarantee.EXACTLY_ONCE
