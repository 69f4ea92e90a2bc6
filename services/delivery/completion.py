"""Decides which of a task's transactions Kafka completed only in part (torn transactions), and what to write again.

`services.delivery.transactional` calls `complete` when a task starts. The decision depends only on what the partitions
hold.

Kafka should give a transaction one outcome in all partitions. Kafka 4.3.0 and 4.3.1 skip the marker in a partition that
has no leader when the transaction ends (KAFKA-20734). The records then stay *open* there, invisible. The next marker of
the same producer decides their fate, whatever the coordinator has promised. So a task's new incarnation looks at each
partition before it trusts the committed offsets:

- A transaction *has happened* if Kafka made a part of it visible anywhere, or confirmed it to the task. Its missing
  parts are written again.
- A transaction that is visible nowhere and was never confirmed has not happened. The new incarnation computes its
  results again.

A transaction that is open in some partition and complete in all counts as confirmed: its coordinator considered it
ended, since a new incarnation starts only after that. Writing it again is right in any case, because a transaction
depends only on those before it, and these have happened.

Only the last incarnation that delivered anything can have unfinished transactions, because each incarnation first
completes the transactions of those before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NamedTuple

from schemas.errors import StateError
from schemas.messages.commits import Commit, decode_commit
from schemas.messages.prepared import Partition, PreparedTransaction, WrittenRecords


class Fate(Enum):
    """What became of a transaction's records in one partition."""

    COMMITTED = auto()
    ABORTED = auto()
    OPEN = auto()
    """Kafka has written no marker, or not yet."""
    PARTIAL = auto()
    """Some records were never written: the transaction died before it was prepared."""
    THINNED = auto()
    """As PARTIAL, but the log has gaps: compaction may have dropped the other records for newer ones of their keys."""
    GONE = auto()
    """Retention, or deletion of the topic, removed the records: their fate is unknown, and no reader can see them."""


