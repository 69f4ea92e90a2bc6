"""Messages of the control topics: JSON objects with a `type` and a version `v`.

Seven kinds of topics, each with one partition:

- `<group>.control`: the barrier of plan changes (`Request` to `Done`), never shortened, read from the beginning by
  every worker and coordinator of the group. `services.control.barrier` documents the effects of the messages and their
  order; each of them may arrive twice, late, or from a process that died long ago.
- `<group>.statistics`: a `TaskStatistics`, or a `GroupTaskStatistics`, about once a second from every running task,
  under the task's number as key; kept for minutes. `<group>.history` has one of thirty for a day. Counters start at 0
  with each incarnation of a task: differences make sense within one incarnation only. `TaskHealth` says how a worker
  sees its task, also while the task does not run. `Measured` reports what a task has measured for the choice of a plan.
- `<group>.decisions`: a `Decision` for each change of plans that was weighed, under its number as key, compacted. The
  task that decides (`services.program.leader`) reads it when it starts, and `weir decisions` for people.
- `<group>.feedback`: a `Demanded` or an `Awaited` from a task to the tasks that write to one of its partitions, and
  `PartitionTotals` to the tasks of an operator: how many results came from the partition groups that they store
  (`operators.spill.exchange`). Kept for minutes. A `Demanded` is a request; writers announce in band what they do about
  it (`schemas.codecs.notice`).
- `weir.queries`: `RegisteredQuery` under its name as key, compacted; null drops the query. A group of queries has a
  `RegisteredGroup` under `GROUP/`, and its queries under `GROUP/NAME`.
- `<group>.members`: a `MemberRecord` under `TASK/NAME` for each query of a group, compacted: from when until when a
  task runs the query. Written in the transaction of the results.

Readers ignore unknown fields, so fields may be added; any other change makes a new version
(`schemas.messages.formats`). Event times are int64 milliseconds, `_s` are seconds of the sender's monotonic clock.
"""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.errors import StateError
from schemas.messages.formats import check_format

CONTROL_VERSION = 1


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=False):
    v: int = CONTROL_VERSION


# --- The barrier, in the order of a migration -------------------------------------------------------


class Opened(_Message, frozen=True, kw_only=True, tag="opened"):
    """A new incarnation of a task starts: answers of its earlier incarnations are void.

    Attributes:
        incarnation: a name that no other incarnation of any task has; `life` in JSON.
        tasks: how many the query has, where that depends on its plan (placement per-operator); else 0.
    """

    task: int
    incarnation: str = msgspec.field(name="life")
    tasks: int = 0


class Request(_Message, frozen=True, kw_only=True, tag="request"):
    """A user or the plan advisor requests another plan.

    Attributes:
        id: a unique name of this migration.
        plan: as `parse_plan` reads it.
        prefer: which cost the strategy `auto` minimizes; see `operators.migration.advise`.
        at: event time before which the change must not happen; None for as soon as possible.
        timeout_ms: how long the tasks may take to answer.
        fingerprint: of the query that the plan is for.
        asked_ms: the requester's wall clock, so that a coordinator ignores a request that is out of date.
    """

    id: str
    plan: str
    strategy: str
    fingerprint: str
    asked_ms: int
    at: int | None = None
    timeout_ms: int = 10_000
    prefer: str = "work"


class Propose(_Message, frozen=True, kw_only=True, tag="propose"):
    """The coordinator adopts a request: tasks must answer.

    Attributes:
        tasks: how many the query has, numbered from 0.
    """

    id: str
    plan: str
    strategy: str
    fingerprint: str
    tasks: int
    at: int | None = None
    timeout_ms: int = 10_000
    prefer: str = "work"


class Answer(_Message, frozen=True, kw_only=True, tag="answer"):
    """A task's watermark, and its promise to stay within a bound until the proposal is decided.

    Attributes:
        watermark: event time that the task has reached.
        bound: event time that the task does not exceed until then; >= watermark.
        error: why the task cannot change to this plan; empty when it can.
    """

    id: str
    task: int
    incarnation: str = msgspec.field(name="life")
    watermark: int
    bound: int
    error: str = ""


class Cut(_Message, frozen=True, kw_only=True, tag="cut"):
    """The coordinator accepts the proposal: every task changes plans at this event time."""

    id: str
    cut: int


class Withdraw(_Message, frozen=True, kw_only=True, tag="withdraw"):
    """The proposal is withdrawn: the old plan stays in force.

    Attributes:
        by: who withdraws it, such as `coordinator` or `task 3`.
    """

    id: str
    reason: str
    by: str


