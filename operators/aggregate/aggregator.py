"""The aggregate operator: it takes the executor's results and emits the changed groups at each multiple of EMIT EVERY.

The engine calls `Aggregator.process` for each slice. At each multiple t of `every_ms` in event time every group has
values over its results alive then (ts <= t <= expiry). A group is emitted at t when it is new, when the SELECT list's
values for it differ from those emitted last, and when its last result has died: then with the values over no results,
after which it is forgotten. Emissions ascend by (t, group key), nulls first, strings by code point.

The emissions at t are final when everything with ts <= t has been processed, and the values emitted last for a group
are always its current ones. So the whole state is a function of the results alive at the last multiple. A task that is
rebuilt from the source tuples of those results, see `needed_from`, continues with exactly the emissions that would have
followed. Executors, plans and migrations below do not matter, since their results are the same.

Cost: two events of O(log n) per result that is alive at some multiple, and one reading per changed group and multiple;
nothing for multiples without changes. Memory: see `LivingResults` and `Values`, at most about 100 bytes per living
result and argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from operators.aggregate.groups import Groups
from operators.aggregate.lifetimes import Events, LivingResults
from operators.aggregate.values import Reading, Values
from operators.data.evaluate import Resolve, evaluate
from operators.data.tuples import FOREVER, Tuples
from operators.difference.longest_match import Lifetimes, WindowStores
from operators.kernels.groups import count_touches, previous_touches
from schemas.columns import I64, Batch, Column, Mask, numbers_of
from schemas.errors import InvariantError
from schemas.query import (
    Aggregation,
    ColumnRef,
    Expr,
    Output,
    Query,
    Type,
    aggregate_column,
    columns_of,
    group_column,
    type_of,
)

T = TypeVar("T", bound=np.generic)


class Aggregator:
    """Aggregates the results of one query.

    Attributes:
        sources: the stores that the row ids of new results refer to.
    """

    def __init__(self, query: Query, sources: WindowStores) -> None:
        if query.aggregation is None:
            raise InvariantError(f"query {query.name!r} has no aggregates")
        self._aggregation: Aggregation = query.aggregation
        self._outputs = query.outputs
        self._expires = query.expiry
        self.sources = sources
        self._every = self._aggregation.every_ms
        self._lifetimes = {alias: Lifetimes(sources, alias) for alias in (sources.life if sources.rows_windows else ())}
        self._watched = tuple(sources.rows_windows)
        self._last = -1
        """The last multiple whose emissions are final."""
        keys = self._aggregation.group_by
        self._groups = Groups([type_of(expr) for expr in keys])
        self._living = LivingResults(self._watched)
        self._counts: I64 = np.zeros(self._groups.capacity, np.int64)
        self._seen: I64 = np.full(self._groups.capacity, -1)
        self._key_columns = {group_column(k, type_of(expr)): k for k, expr in enumerate(keys)}
        arguments: dict[Expr, set[str]] = {}
        for aggregate in self._aggregation.aggregates:
            if aggregate.argument is not None:
                arguments.setdefault(aggregate.argument, set()).add(aggregate.function)
        self._values = {
            argument: Values(type_of(argument), functions, self._living.capacity, self._groups.capacity)
            for argument, functions in arguments.items()
        }

    def needed_from(self, cut: int) -> int:
        """Return from when on source tuples are needed when everything before `cut` has been processed.

        Tuples alive at the returned event time - 1 or later must be kept: after a restart the results alive at the last
        multiple must be found again.
        """
        return (cut - 1) // self._every * self._every + 1 if 0 < cut < FOREVER else cut

    # --- Results in ---------------------------------------------------------------------------------

    def process(self, found: Tuples, cut: int) -> Batch:
        """Take in a slice's results, all with ts < cut, and return the emissions at the multiples before `cut`."""
        self.enter(found, self.sources)
        return self.emit(cut)

    def emit(self, cut: int) -> Batch:
        """Return the emissions at the multiples before `cut`; all results with ts < cut have been entered."""
        for alias in self._watched:
            lifetimes = self._lifetimes[alias]
            rows, items = self._living.take_watched(alias, lifetimes.ended(cut))
            if len(rows):
                self._living.end(lifetimes.end(rows) // self._every + 1, items)
        last = (cut - 1) // self._every
        if last <= self._last:
            return self.nothing()
        self._last = last
        events, over = self._living.take(last)
        out = self._emit(events) if len(events) else self.nothing()
        self._forget(over)
        return out

    def enter_late(self, found: Tuples, sources: WindowStores) -> None:
        """Take in results of a cleanup, in any order.

        Args:
            sources: the stores that their row ids refer to.
        """
        self.enter(found, sources, late=True)

    def enter(self, found: Tuples, sources: WindowStores, *, late: bool = False) -> None:
        """Take in results; unless `late`, ascending by ts and not before earlier ones. See `enter_late`."""
        resolve = sources.resolver(found.aliases, found.rows)
        expiry = self._expiry(found, resolve)
        begin = -(-found.ts // self._every)
        end = np.where(expiry >= FOREVER, FOREVER, expiry // self._every + 1)
        seen = begin < end
        if not seen.all():
            found, begin, end = found.take(seen), begin[seen], end[seen]
            resolve = sources.resolver(found.aliases, found.rows)
        n = len(found)
        if n == 0:
            return
        keys = [evaluate(expr, resolve, n) for expr in self._aggregation.group_by]
        groups = self._groups.find(keys, n)
        slots = self._living.add(groups, begin, end, late=late)
        self._reserve()
        np.add.at(self._groups.uses, groups, 1)
        for argument, values in self._values.items():
            values.put(slots, evaluate(argument, resolve, n))
        for alias in self._watched:
            rows = found.rows[found.aliases.index(alias)]
            open_ = self._lifetimes[alias].end(rows) >= FOREVER
            self._living.watch(alias, rows[open_], slots[open_])

    def _expiry(self, found: Tuples, resolve: Resolve) -> I64:
        """Return (n,) the last instants at which results are alive, as far as is known."""
        if self._expires is not None:
            return np.minimum(found.expiry, resolve(self._expires).values.astype(np.int64))
        if not self._watched:
            return found.expiry
        # With ROWS windows `expiry` is a bound for joining in the total order; here instants count.
        last = np.full(len(found), FOREVER)
        for k, alias in enumerate(found.aliases):
            last = np.minimum(last, self._lifetimes[alias].end(found.rows[k]))
        return last

    def _reserve(self) -> None:
        groups = self._groups.capacity
        if groups > len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros(groups - len(self._counts), np.int64)])
            self._seen = np.full(groups, -1)
        for values in self._values.values():
            values.reserve(self._living.capacity, groups)

    def _forget(self, over: I64) -> None:
        """Forget results that have died, and groups without any other result."""
        groups = self._living.group[over]
        self._living.free(over)
        np.subtract.at(self._groups.uses, groups, 1)
        self._groups.forget_unused(np.unique(groups))

    # --- Emissions out ------------------------------------------------------------------------------

    def nothing(self) -> Batch:
        """Return no emissions."""
        none = np.zeros(0, np.int64)
        readings = {argument: values.read(none) for argument, values in self._values.items()}
        table = self._table(none, none, readings)
        return self._batch(none, none, {o.name: evaluate(o.expr, table, 0) for o in self._outputs})

    def _emit(self, events: Events) -> Batch:
        """Apply the events and return the groups that then differ from their last emission, at each multiple."""
        previous = previous_touches(events.groups, self._seen)
        first = np.flatnonzero(previous < 0)
        # Rows 0 .. n - 1 are the groups after each touch. The rows after those are the groups before their first touch.
        n = len(events)
        previous[first] = n + np.arange(len(first))
        initial = events.groups[first]
        counts = self._counts[initial]
        readings = {argument: values.read(initial) for argument, values in self._values.items()}
        starts = np.append(0, events.ends[:-1])
        changes = np.add.reduceat(events.signs.astype(np.int64), starts)
        before, after = count_touches(self._counts, events.groups, changes)
        readings = {a: _joined(values.apply(events), readings[a]) for a, values in self._values.items()}
        table = self._table(np.append(events.groups, initial), np.append(after, counts), readings)
        computed = {o.name: evaluate(o.expr, table, n + len(first)) for o in self._outputs if _varies(o)}
        emitted = (before == 0) != (after == 0)
        for column in computed.values():
            emitted |= (before > 0) & _differs(column, previous)
        rows = np.flatnonzero(emitted)
        order = self._order(events.multiples[rows], events.groups[rows])
        rows = rows[order]
        groups = events.groups[rows]
        constant = self._table(groups, after[rows], {})
        columns = {
            o.name: computed[o.name].take(rows) if o.name in computed else evaluate(o.expr, constant, len(rows))
            for o in self._outputs
        }
        return self._batch(events.multiples[rows] * self._every, groups, columns)

    def _order(self, multiples: I64, groups: I64) -> I64:
        """Return the positions sorted by (multiple, group key)."""
        if not self._aggregation.group_by:
            return np.arange(len(multiples))
        arrays = [pa.array(multiples)]
        for k in self._key_columns.values():
            key = self._groups.key(k, groups)
            arrays += [pa.array(key.mask().astype(np.int8)), key.to_arrow()]
        names = [str(k) for k in range(len(arrays))]
        order = pc.sort_indices(pa.table(arrays, names=names), sort_keys=[(name, "ascending") for name in names])
        return numbers_of(order).astype(np.int64)

    def _table(self, groups: I64, counts: I64, readings: Mapping[Expr, Reading]) -> Resolve:
        """Return a function that reads columns of groups: keys, and the aggregates that have readings."""
        cache: dict[ColumnRef, Column] = {}
        aggregates = {aggregate_column(k, a.type): a for k, a in enumerate(self._aggregation.aggregates)}

        def resolve(column: ColumnRef) -> Column:
            found = cache.get(column)
            if found is None:
                aggregate = aggregates.get(column)
                if aggregate is None:
                    found = self._groups.key(self._key_columns[column], groups)
                elif aggregate.argument is None:
                    found = Column(Type.BIGINT, counts)
                else:
                    argument = aggregate.argument
                    found = self._values[argument].column(aggregate, readings[argument])
                cache[column] = found
            return found

        return resolve

    def _batch(self, ts: I64, groups: I64, columns: dict[str, Column]) -> Batch:
        return Batch(ts, columns, tuple(self._groups.key(k, groups) for k in self._key_columns.values()))

    def size_bytes(self) -> int:
        """Return the bytes of all arrays."""
        size = self._living.size_bytes() + self._groups.size_bytes() + self._counts.nbytes + self._seen.nbytes
        return size + sum(values.size_bytes() for values in self._values.values())


def _varies(output: Output) -> bool:
    """Return whether the item may change while its group exists."""
    return any(column.name.startswith("aggregate") for column in columns_of(output.expr))


def _joined(first: Reading, second: Reading) -> Reading:
    """Concatenate two readings of the same argument."""
    return Reading(
        np.concatenate([first.counts, second.counts]),
        _concatenated(first.nearest, second.nearest),
        _concatenated(first.whole, second.whole),
        _concatenated(first.fits, second.fits),
        _concatenated(first.quantiles, second.quantiles),
    )


def _concatenated(first: npt.NDArray[T] | None, second: npt.NDArray[T] | None) -> npt.NDArray[T] | None:
    return None if first is None or second is None else np.concatenate([first, second], axis=-1)


def _differs(column: Column, previous: I64) -> Mask:
    """Return (t,) bool: whether row i, of the first t, differs from row previous[i]. Nulls equal only nulls."""
    n = len(previous)
    if column.type is Type.STRING:
        # Only SUBSTRING with an aggregate as an argument gets here.
        equal = pc.equal(column.slice(0, n).to_arrow(), column.take(previous).to_arrow())
        both_null = ~(column.mask()[:n] | column.mask()[previous])
        return np.asarray(~(numbers_of(equal) | both_null))
    values, valid = column.values, column.valid
    if valid is None:
        return np.asarray(values[:n] != values[previous])
    return np.asarray((valid[:n] != valid[previous]) | (valid[:n] & (values[:n] != values[previous])))
