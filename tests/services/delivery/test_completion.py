"""The decision which records of torn transactions are written again, over partitions in memory.

`Disk` is what Kafka holds of one task. A transaction appends to it, and then each of its parts gets a marker, the wrong
marker, or none. Incarnations of the task die at any point, even in the middle of a repair. Readers delete what they
have read. At the end each epoch must be visible once and in order in every partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from schemas.errors import StateError
from schemas.messages.commits import Commit, StreamPoint, decode_commit
from schemas.messages.prepared import Partition, PreparedTransaction, WrittenRecords
from services.delivery.completion import CommitId, Completion, Fate, RecordRun, Transaction, complete, fate
from services.delivery.transaction_log import read_back, records_of
from services.kafka.partition_log import GoneError, StoredBatch
from tests.profiles import examples

LOG: Partition = ("log", 0)
OFFSETS: Partition = ("__consumer_offsets", 0)
SOURCE: Partition = ("source", 0)
SINKS: tuple[Partition, ...] = (("out", 0), ("late", 0), ("inner", 3))
PRODUCER, OTHER = 7, 8
GAP = -1
KEY = b"task"

COMMIT, ABORT, OPEN = "commit", "abort", "open"
Outcomes = Mapping[Partition, str]


@dataclass
class Disk:
    """Per partition what was appended: (producer, epoch, records), or (producer, epoch, True or False) for a marker."""

    logs: dict[Partition, list[tuple[int, int, object]]] = field(default_factory=dict)
    first: dict[Partition, int] = field(default_factory=dict)
    """The first offset of partitions of which something has been deleted."""

    def delete_read(self, lane: Partition) -> None:
        """Delete all before the task's last transaction that a reader sees."""
        offset = 0
        pending: list[int] = []
        for producer, _, what in self.logs.get(lane, ()):
            if producer == PRODUCER and isinstance(what, bool):
                if what and pending:
                    self.first[lane] = pending[0]
                pending = []
            elif producer == PRODUCER:
                pending += range(offset, offset + _size(what))
            offset += _size(what)

    def batches(self, lane: Partition, offset: int, until: int | None = None) -> Iterator[StoredBatch]:
        """See `PartitionLogs.batches`."""
        if offset < self.first.get(lane, 0):
            raise GoneError(lane, offset)
        at = 0
        for producer, epoch, what in self.logs.get(lane, ()):
            if at + _size(what) > offset:
                if isinstance(what, bool):
                    yield StoredBatch((producer, epoch), at, what, 0, None)
                else:
                    assert isinstance(what, list)
                    kept = [SimpleNamespace(offset=at + i, key=KEY, value=value) for i, value in enumerate(what)]
                    yield StoredBatch((producer, epoch), at, None, len(what), kept)
            at += _size(what)

    def append(self, lane: Partition, epoch: int, what: object, producer: int = PRODUCER) -> None:
        self.logs.setdefault(lane, []).append((producer, epoch, what))

    def end(self, lane: Partition) -> int:
        return sum(_size(what) for _, _, what in self.logs.get(lane, ()))

    def visible(self, lane: Partition) -> list[object]:
        """What a read_committed consumer sees, in the order of offsets."""
        shown: list[tuple[int, object]] = []
        pending: dict[int, list[tuple[int, object]]] = {}
        for place, (producer, _, what) in enumerate(self.logs.get(lane, ())):
            if isinstance(what, bool):
                shown += pending.pop(producer, []) if what else []
                pending.pop(producer, None)
            else:
                assert isinstance(what, list)
                pending.setdefault(producer, []).extend((place, record) for record in what)
        return [record for _, record in sorted(shown, key=lambda found: found[0])]

    def is_open(self, lane: Partition) -> bool:
        own = [what for producer, _, what in self.logs.get(lane, ()) if producer == PRODUCER]
        return bool(own) and not isinstance(own[-1], bool)


def _size(what: object) -> int:
    return 1 if isinstance(what, bool) else len(what)  # type: ignore[arg-type]


class Died(Exception):
    """The incarnation ends here."""


