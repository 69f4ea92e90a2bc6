"""Tuples in flight between operators: row ids of their components, not values (late materialisation)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from operators.kernels.combine import merge_runs
from schemas.columns import I64, Mask

FOREVER = 2**62
"""A life without end, and its expiry; far from int64's edge, so that ts + life stays in range."""


@dataclass(frozen=True, slots=True, eq=False)
class Tuples:
    """`n` source tuples or intermediate results over the same aliases, ascending by ts.

    Attributes:
        aliases: the aliases covered, in the order of `rows`.
        rows: (len(aliases), n) int64, the component's row id in its stream's store.
        ts: (n,) int64, the largest component timestamp.
        expiry: (n,) int64, the smallest component ts + window; at most FOREVER. A ROWS window counts with
            the ts of the tuple that ends it, where that is known already.
    """

    aliases: tuple[str, ...]
    rows: I64
    ts: I64
    expiry: I64

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, index: I64 | Mask) -> Tuples:
        """The tuples at ascending positions, or where a mask is True."""
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)
        # Not rows[:, index]: that lays the copy out by columns, and kernels would be compiled anew for it.
        return Tuples(self.aliases, np.take(self.rows, index, axis=1), self.ts[index], self.expiry[index])

    def reorder(self, aliases: tuple[str, ...]) -> Tuples:
        """The same tuples with the rows in another alias order."""
        if aliases == self.aliases:
            return self
        order = [self.aliases.index(alias) for alias in aliases]
        return Tuples(aliases, self.rows[order], self.ts, self.expiry)

    @staticmethod
    def empty(aliases: tuple[str, ...]) -> Tuples:
        """No tuples."""
        none = np.zeros(0, np.int64)
        return Tuples(aliases, np.zeros((len(aliases), 0), np.int64), none, none)

    @staticmethod
    def concat(parts: Sequence[Tuples], aliases: tuple[str, ...]) -> Tuples:
        """Parts over the same aliases one after the other, together ascending by ts."""
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
        """Two runs over the same aliases merged by ts; ties keep the first run's tuples first."""
        if len(first) == 0 or len(second) == 0:
            return first if len(second) == 0 else second
        rows, ts, expiry = merge_runs(
            first.rows, first.ts, first.expiry, second.rows, second.ts, second.expiry
        )
        return Tuples(first.aliases, rows, ts, expiry)
