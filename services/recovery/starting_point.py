"""Decides where a task starts: a pure function of what is committed, what is on disk, and what the log still holds.

`services.worker.task_opener` calls `plan_recovery` or `plan_handover`. There are four ways to start, with one outcome:
the task stands exactly where the last commit left it.

- *fresh*: nothing is committed; read from the start of the log, or from its end. A task that begins at the end commits
  at once where that was (`services.task.commits`).
- *snapshot*: load the blocks on disk. They hold all tuples before the snapshot's cut, which is at or before the
  committed cut. Then read the log again from the snapshot's offsets, and take only tuples with ts at or after its cut:
  the others are in the blocks.
- *handover*: the task belongs to a new plan and has committed nothing. The old plan's tasks have committed where
  windows begin. The new task processes everything from there on, and drops on output the results that the old plan has
  delivered.
- *window*: read again from before the oldest tuple that a window still needs. This is always possible while the log
  reaches back far enough, because a window join's state is a function of its window's input.

Between snapshot and window, the task takes the one that reads fewer records again.

In all four, reference tables are read from their files: neither a snapshot nor the log holds them. If a table has
changed since the last commit, the windows are rebuilt with its new content. Results that are out stay as they are; each
later result is made once, with the new content. With EXCEPT and aggregates, results are the changes of an answer, and
those of the old and the new content would not add up; then the task refuses to start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from schemas.errors import BrokerError, StateError
from schemas.messages.commits import UNSEEN, Commit, Floor, StreamPoint
from schemas.timestamps import format_progress
from services.kafka.topics import Lane


@dataclass(frozen=True, slots=True)
class Committed:
    """A partition's committed offset: the next record to take, and the task's commit message."""

    offset: int
    message: Commit


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The manifest of the state store on disk.

    Attributes:
        epoch: number of the commit that the snapshot belongs to.
        cut: all tuples with ts < cut that windows need are in the blocks.
        points: per partition and stream, where to resume reading to see every tuple with ts >= cut.
    """

    cluster: str
    fingerprint: str
    epoch: int
    cut: int
    points: Mapping[Lane, tuple[StreamPoint, ...]]