class Task:
    """One incarnation, over a disk that outlives it."""

    def __init__(self, disk: Disk, number: int) -> None:
        self.disk = disk
        self.number = number
        self.name = f"incarnation {number}"

    def open(self, outcomes: Outcomes | None) -> int:
        """Make the repair, which ends with `outcomes` (None for a commit); returns the last committed epoch."""
        found = self._transactions()
        for lane in (*SINKS, LOG, OFFSETS):
            if self.disk.is_open(lane):
                self.disk.append(lane, self.number, False)
        completion = complete(found, self._committed_id())
        todo = completion.missing
        records: dict[Partition, list[object]] = {}
        offsets: dict[Partition, tuple[int, str]] = {}
        for each in todo:
            prepared = each.transaction.prepared
            for lane in each.partitions:
                again = records_of(self.disk, lane, each.transaction, self._first)  # type: ignore[arg-type]
                records.setdefault(lane, []).extend(record.value for record in again)
            offsets |= prepared.offsets if each.offsets else {}
        if todo:
            self.transaction(records, offsets, outcomes)
            if outcomes is not None:
                raise Died
        committed = self._committed_id()
        assert completion.commit is None or committed == completion.commit
        return 0 if committed is None else committed.epoch

    def deliver(self, epoch: int, sinks: Mapping[Partition, int], outcomes: Outcomes | None = None) -> None:
        message = Commit("query", epoch, epoch, 0, 1, (StreamPoint(epoch, epoch),), incarnation=self.name).encode()
        records: dict[Partition, list[object]] = {
            lane: [(epoch, i) for i in range(count)] for lane, count in sinks.items() if count
        }
        self.transaction(records, {SOURCE: (epoch, message)}, outcomes)

    def transaction(
        self,
        records: Mapping[Partition, list[object]],
        offsets: Mapping[Partition, tuple[int, str]],
        outcomes: Outcomes | None,
    ) -> None:
        """Write all parts; then each gets its outcome, a commit if `outcomes` is None."""
        disk = self.disk
        written = {lane: WrittenRecords(disk.end(lane), len(own)) for lane, own in records.items()}
        for lane, own in records.items():
            # Two batches, and another producer's records between them.
            disk.append(lane, self.number, own[:1])
            disk.append(lane, 0, ["other"], OTHER)
            disk.append(lane, 0, True, OTHER)
            if own[1:]:
                disk.append(lane, self.number, own[1:])
        disk.append(LOG, self.number, [PreparedTransaction(self.name, written, offsets).encode()])
        if offsets:
            disk.append(OFFSETS, self.number, [offsets])
        for lane in (*records, LOG, *([OFFSETS] if offsets else [])):
            outcome = COMMIT if outcomes is None else outcomes[lane]
            if outcome != OPEN:
                disk.append(lane, self.number, outcome == COMMIT)

    def dies_writing(self, epoch: int, sinks: Mapping[Partition, int], lanes: Mapping[Partition, str]) -> None:
        """Write to some partitions only, the log among them or not; Kafka aborts, or forgets to."""
        since = {lane: self.disk.end(lane) for lane in sinks}
        for lane, outcome in lanes.items():
            if lane == LOG:
                written = {sink: WrittenRecords(since[sink], count + 1) for sink, count in sinks.items()}
                self.disk.append(LOG, self.number, [PreparedTransaction(self.name, written, {}).encode()])
            elif sinks.get(lane):
                self.disk.append(lane, self.number, [(epoch, 0)])
            else:
                continue
            if outcome == ABORT:
                self.disk.append(lane, self.number, False)

    def _committed_id(self) -> CommitId | None:
        seen = self.disk.visible(OFFSETS)
        if not seen:
            return None
        messages = [decode_commit(text, "") for found in seen for _, text in found.values()]  # type: ignore[attr-defined]
        return CommitId(messages[-1].incarnation, messages[-1].epoch)

    def _transactions(self) -> list[Transaction]:
        return read_back(self.disk, LOG, self._first, KEY, {})  # type: ignore[arg-type]

    def _first(self, lane: Partition) -> int:
        return self.disk.first.get(lane, 0)


PARTS = (*SINKS, LOG, OFFSETS)
any_outcome = st.fixed_dictionaries({lane: st.sampled_from([COMMIT, ABORT, OPEN]) for lane in PARTS})
forgotten = st.fixed_dictionaries({lane: st.sampled_from([COMMIT, OPEN]) for lane in PARTS})
partly = st.dictionaries(st.sampled_from([*SINKS, LOG]), st.sampled_from([ABORT, OPEN]))
incarnation = st.tuples(
    st.one_of(st.none(), any_outcome),
    st.lists(st.one_of(st.none(), forgotten), max_size=4),
    st.one_of(st.none(), st.tuples(st.just("torn"), any_outcome), st.tuples(st.just("writing"), partly)),
)


COUNTS = st.lists(st.integers(0, 2), min_size=7, max_size=7)
"""How many records epochs write to sinks; see `_sinks`."""


