"""Messages of the control topics: JSON objects with a `type` and a version `v`.

Four kinds of topics, each with one partition:

- `<group>.control`: the barrier of plan changes (`Request` to `Done`), never shortened, read from the beginning by
  every worker and coordinator of the group. What the messages do to each other, and in which order, is said in
  `services.control.barrier`; every one of them may come twice, late, or from somebody long dead.
- `<group>.statistics`: a `Statistics` about once a second from every running task, under the task's number as key;
  kept for minutes. Counters begin with a task's `life`: differences make sense within one only.
- `<group>.feedback`: a `Demanded` from a task to those that write to one of its partitions, kept for minutes. It asks;
  what is done about it is said in band (`schemas.codecs.notice`).
- `PartitionTotals` tell tasks what came of partition groups that they hold (`operators.spill.exchange`).
- `weir.queries`: `RegisteredQuery` under its name as key, compacted; null drops it. Of a group of queries a
  `RegisteredGroup` under `GROUP/`, and its queries under `GROUP/NAME`.
- `<group>.members`: a `Member` under `TASK/NAME` for each query of a group, compacted: since when a task runs it, up to
  when it did. Written in the transaction of the results.

A reader passes over unknown fields, so fields may be added; anything else makes another version
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


# --- The barrier, in the order of a migration's life ------------------------------------------------


class Opened(_Message, frozen=True, kw_only=True, tag="opened"):
    """A task begins a new life: what its earlier lives answered counts no more.

    Attributes:
        life: a name that no other life of any task has.
        tasks: how many the query has, where that depends on its plan (placement per-operator); else 0.
    """

    task: int
    life: str
    tasks: int = 0


class Request(_Message, frozen=True, kw_only=True, tag="request"):
    """Somebody wants another plan.

    Attributes:
        id: a name for this migration that nobody else uses.
        plan: as `parse_plan` reads it.
        prefer: what the strategy `auto` makes least; see `operators.migration.advise`.
        at: event time before which it must not happen; None for as soon as possible.
        timeout_ms: how long the tasks may take to answer.
        fingerprint: of the query that it was asked for.
        asked_ms: wall clock of who asks, so that nobody takes it up when it is long forgotten.
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
    """The coordinator takes a request up: tasks must answer.

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
        watermark: event time that it has reached.
        bound: event time beyond which it does not go meanwhile; >= watermark.
        error: why it cannot change to this plan; empty when it can.
    """

    id: str
    task: int
    life: str
    watermark: int
    bound: int
    error: str = ""


class Cut(_Message, frozen=True, kw_only=True, tag="cut"):
    """The decision for: every task changes plans at this event time."""

    id: str
    cut: int


class Withdraw(_Message, frozen=True, kw_only=True, tag="withdraw"):
    """The decision against: the old plan goes on.

    Attributes:
        by: who says so, such as `coordinator` or `task 3`.
    """

    id: str
    reason: str
    by: str


class Started(_Message, frozen=True, kw_only=True, tag="started"):
    """A task has changed plans.

    Attributes:
        began_at: event time; the cut, unless the task had passed it (`exact` is False then).
        strategy: the one that runs.
        why: it was chosen, where `auto` was asked for.
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
    """A task's new plan stands alone.

    Attributes:
        began_at, finished_at: event times.
        longest_silence_s: the longest time without results that the migration caused, the barrier included.
        peak_extra_tuples, comparisons, completed_keys: what it cost; see `MigrationCounters`.
        first_result_ts: event time of the first result at or after the cut; None while there was none.
        first_result_s: how long after the change of plans it was delivered.
        predicted: what `auto` had expected of the strategy that it chose; None where it was named.
        restored: the task was restarted in mid-migration: the new plan's states were made from the window.
        error: why the task stayed with its old plan; empty when it did not.
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


class Statistics(_Message, frozen=True, kw_only=True, tag="statistics"):
    """What a running task knows of itself.

    Attributes:
        query: name of the query.
        tasks: how many it has.
        life: of the task; see `Opened`.
        sent_ms: wall clock of the worker.
        seconds: monotonic, since the life began; for rates between two messages of one life.
        plan_version: the plan in force, 0 the worker's own.
        engine: `EngineStatistics.document()`; `EngineStatistics.from_document` reads it.
    """

    query: str
    task: int
    tasks: int
    life: str
    sent_ms: int
    seconds: float
    plan_version: int
    engine: dict[str, Any]


class RegisteredQuery(_Message, frozen=True, kw_only=True, tag="query"):
    """A query file under a name.

    Attributes:
        text: the whole file.
        pick: which query of the file, by its sink; None where there is one.
        group: that it belongs to; empty where it runs alone.
        from_now: in a group it sees no tuples from before it begins.
        id: in a group, of this registration: another one under the same name takes its place.
    """

    name: str
    text: str
    pick: str | None = None
    group: str = ""
    from_now: bool = False
    id: str = ""


class RegisteredGroup(_Message, frozen=True, kw_only=True, tag="group"):
    """Several queries that run together, and come and go while they do.

    Attributes:
        text: the file that it was made with; declares its streams and tables.
        streams: those that its queries may read, by name.
    """

    name: str
    text: str
    streams: tuple[str, ...]


class Member(_Message, frozen=True, kw_only=True, tag="member"):
    """A query of a group, as one task runs it.

    Attributes:
        id: of its registration.
        text, pick: as in `RegisteredQuery`.
        began: event time; its results begin there. None when the group could not take it.
        ended: event time; its results end before it. None while it runs.
        since: by alias, the least event time of tuples that it sees; absent where it sees all that its windows hold.
        error: why the group could not take it.
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


class Demanded(_Message, frozen=True, kw_only=True, tag="demanded"):
    """What a task does not demand, and what it demands after all, of one of its partitions.

    Attributes:
        topic, partition: an internal topic's, whose writers it is for.
        suspend, resume: signatures, 8 bytes each, little endian (`operators.distributed.kinds`).
        need: event time; the task may ask for what has not expired before it.
    """

    topic: str
    partition: int
    need: int
    suspend: bytes = b""
    resume: bytes = b""


class PartitionTotals(_Message, frozen=True, kw_only=True, tag="partition-totals"):
    """What a task has traced to partition groups that others hold (state-spill 5: UpdatePartitionStatistics).

    Totals since the life began, which never fall: of two for a group the larger one holds, so messages may be lost,
    come twice or in any order.

    Attributes:
        life: of the task that tells; see `Opened`.
        operator: whose groups, as the sub-plan that it computes.
        groups: numbers; `output` and `inter_bytes` are as long.
        output: results of the query that went through each group.
        inter_bytes: of intermediate results of each group in states of joins above.
    """

    query: str
    task: int
    life: str
    operator: str
    groups: list[int]
    output: list[float]
    inter_bytes: list[float]


BarrierMessage = Opened | Request | Propose | Answer | Cut | Withdraw | Started | Done
ControlMessage = BarrierMessage | Statistics | RegisteredQuery | RegisteredGroup | Member | Demanded | PartitionTotals


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
