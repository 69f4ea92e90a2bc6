"""Candidates of a visit: pairs of a tuple under way and a row of the input visited (Juggler 3.3, 3.4.2).

The first of the join and window types in the order in force chooses the structure. Candidates are no more than what one
bound lets through; every predicate list is evaluated on them afterwards. How much of a structure lies within the bounds
is known before it is looked at, but for a hash index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from operators.data.evaluate import evaluate
from operators.data.keys import key_hashes
from operators.juggler.predicates.fields import numbers
from operators.juggler.predicates.lists import JOIN, WINDOW
from operators.juggler.routing.tuples_in_flight import Counters, Evaluator, Flight, states_of
from operators.juggler.routing.visits import Visit
from operators.juggler.state.input_state import Held
from operators.juggler.state.sorted_runs import Run
from operators.kernels.juggler_probe import bound_times, bound_values, bounding, place_times, scan_places
from operators.state.side_state import Scratch, SideState
from operators.state.sources import Sources
from schemas.columns import I64
from schemas.query import Column

AT_ONCE = 1 << 13
"""Candidates that are found, and evaluated, together. What is made of them on their way fits the cache, and each of its
arrays is small enough for memory that was used before: a worker's malloc gives large ones back to the system
(`services.process.memory`), and to be given their pages anew took up to half of a slice's time."""

Pairs = tuple[I64, I64]
"""(m,) positions of tuples under way, ascending within one structure, and (m,) row ids."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A ring or a sorted run, and where n tuples look at it: places first .. last, at `mask` of `rows` and `ts`."""

    first: I64
    last: I64
    rows: I64
    ts: I64
    mask: int = -1

    def entries(self) -> int:
        """Places within the bounds."""
        return int(np.maximum(self.last - self.first, 0).sum())


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """What tuples under way are about to look at in pieces.

    Attributes:
        low, high: (n,) closed bounds of the ts of what is found.
    """

    pieces: Sequence[Piece]
    low: I64
    high: I64

    def entries(self) -> int:
        """Places within the bounds."""
        return sum(piece.entries() for piece in self.pieces)

    def pairs(self, scratch: Scratch, counters: Counters) -> Iterator[Pairs]:
        """Candidates, piece by piece."""
        for piece in self.pieces:
            start, resume = 0, -1
            while start < len(self.low) and len(piece.rows):
                count, start, resume, looked = scan_places(
                    piece.first, piece.last, self.low, self.high, start, resume, piece.rows, piece.ts, piece.mask,
                    scratch.probe_idx, scratch.entries,
                )  # fmt: skip
                counters.comparisons += looked
                if count:
                    yield scratch.probe_idx[:count].copy(), scratch.entries[:count].copy()

    def some(self, entries: int, most: int) -> tuple[float, Pairs]:
        """The share of entries that are candidates, by so many of them, evenly spaced; and some of the candidates."""
        total = self.entries()
        wanted = thinned(total, entries)
        probes, found = [], []
        before = 0
        for piece in self.pieces:
            widths = np.maximum(piece.last - piece.first, 0)
            ends = before + np.cumsum(widths)
            at = wanted[(wanted >= before) & (wanted < (ends[-1] if len(ends) else before))]
            probe = np.searchsorted(ends, at, side="right")
            place = (piece.first[probe] + at - (ends - widths)[probe]) & piece.mask
            ts = piece.ts[place]
            good = (self.low[probe] <= ts) & (ts <= self.high[probe])
            probes.append(probe[good])
            found.append(piece.rows[place[good]])
            before += int(widths.sum())
        probe, rows = (np.concatenate([np.zeros(0, np.int64), *some]) for some in (probes, found))
        few = thinned(len(probe), most)
        return len(probe) / max(1, len(wanted)), (probe[few], rows[few])


def thinned(total: int, most: int) -> I64:
    """At most so many of `total` positions, evenly spaced."""
    count = min(most, total)
    return np.arange(count, dtype=np.int64) * total // max(1, count)


