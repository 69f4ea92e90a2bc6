"""The executor that spilling is compared with: a symmetric hash join whose whole state is a RocksDB table.

It runs the query and plan of `ops.bench.papers.spill.runs` and nothing else. Each join keeps the rows of either side
by the join's key, as a state backend does. A key has a *head*, which has the number of its full chunks and the rows of
the open chunk, and chunks of CHUNK_ROWS rows, so that a key's list is not rewritten for every new row. For each slice,
all heads of both sides are read with one `multi_get`, all chunks with another, and everything is written in one
WriteBatch. A row is whole numbers: its timestamp and the columns that the query selects from its components. There is
no log (Weir's own store has none either), no compression and a Bloom filter; cache and write buffers share a memory of
the size of Weir's budget.

Its limits: it is for unbounded windows and equal keys, and does not order its results.
"""

from __future__ import annotations

import struct
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

from ops.bench.papers.spill.runs import INTERARRIVAL_MS, Trace, Workload, digest
from schemas.columns import I64, Batch, Mask

IN_ROCKSDB = "all in RocksDB"

CHUNK_ROWS = 64
"""A key's rows are moved in chunks of so many, each written once; only the rows after the last chunk are rewritten."""

BUFFERS = 4
"""Write buffers: one is written to, the others are on their way to the disk."""

LEAST_BUFFER_BYTES = 64 << 10