def _sinks(counts: list[int], epoch: int) -> dict[Partition, int]:
    """Records per sink of an epoch: always the same, a function of the input."""
    return {lane: counts[(epoch * len(SINKS) + i) % len(counts)] for i, lane in enumerate(SINKS)}


@given(
    st.lists(incarnation, max_size=5),
    COUNTS,
    st.lists(st.sets(st.sampled_from(SINKS)), min_size=6, max_size=6),
)
@settings(examples(300), phases=[Phase.explicit, Phase.generate])
def test_every_epoch_is_visible_once(
    incarnations: list[tuple[Outcomes | None, list[Outcomes | None], tuple[str, Outcomes] | None]],
    counts: list[int],
    deletions: list[set[Partition]],
) -> None:
    """Each incarnation repairs (and may die of a torn repair), delivers, with markers forgotten, and dies."""
    disk = Disk()
    confirmed = 0
    for number, (repair, deliveries, death) in enumerate(incarnations):
        for lane in deletions[number]:
            disk.delete_read(lane)
        task = Task(disk, number)
        try:
            epoch = task.open(repair)
        except Died:
            confirmed = 0  # A transaction that Kafka forgot everywhere may be computed again.
            continue
        assert epoch >= confirmed
        for outcomes in deliveries:
            epoch += 1
            task.deliver(epoch, _sinks(counts, epoch), outcomes)
        confirmed = epoch
        if death is not None and death[0] == "torn":
            task.deliver(epoch + 1, _sinks(counts, epoch + 1), death[1])
        elif death is not None:
            task.dies_writing(epoch + 1, _sinks(counts, epoch + 1), death[1])
    for lane in deletions[len(incarnations)]:
        disk.delete_read(lane)
    last = Task(disk, len(incarnations))
    run_last(last, confirmed, counts)


def run_last(last: Task, confirmed: int, counts: list[int]) -> None:
    """Run a last incarnation without faults, and check every partition."""
    disk = last.disk
    reached = last.open(None)
    assert reached >= confirmed
    for epoch in range(reached + 1, reached + 3):
        last.deliver(epoch, _sinks(counts, epoch))
    for lane in SINKS:
        expected = [(epoch, i) for epoch in range(1, reached + 3) for i in range(_sinks(counts, epoch)[lane])]
        assert [found for found in disk.visible(lane) if found != "other"] == expected
    assert last._committed_id() == CommitId(last.name, reached + 2)


@pytest.mark.parametrize("more", [None, 0, 1])
def test_all_combinations(more: int | None) -> None:
    """One transaction is torn in any way. The task dies with it, or in the next transaction, which is aborted in all
    partitions that it writes to."""
    for outcomes in product([COMMIT, ABORT, OPEN], repeat=len(PARTS)):
        if more is not None and ABORT in outcomes:
            continue  # no broker aborts what it has confirmed
        task = Task(Disk(), 0)
        task.deliver(1, dict.fromkeys(SINKS, 1))
        task.deliver(2, dict.fromkeys(SINKS, 1), dict(zip(PARTS, outcomes, strict=True)))
        if more is not None:
            task.deliver(3, dict.fromkeys(SINKS, more), dict.fromkeys(PARTS, ABORT))
        run_last(Task(task.disk, 1), 1 if more is None else 2, [1])


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([(7, 1, 2), (7, 1, True)], Fate.COMMITTED),
        ([(7, 1, 1), (8, 1, 9), (8, 1, False), (7, 1, 1), (7, 2, True)], Fate.COMMITTED),
        ([(7, 1, 2), (8, 1, True)], Fate.OPEN),
        ([(7, 1, 3), (7, 2, False), (7, 2, 2), (7, 2, True)], Fate.ABORTED),
        ([(7, 1, 1), (7, 2, False), (7, 2, 2), (7, 2, True)], Fate.PARTIAL),
        ([(7, 1, 1), (7, 2, 1)], Fate.PARTIAL),
        ([(7, 0, True), (7, 1, 2), (7, 1, True)], Fate.COMMITTED),
        ([(7, 0, 2), (7, 0, True), (7, 1, 2)], Fate.OPEN),
        ([], Fate.PARTIAL),
        ([(GAP, 0, 1), (7, 1, 1), (7, 1, True)], Fate.THINNED),
        ([(7, 1, 1), (GAP, 0, 1), (7, 1, True)], Fate.THINNED),
        ([(GAP, 0, 1), (7, 1, 2), (7, 1, True)], Fate.COMMITTED),
        ([(GAP, 0, 1), (7, 1, 2), (GAP, 0, 1)], Fate.OPEN),
        ([(7, 1, 1), (7, 1, True), (GAP, 0, 2), (8, 1, 1)], Fate.PARTIAL),
        ([(GAP, 0, 3), (8, 1, 1)], Fate.THINNED),
        ([(GAP, 0, 1), (8, 1, 1)], Fate.PARTIAL),
    ],
)
def test_fate_of_two_records(runs: list[tuple[int, int, int | bool]], expected: Fate) -> None:
    """The records are of producer 7 in epoch 1, among those of other producers and epochs; compaction leaves gaps."""
    found, offset = [], 10
    for producer, epoch, what in runs:
        if isinstance(what, bool):
            found.append(RecordRun(producer, epoch, offset, 0, what))
        elif producer != GAP:
            found.append(RecordRun(producer, epoch, offset, what))
        offset += int(what) or 1
    assert fate(found, (7, 1), WrittenRecords(10, 2)) is expected


