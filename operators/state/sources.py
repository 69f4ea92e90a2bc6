"""The stores of a query's streams, how tuples of row ids are read as columns, and what ROWS windows let live.

A stream's tuples have consecutive numbers, their row ids. For every stream S with a ROWS window each tuple of another
stream takes along its *horizon* in S: the number of the newest tuple of S at its place in the total order. Its own is
the horizon of a tuple of S. Horizons ascend in the total order, so the largest of a combination's components is that
of the latest of them, and a component that is tuple r of S is in a window `[ROWS n]` there while r + n is larger. That
takes nothing but the components: it can be said of tuples that were read back, whatever has become of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from operators.data.evaluate import Resolve
from operators.data.tuples import FOREVER, Tuples
from operators.plan.equalities import equality_classes
from operators.plan.predicates import conjuncts, left_conditions
from operators.state.side_state import PARTITION_GROUPS, Scratch
from operators.state.store import SourceStore
from schemas.columns import I64, Batch, Column, Mask
from schemas.query import TABLE_TS, Query, Source, Stream, Table, Type, aliases_of, columns_of
from schemas.query import Column as ColumnRef

HORIZON = "#"
"""What the column with the horizon in a stream is called, before the stream's name; no name begins with it."""


def life_of(source: Source) -> int:
    """How long a tuple of this source lives after its ts, as RANGE goes; FOREVER for ROWS and UNBOUNDED.

    Of a table so long that its rows expire at FOREVER.
    """
    if source.is_table:
        return FOREVER - TABLE_TS
    return source.window.size if source.window.kind == "RANGE" else FOREVER


