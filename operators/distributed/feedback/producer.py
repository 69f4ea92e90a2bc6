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

An edge whose results are made on demand (`operators.distributed.feedback.on_demand`) has the same notices. A signature
that is requested there is *rewritten*: the notices take back all results that have it, and write all that are alive
again. A whole notice may say that nothing is on demand any more: the notices before it have written all results.

Readers may lag behind. What the slowest reader may still request stays in the states: the task's *hold*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from operators.data.evaluate import Resolve
from operators.data.tuples import FOREVER, Tuples
from operators.data.watermark import NEVER
from operators.distributed.edge_writer import EdgeWriter, block_bounds
from operators.distributed.feedback.kinds import EdgeKind, are_of_kinds, of_kinds
from operators.distributed.operator import DistributedOperator
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
from schemas.columns import I64, Batch, Mask
from schemas.query import substitute

MAX_SUSPENDED = 1 << 16
"""The most signatures that one reader may have suspended; further requests are ignored. A whole notice of them takes
half a MiB."""

SWEEP_FACTOR = 4
"""A state is searched for newly suspended tuples once this many times the tuples that arrived since the last search are
at least as many as the state has."""

MOST_REWRITTEN = 1 << 14
"""The most signatures that are rewritten at once. Two lists of them take a quarter of a MiB."""

FEW = 4
"""All results on demand are few if there is at most one per this many tuples of the states. Then making them costs
less than reading the states' tuples did, and less than a few answers, each of which searches the states."""

MOST_FEW = 1 << 18
"""More results than these are never few: they take a tenth of a second or longer."""

