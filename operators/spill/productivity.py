"""Estimates productivity: the results that each partition group yields for its memory (state-spill 3.2).

`operators.spill.strategies` ranks groups by it. Three counts per join and group:

- `local`: results of that join that came from the group: its P_output for the strategy local-output (3.2.1).
- `output`: results of the *query* that came from the group: P_output of the global strategies (3.2.2).
- `inter`: bytes that intermediate results of the group took in the states of joins above: P_inter (3.2.3, Fig. 10, 11).

P_size comes from the states. Lineage is traced by Algorithm 1: a join's split function is its key's hash, and the key
can be read from any result that covers the join's left side. So the groups that a result went through are the split
functions of all joins below, applied to it. Joins without a key have one group, 0.

Only a sample is traced: SAMPLED_RESULTS of each join and slice. The results are divided into as many equal parts. One
result is taken from each part, at a position that the golden ratio determines. So every result is as likely to be taken
as any other, and counts are unbiased without randomness, whatever rhythm the results have. Each sampled result stands
for as many as there are per sample: the counts of a join sum to the number of results that it made.

Counts cover the recent past, where the paper has totals. A decision needs what a group yields for its memory now. A
total differs from that for three reasons:

- The group has been spilled: it made its results with tuples that are gone. Its counts restart at zero, since it is a
  new group of its own (state-spill 4.1).
- Other groups have been spilled, and its results came from them as well. Whenever memory is freed, all counts fade
  (FADE). Measured on two of the paper's workloads with a tenth of the memory, the global strategies then produce 4 to
  44 % more results than with totals.
- Its tuples have expired, or the data has drifted. For a query with windows, counts fade as source tuples arrive
  (HALF_LIFE). Measured on windows whose data drifts, this produces 14 to 36 % more results; where nothing drifts the
  best strategy has 2 to 5 % less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from operators.data.keys import key_hashes
from operators.data.tuples import Tuples
from operators.join.binary_join import BinaryJoin
from operators.kernels.partition import groups_of
from operators.state.match import LEFT
from operators.state.sources import Sources
from schemas.columns import I64, Mask
from schemas.errors import InvariantError

SAMPLED_RESULTS = 512
"""Results that are traced per join and slice, at most."""

FADE = 2.0
"""When a share s of the memory is freed, each count is multiplied by (1 - s) ** FADE; 0 for totals. A power makes the
effect independent of the number of spills that free the same memory."""

HALF_LIFE = 1.0 / 16.0
"""Counts halve while this share of the windows' source tuples arrives."""

GOLDEN = 0.6180339887498949
"""Multiples of it, modulo 1, are spread evenly over 0 .. 1."""

Counts = npt.NDArray[np.float64]


class Tracing(Protocol):
    """Traces results of joins to the partition groups that they went through."""

    @property
    def below(self) -> Sequence[I64]:
        """Per join, its own number and those of the joins whose results it reads, directly or not, ascending."""
        ...

    def trace(self, join: int, results: Tuples) -> I64:
        """Return (len(below[join]), n) the groups that results of a join went through (Algorithm 1)."""
        ...


class Lineage:
    """The split functions of a plan's joins; a `Tracing`.

    Args:
        joins: children before parents.
        groups: partition groups per join.

    Attributes:
        below: per join, its own number and those of the joins whose results it reads, directly or not, ascending.
    """

    def __init__(self, sources: Sources, joins: Sequence[BinaryJoin], groups: int) -> None:
        self._sources = sources
        self._groups = groups
        self._keys = [join.match.key(LEFT) for join in joins]
        covered = [frozenset(join.aliases) for join in joins]
        self.below = [
            np.array([k for k, inner in enumerate(covered[: number + 1]) if inner <= outer], np.int64)
            for number, outer in enumerate(covered)
        ]

    def trace(self, join: int, results: Tuples) -> I64:
        """Return (len(below[join]), n) the groups that results of a join went through (Algorithm 1)."""
        n = len(results)
        resolve = self._sources.resolver(results.aliases, results.rows)
        known: dict[object, I64] = {(): np.zeros(n, np.int64)}
        for number in self.below[join]:
            key = self._keys[number]
            if key not in known:
                hashes, _ = key_hashes([operand.values(resolve, n) for operand in key])
                known[key] = np.asarray(groups_of(hashes, self._groups), np.int64)
        return np.array([known[self._keys[number]] for number in self.below[join]], np.int64)


class GroupProductivity(Protocol):
    """What strategies rank the groups of a task's joins by; see `Productivity`.

    Attributes:
        local, output, inter: (joins, groups).
        heights: per join, over the sources.
    """

    @property
    def heights(self) -> Sequence[int]:
        """See above."""
        ...

    @property
    def local(self) -> Counts:
        """See above."""
        ...

    @property
    def output(self) -> Counts:
        """See above."""
        ...

    @property
    def inter(self) -> Counts:
        """See above."""
        ...

    def note(self, join: int, produced: Tuples, *, final: bool) -> None:
        """Count results that a join has just made."""
        ...

    def age(self, share: float) -> None:
        """Fade all counts after source tuples have arrived."""
        ...

    def spilled(self, joins: I64, groups: I64, share: float) -> None:
        """Reset the counts of spilled groups and fade all others."""
        ...