@dataclass(frozen=True, slots=True)
class LaneStart:
    """Where to start in one partition.

    Attributes:
        offset: the first record to read.
        replay_end: records before this offset were taken before the last commit; they only rebuild state.
        points: clock and floors per stream that reads the partition.
        window: where a recovery without a snapshot would start; equals `points` unless a snapshot shortens the replay.
    """

    offset: int
    replay_end: int
    points: tuple[StreamPoint, ...]
    window: tuple[StreamPoint, ...]


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """How a task starts.

    Attributes:
        source: which of the four ways; see the module.
        cut: results with a smaller ts are delivered.
        floor: tuples with a smaller ts come from the snapshot; 0 without a snapshot.
        epoch: number of the last commit, 0 before the first.
        plan_version: version of the plan at the last commit.
        records: how many offsets will be read again.
        notes: messages for the operator, written to the log.
        spilled: the span of records of the spill log to replay, as `Commit.spilled`.
        incarnation: the one that made the last commit, as `Commit.incarnation`.
        numbers: at the last commit, as `Commit.numbers`.
        repeats: the span of records of repeats, as `Commit.repeats`.
        former: in a handover, the last commits of the old plan's tasks.
        topic_ids: as `Commit.topic_id`, by topic.
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
    incarnation: str = ""
    numbers: tuple[int, ...] = ()
    repeats: tuple[int, int] = (0, 0)
    former: Mapping[Lane, Committed] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)


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
    from_beginning: Collection[Lane] = (),
    tables: Mapping[str, str] | None = None,
    emits_changes: bool = False,
    topic_ids: Mapping[str, str] | None = None,
) -> RecoveryPlan:
    """Decide how a task starts.

    Args:
        streams: the task's partitions with the number of streams that read each.
        committed: commits of the partitions that have a committed offset.
        snapshot: what is on disk; None without a snapshot.
        log: first offset and end of each partition's log.
        from_latest: start at the end of the log if nothing is committed yet.
        accept_loss: continue even if the log no longer holds what is needed.
        from_beginning: partitions that are read from their beginning even with `from_latest`.
        tables: fingerprint of each table's content, by name in the query's order.
        emits_changes: True if results are the changes of an answer (EXCEPT, aggregates).
        topic_ids: of the topics as they are now; empty where Kafka has none.

    Raises:
        StateError: to continue could lose or repeat results.
        BrokerError: this worker does not know all partitions of the task yet.
    """
    ids = topic_ids or {}
    if not committed:
        return replace(_fresh(streams, snapshot, cluster, log, from_latest, from_beginning), topic_ids=ids)
    notes: list[str] = []
    _check_topics(committed, ids, accept_loss, notes)
    newest = max((c.message for c in committed.values()), key=lambda message: message.epoch)
    for lane, found in committed.items():
        _check_commit(lane, found, fingerprint, log[lane], streams[lane])
    added = [lane for lane in streams if lane not in committed]
    if added and len(committed) < newest.partitions:
        raise StateError(
            f"no committed offset for {_shown(added)}, though the task's commit {newest.epoch} covered "
            f"{newest.partitions} partitions: offsets expired or were deleted; give the query a new group (--group) "
            "to start anew"
        )
    if len(streams) < newest.partitions:
        # A task's partitions only become more. If this one went on without some, its watermark would not wait for them.
        raise BrokerError(
            f"the task's commit {newest.epoch} covered {newest.partitions} partitions, and this worker knows "
            f"{len(streams)}: it waits until Kafka shows it the others; if a topic was made anew with fewer, give the "
            "query a new group (--group) to start anew"
        )
    _check_tables(newest, tables or {}, emits_changes, notes)
    for lane in committed:
        if log[lane][0] > committed[lane].offset:
            _lost(lane, committed[lane].offset, log[lane][0], "not yet taken", accept_loss, notes)
    # Partitions added since the commit are read from the start, even if the query started at the end of the log.
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
        if start.offset < first and start.offset < start.replay_end:
            _lost(lane, start.offset, first, "needed to rebuild its window", accept_loss, notes)
        lanes[lane] = LaneStart(max(start.offset, first), max(start.replay_end, first), start.points, start.window)
    return replace(
        best,
        lanes=lanes,
        notes=tuple(notes),
        spilled=newest.spilled,
        incarnation=newest.incarnation,
        numbers=newest.numbers,
        repeats=newest.repeats,
        topic_ids=ids,
    )


def plan_handover(
    *,
    streams: Mapping[Lane, int],
    former: Mapping[Lane, Committed],
    version: int,
    log: Mapping[Lane, tuple[int, int]],
    accept_loss: bool = False,
    topic_ids: Mapping[str, str] | None = None,
) -> RecoveryPlan:
    """Decide how a task of a new plan starts when it takes over from the old plan.

    Args:
        streams: as for `plan_recovery`.
        former: the last commits of the old plan's tasks, by partition. Partitions that the old plan did not read are
            read from their beginning.
        version: of the new plan.
        log, accept_loss, topic_ids: as for `plan_recovery`.

    Raises:
        StateError: the log no longer holds what windows need.
    """
    lanes: dict[Lane, LaneStart] = {}
    notes: list[str] = []
    ids = topic_ids or {}
    _check_topics({lane: former[lane] for lane in streams if lane in former}, ids, accept_loss, notes)
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
    return RecoveryPlan(
        "handover", 0, 0, 0, version, lanes, _records(lanes), tuple(notes), former=former, topic_ids=ids
    )


def _fresh(
    streams: Mapping[Lane, int],
    snapshot: Snapshot | None,
    cluster: str,
    log: Mapping[Lane, tuple[int, int]],
    from_latest: bool,
    from_beginning: Collection[Lane],
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
    lanes = {
        lane: _fresh_lane(log[lane], count, from_latest and lane not in from_beginning)
        for lane, count in streams.items()
    }
    return RecoveryPlan("fresh", 0, 0, 0, 0, lanes, 0, notes)


def _fresh_lane(log: tuple[int, int], streams: int, from_latest: bool) -> LaneStart:
    offset = log[1] if from_latest else log[0]
    points = (StreamPoint(offset, UNSEEN),) * streams
    return LaneStart(offset, offset, points, points)


def _check_commit(lane: Lane, found: Committed, fingerprint: str, log: tuple[int, int], streams: int) -> None:
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


def _check_topics(
    committed: Mapping[Lane, Committed], ids: Mapping[str, str], accepted: bool, notes: list[str]
) -> None:
    """Find the topics that have been made anew since the last commit; note them, or refuse to start."""
    ascending = sorted(committed.items(), key=lambda item: item[1].message.epoch)
    newest = {topic: found.message for (topic, _), found in ascending}
    for topic, message in newest.items():
        is_id = ids.get(topic, "")
        if not is_id or message.topic_id in ("", is_id):
            continue
        text = (
            f"topic {topic!r} was deleted and made anew since commit {message.epoch} (its id was {message.topic_id}, "
            f"and is {is_id}): its offsets mean other records"
        )
        if not accepted:
            raise StateError(
                f"{text}; give the query a new group (--group) to start anew. If the topic is a copy with the same "
                "offsets, --accept-loss continues with it"
            )
        notes.append(text)


def _check_tables(newest: Commit, tables: Mapping[str, str], emits_changes: bool, notes: list[str]) -> None:
    """Find the tables that have changed since the last commit; note them, or refuse to start."""
    for (name, content), was in zip(tables.items(), newest.tables, strict=False):
        if content == was:
            continue
        text = f"table {name!r} has changed since commit {newest.epoch}"
        if emits_changes:
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
    """The recovery plan that uses the snapshot; None if the snapshot does not belong to these commits."""
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
            # The partition was added after the snapshot, so its whole window is needed.
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
    return sum(max(0, lane.replay_end - lane.offset) for lane in lanes.values())


def _reachable(plan: RecoveryPlan, log: Mapping[Lane, tuple[int, int]]) -> bool:
    return all(s.offset >= log[lane][0] or s.offset >= s.replay_end for lane, s in plan.lanes.items())


def _lost(lane: Lane, offset: int, first: int, why: str, accepted: bool, notes: list[str]) -> None:
    text = (
        f"records {offset} to {first - 1} of {lane[0]}[{lane[1]}], {why}, are gone from the log (retention is shorter "
        "than the query needs)"
    )
    if not accepted:
        raise StateError(f"{text}; results would be missing. --accept-loss continues without them")
    notes.append(text)


def _shown(lanes: list[Lane]) -> str:
    return ", ".join(f"{topic}[{number}]" for topic, number in lanes[:5]) + (", ..." if len(lanes) > 5 else "")