class Sources:
    """The stores of all streams of a query, shared by every operator of its plans.

    What is kept of a stream does not depend on the plan, so that any plan can take over: every column
    that the output or a predicate over several aliases reads, and for shared stores the selections' too.

    Attributes:
        cut: every tuple with a smaller ts has been stored.
        tables: the aliases that are tables; their rows are all stored before anything else (`operators.join.tables`).
        equalities: which equalities follow from which; a set difference has none, it does not join.
        hashed: False where every join is to be a nested loop.
        partition_groups: of every state.
    """

    def __init__(
        self,
        query: Query,
        *,
        hashed: bool = True,
        kept: Sequence[ColumnRef] = (),
        partition_groups: int = PARTITION_GROUPS,
    ) -> None:
        """Args: `kept`: columns to keep beside those."""
        self.query = query
        self.hashed = hashed
        self.partition_groups = partition_groups
        self.cut = 0
        self.tables: frozenset[str] = frozenset(s.alias for s in query.sources if s.is_table)
        self.rows_windows: dict[str, int] = {
            s.alias: s.window.size for s in query.sources if s.window.kind == "ROWS"
        }
        self.scratch = Scratch()
        self.equalities = equality_classes(() if query.subtracted else query.predicates)
        self.life: dict[str, int] = {s.alias: life_of(s) for s in query.sources}
        self._readers = Counter(s.stream.name for s in query.sources)
        wanted: dict[str, dict[str, None]] = {s.stream.name: {} for s in query.sources}
        exprs = [*kept, *query.read_of_results()]
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
            for stream in query.streams()
            if any(s.stream.name == stream.name and s.alias in self.rows_windows for s in query.sources)
        ]
        self._ordinals = {stream.name: number for number, stream in enumerate(query.streams())}
        inputs: list[Stream | Table] = [*query.streams(), *query.tables()]
        for stream in inputs:
            types = {f.name: f.type for f in stream.fields}
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
                # Nothing is joined: a tuple has given its result once it was processed, whatever its window.
                readers = []
            lives = [self.life[s.alias] for s in readers if s.window.kind != "ROWS"]
            rows = [s.window.size for s in readers if s.window.kind == "ROWS"]
            if query.subtracted or query.aggregation is not None:
                # What has just died changes the answer at its first dead instant.
                lives = [min(life + 1, FOREVER) for life in lives]
            self._needs[name] = (max(lives, default=0), max(rows, default=None))

    def _horizon_columns(self, stream: str) -> list[str]:
        """What the store of a stream keeps for ROWS windows beside its fields."""
        return [HORIZON + name for name in self._counted if name != stream]

    def shared(self, alias: str) -> bool:
        """True when the store holds rows that this alias's selections refuse: other aliases want them, or
        a ROWS window counts them."""
        return bool(self.rows_windows) or self._readers[self.query.source(alias).stream.name] > 1

    def store(self, alias: str) -> SourceStore:
        """The store behind an alias."""
        return self._store_of[alias]

    def resolver(self, aliases: Sequence[str], rows: I64) -> Resolve:
        """Reads columns of (k, n) component rows; each column is gathered once."""
        cache: dict[ColumnRef, Column] = {}

        def resolve(column: ColumnRef) -> Column:
            found = cache.get(column)
            if found is None:
                found = self._store_of[column.alias].gather(column.name, rows[aliases.index(column.alias)])
                cache[column] = found
            return found

        return resolve

    def expiry(self, alias: str, rows: I64, ts: I64) -> I64:
        """(n,) the last ts at which stored tuples may be alive.

        For ROWS that is the ts of the n-th successor once it is stored, FOREVER before: a bound that spares
        candidates; `rows_alive` decides.
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
        """The horizons of tuples that are about to be stored: per stream, by column.

        Args:
            batches: by stream, ascending in the total order; nothing of equal ts comes before them or after.
        """
        found: dict[str, dict[str, Column]] = {name: {} for name in batches}
        for counted in self._counted:
            known = self.stores[counted].hi - 1
            for name, batch in batches.items():
                if name == counted:
                    continue
                horizon = np.full(len(batch), known, np.int64)
                if counted in batches:
                    before = self._ordinals[counted] < self._ordinals.get(name, -1)
                    horizon += np.searchsorted(batches[counted].ts, batch.ts, side="right" if before else "left")
                found[name][HORIZON + counted] = Column(Type.BIGINT, horizon)
        return found

    def numbers(self, alias: str, rows: I64) -> I64:
        """(n,) the numbers that tuples have in their stream."""
        return rows

    def rows_alive(self, tuples: Tuples, left: int | None = None) -> Mask | None:
        """Where all ROWS windows still held at the tuple's latest component; None when there is none.

        A tuple of a `[ROWS n]` alias is dead from the place of the n-th later tuple of its stream.

        Args:
            left: so many aliases are of tuples that have been asked about before, and so are the rest.
        """
        aliases, count = tuples.aliases, len(tuples.aliases)
        if not any(alias in self.rows_windows for alias in aliases):
            return None
        good = np.ones(len(tuples), np.bool_)
        for alias, rows in zip(aliases, tuples.rows, strict=False):
            good &= rows >= self._store_of[alias].lo
        every, first, rest = range(count), range(left or 0), range(left or 0, count)
        for watched, by in ((every, every),) if left is None else ((first, rest), (rest, first)):
            # An eddy's link may read nothing of what it comes with.
            windows = {k: self._stream_of[aliases[k]] for k in watched if by and aliases[k] in self.rows_windows}
            for stream in dict.fromkeys(windows.values()):
                latest = self._horizon(stream, aliases[by[0]], tuples.rows[by[0]])
                for k in by[1:]:
                    latest = np.maximum(latest, self._horizon(stream, aliases[k], tuples.rows[k]))
                for k in (k for k, own in windows.items() if own == stream):
                    good &= self.numbers(aliases[k], tuples.rows[k]) + self.rows_windows[aliases[k]] > latest
        return good

    def _horizon(self, stream: str, alias: str, rows: I64) -> I64:
        """(n,) the horizons in a stream of an alias's tuples."""
        if self._stream_of[alias] == stream:
            return self.numbers(alias, rows)
        return np.asarray(self._store_of[alias].gather(HORIZON + stream, rows).values, np.int64)

    def purge(self, cut: int) -> None:
        """Drop source tuples that no tuple at or after `cut` can meet; later ones may have been stored already."""
        for name, store in self.stores.items():
            life, rows = self._needs[name]
            store.purge(life, cut, rows)

    def living(self, alias: str, cut: int) -> int:
        """How many rows of the alias's store are in its window at `cut`, before selections, released ones but for the
        oldest included. O(log n)."""
        store = self._store_of[alias]
        if alias in self.rows_windows:
            return store.hi - max(store.lo, self.first_live_row(alias))
        if self.life[alias] >= FOREVER:
            return store.hi - store.lo
        return store.hi - store.first_at(cut - self.life[alias])

    def first_live_row(self, alias: str, cut: int | None = None) -> int:
        """For a ROWS alias, the first row that is still alive, now or before any tuple with ts >= `cut` came."""
        store = self._store_of[alias]
        return (store.hi if cut is None else store.first_at(cut)) - self.rows_windows[alias]

    def horizon(self, stream: str, cut: int) -> int:
        """The smallest ts whose tuples of the stream any window still needs at `cut`."""
        life, rows = self._needs[stream]
        store = self.stores[stream]
        bound = 0 if life >= FOREVER else max(cut - life, 0)
        if rows is not None and store.hi > store.lo:
            first = max(store.lo, store.first_at(cut) - rows)
            oldest = store.gather("_ts", np.array([first], np.int64)).values
            bound = min(bound, int(oldest[0]))
        return bound

    def size_bytes(self) -> int:
        """Bytes of all stores."""
        return sum(store.size_bytes() for store in self.stores.values())

    def touched_bytes(self) -> int:
        """Bytes of memory that all stores take (`SourceStore.touched_bytes`)."""
        return sum(store.touched_bytes() for store in self.stores.values())

    def tuples_held(self) -> Mapping[str, int]:
        """Source tuples held per stream."""
        return {name: len(store) for name, store in self.stores.items()}