def test_what_compaction_has_taken_is_not_missed() -> None:
    """Compaction of a keyed sink may have dropped the last transaction's records of an idle task."""
    task = Task(Disk(), 0)
    task.deliver(1, dict.fromkeys(SINKS, 2))
    (found,) = task._transactions()
    thinned = Transaction(found.prepared, found.producer, {**found.fates, SINKS[0]: Fate.THINNED})
    assert complete([thinned], CommitId(task.name, 1)) == Completion((), CommitId(task.name, 1))
    hanging = {lane: Fate.THINNED if lane == SINKS[0] else Fate.OPEN for lane in found.fates}
    assert complete([Transaction(found.prepared, found.producer, hanging)], None) == Completion()


def test_a_log_of_other_commits_is_left_alone() -> None:
    """A Weir version without a transaction log has committed since: its commits are valid."""
    task = Task(disk := Disk(), 0)
    for epoch in (1, 2):
        task.deliver(epoch, dict.fromkeys(SINKS, 1), dict.fromkeys(PARTS, COMMIT if epoch == 1 else ABORT))
    disk.append(SINKS[0], 0, False)
    found = task._transactions()
    found[1] = Transaction(found[1].prepared, found[1].producer, {**found[1].fates, SINKS[1]: Fate.COMMITTED})
    completion = complete(found, CommitId(task.name, 1))
    assert [each.transaction for each in completion.missing] == [found[1]]
    assert completion.commit == CommitId(task.name, 2)
    assert complete(found, CommitId("", 5)) == Completion()


def test_offsets_that_are_older_than_the_log() -> None:
    """A group coordinator that is just loading its topic reports old offsets or none; the log knows the newest."""
    task = Task(Disk(), 0)
    for epoch in range(1, 6):
        task.deliver(epoch, dict.fromkeys(SINKS, 1))
    known = task._transactions()[2:]
    for committed in (None, CommitId(task.name, 1), CommitId(task.name, 4)):
        completion = complete(known, committed)
        assert completion.commit == CommitId(task.name, 5)
        assert [each.partitions for each in completion.missing] == [()] * len(completion.missing)
    assert complete(known, CommitId(task.name, 5)) == Completion((), CommitId(task.name, 5))


def test_lost_records_are_reported() -> None:
    """Kafka has lost records of a transaction that it made visible elsewhere: they cannot be written again."""
    task = Task(Disk(), 0)
    task.deliver(1, dict.fromkeys(SINKS, 2))
    (found,) = task._transactions()
    lost = Transaction(found.prepared, found.producer, {**found.fates, ("out", 0): Fate.PARTIAL})
    with pytest.raises(StateError, match=r"out\[0\] does not hold the 2 records from offset 0 on"):
        complete([lost], CommitId(task.name, 1))


def test_a_repair_without_offsets_names_the_newest_commit() -> None:
    """Epoch 2 hangs in one sink, epoch 3 is aborted, and the repair writes only records.

    The next incarnation used to take epoch 3 for the newest commit, because the log holds it, and waited for its
    offsets in vain.
    """
    task = Task(Disk(), 0)
    task.deliver(1, dict.fromkeys(SINKS, 1))
    task.deliver(2, dict.fromkeys(SINKS, 1), {**dict.fromkeys(PARTS, COMMIT), SINKS[0]: OPEN})
    task.deliver(3, {SINKS[1]: 1}, dict.fromkeys(PARTS, ABORT))
    for number in (1, 2):
        successor = Task(task.disk, number)
        assert successor.open(None) == 2
        assert complete(successor._transactions(), successor._committed_id()).commit == CommitId(task.name, 2)
    run_last(Task(task.disk, 3), 2, [1])
