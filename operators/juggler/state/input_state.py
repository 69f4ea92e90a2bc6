"""The operator's state of one input: its rows by time, by key and by value (Juggler 3.3).

`operators.juggler.operator` has one `InputState` per input. The window exploitation structure holds the rows in the
order of time. A join exploitation structure is a hash index where visits have a key, and sorted runs of values where
visits search by comparison (`sorted_runs`). Late rows, which feedback has set aside for a time (`demand`), are in
sorted runs of their own beside the structures by time and by key.

Once the attribute predicates of a stored row were evaluated, the state stores which queries the row satisfies, so they
are not evaluated again for each intermediate result (thesis, A.12.1).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from operators.data.keys import key_hashes
from operators.data.tuples import Tuples
from operators.data.watermark import END
from operators.juggler.predicates.fields import Fields, numbers, outside
from operators.juggler.predicates.normal_form import Limits
from operators.juggler.state.sorted_runs import SortedRun, SortedRuns
from operators.juggler.state.sources import GroupSources
from operators.kernels.hashing import U64
from operators.plan.predicates import Operand
from operators.state.side_state import SideState
from operators.state.sources import Sources
from schemas.columns import I64, Mask
from schemas.query import ColumnRef


class ValueIndex:
    """Sorted runs of a column's values.

    Attributes:
        column: the column indexed.
        whole: whether its values are indexed as int64; else as float64.
        limits: the values for which normal forms agree with the predicates as written.
        sorted_runs: the rows with a value within the limits.
        others: the other rows, in no order.
    """

    def __init__(self, column: ColumnRef, whole: bool, limits: Limits) -> None:
        self.column = column
        self.whole = whole
        self.limits = limits
        self.sorted_runs = SortedRuns()
        none = np.zeros(0, np.int64)
        self.others = SortedRun(none, none, none)

    def insert(self, sources: Sources, tuples: Tuples, least_ts: int) -> None:
        """Insert rows; rows older than `least_ts` may be dropped."""
        column = sources.resolver(tuples.aliases, tuples.rows)(self.column)
        rows, ts = tuples.rows[0], tuples.ts
        other = outside(column, self.limits)
        if column.valid is not None:
            other |= ~column.valid
        values = numbers(column, self.whole)
        if not self.whole:
            other |= np.isnan(values)
        if other.any():
            added = SortedRun(np.zeros(int(np.count_nonzero(other)), np.int64), rows[other], ts[other])
            self.others = self.others.merged(added, least_ts)
            values, rows, ts = values[~other], rows[~other], ts[~other]
        self.sorted_runs.insert(values, rows, ts, least_ts)

    def purge(self, least_ts: int) -> None:
        """Drop runs without live rows; other runs lose their oldest rows when they are merged."""
        self.sorted_runs.purge(least_ts)

    def size_bytes(self) -> int:
        """Bytes of all runs."""
        return self.sorted_runs.size_bytes() + self.others.size_bytes()


class InputState:
    """The rows of one input and what is known of them.

    Attributes:
        name: the input's alias.
        lifetime: how long after its ts a row can join; FOREVER where that depends on tuples to come.
        counts: whether a ROWS window determines the lifetime of rows.
        asking: (words,) the queries that read the input.
        by_time: all rows except late ones.
        by_key: all rows except late ones, per hash key.
        by_value: all rows, per column.
        late_by_time, late_by_key: the late rows.
        fields: the numbers of rows that predicate lists read.
    """

    def __init__(self, sources: GroupSources, name: str, lifetime: int, asking: U64, predicate_words: int) -> None:
        self.name = name
        self.lifetime = lifetime
        self.counts = name in sources.rows_windows
        self.asking = asking
        self._sources = sources
        self._store = sources.store(name)
        self.by_time = self._state(hashed=False)
        self.by_key: dict[tuple[Operand, ...], SideState] = {}
        self.by_value: dict[tuple[ColumnRef, bool], ValueIndex] = {}
        self.late_by_time = SortedRuns()
        self.late_by_key: dict[tuple[Operand, ...], SortedRuns] = {}
        self.fields = Fields()
        capacity = self._store.capacity
        self._lo = self._hi = self._store.lo
        self._alive = np.zeros((capacity, len(asking)), np.uint64)
        self._relevant, self._satisfied = (np.zeros((capacity, predicate_words), np.uint64) for _ in range(2))
        self._evaluated: Mask = np.zeros(capacity, np.bool_)
        self._aside: Mask = np.zeros(capacity, np.bool_)
        # The attributes of every row from `_unknown_until` on are known. `_unknown_before` is its value before the
        # newest rows were registered; `_newest` is (first row, number) of the newest rows.
        self._unknown_until = self._unknown_before = -1
        self._newest = (0, 0)

    def _state(self, *, hashed: bool) -> SideState:
        return SideState((self.name,), self.lifetime, hashed=hashed, exact_expiry=not self.counts)

    def with_key(self, operands: tuple[Operand, ...]) -> None:
        """Add a hash index; call this before rows are inserted."""
        self.by_key.setdefault(operands, self._state(hashed=True))

    def with_values(self, column: ColumnRef, whole: bool, limits: Limits) -> None:
        """Add an index by the values of a column; call this before rows are inserted."""
        index = self.by_value.setdefault((column, whole), ValueIndex(column, whole, limits))
        index.limits = index.limits.intersect(limits)

    # --- Attribute predicates of rows -------------------------------------------------------------------

    def register(self, rows: I64) -> None:
        """Register new rows: every query that reads the input may want them."""
        if not len(rows):
            return
        capacity, store = self._store.capacity, self._store
        if capacity > min(len(self.fields.nulls), len(self._evaluated)):
            self._grow(np.arange(max(self._lo, store.lo), self._hi, dtype=np.int64), capacity)
        self._lo, self._hi = store.lo, store.hi
        slots = rows & (capacity - 1)
        self._alive[slots] = self.asking
        self._relevant[slots] = self._satisfied[slots] = 0
        self._evaluated[slots] = self._aside[slots] = False
        self._newest = (int(rows[0]), len(rows))
        self._unknown_before, self._unknown_until = self._unknown_until, int(rows[-1]) + 1
        self.fields.write(rows, self._sources.resolver((self.name,), rows[np.newaxis]))

    def _grow(self, kept: I64, capacity: int) -> None:
        """Make room for so many rows; what is known of the rows `kept` stays."""
        if capacity > len(self.fields.nulls):
            self.fields.grow(kept, capacity)
        if capacity > len(self._evaluated):
            for name in ("_alive", "_relevant", "_satisfied", "_evaluated", "_aside"):
                old = getattr(self, name)
                grown = np.zeros((capacity, *old.shape[1:]), old.dtype)
                grown[kept & (capacity - 1)] = old[kept & (len(old) - 1)]
                setattr(self, name, grown)

    def known(self, rows: I64) -> tuple[U64, U64, U64]:
        """(n, ...) each: the queries that rows may satisfy as far as known, and RelPBS and SatPBS of attributes."""
        slots = rows & (len(self._evaluated) - 1)
        return self._alive[slots], self._relevant[slots], self._satisfied[slots]

    def alive_of(self, rows: I64) -> U64:
        """(n, words) the queries that rows may satisfy as far as known."""
        return np.asarray(self._alive[rows & (len(self._evaluated) - 1)], np.uint64)

    def evaluated(self, rows: I64) -> tuple[U64, U64]:
        """(n, predicate words) RelPBS and SatPBS of rows' attributes, as far as known."""
        slots = rows & (len(self._evaluated) - 1)
        return self._relevant[slots], self._satisfied[slots]

    @property
    def alive(self) -> U64:
        """(capacity, words) by row, the queries that rows may satisfy as far as known."""
        return self._alive

    def odd(self) -> bool:
        """Whether a row may be stored for which normal forms disagree with the predicates as written."""
        return self.fields.odd(self._store.lo)

    def unknown(self, rows: I64) -> I64:
        """The rows, each once, whose attribute predicates were not evaluated."""
        if self._unknown_until <= self._store.lo:
            return rows[:0]
        missing = rows[~self._evaluated[rows & (len(self._evaluated) - 1)]]
        ascending = len(missing) < 2 or bool((missing[1:] > missing[:-1]).all())
        return missing if ascending else np.unique(missing)

    def learn(self, rows: I64, alive: U64, relevant: U64, satisfied: U64) -> None:
        """Store the outcome of the attribute predicates of rows."""
        slots = rows & (len(self._evaluated) - 1)
        self._alive[slots], self._relevant[slots], self._satisfied[slots] = alive, relevant, satisfied
        self._evaluated[slots] = True
        if (int(rows[0]), len(rows)) == self._newest:
            self._unknown_until = self._unknown_before

    def are_aside(self, rows: I64) -> Mask:
        """(n,) whether feedback has set rows aside."""
        aside: Mask = self._aside[rows & (len(self._aside) - 1)]
        return aside

    def set_aside(self, rows: I64, aside: bool) -> None:
        """Note that feedback has set rows aside, or has admitted them."""
        self._aside[rows & (len(self._aside) - 1)] = aside

    # --- Rows -------------------------------------------------------------------------------------------

    def enter(self, tuples: Tuples, now: int) -> None:
        """Insert new rows, ascending by ts, into all structures."""
        if not len(tuples):
            return
        self.by_time.insert(tuples, None, now=now)
        for operands in self.by_key:
            self._insert_by_key(operands, tuples, now)
        for index in self.by_value.values():
            index.insert(self._sources, tuples, self._least(now))

    def _insert_by_key(self, operands: tuple[Operand, ...], tuples: Tuples, now: int) -> None:
        resolve = self._sources.resolver(tuples.aliases, tuples.rows)
        hashes, valid = key_hashes([operand.values(resolve, len(tuples)) for operand in operands])
        if valid is not None and not valid.all():
            tuples, hashes = tuples.take(valid), hashes[valid]
        self.by_key[operands].insert(tuples, hashes, now=now)

    def take_over(self, former: InputState, tuples: Tuples, now: int) -> bool:
        """Enter registered rows by taking over the structures that held them before the queries changed: these depend
        on rows alone. Only an index that is new is built.

        Args:
            former: the input's state before; it must not be used afterwards.
            tuples: all rows to enter, ascending by ts.

        Returns:
            False, with nothing changed, if the structures do not hold exactly these rows for the same time.
        """
        same_life = former.lifetime == self.lifetime and not (self.counts or former.counts)
        if not same_life or former.late_by_time.runs:
            return False
        held = former.by_time.tuples()
        if not (np.array_equal(held.rows, tuples.rows) and np.array_equal(held.ts, tuples.ts)):
            return False
        self.by_time = former.by_time
        for operands in self.by_key:
            if operands in former.by_key:
                self.by_key[operands] = former.by_key[operands]
            else:
                self._insert_by_key(operands, tuples, now)
        for key, index in self.by_value.items():
            before = former.by_value.get(key)
            if before is not None and before.limits == index.limits:
                self.by_value[key] = before
            else:
                index.insert(self._sources, tuples, self._least(now))
        return True

    def enter_late(self, tuples: Tuples, now: int) -> None:
        """Insert rows that are older than rows already present into all structures."""
        rows, ts, least = tuples.rows[0], tuples.ts, self._least(now)
        self.late_by_time.insert(ts, rows, ts, least)
        resolve = self._sources.resolver(tuples.aliases, tuples.rows)
        for operands in self.by_key:
            hashes, valid = key_hashes([operand.values(resolve, len(tuples)) for operand in operands])
            good = np.ones(len(tuples), np.bool_) if valid is None else valid
            self.late_by_key.setdefault(operands, SortedRuns()).insert(
                hashes[good].view(np.int64), rows[good], ts[good], least
            )
        for index in self.by_value.values():
            index.insert(self._sources, tuples, least)

    def live_tuples(self, now: int) -> Tuples:
        """The live rows in the structures, late rows included, in the order in which they arrived."""
        own, late = self.by_time.tuples(), self.late_by_time.runs
        rows = np.concatenate([own.rows[0], *(run.rows for run in late)])
        ts = np.concatenate([own.ts, *(run.ts for run in late)])
        living = ts >= self._least(now)
        rows, ts = rows[living], ts[living]
        order = np.argsort(rows)
        return self.tuples(rows[order], ts[order])

    def tuples(self, rows: I64, ts: I64) -> Tuples:
        """Rows as tuples with their expiry."""
        return Tuples((self.name,), rows[np.newaxis], ts, self._sources.expiry(self.name, rows, ts))

    def restart(self, tuples: Tuples, now: int) -> None:
        """Replace the contents of all structures by these rows, ascending by ts."""
        self.by_time = self._state(hashed=False)
        self.by_key = {operands: self._state(hashed=True) for operands in self.by_key}
        self.by_value = {
            (column, whole): ValueIndex(column, whole, index.limits)
            for (column, whole), index in self.by_value.items()
        }
        self.late_by_time, self.late_by_key = SortedRuns(), {}
        self.enter(tuples, now)

    def least_ts(self, ts: I64) -> I64:
        """(n,) rows older than this can join nothing from these times on."""
        return self._sources.least_ts(self.name, ts)

    def _least(self, now: int) -> int:
        return END if now == END else int(self.least_ts(np.array([now]))[0])

    def purge(self, cut: int) -> None:
        """Drop rows that no tuple at or after `cut` can join."""
        least = self._least(cut)
        for state in (self.by_time, *self.by_key.values()):
            if self.counts:
                state.purge_rows(self.name, self._store.first_at(least))
            else:
                state.purge(cut)
        for index in self.by_value.values():
            index.purge(least)
        for sorted_runs in (self.late_by_time, *self.late_by_key.values()):
            sorted_runs.purge(least)

    def __len__(self) -> int:
        return len(self.by_time) + len(self.late_by_time)

    def size_bytes(self) -> int:
        """Bytes of all structures."""
        arrays: tuple[npt.NDArray[np.generic], ...] = (
            self._alive, self._relevant, self._satisfied, self._evaluated, self._aside
        )  # fmt: skip
        states = sum(state.size_bytes() for state in (self.by_time, *self.by_key.values()))
        structures = sum(v.size_bytes() for v in self.by_value.values()) + self.fields.size_bytes()
        structures += sum(sorted_runs.size_bytes() for sorted_runs in (self.late_by_time, *self.late_by_key.values()))
        return sum(array.nbytes for array in arrays) + states + structures

    def touched_bytes(self) -> int:
        """Bytes of memory in use. Arrays by row count for their rows only: zeros never written occupy no memory."""
        arrays: tuple[npt.NDArray[np.generic], ...] = (
            self._alive, self._relevant, self._satisfied, self._evaluated, self._aside,
            self.fields.ints, self.fields.nulls,
        )  # fmt: skip
        by_row = sum(array.nbytes // len(array) for array in arrays) * (self._hi - self._lo)
        states = sum(state.touched_bytes() for state in (self.by_time, *self.by_key.values()))
        sorted_runs = sum(sorted_runs.size_bytes() for sorted_runs in (self.late_by_time, *self.late_by_key.values()))
        return by_row + states + sum(v.size_bytes() for v in self.by_value.values()) + sorted_runs
