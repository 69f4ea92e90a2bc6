"""Where a task begins: a pure decision from what is committed, what is on disk, and what the log still holds.

Four ways, one outcome (the task stands exactly where the last commit left it):

- *fresh*: nothing is committed; read from the start (or the end) of the log.
- *snapshot*: load the blocks on disk, of cut Ws <= W, then read again what came since, taking only tuples
  with ts >= Ws (the others are in the blocks).
- *handover*: the task is of a new plan, and nothing of it is committed. The old plan's tasks have said where windows
  begin; all from there on is processed anew, and what the old plan has given is left out where results leave.
- *window*: read again from before the oldest tuple that a window still needs. Always possible while the
  log reaches back far enough: a window join's state is a function of its window's input.

Of the last two, the one that reads fewer records again. Source: design section 3.3.

Reference tables are read from their files, whatever the way: neither a snapshot nor the log has them. Where one has
changed since the last commit, the windows are rebuilt with its new content: results that are out stay as they are,
each later one is made once, with the new content. Where results are the changes of an answer (EXCEPT, aggregates)
they would not add up any more; then the task does not begin.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from schemas.errors import StateError
from schemas.messages.commits import UNSEEN, Commit, Floor, StreamPoint
from schemas.timestamps import format_progress
from services.kafka.topics import Lane


@dataclass(frozen=True, slots=True)
class Committed:
    """What a partition's committed offset says: the next record to take, and the task's message."""

    offset: int
    message: Commit


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the state store on disk says about itself.

    Attributes:
        cut: everything below is in its blocks.
        points: per partition and stream, where to read on from to see every tuple with ts >= cut.
    """

    cluster: str
    fingerprint: str
    epoch: int
    cut: int
    points: Mapping[Lane, tuple[StreamPoint, ...]]


@dataclass(frozen=True, slots=True)
class LaneStart:
    """How to begin with one partition.

    Attributes:
        offset: read from here.
        live: records before it have been taken already and only rebuild state.
        points: clock and floors per stream that reads the partition.
        window: where a recovery without disk would begin; `points` unless a snapshot shortens the way.
    """

    offset: int
    live: int
    points: tuple[StreamPoint, ...]
    window: tuple[StreamPoint, ...]


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """How a task begins.

    Attributes:
        cut: results below it are out.
        floor: tuples below it come from the snapshot, 0 without one.
        epoch: number of the last commit, 0 before the first.
        records: how many offsets will be read again.
        notes: what an operator should know, for the log.
        spilled: the spill events that happen again, as `Commit` has them.
    """

    source: Literal["fresh", "snapshot", "window", "handover"]
    cut: int
    floor: int
    epoch: int
    plan_version: int
    lanes: Mapping[Lane, LaneStart]
    records: int
    notes: tuple[str, ...] = ()
    spilled: tuple[int, int] = (0, 0)


