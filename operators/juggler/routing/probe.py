"""Finds the candidates of a visit: pairs of a tuple in flight and a row of the input visited (Juggler 3.3, 3.4.2).

`operators.juggler.operator` calls `Prober`. The first of the join and window types in the order in force chooses the
exploitation structure. Its bounds only limit the candidates; the operator evaluates every predicate list on them
afterwards. Except for a hash index, the number of entries within the bounds is known before the entries are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from operators.data.evaluate import evaluate
from operators.data.keys import key_hashes
from operators.juggler.predicates.fields import numbers
from operators.juggler.predicates.lists import JOIN, WINDOW
from operators.juggler.routing.tuples_in_flight import Evaluator, JugglerCounters, TuplesInFlight, states_of
from operators.juggler.routing.visits import Visit
from operators.juggler.state.input_state import InputState
from operators.juggler.state.sorted_runs import SortedRun
from operators.kernels.juggler_probe import bound_times, bound_values, bounding, place_times, scan_places
from operators.state.side_state import Scratch, SideState
from operators.state.sources import Sources
from schemas.columns import I64
from schemas.query import ColumnRef

CANDIDATES_PER_BATCH = 1 << 13
"""Candidates found and evaluated together. Their intermediate arrays fit the cache, and each array is small enough for
malloc to reuse memory. A worker's malloc returns large arrays to the system (`services.process.memory`), and getting
their pages again took up to half of a slice's time."""