class Started(_Message, frozen=True, kw_only=True, tag="started"):
    """A task has changed plans.

    Attributes:
        began_at: event time; the cut, unless the task had passed it (`exact` is False then).
        strategy: the strategy that runs.
        why: the reason for the strategy, where `auto` was requested.
        silence_s: how long the barrier kept the task waiting.
    """

    id: str
    task: int
    version: int
    began_at: int
    exact: bool
    strategy: str = ""
    why: str = ""
    silence_s: float = 0.0


class Done(_Message, frozen=True, kw_only=True, tag="done"):
    """A task has finished its migration: only the new plan runs.

    Attributes:
        began_at, finished_at: event times.
        longest_silence_s: the longest time without results that the migration caused, the barrier included.
        peak_extra_tuples, comparisons, completed_keys: what it cost; see `MigrationCounters`.
        first_result_ts: event time of the first result at or after the cut; None while there was none.
        first_result_s: how long after the change of plans it was delivered.
        predicted: what `auto` expected of the strategy that it chose; None where the request named the strategy.
        restored: whether the task restarted in mid-migration, and built the new plan's states from the window.
        error: why the task stayed with its old plan; empty when it changed.
    """

    id: str
    task: int
    version: int
    began_at: int | None = None
    finished_at: int | None = None
    longest_silence_s: float = 0.0
    comparisons: int = 0
    peak_extra_tuples: int = 0
    completed_keys: int = 0
    first_result_ts: int | None = None
    first_result_s: float | None = None
    predicted: dict[str, Any] | None = None
    restored: bool = False
    error: str = ""


# --- Beside the barrier -----------------------------------------------------------------------------


class _Report(_Message, frozen=True, kw_only=True):
    query: str
    task: int
    tasks: int
    incarnation: str = msgspec.field(name="life")
    sent_ms: int
    seconds: float


class TaskStatistics(_Report, frozen=True, kw_only=True, tag="statistics"):
    """What a running task reports about itself.

    Attributes:
        query: name of the query.
        tasks: how many the query has.
        incarnation: incarnation of the task; see `Opened`.
        sent_ms: wall clock of the worker.
        seconds: monotonic, since the incarnation started; for rates between two messages of one incarnation.
        plan_version: the plan in force, 0 the worker's own.
        engine: `EngineStatistics.document()`; `EngineStatistics.from_document` reads it.
    """

    plan_version: int
    engine: dict[str, Any]


class GroupTaskStatistics(_Report, frozen=True, kw_only=True, tag="group-statistics"):
    """What a running task of a group of queries reports about itself; as `TaskStatistics` otherwise.

    Attributes:
        query: name of the group.
        engine: `GroupStatistics.document()`; `GroupStatistics.from_document` reads it.
    """

    engine: dict[str, Any]


COMPUTING = "computing an epoch"
DELIVERING = "delivering to Kafka"
"""Steps of a task's thread that take milliseconds unless something is wrong."""


class TaskHealth(_Message, frozen=True, kw_only=True, tag="health"):
    """How a worker sees a task, about once a second; also while the task recovers or cannot be opened.

    Attributes:
        query: name of the query.
        worker: the worker's client id.
        sent_ms: wall clock of the worker.
        status: the task's entry in /healthz.
        step: what the task's thread is doing, such as COMPUTING or DELIVERING; empty where there is none.
        silent: partitions that delay results: topic, partition, seconds since the last record.
        slowest: a few of the partitions that others wait for, since their events are older.
        commits, commit_s: how many epochs this incarnation has delivered, and the seconds that took.
        dead_letters: how many records it has sent to the dead-letter topic.
    """

    query: str
    task: int
    worker: str
    sent_ms: int
    status: dict[str, Any]
    step: str = ""
    silent: list[tuple[str, int, float]] = []
    slowest: list[tuple[str, int]] = []
    commits: int = 0
    commit_s: float = 0.0
    dead_letters: int = 0


class RegisteredQuery(_Message, frozen=True, kw_only=True, tag="query"):
    """A query file under a name.

    Attributes:
        text: the whole file.
        pick: which query of the file, by its sink; None where the file has one query.
        group: the group that the query belongs to; empty where it runs standalone.
        from_now: whether a query of a group ignores tuples from before its start.
        id: of this registration of a query of a group: a later registration under the same name replaces it.
    """

    name: str
    text: str
    pick: str | None = None
    group: str = ""
    from_now: bool = False
    id: str = ""


class RegisteredGroup(_Message, frozen=True, kw_only=True, tag="group"):
    """A group of queries that run together; queries are added and dropped while the others run.

    Attributes:
        text: the file that the group was created with; it declares the group's streams and tables.
        streams: those that its queries may read, by name.
        partitioned: True if it has a task per partition, by PARTITION BY of the file's queries; else absent.
    """

    name: str
    text: str
    streams: tuple[str, ...]
    partitioned: bool | msgspec.UnsetType = msgspec.UNSET


