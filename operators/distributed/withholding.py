"""The producing end of feedback between placed operators: what a task keeps back of what it is fed (JIT 3, 4).

**Suspending is taking out, resuming is entering late**, as within one process (`operators.feedback.tree`): a tuple of
the join's input whose signature its reader has no use for is kept back before it enters, or taken out of the state. It
enters, late, when the reader asks for it, and makes then all that it would have made.

**Every reader can rely on this, at each place of a channel's log:** what was written up to there and is in force are
the results of the join over all its input, but for those with a suspended signature. What is suspended is said in band
(`schemas.codecs.notice`), behind the results that it is about: a *notice* takes back what the channel wrote of a
signature, or brings all of it anew. So what a reader asks for in the feedback topic may be lost, come twice or years
late: it changes what the producer says next, and nothing is wrong at any time.

What a task keeps back is a function of its input and of what its last notices say, so a task that comes back reads its
own notices, and its input, and is what it was (`restore`).

Readers may be behind. What may still be asked for by the slowest stays in the states: the task's *hold*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from operators.data.evaluate import Resolve
from operators.data.tuples import FOREVER, Tuples
from operators.data.watermark import NEVER
from operators.distributed.decompose import PlacedOperator
from operators.distributed.edge_writer import Route, rows_per_block
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

MOST_SUSPENDED = 1 << 16
"""Signatures that one reader may have suspended; more are not taken up. A whole notice of them is half a MiB."""

SWEEP_PAYS = 4
"""A state is searched for newly suspended tuples when as many have come since as this part of it."""

WHOLE_BYTES = 64 * 1024
"""A whole notice is due when a channel has written this much and as much as the notice takes, since the last."""

NONE: U64 = np.zeros(0, np.uint64)


def over_own(operands: Iterable[Operand], operator: PlacedOperator) -> tuple[Operand, ...]:
    """Operands over the columns of the query, as over those of an operator's sub-query."""
    return tuple(replace(o, expr=substitute(o.expr, operator.columns)) for o in operands)


@dataclass(slots=True)
class _Reader:
    """One partition of the edge: its reader's demands, and what was told it."""

    suspended: Signatures
    need: int = NEVER
    number: int = 0
    written: int = 0


