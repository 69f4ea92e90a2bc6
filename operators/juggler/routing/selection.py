"""Decides which tuples a group stores: those that some query's attribute predicates select for some input.

`operators.juggler.operator` calls `Selection.wanted` before a slice is stored and `Selection.take` after. The results
of the predicates are kept for stored tuples. A stream of which some query takes every tuple is not evaluated. A stream
of which queries want most tuples is evaluated only after every RECHECK_SLICES slices.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from operators.data.evaluate import Resolve
from operators.juggler.predicates.lists import ATTRIBUTE, Lists, PredicateList, query_mask
from operators.juggler.routing.tuples_in_flight import Evaluator, TuplesInFlight
from operators.kernels.juggler import living
from schemas.columns import I64, Batch, Column, Mask
from schemas.groups import QueryGroup
from schemas.query import ColumnRef, Type

SELECTIVE_SHARE = 0.8
"""If queries want more than this share of a stream, storing all of it is cheaper than evaluating the predicates."""
RECHECK_SLICES = 32
"""Slices after which such a stream is evaluated again."""


class ArrivingBatch:
    """Reads columns of tuples that are not stored yet; their row ids are positions in a batch."""

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
    """Evaluates which tuples of its streams the queries of a group select."""

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
            if not source.is_static:
                self._inputs.setdefault(source.stream.name, []).append(source.alias)
        for stream, names in list(self._inputs.items()):
            if any(self._asking[name] - _queries(self._lists[name]) for name in names):
                del self._inputs[stream]
        self._skips_left = dict.fromkeys(self._inputs, 0)
        self._selected: dict[str, tuple[int, TuplesInFlight]] = {}

    def wanted(self, batches: Mapping[str, Batch], at_once: Collection[str]) -> dict[str, Mask]:
        """Select the tuples that some query wants.

        Args:
            batches: the slice by stream.
            at_once: the inputs whose attribute predicates are evaluated on entry.

        Returns:
            By stream a mask (n,), True for the tuples wanted. A stream of which all are wanted, or which was not
            evaluated, is absent.
        """
        self._selected = {}
        found: dict[str, Mask] = {}
        for stream, batch in batches.items():
            names = self._inputs.get(stream)
            if not names or not len(batch) or not set(names) <= set(at_once):
                continue
            if self._skips_left[stream]:
                self._skips_left[stream] -= 1
                continue
            in_flight_by_input = {name: self._evaluate(name, batch) for name in names}
            good = np.logical_or.reduce([living(in_flight.alive) for in_flight in in_flight_by_input.values()])
            share = float(np.count_nonzero(good)) / len(batch)
            if share > SELECTIVE_SHARE:
                self._skips_left[stream] = RECHECK_SLICES
                good[:] = True
            else:
                found[stream] = good
            self._selected |= {name: (len(batch), own.take(good)) for name, own in in_flight_by_input.items()}
        return found

    def take(self, name: str) -> tuple[int, TuplesInFlight] | None:
        """The number of tuples that arrived for an input, and the evaluated tuples that were stored; None where they
        were not evaluated."""
        return self._selected.pop(name, None)

    def _evaluate(self, name: str, batch: Batch) -> TuplesInFlight:
        n, words = len(batch), self._evaluator.predicate_words
        alive = np.tile(query_mask(self._asking[name], self._evaluator.words), (n, 1))
        relevant, satisfied = (np.zeros((n, words), np.uint64) for _ in range(2))
        in_flight = TuplesInFlight((name,), np.arange(n)[np.newaxis], batch.ts, alive, relevant, satisfied)
        self._evaluator.over(ArrivingBatch(batch)).evaluate(in_flight, self._lists[name])
        return in_flight


def _queries(lists: Sequence[PredicateList]) -> set[int]:
    return set().union(*(one.queries() for one in lists))
