"""Drops repeats: of the tuples of a stream that agree in the columns of `deduplicate`, only the first is taken.

In the stream's total order, a tuple is a *repeat* of an earlier *first* with equal values if its ts is at most
`deduplicate_within_ms` more than the first's; any other tuple is a first. So a repeat does not make the time longer. A
tuple with a null in one of the columns is neither. `operators.engine.intake` passes tuples through `Deduplication` when
the watermark releases them, sorted: so what is a repeat depends on nothing but the tuples that are not late.

Of a stream that is unnested, a record with all its tuples is a repeat or a first, and a position is its record's. The
tuples of a record are next to each other; it is decided about the one that has the first element of each array.

**Restart.** What is a repeat can depend on a chain of tuples that begins any time ago: of 0, 9, 15 and a time of 10,
0 and 15 are firsts, and without 0, 9 would be. So a restart must not decide again about what was decided before. The
intake returns the positions of the repeats that it has dropped (`Intake.take_repeats`). The caller stores them with
each commit, and gives those that it will read again to the task's next incarnation (`Deduplication.resume`). Every
other tuple before the commit's cut was a first. Read from `deduplicate_within_ms` before the cut, they are all firsts
that can matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from operators.data.positions import positions as positions_of
from operators.kernels.hashing import U64, string_words
from operators.kernels.repeats import FIRST, I8, NO_KEY, REPEAT, find_repeats, forget_firsts, put_numbers, put_strings
from schemas.columns import I64, U8, Batch, Column, Mask
from schemas.query import ORDINAL, OWN_PREFIX, Stream, Type

FIRST_CAPACITY = 1024
FIRST_BYTES = 1 << 14

POSITION = OWN_PREFIX + "position"
"""The column with a tuple's partition and offset, while it waits in the intake."""


class Firsts:
    """The memory of firsts: the ts of the newest of each key.

    Args:
        within_ms: a repeat has at most the first's ts + within_ms.
    """

    def __init__(self, within_ms: int) -> None:
        self._within_ms = within_ms
        self._count = 0
        self._forget_from = FIRST_CAPACITY
        self._table: I64 = np.zeros(2 * FIRST_CAPACITY, np.int64)
        self._ts: I64 = np.zeros(FIRST_CAPACITY, np.int64)
        self._words: U64 = np.zeros(FIRST_CAPACITY, np.uint64)
        self._starts: I64 = np.zeros(FIRST_CAPACITY + 1, np.int64)
        self._data: U8 = np.zeros(FIRST_BYTES, np.uint8)

    def __len__(self) -> int:
        return self._count

    def find(self, ts: I64, keys: Sequence[Column], known: I8) -> Mask:
        """Return (n,) which tuples are repeats, and remember the firsts.

        Args:
            ts: (n,) ascending where `known` is UNKNOWN.
            keys: the columns of the key, at least one.
            known: (n,) see `operators.kernels.repeats.find_repeats`; changed to NO_KEY where a key has a null.
        """
        for column in keys:
            if column.valid is not None:
                known[~column.valid] = NO_KEY
        starts, data = encode_keys(keys, len(ts))
        self._reserve(len(ts), len(data))
        words = string_words(starts, data)
        found, self._count = find_repeats(
            ts.astype(np.int64),
            known,
            starts,
            data,
            words,
            self._within_ms,
            self._table,
            self._ts,
            self._words,
            self._starts,
            self._data,
            self._count,
        )
        return np.asarray(found)

    def forget(self, before: int) -> None:
        """Forget firsts with ts < before, if they are many. Cost: a constant per first, in the long run."""
        if self._count >= self._forget_from:
            self._count = forget_firsts(
                before, self._table, self._ts, self._words, self._starts, self._data, self._count
            )
            self._forget_from = max(2 * self._count, FIRST_CAPACITY)

    def _reserve(self, n: int, size: int) -> None:
        """Make room for n more firsts, and `size` more bytes of keys."""
        wanted = self._count + n
        if wanted > len(self._ts):
            more = (1 << (wanted - 1).bit_length()) - len(self._ts)
            self._ts, self._words = np.pad(self._ts, (0, more)), np.pad(self._words, (0, more))
            self._starts = np.pad(self._starts, (0, more))
            self._table = np.zeros(2 * len(self._ts), np.int64)
            self._count = forget_firsts(
                np.iinfo(np.int64).min, self._table, self._ts, self._words, self._starts, self._data, self._count
            )
        used = int(self._starts[self._count])
        if used + size > len(self._data):
            self._data = np.pad(self._data, (0, (1 << (used + size - 1).bit_length()) - len(self._data)))

    def size_bytes(self) -> int:
        """Return the bytes of the arrays."""
        return sum(array.nbytes for array in (self._table, self._ts, self._words, self._starts, self._data))


