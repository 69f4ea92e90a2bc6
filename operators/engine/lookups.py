"""Looks tuples up in tables whose rows change: `rates FOR SYSTEM_TIME AS OF O._ts AS R` (`schemas.query.Lookup`).

A table's topic is an input of the task like any stream: its partitions hold the watermark back, and its records, the
*versions* of rows, wait in the intake. When the engine takes an epoch's tuples, all versions before the epoch's end
have arrived. `TableLookups` then gives every tuple the columns of the version that holds at its ts. From there on these
are columns of the tuple: windows, plans, migrations, feedback, spilled state and checkpoints know nothing of tables.

So a table's state is one version per row, the newest before the cut; later ones wait in the intake. Cost: a hash per
tuple and version, and a binary search among the epoch's versions.

A tuple is looked up when it enters, below all joins. A join that few tuples pass could come before the lookup in
theory; but a lookup costs less than a tuple's part in any join, and what has been looked up survives every change of
plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from operators.aggregate.groups import Groups
from operators.data.evaluate import batch_reader, evaluate
from operators.engine.intake import Intake
from operators.kernels.as_of import newest_before
from operators.state.store import SourceStore
from schemas.columns import I64, Batch, Column, Mask
from schemas.query import GONE, Lookup, Query, Stream, Type, columns_of, looked_up

NONE = -1
"""The row of a key without a version."""

SWEEP_FROM = 4096
"""Number of superseded versions that may be kept in any case."""


class VersionedTable:
    """The newest version of each row of a table.

    Args:
        columns: those that are looked up.

    Attributes:
        rows: how many rows the table has.
    """

    def __init__(self, table: Stream, columns: Sequence[str]) -> None:
        self.rows = 0
        self._table = table
        types = {field.name: field.type for field in table.fields} | {"_ts": Type.TIMESTAMP}
        self._fields = [(name, types[name]) for name in dict.fromkeys((*columns, "_ts"))]
        self._keys = Groups([types[name] for name in table.primary_key])
        self._store = SourceStore(self._fields)
        # By number of key: the row of its newest version in the store.
        self._newest: I64 = np.full(self._keys.capacity, NONE)
        # Of the epoch: keys, store rows and times of its versions, and their order by key.
        self._epoch: tuple[I64, I64, I64, I64] = (np.zeros(0, np.int64),) * 4
        self._probed: list[I64] = []

    def begin(self, versions: Batch) -> None:
        """Take an epoch's versions, in the order in which they come to hold."""
        gone = versions.columns[GONE].values.astype(np.bool_)
        keys = self._numbers([versions.columns[name] for name in self._table.primary_key], len(versions))
        rows = np.full(len(versions), NONE)
        columns = {name: versions.columns[name] for name, _ in self._fields if name != "_ts"}
        rows[~gone] = self._store.append(Batch(versions.ts, columns).take(~gone))
        self._epoch = keys, rows, _writable(versions.ts), np.argsort(keys, kind="stable").astype(np.int64)

    def find(self, keys: Sequence[Column], ts: I64) -> I64:
        """Return (n,) int64 the store rows of the versions that hold at these times, NONE where there is none.

        Args:
            keys: (n,) values of each column of the primary key.
            ts: (n,) times in the epoch.
        """
        numbers = self._numbers(keys, len(ts))
        known, rows, times, order = self._epoch
        found = self._newest[numbers]
        if len(known):
            newer = newest_before(numbers, _writable(ts), known[order], order, times)
            found = np.where(newer == NONE, found, rows[newer])
        return np.asarray(found, np.int64)

    def _numbers(self, keys: Sequence[Column], n: int) -> I64:
        """Return (n,) int64 a number for each key."""
        numbers = self._keys.find(keys, n)
        if len(self._newest) < self._keys.capacity:
            newest = np.full(self._keys.capacity, NONE)
            newest[: len(self._newest)] = self._newest
            self._newest = newest
        self._probed.append(numbers)
        return numbers

    def gather(self, name: str, rows: I64) -> Column:
        """Return (n,) a column's values at store rows; NULL for NONE."""
        there: Mask = rows != NONE
        if there.all():
            return self._store.gather(name, rows)
        found = self._store.gather(name, rows[there])
        places = np.full(len(rows), len(found))
        places[there] = np.arange(len(found))
        return Column.concat([found, Column.null(found.type)]).take(places)

    def end(self) -> None:
        """The epoch's versions hold from now on, until others come."""
        known, rows, _, _ = self._epoch
        self._newest[known] = rows  # of several values for a key NumPy keeps the last
        self._epoch = (np.zeros(0, np.int64),) * 4
        probed, self._probed = self._probed, []
        if probed:
            keys = np.unique(np.concatenate(probed))
            before = int(np.count_nonzero(self._keys.uses[keys]))
            self._keys.uses[keys] = self._newest[keys] != NONE
            self.rows += int(np.count_nonzero(self._keys.uses[keys])) - before
            self._keys.forget_unused(keys)
        if len(self._store) > 2 * self.rows + SWEEP_FROM:
            self._sweep()

    def _sweep(self) -> None:
        """Drop the versions that others have superseded."""
        keys = np.flatnonzero(self._newest != NONE)
        keys = keys[np.argsort(self._newest[keys])]
        rows = self._newest[keys]
        columns = {name: self._store.gather(name, rows) for name, _ in self._fields}
        ts = np.asarray(columns.pop("_ts").values, np.int64)
        self._store = SourceStore(self._fields)
        self._newest[keys] = self._store.append(Batch(ts, columns))

    def size_bytes(self) -> int:
        """Return the bytes of its arrays."""
        return self._store.size_bytes() + self.keys_bytes()

    def used_bytes(self) -> int:
        """Return the bytes of memory that it has used of its arrays."""
        return self._store.touched_bytes() + self.keys_bytes()

    def keys_bytes(self) -> int:
        """Return the bytes by which it finds rows, without the rows."""
        return self._keys.size_bytes() + self._newest.nbytes