class Productivity:
    """The counts of a plan's joins.

    Args:
        lineage: of the joins, children before parents.
        entry_bytes: per join, what one of its results takes in the state of the join above; 0 where there is none.
        groups: per join.
        fade: see FADE.
        owned: (joins, groups) True for groups that this task owns, None for all. The counts of other groups do not
            fade: they are totals for the tasks that own them (`operators.spill.exchange`).

    Attributes:
        groups: per join.
        heights: per join, over the sources.
        local, output, inter: (joins, groups), see the module.
        owned: see above.
    """

    def __init__(
        self,
        lineage: Tracing,
        entry_bytes: Sequence[int],
        groups: int,
        *,
        fade: float = FADE,
        owned: Mask | None = None,
    ) -> None:
        self.groups = groups
        self.heights: Sequence[int] = [0] * len(entry_bytes)
        self._lineage = lineage
        self._entry_bytes = entry_bytes
        self._fade = fade
        self.owned = owned
        self._samples = 0
        shape = (len(entry_bytes), groups)
        self.local: Counts = np.zeros(shape)
        self.output: Counts = np.zeros(shape)
        self.inter: Counts = np.zeros(shape)

    @classmethod
    def of_plan(cls, sources: Sources, joins: Sequence[BinaryJoin], groups: int, **options: Any) -> Productivity:
        """The counts of a plan whose joins are all in this task.

        Args:
            joins: children before parents; the last one produces the query's results.
            groups, options: as above.
        """
        above = [_bytes_above(join, joins) for join in joins]
        found = cls(Lineage(sources, joins, groups), above, groups, **options)
        found.heights = heights_of([join.aliases for join in joins])
        return found

    def note(self, join: int, produced: Tuples, *, final: bool) -> None:
        """Count results that a join has just made, while their source tuples are stored.

        Args:
            final: they are results of the query; otherwise they are stored in a state of the join above.

        Cost: per join below, one key of SAMPLED_RESULTS tuples.
        """
        n = len(produced)
        if n == 0:
            return
        m = min(n, SAMPLED_RESULTS)
        traced = self._lineage.trace(join, produced.take(self._positions(n, m)) if m < n else produced)
        below = self._lineage.below[join]
        cells = (np.arange(len(below))[:, np.newaxis] * self.groups + traced).ravel()
        counts = np.bincount(cells, minlength=len(below) * self.groups).reshape(len(below), self.groups) * (n / m)
        self.local[join] += counts[-1]
        if final:
            self.output[below] += counts
        else:
            self.inter[below] += counts * self._entry_bytes[join]

    def age(self, share: float) -> None:
        """Fade all counts after source tuples have arrived: this share of those in the windows. Not for queries without
        windows."""
        self._keep(0.5 ** (share / HALF_LIFE))

    def spilled(self, joins: I64, groups: I64, share: float) -> None:
        """Reset the counts of spilled groups and fade all others.

        Args:
            share: the memory of the spilled groups, as a share of the memory of all groups.

        Raises:
            InvariantError: the share is not 0 .. 1.
        """
        if not 0.0 <= share <= 1.0:
            raise InvariantError(f"spilled {share} of the memory; a share is 0 .. 1")
        self._keep((1.0 - share) ** self._fade)
        for counts in (self.local, self.output, self.inter):
            counts[joins, groups] = 0.0

    def _keep(self, factor: float) -> None:
        if factor < 1.0:
            for counts in (self.local, self.output, self.inter):
                np.multiply(counts, factor, out=counts, where=True if self.owned is None else self.owned)

    def _positions(self, n: int, m: int) -> I64:
        """(m,) ascending positions below n, one in each m-th part, each as likely as any other over many calls."""
        within = (np.arange(self._samples, self._samples + m) * GOLDEN) % 1.0
        self._samples += m
        return np.minimum(((np.arange(m) + within) * (n / m)).astype(np.int64), n - 1)


def heights_of(covers: Sequence[Sequence[str]]) -> list[int]:
    """The height of each join over the sources, 0 where both inputs are sources.

    Args:
        covers: per join the aliases it covers, children before parents.
    """
    sets = [frozenset(aliases) for aliases in covers]
    heights: list[int] = []
    for number, outer in enumerate(sets):
        under = [heights[k] + 1 for k in range(number) if sets[k] < outer]
        heights.append(max(under, default=0))
    return heights


def _bytes_above(join: BinaryJoin, joins: Sequence[BinaryJoin]) -> int:
    """Bytes that one of its results takes in the state of the join above; 0 where there is none."""
    for above in joins:
        for state in above.states:
            if state.aliases == join.aliases:
                return state.entry_bytes()
    return 0
