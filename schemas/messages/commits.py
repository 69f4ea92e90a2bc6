"""The message that a task commits with its offsets, as Kafka offset metadata of each input partition.

Offsets say which records the task has read. The message says what it has made of them, so that another machine can
continue without the first one's disk: up to which event time results have been written, and from which offset to read
again to rebuild every window. All of it is a function of the log, because lateness is decided per partition.

Format: compact JSON, ASCII, at most MAX_COMMIT_BYTES (Kafka's `offset.metadata.max.bytes` is 4096 by default,
and Apache Kafka 4.1 refuses exactly 4096). For its versions see `schemas.messages.formats`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from schemas.errors import StateError
from schemas.messages.formats import check_format

COMMIT_VERSION = 1
MAX_COMMIT_BYTES = 4000
MAX_FLOOR_BYTES = 3200
"""How many bytes the floors of one message may take, so that they fit with everything else; see `Floor`."""

UNSEEN = -(2**62)
"""The clock of a partition that has not had a tuple (the engine's `NEVER`); written as null."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The task refused tuples with ts < `cut` among the records from `offset` on, because its watermark was beyond
    them.

    Such tuples are late although their own partition's clock does not say so. This happens only after a partition was
    idle and stopped holding the watermark back. A replay must refuse the same tuples.
    """

    offset: int
    cut: int


@dataclass(frozen=True, slots=True)
class StreamPoint:
    """Where to begin reading a partition again for one stream.

    Attributes:
        offset: the first record that a recovery may need.
        max_ts: the partition's clock just before that record.
        floors: which tuples to refuse between `offset` and the committed offset, ascending.
    """

    offset: int
    max_ts: int
    floors: tuple[Floor, ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """One partition's metadata.

    Attributes:
        fingerprint: of the query; a commit of another query is useless.
        epoch: number of the commit, growing; a task's newest message holds for all its partitions.
        cut: all results with a smaller timestamp have been written.
        plan_version: the plan in force, 0 the first.
        partitions: how many input partitions the task has.
        points: one per stream that reads this partition, in order of first use in the query.
        tables: hex digest of each table's contents, in order of first use in the query.
        spilled: numbers of the first record of the spill log that a recovery needs and of the next to be written; equal
            where it needs none. See `services.spill.spill_log`.
        incarnation: of the task that committed; with `epoch` it identifies one commit
            (`services.delivery.completion`). Empty in commits of a Weir that did not write it.
        numbers: per stream whose tuples the task counts for other tasks, how many it has numbered
            (`operators.distributed.intake`).
        repeats: numbers of the first record of repeats that a recovery needs and of the next to be written. See
            `services.delivery.repeats_log`.
        topic_id: which Kafka gave the partition's topic when it was created; empty where it is not known.
    """

    fingerprint: str
    epoch: int
    cut: int
    plan_version: int
    partitions: int
    points: tuple[StreamPoint, ...]
    tables: tuple[str, ...] = ()
    spilled: tuple[int, int] = (0, 0)
    incarnation: str = ""
    numbers: tuple[int, ...] = ()
    repeats: tuple[int, int] = (0, 0)
    topic_id: str = ""

    def encode(self) -> str:
        """The message.

        Raises:
            StateError: it would be longer than MAX_COMMIT_BYTES.
        """
        points = [[p.offset, None if p.max_ts == UNSEEN else p.max_ts, _deltas(p.floors)] for p in self.points]
        text = json.dumps(
            {
                "v": COMMIT_VERSION,
                "q": self.fingerprint,
                "e": self.epoch,
                "w": self.cut,
                "p": self.plan_version,
                "n": self.partitions,
                "r": points,
                **({"t": self.tables} if self.tables else {}),
                **({"s": self.spilled} if self.spilled[1] else {}),
                **({"i": self.incarnation} if self.incarnation else {}),
                **({"c": self.numbers} if self.numbers else {}),
                **({"d": self.repeats} if self.repeats[1] else {}),
                **({"u": self.topic_id} if self.topic_id else {}),
            },
            separators=(",", ":"),
        )
        if len(text) > MAX_COMMIT_BYTES:
            raise StateError(f"commit message of {len(text)} bytes, at most {MAX_COMMIT_BYTES} fit: {text[:200]}...")
        return text


def decode_commit(text: str | None, place: str) -> Commit:
    """Read a message back. `place` names the partition, for errors.

    Raises:
        StateError: it was not written by Weir, or is damaged.
        NewerFormatError: a newer Weir has written it.
    """
    try:
        message = json.loads(text or "")
        version = message["v"]
    except (ValueError, KeyError, TypeError):
        raise StateError(
            f"committed offset of {place} carries {text!r}, which is no commit message of Weir: "
            "another program commits in this consumer group; use a group of its own (--group)"
        ) from None
    check_format(version, COMMIT_VERSION, f"committed offset of {place}")
    try:
        points = tuple(_point(*point) for point in message["r"])
        first, following = message.get("s", (0, 0))
        first_repeats, following_repeats = message.get("d", (0, 0))
        return Commit(
            str(message["q"]),
            int(message["e"]),
            int(message["w"]),
            int(message["p"]),
            int(message["n"]),
            points,
            tuple(str(content) for content in message.get("t", ())),
            (int(first), int(following)),
            str(message.get("i", "")),
            tuple(int(count) for count in message.get("c", ())),
            (int(first_repeats), int(following_repeats)),
            str(message.get("u", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"committed offset of {place} has a damaged message ({error}): {text!r}") from None


def _deltas(floors: Iterable[Floor]) -> list[int]:
    """The first floor's offset and cut, then each further floor's differences from the one before: short numbers."""
    flat: list[int] = []
    offset = cut = 0
    for floor in floors:
        flat += (floor.offset - offset, floor.cut - cut)
        offset, cut = floor.offset, floor.cut
    return flat


def _point(offset: int, max_ts: int | None, flat: list[int]) -> StreamPoint:
    floors: list[Floor] = []
    last = Floor(0, 0)
    for step, rise in zip(flat[::2], flat[1::2], strict=True):
        last = Floor(last.offset + int(step), last.cut + int(rise))
        floors.append(last)
    return StreamPoint(int(offset), UNSEEN if max_ts is None else int(max_ts), tuple(floors))


def floor_bytes(floors: Iterable[Floor]) -> int:
    """How many bytes floors take in a message."""
    return len(",".join(map(str, _deltas(floors))))


def needed_floors(floors: Iterable[Floor], offset: int, horizon_ms: int) -> tuple[Floor, ...]:
    """The floors that a replay from `offset` needs.

    A later floor never has a lower cut, so of those at or before `offset` only the last matters.

    Args:
        horizon_ms: tuples below it match nothing any more, whether the task took them or refused them. 0 where no such
            time is known: with ROWS windows a tuple that was refused, but taken by a replay, would still be alive.
    """
    kept: list[Floor] = []
    for floor in floors:
        if floor.cut <= horizon_ms:
            continue
        if kept and kept[-1].offset <= offset and floor.offset <= offset:
            kept.pop()
        kept.append(floor)
    return tuple(kept)