LEFT, RIGHT = 0, 1
_HEAD = struct.Struct("<q")
_CHUNK = struct.Struct(">i")
_WORD = 8


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Tuples that enter a join.

    Attributes:
        keys: (n,) of the join.
        values: (n, 1 + components) timestamp, then a selected column of each component.
    """

    keys: I64
    values: I64


class RocksJoins:
    """The four binary joins of the plan, left-deep, with all state in one table.

    Args:
        memory_bytes: for block cache and write buffers.
    """

    def __init__(self, path: Path, memory_bytes: int) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(DBCompressionType.none())
        options.set_write_buffer_size(max(memory_bytes // 2 // BUFFERS, LEAST_BUFFER_BYTES))
        options.set_max_write_buffer_number(BUFFERS)
        blocks = BlockBasedOptions()
        blocks.set_block_cache(Cache(memory_bytes // 2))
        blocks.set_bloom_filter(10.0, False)
        options.set_block_based_table_factory(blocks)
        unlogged = WriteOptions()
        unlogged.disable_wal = True
        self._table = Rdict(str(path), options)
        self._table.set_write_options(unlogged)
        self.table_seconds = 0.0

    def close(self) -> None:
        """Close the table."""
        self._table.close()

    def memory_bytes(self) -> int:
        """What cache and write buffers take now, in bytes."""
        names = ("rocksdb.block-cache-usage", "rocksdb.cur-size-all-mem-tables")
        return sum(int(self._table.property_int_value(name) or 0) for name in names)

    def process(self, slice_: dict[str, Batch]) -> I64:
        """(m, 6) the results of a slice of all streams: timestamp and a, b, c, d, e, in any order."""

        def rows(stream: str) -> Rows:
            batch = slice_[stream]
            x, y = (batch.columns[name].values.astype(np.int64, copy=False) for name in "xy")
            return Rows(x, np.column_stack([batch.ts, y]))

        pairs = rows("A")
        for join, stream in enumerate("BCDE"):
            pairs = self._join(join, pairs, rows(stream))
            if join:
                # From (AB C) on, the next key is the newest component's y; A, B and C share theirs.
                pairs = Rows(pairs.values[:, -1], pairs.values)
        return pairs.values

    def _join(self, join: int, left: Rows, right: Rows) -> Rows:
        """Join both sides' new rows with each other and with the stored rows; then store them."""
        new = (left, right)
        keys, at = np.unique(np.concatenate([left.keys, right.keys]), return_inverse=True)
        place = (at[: len(left.keys)], at[len(left.keys) :])
        fresh: list[Mask] = [np.bincount(own, minlength=len(keys)) > 0 for own in place]
        names = [[bytes((2 * join + side,)) + raw for raw in _raw(keys)] for side in (LEFT, RIGHT)]
        heads = self._get(names[LEFT] + names[RIGHT])
        batch = WriteBatch(raw_mode=True)
        stored = []
        for side in (LEFT, RIGHT):
            own, width = heads[side * len(keys) : (side + 1) * len(keys)], new[side].values.shape[1]
            full, opened, counts = _heads(own, width)
            rows, group = opened, np.repeat(np.arange(len(keys)), counts)
            # Full chunks are read where the other side has new rows, heads also where this side has.
            wanted = np.flatnonzero((full > 0) & fresh[1 - side])
            chunks = self._get([names[side][g] + _CHUNK.pack(c) for g in wanted.tolist() for c in range(full[g])])
            if chunks:
                more = np.frombuffer(b"".join(chunks), np.int64).reshape(-1, width)
                rows = np.concatenate([rows, more])
                group = np.concatenate([group, np.repeat(wanted, full[wanted] * CHUNK_ROWS)])
            stored.append((rows, group))
            _append(batch, names[side], full, opened, counts, new[side].values, place[side])
        began = time.perf_counter()
        self._table.write(batch)
        self.table_seconds += time.perf_counter() - began
        old_left, old_right = stored
        found = []
        both = (np.concatenate([old_left[0], left.values]), np.concatenate([old_left[1], place[LEFT]]))
        for (a, of_a), (b, of_b) in ((both, (right.values, place[RIGHT])), ((left.values, place[LEFT]), old_right)):
            i, j = _pairs(of_a, of_b, len(keys))
            ts = np.maximum(a[i, 0], b[j, 0])
            found.append((keys[of_a[i]], np.column_stack([ts, a[i, 1:], b[j, 1:]])))
        return Rows(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def _get(self, names: list[bytes]) -> list[Any]:
        began = time.perf_counter()
        found: list[Any] = self._table.get(names) if names else []
        self.table_seconds += time.perf_counter() - began
        return found


def _raw(keys: I64) -> list[bytes]:
    """Keys as bytes, in their order."""
    data = keys.astype(">i8").tobytes()
    return [data[k : k + _WORD] for k in range(0, len(data), _WORD)]


def _heads(values: Sequence[bytes | None], width: int) -> tuple[I64, I64, I64]:
    """For each key the number of full chunks, all open rows in the keys' order, and how many of these each key has."""
    words = np.array([0 if raw is None else len(raw) // _WORD for raw in values], np.int64)
    data = np.frombuffer(b"".join(raw for raw in values if raw is not None), np.int64)
    begins = (np.cumsum(words) - words)[words > 0]
    full = np.zeros(len(values), np.int64)
    full[words > 0] = data[begins]
    return full, np.delete(data, begins).reshape(-1, width), np.maximum(words - 1, 0) // width


def _append(batch: WriteBatch, names: list[bytes], full: I64, opened: I64, counts: I64, rows: I64, place: I64) -> None:
    """Add rows to the open chunks of their keys; a full chunk is stored and a new one begins."""
    changed = np.unique(place)
    touched = np.zeros(len(names), np.bool_)
    touched[changed] = True
    group = np.repeat(np.arange(len(names)), counts)
    kept = touched[group]
    group = np.concatenate([group[kept], place])
    order = np.argsort(group, kind="stable")
    data = np.concatenate([opened[kept], rows])[order].tobytes()
    ends = np.cumsum(np.bincount(group, minlength=len(names)))[changed].tolist()
    row_bytes = rows.shape[1] * _WORD
    begin = 0
    for key, chunks, end in zip(changed.tolist(), full[changed].tolist(), ends, strict=True):
        name = names[key]
        while end - begin >= CHUNK_ROWS:
            batch.put(name + _CHUNK.pack(chunks), data[begin * row_bytes : (begin + CHUNK_ROWS) * row_bytes])
            chunks, begin = chunks + 1, begin + CHUNK_ROWS
        batch.put(name, _HEAD.pack(chunks) + data[begin * row_bytes : end * row_bytes])
        begin = end


def _pairs(left: I64, right: I64, groups: int) -> tuple[I64, I64]:
    """All pairs of rows of the same group, as positions."""
    by_left, by_right = np.argsort(left, kind="stable"), np.argsort(right, kind="stable")
    counts = np.bincount(right, minlength=groups)
    begins = np.cumsum(counts) - counts
    ordered = left[by_left]
    times = counts[ordered]
    within = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    return np.repeat(by_left, times), by_right[np.repeat(begins[ordered], times) + within]


def run_in_rocksdb(workload: Workload, memory_bytes: int, *, seed: int, steps: int) -> Trace:
    """One run with all state in RocksDB; there is no cleanup, because no results are pending."""
    batches = workload.batches(seed)
    minutes, results, used, seconds, waits = [], [], [], [], []
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as folder,
        closing(RocksJoins(Path(folder) / "state", memory_bytes)) as joins,
    ):
        found, sum_ = 0, 0
        for begin, end in workload.steps(steps):
            pieces = {name: batch.slice(begin, end) for name, batch in batches.items()}
            began, wall = time.process_time(), time.perf_counter()
            rows = joins.process(pieces)
            seconds.append(time.process_time() - began)
            waits.append(time.perf_counter() - wall)
            found += len(rows)
            sum_ += digest(rows[:, 1:].T)
            minutes.append(end * INTERARRIVAL_MS / 60_000)
            results.append(found)
            used.append(joins.memory_bytes())
    return Trace(
        minutes=minutes,
        results=results,
        memory_bytes=used,
        input_tuples=sum(map(len, batches.values())),
        seconds=sum(seconds),
        step_seconds=seconds,
        waits=waits,
        moved=[False] * len(waits),
        digest=sum_ % 2**64,
    )
