"""Settings of a worker: one frozen value, made by the command line from options and WEIR_* variables."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from services.process.security import KafkaClients

if TYPE_CHECKING:
    from operators.spill.spilling import Budget

EXECUTOR = "xjoin"
"""How workers execute plans: as the trees that they are, so that every one of them can be asked for."""


class Guarantee(StrEnum):
    """What happens to a result when a worker dies."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class Switch(StrEnum):
    """On or off."""

    OFF = "off"
    ON = "on"


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
        state_dir: where snapshots live; None runs without them (recovery then replays windows from Kafka).
        epoch_ms: how often results are computed and committed.
        commit_ms: how often offsets are committed when there is nothing to deliver.
        snapshot_ms: how often state is written to `state_dir`.
        idle_timeout_ms: of streams that declare none; None waits for ever.
        max_pending_tuples: tuples a task buffers ahead of its watermark before it stops reading the
            partitions that are ahead.
        max_ahead_ms: how far in event time a partition may run ahead of the task's watermark.
        transaction_timeout_ms: after which the broker aborts the transaction of a worker that went silent.
        session_timeout_ms: after which the group gives a silent worker's partitions to others.
        wait: wait for missing input topics rather than fail.
        replication: of topics that the worker creates; -1 is the broker's default.
        placement: all joins of a plan in one task, or each in tasks of its own.
        jit: joins tell each other what is not demanded.
        operator_partitions: into how many tasks a placed join with an equality key is split; None for as many as the
            sources' topics have partitions.
        budget: what a task may use of memory; what is too much leaves for the disk.
        spill_dir: where it leaves to; None for `state_dir`, or without one for a temporary folder.
        patience_ms: how long a task may have work and commit none of it until /healthz says so, and how long Kafka may
            refuse the worker until it ends.
        wait: for brokers and input topics: True for ever, False not at all, None for ever but while Kafka refuses the
            worker, which is given `patience_ms`.
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
    budget: Budget | None = None
    spill_dir: Path | None = None
    client_id: str = field(default="weir")

    @property
    def transactional(self) -> bool:
        """True when results become visible with their offsets."""
        return self.guarantee is Guarantee.EXACTLY_ONCE