class Withholding:
    """One task's end of the edge that it feeds.

    Args:
        share: the task's number among its operator's.
        clock: seconds.

    Attributes:
        detecting: the time spent finding what to keep back.
        below: what is suspended by those that feed the task.
        over: nothing is kept back any more.
    """

    def __init__(
        self, operator: PlacedOperator, share: int, join: BinaryJoin, clock: Callable[[], float] = lambda: 0.0
    ) -> None:
        (edge,) = operator.outputs
        self._route = Route(edge, share)
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
        self._fresh: list[tuple[int, EdgeKind, U64]] = []
        self._since_sweep = 0
        self.returned = self.late = self.suspends = self.resumes = self.checked = 0
        self.suppressed = 0.0
        self.detecting = Stopwatch(clock)
        self.over = False
        self.below: Callable[[], U64] = lambda: NONE

    # --- What readers ask for ---------------------------------------------------------------------------

    @property
    def hold(self) -> int:
        """Readers may ask for whatever has not expired before this."""
        return min(reader.need for reader in self._readers.values())

    def ask(self, partition: int, suspend: U64, resume: U64, need: int) -> None:
        """A reader's message. What it asks for may be done already, or not wanted any more."""
        reader = self._readers.get(partition)
        if reader is None:
            return
        reader.need = max(reader.need, need)
        if len(suspend) and not self.over:
            self._to_suspend[partition].append(suspend)
        if len(resume):
            waiting = self._to_suspend[partition]
            left = [words[~np.isin(words, resume)] for words in waiting]
            self._to_suspend[partition] = [words for words in left if len(words)]
            resume = reader.suspended.hit(resume)
        if len(resume):
            self._to_resume[partition].append(resume)

    def overhear(self, partition: int, resume: U64) -> None:
        """What a reader further up asks for, of one of its own partitions: the task's reader will pass it on."""
        resume = of_kinds(resume, self._passed)
        if self._edge.forward:
            self.ask(partition, NONE, resume, NEVER)
            return
        for own in self._readers:
            self.ask(own, NONE, resume, NEVER)

    @property
    def resuming(self) -> bool:
        """True when a reader waits for something that the task keeps back."""
        return any(self._to_resume.values())

    @property
    def suspended(self) -> int:
        """Signatures suspended now."""
        return sum(len(reader.suspended) for reader in self._readers.values())

    # --- What comes in -----------------------------------------------------------------------------------

    def admit(self, side: int, tuples: Tuples) -> Tuples:
        """Those of an input's tuples that nobody keeps back; the others are kept."""
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
        self._fresh.append((side, kind, signatures[useless]))
        counters = self._join.counters
        self.suppressed += len(kept) * counters.results / max(counters.input_tuples, 1)
        return tuples.take(~useless)

    def _resolver(self, tuples: Tuples) -> Resolve:
        return self._join.sources.resolver(tuples.aliases, tuples.rows)

    def enter_late(self, side: int, tuples: Tuples) -> None:
        """Let tuples in that their producer has resumed. What they make with tuples of before was made in its time, or
        is not demanded."""
        self._join.enter_late(side, self.admit(side, tuples), self.hold)

    # --- Epoch by epoch ----------------------------------------------------------------------------------

    def owes(self) -> bool:
        """True when somebody waits for an answer."""
        return self.resuming or (any(self._to_suspend.values()) and self._pays())

    def wanted(self) -> U64:
        """What readers have asked to be resumed, each signature once."""
        asked = [words for waiting in self._to_resume.values() for words in waiting]
        return np.unique(np.concatenate(asked)) if asked else NONE

    def missing(self, signatures: U64) -> U64:
        """Those that no reader has suspended."""
        for reader in self._readers.values():
            signatures = signatures[~reader.suspended.contains(signatures)]
        return signatures

    def take_fresh(self) -> list[tuple[int, EdgeKind, U64]]:
        """Of what was kept back since the last call: at which input, by which kind, the signatures."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def written(self, partition: int, size: int) -> None:
        """A block of so many bytes goes to a partition."""
        self._readers[partition].written += size

    def answer(self, engine: Engine, ready: bool) -> list[tuple[int, bytes, int]]:
        """The notices of an epoch, behind its blocks: partition, bytes and rows of each, in the order to write them.

        Args:
            ready: False while what the task has asked its own producers for is missing: then nothing is resumed.
        """
        found: list[tuple[int, bytes, int]] = []
        resuming = self.wanted()
        if ready and self.resuming:
            for partition in self._readers:
                found += self._resume(engine, partition)
        if any(self._to_suspend.values()) and self._pays():
            found += self._suspend(engine, resuming)
        for partition, reader in self._readers.items():
            if reader.written >= WHOLE_BYTES + 8 * len(reader.suspended):
                found.append(self._whole(partition, reader, engine))
        return found

    def release(self, engine: Engine) -> list[tuple[int, bytes, int]]:
        """Let everything go, and keep nothing back from here on: the notices that say so."""
        self.over = True
        found: list[tuple[int, bytes, int]] = []
        for partition, reader in self._readers.items():
            self._to_suspend[partition].clear()
            self._to_resume[partition] = [reader.suspended.hashes()]
            found += self._resume(engine, partition)
        return found

    def restore(self, engine: Engine, partition: int, notices: Iterable[Notice]) -> None:
        """Be again what a channel's last notices say, from a whole one on; `engine` has read all input of before."""
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
        """What a reader has asked for comes back. Other readers of the join have no tuple of its signatures."""
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
        """Late tuples in pieces; the last carries what is said of them."""
        found: list[tuple[int, bytes, int]] = []
        step = rows_per_block(late)
        begins = range(0, max(len(late), 1), step)
        for begin in begins:
            last = begin == begins[-1]
            piece = late.slice(begin, min(begin + step, len(late)))
            said = (suspended, resumed) if last else (NONE, NONE)
            found.append(self._encoded(partition, reader, False, *said, piece))
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
        nothing = self._route.travelling(engine.results(Tuples.empty(self._join.aliases)))
        fresh = Signatures()
        for partition, reader in self._readers.items():
            waiting, self._to_suspend[partition] = self._to_suspend[partition], []
            if not waiting:
                continue
            signatures = np.unique(np.concatenate(waiting))
            signatures = signatures[~reader.suspended.contains(signatures) & ~np.isin(signatures, resuming)]
            signatures = signatures[: max(0, MOST_SUSPENDED - len(reader.suspended))]
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
        """When all that is in the states will have died; see `_whole`."""
        return np.full(n, min(engine.cut + max(self._join.sources.life.values()), FOREVER))

    def _whole(self, partition: int, reader: _Reader, engine: Engine) -> tuple[int, bytes, int]:
        """Say all that is suspended, less what has become pointless: nothing that lives is kept back by it, here or
        below."""
        below = self.below()
        below = below[reader.suspended.contains(below)]
        reader.suspended.add(below, self._until(engine, len(below)))
        reader.suspended.purge(self.hold)
        nothing = self._route.travelling(engine.results(Tuples.empty(self._join.aliases)))
        found = self._encoded(partition, reader, True, reader.suspended.hashes(), NONE, nothing)
        reader.written = 0
        return found

    def _pays(self) -> bool:
        """Searching the states costs no more than what has come since the last search."""
        held = sum(len(state) for side, state in enumerate(self._join.states) if self._kinds[side])
        return SWEEP_PAYS * self._since_sweep >= held

    def _take_out(self, suspended: Signatures) -> None:
        """Keep back what the states hold of some signatures."""
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
                self._fresh.append((side, kind, signatures[useless]))
                state.retract(entries[useless])

    def size_bytes(self) -> int:
        """Bytes of all that is kept back, and of its signatures."""
        return sum(kept.size_bytes() for kept in self.kept) + sum(
            reader.suspended.size_bytes() for reader in self._readers.values()
        )
