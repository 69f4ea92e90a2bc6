"""Candidates of a visit: pairs of a tuple under way and a row of the input visited (Juggler 3.3, 3.4.2).

The first of the join and window types in the order in force chooses the structure. Candidates are no more than what one
bound lets through; every predicate list is evaluated on them afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from operators.evaluate import evaluate
from operators.juggler.fields import numbers
from operators.juggler.flight import Counters, Evaluator, Flight, states_of
from operators.juggler.held import Held, Run
from operators.juggler.lists import JOIN, WINDOW
from operators.juggler.visits import Visit
from operators.kernels.juggler_probe import bound_times, bound_values, bounding, scan_run, scan_times
from operators.keys import key_hashes
from operators.sources import Sources
from operators.state import SideState
from schemas.columns import I64
from schemas.query import Column

Pairs = tuple[I64, I64]
"""(m,) positions of tuples under way, ascending within one structure, and (m,) row ids."""


class Prober:
    """Finds candidates for visits."""

    def __init__(self, sources: Sources, evaluator: Evaluator, counters: Counters) -> None:
        self._sources = sources
        self._evaluator = evaluator
        self._counters = counters

    def candidates(self, visit: Visit, flight: Flight, held: Held, first: str, *, strict: bool) -> Iterator[Pairs]:
        """Pairs, piece by piece; a piece is not to be kept.

        Args:
            first: JOIN or WINDOW, the type whose structure is used.
            strict: whether rows of the tuple's own ts are later than it.
        """
        state = held.by_key.get(visit.operands) if visit.key else None
        if first == JOIN and state is not None:
            yield from self._by_key(visit, flight, state, strict=strict)
            return
        low, high = _alive_at(flight, held, strict=strict)
        if first == JOIN and visit.index is not None:
            yield from self._by_value(visit, flight, held, low, high)
            return
        self._bound_times(visit, flight, low, high)
        scratch, state = self._sources.scratch, held.by_time
        start, resume = 0, -1
        while start < len(flight):
            count, start, resume, steps = scan_times(
                low, high, start, resume, state.ts, state.lo, state.hi, scratch.probe_idx, scratch.entries
            )
            self._counters.comparisons += steps
            if count:
                entries = scratch.entries[:count] & (state.capacity - 1)
                yield scratch.probe_idx[:count].copy(), state.rows[0][entries]

    def spans(self, visit: Visit, flight: Flight, held: Held, times: I64) -> I64:
        """(n,) how many rows, of ascending `times`, each tuple would be given by the window structure."""
        low, high = _alive_at(flight, held, strict=False)
        self._bound_times(visit, flight, low, high)
        count = np.searchsorted(times, high, side="right") - np.searchsorted(times, low, side="left")
        return np.asarray(np.maximum(count, 0), np.int64)

    def _by_key(self, visit: Visit, flight: Flight, state: SideState, *, strict: bool) -> Iterator[Pairs]:
        resolve = self._sources.resolver(flight.inputs, flight.rows)
        hashes, valid = key_hashes([term.left.values(resolve, len(flight)) for term in visit.key])
        index = np.arange(len(flight)) if valid is None else np.flatnonzero(valid)
        hashes, ts = hashes[index], flight.ts[index]
        scratch = self._sources.scratch
        start, resume = 0, -1
        while start < len(index) and state.hi > state.lo:
            count, start, resume, compared = state.probe(
                hashes, ts, strict=strict, start=start, resume=resume, scratch=scratch
            )
            self._counters.comparisons += compared
            if count:
                entries = scratch.entries[:count] & (state.capacity - 1)
                yield index[scratch.probe_idx[:count]], state.rows[0][entries]

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

    def _by_value(self, visit: Visit, flight: Flight, held: Held, low: I64, high: I64) -> Iterator[Pairs]:
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
        for run in (*index.runs, index.others):
            first, last = np.zeros(len(flight), np.int64), np.full(len(flight), len(run))
            for op, sorted_is_x, values, states, lines, bounded in bounds if run is not index.others else ():
                self._counters.comparisons += bound_values(
                    op, sorted_is_x, run.values, values, states, *lines, bounded, flight.alive, first, last
                )
            yield from self._scan(run, first, last, low, high)

    def _scan(self, run: Run, first: I64, last: I64, low: I64, high: I64) -> Iterator[Pairs]:
        scratch = self._sources.scratch
        start, resume = 0, -1
        while start < len(first) and len(run):
            count, start, resume, looked = scan_run(
                first, last, low, high, start, resume, run.rows, run.ts, scratch.probe_idx, scratch.entries
            )
            self._counters.comparisons += looked
            if count:
                yield scratch.probe_idx[:count].copy(), scratch.entries[:count].copy()


def _alive_at(flight: Flight, held: Held, *, strict: bool) -> tuple[I64, I64]:
    """(n,) the closed bounds of times at which rows live and are earlier than the tuples under way."""
    return held.least_ts(flight.ts), flight.ts - 1 if strict else flight.ts.copy()