def plan_recovery(
    *,
    streams: Mapping[Lane, int],
    fingerprint: str,
    cluster: str,
    committed: Mapping[Lane, Committed],
    snapshot: Snapshot | None,
    log: Mapping[Lane, tuple[int, int]],
    from_latest: bool = False,
    accept_loss: bool = False,
    whole: Collection[Lane] = (),
    tables: Mapping[str, str] | None = None,
    changes: bool = False,
) -> RecoveryPlan:
    """Decide.

    Args:
        streams: the task's partitions with the number of streams that read each.
        committed: partitions that have a committed offset.
        log: first offset and end of each partition's log.
        accept_loss: go on where the log no longer holds what is needed.
        from_latest: begin at the end of the log, where nothing is committed yet.
        whole: partitions that are read from their beginning whatever `from_latest` says.
        tables: what is in each table, by name in the query's order.
        changes: results are the changes of an answer.

    Raises:
        StateError: going on could lose or repeat results.
    """
    if not committed:
        return _fresh(streams, snapshot, cluster, log, from_latest, whole)
    newest = max((c.message for c in committed.values()), key=lambda message: message.epoch)
    for lane, found in committed.items():
        _check(lane, found, fingerprint, log[lane], streams[lane])
    added = [lane for lane in streams if lane not in committed]
    if added and len(committed) < newest.partitions:
        raise StateError(
            f"no committed offset for {_shown(added)}, though the task's commit {newest.epoch} covered "
            f"{newest.partitions} partitions: offsets expired or were deleted; give the query a new group (--group) "
            "to start anew"
        )
    notes: list[str] = []
    _compare(newest, tables or {}, changes, notes)
    for lane in committed:
        if log[lane][0] > committed[lane].offset:
            _lost(lane, committed[lane].offset, log[lane][0], "not yet taken", accept_loss, notes)
    # Added since: whatever the query was begun with, nothing of them has been passed over.
    fresh = {lane: _fresh_lane(log[lane], streams[lane], from_latest=False) for lane in added}
    lanes = {
        lane: LaneStart(min(p.offset for p in c.message.points), c.offset, c.message.points, c.message.points)
        for lane, c in committed.items()
    }
    window = RecoveryPlan("window", newest.cut, 0, newest.epoch, newest.plan_version, lanes | fresh, _records(lanes))
    from_disk = _from_snapshot(window, snapshot, committed, fresh, cluster, fingerprint, notes)
    best = window
    if (
        from_disk is not None
        and _reachable(from_disk, log)
        and (from_disk.records <= window.records or not _reachable(window, log))
    ):
        best = from_disk
    lanes = {}
    for lane, start in best.lanes.items():
        first = log[lane][0]
        if start.offset < first and start.offset < start.live:
            _lost(lane, start.offset, first, "needed to rebuild its window", accept_loss, notes)
        lanes[lane] = LaneStart(max(start.offset, first), max(start.live, first), start.points, start.window)
    return replace(best, lanes=lanes, notes=tuple(notes), spilled=newest.spilled)


def plan_handover(
    *,
    streams: Mapping[Lane, int],
    former: Mapping[Lane, Committed],
    version: int,
    log: Mapping[Lane, tuple[int, int]],
    accept_loss: bool = False,
) -> RecoveryPlan:
    """Begin a task of a plan that takes over.

    Args:
        streams: as for `plan_recovery`.
        former: what the old plan's tasks have committed last of those partitions that they have read too; the others
            are read from their beginning.
        version: of the new plan.

    Raises:
        StateError: the log no longer holds what windows need.
    """
    lanes: dict[Lane, LaneStart] = {}
    notes: list[str] = []
    for lane, count in streams.items():
        found = former.get(lane)
        if found is None:
            lanes[lane] = _fresh_lane(log[lane], count, from_latest=False)
            continue
        points, first = found.message.points, log[lane][0]
        offset = min(point.offset for point in points)
        if offset < first and offset < found.offset:
            _lost(lane, offset, first, "needed to rebuild its window", accept_loss, notes)
        lanes[lane] = LaneStart(max(offset, first), max(found.offset, first), points, points)
    return RecoveryPlan("handover", 0, 0, 0, version, lanes, _records(lanes), tuple(notes))


def _fresh(
    streams: Mapping[Lane, int],
    snapshot: Snapshot | None,
    cluster: str,
    log: Mapping[Lane, tuple[int, int]],
    from_latest: bool,
    whole: Collection[Lane],
) -> RecoveryPlan:
    notes: tuple[str, ...] = ()
    if snapshot is not None:
        if snapshot.cluster == cluster:
            raise StateError(
                f"the disk has a snapshot of commit {snapshot.epoch}, but Kafka has no committed offsets: they expired "
                "or were deleted. Starting from the beginning would repeat results; if that is wanted, delete the "
                "state directory or give a new group (--group)"
            )
        notes = (f"snapshot of another cluster ({snapshot.cluster}) ignored",)
    lanes = {lane: _fresh_lane(log[lane], count, from_latest and lane not in whole) for lane, count in streams.items()}
    return RecoveryPlan("fresh", 0, 0, 0, 0, lanes, 0, notes)


def _fresh_lane(log: tuple[int, int], streams: int, from_latest: bool) -> LaneStart:
    offset = log[1] if from_latest else log[0]
    points = (StreamPoint(offset, UNSEEN),) * streams
    return LaneStart(offset, offset, points, points)


