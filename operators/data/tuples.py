"""The tuples that operators exchange: row ids of their components, not values (late materialisation).

Every executor takes and returns `Tuples`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from operators.kernels.combine import merge_runs
from schemas.columns import I64, Mask

FOREVER = 2**62
"""A lifetime without end, and its expiry. It is far from int64's edge, so that ts + lifetime stays in range."""


@dataclass(frozen=True, slots=True, eq=False)
class Tuples:
    """`n` source tuples or intermediate results over the same aliases, ascending by ts.

    Attributes:
        aliases: the aliases covered, in the order of `rows`.
        rows: (len(aliases), n) int64, each component's row id in its stream's store.
        ts: (n,) int64, the largest component timestamp in ms.
        expiry: (n,) int64, the smallest component ts + window, at most FOREVER. For a ROWS window the ts of the tuple
            that ends it counts, if that is already known.
    """

    aliases: tuple[str, ...]
    rows: I64
    ts: I64
    expiry: I64

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, index: I64 | Mask) -> Tuples:
        """Return the tuples at ascending positions, or where a mask is True."""
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)
        # Not rows[:, index]: that copy would have column-major layout, and kernels would be compiled again for it.
        return Tuples(self.aliases, np.take(self.rows, index, axis=1), self.ts[index], self.expiry[index])

    def reorder(self, aliases: tuple[str, ...]) -> Tuples:
        """Return the same tuples with the rows in another alias order."""
        if aliases == self.aliases:
            return self
        order = [self.aliases.index(alias) for alias in aliases]
        return Tuples(aliases, self.rows[order], self.ts, self.expiry)

    @staticmethod
    def empty(aliases: tuple[str, ...]) -> Tuples:
        """Return no tuples over these aliases."""
        none = np.zeros(0, np.int64)
        return Tuples(aliases, np.zeros((len(aliases), 0), np.int64), none, none)

    @staticmethod
    def concat(parts: Sequence[Tuples], aliases: tuple[str, ...]) -> Tuples:
        """Concatenate parts over the same aliases that together ascend by ts."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return Tuples.empty(aliases)
        return Tuples(
            aliases,
            np.concatenate([p.rows for p in parts], axis=1),
            np.concatenate([p.ts for p in parts]),
            np.concatenate([p.expiry for p in parts]),
        )

    @staticmethod
    def merge(first: Tuples, second: Tuples) -> Tuples:
        """Merge two runs over the same aliases by ts. At equal ts the first run's tuples come first."""
        if len(first) == 0 or len(second) == 0:
            return first if len(second) == 0 else second
        rows, ts, expiry = merge_runs(
            first.rows, first.ts, first.expiry, second.rows, second.ts, second.expiry
        )
        return Tuples(first.aliases, rows, ts, expiry)
