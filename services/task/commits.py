"""Delivers a task's epochs: results, late and dead-letter records, and the offsets with the message of the cut.

`services.task.epochs` decides when. A commit carries what the next incarnation needs to start: see
`services.recovery.starting_point`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from operators.data.watermark import NEVER
from operators.engine.engine import Engine
from schemas.messages.commits import Commit
from schemas.messages.control import DELIVERING
from services.delivery.epoch_output import BlockRecord, Delivery
from services.kafka.topics import Lane
from services.process.settings import Start
from services.recovery.starting_point import Snapshot
from services.task.block_lane import BlockLane
from services.task.context import TaskContext
from services.task.lane import InputLane
from services.task.program import TaskEngine

TRIM_S = 30.0
"""How often records of internal topics that no recovery needs are deleted."""

RENEWAL_S = 60.0
"""How often all partitions are committed, also those without progress: Kafka deletes offsets that are not renewed."""

AHEAD_TUPLES = 20_000
"""Source tuples that are written ahead of the next snapshot, so that the copy for the snapshot itself stays small."""


class Committer:
    """The commits and snapshots of one incarnation of a task; used by its thread, except for the attributes.

    Attributes:
        committed: offset per partition, as of the last commit.
        committed_cut: event time up to which results are committed.
        committed_pending: pending pairs of tuples, as of the last commit.
        last_commit: when the last successful commit began, in monotonic seconds.
        start_unrecorded: whether the task began at the end of the log and has committed nothing yet. Its next
            incarnation would begin at a later end, and never read what has arrived in between.
    """

    def __init__(self, context: TaskContext) -> None:
        recovery = context.recovery
        self.committed: dict[Lane, int] = {key: start.replay_end for key, start in recovery.lanes.items()}
        self.committed_cut = recovery.cut
        self.committed_pending = 0
        self.last_commit = time.monotonic()
        self.start_unrecorded = recovery.source == "fresh" and context.spec.settings.start is Start.LATEST
        self._context = context
        self._streams = context.streams
        self._epoch_number = recovery.epoch
        self._snapshot_epoch = recovery.epoch if recovery.source == "fresh" else -1
        self._renewed = float("-inf")
        self._reach: dict[str, int] = {}
        # Where a recovery would start to read, by what is committed of each partition.
        self._read_from = {key: min(p.offset for p in start.window) for key, start in recovery.lanes.items()}
        self._trimmed = time.monotonic()

    def moved(self) -> bool:
        """Whether the task has made progress since the last commit."""
        return self._context.engine.cut != self.committed_cut or any(
            lane.position != self.committed[key] for key, lane in self._context.lanes.items()
        )

    def deliver(self, commit: bool, ending: bool = False) -> None:
        """Deliver what the program has found since the last call.

        Args:
            commit: whether to commit the positions, too.
            ending: whether the task ends with its plan. Then all partitions are committed.
        """
        context = self._context
        context.step = DELIVERING
        began = time.monotonic()
        if ending:
            self._renewed = float("-inf")
        overdue, events = ([], []) if context.spill is None else context.spill.commit()
        offsets, repeats = self._offsets() if commit else ({}, [])
        late, dead = context.rejected.late, context.rejected.dead
        encoded, blocks = context.program.encode()
        encoded = [*encoded, *overdue]
        if context.feedback is not None:
            blocks = [*blocks, *context.feedback.answer(blocks, ending)]
        delivery = Delivery(encoded, context.rejected.take(), offsets, [*blocks, *events, *repeats])
        refused = context.sink.deliver(delivery)
        metrics = context.metrics
        took_s = time.monotonic() - began
        metrics.commit.observe(took_s)
        context.commits, context.commit_s = context.commits + 1, context.commit_s + took_s
        delivered = Counter({topic: -count for topic, count in refused.items()})
        for topic, piece in encoded:
            delivered[topic] += len(piece) + len(piece.refused)
        context.program.count(delivered, metrics)
        context.trace.delivered(began, delivered.total(), commit)
        metrics.internal_blocks.inc(len(blocks))
        metrics.internal_bytes.inc(sum(len(block.value) for block in blocks))
        metrics.internal_tuples.inc(sum(block.tuples for block in blocks))
        metrics.late.inc(late)
        metrics.dead.inc(dead + refused.total())
        context.dead_letters += dead + refused.total()
        if commit:
            self._note_commit(began)

    def _note_commit(self, began: float) -> None:
        context = self._context
        self.last_commit = began
        self.start_unrecorded = False
        self.committed = {key: lane.position for key, lane in context.lanes.items()}
        self.committed_cut = context.engine.cut
        self.committed_pending = context.program.pending_pairs
        if context.feedback is not None:
            context.feedback.committed(self.committed_cut)
        context.metrics.commits.inc()
        context.metrics.reached(self.committed_cut, time.time() * 1000)
        self._trim(began)

    def _trim(self, now: float) -> None:
        """Delete records of internal topics that no recovery from the last commit would read."""
        context = self._context
        if context.trim is None or now - self._trimmed < TRIM_S:
            return
        self._trimmed = now
        deletable = {key: lane.needed for key, lane in context.lanes.items() if isinstance(lane, BlockLane)}
        if context.spill is not None:
            deletable |= context.spill.deletable()
        if context.repeats is not None:
            deletable |= context.repeats.deletable()
        context.trim(context.sink.completion_check(), deletable)

    def _offsets(self) -> tuple[dict[Lane, tuple[int, str]], list[BlockRecord]]:
        """Offsets and messages of the partitions with progress, and from time to time of all partitions; and records of
        the repeats since the last commit.

        The newest message counts for the task. All partitions are also committed if a stream's horizon has moved back:
        the messages committed before for the others do not reach back far enough.
        """
        context, engine, lanes = self._context, self._context.engine, self._context.lanes
        self._epoch_number += 1
        now = time.monotonic()
        reach = {stream: engine.replay_horizon(stream) for stream in self._streams}
        further = any(reach[stream] < before for stream, before in self._reach.items())
        self._reach = reach
        renew = further or now - self._renewed >= RENEWAL_S
        if renew:
            self._renewed = now
        moved = [key for key, lane in lanes.items() if renew or lane.position != self.committed[key]]
        spec, version = context.spec, context.changes.version
        tables = tuple(spec.tables.contents.values())
        spilled = (0, 0) if context.spill is None else context.spill.span
        chosen = moved or list(lanes)[:1]
        messages = {
            key: lanes[key].commit_message(engine, spec.fingerprint, self._epoch_number, len(lanes), version)
            for key in chosen
        }
        records = self._record_repeats(messages)
        offsets: dict[Lane, tuple[int, str]] = {}
        for key, own in messages.items():
            message = replace(
                own,
                tables=tables,
                spilled=spilled,
                incarnation=context.sink.incarnation,
                numbers=context.program.numbers,
                repeats=(0, 0) if context.repeats is None else context.repeats.span,
                topic_id=context.recovery.topic_ids.get(key[0], ""),
            )
            offsets[key] = lanes[key].position, message.encode()
        return offsets, records

    def _record_repeats(self, messages: Mapping[Lane, Commit]) -> list[BlockRecord]:
        """Add the repeats since the last commit to the log, and drop from it what no recovery needs with these commit
        messages. A group may read again more than its commits say, as far as its engine knows the log."""
        context = self._context
        if context.repeats is None:
            return []
        found = context.engine.take_repeats()
        context.metrics.deduplicated.inc(sum(map(len, found.values())))
        records = context.repeats.add(found)
        self._read_from |= {key: min(point.offset for point in own.points) for key, own in messages.items()}
        context.repeats.forget(first_read(context.engine, context.lanes, self._read_from))
        return records

    def keep_durable(self, engine: Engine, final: bool) -> None:
        """Write a snapshot or its next blocks, if they are due."""
        snapshots = self._context.snapshots
        if snapshots.due or (final and snapshots.ready):
            self._snapshot(engine)
        elif snapshots.failed and engine.durable:
            # Tuples that wait for a snapshot would fill the memory, but no snapshot will be written any more.
            engine.durable = False
            engine.checkpoint()
        elif engine.unsaved_tuples >= AHEAD_TUPLES and snapshots.ready:
            snapshots.add(engine.checkpoint())

    def _snapshot(self, engine: Engine) -> None:
        context = self._context
        if self.moved() or context.rejected.records or self._snapshot_epoch == self._epoch_number:
            return  # the disk must not be ahead of Kafka, and one snapshot per commit is enough
        self._snapshot_epoch = self._epoch_number
        cut = engine.cut
        points = {key: lane.points_at(engine, cut) for key, lane in context.lanes.items()}
        snapshot = Snapshot(context.spec.cluster, context.spec.fingerprint, self._epoch_number, cut, points)
        context.snapshots.write(snapshot, engine.checkpoint())


def first_read(
    engine: TaskEngine, lanes: Mapping[Lane, InputLane | BlockLane], committed: Mapping[Lane, int]
) -> dict[tuple[str, int], int]:
    """By stream and partition, the least offset from which a recovery may read: what was committed of each lane, or for
    a group as far back as its engine knows the log."""
    return {
        (stream, partition): min(committed[key], engine.replay_point(stream, partition, NEVER).offset)
        for key, lane in lanes.items()
        for stream, partition in lane.inputs
    }
