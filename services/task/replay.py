"""Restores a task's state: loads its snapshot, reads its input again, and advances exactly to the last commit.

`services.task.task` calls `restore` and `replay` when an incarnation starts.
"""

from __future__ import annotations

from collections.abc import Callable

from operators.data.watermark import END
from schemas.errors import SpillError, StateError
from services.formats.schema_registry import SchemaUnavailable
from services.task.alignment import Alignment
from services.task.block_lane import BlockLane
from services.task.context import TaskContext
from services.task.inbox import Arrival, FlushRequest, Inbox
from services.task.lane import InputLane

PENDING_TUPLES = 65_536
"""Source tuples that a replay reads before it processes them."""


class SnapshotDamaged(Exception):
    """The snapshot on disk cannot be used."""


def restore(context: TaskContext) -> None:
    """Set the engine's clocks, and load the snapshot.

    Raises:
        SnapshotDamaged: the snapshot cannot be used.
        SpillError: spilled state cannot be written or read.
    """
    for lane in context.lanes.values():
        lane.restore_clocks(context.engine)
    engine, store = context.program.durable, context.store
    if store is None or engine is None:
        return
    engine.durable = True
    try:
        if context.recovery.source == "snapshot":
            engine.restore(context.recovery.floor, store.blocks())
        elif store.roll_back() is not None:
            # Row numbers start again, so blocks of an earlier incarnation do not fit any more.
            store.wipe()
    except SpillError:
        raise
    except StateError as error:
        raise SnapshotDamaged(str(error)) from error


def replay(context: TaskContext, inbox: Inbox, alignment: Alignment, stopped: Callable[[], bool]) -> None:
    """Read again what an earlier incarnation took, advance to the last commit, and take what has arrived since."""
    context.step = "reading again what an earlier incarnation took"
    engine, recovery, lanes = context.engine, context.recovery, context.lanes
    replayed = 0
    for lane in lanes.values():
        if not lane.replaying:
            lane.set_idle(engine, True)
    while any(lane.replaying for lane in lanes.values()) and not stopped():
        item = inbox.get(0.1)
        if isinstance(item, FlushRequest):
            item.done.set()
        if isinstance(item, Arrival) and item.batch is not None:
            lanes[item.lane].retained.append(item.batch)
        for key, lane in lanes.items():
            if lane.waits_for or (isinstance(item, Arrival) and item.lane == key):
                replayed += _replay_retained(context, lane)
        if engine.pending_tuples > min(alignment.most_pending, PENDING_TUPLES):
            engine.take_versions()
            cut = min(engine.watermark(), recovery.cut, _limit(context))
            if cut > engine.cut:
                engine.advance(cut)
        alignment.pause_lanes_ahead(frozenset(key for key, lane in lanes.items() if lane.retained))
    if stopped():
        return
    if recovery.cut > engine.cut:
        engine.advance(recovery.cut)
    if context.feedback is not None:
        context.feedback.restore()
    for lane in lanes.values():
        lane.set_idle(engine, False)
        context.take(lane)
    context.metrics.replayed.inc(replayed)
    context.log.info(
        "task running",
        source=recovery.source,
        epoch=recovery.epoch,
        cut=engine.cut or "nothing read yet",
        replayed=replayed,
    )


def _limit(context: TaskContext) -> int:
    """How far the task may advance before it has read more: late tuples enter when they did before."""
    if context.spill is None:
        return END
    read = {name: lane.position for lane in context.lanes.values() for name, _ in lane.inputs}
    return context.spill.replay_limit(read)


def _replay_retained(context: TaskContext, lane: InputLane | BlockLane) -> int:
    """Read again what a lane has retained, as far as an earlier incarnation took it and its schemas are known; returns
    the number of tuples taken."""
    taken = 0
    while lane.replaying and lane.retained:
        batch = lane.retained.popleft()
        try:
            taken += lane.replay(context.engine, batch.until(lane.replay_end))
        except SchemaUnavailable as error:
            lane.retained.appendleft(batch)
            lane.waits_for = str(error)
            return taken
        lane.waits_for = ""
        if not lane.replaying:
            lane.set_idle(context.engine, True)
            if batch.next_offset > lane.replay_end:
                lane.retained.appendleft(batch.since(lane.replay_end))
    return taken
