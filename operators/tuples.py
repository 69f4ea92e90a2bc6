"""Tuples in flight between operators: row ids of their components, not values (late materialisation)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
        expiry: (n,) int64, the smallest component ts + window; at most FOREVER.
    """

    aliases: tuple[str, ...]
    rows: I64
    ts: I64
    expiry: I64

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, index: I64 | Mask) -> Tuples:
        """The tuples at ascending positions, or where a mask is True."""
        return Tuples(self.aliases, self.rows[:, index], self.ts[index], self.expiry[index])

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
    def merge(parts: Sequence[Tuples]) -> Tuples:
        """Parts over the same aliases, each ascending by ts, merged by ts; ties keep the parts' order."""
        parts = [p for p in parts if len(p)] or list(parts[:1])
        if len(parts) == 1:
            return parts[0]
        ts = np.concatenate([p.ts for p in parts])
        merged = Tuples(
            parts[0].aliases,
            np.concatenate([p.rows for p in parts], axis=1),
            ts,
            np.concatenate([p.expiry for p in parts]),
        )
        if (ts[1:] < ts[:-1]).any():
            return merged.take(np.argsort(ts, kind="stable").astype(np.int64))
        return merged