def encode_keys(keys: Sequence[Column], n: int) -> tuple[I64, U8]:
    """Return n keys as bytes; see `operators.kernels.repeats`. Key i is data[starts[i]:starts[i + 1]]."""
    lengths = np.full(n, 8 * len(keys), np.int64)
    for column in keys:
        if column.offsets is not None:
            lengths += np.diff(column.offsets)
    starts = np.zeros(n + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    data, at = np.empty(int(starts[-1]), np.uint8), starts[:-1].copy()
    for column in keys:
        if column.offsets is not None:
            put_strings(column.offsets, column.values.view(np.uint8), at, data)
        elif column.type is Type.DOUBLE:
            put_numbers((column.values.astype(np.float64) + 0.0).view(np.uint64), at, data)  # -0.0 equals 0.0
        else:
            put_numbers(column.values.astype(np.int64).view(np.uint64), at, data)
    return starts, data


class Deduplication:
    """Drops the repeats of one stream.

    Attributes:
        records: whether the positions of repeats are kept for `take`.
        repeats: how many have been dropped, not counting those of an earlier incarnation.
    """

    def __init__(self, stream: Stream) -> None:
        self.records = False
        self.repeats = 0
        self._columns = stream.deduplicate
        self._within_ms = stream.deduplicate_within_ms
        self._ordinals = tuple(array.column(ORDINAL) for array in stream.unnested)
        self._firsts = Firsts(stream.deduplicate_within_ms)
        self._resumed: I64 = np.zeros(0, np.int64)
        self._resumed_until = 0
        self._found: list[I64] = []

    def with_positions(self, batch: Batch, partition: int, offsets: I64) -> Batch:
        """Return tuples that are about to wait, with their positions if these are needed."""
        if not self.records:
            return batch
        return Batch(batch.ts, {**batch.columns, POSITION: positions_of(partition, offsets)})

    def resume(self, positions: I64, until: int) -> None:
        """Before anything is passed: what an earlier incarnation has decided.

        Args:
            positions: of the repeats that it dropped, all of those that will be read again.
            until: it has decided about all tuples with ts < until.
        """
        self.records = True
        self._resumed, self._resumed_until = np.sort(positions), until

    def firsts(self, batch: Batch, cut: int) -> Batch:
        """Return the tuples that are no repeats.

        Args:
            batch: ascending in the total order; those that an earlier incarnation decided about in any order.
            cut: all later calls bring tuples with ts >= cut, or such ones.
        """
        heads = self._heads(batch)
        records = batch if heads is None else batch.take(heads)
        known = np.zeros(len(records), np.int8)
        if self._resumed_until:
            decided = records.ts < self._resumed_until
            known[decided] = FIRST
            known[decided & np.isin(records.columns[POSITION].values, self._resumed)] = REPEAT
        fresh = known == 0
        repeats = self._firsts.find(records.ts, [records.columns[name] for name in self._columns], known)
        self._firsts.forget(cut - self._within_ms)
        if cut >= self._resumed_until:
            self._resumed, self._resumed_until = self._resumed[:0], 0
        fresh &= repeats
        self.repeats += int(np.count_nonzero(fresh))
        columns = dict(batch.columns)
        if self.records:
            self._found.append(records.columns[POSITION].values[fresh].astype(np.int64))
            del columns[POSITION]
        if heads is not None:
            repeats = repeats[np.cumsum(heads) - 1]
        rest = Batch(batch.ts, columns)
        return rest.take(~repeats) if repeats.any() else rest

    def _heads(self, batch: Batch) -> Mask | None:
        """Return (n,) which tuples are the first ones of their records; None where each is a record of its own."""
        if not self._ordinals:
            return None
        found = np.ones(len(batch), np.bool_)
        for name in self._ordinals:
            found &= batch.columns[name].values == 1
        return found

    def take(self) -> I64:
        """Return the positions of the repeats dropped since the last call, ascending."""
        found, self._found = self._found, []
        return np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)

    def size_bytes(self) -> int:
        """Return the bytes of the memory of firsts."""
        return self._firsts.size_bytes()
