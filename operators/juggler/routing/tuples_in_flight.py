"""Tuples on their way through the operator, and what predicate lists take from them (Juggler 3.2.2-3.2.4, 3.4.1).

Two encodings. `queries`, the fast one: a tuple carries the queries that it may still satisfy, and a list takes away all
that fail at once. `predicates`, the thesis': a tuple carries which predicates were evaluated and which of them hold
(RelPBS, SatPBS), and after each type of predicates each of its queries is compared with both (Fig. 3.15).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from operators.data.evaluate import Resolve, evaluate, holds
from operators.juggler.predicates.fields import numbers, outside
from operators.juggler.predicates.lists import Compiled, Lists, PredicateList, compiled, query_mask
from operators.juggler.predicates.normal_form import Limits
from operators.kernels.hashing import U64
from operators.kernels.juggler import NULL, ODD, ask_queries, living, narrow, record
from schemas.columns import I64, U8, Column, Mask

QUERIES, PREDICATES = "queries", "predicates"
ENCODINGS = (QUERIES, PREDICATES)
WORTH_DROPPING = 0.8
"""Tuples are dropped between the lists of a type when no more than this share is left."""
FOLDED = 0.2
"""The weight of the newest evaluation in the share of tuples that a list has left."""


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """`n` source tuples or intermediate results.

    Attributes:
        inputs: those covered, the first the one whose new tuple is the latest.
        rows: (len(inputs), n) row ids; ts: (n,) of the latest.
        alive: (n, words) the queries that may still be satisfied.
        relevant, satisfied: (n, predicate words) RelPBS and SatPBS; without words where queries are encoded.
    """

    inputs: tuple[str, ...]
    rows: I64
    ts: I64
    alive: U64
    relevant: U64
    satisfied: U64

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, index: I64 | Mask) -> Flight:
        """Those at some positions, or where a mask is True."""
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)
        return Flight(
            self.inputs,
            np.take(self.rows, index, axis=1),
            self.ts[index],
            self.alive[index],
            self.relevant[index],
            self.satisfied[index],
        )

    def with_alive(self, alive: U64) -> Flight:
        """The same with other queries left."""
        return Flight(self.inputs, self.rows, self.ts, alive, self.relevant, self.satisfied)

    def still_alive(self) -> Flight:
        """Those with a query left."""
        alive = living(self.alive)
        return self if alive.all() else self.take(alive)


@dataclass(slots=True)
class Counters:
    """What was done so far; none depends on the machine.

    Attributes:
        comparisons: predicates evaluated, and entries and places of structures looked at.
        bit_operations: words compared or changed.
        intermediate: tuples left after each type of predicates, by the order in force and the type.
        results: by query.
    """

    comparisons: int = 0
    bit_operations: int = 0
    intermediate: dict[tuple[str, str], int] = field(default_factory=dict)
    results: dict[str, int] = field(default_factory=dict)


class Resolves(Protocol):
    """Says how columns of component rows are read: `operators.state.sources.Sources`."""

    def resolver(self, aliases: Sequence[str], rows: I64) -> Resolve:
        """Reads columns of (k, n) component rows."""
        ...


class Evaluator:
    """Evaluates predicate lists on flights.

    Attributes:
        words, predicate_words: of a flight's sets.
        compiled: the lists with a normal form.
    """

    def __init__(self, sources: Resolves, lists: Lists, queries: int, encoding: str, counters: Counters) -> None:
        self.sources = sources
        self.lists = lists
        self.words = max(1, -(-queries // 64))
        self.encoding = encoding
        self.predicate_words = lists.dependencies.shape[1] if encoding == PREDICATES else 0
        self.counters = counters
        self._numbers = {id(one): number for number, one in enumerate(lists.lists)}
        self._shares = [1.0] * len(lists.lists)
        self._compiled = [None if one.form is None else compiled(one, self.words) for one in lists.lists]

    def reading(self, sources: Resolves) -> Evaluator:
        """This one, over tuples of other sources."""
        other = copy(self)
        other.sources = sources
        return other

    def compiled(self, one: PredicateList) -> Compiled:
        """A list with a normal form, as kernels read it."""
        found = self._compiled[self._numbers[id(one)]]
        assert found is not None
        return found

    def narrowed(self, flight: Flight, lists: Sequence[PredicateList]) -> Flight:
        """What lists leave; those that have left the fewest tuples come first. The flight given is used up."""
        resolve: Resolve | None = None
        for one in sorted(lists, key=self._left):
            if not len(flight):
                break
            if resolve is None:
                resolve = self.sources.resolver(flight.inputs, flight.rows)
            self._one(flight, one, resolve)
            if self.encoding == PREDICATES:
                # Queries are only asked when the whole type was evaluated.
                continue
            alive = living(flight.alive)
            left = np.count_nonzero(alive) / len(flight)
            number = self._numbers[id(one)]
            self._shares[number] += FOLDED * (left - self._shares[number])
            if left < WORTH_DROPPING:
                flight, resolve = flight.take(alive), None
        self._ask(flight)
        return flight.still_alive()

    def evaluate(self, flight: Flight, lists: Sequence[PredicateList]) -> None:
        """Evaluate lists; the flight's sets change, its tuples stay."""
        if not lists or not len(flight):
            return
        resolve = self.sources.resolver(flight.inputs, flight.rows)
        for one in lists:
            self._one(flight, one, resolve)
        self._ask(flight)

    def _left(self, one: PredicateList) -> float:
        return self._shares[self._numbers[id(one)]]

    def _one(self, flight: Flight, one: PredicateList, resolve: Resolve) -> None:
        if one.form is None:
            self._as_written(flight, one)
        else:
            self._by_form(flight, one, resolve)

    def _ask(self, flight: Flight) -> None:
        """Ask each tuple's queries what they make of the predicates evaluated so far."""
        if self.encoding == PREDICATES and len(flight):
            self.counters.bit_operations += ask_queries(
                flight.relevant, flight.satisfied, self.lists.dependencies, flight.alive
            )

    def _by_form(self, flight: Flight, one: PredicateList, resolve: Resolve) -> None:
        form, table = one.form, self.compiled(one)
        assert form is not None
        left = evaluate(form.x, resolve, len(flight))
        right = None if form.y is None else resolve(form.y)
        x = numbers(left, form.whole)
        y = np.zeros_like(x) if right is None else numbers(right, form.whole)
        states = states_of([left] if right is None else [left, right], table.limits)
        lines = (table.factors, table.divisors, table.addends, table.blocks)
        if self.encoding == QUERIES:
            done = narrow(table.op, x, y, states, *lines, table.before, table.after, table.asking, flight.alive)
        else:
            done = record(
                table.op, x, y, states, *lines, table.places, table.asking, flight.alive, flight.relevant,
                flight.satisfied,
            )  # fmt: skip
        self.counters.comparisons += done[0]
        self.counters.bit_operations += done[1]
        odd = np.flatnonzero(states == ODD)
        if len(odd):
            for predicate, queries in one.written.items():
                mask = query_mask(queries, self.words)
                failing = odd[~holds(predicate, self._resolver(flight, odd), len(odd))]
                flight.alive[failing] &= ~mask
                self.counters.comparisons += len(odd)

    def _as_written(self, flight: Flight, one: PredicateList) -> None:
        (predicate,), (entry,) = one.written, one.entries
        mask = query_mask(entry.queries, self.words)
        asked = np.flatnonzero(living(flight.alive & mask))
        if not len(asked):
            return
        good = holds(predicate, self._resolver(flight, asked), len(asked))
        self.counters.comparisons += len(asked)
        self.counters.bit_operations += len(asked) * self.words
        if self.encoding == QUERIES:
            flight.alive[asked[~good]] &= ~mask
            return
        word, bit = entry.place >> 6, np.uint64(1 << (entry.place & 63))
        flight.relevant[asked, word] |= bit
        flight.satisfied[asked[good], word] |= bit

    def _resolver(self, flight: Flight, index: I64) -> Resolve:
        return self.sources.resolver(flight.inputs, np.take(flight.rows, index, axis=1))


def states_of(columns: Sequence[Column], limits: Limits) -> U8:
    """(n,) see `operators.kernels.juggler`."""
    states = np.zeros(len(columns[0]), np.uint8)
    for column in columns:
        states[outside(column, limits)] = ODD
    for column in columns:
        if column.valid is not None:
            states[~column.valid] = NULL
    return states