class MemberRecord(_Message, frozen=True, kw_only=True, tag="member"):
    """A query of a group, as one task runs it.

    Attributes:
        id: of its registration.
        text, pick: as in `RegisteredQuery`.
        began: event time from which the query has results. None when the group could not take the query.
        ended: event time before which its results end. None while it runs.
        since: by alias, the least event time of tuples that the query reads; an alias is absent where the query reads
            all that its windows contain.
        error: why the group could not take the query.
        slot: of a query that has ended, the number in the second key of its record; absent without such a key, and in
            records of earlier versions.
    """

    task: int
    name: str
    id: str
    text: str
    pick: str | None = None
    began: int | None = None
    ended: int | None = None
    since: dict[str, int] = {}
    error: str = ""
    slot: int | msgspec.UnsetType = msgspec.UNSET


class Measured(_Message, frozen=True, kw_only=True, tag="measured"):
    """What a task has measured for the choice of a plan.

    Attributes:
        survey: `operators.autopilot.survey.Surveyed.document()`.
    """

    query: str
    task: int
    survey: dict[str, Any]


class Decision(_Message, frozen=True, kw_only=True, tag="decision"):
    """A change of plans that was weighed.

    Attributes:
        number: of the decision, from 1; a later message under the same number replaces this one.
        adaptation: `operators.autopilot.adaptation.Adaptation.document()`.
        account: `operators.autopilot.rule.Account`, after the decision.
        first_plan: the plan with which the query began.
    """

    query: str
    number: int
    adaptation: dict[str, Any]
    account: dict[str, float]
    first_plan: str


class Demanded(_Message, frozen=True, kw_only=True, tag="demanded"):
    """What a task does not need, and what it needs again, of one of its partitions.

    Attributes:
        topic, partition: of an internal topic; the message is for the tasks that write to it.
        suspend, resume: signatures, 8 bytes each, little endian (`operators.distributed.feedback.kinds`).
        need: event time; the task may still request tuples that have not expired before it.
    """

    topic: str
    partition: int
    need: int
    suspend: bytes = b""
    resume: bytes = b""


class Awaited(_Message, frozen=True, kw_only=True, tag="awaited"):
    """How far a task could advance if it did not wait for one of its partitions (`services.task.silence`).

    Attributes:
        topic, partition: of an internal topic; the message is for the tasks that write to it.
        until: event time.
    """

    topic: str
    partition: int
    until: int


class PartitionTotals(_Message, frozen=True, kw_only=True, tag="partition-totals"):
    """The results that a task has traced back to partition groups of other tasks (state-spill 5:
    UpdatePartitionStatistics).

    The totals count since the incarnation started and never fall: of two for a group the larger one is right, so
    messages may be lost, repeated or reordered.

    Attributes:
        incarnation: incarnation of the task that reports; see `Opened`.
        operator: the operator that has the groups, given as the sub-plan that it computes.
        groups: group numbers; `output` and `inter_bytes` have the same length.
        output: results of the query that went through each group.
        inter_bytes: bytes of intermediate results from each group in the states of joins above.
    """

    query: str
    task: int
    incarnation: str = msgspec.field(name="life")
    operator: str
    groups: list[int]
    output: list[float]
    inter_bytes: list[float]


BarrierMessage = Opened | Request | Propose | Answer | Cut | Withdraw | Started | Done
ControlMessage = (
    BarrierMessage
    | TaskStatistics
    | GroupTaskStatistics
    | TaskHealth
    | RegisteredQuery
    | RegisteredGroup
    | MemberRecord
    | Measured
    | Decision
    | Demanded
    | Awaited
    | PartitionTotals
)


class _Head(msgspec.Struct, frozen=True):
    v: int
    type: str


_ENCODER = msgspec.json.Encoder()
_HEAD = msgspec.json.Decoder(_Head)
_BODY: msgspec.json.Decoder[ControlMessage] = msgspec.json.Decoder(ControlMessage)


def encode_control(message: ControlMessage) -> bytes:
    """The message as JSON."""
    return _ENCODER.encode(message)


def decode_control(data: bytes | None, place: str) -> ControlMessage:
    """Read a message back. `place` names topic and offset, for errors.

    Raises:
        StateError: it was not written by Weir, or is damaged.
        NewerFormatError: a newer Weir has written it.
    """
    shown = (data or b"")[:200]
    try:
        head = _HEAD.decode(data or b"")
    except msgspec.DecodeError as error:
        raise StateError(f"{place} holds {shown!r}, which is no control message of Weir: {error}") from None
    check_format(head.v, CONTROL_VERSION, f"{head.type!r} message {place}")
    try:
        return _BODY.decode(data or b"")
    except msgspec.DecodeError as error:
        raise StateError(f"{place} has a damaged {head.type!r} message ({error}): {shown!r}") from None
