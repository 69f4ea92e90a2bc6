"""The producer's end of feedback between distributed operators: what a task keeps back of its input (JIT III, IV).

`operators.distributed.feedback` drives it. **Suspending means taking out, and resuming means entering late**, as within
one process (`operators.feedback.tree`). A tuple of the join's input whose signature the reader does not demand is kept
back before it enters, or is taken out of the state. When the reader requests the signature, the tuple enters late and
makes every result that it would have made before.

**Every reader can rely on this, at each position of a channel's log:** the tuples that were written up to there and are
in force are the results of the join over all its input, except those with a suspended signature. Suspensions are
reported in band (`schemas.codecs.notice`), behind the results that they concern. A *notice* takes back what the channel
wrote of a signature, or writes all of it again. A request in the feedback topic may therefore be lost, arrive twice or
arrive years late: it changes what the producer reports next, and the log is right at any time.

What a task keeps back is a function of its input and of its last notices. A restarted task reads its own notices and
its input and has the same state again (`restore`).

Readers may lag behind. What the slowest reader may still request stays in the states: the task's *hold*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from operators.data.evaluate import Resolve
from operators.data.tuples import FOREVER, Tuples
from operators.data.watermark import NEVER
from operators.distributed.decompose import DistributedOperator
from operators.distributed.edge_writer import EdgeWriter, rows_per_block
from operators.distributed.kinds import EdgeKind, of_kinds
from operators.distributed.rejoin import rejoined
from operators.engine.engine import Engine
from operators.feedback.blacklist import Blacklist
from operators.feedback.signatures import Signatures
from operators.feedback.stopwatch import Stopwatch
from operators.join.binary_join import BinaryJoin
from operators.kernels.hashing import U64
from operators.plan.predicates import Operand
from operators.state.side_state import SideState
from schemas.codecs.notice import Notice, encode_notice
from schemas.columns import I64, Batch
from schemas.query import substitute

MAX_SUSPENDED = 1 << 16
"""The most signatures that one reader may have suspended; further requests are ignored. A whole notice of them takes
half a MiB."""

SWEEP_FACTOR = 4
"""A state is searched for newly suspended tuples once this many times the tuples that arrived since the last search are
at least as many as the state has."""

WHOLE_BYTES = 64 * 1024
"""A whole notice is due when a channel has written this much, plus the size of the notice, since the last one."""

NONE: U64 = np.zeros(0, np.uint64)


def over_own(operands: Iterable[Operand], operator: DistributedOperator) -> tuple[Operand, ...]:
    """Return operands over the columns of the query as operands over those of an operator's sub-query."""
    return tuple(replace(o, expr=substitute(o.expr, operator.columns)) for o in operands)


@dataclass(slots=True)
class _Reader:
    """One partition of the edge: its reader's requests, and what was reported to it."""

    suspended: Signatures
    need: int = NEVER
    number: int = 0
    written: int = 0


