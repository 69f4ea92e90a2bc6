"""What happened to the spilled state of a task, as its log keeps it.

Spilled state is a function of the input, of the plan and of these events. Groups that leave at an instant are from then
on one part with what left before; what comes later meets it when the group is cleaned up. So a task that has died is
made again by reading its windows again and doing the same at the same instants under the same plan, whatever its
successor would have chosen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from schemas.errors import StateError
from schemas.messages.formats import check_format

EVENTS_VERSION = 1


class SpillEvent(msgspec.Struct, frozen=True, array_like=True):
    """Something that happened to spilled state between two slices.

    Attributes:
        at: everything before this event time had been processed, and nothing else.
        kind: `leave`: the groups left memory; `clean`: what they owed was found; `plan`: the plan changed, nothing was
            owed, and what came before this concerns nobody any more; `age`: of an operator that queries share (the
            others are of partition groups), see `before` and `settled`.
        groups: per join of the plan, by its number, the numbers of its groups.
        before: what was older than this was not in memory any more.
        settled: and all results before this had been given.
    """

    at: int
    kind: Literal["leave", "clean", "plan", "age"]
    groups: tuple[tuple[int, tuple[int, ...]], ...] = ()
    before: int = 0
    settled: int = 0


class SpillRecord(msgspec.Struct, frozen=True):
    """A message of the log.

    Attributes:
        groups: how many each join has.
        plan: that the task runs after the events; empty when a Weir has written it that did not say.
    """

    v: int
    groups: int
    events: tuple[SpillEvent, ...]
    plan: str = ""


class _Head(msgspec.Struct, frozen=True):
    v: int


_ENCODER = msgspec.json.Encoder()
_HEAD = msgspec.json.Decoder(_Head)
_DECODER = msgspec.json.Decoder(SpillRecord)


def encode_events(events: Iterable[SpillEvent], groups: int, plan: str) -> bytes:
    """Events as a message; see `SpillRecord`."""
    return _ENCODER.encode(SpillRecord(EVENTS_VERSION, groups, tuple(events), plan))


def decode_events(raw: bytes, groups: int, place: str) -> SpillRecord:
    """A message.

    Args:
        groups: how many each join has to have.
        place: where it was read, for errors.

    Raises:
        StateError: Weir has not written it, it is damaged, or has another number of groups.
        NewerFormatError: a newer Weir has written it.
    """
    try:
        check_format(_HEAD.decode(raw).v, EVENTS_VERSION, f"log of spilled state {place}")
        log = _DECODER.decode(raw)
    except msgspec.DecodeError as error:
        raise StateError(f"{place} holds {raw[:80]!r}, which is no log of spilled state: {error}") from None
    if log.groups != groups:
        raise StateError(
            f"{place} has {log.groups} groups per join, this Weir reads {groups}; go on with the Weir that wrote it, "
            "or give the query a new group (--group)"
        )
    return log