class Prober:
    """Finds candidates for visits."""

    def __init__(self, sources: Sources, evaluator: Evaluator, counters: Counters) -> None:
        self._sources = sources
        self._room = sources.scratch.part(AT_ONCE)
        self._evaluator = evaluator
        self._counters = counters

    def keyed(self, visit: Visit, held: Held, first: str) -> SideState | None:
        """The hash index by which a type finds candidates, if it does."""
        return held.by_key.get(visit.operands) if visit.key and first == JOIN else None

    def look(self, visit: Visit, flight: Flight, held: Held, first: str, *, strict: bool) -> Look:
        """Where to look for candidates without a hash index.

        Args:
            first: JOIN or WINDOW, the type whose structure is used.
            strict: whether rows of the tuple's own ts are later than it.
        """
        low, high = _alive_at(flight, held, strict=strict)
        if first == JOIN and visit.index is not None:
            return Look(self._by_value(visit, flight, held), low, high)
        self._bound_times(visit, flight, low, high)
        state = held.by_time
        self._counters.comparisons += len(flight)
        begin, end = place_times(low, high, state.ts, state.lo, state.hi)
        pieces = [Piece(begin, end, state.rows[0], state.ts, state.capacity - 1)]
        return Look([*pieces, *(_piece(run, low, high) for run in held.late_by_time.parts)], low, high)

    def pairs(
        self, visit: Visit, flight: Flight, held: Held, state: SideState | None, look: Look | None, *, strict: bool
    ) -> Iterator[Pairs]:
        """Candidates by one of both, at most AT_ONCE together."""
        if state is not None:
            yield from self._by_key(visit, flight, held, state, strict=strict)
        elif look is not None:
            yield from look.pairs(self._room, self._counters)

    def _by_key(
        self, visit: Visit, flight: Flight, held: Held, state: SideState, *, strict: bool
    ) -> Iterator[Pairs]:
        resolve = self._sources.resolver(flight.inputs, flight.rows)
        hashes, valid = key_hashes([term.left.values(resolve, len(flight)) for term in visit.key])
        index = np.arange(len(flight)) if valid is None else np.flatnonzero(valid)
        hashes, ts = hashes[index], flight.ts[index]
        scratch = self._room
        start, resume = 0, -1
        while start < len(index) and state.hi > state.lo:
            count, start, resume, compared = state.probe(
                hashes, ts, strict=strict, start=start, resume=resume, scratch=scratch
            )
            self._counters.comparisons += compared
            if count:
                entries = scratch.entries[:count] & (state.capacity - 1)
                yield index[scratch.probe_idx[:count]], state.rows[0][entries]
        late = held.late_by_key.get(visit.operands)
        if late is not None and late.parts:
            low, high = _alive_at(flight, held, strict=strict)
            keys = hashes.view(np.int64)
            look = Look([_piece(run, keys, keys) for run in late.parts], low[index], high[index])
            for probe, rows in look.pairs(scratch, self._counters):
                yield index[probe], rows

    def _bound_times(self, visit: Visit, flight: Flight, low: I64, high: I64) -> None:
        """Narrow times by the window lists of one line each."""
        name = visit.inputs[-1]
        for one in visit.lists[WINDOW]:
            form = one.form
            if form is None or form.y is None or one.counts:
                continue
            table = self._evaluator.compiled(one)
            if len(table.factors) != 1 or table.factors[0] != 1 or table.divisors[0] != 1:
                continue
            found_is_x = isinstance(form.x, Column) and form.x.alias == name
            other = form.y if found_is_x else form.x
            column = evaluate(other, self._sources.resolver(flight.inputs, flight.rows), len(flight))
            bounded = bounding(flight.alive, table.asking) & (states_of([column], table.limits) == 0)
            times = numbers(column, True)
            self._counters.comparisons += bound_times(
                table.op, found_is_x, times, table.addends, table.masks, bounded, flight.alive, low, high
            )

    def _by_value(self, visit: Visit, flight: Flight, held: Held) -> list[Piece]:
        """Where tuples look in the runs of a column's values, by the join lists over that column."""
        assert visit.index is not None
        index = held.by_value[visit.index]
        resolve = self._sources.resolver(flight.inputs, flight.rows)
        bounds = []
        for one in visit.lists[JOIN]:
            form = one.form
            if form is None or form.y is None or form.whole != index.whole or len(one.inputs) != 2:
                continue
            if index.column not in (form.x, form.y):
                continue
            sorted_is_x = form.x == index.column
            table = self._evaluator.compiled(one)
            column = evaluate(form.y if sorted_is_x else form.x, resolve, len(flight))
            lines = (table.factors, table.divisors, table.addends, table.blocks, table.masks)
            bounded = bounding(flight.alive, table.asking)
            states = states_of([column], table.limits)
            bounds.append((table.op, sorted_is_x, numbers(column, form.whole), states, lines, bounded))
        pieces = []
        for run in (*index.runs.parts, index.others):
            first, last = np.zeros(len(flight), np.int64), np.full(len(flight), len(run))
            for op, sorted_is_x, values, states, lines, bounded in bounds if run is not index.others else ():
                self._counters.comparisons += bound_values(
                    op, sorted_is_x, run.values, values, states, *lines, bounded, flight.alive, first, last
                )
            if len(run):
                pieces.append(Piece(first, last, run.rows, run.ts))
        return pieces


def _piece(run: Run, least: I64, most: I64) -> Piece:
    """Where values within closed bounds are in a run."""
    first, last = np.searchsorted(run.values, least, side="left"), np.searchsorted(run.values, most, side="right")
    return Piece(first, last, run.rows, run.ts)


def _alive_at(flight: Flight, held: Held, *, strict: bool) -> tuple[I64, I64]:
    """(n,) the closed bounds of times at which rows live and are earlier than the tuples under way."""
    return held.least_ts(flight.ts), flight.ts - 1 if strict else flight.ts.copy()