class ProducerFeedback:
    """One task's producing end of its output edge.

    Args:
        operator: The task's operator.
        share: The task's number among its operator's tasks.
        join: The operator's join.
        clock: Returns seconds.

    Attributes:
        kept: Per side, the tuples that are kept back.
        returned: Tuples that entered late so far.
        late: Results that were produced late so far.
        suspends: Signatures suspended so far.
        resumes: Signatures resumed so far.
        checked: Signatures computed so far.
        suppressed: An estimate of the results that were not produced.
        detecting: The time spent on finding tuples to keep back.
        below: Returns the signatures that the task's own producers have suspended.
        released: True once the task keeps nothing back any more.
    """

    def __init__(
        self, operator: DistributedOperator, share: int, join: BinaryJoin, clock: Callable[[], float] = lambda: 0.0
    ) -> None:
        (edge,) = operator.outputs
        self._route = EdgeWriter(edge, share)
        self._edge = edge
        self._channel = 0 if edge.forward else share
        self._join = join
        self._kinds: tuple[list[tuple[EdgeKind, tuple[Operand, ...]]], ...] = ([], [])
        for kind in edge.kinds:
            self._kinds[kind.home].append((kind, over_own(kind.own, operator)))
        self._passed = [kind.number for kind in edge.kinds if kind.opposite is None]
        partitions = (share,) if edge.forward else range(edge.partitions)
        self._readers = {partition: _Reader(Signatures()) for partition in partitions}
        self.kept = (Blacklist(join.match.sides[0]), Blacklist(join.match.sides[1]))
        self._to_suspend: dict[int, list[U64]] = {p: [] for p in self._readers}
        self._to_resume: dict[int, list[U64]] = {p: [] for p in self._readers}
        self._newly_suspended: list[tuple[int, EdgeKind, U64]] = []
        self._since_sweep = 0
        self.returned = self.late = self.suspends = self.resumes = self.checked = 0
        self.suppressed = 0.0
        self.detecting = Stopwatch(clock)
        self.released = False
        self.below: Callable[[], U64] = lambda: NONE

    # --- What readers ask for ---------------------------------------------------------------------------

    @property
    def hold(self) -> int:
        """Readers may request tuples that had not expired before this time."""
        return min(reader.need for reader in self._readers.values())

    def ask(self, partition: int, suspend: U64, resume: U64, need: int) -> None:
        """Process a reader's request. It may have been fulfilled already, or be obsolete."""
        reader = self._readers.get(partition)
        if reader is None:
            return
        reader.need = max(reader.need, need)
        if len(suspend) and not self.released:
            self._to_suspend[partition].append(suspend)
        if len(resume):
            waiting = self._to_suspend[partition]
            left = [words[~np.isin(words, resume)] for words in waiting]
            self._to_suspend[partition] = [words for words in left if len(words)]
            resume = reader.suspended.hit(resume)
        if len(resume):
            self._to_resume[partition].append(resume)

    def relay_resume(self, partition: int, resume: U64) -> None:
        """Process a resume request of a reader further up, about one of that reader's partitions, before the task's own
        reader passes it on."""
        resume = of_kinds(resume, self._passed)
        if self._edge.forward:
            self.ask(partition, NONE, resume, NEVER)
            return
        for own in self._readers:
            self.ask(own, NONE, resume, NEVER)

    @property
    def resuming(self) -> bool:
        """Whether a reader waits for something that the task keeps back."""
        return any(self._to_resume.values())

    @property
    def suspended(self) -> int:
        """The number of signatures that are suspended now."""
        return sum(len(reader.suspended) for reader in self._readers.values())

    # --- What comes in -----------------------------------------------------------------------------------

    def admit(self, side: int, tuples: Tuples) -> Tuples:
        """Return those of an input's tuples that no reader has suspended; keep the others back."""
        self._since_sweep += len(tuples)
        readers = [reader.suspended for reader in self._readers.values() if len(reader.suspended)]
        for kind, operands in self._kinds[side] if readers else ():
            if len(tuples):
                tuples = self._admit(readers, kind, operands, side, tuples)
        return tuples

    def _admit(
        self, readers: Sequence[Signatures], kind: EdgeKind, operands: tuple[Operand, ...], side: int, tuples: Tuples
    ) -> Tuples:
        signatures, valid = kind.signatures(operands, self._resolver(tuples), len(tuples))
        self.checked += len(tuples)
        useless = np.zeros(len(tuples), np.bool_)
        for suspended in readers:
            found = suspended.contains(signatures) if valid is None else suspended.contains(signatures) & valid
            if found.any():
                suspended.add(signatures[found], tuples.expiry[found])
                useless |= found
        if not useless.any():
            return tuples
        kept = tuples.take(useless)
        self.kept[side].put(kept, signatures[useless], self.hold)
        self._newly_suspended.append((side, kind, signatures[useless]))
        counters = self._join.counters
        self.suppressed += len(kept) * counters.results / max(counters.input_tuples, 1)
        return tuples.take(~useless)

    def _resolver(self, tuples: Tuples) -> Resolve:
        return self._join.sources.resolver(tuples.aliases, tuples.rows)

    def enter_late(self, side: int, tuples: Tuples) -> None:
        """Enter tuples that the task's producer has resumed. Their results with earlier tuples were made at their time,
        or are not demanded."""
        self._join.enter_late(side, self.admit(side, tuples), self.hold)

    # --- Epoch by epoch ----------------------------------------------------------------------------------

    def has_answers(self) -> bool:
        """Return whether a reader waits for an answer."""
        return self.resuming or (any(self._to_suspend.values()) and self._sweep_is_due())

    def wanted(self) -> U64:
        """Return the signatures that readers have requested to be resumed, each once."""
        asked = [words for waiting in self._to_resume.values() for words in waiting]
        return np.unique(np.concatenate(asked)) if asked else NONE

    def missing(self, signatures: U64) -> U64:
        """Return those of some signatures that no reader has suspended."""
        for reader in self._readers.values():
            signatures = signatures[~reader.suspended.contains(signatures)]
        return signatures

    def take_newly_suspended(self) -> list[tuple[int, EdgeKind, U64]]:
        """Return what was kept back since the last call: input, kind and signatures."""
        fresh, self._newly_suspended = self._newly_suspended, []
        return fresh

    def written(self, partition: int, size: int) -> None:
        """Count a block of `size` bytes that goes to a partition."""
        self._readers[partition].written += size

    def answer(self, engine: Engine, ready: bool) -> list[tuple[int, bytes, int]]:
        """Return the notices of an epoch in the order to write them, behind its blocks: partition, bytes and rows of
        each.

        Args:
            engine: The task's engine.
            ready: False while the task lacks what it has requested from its own producers. Then nothing is resumed.
        """
        found: list[tuple[int, bytes, int]] = []
        resuming = self.wanted()
        if ready and self.resuming:
            for partition in self._readers:
                found += self._resume(engine, partition)
        if any(self._to_suspend.values()) and self._sweep_is_due():
            found += self._suspend(engine, resuming)
        for partition, reader in self._readers.items():
            if reader.written >= WHOLE_BYTES + 8 * len(reader.suspended):
                found.append(self._whole_notice(partition, reader, engine))
        return found

    def release(self, engine: Engine) -> list[tuple[int, bytes, int]]:
        """Resume everything, keep nothing back from now on, and return the notices that report it."""
        self.released = True
        found: list[tuple[int, bytes, int]] = []
        for partition, reader in self._readers.items():
            self._to_suspend[partition].clear()
            self._to_resume[partition] = [reader.suspended.hashes()]
            found += self._resume(engine, partition)
        return found

    def restore(self, engine: Engine, partition: int, notices: Iterable[Notice]) -> None:
        """Restore the state that a channel's last notices report, from a whole notice on. `engine` has read all earlier
        input."""
        reader = self._readers.get(partition)
        if reader is None:
            return
        for notice in notices:
            if notice.channel != self._channel or notice.number <= reader.number:
                continue
            reader.number = notice.number
            if notice.whole:
                reader.suspended = Signatures()
            reader.suspended.add(notice.suspended, self._until(engine, len(notice.suspended)))
            reader.suspended.remove(notice.resumed)
        self._take_out(reader.suspended)

    def _resume(self, engine: Engine, partition: int) -> list[tuple[int, bytes, int]]:
        """Resume what a reader has requested. Other readers of the join have no tuple of its signatures."""
        asked, self._to_resume[partition] = self._to_resume[partition], []
        if not asked:
            return []
        reader = self._readers[partition]
        signatures = reader.suspended.hit(np.concatenate(asked))
        if len(signatures) == 0:
            return []
        reader.suspended.remove(signatures)
        self.resumes += len(signatures)
        made: list[Tuples] = []
        for side in (0, 1):
            back = self.kept[side].take(signatures, self.hold)
            self.returned += len(back)
            back = self.admit(side, back)
            if len(back):
                made.append(rejoined(self._join, side, back, self.hold))
                self._join.enter_late(side, back, self.hold)
        late = Tuples.concat(made, self._join.aliases)
        late = late.take(np.argsort(late.ts, kind="stable").astype(np.int64))
        self.late += len(late)
        self._join.counters.results += len(late)
        found: list[tuple[int, bytes, int]] = []
        for to, batch in self._route.shares(engine.results(late)):
            if to == partition:
                found += self._notices(to, reader, batch, NONE, signatures)
            elif len(batch):
                found += self._notices(to, self._readers[to], batch, NONE, NONE)
        return found

    def _notices(
        self, partition: int, reader: _Reader, late: Batch, suspended: U64, resumed: U64
    ) -> list[tuple[int, bytes, int]]:
        """Return notices with late tuples in pieces; the last piece carries the suspended and resumed signatures."""
        found: list[tuple[int, bytes, int]] = []
        step = rows_per_block(late)
        begins = range(0, max(len(late), 1), step)
        for begin in begins:
            last = begin == begins[-1]
            piece = late.slice(begin, min(begin + step, len(late)))
            listed = (suspended, resumed) if last else (NONE, NONE)
            found.append(self._encoded(partition, reader, False, *listed, piece))
        return found

    def _encoded(
        self, partition: int, reader: _Reader, whole: bool, suspended: U64, resumed: U64, late: Batch
    ) -> tuple[int, bytes, int]:
        reader.number += 1
        notice = Notice(self._channel, reader.number, whole, suspended, resumed, late)
        raw = encode_notice(self._edge.fields, notice)
        reader.written += len(raw)
        return partition, raw, len(late)

    def _suspend(self, engine: Engine, resuming: U64) -> list[tuple[int, bytes, int]]:
        found: list[tuple[int, bytes, int]] = []
        nothing = self._route.to_edge_batch(engine.results(Tuples.empty(self._join.aliases)))
        fresh = Signatures()
        for partition, reader in self._readers.items():
            waiting, self._to_suspend[partition] = self._to_suspend[partition], []
            if not waiting:
                continue
            signatures = np.unique(np.concatenate(waiting))
            signatures = signatures[~reader.suspended.contains(signatures) & ~np.isin(signatures, resuming)]
            signatures = signatures[: max(0, MAX_SUSPENDED - len(reader.suspended))]
            if len(signatures) == 0:
                continue
            self.suspends += len(signatures)
            until = self._until(engine, len(signatures))
            reader.suspended.add(signatures, until)
            fresh.add(signatures, until)
            found += self._notices(partition, reader, nothing, signatures, NONE)
        if len(fresh):
            self._take_out(fresh)
        return found

    def _until(self, engine: Engine, n: int) -> I64:
        """Return the time at which all tuples now in the states will have expired; see `_whole_notice`."""
        return np.full(n, min(engine.cut + max(self._join.sources.life.values()), FOREVER))

    def _whole_notice(self, partition: int, reader: _Reader, engine: Engine) -> tuple[int, bytes, int]:
        """Return a notice of all suspended signatures, except those that keep back no living tuple here or below."""
        below = self.below()
        below = below[reader.suspended.contains(below)]
        reader.suspended.add(below, self._until(engine, len(below)))
        reader.suspended.purge(self.hold)
        nothing = self._route.to_edge_batch(engine.results(Tuples.empty(self._join.aliases)))
        found = self._encoded(partition, reader, True, reader.suspended.hashes(), NONE, nothing)
        reader.written = 0
        return found

    def _sweep_is_due(self) -> bool:
        """Return whether a search of the states costs no more than the tuples that have arrived since the last
        search."""
        held = sum(len(state) for side, state in enumerate(self._join.states) if self._kinds[side])
        return SWEEP_FACTOR * self._since_sweep >= held

    def _take_out(self, suspended: Signatures) -> None:
        """Take tuples of some signatures out of the states and keep them back."""
        self._since_sweep = 0
        with self.detecting:
            for side, state in enumerate(self._join.states):
                for part in (state, state.older):
                    if part is not None:
                        self._take_out_of(part, side, suspended)

    def _take_out_of(self, state: SideState, side: int, suspended: Signatures) -> None:
        for kind, operands in self._kinds[side]:
            entries, tuples = state.living(self.hold)
            signatures, valid = kind.signatures(operands, self._resolver(tuples), len(tuples))
            self.checked += len(tuples)
            useless = suspended.contains(signatures)
            if valid is not None:
                useless &= valid
            if useless.any():
                self.kept[side].put(tuples.take(useless), signatures[useless], self.hold)
                self._newly_suspended.append((side, kind, signatures[useless]))
                state.retract(entries[useless])

    def size_bytes(self) -> int:
        """Bytes of the blacklists and the signatures."""
        return sum(kept.size_bytes() for kept in self.kept) + sum(
            reader.suspended.size_bytes() for reader in self._readers.values()
        )
