"""The writing end of an edge: an operator's results become blocks for the partitions of a topic.

`services.program.result_output` calls it. It also puts the top operator's results in the query's order. Rows keep their
order within a partition, so a channel's blocks ascend by ts. A tuple with a null key matches nothing and is not sent,
unless the edge keeps nulls.
The partition of a key depends on the key's value alone. It is the same for the two inputs of a join whatever their
types, and uses bits of the key's hash that the join's index does not use.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from operators.data.evaluate import Resolve, holds
from operators.data.keys import key_hashes
from operators.data.tuples import FOREVER
from operators.distributed.operator import EXPIRY, DistributedOperator, Edge, output_name
from operators.kernels.hashing import U64
from operators.kernels.order import order_ties
from schemas.codecs.exchange import encode_exchange
from schemas.columns import I64, Batch, Column
from schemas.query import ColumnRef, Type

BLOCK_BYTES = 256 * 1024
"""The most bytes in a block, unless one row is larger."""

_SHIFT = np.uint64(24)


def partition_of(hashes: U64, partitions: int) -> I64:
    """Return (n,) the partitions of key hashes. They use other bits than the partition groups of a state."""
    return ((hashes >> _SHIFT) % np.uint64(partitions)).astype(np.int64)


class EdgeWriter:
    """One task's writing end of one edge.

    Args:
        edge: The edge.
        task: The number of the sending task among its operator's tasks.
    """

    def __init__(self, edge: Edge, task: int) -> None:
        self.edge = edge
        self._task = task
        self._fields = edge.fields

    def blocks(
        self, results: Batch, watermark: int, *, complete: int | None = None, late: bool = False
    ) -> list[tuple[int, bytes, int]]:
        """Return the blocks of an epoch in the order to write them: partition, bytes and number of rows of each.

        Args:
            results: Results ascending by ts, with columns named by `output_name`.
            watermark: No later result has a smaller ts, but for late results.
            complete: No late result that follows has a smaller ts; None for a task without a memory budget.
            late: The results are late results of cleanups. They may have a smaller ts than the watermark, and are in
                no epoch.
        """
        edge = self.edge
        channel = 0 if edge.forward else self._task
        found: list[tuple[int, bytes, int]] = []
        for partition, batch in self.shares(results):
            if late and not len(batch):
                continue
            for begin, end in block_bounds(batch):
                piece = batch.slice(begin, end)
                last = end == len(batch) and not late
                raw = encode_exchange(self._fields, channel, watermark, last, piece, complete=complete, late=late)
                found.append((partition, raw, len(piece)))
        return found

    def shares(self, results: Batch) -> list[tuple[int, Batch]]:
        """Return each partition's share of results. Empty shares are included, since watermarks go to all
        partitions."""
        edge = self.edge
        resolve = _resolver(results)
        if edge.predicates and len(results):
            good = np.ones(len(results), np.bool_)
            for predicate in edge.predicates:
                good &= holds(predicate, resolve, len(results))
            results = results if good.all() else results.take(good)
            resolve = _resolver(results)
        batch = self.to_edge_batch(results)
        if edge.forward:
            return [(self._task, batch)]
        if not edge.keys:
            return [(0, batch)]
        n = len(batch)
        hashes, valid = key_hashes([operand.values(resolve, n) for operand in edge.keys])
        at = partition_of(hashes, edge.partitions)
        if valid is not None:
            at[~valid] = 0 if edge.keeps_nulls else -1
        return [(p, batch.take(at == p)) for p in range(edge.partitions)]

    def reader(self, batch: Batch) -> Resolve:
        """Return a function that gives the values of the query's columns in a batch of the edge."""
        names = {column: f"c{i}" for i, column in enumerate(self.edge.columns)}
        return lambda column: batch.columns[names[column]]

    def to_edge_batch(self, results: Batch) -> Batch:
        """Return results with the columns of the edge."""
        edge = self.edge
        columns = {f"c{i}": results.columns[output_name(c)] for i, c in enumerate(edge.columns)}
        if edge.expires:
            ends = [
                results.columns[output_name(ColumnRef(alias, "_ts", Type.TIMESTAMP))].values.astype(np.int64) + life
                for alias, life in zip(edge.aliases, edge.lifetimes, strict=True)
                if life < FOREVER
            ]
            columns[EXPIRY] = Column(Type.TIMESTAMP, np.minimum.reduce(ends))
        return Batch(results.ts, columns)


def _resolver(results: Batch) -> Resolve:
    def resolve(column: ColumnRef) -> Column:
        if column.name == "_ts" and output_name(column) not in results.columns:
            return Column(Type.TIMESTAMP, results.ts)
        return results.columns[output_name(column)]

    return resolve


def block_bounds(batch: Batch) -> list[tuple[int, int]]:
    """Return where the blocks of a batch begin and end: one at least, each of at most BLOCK_BYTES or of one row."""
    sizes = np.full(len(batch), 8 * (1 + len(batch.columns)), np.int64)
    for column in batch.columns.values():
        if column.offsets is not None:
            sizes += np.diff(column.offsets)
    ends = np.cumsum(sizes)
    found: list[tuple[int, int]] = []
    begin = 0
    while begin < len(batch) or not found:
        before = int(ends[begin - 1]) if begin else 0
        fits = int(np.searchsorted(ends, before + BLOCK_BYTES, side="right"))
        end = min(max(begin + 1, fits), len(batch))
        found.append((begin, end))
        begin = end
    return found


class ResultOrder:
    """Turns the top operator's results into the query's, in the order of the fused engine.

    Those of a set difference and of aggregates are in their order.
    """

    def __init__(self, operator: DistributedOperator) -> None:
        names = [output.name for output in operator.query.outputs]
        self._ranks = names[len(names) - operator.ranks :]

    def __call__(self, results: Batch) -> Batch:
        """Return results in the order of (ts, places of their components in FROM order), without the columns for the
        order."""
        if not self._ranks:
            return results
        columns = {name: column for name, column in results.columns.items() if name not in self._ranks}
        found = replace(results, columns=columns)
        if not (results.ts[1:] == results.ts[:-1]).any():
            return found
        rows = np.stack([results.columns[name].values.astype(np.int64, copy=False) for name in self._ranks])
        return found.take(order_ties(np.ascontiguousarray(results.ts), rows))
