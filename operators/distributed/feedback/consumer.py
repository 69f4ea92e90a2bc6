"""The consumer's end of feedback between distributed operators: what a task requests from the producers of one input.

`operators.distributed.feedback` drives it. For each channel a task knows which signatures are suspended *as far as it
has read the channel's log* (`operators.distributed.feedback.producer`). It processes an epoch only when it has
everything that the epoch's tuples of its other input can match. If such a tuple has a suspended signature, the task
requests the signature back and waits until all channels have resumed it. It sends the request as soon as it has read
the tuple, so that the producer's work overlaps its own; meanwhile it may advance up to that tuple's time (`limit`). A
notice takes effect when it is read, although the producer may have written it at a later event time than the task has
reached: the tuples that it takes back arrive again if they are needed.

With a plan whose producers make earlier results on demand (`operators.distributed.feedback.on_demand`), the task
requests the signatures of new tuples in the same way, and waits for them.

Results therefore depend neither on the requests nor on their delivery. Suspending pays where many tuples have no match,
and costs where the signature is soon resumed; a kind that does not pay rests (`operators.distributed.feedback.payoff`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from operators.data.evaluate import Resolve, batch_reader
from operators.data.tuples import FOREVER, Tuples
from operators.data.watermark import END
from operators.distributed.feedback.kinds import EdgeKind, are_of_kinds, of_kinds
from operators.distributed.feedback.on_demand import PlanStart
from operators.distributed.feedback.payoff import KindPayoff
from operators.distributed.feedback.producer import NONE, over_own
from operators.distributed.operator import CHANNEL, DistributedOperator, Edge
from operators.engine.engine import Engine
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
from schemas.query import ColumnRef, Type


class _OwnKind:
    """A kind by which the task itself suspends tuples, and the signatures that are present in its other input."""

    def __init__(self, kind: EdgeKind, operator: DistributedOperator, edge: Edge, life: int) -> None:
        self.kind = kind
        self.payoff = KindPayoff(kind.number, 8 * (len(edge.fields) + 1), life, edge.channels)
        self.own = over_own(kind.own, operator)
        self.opposite = over_own(kind.opposite or (), operator)
        self.present = Signatures()


class ConsumerFeedback:
    """What one task requests of one of its inputs, and knows about it.

    Args:
        operator: The task's operator.
        side: The input's side.
        join: The operator's join.
        kept: The tuples of the input that the task itself keeps back.
        clock: Returns seconds.
        suspends: Whether the task suspends what it does not demand.
        start: When the plan began, where producers make earlier results on demand; else None.
        progress: Returns the event time before which neither the task nor its readers need anything any more.

    Attributes:
        edge: The edge of the input.
        side: The input's side.
        stream: The input's stream.
        observed: The stream of the other input.
        life: How long a tuple of the input is alive, in ms.
        detecting: The time spent on finding what is not demanded and what has become demanded.
        suspends: Signatures requested to be suspended so far.
        resumes: Signatures requested back so far.
        late: Tuples that arrived late so far.
        checked: Signatures computed so far.
        arrived: Tuples that arrived in time so far.
    """

    def __init__(
        self,
        operator: DistributedOperator,
        side: int,
        join: BinaryJoin,
        kept: Blacklist | None,
        clock: Callable[[], float] = lambda: 0.0,
        *,
        suspends: bool = True,
        start: PlanStart | None = None,
        progress: Callable[[], int] = lambda: 0,
    ) -> None:
        given, other = operator.inputs[side], operator.inputs[1 - side]
        if given.edge is None:
            raise InvariantError(f"{given.stream.name} is a source: it has no producer")
        self.edge: Edge = given.edge
        self.side = side
        self.stream = given.stream.name
        self.observed = other.source.name
        self._alias = join.match.sides[side][0]
        self._other_life = life_of(operator.query.source(join.match.sides[1 - side][0]))
        self.life = life_of(operator.query.source(self._alias))
        self._join = join
        self._kept = kept
        spoken = [kind for kind in self.edge.kinds if kind.opposite is not None]
        self._own = [_OwnKind(kind, operator, self.edge, self.life) for kind in spoken]
        self._all: list[tuple[EdgeKind, tuple[Operand, ...]]] = [
            (kind, over_own(kind.own, operator)) for kind in self.edge.kinds
        ]
        self._passed = [kind.number for kind in self.edge.kinds if kind.opposite is None]
        self._withheld = [Signatures() for _ in range(self.edge.channels)]
        self._numbers = [0] * self.edge.channels
        self._suspends = suspends
        self._start = start if self.edge.on_demand else None
        self._progress = progress
        self._received = [Signatures() for _ in range(self.edge.channels)]
        self._all_received = [False] * self.edge.channels
        self._early: list[tuple[U64, I64]] = []
        self._requested = Signatures()
        self._outbox: list[U64] = []
        self._wanted: U64 = NONE
        self._since: I64 = np.zeros(0, np.int64)
        self._now = 0
        self.detecting = Stopwatch(clock)
        self.suspends = self.resumes = self.late = self.checked = self.arrived = 0

    # --- What is known ------------------------------------------------------------------------------------

    def withholds(self, signatures: U64) -> U64:
        """Return those of some signatures whose tuples are missing from some channel, each once: suspended, or on
        demand and not received yet."""
        return np.unique(signatures[self._are_missing(signatures)])

    def _are_missing(self, signatures: U64) -> Mask:
        missing = self._are_suspended(signatures)
        if self.has_on_demand:
            asked = are_of_kinds(signatures, self.edge.on_demand)
            for received, everything in zip(self._received, self._all_received, strict=True):
                if not everything:
                    missing |= asked & ~received.contains(signatures)
        return missing

    def _are_suspended(self, signatures: U64) -> Mask:
        suspended = np.zeros(len(signatures), np.bool_)
        for withheld in self._withheld:
            if len(withheld):
                suspended |= withheld.contains(signatures)
        return suspended

    @property
    def has_on_demand(self) -> bool:
        """Whether a channel still has living results that it sends on demand only."""
        if self._start is None or all(self._all_received):
            return False
        return self._progress() - self._start.begin() < self.life

    def partners(self, resolve: Resolve, n: int) -> tuple[U64, Mask | None]:
        """Return the signatures of the results on demand that tuples of the other input match.

        Args:
            resolve: Returns the values of a column of the tuples.
            n: The number of tuples.

        Returns:
            As `EdgeKind.signatures`.
        """
        own = next(own for own in self._own if own.kind.number == self.edge.on_demand[0])
        return own.kind.signatures(own.opposite, resolve, n)

    def passed_on(self, signatures: U64) -> U64:
        """Return those of some signatures that the task only passes on for a reader further up."""
        return of_kinds(signatures, self._passed)

    def withheld(self) -> U64:
        """Return all signatures that are suspended in some channel."""
        return np.unique(np.concatenate([withheld.hashes() for withheld in self._withheld]))

    @property
    def suspended(self) -> int:
        """The number of suspended signatures, summed over the channels."""
        return sum(len(withheld) for withheld in self._withheld)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is suspended or on demand."""
        return self.suspended == 0 and not self.has_on_demand

    @property
    def watching(self) -> bool:
        """False while all kinds of the task itself rest."""
        return any(not own.payoff.rests(self._now) for own in self._own)

    @property
    def wanted(self) -> U64:
        """The signatures requested back that have not been resumed yet, each once."""
        return self._wanted

    @property
    def waiting(self) -> bool:
        """Whether some signature that was requested back has not been resumed yet."""
        return len(self._wanted) > 0

    @property
    def limit(self) -> int:
        """The event time up to which the task can advance: from there on, a tuple needs what has been requested."""
        self._request_for_early()
        return int(self._since.min()) if self.waiting else END

    @property
    def incomplete_from(self) -> int:
        """The event time from which tuples are missing that the task has had before: their signature is suspended, and
        it has been requested back. In contrast to `limit`, results on demand do not count."""
        return int(min(self._since[self._are_suspended(self._wanted)], default=END))

    # --- What is asked for ----------------------------------------------------------------------------------

    def request_resume(self, signatures: U64, since: int | I64) -> None:
        """Request signatures back, because of tuples with a ts of at least `since`: one for all, or one for each."""
        if self._outbox and len(signatures):
            has_requests = np.concatenate(self._outbox)
            cancelled = np.isin(has_requests, signatures)
            self._requested.remove(has_requests[cancelled])
            self._outbox = [has_requests[~cancelled]]
        missing = self._are_missing(signatures)
        if not missing.any():
            return
        words = np.concatenate([self._wanted, signatures[missing]])
        times = np.concatenate([self._since, np.broadcast_to(np.int64(since), len(signatures))[missing]])
        order = np.lexsort((times, words))
        words = words[order]
        first = np.append(True, words[1:] != words[:-1])
        self.resumes += int(np.count_nonzero(first)) - len(self._wanted)
        # Each keeps its own earliest time: a request that is not urgent yet may become so before it is answered.
        self._wanted, self._since = words[first], times[order][first]

    def suspend(self, signatures: U64, expiry: int) -> None:
        """Request that signatures be suspended. Each is requested only once until `expiry`."""
        signatures = np.unique(signatures)
        signatures = signatures[~self._requested.contains(signatures)]
        if len(signatures):
            self._requested.add(signatures, np.full(len(signatures), expiry))
            self._outbox.append(signatures)
            self.suspends += len(signatures)

    def has(self, kind: EdgeKind) -> bool:
        """Return whether the producers also keep tuples back by a kind of a reader further up."""
        return any(one.number == kind.number for one, _ in self._all)

    def take_suspends(self) -> U64:
        """Return the signatures to be suspended that have not been sent yet, each once."""
        if not self._outbox:
            return NONE
        outbox = np.unique(np.concatenate(self._outbox))
        self._outbox = []
        for own in self._own:
            # A partner has arrived in the meantime.
            outbox = outbox[~own.present.contains(outbox)]
        return outbox

    # --- What comes in ------------------------------------------------------------------------------------

    def observe(self, batch: Batch) -> None:
        """Process tuples of the other input that have been read: request back the signatures that they match."""
        n = len(batch)
        resolve = batch_reader(batch)
        expiry = np.minimum(batch.ts + self._other_life, FOREVER)
        if not self.foresee(batch):
            self._received = []
        for own in self._own if self._suspends else ():
            signatures, valid = own.kind.signatures(own.opposite, resolve, n)
            self.checked += n
            ts, until = batch.ts, expiry
            if valid is not None:
                signatures, ts, until = signatures[valid], ts[valid], until[valid]
            own.present.add(signatures, until)
            self._requested.remove(signatures)
            for withheld in self._withheld:
                found = withheld.contains(signatures)
                if found.any():
                    self.request_resume(signatures[found], int(ts[found].min()))

    def foresee(self, batch: Batch) -> bool:
        """Request the results on demand that tuples of the other input match, read or not. Return whether there are
        results on demand."""
        if self.has_on_demand:
            self._request_for(*self.partners(batch_reader(batch), len(batch)), batch.ts)
            return True
        return False

    def _request_for(self, signatures: U64, valid: Mask | None, ts: I64) -> None:
        """Request the results on demand that new tuples of the other input match."""
        if valid is not None:
            signatures, ts = signatures[valid], ts[valid]
        assert self._start is not None
        if self._start.begin() >= END:
            self._early = [early for early in self._early if early[1].max() >= self._progress()]
            if len(ts):
                self._early.append((signatures, ts))
            return
        new = ts >= self._start.first_new
        self.request_resume(signatures[new], ts[new])

    def _request_for_early(self) -> None:
        """Once it is decided when the plan begins, request for the tuples that were read before."""
        if self._early and self._start is not None and self._start.begin() < END:
            early, self._early = self._early, []
            for signatures, ts in early:
                self._request_for(signatures, None, ts)

    @property
    def has_requests(self) -> bool:
        """Whether there are signatures to be suspended that have not been sent."""
        return any(len(words) for words in self._outbox)

    def detect(self, tuples: Tuples, now: int, hold: int) -> None:
        """Process tuples of the input before they enter: request that those without a match be suspended."""
        self.arrived += len(tuples)
        self._now = now
        for own in self._own:
            own.present.purge(hold)
        self._requested.purge(hold)
        resolve = self._join.sources.resolver(tuples.aliases, tuples.rows)
        rest = np.ones(len(tuples), np.bool_)
        for own in self._own if self._suspends else ():
            if own.payoff.rests(now):
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
        """Apply a notice: drop the tuples of suspended signatures and store the late tuples.

        Returns:
            Tuples that are to enter the join late; None if the notice has been read before.
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
                self.request_resume(new[own.present.contains(new)], engine.cut)
            if notice.rewrites:
                self.request_resume(new, engine.cut)
        self._update_payoff(engine.cut, notice, new, withheld)
        entering = self._enter(engine, channel, notice.late)
        withheld.remove(notice.resumed)
        self._requested.remove(notice.resumed)
        if self.has_on_demand:
            answered = of_kinds(notice.resumed, self.edge.on_demand)
            self._received[channel].add(answered, np.full(len(answered), FOREVER))
            self._all_received[channel] |= notice.complete
        if len(notice.resumed) or notice.whole:
            still = np.isin(self._wanted, self.withholds(self._wanted))
            self._wanted, self._since = self._wanted[still], self._since[still]
        for own in self._own if self._suspends else ():
            if own.payoff.review(engine.cut):
                # Request everything at once, so that no later tuple has to wait for any of it.
                self.request_resume(of_kinds(self.withheld(), (own.kind.number,)), END)
        return entering

    def _update_payoff(self, now: int, notice: Notice, new: U64, withheld: Signatures) -> None:
        """Add a notice to the payoff of each kind."""
        late = notice.late
        resolve = batch_reader(late)
        for own in self._own:
            rows = 0
            if len(late):
                signatures, valid = own.kind.signatures(own.own, resolve, len(late))
                found = withheld.contains(signatures)
                rows = int(np.count_nonzero(found if valid is None else found & valid))
            own.payoff.record(now, notice, new, rows)

    def _enter(self, engine: Engine, channel: int, late: Batch) -> Tuples:
        """Store late tuples. Those that `cut` has not passed wait with the other tuples of the input; return the
        rest."""
        self.late += len(late)
        late = self.with_channel(late, channel)
        passed = int(np.searchsorted(late.ts, engine.cut))
        if passed < len(late):
            engine.insert(self.stream, channel, late.slice(passed, len(late)))
        if passed == 0:
            return Tuples.empty((self._alias,))
        return engine.store(self.stream, late.slice(0, passed))[self._alias]

    def with_channel(self, batch: Batch, channel: int) -> Batch:
        """Add the channel's number to a batch, if the edge stores it."""
        if not self.edge.marks_channels:
            return batch
        column = Column(Type.BIGINT, np.full(len(batch), channel, np.int64))
        return Batch(batch.ts, {**batch.columns, CHANNEL: column})

    def _drop(self, engine: Engine, channel: int, signatures: U64, hold: int) -> None:
        """Drop the tuples of some signatures that a channel wrote: from the waiting input, the state and the
        blacklist."""
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
            places, tuples = self._kept.living(hold)
            self._kept.drop(places[held(tuples)])

    def size_bytes(self) -> int:
        """Bytes of the signatures."""
        sets = [*self._withheld, *self._received, self._requested, *(own.present for own in self._own)]
        return sum(one.size_bytes() for one in sets)
