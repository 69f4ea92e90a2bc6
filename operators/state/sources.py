"""The stores of a query's streams, the columns behind tuples of row ids, and the lifetimes of tuples in ROWS windows.

Every operator of a query shares one `Sources`. A stream's tuples have consecutive numbers, their row ids. For every
stream S with a ROWS window each tuple of another stream is stored with its *horizon* in S: the number of the newest
tuple of S that precedes it in the total order. The horizon of a tuple of S is its own number. Horizons ascend in the
total order, so the largest horizon among the components of a combination is that of its latest component. A component
that is tuple r of S is in a window `[ROWS n]` while r + n is larger than that horizon. The test needs only the
components: it works on tuples read back from disk, even if the other tuples of S are gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from operators.data.evaluate import Resolve
from operators.data.tuples import FOREVER, Tuples
from operators.plan.equalities import equality_classes
from operators.plan.predicates import conjuncts, left_conditions
from operators.state.numbered import NumberColumn, NumberedWindows
from operators.state.side_state import PARTITION_GROUPS, Scratch
from operators.state.store import SourceStore
from schemas.columns import I64, Batch, Column, Mask
from schemas.query import OWN_PREFIX, TABLE_TS, ColumnRef, Query, Source, Stream, Table, Type, aliases_of, columns_of

HORIZON = OWN_PREFIX
"""The name of the column with the horizon in a stream is this prefix and the stream's name."""


def life_of(source: Source) -> int:
    """Return the lifetime in ms of a tuple of this source after its ts, as a RANGE window defines it.

    It is FOREVER for ROWS and UNBOUNDED, and for a table such that its rows expire at FOREVER.
    """
    if source.is_static:
        return FOREVER - TABLE_TS
    return source.window.size if source.window.kind == "RANGE" else FOREVER


def horizons_of(
    batches: Mapping[str, Batch], newest: Mapping[str, int], ordinals: Mapping[str, int]
) -> dict[str, dict[str, Column]]:
    """Compute the horizons of tuples in the streams that are counted.

    Args:
        batches: by stream, ascending in the total order. No tuple outside of them has a ts of theirs.
        newest: by counted stream, the number of its newest tuple before the batches.
        ordinals: by stream, its place in the total order; tables have none.

    Returns:
        Per stream the horizon columns in all other streams that are counted, by name, each (n,) BIGINT.
    """
    found: dict[str, dict[str, Column]] = {name: {} for name in batches}
    for counted, known in newest.items():
        for name, batch in batches.items():
            if name == counted:
                continue
            horizon = np.full(len(batch), known, np.int64)
            if counted in batches:
                before = ordinals[counted] < ordinals.get(name, -1)
                horizon += np.searchsorted(batches[counted].ts, batch.ts, side="right" if before else "left")
            found[name][HORIZON + counted] = Column(Type.BIGINT, horizon)
    return found


