"""The consuming end of feedback between placed operators: what a task asks of those that feed one of its inputs.

A task knows of each channel which signatures are suspended *as far as it has read the channel's log*
(`operators.distributed.withholding`). It processes an epoch only when it has all that the epoch's tuples of its other
input can meet: where one of these has a suspended signature, the task asks for it, and waits until it is resumed in all
channels. It asks as soon as it has read the tuple, so that the producer's work overlaps its own; in the meantime it may
advance as far as that tuple's time (`limit`). What a notice says takes effect when it is read, though it may have been
written at a later event time than the task has reached: the tuples that it takes back come anew if they are needed.

So results do not depend on what was asked for, nor on whether it was heard. Asking pays where tuples are many that meet
nobody, and costs where it is taken back soon: then what does not pay rests (`operators.distributed.payoff`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from operators.data.evaluate import Resolve
from operators.data.tuples import FOREVER, Tuples
from operators.data.watermark import END
from operators.distributed.decompose import CHANNEL, Edge, PlacedOperator
from operators.distributed.kinds import EdgeKind, of_kinds
from operators.distributed.payoff import Worth
from operators.distributed.withholding import NONE, over_own
from operators.engine.engine import Engine
from operators.engine.selection import batch_reader
from operators.feedback.blacklist import Blacklist
from operators.feedback.signatures import Signatures
from operators.feedback.stopwatch import Stopwatch
from operators.join.binary_join import BinaryJoin
from operators.kernels.hashing import U64
from operators.plan.predicates import Operand
from operators.state.sources import life_of
from schemas.codecs.notice import Notice
from schemas.columns import I64, Batch, Column, Mask
from schemas.errors import InvariantError
from schemas.query import Column as ColumnRef
from schemas.query import Type


class _Own:
    """A kind that the task itself speaks of, and the signatures that its other input has."""

    def __init__(self, kind: EdgeKind, operator: PlacedOperator, edge: Edge, life: int) -> None:
        self.kind = kind
        self.worth = Worth(kind.number, 8 * (len(edge.fields) + 1), life, edge.channels)
        self.own = over_own(kind.own, operator)
        self.opposite = over_own(kind.opposite or (), operator)
        self.present = Signatures()


class Demand:
    """What one task says of one of its inputs, and knows of it.

    Args:
        side: the input's.
        kept: what the task itself keeps back of the input.
        clock: seconds.

    Attributes:
        detecting: the time spent finding what is not demanded, and what has become so.
    """

    def __init__(
        self,
        operator: PlacedOperator,
        side: int,
        join: BinaryJoin,
        kept: Blacklist | None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        given, other = operator.inputs[side], operator.inputs[1 - side]
        if given.edge is None:
            raise InvariantError(f"{given.stream.name} is a source: it has no producer")
        self.edge: Edge = given.edge
        self.side = side
        self.stream = given.stream.name
        self.observed = other.stream.name
        self._alias = join.match.sides[side][0]
        self._other_life = life_of(operator.query.source(join.match.sides[1 - side][0]))
        self.life = life_of(operator.query.source(self._alias))
        self._join = join
        self._kept = kept
        spoken = [kind for kind in self.edge.kinds if kind.opposite is not None]
        self._own = [_Own(kind, operator, self.edge, self.life) for kind in spoken]
        self._all: list[tuple[EdgeKind, tuple[Operand, ...]]] = [
            (kind, over_own(kind.own, operator)) for kind in self.edge.kinds
        ]
        self._passed = [kind.number for kind in self.edge.kinds if kind.opposite is None]
        self._withheld = [Signatures() for _ in range(self.edge.channels)]
        self._numbers = [0] * self.edge.channels
        self._told = Signatures()
        self._outbox: list[U64] = []
        self._wanted: U64 = NONE
        self._since: I64 = np.zeros(0, np.int64)
        self._now = 0
        self.detecting = Stopwatch(clock)
        self.suspends = self.resumes = self.late = self.checked = self.came = 0

    # --- What is known ------------------------------------------------------------------------------------

    def withholds(self, signatures: U64) -> U64:
        """Those of some signatures that are suspended in some channel, each once."""
        found = [withheld.hit(signatures) for withheld in self._withheld if len(withheld)]
        return np.unique(np.concatenate(found)) if found else NONE

    def passed_on(self, signatures: U64) -> U64:
        """Those of some signatures that the task only passes on for somebody further up."""
        return of_kinds(signatures, self._passed)

    def withheld(self) -> U64:
        """All signatures that are suspended in some channel."""
        return np.unique(np.concatenate([withheld.hashes() for withheld in self._withheld]))

    @property
    def suspended(self) -> int:
        """Signatures suspended, summed over the channels."""
        return sum(len(withheld) for withheld in self._withheld)

    @property
    def watching(self) -> bool:
        """False while all that it would speak of rests."""
        return any(not own.worth.rests(self._now) for own in self._own)

    @property
    def wanted(self) -> U64:
        """What it has asked for and not got yet, each signature once."""
        return self._wanted

    @property
    def waiting(self) -> bool:
        """True while it has not got all that it has asked for."""
        return len(self._wanted) > 0

    @property
    def limit(self) -> int:
        """The task lacks something from this event time on."""
        return int(self._since.min()) if self.waiting else END

    # --- What is asked for ----------------------------------------------------------------------------------

    def want(self, signatures: U64, since: int) -> None:
        """Ask for signatures back, for what has a ts of at least `since`."""
        if self._outbox and len(signatures):
            unsaid = np.concatenate(self._outbox)
            cancelled = np.isin(unsaid, signatures)
            self._told.remove(unsaid[cancelled])
            self._outbox = [unsaid[~cancelled]]
        held = self.withholds(signatures)
        if len(held) == 0:
            return
        words = np.concatenate([self._wanted, held])
        times = np.concatenate([self._since, np.full(len(held), since)])
        order = np.lexsort((times, words))
        words = words[order]
        first = np.append(True, words[1:] != words[:-1])
        self.resumes += int(np.count_nonzero(first)) - len(self._wanted)
        # Each has a time of its own, its earliest: what nobody waits for yet may become urgent before it comes.
        self._wanted, self._since = words[first], times[order][first]

    def suspend(self, signatures: U64, expiry: int) -> None:
        """Ask for signatures to be kept back; asked once until `expiry`."""
        signatures = np.unique(signatures)
        signatures = signatures[~self._told.contains(signatures)]
        if len(signatures):
            self._told.add(signatures, np.full(len(signatures), expiry))
            self._outbox.append(signatures)
            self.suspends += len(signatures)

    def has(self, kind: EdgeKind) -> bool:
        """Whether the producers keep back by a kind that somebody further up speaks of."""
        return any(one.number == kind.number for one, _ in self._all)

    def take_suspends(self) -> U64:
        """What to ask the producers to keep back, each signature once."""
        if not self._outbox:
            return NONE
        outbox = np.unique(np.concatenate(self._outbox))
        self._outbox = []
        for own in self._own:
            # A partner has come in the meantime.
            outbox = outbox[~own.present.contains(outbox)]
        return outbox

    # --- What comes in ------------------------------------------------------------------------------------

    def observe(self, batch: Batch) -> None:
        """Tuples of the other input have been read: what they can meet must be there."""
        n = len(batch)
        resolve = batch_reader(batch)
        expiry = np.minimum(batch.ts + self._other_life, FOREVER)
        for own in self._own:
            signatures, valid = own.kind.signatures(own.opposite, resolve, n)
            self.checked += n
            ts, until = batch.ts, expiry
            if valid is not None:
                signatures, ts, until = signatures[valid], ts[valid], until[valid]
            own.present.add(signatures, until)
            self._told.remove(signatures)
            for withheld in self._withheld:
                found = withheld.contains(signatures)
                if found.any():
                    self.want(signatures[found], int(ts[found].min()))

    @property
    def unsaid(self) -> bool:
        """True when there is something to ask the producers to keep back."""
        return any(len(words) for words in self._outbox)

    def detect(self, tuples: Tuples, now: int, hold: int) -> None:
        """Tuples of the input are about to enter: ask for those to be kept back that meet nothing."""
        self.came += len(tuples)
        self._now = now
        for own in self._own:
            own.present.purge(hold)
        self._told.purge(hold)
        resolve = self._join.sources.resolver(tuples.aliases, tuples.rows)
        rest = np.ones(len(tuples), np.bool_)
        for own in self._own:
            if own.worth.rests(now):
                continue
            signatures, valid = own.kind.signatures(own.own, resolve, len(tuples))
            self.checked += len(tuples)
            useless = rest & ~own.present.contains(signatures)
            if valid is not None:
                useless &= valid
            if useless.any():
                self.suspend(signatures[useless], int(tuples.expiry[useless].max()))
                rest &= ~useless

    def note(self, engine: Engine, notice: Notice, hold: int) -> Tuples | None:
        """Take notice: what is suspended goes, what comes late is stored.

        Returns:
            Tuples that are to enter the join late; None where the notice has been read before.
        """
        channel = notice.channel
        if notice.number <= self._numbers[channel]:
            return None
        self._numbers[channel] = notice.number
        withheld = self._withheld[channel]
        new = notice.suspended[~withheld.contains(notice.suspended)]
        if notice.whole:
            self._withheld[channel] = withheld = Signatures()
            withheld.add(notice.suspended, np.full(len(notice.suspended), FOREVER))
        elif len(new):
            withheld.add(new, np.full(len(new), FOREVER))
        if len(new):
            self._drop(engine, channel, new, hold)
            for own in self._own:
                self.want(new[own.present.contains(new)], engine.cut)
        self._weigh(engine.cut, notice, new, withheld)
        entering = self._enter(engine, channel, notice.late)
        withheld.remove(notice.resumed)
        self._told.remove(notice.resumed)
        if len(notice.resumed) or notice.whole:
            still = np.isin(self._wanted, self.withholds(self._wanted))
            self._wanted, self._since = self._wanted[still], self._since[still]
        for own in self._own:
            if own.worth.judge(engine.cut):
                # All of it at once: then nobody waits for any of it.
                self.want(of_kinds(self.withheld(), (own.kind.number,)), END)
        return entering

    def _weigh(self, now: int, notice: Notice, new: U64, withheld: Signatures) -> None:
        """What a notice says of the worth of each kind."""
        late = notice.late
        resolve = batch_reader(late)
        for own in self._own:
            rows = 0
            if len(late):
                signatures, valid = own.kind.signatures(own.own, resolve, len(late))
                found = withheld.contains(signatures)
                rows = int(np.count_nonzero(found if valid is None else found & valid))
            own.worth.read(now, notice, new, rows)

    def _enter(self, engine: Engine, channel: int, late: Batch) -> Tuples:
        """Late tuples: those that `cut` has not passed wait with the others."""
        self.late += len(late)
        late = self.marked(late, channel)
        passed = int(np.searchsorted(late.ts, engine.cut))
        if passed < len(late):
            engine.insert(self.stream, channel, late.slice(passed, len(late)))
        if passed == 0:
            return Tuples.empty((self._alias,))
        return engine.store(self.stream, late.slice(0, passed))[self._alias]

    def marked(self, batch: Batch, channel: int) -> Batch:
        """A batch with the channel that it came by, where that is kept."""
        if not self.edge.marks_channels:
            return batch
        column = Column(Type.BIGINT, np.full(len(batch), channel, np.int64))
        return Batch(batch.ts, {**batch.columns, CHANNEL: column})

    def _drop(self, engine: Engine, channel: int, signatures: U64, hold: int) -> None:
        """Forget what a channel wrote of some signatures: what waits, what is in the state, what is kept back."""
        gone = Signatures()
        gone.add(signatures, np.full(len(signatures), FOREVER))

        def useless(resolve: Resolve, n: int) -> Mask:
            found = np.zeros(n, np.bool_)
            for kind, operands in self._all:
                given, valid = kind.signatures(operands, resolve, n)
                found |= gone.contains(given) if valid is None else gone.contains(given) & valid
            return found

        def held(tuples: Tuples) -> Mask:
            resolve = self._join.sources.resolver(tuples.aliases, tuples.rows)
            found = useless(resolve, len(tuples))
            if self.edge.marks_channels:
                found &= resolve(ColumnRef(self._alias, CHANNEL, Type.BIGINT)).values == channel
            self.checked += len(tuples)
            return found

        engine.withdraw(self.stream, channel, lambda batch: useless(batch_reader(batch), len(batch)))
        state = self._join.states[self.side]
        for part in (state, state.older):
            if part is not None:
                entries, tuples = part.living(hold)
                part.retract(entries[held(tuples)])
        if self._kept is not None:
            places, tuples = self._kept.held(hold)
            self._kept.drop(places[held(tuples)])

    def size_bytes(self) -> int:
        """Bytes of what is known."""
        sets = [*self._withheld, self._told, *(own.present for own in self._own)]
        return sum(one.size_bytes() for one in sets)
