"""Where a task starts: the combinations of commits, disk and log that work, and those that Weir must refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas.errors import BrokerError, StateError
from schemas.messages.commits import UNSEEN, Commit, Floor, StreamPoint
from services.recovery.starting_point import Committed, RecoveryPlan, Snapshot, plan_handover, plan_recovery

A, B = ("ta", 0), ("tb", 0)


def committed(
    offset: int, point: int, *, cut: int = 1000, epoch: int = 5, query: str = "q", partitions: int = 2
) -> Committed:
    return Committed(offset, Commit(query, epoch, cut, 0, partitions, (StreamPoint(point, 500),)))


def snapshot(cut: int, a: int, b: int, *, cluster: str = "c", query: str = "q") -> Snapshot:
    points = {A: (StreamPoint(a, cut - 1),), B: (StreamPoint(b, cut - 1),)}
    return Snapshot(cluster, query, 4, cut, points)


def plan(
    found: dict[tuple[str, int], Committed],
    disk: Snapshot | None = None,
    log: dict[tuple[str, int], tuple[int, int]] | None = None,
    **more: Any,
) -> RecoveryPlan:
    return plan_recovery(
        streams={A: 1, B: 1},
        fingerprint="q",
        cluster="c",
        committed=found,
        snapshot=disk,
        log=log or {A: (0, 1000), B: (0, 1000)},
        **more,
    )


BOTH = {A: committed(100, 40), B: committed(200, 150)}


def test_nothing_committed_starts_at_either_end_of_the_log() -> None:
    first = plan({}, log={A: (7, 20), B: (0, 9)})
    assert (first.source, first.cut, first.epoch, first.records) == ("fresh", 0, 0, 0)
    assert (first.lanes[A].offset, first.lanes[A].replay_end) == (7, 7)
    assert first.lanes[A].points == (StreamPoint(7, UNSEEN),)
    assert plan({}, log={A: (7, 20), B: (0, 9)}, from_latest=True).lanes[A].offset == 20


def test_an_empty_disk_replays_the_window() -> None:
    found = plan(BOTH)
    assert (found.source, found.cut, found.floor, found.epoch, found.records) == ("window", 1000, 0, 5, 110)
    assert (found.lanes[A].offset, found.lanes[A].replay_end) == (40, 100)


def test_a_snapshot_shortens_the_replay() -> None:
    found = plan(BOTH, snapshot(900, 80, 190))
    assert (found.source, found.cut, found.floor, found.records) == ("snapshot", 1000, 900, 30)
    assert found.lanes[A].offset == 80
    # The starting point without a disk stays known, in case the disk is lost later.
    assert found.lanes[A].window == (StreamPoint(40, 500),)


def test_an_old_snapshot_is_not_worth_it() -> None:
    assert plan(BOTH, snapshot(200, 10, 20)).source == "window"


def test_the_plan_that_the_log_still_holds_is_chosen() -> None:
    assert plan(BOTH, snapshot(900, 80, 190), {A: (60, 1000), B: (0, 1000)}).source == "snapshot"
    assert plan(BOTH, snapshot(200, 10, 20), {A: (30, 1000), B: (0, 1000)}).source == "window"


def test_floors_of_both_are_kept() -> None:
    late = Committed(100, Commit("q", 5, 1000, 0, 2, (StreamPoint(40, 500, (Floor(90, 950),)),)))
    disk = Snapshot("c", "q", 4, 900, {A: (StreamPoint(80, 899, (Floor(70, 880),)),), B: (StreamPoint(190, 899),)})
    found = plan({A: late, B: BOTH[B]}, disk)
    assert found.lanes[A].points == (StreamPoint(80, 899, (Floor(70, 880), Floor(90, 950))),)


@pytest.mark.parametrize(
    "disk",
    [
        snapshot(900, 80, 190, cluster="other"),
        snapshot(900, 80, 190, query="other"),
        snapshot(1001, 80, 190),
        snapshot(900, 101, 190),
    ],
)
def test_a_foreign_or_newer_snapshot_is_ignored_with_a_note(disk: Snapshot) -> None:
    found = plan(BOTH, disk)
    assert found.source == "window"
    assert "ignored" in found.notes[0]


def test_the_newest_message_counts_for_all_partitions() -> None:
    found = plan({A: committed(100, 40, cut=900, epoch=3), B: committed(200, 150, cut=1000, epoch=9)})
    assert (found.cut, found.epoch) == (1000, 9)


def test_an_added_partition_is_read_from_its_start() -> None:
    found = plan({A: committed(100, 40, partitions=1)}, log={A: (0, 1000), B: (3, 1000)})
    assert (found.lanes[B].offset, found.lanes[B].replay_end) == (3, 3)
    assert found.lanes[A].replay_end == 100


def test_a_task_waits_for_partitions_that_its_worker_does_not_know_yet() -> None:
    """Another worker had seen the third partition. This one went on without it: its watermark passed that partition's
    tuples, which were late when it saw them."""
    grown = {A: committed(100, 40, partitions=2, epoch=4), B: committed(200, 150, partitions=3)}
    with pytest.raises(BrokerError, match="commit 5 covered 3 partitions, and this worker knows 2: it waits"):
        plan(grown)
    with pytest.raises(BrokerError, match="covered 3 partitions"):
        plan(grown, snapshot(900, 80, 190), accept_loss=True)


def test_a_lost_commit_is_refused() -> None:
    with pytest.raises(StateError, match=r"no committed offset for tb\[0\], though .* covered 2 partitions"):
        plan({A: committed(100, 40)})


def test_lost_commits_with_a_snapshot_are_refused() -> None:
    with pytest.raises(StateError, match="would repeat results"):
        plan({}, snapshot(900, 80, 190))
    assert plan({}, snapshot(900, 80, 190, cluster="other")).source == "fresh"


def test_another_query_is_refused() -> None:
    with pytest.raises(StateError, match="the query has changed since its commit 5"):
        plan({A: committed(100, 40, query="old"), B: committed(200, 150, query="old")})


def test_a_log_made_anew_is_refused() -> None:
    with pytest.raises(StateError, match="committed offset 200 of tb\\[0\\] lies beyond the end of the log, 150"):
        plan(BOTH, log={A: (0, 1000), B: (0, 150)})


def test_a_topic_made_anew_and_filled_beyond_the_commit_is_refused_or_accepted() -> None:
    """Its offsets were taken for those of the former topic, and the records up to the commit were never read."""
    ids = {"ta": "a1", "tb": "b1"}
    known = {lane: Committed(c.offset, replace(c.message, topic_id=ids[lane[0]])) for lane, c in BOTH.items()}
    assert plan(known, topic_ids=ids).notes == ()
    assert plan(known, topic_ids=ids).topic_ids == ids
    assert plan(known, topic_ids={"ta": "a1", "tb": ""}).notes == (), "a broker that gives no ids"
    assert plan(BOTH, topic_ids=ids).notes == (), "commits of an earlier Weir"
    anew = {"ta": "a1", "tb": "b2"}
    with pytest.raises(
        StateError, match=r"topic 'tb' was deleted .* commit 5 \(its id was b1, and is b2\).*--group"
    ):
        plan(known, topic_ids=anew)
    (note,) = plan(known, topic_ids=anew, accept_loss=True).notes
    assert "made anew" in note
    with pytest.raises(StateError, match="topic 'tb' was deleted"):
        plan_handover(streams={A: 1, B: 1}, former=known, version=1, log={A: (0, 1000), B: (0, 1000)}, topic_ids=anew)


def test_of_two_partitions_of_a_topic_the_newer_commit_says_which_topic_it_was() -> None:
    """The older one is of before `--accept-loss`."""
    second = ("ta", 1)
    found = {
        A: Committed(100, replace(committed(100, 40, epoch=4).message, topic_id="a1")),
        second: Committed(100, replace(committed(100, 40, epoch=5).message, topic_id="a2")),
    }
    log = dict.fromkeys(found, (0, 1000))
    streams = dict.fromkeys(found, 1)
    assert plan_handover(streams=streams, former=found, version=1, log=log, topic_ids={"ta": "a2"}).notes == ()


def test_input_lost_to_retention_is_refused_or_accepted() -> None:
    untaken = {A: (120, 1000), B: (0, 1000)}
    with pytest.raises(StateError, match=r"records 100 to 119 of ta\[0\], not yet taken, are gone"):
        plan(BOTH, log=untaken)
    found = plan(BOTH, log=untaken, accept_loss=True)
    assert (found.lanes[A].offset, found.lanes[A].replay_end) == (120, 120)
    assert len(found.notes) == 2
    window = {A: (50, 1000), B: (0, 1000)}
    with pytest.raises(StateError, match=r"records 40 to 49 of ta\[0\], needed to rebuild its window, are gone"):
        plan(BOTH, log=window)
    found = plan(BOTH, log=window, accept_loss=True)
    assert (found.lanes[A].offset, found.lanes[A].replay_end) == (50, 100)


def with_tables(*contents: str) -> dict[tuple[str, int], Committed]:
    """Commits of a query with tables; those of the older epoch name other contents."""
    older = replace(BOTH[A].message, epoch=4, cut=900, tables=("00", "00"))
    newer = replace(BOTH[B].message, tables=contents)
    return {A: replace(BOTH[A], message=older), B: replace(BOTH[B], message=newer)}


def test_unchanged_tables_cause_no_note() -> None:
    found = with_tables("aa", "bb")
    assert plan(found, tables={"rooms": "aa", "floors": "bb"}).notes == ()
    assert plan(found, tables={"rooms": "aa", "floors": "bb"}, emits_changes=True).notes == ()
    assert plan({}, tables={"rooms": "aa"}).notes == ()


@pytest.mark.parametrize("disk", [None, snapshot(900, 80, 190)])
def test_a_changed_table_is_noticed_and_nothing_else_changes(disk: Snapshot | None) -> None:
    """The newest commit counts. The state is rebuilt with the new content, from the same offset."""
    found, now = with_tables("aa", "bb"), {"rooms": "aa", "floors": "cc"}
    same = plan(found, disk, tables={"rooms": "aa", "floors": "bb"})
    changed = plan(found, disk, tables=now)
    (note,) = changed.notes
    assert note.startswith("table 'floors' has changed since commit 5: results before 1970-01-01T00:00:01Z stay as")
    assert replace(changed, notes=()) == same


def test_changes_of_an_answer_refuse_another_table() -> None:
    with pytest.raises(StateError, match=r"table 'rooms' has changed since commit 5: with EXCEPT.*--group"):
        plan(with_tables("aa", "bb"), tables={"rooms": "ab", "floors": "bb"}, emits_changes=True)
