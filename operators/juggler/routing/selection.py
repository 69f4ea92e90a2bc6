"""Which tuples a group stores at all: those that some query's attribute predicates select, for some input.

They are evaluated before a tuple is stored, and what they say is remembered of those that are. A stream of which some
query takes every tuple is not looked at; one of which most tuples are wanted only now and then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from operators.data.evaluate import Resolve
from operators.juggler.predicates.lists import ATTRIBUTE, Lists, PredicateList, query_mask
from operators.juggler.routing.tuples_in_flight import Evaluator, Flight
from operators.kernels.juggler import living
from schemas.columns import I64, Batch, Column, Mask
from schemas.groups import QueryGroup
from schemas.query import Column as ColumnRef
from schemas.query import Type

WORTH_LEAVING = 0.8
"""Storing all is cheaper than looking where more than this share is wanted."""
LOOKED_AGAIN_SLICES = 32
"""Slices after which such a stream is looked at again."""


class Arriving:
    """Tuples that are not stored: their row ids are positions in a batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def resolver(self, aliases: Sequence[str], rows: I64) -> Resolve:
        """Reads columns of (1, n) positions; each column is gathered once."""
        whole = rows.shape[1] == len(self._batch)
        cache: dict[str, Column] = {}

        def resolve(column: ColumnRef) -> Column:
            found = cache.get(column.name)
            if found is None:
                batch = self._batch
                found = Column(Type.TIMESTAMP, batch.ts) if column.name == "_ts" else batch.columns[column.name]
                found = cache[column.name] = found if whole else found.take(rows[0])
            return found

        return resolve


class Selection:
    """What the queries of a group select of its streams."""

    def __init__(self, group: QueryGroup, lists: Lists, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._lists = {
            source.alias: [one for one in lists.of(ATTRIBUTE) if source.alias in one.inputs] for source in group.inputs
        }
        self._asking = {
            source.alias: {n for n, member in enumerate(group.members) if source.alias in member.inputs}
            for source in group.inputs
        }
        self._inputs: dict[str, list[str]] = {}
        for source in group.inputs:
            if not source.is_table:
                self._inputs.setdefault(source.stream.name, []).append(source.alias)
        for stream, names in list(self._inputs.items()):
            if any(self._asking[name] - _queries(self._lists[name]) for name in names):
                del self._inputs[stream]
        self._rest = dict.fromkeys(self._inputs, 0)
        self._selected: dict[str, tuple[int, Flight]] = {}

    def wanted(self, batches: Mapping[str, Batch], at_once: Collection[str]) -> dict[str, Mask]:
        """Where a tuple of a stream is wanted; streams of which all are, or which were not looked at, are absent.

        Args:
            at_once: the inputs whose attribute predicates are to be asked first.
        """
        self._selected = {}
        found: dict[str, Mask] = {}
        for stream, batch in batches.items():
            names = self._inputs.get(stream)
            if not names or not len(batch) or not set(names) <= set(at_once):
                continue
            if self._rest[stream]:
                self._rest[stream] -= 1
                continue
            flights = {name: self._looked_at(name, batch) for name in names}
            good = np.logical_or.reduce([living(flight.alive) for flight in flights.values()])
            share = float(np.count_nonzero(good)) / len(batch)
            if share > WORTH_LEAVING:
                self._rest[stream] = LOOKED_AGAIN_SLICES
                good[:] = True
            else:
                found[stream] = good
            self._selected |= {name: (len(batch), flight.take(good)) for name, flight in flights.items()}
        return found

    def take(self, name: str) -> tuple[int, Flight] | None:
        """How many tuples an input was given, and what is known of those that were stored; None where they were not
        looked at."""
        return self._selected.pop(name, None)

    def _looked_at(self, name: str, batch: Batch) -> Flight:
        n, words = len(batch), self._evaluator.predicate_words
        alive = np.tile(query_mask(self._asking[name], self._evaluator.words), (n, 1))
        relevant, satisfied = (np.zeros((n, words), np.uint64) for _ in range(2))
        flight = Flight((name,), np.arange(n)[np.newaxis], batch.ts, alive, relevant, satisfied)
        self._evaluator.reading(Arriving(batch)).evaluate(flight, self._lists[name])
        return flight


def _queries(lists: Sequence[PredicateList]) -> set[int]:
    return set().union(*(one.queries() for one in lists))
