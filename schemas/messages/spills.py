"""The spill log's messages: what happened to a task's spilled state, and when.

Spilled state is a function of the input, of the plan and of these events. Groups that leave memory at an instant form
one part with their tuples that left before; tuples that arrive later meet that part when the group is cleaned up. So
the state of a task that died is rebuilt by reading its windows again and repeating the events at the same instants
under the same plan, whatever the next incarnation would have chosen itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from schemas.errors import StateError
from schemas.messages.formats import check_format

EVENTS_VERSION = 2
"""Messages that name their writer, or have events of kind `late`."""

TRANSACTIONAL_VERSION = 1
"""Messages without a writer: all of them count, since they were committed in transactions."""


class SpillEvent(msgspec.Struct, frozen=True, array_like=True):
    """Something that happened to spilled state between two slices of input.

    Attributes:
        at: event time; everything before it had been processed, and nothing else.
        kind: `leave`: the groups left memory; `clean`: their pending results were produced; `plan`: the plan changed,
            no results were pending, and earlier events do not matter any more; `age`: of an operator that queries share
            (the other kinds are of partition groups), see `before` and `settled`; `late`: results of a cleanup in
            another task arrived (`operators.distributed`).
        groups: per join of the plan, by its number, the numbers of its groups; of `late`, per side the offsets of the
            records.
        before: tuples older than this were no longer in memory.
        settled: and all results before this event time had been produced.
    """

    at: int
    kind: Literal["leave", "clean", "plan", "age", "late"]
    groups: tuple[tuple[int, tuple[int, ...]], ...] = ()
    before: int = 0
    settled: int = 0


class SpillRecord(msgspec.Struct, frozen=True):
    """A message of the log.

    Attributes:
        groups: how many groups each join has.
        plan: the plan that the task runs after the events; empty in messages of a Weir that did not write it.
    """

    v: int
    groups: int
    events: tuple[SpillEvent, ...]
    plan: str = ""


class WrittenRecord(SpillRecord, frozen=True):
    """A message of the second version.

    Attributes:
        writer: the incarnation that wrote it without a transaction; empty if it was written in one.
    """

    writer: str = ""


class _Head(msgspec.Struct, frozen=True):
    v: int


_ENCODER = msgspec.json.Encoder()
_HEAD = msgspec.json.Decoder(_Head)
_DECODER = msgspec.json.Decoder(WrittenRecord)


def encode_events(events: Iterable[SpillEvent], groups: int, plan: str, writer: str = "") -> bytes:
    """Encode events as a message; see `WrittenRecord`."""
    events = tuple(events)
    new = writer or any(event.kind == "late" for event in events)
    if new:
        return _ENCODER.encode(WrittenRecord(EVENTS_VERSION, groups, events, plan, writer))
    return _ENCODER.encode(SpillRecord(TRANSACTIONAL_VERSION, groups, events, plan))


def decode_events(raw: bytes, groups: int, place: str) -> WrittenRecord:
    """Decode a message.

    Args:
        groups: how many groups each join must have.
        place: where it was read, for errors.

    Raises:
        StateError: Weir has not written it, it is damaged, or has another number of groups.
        NewerFormatError: a newer Weir has written it.
    """
    try:
        version = _HEAD.decode(raw).v
        if version != TRANSACTIONAL_VERSION:
            check_format(version, EVENTS_VERSION, f"log of spilled state {place}")
        log = _DECODER.decode(raw)
    except msgspec.DecodeError as error:
        raise StateError(f"{place} holds {raw[:80]!r}, which is no log of spilled state: {error}") from None
    if log.groups != groups:
        raise StateError(
            f"{place} has {log.groups} groups per join, this Weir reads {groups}; use the Weir that wrote it, "
            "or give the query a new group (--group)"
        )
    return log