class Sources:
    """The stores of all streams of a query, shared by every operator of its plans.

    The columns stored of a stream do not depend on the plan, so that any plan can take over. They are all columns that
    the output or a predicate over several aliases reads, and for shared stores those that selections read too.

    Attributes:
        query: the query.
        hashed: False where every join is a nested loop.
        kept: further columns that are stored.
        partition_groups: number of partition groups of every state.
        cut: every tuple with a smaller ts has been stored.
        numbered: of a join in tasks of its own, the ROWS windows whose tuples another operator has counted.
        tables: the aliases that are tables; their rows are all stored before anything else (`operators.join.tables`).
        rows_windows: by alias, the size of its ROWS window in tuples; only aliases that have one.
        scratch: room for candidate pairs, shared by all operators.
        equalities: the class of each equality that belongs to one; empty for a set difference, which does not join.
        life: by alias, see `life_of`.
        stores: by stream name, tables included.
    """

    def __init__(
        self,
        query: Query,
        *,
        hashed: bool = True,
        kept: Sequence[ColumnRef] = (),
        partition_groups: int = PARTITION_GROUPS,
    ) -> None:
        """Make empty stores.

        Args:
            query: the query.
            hashed: False to make every join a nested loop.
            kept: further columns to store.
            partition_groups: number of partition groups of every state.
        """
        self.query = query
        self.hashed = hashed
        self.kept = tuple(kept)
        self.partition_groups = partition_groups
        self.cut = 0
        self.numbered: NumberedWindows | None = None
        self.tables: frozenset[str] = frozenset(s.alias for s in query.sources if s.is_static)
        self.rows_windows: dict[str, int] = {
            s.alias: s.window.size for s in query.sources if s.window.kind == "ROWS"
        }
        self.scratch = Scratch()
        self.equalities = equality_classes(() if query.subtracted else query.predicates)
        self.life: dict[str, int] = {s.alias: life_of(s) for s in query.sources}
        self._readers = Counter(s.stream.name for s in query.sources)
        wanted: dict[str, dict[str, None]] = {s.stream.name: {} for s in query.sources}
        exprs = [*kept, *query.result_expressions()]
        predicates = conjuncts(query)
        exprs += [p for p in predicates if len(aliases_of(p)) > 1]
        exprs += [p for p in predicates if any(self.shared(alias) for alias in aliases_of(p))]
        exprs += [p for part in query.subtracted for p in left_conditions(query, part.alias)]
        for expr in exprs:
            for column in columns_of(expr):
                wanted[query.source(column.alias).stream.name].setdefault(column.name)
        self.stores: dict[str, SourceStore] = {}
        self._counted = [
            stream.name
            for stream in query.joined_streams()
            if any(s.stream.name == stream.name and s.alias in self.rows_windows for s in query.sources)
        ]
        self._ordinals = {stream.name: number for number, stream in enumerate(query.joined_streams())}
        inputs: list[Stream | Table] = [*query.joined_streams(), *query.tables()]
        for stream in inputs:
            types = {f.name: f.type for f in query.fields_of(stream)}
            fields = [(name, types[name]) for name in types if name in wanted[stream.name]]
            fields.append(("_ts", Type.TIMESTAMP))
            self.stores[stream.name] = SourceStore(
                fields,
                horizons=self._horizon_columns(stream.name),
                lasting_ts=bool(self._counted),
            )
        self._stream_of = {s.alias: s.stream.name for s in query.sources}
        self._store_of = {alias: self.stores[name] for alias, name in self._stream_of.items()}
        self._needs: dict[str, tuple[int, int | None]] = {}
        for name in self.stores:
            readers = [s for s in query.sources if s.stream.name == name]
            if len(query.sources) == 1 and query.aggregation is None:
                # Nothing is joined: a tuple produces its result as soon as it is processed, whatever its window.
                readers = []
            lives = [self.life[s.alias] for s in readers if s.window.kind != "ROWS"]
            rows = [s.window.size for s in readers if s.window.kind == "ROWS"]
            if query.subtracted or query.aggregation is not None:
                # A tuple that has just died changes the answer at the first instant at which it is dead.
                lives = [min(life + 1, FOREVER) for life in lives]
            self._needs[name] = (max(lives, default=0), max(rows, default=None))

    def _horizon_columns(self, stream: str) -> list[str]:
        """Return the horizon columns that a stream's store has beside its fields, for ROWS windows."""
        return [HORIZON + name for name in self._counted if name != stream]

    def shared(self, alias: str) -> bool:
        """Return whether the store has rows that this alias's selections refuse.

        It does if another alias reads the same stream, or if a ROWS window counts the rows.
        """
        return bool(self.rows_windows) or self._readers[self.query.source(alias).stream.name] > 1

    def store(self, alias: str) -> SourceStore:
        """Return the store behind an alias."""
        return self._store_of[alias]

    def resolver(self, aliases: Sequence[str], rows: I64) -> Resolve:
        """Return a function that reads columns of (k, n) component rows; it gathers each column once."""
        cache: dict[ColumnRef, Column] = {}

        def resolve(column: ColumnRef) -> Column:
            found = cache.get(column)
            if found is None:
                found = self._store_of[column.alias].gather(column.name, rows[aliases.index(column.alias)])
                cache[column] = found
            return found

        return resolve

    def expiry(self, alias: str, rows: I64, ts: I64) -> I64:
        """Return (n,) the last ts at which stored tuples may be alive.

        For a ROWS window that is the ts of the n-th successor once that is stored, FOREVER before. This bound only
        saves candidates; `rows_alive` decides.
        """
        life = self.life[alias]
        if life < FOREVER:
            return ts + life
        expiry = np.full(len(rows), FOREVER)
        if alias in self.rows_windows:
            store = self._store_of[alias]
            successors = np.maximum(rows + self.rows_windows[alias], store.lo)
            known = successors < store.hi
            if known.any():
                expiry[known] = store.gather("_ts", successors[known]).values
        return expiry

    def horizons(self, batches: Mapping[str, Batch]) -> dict[str, dict[str, Column]]:
        """Compute the horizons of tuples that are about to be stored.

        Args:
            batches: by stream, ascending in the total order. No tuple outside of them has a ts of theirs.

        Returns:
            Per stream the horizon columns by name, each (n,) BIGINT.
        """
        newest = {counted: self.stores[counted].hi - 1 for counted in self._counted}
        return horizons_of(batches, newest, self._ordinals)

    def numbered_columns(self, alias: str) -> Iterator[tuple[NumberColumn, NumberedWindows]]:
        """Yield an alias's columns with the numbers of components in ROWS windows, for `NumberedWindows.expiry`."""
        if self.numbered is not None:
            for column in self.numbered.columns.get(self._stream_of[alias], ()):
                if column.size is not None:
                    yield column, self.numbered

    def numbers(self, alias: str, rows: I64) -> I64:
        """Return (n,) the numbers of stored tuples in their stream."""
        return rows

    def rows_alive(self, tuples: Tuples, left: int | None = None) -> Mask | None:
        """Test which results have all components in their ROWS windows at the time of the latest component.

        A tuple of a `[ROWS n]` alias is dead from the n-th later tuple of its stream on, in the total order.

        Args:
            tuples: n results or candidates.
            left: the first `left` aliases come from one input tuple and the rest from another; each of the two has
                passed this test before. None where that is not known.

        Returns:
            (n,) bool; None when no alias has a ROWS window.
        """
        aliases, count = tuples.aliases, len(tuples.aliases)
        if not any(alias in self.rows_windows for alias in aliases):
            return None
        good = np.ones(len(tuples), np.bool_)
        for alias, rows in zip(aliases, tuples.rows, strict=False):
            good &= rows >= self._store_of[alias].lo
        every, first, rest = range(count), range(left or 0), range(left or 0, count)
        for watched, by in ((every, every),) if left is None else ((first, rest), (rest, first)):
            # A link of an eddy may read no alias of the probing tuple.
            windows = {k: self._stream_of[aliases[k]] for k in watched if by and aliases[k] in self.rows_windows}
            for stream in dict.fromkeys(windows.values()):
                latest = self._horizon(stream, aliases[by[0]], tuples.rows[by[0]])
                for k in by[1:]:
                    latest = np.maximum(latest, self._horizon(stream, aliases[k], tuples.rows[k]))
                for k in (k for k, own in windows.items() if own == stream):
                    good &= self.numbers(aliases[k], tuples.rows[k]) + self.rows_windows[aliases[k]] > latest
        return good

    def _horizon(self, stream: str, alias: str, rows: I64) -> I64:
        """Return (n,) the horizons in a stream of an alias's tuples."""
        if self._stream_of[alias] == stream:
            return self.numbers(alias, rows)
        return np.asarray(self._store_of[alias].gather(HORIZON + stream, rows).values, np.int64)

    def purge(self, cut: int) -> None:
        """Drop source tuples that no tuple with ts >= `cut` can meet. Such later tuples may already be stored."""
        for name, store in self.stores.items():
            life, rows = self._needs[name]
            store.purge(life, cut, rows)

    def living(self, alias: str, cut: int) -> int:
        """Count the rows of the alias's store in its window at `cut`, before selections. O(log n).

        Released rows are included, apart from the oldest.
        """
        store = self._store_of[alias]
        if alias in self.rows_windows:
            return store.hi - max(store.lo, self.first_live_row(alias))
        if self.life[alias] >= FOREVER:
            return store.hi - store.lo
        return store.hi - store.first_at(cut - self.life[alias])

    def first_live_row(self, alias: str, cut: int | None = None) -> int:
        """Return the first row of a ROWS alias that is alive now, or was before any tuple with ts >= `cut` arrived."""
        store = self._store_of[alias]
        return (store.hi if cut is None else store.first_at(cut)) - self.rows_windows[alias]

    def horizon(self, stream: str, cut: int) -> int:
        """Return the smallest ts at which tuples of the stream are still needed by some window at `cut`."""
        life, rows = self._needs[stream]
        store = self.stores[stream]
        bound = 0 if life >= FOREVER else max(cut - life, 0)
        if rows is not None and store.hi > store.lo:
            first = max(store.lo, store.first_at(cut) - rows)
            oldest = store.gather("_ts", np.array([first], np.int64)).values
            bound = min(bound, int(oldest[0]))
        return bound if self.numbered is None else max(bound, self.numbered.horizon(stream, cut))

    def size_bytes(self) -> int:
        """Return the bytes of all stores."""
        return sum(store.size_bytes() for store in self.stores.values())

    def touched_bytes(self) -> int:
        """Return the bytes of memory that all stores take (`SourceStore.touched_bytes`)."""
        return sum(store.touched_bytes() for store in self.stores.values())