def _writable(ts: I64) -> I64:
    """The times as an array for which kernels are compiled ahead; a copy of one that shares a file's memory."""
    return ts if ts.flags.writeable else ts.copy()


class TableLookups:
    """The tables of queries, and the columns that tuples get from them.

    Args:
        queries: in which an alias and a stream have one lookup.
        tables: to keep whole, for queries to come; None for what `queries` read.
    """

    def __init__(self, queries: Sequence[Query], tables: Sequence[Stream] | None = None) -> None:
        self._queries: tuple[Query, ...] = ()
        # By stream and alias, a lookup and the columns that something reads.
        self._lookups: dict[str, dict[str, tuple[Lookup, list[str]]]] = {}
        self.change(queries)
        if tables is None:
            read: dict[str, list[str]] = {}
            for lookup, names in self._every():
                read.setdefault(lookup.table.name, []).extend(names)
            by_name = {lookup.table.name: lookup.table for lookup, _ in self._every()}
            self._tables = {name: VersionedTable(table, read[name]) for name, table in by_name.items()}
        else:
            self._tables = {one.name: VersionedTable(one, [field.name for field in one.fields]) for one in tables}

    def change(self, queries: Sequence[Query]) -> None:
        """Look up what these queries read, from now on. Those before must have all their tables among these."""
        if self._queries == tuple(queries):
            return
        self._queries = tuple(queries)
        found: dict[str, dict[str, tuple[Lookup, dict[str, None]]]] = {}
        for query in queries:
            read = _read_of(query)
            for lookup in query.lookups:
                of_stream = found.setdefault(query.source(lookup.of).stream.name, {})
                _, names = of_stream.setdefault(lookup.alias, (lookup, {}))
                every = (*(field.name for field in lookup.table.fields), "_ts")
                names |= {name: None for name in every if (lookup.of, looked_up(lookup.alias, name)) in read}
        self._lookups = {
            stream: {alias: (lookup, list(names)) for alias, (lookup, names) in own.items()}
            for stream, own in found.items()
        }

    def _every(self) -> Iterator[tuple[Lookup, list[str]]]:
        for own in self._lookups.values():
            yield from own.values()

    def look_up(self, batches: dict[str, Batch]) -> dict[str, Batch]:
        """Take the tables' versions out of an epoch's tuples, and add what is looked up to the others.

        Args:
            batches: all that has arrived before the epoch's end and not been taken yet, by stream and table, each in
                the total order.
        """
        if not self._tables:
            return batches
        for name, table in self._tables.items():
            versions = batches.pop(name, None)
            if versions is not None:
                table.begin(versions)
        found = {name: self._with_columns(name, batch) for name, batch in batches.items()}
        for table in self._tables.values():
            table.end()
        return found

    def take_versions(self, intake: Intake, before: int) -> int:
        """Apply the versions with ts < before that have been read and that none can precede any more; return how many.

        See `Engine.take_versions`.
        """
        taken = 0
        for name, table in self._tables.items():
            versions = intake.take_versions(name, before)
            if versions is not None:
                table.begin(versions)
                table.end()
                taken += len(versions)
        return taken

    def _with_columns(self, stream: str, batch: Batch) -> Batch:
        for lookup, names in self._lookups.get(stream, {}).values():
            table, resolve = self._tables[lookup.table.name], batch_reader(batch)
            keys = [evaluate(expr, resolve, len(batch)) for expr in lookup.key]
            rows = table.find(keys, batch.ts)
            added = {looked_up(lookup.alias, name): table.gather(name, rows) for name in names}
            batch = Batch(batch.ts, {**batch.columns, **added})
        return batch

    def __contains__(self, table: str) -> bool:
        """Whether it has the table."""
        return table in self._tables

    def size_bytes(self) -> int:
        """Return the bytes of all tables."""
        return sum(table.size_bytes() for table in self._tables.values())

    def used_bytes(self) -> int:
        """Return the bytes of memory that all tables have used."""
        return sum(table.used_bytes() for table in self._tables.values())

    def keys_bytes(self) -> int:
        """Return the bytes by which rows are found in all tables, without the rows."""
        return sum(table.keys_bytes() for table in self._tables.values())


def _read_of(query: Query) -> set[tuple[str, str]]:
    """The columns that something in a query reads, by alias and name."""
    keys = [expr for lookup in query.lookups for expr in lookup.key]
    on = [expr for part in query.subtracted for expr in part.on]
    read = (*query.result_expressions(), *query.predicates, *on, *keys)
    return {(column.alias, column.name) for expr in read for column in columns_of(expr)}