SAMPLE = 256
"""The tuples whose results are counted to estimate how many there are."""

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
    needs_whole: bool = False
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
        is_complete: True if no results are on demand any more, or ever.
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
        self.is_complete = not edge.on_demand
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
            known = reader.suspended.contains(resume)
            on_demand = are_of_kinds(resume, self._edge.on_demand)
            if self.is_complete:
                # It does not know that, or no longer: the notice may lie before what it read when it restarted.
                reader.needs_whole |= bool((on_demand & ~known).any())
            else:
                known |= on_demand
            resume = np.unique(resume[known])
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
        if any(reader.needs_whole for reader in self._readers.values()):
            return True
        return self.resuming or (any(self._to_suspend.values()) and self._sweep_is_due())

    def wanted(self) -> U64:
        """Return the signatures that readers have requested to be resumed, each once."""
        asked = [words for waiting in self._to_resume.values() for words in waiting]
        return np.unique(np.concatenate(asked)) if asked else NONE

    def partners(
        self, side: int, signatures: U64, before: int, of: Callable[[Resolve, int], tuple[U64, Mask | None]]
    ) -> tuple[U64, U64]:
        """Return which results of one input the tuples of the other match that have requested signatures.

        Args:
            side: The other input's side.
            signatures: (n,) requested signatures. Only those count by which results are made on demand.
            before: Only tuples with a smaller ts are considered.
            of: Returns the signatures of the results that tuples match, as `EdgeKind.signatures`.

        Returns:
            (m,) requested signatures and (m,) signatures of results, by pairs.
        """
        signatures = of_kinds(signatures, self._edge.on_demand)
        words, partners = [NONE], [NONE]
        if len(signatures) == 0:
            return NONE, NONE
        for tuples in (*self._living(side), self.kept[side].living(self.hold)[1]):
            tuples = tuples.take(tuples.ts < before)
            matched, matches = of(self._resolver(tuples), len(tuples))
            for _, own, valid in self._signed(side, tuples):
                found = np.isin(own, signatures) & valid
                if matches is not None:
                    found &= matches
                words.append(own[found])
                partners.append(matched[found])
        return np.concatenate(words), np.concatenate(partners)

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

    def answer(self, engine: Engine, ready: U64) -> list[tuple[int, bytes, int]]:
        """Return the notices of an epoch in the order to write them, behind its blocks: partition, bytes and rows of
        each.

        Args:
            engine: The task's engine.
            ready: The signatures that can be resumed: the task has what it has requested for them from its own
                producers.
        """
        found: list[tuple[int, bytes, int]] = []
        resuming = self.wanted()
        if len(ready) and self.resuming:
            for partition in self._readers:
                found += self._resume(engine, partition, ready)
        if any(self._to_suspend.values()) and self._sweep_is_due():
            found += self._suspend(engine, resuming)
        for partition, reader in self._readers.items():
            if reader.needs_whole or reader.written >= WHOLE_BYTES + 8 * len(reader.suspended):
                found.append(self._whole_notice(partition, reader, engine))
        return found

    def release(self, engine: Engine, *, complete: bool) -> list[tuple[int, bytes, int]]:
        """Resume everything, keep nothing back from now on, and return the notices that report it.

        Args:
            engine: The task's engine.
            complete: Whether to send all results that are on demand, too.
        """
        self.released = True
        found: list[tuple[int, bytes, int]] = []
        for partition, reader in self._readers.items():
            self._to_suspend[partition].clear()
            suspended = reader.suspended.hashes()
            self._to_resume[partition] = [suspended]
            found += self._resume(engine, partition, suspended)
        if complete and not self.is_complete:
            found += self.send_all(engine)
        return found

    def are_few(self) -> bool:
        """Estimate whether all results on demand are so few that they had better be sent at once."""
        kind, _ = self._on_demand
        tuples = self._all_living(kind.home)
        step = max(1, len(tuples) // SAMPLE)
        sample = tuples.take(np.arange(0, len(tuples), step))
        results = len(rejoined(self._join, kind.home, sample, self.hold)) * step
        living = sum(len(part) for side in (0, 1) for part in self._living(side))
        return results <= min(living / FEW, MOST_FEW)

    def send_all(self, engine: Engine) -> list[tuple[int, bytes, int]]:
        """Return notices with all results on demand, and a whole notice to each reader that says so. From now on, all
        results have to be made in time."""
        kind, operands = self._on_demand
        tuples = self._all_living(kind.home)
        signatures, valid = kind.signatures(operands, self._resolver(tuples), len(tuples))
        # Results without a signature match nothing.
        late = rejoined(self._join, kind.home, tuples if valid is None else tuples.take(valid), self.hold)
        found: list[tuple[int, bytes, int]] = []
        for to, batch in self._route.shares(engine.results(self._counted(late))):
            signatures, _ = kind.signatures(kind.own, self._route.reader(batch), len(batch))
            each = np.unique(signatures)
            for begin in range(0, len(each), MOST_REWRITTEN):
                piece = each[begin : begin + MOST_REWRITTEN]
                part = batch.take(np.isin(signatures, piece))
                found += self._notices(to, self._readers[to], part, piece, piece)
        self.is_complete = True
        return found + [self._whole_notice(partition, reader, engine) for partition, reader in self._readers.items()]

    @property
    def _on_demand(self) -> tuple[EdgeKind, tuple[Operand, ...]]:
        """The kind by which the reader requests results, and what it reads of them."""
        number = self._edge.on_demand[0]
        return next(found for kinds in self._kinds for found in kinds if found[0].number == number)

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
                self.is_complete |= notice.complete
            reader.suspended.add(notice.suspended, self._until(engine, len(notice.suspended)))
            reader.suspended.remove(notice.resumed)
        self._take_out(reader.suspended)

    def _resume(self, engine: Engine, partition: int, ready: U64) -> list[tuple[int, bytes, int]]:
        """Resume those signatures that a reader has requested and that are ready. Other readers of the join have no
        tuple of its signatures."""
        waiting = self._to_resume[partition]
        if not waiting:
            return []
        asked = np.unique(np.concatenate(waiting))
        can = np.isin(asked, ready)
        self._to_resume[partition] = [asked[~can]] if not can.all() else []
        asked = asked[can]
        rewritten = NONE if self.is_complete else of_kinds(asked, self._edge.on_demand)
        resumed = self._readers[partition].suspended.hit(asked[~np.isin(asked, rewritten)])
        found = self._rewrite(engine, [partition], rewritten)
        if len(resumed):
            found += self._send_late(engine, [partition], NONE, resumed)
        return found

    def _rewrite(self, engine: Engine, partitions: Sequence[int], signatures: U64) -> list[tuple[int, bytes, int]]:
        """Take back all results that have one of some signatures, and write all that are alive again."""
        found: list[tuple[int, bytes, int]] = []
        for begin in range(0, len(signatures), MOST_REWRITTEN):
            piece = signatures[begin : begin + MOST_REWRITTEN]
            found += self._send_late(engine, partitions, piece, piece)
        return found

    def _send_late(
        self, engine: Engine, partitions: Sequence[int], rewritten: U64, resumed: U64
    ) -> list[tuple[int, bytes, int]]:
        """Let the tuples of resumed signatures enter, and send their results to the readers of some partitions: those
        of the rewritten ones all."""
        for partition in partitions:
            self._readers[partition].suspended.remove(resumed)
        self.resumes += len(resumed)
        left: I64 = np.zeros(0, np.int64)
        made: list[Tuples] = []
        entered = [self._enter_resumed(side, resumed) for side in (0, 1)]
        for side in (0, 1):
            late = self._of_signatures(side, rewritten) if len(rewritten) else entered[side]
            if len(late) == 0:
                continue
            results = rejoined(self._join, side, late, self.hold)
            if side == 0:
                left = late.rows[0]
            else:
                # The results with late tuples of the left side are made already.
                mine = results.aliases.index(self._join.match.sides[0][0])
                results = results.take(~np.isin(results.rows[mine], left))
            made.append(results)
        late = self._counted(Tuples.concat(made, self._join.aliases))
        found: list[tuple[int, bytes, int]] = []
        for to, batch in self._route.shares(engine.results(late)):
            if to in partitions:
                found += self._notices(to, self._readers[to], batch, rewritten, resumed)
            elif len(batch):
                found += self._notices(to, self._readers[to], batch, NONE, NONE)
        return found

    def _counted(self, late: Tuples) -> Tuples:
        """Count results that are sent late, and put them in order."""
        self.late += len(late)
        self._join.counters.results += len(late)
        return late.take(np.argsort(late.ts, kind="stable").astype(np.int64))

    def _enter_resumed(self, side: int, signatures: U64) -> Tuples:
        """Let the tuples of some signatures enter, except those that are suspended by another one; return them."""
        back = self.kept[side].take(signatures, self.hold)
        self.returned += len(back)
        back = self.admit(side, back)
        self._join.enter_late(side, back, self.hold)
        return back

    def _parts(self, side: int) -> list[SideState]:
        state = self._join.states[side]
        return [part for part in (state, state.older) if part is not None]

    def _living(self, side: int) -> Iterator[Tuples]:
        """Yield the living tuples of a state, part by part."""
        for part in self._parts(side):
            yield part.living(self.hold)[1]

    def _all_living(self, side: int) -> Tuples:
        """Return the (n,) living tuples of a state as one batch."""
        return Tuples.concat(list(self._living(side)), self._join.match.sides[side])

    def _signed(self, side: int, tuples: Tuples) -> Iterator[tuple[EdgeKind, U64, Mask]]:
        """Yield the signatures of (n,) tuples of one input by each kind that is kept back there.

        Yields:
            The kind, (n,) signatures, and (n,) bool: whether there is no null, which would prevent any match.
        """
        for kind, operands in self._kinds[side]:
            signatures, valid = kind.signatures(operands, self._resolver(tuples), len(tuples))
            yield kind, signatures, np.ones(len(tuples), np.bool_) if valid is None else valid

    def _of_signatures(self, side: int, signatures: U64) -> Tuples:
        """Return the living tuples of a state that have one of some signatures. O(size of the state)."""
        wanted = Signatures()
        wanted.add(signatures, np.full(len(signatures), FOREVER))
        found: list[Tuples] = []
        for tuples in self._living(side):
            has = np.zeros(len(tuples), np.bool_)
            for _, words, valid in self._signed(side, tuples):
                has |= wanted.contains(words) & valid
            found.append(tuples.take(has))
        return Tuples.concat(found, self._join.match.sides[side])

    def _notices(
        self, partition: int, reader: _Reader, late: Batch, suspended: U64, resumed: U64
    ) -> list[tuple[int, bytes, int]]:
        """Return notices with late tuples in pieces. The first carries the suspended signatures, since these take
        effect before the tuples do; the last carries the resumed ones."""
        found: list[tuple[int, bytes, int]] = []
        rewrites = len(suspended) > 0 and len(resumed) > 0
        for begin, end in block_bounds(late):
            piece = late.slice(begin, end)
            first, last = begin == 0, end == len(late)
            listed = suspended if first else NONE, resumed if last else NONE
            found.append(self._encoded(partition, reader, False, *listed, piece, rewrites=rewrites))
        return found

    def _encoded(
        self,
        partition: int,
        reader: _Reader,
        whole: bool,
        suspended: U64,
        resumed: U64,
        late: Batch,
        *,
        rewrites: bool = False,
    ) -> tuple[int, bytes, int]:
        reader.number += 1
        complete = whole and self.is_complete and bool(self._edge.on_demand)
        notice = Notice(self._channel, reader.number, whole, suspended, resumed, late, rewrites, complete)
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
        reader.written, reader.needs_whole = 0, False
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
            for side in (0, 1):
                for part in self._parts(side):
                    self._take_out_of(part, side, suspended)

    def _take_out_of(self, state: SideState, side: int, suspended: Signatures) -> None:
        entries, tuples = state.living(self.hold)
        kept = np.zeros(len(tuples), np.bool_)
        for kind, signatures, valid in self._signed(side, tuples):
            self.checked += len(tuples)
            useless = suspended.contains(signatures) & valid & ~kept
            if useless.any():
                self.kept[side].put(tuples.take(useless), signatures[useless], self.hold)
                self._newly_suspended.append((side, kind, signatures[useless]))
                state.retract(entries[useless])
                kept |= useless

    def size_bytes(self) -> int:
        """Bytes of the blacklists and the signatures."""
        return sum(kept.size_bytes() for kept in self.kept) + sum(
            reader.suspended.size_bytes() for reader in self._readers.values()
        )