Pairs = tuple[I64, I64]
"""(m,) positions of tuples in flight, ascending within one structure, and (m,) row ids."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """The entries of one ring or sorted run that n tuples examine.

    Attributes:
        first, last: (n,) each tuple examines positions first .. last; `last` is exclusive.
        rows, ts: the row ids and timestamps of the ring or run; position p is at index `p & mask`.
        mask: capacity - 1 of a ring; -1 of a run.
    """

    first: I64
    last: I64
    rows: I64
    ts: I64
    mask: int = -1

    def entries(self) -> int:
        """The number of entries within the bounds."""
        return int(np.maximum(self.last - self.first, 0).sum())


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """The entries that tuples in flight are about to examine, piece by piece.

    Attributes:
        pieces: the rings and sorted runs to examine.
        low, high: (n,) closed bounds of the ts of matching rows.
    """

    pieces: Sequence[Piece]
    low: I64
    high: I64

    def entries(self) -> int:
        """The number of entries within the bounds."""
        return sum(piece.entries() for piece in self.pieces)

    def pairs(self, scratch: Scratch, counters: JugglerCounters) -> Iterator[Pairs]:
        """Yield the candidates, piece by piece."""
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
        """Sample the candidates.

        Args:
            entries: how many evenly spaced entries to examine.
            most: the largest number of candidates to return.

        Returns:
            The share of examined entries that are candidates, and some of these candidates.
        """
        total = self.entries()
        wanted = thinned(total, entries)
        probes, found = [], []
        before = 0
        for piece in self.pieces:
            widths = np.maximum(piece.last - piece.first, 0)
            ends = before + np.cumsum(widths)
            at = wanted[(wanted >= before) & (wanted < (ends[-1] if len(ends) else before))]
            probe = np.searchsorted(ends, at, side="right")
            index = (piece.first[probe] + at - (ends - widths)[probe]) & piece.mask
            ts = piece.ts[index]
            good = (self.low[probe] <= ts) & (ts <= self.high[probe])
            probes.append(probe[good])
            found.append(piece.rows[index[good]])
            before += int(widths.sum())
        probe, rows = (np.concatenate([np.zeros(0, np.int64), *some]) for some in (probes, found))
        few = thinned(len(probe), most)
        return len(probe) / max(1, len(wanted)), (probe[few], rows[few])


def thinned(total: int, most: int) -> I64:
    """At most `most` of `total` positions, evenly spaced."""
    count = min(most, total)
    return np.arange(count, dtype=np.int64) * total // max(1, count)


class Prober:
    """Finds candidates for visits."""

    def __init__(self, sources: Sources, evaluator: Evaluator, counters: JugglerCounters) -> None:
        self._sources = sources
        self._scratch = sources.scratch.part(CANDIDATES_PER_BATCH)
        self._evaluator = evaluator
        self._counters = counters

    def keyed(self, visit: Visit, input_state: InputState, first: str) -> SideState | None:
        """The hash index in which the type `first` finds candidates; None if it uses no hash index."""
        return input_state.by_key.get(visit.operands) if visit.key and first == JOIN else None

    def lookup(
        self, visit: Visit, in_flight: TuplesInFlight, input_state: InputState, first: str, *, strict: bool
    ) -> Lookup:
        """Determine which entries to examine for candidates where there is no hash index.

        Args:
            first: JOIN or WINDOW, the type whose structure is used.
            strict: whether rows of the tuple's own ts are later than it.
        """
        low, high = _alive_at(in_flight, input_state, strict=strict)
        if first == JOIN and visit.index is not None:
            return Lookup(self._by_value(visit, in_flight, input_state), low, high)
        self._bound_times(visit, in_flight, low, high)
        state = input_state.by_time
        self._counters.comparisons += len(in_flight)
        begin, end = place_times(low, high, state.ts, state.lo, state.hi)
        pieces = [Piece(begin, end, state.rows[0], state.ts, state.capacity - 1)]
        return Lookup([*pieces, *(_piece(run, low, high) for run in input_state.late_by_time.runs)], low, high)

    def pairs(
        self,
        visit: Visit,
        in_flight: TuplesInFlight,
        input_state: InputState,
        state: SideState | None,
        lookup: Lookup | None,
        *,
        strict: bool,
    ) -> Iterator[Pairs]:
        """Yield candidates from the hash index or from the lookup, at most CANDIDATES_PER_BATCH at a time."""
        if state is not None:
            yield from self._by_key(visit, in_flight, input_state, state, strict=strict)
        elif lookup is not None:
            yield from lookup.pairs(self._scratch, self._counters)

    def _by_key(
        self, visit: Visit, in_flight: TuplesInFlight, input_state: InputState, state: SideState, *, strict: bool
    ) -> Iterator[Pairs]:
        resolve = self._sources.resolver(in_flight.inputs, in_flight.rows)
        hashes, valid = key_hashes([term.left.values(resolve, len(in_flight)) for term in visit.key])
        index = np.arange(len(in_flight)) if valid is None else np.flatnonzero(valid)
        hashes, ts = hashes[index], in_flight.ts[index]
        scratch = self._scratch
        start, resume = 0, -1
        while start < len(index) and state.hi > state.lo:
            count, start, resume, compared = state.probe(
                hashes, ts, strict=strict, start=start, resume=resume, scratch=scratch
            )
            self._counters.comparisons += compared
            if count:
                entries = scratch.entries[:count] & (state.capacity - 1)
                yield index[scratch.probe_idx[:count]], state.rows[0][entries]
        late = input_state.late_by_key.get(visit.operands)
        if late is not None and late.runs:
            low, high = _alive_at(in_flight, input_state, strict=strict)
            keys = hashes.view(np.int64)
            lookup = Lookup([_piece(run, keys, keys) for run in late.runs], low[index], high[index])
            for probe, rows in lookup.pairs(scratch, self._counters):
                yield index[probe], rows

    def _bound_times(self, visit: Visit, in_flight: TuplesInFlight, low: I64, high: I64) -> None:
        """Narrow the time bounds by those window lists that have one block with factor and divisor 1."""
        name = visit.inputs[-1]
        for one in visit.lists[WINDOW]:
            form = one.form
            if form is None or form.y is None or one.counts:
                continue
            table = self._evaluator.list_table(one)
            if len(table.factors) != 1 or table.factors[0] != 1 or table.divisors[0] != 1:
                continue
            found_is_x = isinstance(form.x, ColumnRef) and form.x.alias == name
            other = form.y if found_is_x else form.x
            column = evaluate(other, self._sources.resolver(in_flight.inputs, in_flight.rows), len(in_flight))
            bounded = bounding(in_flight.alive, table.asking) & (states_of([column], table.limits) == 0)
            times = numbers(column, True)
            self._counters.comparisons += bound_times(
                table.op, found_is_x, times, table.addends, table.masks, bounded, in_flight.alive, low, high
            )

    def _by_value(self, visit: Visit, in_flight: TuplesInFlight, input_state: InputState) -> list[Piece]:
        """Determine where tuples look in the sorted runs of a column's values, by the join lists over that column."""
        assert visit.index is not None
        index = input_state.by_value[visit.index]
        resolve = self._sources.resolver(in_flight.inputs, in_flight.rows)
        bounds = []
        for one in visit.lists[JOIN]:
            form = one.form
            if form is None or form.y is None or form.whole != index.whole or len(one.inputs) != 2:
                continue
            if index.column not in (form.x, form.y):
                continue
            sorted_is_x = form.x == index.column
            table = self._evaluator.list_table(one)
            column = evaluate(form.y if sorted_is_x else form.x, resolve, len(in_flight))
            lines = (table.factors, table.divisors, table.addends, table.blocks, table.masks)
            bounded = bounding(in_flight.alive, table.asking)
            states = states_of([column], table.limits)
            bounds.append((table.op, sorted_is_x, numbers(column, form.whole), states, lines, bounded))
        pieces = []
        for run in (*index.sorted_runs.runs, index.others):
            first, last = np.zeros(len(in_flight), np.int64), np.full(len(in_flight), len(run))
            for op, sorted_is_x, values, states, lines, bounded in bounds if run is not index.others else ():
                self._counters.comparisons += bound_values(
                    op, sorted_is_x, run.values, values, states, *lines, bounded, in_flight.alive, first, last
                )
            if len(run):
                pieces.append(Piece(first, last, run.rows, run.ts))
        return pieces


def _piece(run: SortedRun, least: I64, most: I64) -> Piece:
    """The piece of a run whose values lie within closed bounds."""
    first, last = np.searchsorted(run.values, least, side="left"), np.searchsorted(run.values, most, side="right")
    return Piece(first, last, run.rows, run.ts)


def _alive_at(in_flight: TuplesInFlight, input_state: InputState, *, strict: bool) -> tuple[I64, I64]:
    """(n,) closed bounds of the ts of rows that are alive and earlier than the tuples in flight."""
    return input_state.least_ts(in_flight.ts), in_flight.ts - 1 if strict else in_flight.ts.copy()
