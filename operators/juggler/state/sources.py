"""Stores the streams of a group of queries: the columns that some query reads, and all columns of tables.

`operators.groups.shared` creates `GroupSources`, and `operators.juggler.operator` reads it. The history
known of a stream does not depend on when rows were purged: it is exactly the rows that the stream's windows have held
without a gap (`known_from`). `operators.juggler.state.available_past` decides what an added query may see of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from operators.data.tuples import FOREVER, Tuples
from operators.juggler.predicates.rows import NUMBER, columns_of_slice, columns_of_store, kept_for_rows
from operators.state.sources import Sources, life_of
from schemas.columns import DTYPES, I64, Batch, Column, Mask
from schemas.groups import QueryGroup
from schemas.query import ColumnRef, Query, Source, Type, Window


class GroupSources(Sources):
    """The stores behind a group's inputs.

    Attributes:
        since: tuples older than this ts were not seen.
        life: by input the longest RANGE; FOREVER also where a ROWS window may outlast it.
        rows_windows: by input the longest ROWS, where no UNBOUNDED window holds everything.
        away: by stream (lo, hi, last ts) of the rows lo .. hi - 1 on disk, ascending; all are before the rows stored.
    """

    def __init__(self, group: QueryGroup, since: int = -FOREVER) -> None:
        """Create the stores.

        Args:
            group: the queries.
            since: tuples older than this ts were not seen; all rows of tables are present.
        """
        self.since = since
        self.away: dict[str, list[tuple[int, int, int]]] = {}
        self._counts: dict[str, int] = {}
        self._configure(group)
        self._known = {stream.name: since for stream in group.query.joined_streams()}

    def _configure(self, group: QueryGroup) -> None:
        self._kept_for_rows = kept_for_rows(group)
        tables = (source for source in group.inputs if source.is_static)
        kept = [*group.columns(), *(ColumnRef(t.alias, f.name, f.type) for t in tables for f in t.stream.fields)]
        super().__init__(_unbounded(group.query), kept=kept)
        self._windows = {source.alias: group.windows(source.alias) for source in group.inputs}
        for alias, windows in self._windows.items():
            for window in windows:
                if window.kind == "ROWS":
                    self.rows_windows[alias] = window.size
        self.life = {
            s.alias: FOREVER if s.alias in self.rows_windows else life_of(s) for s in group.inputs
        }
        self._inputs: dict[str, tuple[str, ...]] = {
            name: tuple(s.alias for s in group.inputs if s.stream.name == name) for name in self.stores
        }
        self._needs = {stream: self._need(group, stream) for stream in self.stores}
        for stream in self.stores:
            if NUMBER in self._kept_for_rows.get(stream, ()):
                self._counts.setdefault(stream, 0)
        self._counts = {s: count for s, count in self._counts.items() if NUMBER in self._kept_for_rows.get(s, ())}

    @property
    def counted(self) -> frozenset[str]:
        """The streams whose tuples have numbers."""
        return frozenset(self._counts)

    def _horizon_columns(self, stream: str) -> list[str]:
        return self._kept_for_rows.get(stream, [])

    def _need(self, group: QueryGroup, stream: str) -> tuple[int, int | None]:
        """What the longest windows of a stream hold: by time, and in tuples (None without a ROWS window)."""
        if len(group.inputs) == 1:
            # Nothing is joined: a tuple has produced its results once it was processed.
            return 0, None
        lives, rows = [0], []
        for source in group.inputs:
            if source.stream.name != stream:
                continue
            for window in self._windows[source.alias]:
                if window.kind == "ROWS":
                    rows.append(window.size)
                else:
                    lives.append(life_of(Source(source.alias, source.stream, window)))
        return max(lives), max(rows, default=None)

    # --- Arriving tuples --------------------------------------------------------------------------------

    def enter(self, batches: Mapping[str, Batch], wanted: Mapping[str, Mask] | None = None) -> dict[str, Tuples]:
        """Store a slice.

        Args:
            batches: by stream or table, ascending in the total order; no tuple of equal ts arrives in another slice.
            wanted: by stream (n,), False where a tuple need not be stored; absent streams are stored entirely.

        Returns:
            By input the new tuples.
        """
        wanted = wanted or {}
        row_columns = columns_of_slice(self._kept_for_rows, self._counts, batches)
        found: dict[str, Tuples] = {}
        for name, batch in batches.items():
            if name in self._counts:
                self._counts[name] += len(batch)
            store = self.stores[name]
            kept = Batch(batch.ts, {**batch.columns, **row_columns[name]} if row_columns[name] else batch.columns)
            if name in wanted:
                read = {column: kept.columns[column] for column in store.columns if column != "_ts"}
                kept = Batch(kept.ts, read).take(wanted[name])
            rows = store.append(kept)
            for alias in self._inputs[name]:
                found[alias] = Tuples((alias,), rows[np.newaxis], kept.ts, np.full(len(rows), FOREVER))
        return found

    def change(self, group: QueryGroup, cut: int) -> None:
        """Store the inputs of another group from `cut` on; streams that both groups read keep their rows."""
        stores, scratch, old_cut = self.stores, self.scratch, self.cut
        known = {name: self.known_from(name, cut) for name in stores}
        counts = dict(self._counts)
        self._configure(group)
        self.scratch, self.cut = scratch, old_cut
        self._known = {name: known.get(name, cut) for name in self.stores}
        fresh, self.stores = self.stores, {name: stores.get(name, store) for name, store in self.stores.items()}
        for name in self._counts:
            self._counts[name] = counts.get(name, self.stores[name].hi)
        for source in group.inputs:
            name = source.stream.name
            store, before = fresh[name], self.stores[name]
            if store is not before and store.columns != before.columns:
                # Values that were not kept are null; no query that reads the column sees those rows.
                types = {field.name: field.type for field in self.query.fields_of(source.stream)}
                new = [column for column in store.columns if column in types and column not in before.columns]
                empty = {column: nulls(types[column], len(before)) for column in new}
                store.fill(before, empty | columns_of_store(self._horizon_columns(name), before))
                self.stores[name] = store
        self._store_of = {source.alias: self.stores[source.stream.name] for source in group.inputs}

    # --- Stored tuples ----------------------------------------------------------------------------------

    def expiry(self, alias: str, rows: I64, ts: I64) -> I64:
        """(n,) the last ts at which stored tuples may be alive, as in `Sources.expiry`."""
        expiry = super().expiry(alias, rows, ts)
        return np.maximum(expiry, ts + self._range(alias)) if alias in self.rows_windows else expiry

    def _range(self, alias: str) -> int:
        """The longest RANGE of an input with a ROWS window; -FOREVER where there is none."""
        return next((window.size for window in self._windows[alias] if window.kind == "RANGE"), -FOREVER)

    def least_ts(self, name: str, ts: I64) -> I64:
        """(n,) tuples of an input older than this can join nothing from these times on; call it after `enter`."""
        if name not in self.rows_windows:
            return ts - self.life[name] if self.life[name] < FOREVER else np.full(len(ts), -FOREVER)
        store = self.store(name)
        first = np.maximum(store.firsts_at(ts) - self.rows_windows[name], store.lo)
        least = np.full(len(ts), -FOREVER)
        some = first < store.hi
        least[some] = store.gather("_ts", first[some]).values
        return np.asarray(np.minimum(least, ts - self._range(name)), np.int64)

    def known_from(self, stream: str, cut: int) -> int:
        """The ts from which on every tuple of the stream is stored, once everything before `cut` was processed."""
        if stream not in self.stores:
            return cut
        known = self._known.get(stream, -FOREVER)
        life, size = self._needs[stream]
        if life >= FOREVER:
            return known
        least = cut - life
        if size is not None:
            least = min(least, self._first_counted(stream, cut, size))
        return max(known, least)

    def _first_counted(self, name: str, cut: int, size: int) -> int:
        """The ts of the first tuple that a ROWS window holds at `cut`; -FOREVER where it holds all tuples so far."""
        store = self.stores[name]
        row = store.first_at(cut) - size
        if row >= store.lo:
            return int(store.gather("_ts", np.array([row])).values[0])
        # For rows on disk, a ts later than all of theirs is enough.
        return next((most + 1 for lo, hi, most in self.away.get(name, ()) if lo <= row < hi), -FOREVER)

    def needed_from(self, stream: str, cut: int, first: int) -> tuple[int, int]:
        """A ts and a row: tuples of a stream older than that ts and before that row join nothing from `cut` on.

        Args:
            stream: the stream's name.
            cut: everything before it has been processed.
            first: the first row that is not older than `cut`, stored or not.
        """
        life, size = self._needs[stream]
        return cut - life if life < FOREVER else -FOREVER, FOREVER if size is None else first - size

    def purge(self, cut: int) -> None:
        """Drop source tuples that no tuple at or after `cut` can join. Tuples with the ts of a ROWS window's first
        tuple stay, since the known history of a stream starts at a ts."""
        for name, store in self.stores.items():
            life, size = self._needs[name]
            if size is not None:
                size = store.first_at(cut) - store.first_at(self._first_counted(name, cut, size))
            store.purge(life, cut, size)

    def holds_all(self, source: Source, known: int, cut: int) -> bool:
        """Whether a source's window holds no tuple at `cut` older than `known`, from which on tuples are stored."""
        if source.is_static or known == -FOREVER:
            return True
        if source.window.kind != "ROWS":
            return known <= cut - life_of(source)
        store = self.stores.get(source.stream.name)
        return store is not None and store.first_at(cut) - source.window.size >= store.first_at(known)

    def horizon(self, stream: str, cut: int) -> int:
        """The smallest ts whose tuples of the stream any window still needs at `cut`; 0 also where a ROWS window could
        hold more than the stored tuples."""
        _, size = self._needs[stream]
        store = self.stores[stream]
        return 0 if size is not None and store.first_at(cut) - size < store.lo else super().horizon(stream, cut)

    def stored_since(self, name: str, ts: int) -> Tuples:
        """All stored tuples of an input with at least this ts."""
        store = self.store(name)
        rows = store.stored_rows()
        times = np.asarray(store.gather("_ts", rows).values, np.int64)
        kept = times >= ts
        rows, times = rows[kept], times[kept]
        return Tuples((name,), np.ascontiguousarray(rows[np.newaxis]), times, self.expiry(name, rows, times))


def _unbounded(query: Query) -> Query:
    """The query with ROWS windows replaced by UNBOUNDED ones; `rows_windows` has their sizes."""
    ends = (replace(s, window=Window("UNBOUNDED")) if s.window.kind == "ROWS" else s for s in query.sources)
    return replace(query, sources=tuple(ends))


def nulls(type: Type, n: int) -> Column:
    """(n,) nulls."""
    offsets = np.zeros(n + 1, np.int64) if type is Type.STRING else None
    values = np.zeros(0 if type is Type.STRING else n, DTYPES.get(type, np.uint8))
    return Column(type, values, np.zeros(n, np.bool_), offsets)
