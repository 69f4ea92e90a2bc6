"""Tuples in flight through the operator, and the evaluator that filters them (Juggler 3.2.2-3.2.4, 3.4.1).

`operators.juggler.routing.stages` evaluates predicate lists through `Evaluator`. There are two encodings. Under
`queries`, the fast one, a tuple carries the queries that it may still satisfy, and a list removes all failing queries
at once. Under `predicates`, that of the thesis, a tuple carries the predicates that were evaluated and those that hold
(RelPBS, SatPBS); after each predicate type, each of its queries is compared with both sets (Fig. 3.15).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from operators.data.evaluate import Resolve, evaluate, holds
from operators.juggler.predicates.fields import numbers, outside
from operators.juggler.predicates.lists import Lists, ListTable, PredicateList, list_table, query_mask
from operators.juggler.predicates.normal_form import Limits
from operators.kernels.hashing import U64
from operators.kernels.juggler import NULL, ODD, ask_queries, living, narrow, record
from schemas.columns import I64, U8, Column, Mask

QUERIES, PREDICATES = "queries", "predicates"
ENCODINGS = (QUERIES, PREDICATES)
DROP_SHARE = 0.8
"""Dead tuples are dropped between the lists of a type when less than this share is still alive."""
SMOOTHING = 0.2
"""The weight of the newest evaluation in the average share of tuples that pass a list."""


@dataclass(frozen=True, slots=True, eq=False)
class TuplesInFlight:
    """`n` source tuples or intermediate results that visit inputs.

    Attributes:
        inputs: the inputs covered; the new tuple of the first one is the latest component.
        rows: (len(inputs), n) row ids.
        ts: (n,) the ts of the latest component.
        alive: (n, words) one bit per query that the tuple may still satisfy.
        relevant, satisfied: (n, predicate words) RelPBS and SatPBS; with 0 words under the `queries` encoding.
    """

    inputs: tuple[str, ...]
    rows: I64
    ts: I64
    alive: U64
    relevant: U64
    satisfied: U64

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, index: I64 | Mask) -> TuplesInFlight:
        """The tuples at some positions, or where a mask is True."""
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)
        return TuplesInFlight(
            self.inputs,
            np.take(self.rows, index, axis=1),
            self.ts[index],
            self.alive[index],
            self.relevant[index],
            self.satisfied[index],
        )

    def with_alive(self, alive: U64) -> TuplesInFlight:
        """The same tuples with other queries alive."""
        return TuplesInFlight(self.inputs, self.rows, self.ts, alive, self.relevant, self.satisfied)

    def still_alive(self) -> TuplesInFlight:
        """The tuples that some query can still use."""
        alive = living(self.alive)
        return self if alive.all() else self.take(alive)


@dataclass(slots=True)
class JugglerCounters:
    """Work done so far; no counter depends on the machine.

    Attributes:
        comparisons: predicates evaluated, plus entries of structures examined.
        bit_operations: words compared or changed.
        intermediate: tuples left after each predicate type, by the order in force and the type.
        results: the number of results by query.
    """

    comparisons: int = 0
    bit_operations: int = 0
    intermediate: dict[tuple[str, str], int] = field(default_factory=dict)
    results: dict[str, int] = field(default_factory=dict)


class ColumnReader(Protocol):
    """Reads columns of component rows; `operators.state.sources.Sources` is one."""

    def resolver(self, aliases: Sequence[str], rows: I64) -> Resolve:
        """A function that reads columns of (k, n) component rows."""
        ...


class Evaluator:
    """Evaluates predicate lists on tuples in flight.

    Args:
        sources: reads the columns of rows.
        lists: all predicate lists of the operator.
        queries: the number of queries.
        encoding: one of ENCODINGS.
        counters: updated with the work done.

    Attributes:
        words: 64-bit words of a set of queries.
        predicate_words: 64-bit words of a set of predicates; 0 under the `queries` encoding.
    """

    def __init__(
        self, sources: ColumnReader, lists: Lists, queries: int, encoding: str, counters: JugglerCounters
    ) -> None:
        self.sources = sources
        self.lists = lists
        self.words = max(1, -(-queries // 64))
        self.encoding = encoding
        self.predicate_words = lists.dependencies.shape[1] if encoding == PREDICATES else 0
        self.counters = counters
        self._numbers = {id(one): number for number, one in enumerate(lists.lists)}
        self._shares = [1.0] * len(lists.lists)
        self._compiled = [None if one.form is None else list_table(one, self.words) for one in lists.lists]

    def over(self, sources: ColumnReader) -> Evaluator:
        """A copy of this evaluator that reads tuples from other sources."""
        other = copy(self)
        other.sources = sources
        return other

    def list_table(self, one: PredicateList) -> ListTable:
        """The arrays of a list with a normal form, as kernels read them."""
        found = self._compiled[self._numbers[id(one)]]
        assert found is not None
        return found

    def narrowed(self, in_flight: TuplesInFlight, lists: Sequence[PredicateList]) -> TuplesInFlight:
        """Filter tuples by lists, the most selective list so far first. The sets of `in_flight` may change."""
        resolve: Resolve | None = None
        for one in sorted(lists, key=self._share_left):
            if not len(in_flight):
                break
            if resolve is None:
                resolve = self.sources.resolver(in_flight.inputs, in_flight.rows)
            self._evaluate_list(in_flight, one, resolve)
            if self.encoding == PREDICATES:
                # Failed queries are removed only after the whole type was evaluated.
                continue
            alive = living(in_flight.alive)
            left = np.count_nonzero(alive) / len(in_flight)
            number = self._numbers[id(one)]
            self._shares[number] += SMOOTHING * (left - self._shares[number])
            if left < DROP_SHARE:
                in_flight, resolve = in_flight.take(alive), None
        self._drop_failed_queries(in_flight)
        return in_flight.still_alive()

    def evaluate(self, in_flight: TuplesInFlight, lists: Sequence[PredicateList]) -> None:
        """Evaluate lists; the sets of `in_flight` change, its tuples stay."""
        if not lists or not len(in_flight):
            return
        resolve = self.sources.resolver(in_flight.inputs, in_flight.rows)
        for one in lists:
            self._evaluate_list(in_flight, one, resolve)
        self._drop_failed_queries(in_flight)

    def _share_left(self, one: PredicateList) -> float:
        return self._shares[self._numbers[id(one)]]

    def _evaluate_list(self, in_flight: TuplesInFlight, one: PredicateList, resolve: Resolve) -> None:
        if one.form is None:
            self._evaluate_as_written(in_flight, one)
        else:
            self._evaluate_by_form(in_flight, one, resolve)

    def _drop_failed_queries(self, in_flight: TuplesInFlight) -> None:
        """Remove from each tuple the queries of which an evaluated predicate failed (`predicates` encoding only)."""
        if self.encoding == PREDICATES and len(in_flight):
            self.counters.bit_operations += ask_queries(
                in_flight.relevant, in_flight.satisfied, self.lists.dependencies, in_flight.alive
            )

    def _evaluate_by_form(self, in_flight: TuplesInFlight, one: PredicateList, resolve: Resolve) -> None:
        form, table = one.form, self.list_table(one)
        assert form is not None
        left = evaluate(form.x, resolve, len(in_flight))
        right = None if form.y is None else resolve(form.y)
        x = numbers(left, form.whole)
        y = np.zeros_like(x) if right is None else numbers(right, form.whole)
        states = states_of([left] if right is None else [left, right], table.limits)
        lines = (table.factors, table.divisors, table.addends, table.blocks)
        if self.encoding == QUERIES:
            done = narrow(table.op, x, y, states, *lines, table.before, table.after, table.asking, in_flight.alive)
        else:
            done = record(
                table.op, x, y, states, *lines, table.bits, table.asking, in_flight.alive, in_flight.relevant,
                in_flight.satisfied,
            )  # fmt: skip
        self.counters.comparisons += done[0]
        self.counters.bit_operations += done[1]
        odd = np.flatnonzero(states == ODD)
        if len(odd):
            for predicate, queries in one.written.items():
                mask = query_mask(queries, self.words)
                failing = odd[~holds(predicate, self._resolver(in_flight, odd), len(odd))]
                in_flight.alive[failing] &= ~mask
                self.counters.comparisons += len(odd)

    def _evaluate_as_written(self, in_flight: TuplesInFlight, one: PredicateList) -> None:
        (predicate,), (entry,) = one.written, one.entries
        mask = query_mask(entry.queries, self.words)
        asked = np.flatnonzero(living(in_flight.alive & mask))
        if not len(asked):
            return
        good = holds(predicate, self._resolver(in_flight, asked), len(asked))
        self.counters.comparisons += len(asked)
        self.counters.bit_operations += len(asked) * self.words
        if self.encoding == QUERIES:
            in_flight.alive[asked[~good]] &= ~mask
            return
        word, flag = entry.bit >> 6, np.uint64(1 << (entry.bit & 63))
        in_flight.relevant[asked, word] |= flag
        in_flight.satisfied[asked[good], word] |= flag

    def _resolver(self, in_flight: TuplesInFlight, index: I64) -> Resolve:
        return self.sources.resolver(in_flight.inputs, np.take(in_flight.rows, index, axis=1))


def states_of(columns: Sequence[Column], limits: Limits) -> U8:
    """(n,) uint8: 0, NULL or ODD of `operators.kernels.juggler` per tuple."""
    states = np.zeros(len(columns[0]), np.uint8)
    for column in columns:
        states[outside(column, limits)] = ODD
    for column in columns:
        if column.valid is not None:
            states[~column.valid] = NULL
    return states