class RecordRun(NamedTuple):
    """Consecutive records of one producer in a partition, or a marker that ends its transaction (`records` 0).

    Attributes:
        producer, epoch: Kafka's producer id and producer epoch. Each incarnation of a task has a later epoch. A marker
            may have a later epoch than the records that it ends.
        offset: of the first record, or of the marker.
        records: how many records; 0 for a marker.
        committed: whether a marker commits.
    """

    producer: int
    epoch: int
    offset: int
    records: int
    committed: bool = False


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction from the transaction log, and its fate in each partition.

    Attributes:
        prepared: the record in the transaction log.
        producer: id and epoch of the producer that wrote the transaction.
        fates: fate by partition, including the partition of the transaction log.
    """

    prepared: PreparedTransaction
    producer: tuple[int, int]
    fates: Mapping[Partition, Fate]


class CommitId(NamedTuple):
    """Identifies a commit of a task."""

    incarnation: str
    epoch: int


@dataclass(frozen=True, slots=True)
class TransactionRepair:
    """What must be done for one transaction.

    Attributes:
        partitions: the partitions to which its records must be written again.
        offsets: whether its offsets must be committed.
    """

    transaction: Transaction
    partitions: tuple[Partition, ...]
    offsets: bool


def fate(runs: Iterable[RecordRun], producer: tuple[int, int], written: WrittenRecords) -> Fate:
    """Determine the fate of a transaction in one partition.

    Args:
        runs: the partition's content in order, from where the transaction's records begin.
        producer: id and epoch of the transaction's producer.
        written: what the transaction wrote there.
    """
    number, epoch = producer
    found, gaps, end = 0, 0, written.since
    for run in runs:
        gaps += max(0, run.offset - end)
        end = run.offset + max(1, run.records)
        if run.producer != number:
            continue
        if run.records:
            found += run.records if run.epoch == epoch else 0
        elif found >= written.records:
            return Fate.COMMITTED if run.committed else Fate.ABORTED
        elif found:
            break
    else:
        if found >= written.records:
            return Fate.OPEN
    return Fate.THINNED if found + gaps >= written.records else Fate.PARTIAL


def commit_id_of(offsets: Mapping[Partition, tuple[int, str]]) -> CommitId | None:
    """Find the newest commit among offsets and their messages; None without offsets.

    Raises:
        StateError: a message cannot be read.
    """
    return newest_commit_id(decode_commit(text, f"{topic}[{number}]") for (topic, number), (_, text) in offsets.items())


def newest_commit_id(commits: Iterable[Commit]) -> CommitId | None:
    """Find the newest of commits; None without any."""
    newest = max(commits, key=lambda commit: commit.epoch, default=None)
    return None if newest is None else CommitId(newest.incarnation, newest.epoch)


@dataclass(frozen=True, slots=True)
class Completion:
    """The repair that a new incarnation must perform.

    Attributes:
        missing: the transactions to repair, in order.
        commit: the newest commit that has happened. After the repair the committed offsets must be of this commit. None
            if the log does not know it.
    """

    missing: tuple[TransactionRepair, ...] = ()
    commit: CommitId | None = None


def complete(transactions: Sequence[Transaction], committed: CommitId | None) -> Completion:
    """Decide what a task's new incarnation must repair.

    Args:
        transactions: the task's transactions in the order of its log; the log may have lost its beginning.
        committed: the commit of the task's committed offsets; None without offsets.

    Raises:
        StateError: a transaction that has happened lacks records that cannot be recovered.
    """
    commit_ids = [commit_id_of(each.prepared.offsets) for each in transactions]
    if _untracked([commit_id for commit_id in commit_ids if commit_id is not None], committed):
        return Completion()
    # Offsets are committed up to here. A repair commits earlier offsets again, so the last position counts.
    reached = max((i for i, own in enumerate(commit_ids) if own is not None and own == committed), default=-1)
    end = len(transactions)
    while end > 0:
        begin = _incarnation_begins(transactions, end)
        happened = max((i for i in range(begin, end) if _has_happened(transactions[i], i <= reached)), default=-1)
        # Each transaction was confirmed before the next began.
        happened = max(happened, end - 2 if end - 2 >= begin else -1)
        if happened >= 0:
            commits = [i for i in range(begin, happened + 1) if commit_ids[i] is not None]
            newest = commits[-1] if commits else -1
            repairs = [_missing(transactions[i], i <= reached) for i in range(begin, happened + 1)]
            if any(each.partitions for each in repairs) and newest >= 0:
                # The repair records the newest commit in the log, which also holds commits that have not happened.
                repairs[newest - begin] = replace(repairs[newest - begin], offsets=True)
            todo = tuple(each for each in repairs if each.partitions or each.offsets)
            return Completion(todo, commit_ids[newest] if newest >= 0 else None)
        end = begin
    return Completion()


def _incarnation_begins(transactions: Sequence[Transaction], end: int) -> int:
    """Position of the first transaction of the incarnation that wrote the transaction before `end`."""
    begin = end - 1
    while begin > 0 and transactions[begin - 1].prepared.incarnation == transactions[begin].prepared.incarnation:
        begin -= 1
    return begin


def _untracked(commit_ids: Sequence[CommitId], committed: CommitId | None) -> bool:
    """Whether a Weir version without a transaction log has committed since these transactions."""
    if not commit_ids or committed is None:
        return False
    known = {commit_id.incarnation for commit_id in commit_ids}
    return committed.incarnation not in known and committed.epoch >= commit_ids[0].epoch


def _has_happened(transaction: Transaction, committed: bool) -> bool:
    fates = set(transaction.fates.values())
    if Fate.COMMITTED in fates or (committed and transaction.prepared.offsets):
        return True
    return Fate.OPEN in fates and not fates & {Fate.PARTIAL, Fate.THINNED}


def _missing(transaction: Transaction, committed: bool) -> TransactionRepair:
    lost = [lane for lane, found in transaction.fates.items() if found is Fate.PARTIAL]
    if lost:
        topic, number = lost[0]
        written = transaction.prepared.written[lost[0]]
        raise StateError(
            f"{topic}[{number}] does not hold the {written.records} records from offset {written.since} on that a "
            "committed transaction wrote: the topic was deleted and made anew, or Kafka has lost them. Give the query "
            "a new group (--group) and sink to start anew"
        )
    unseen = (Fate.ABORTED, Fate.OPEN)
    again = tuple(lane for lane in transaction.prepared.written if transaction.fates[lane] in unseen)
    return TransactionRepair(transaction, again, bool(transaction.prepared.offsets) and not committed)