def _check(lane: Lane, found: Committed, fingerprint: str, log: tuple[int, int], streams: int) -> None:
    topic, number = lane
    if found.message.fingerprint != fingerprint or len(found.message.points) != streams:
        raise StateError(
            f"the query has changed since its commit {found.message.epoch}: windows, streams and predicates must stay "
            "the same for a group; give the changed query a new group (--group) or a new sink"
        )
    if found.offset > log[1]:
        raise StateError(
            f"committed offset {found.offset} of {topic}[{number}] lies beyond the end of the log, {log[1]}: the topic "
            "was made anew or lost data; give the query a new group (--group) to start anew"
        )


def _compare(newest: Commit, tables: Mapping[str, str], changes: bool, notes: list[str]) -> None:
    """Notice tables that are not what they were at the last commit."""
    for (name, content), was in zip(tables.items(), newest.tables, strict=False):
        if content == was:
            continue
        text = f"table {name!r} has changed since commit {newest.epoch}"
        if changes:
            raise StateError(
                f"{text}: with EXCEPT and aggregates, results are the changes of an answer, and those of the former "
                "content and of the new one would not add up; put the former file back, or give the query a new group "
                "(--group) to start anew"
            )
        notes.append(
            f"{text}: results before {format_progress(newest.cut)} stay as they are, later ones come of its new content"
        )


def _from_snapshot(
    window: RecoveryPlan,
    snapshot: Snapshot | None,
    committed: Mapping[Lane, Committed],
    fresh: Mapping[Lane, LaneStart],
    cluster: str,
    fingerprint: str,
    notes: list[str],
) -> RecoveryPlan | None:
    """The plan that uses the snapshot; None when it does not belong to these commits."""
    if snapshot is None:
        return None
    if snapshot.cluster != cluster or snapshot.fingerprint != fingerprint:
        notes.append("snapshot of another cluster or query ignored")
        return None
    if snapshot.cut > window.cut or set(snapshot.points) - set(committed):
        notes.append(f"snapshot of commit {snapshot.epoch} ignored: it is ahead of the committed offsets")
        return None
    lanes: dict[Lane, LaneStart] = {}
    for lane, found in committed.items():
        points = snapshot.points.get(lane)
        if points is None:
            # The partition was added after the snapshot: everything of it is needed.
            lanes[lane] = window.lanes[lane]
            continue
        if min(p.offset for p in points) > found.offset or len(points) != len(found.message.points):
            notes.append(f"snapshot of commit {snapshot.epoch} ignored: it is ahead of the committed offsets")
            return None
        merged = tuple(
            StreamPoint(own.offset, own.max_ts, _merged(own.floors, since.floors))
            for own, since in zip(points, found.message.points, strict=True)
        )
        lanes[lane] = LaneStart(min(p.offset for p in points), found.offset, merged, found.message.points)
    return RecoveryPlan(
        "snapshot",
        window.cut,
        snapshot.cut,
        window.epoch,
        window.plan_version,
        lanes | dict(fresh),
        _records(lanes),
    )


def _merged(own: tuple[Floor, ...], since: tuple[Floor, ...]) -> tuple[Floor, ...]:
    return tuple(sorted({*own, *since}, key=lambda floor: (floor.offset, floor.cut)))


def _records(lanes: Mapping[Lane, LaneStart]) -> int:
    return sum(max(0, lane.live - lane.offset) for lane in lanes.values())


def _reachable(plan: RecoveryPlan, log: Mapping[Lane, tuple[int, int]]) -> bool:
    return all(s.offset >= log[lane][0] or s.offset >= s.live for lane, s in plan.lanes.items())


def _lost(lane: Lane, offset: int, first: int, why: str, accepted: bool, notes: list[str]) -> None:
    text = (
        f"records {offset} to {first - 1} of {lane[0]}[{lane[1]}], {why}, are gone from the log (retention is shorter "
        "than the query needs)"
    )
    if not accepted:
        raise StateError(f"{text}; results would be missing. --accept-loss goes on without them")
    notes.append(text)


def _shown(lanes: list[Lane]) -> str:
    return ", ".join(f"{topic}[{number}]" for topic, number in lanes[:5]) + (", ..." if len(lanes) > 5 else "")
