"""Which transactions of a task have to be completed: a pure decision from what the partitions hold.

Kafka should give a transaction one outcome in all partitions. Kafka 4.3.0 and 4.3.1 skip the marker in a partition that
has no leader when the transaction ends (KAFKA-20734): the records stay *open* there, invisible, and the next marker of
the same producer decides about them, whatever the coordinator has promised. So a task's new incarnation looks at each
partition before it trusts the committed offsets:

- What Kafka made visible anywhere, or has confirmed to the task, has happened; its missing parts are written again.
- What is visible nowhere, and was never confirmed, has not happened; the new incarnation computes it anew.

A transaction that is open in some partition and complete in all counts as confirmed: its coordinator considered it
ended, since a new incarnation begins only after that. Writing it again is right in any case, because a transaction
depends on nothing but those before it, and these have happened.

Only the last incarnation that got anything done can have unfinished transactions: each one completes those before it
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NamedTuple

from schemas.errors import StateError
from schemas.messages.commits import decode_commit
from schemas.messages.prepared import Partition, Prepared, Written


class Fate(Enum):
    """What became of a transaction's records in one partition."""

    COMMITTED = auto()
    ABORTED = auto()
    OPEN = auto()
    """Kafka has written no marker, or not yet."""
    PARTIAL = auto()
    """Some records were never written: the transaction died before it was prepared."""
    THINNED = auto()
    """As PARTIAL, but the log has gaps: a compacted topic may have dropped the others for newer ones of their keys."""
    GONE = auto()
    """Deleted by retention, or with the topic: nobody can tell, and nobody can read them."""


class Stretch(NamedTuple):
    """Consecutive records of one producer in a partition, or a marker that ends its transaction (`records` 0).

    Attributes:
        producer, epoch: Kafka's names for the producer; each incarnation of a task has a later epoch. A marker may
            have a later one than the records that it ends.
        committed: of a marker.
    """

    producer: int
    epoch: int
    offset: int
    records: int
    committed: bool = False


@dataclass(frozen=True, slots=True)
class Transaction:
    """A prepared transaction, and what became of it.

    Attributes:
        producer: number and epoch of the producer that wrote it.
        fates: by partition, that of the record itself included.
    """

    prepared: Prepared
    producer: tuple[int, int]
    fates: Mapping[Partition, Fate]


class Mark(NamedTuple):
    """The commit that a task's committed offsets are of."""

    incarnation: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Missing:
    """What has to be done for one transaction.

    Attributes:
        partitions: where its records are to be written again.
        offsets: whether its offsets are to be committed.
    """

    transaction: Transaction
    partitions: tuple[Partition, ...]
    offsets: bool


def fate(stretches: Iterable[Stretch], producer: tuple[int, int], written: Written) -> Fate:
    """What became of a transaction in a partition.

    Args:
        stretches: of the partition, in order, from where the transaction's records begin.
        producer: its number and epoch.
        written: what the transaction wrote there.
    """
    number, epoch = producer
    found, gaps, end = 0, 0, written.since
    for stretch in stretches:
        gaps += max(0, stretch.offset - end)
        end = stretch.offset + max(1, stretch.records)
        if stretch.producer != number:
            continue
        if stretch.records:
            found += stretch.records if stretch.epoch == epoch else 0
        elif found >= written.records:
            return Fate.COMMITTED if stretch.committed else Fate.ABORTED
        elif found:
            break
    else:
        if found >= written.records:
            return Fate.OPEN
    return Fate.THINNED if found + gaps >= written.records else Fate.PARTIAL


def mark_of(offsets: Mapping[Partition, tuple[int, str]]) -> Mark | None:
    """The newest commit among offsets and their messages; None where there are none.

    Raises:
        StateError: a message cannot be read.
    """
    messages = [decode_commit(text, f"{topic}[{number}]") for (topic, number), (_, text) in offsets.items()]
    newest = max(messages, key=lambda message: message.epoch, default=None)
    return None if newest is None else Mark(newest.incarnation, newest.epoch)


@dataclass(frozen=True, slots=True)
class Completion:
    """What there is to do.

    Attributes:
        missing: has to be written again, transactions in order.
        commit: the newest commit that has happened; the committed offsets must be of it once that is done. None where
            the log does not know.
    """

    missing: tuple[Missing, ...] = ()
    commit: Mark | None = None


def complete(transactions: Sequence[Transaction], committed: Mark | None) -> Completion:
    """Decide.

    Args:
        transactions: of a task, in the order of its log; the log may have lost its beginning.
        committed: what the task's committed offsets say; None where there are none.

    Raises:
        StateError: records of a transaction that has happened are not there.
    """
    marks = [mark_of(each.prepared.offsets) for each in transactions]
    if _untracked([mark for mark in marks if mark is not None], committed):
        return Completion()
    # Offsets are committed up to here. A repair commits an earlier incarnation's again: their newest place counts.
    reached = max((i for i, mark in enumerate(marks) if mark is not None and mark == committed), default=-1)
    end = len(transactions)
    while end > 0:
        begin = _incarnation_begins(transactions, end)
        happened = max((i for i in range(begin, end) if _has_happened(transactions[i], i <= reached)), default=-1)
        # Each was confirmed before the next one began.
        happened = max(happened, end - 2 if end - 2 >= begin else -1)
        if happened >= 0:
            commits = [i for i in range(begin, happened + 1) if marks[i] is not None]
            newest = commits[-1] if commits else -1
            found = [_missing(transactions[i], i <= reached) for i in range(begin, happened + 1)]
            if any(each.partitions for each in found) and newest >= 0:
                # The repair says in the log which commit was the newest: those that have not happened are there too.
                found[newest - begin] = replace(found[newest - begin], offsets=True)
            todo = tuple(each for each in found if each.partitions or each.offsets)
            return Completion(todo, marks[newest] if newest >= 0 else None)
        end = begin
    return Completion()


def _incarnation_begins(transactions: Sequence[Transaction], end: int) -> int:
    """The position of the first transaction of the incarnation that the one before `end` belongs to."""
    begin = end - 1
    while begin > 0 and transactions[begin - 1].prepared.incarnation == transactions[begin].prepared.incarnation:
        begin -= 1
    return begin


def _untracked(marks: Sequence[Mark], committed: Mark | None) -> bool:
    """Whether the committed offsets are not of these transactions: a Weir that kept no log has committed since."""
    if not marks or committed is None:
        return False
    return committed.incarnation not in {mark.incarnation for mark in marks} and committed.epoch >= marks[0].epoch


def _has_happened(transaction: Transaction, committed: bool) -> bool:
    fates = set(transaction.fates.values())
    if Fate.COMMITTED in fates or (committed and transaction.prepared.offsets):
        return True
    return Fate.OPEN in fates and not fates & {Fate.PARTIAL, Fate.THINNED}


def _missing(transaction: Transaction, committed: bool) -> Missing:
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
    return Missing(transaction, again, bool(transaction.prepared.offsets) and not committed)
