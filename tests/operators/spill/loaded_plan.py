"""A plan with tuples in its states, and an `Eviction` for them: without an engine, which decides when to evict."""

from __future__ import annotations

import numpy as np

from operators.data.tuples import FOREVER, Tuples
from operators.join.binary_join import BinaryJoin
from operators.join.tree import XJoinTree
from operators.plan.plan import parse_plan
from operators.spill.counters import SpillCounters
from operators.spill.eviction import Eviction
from operators.spill.ledger import Ledger
from operators.spill.spilled_part import PieceWriter
from operators.state.sources import Sources
from schemas.columns import Batch, Column
from schemas.language.program import parse_program
from schemas.query import Type
from tests.operators.spill.memory_blocks import MemoryBlocks

TUPLES = 600
KEYS = 200
TAKEN_BYTES = 1_000


class LoadedPlan:
    """Two joins over endless streams with tuples in their states, and the eviction of their groups."""

    def __init__(self, groups: int) -> None:
        streams = "".join(
            f"CREATE STREAM {name} (k BIGINT, at TIMESTAMP) WITH (topic = '{name}', timestamp = 'at');"
            for name in "abc"
        )
        select = "SELECT a.at FROM a [UNBOUNDED], b [UNBOUNDED], c [UNBOUNDED] WHERE a.k = b.k AND b.k = c.k;"
        query = parse_program(streams + select).queries[0]
        self.sources = Sources(query, partition_groups=groups)
        tree = XJoinTree(self.sources, parse_plan("((a b) c)", query))
        self.joins: list[BinaryJoin] = [join for _, join in tree.joins]
        ts = np.arange(TUPLES)
        columns = {"k": Column(Type.BIGINT, ts % KEYS), "at": Column(Type.TIMESTAMP, ts)}
        epoch: dict[str, Tuples] = {}
        for name in "abc":
            rows = self.sources.stores[name].append(Batch(ts, columns))
            epoch[name] = Tuples((name,), rows[np.newaxis], ts, self.sources.expiry(name, rows, ts))
        tree.process(epoch, 0)
        self.ledger = Ledger([node for node, _ in tree.joins], [FOREVER for _ in self.joins])
        self.counters, self.blocks = SpillCounters(), MemoryBlocks()
        self.writer = PieceWriter(self.blocks)
        self.evicted: list[tuple[int, list[int]]] = []
        self.eviction = Eviction(
            self.sources,
            self.joins,
            self.ledger,
            self.writer,
            self.counters,
            groups,
            TAKEN_BYTES,
            lambda _, join, own: self.evicted.append((join, list(own))),
        )

    def entries(self, join: int) -> list[int]:
        return [len(state) for state in self.joins[join].states]

    def on_disk(self) -> list[int]:
        """The number of tuples of each piece on disk."""
        pieces = [piece for _, parts in self.ledger.items() for part in parts for own in part.pieces for piece in own]
        return [piece.rows for piece in pieces if piece.key]
