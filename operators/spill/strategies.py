"""Chooses the partition groups to spill: four strategies behind one interface (state-spill 3).

A strategy orders the candidates, groups of all joins alike; `choose` takes the first of them until the wanted bytes are
freed. The paper's four:

- `bottom-up` (3.1.1): joins nearest the sources first, their groups in random order.
- `local-output` (3.2.1): the least P_output / P_size, P_output counting the join's own results.
- `global-output` (3.2.2): the same, P_output counting the query's results that went through the group.
- `global-output-penalty` (3.2.3): P_output / (P_size + P_inter): the intermediate results that the group adds to joins
  above are part of its cost.

An order depends only on the candidates, not on the sequence in which they are given: equal candidates go largest first,
then by join and group. Random order is by a hash of spill number, join and group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from operators.kernels.hashing import F64, U64, combine_words, mix_words
from operators.spill.productivity import Counts, GroupProductivity
from schemas.columns import I64
from schemas.errors import InvariantError, UsageError

DEFAULT_STRATEGY = "global-output-penalty"


@dataclass(frozen=True, slots=True, eq=False)
class SpillCandidates:
    """`n` partition groups that could be spilled.

    Attributes:
        joins, groups: (n,) the join and the group of each candidate; joins as in the plan, children before parents.
        heights: (n,) of their joins over the sources: 0 where both inputs are sources.
        size_bytes: (n,) what spilling frees, > 0: P_size.
        local, output, inter_bytes: (n,) see `operators.spill.productivity`.
        spill_number: the number of spills before this one, so that each has a random order of its own.
    """

    joins: I64
    groups: I64
    heights: I64
    size_bytes: I64
    local: F64
    output: F64
    inter_bytes: F64
    spill_number: int = 0

    def __post_init__(self) -> None:
        if len(self.size_bytes) and int(self.size_bytes.min()) <= 0:
            raise InvariantError(f"a candidate of {int(self.size_bytes.min())} bytes; spilling it frees nothing")

    def __len__(self) -> int:
        return len(self.joins)

    @staticmethod
    def of(
        productivity: GroupProductivity, size_bytes: I64, heights: Sequence[int], *, spill_number: int = 0
    ) -> SpillCandidates:
        """All groups that contain anything.

        Args:
            size_bytes: (joins, groups) int64.
            heights: per join.
            spill_number: the number of spills before this one.
        """
        joins, groups = np.nonzero(size_bytes > 0)

        def at(counts: Counts) -> F64:
            return counts[joins, groups]

        return SpillCandidates(
            joins.astype(np.int64),
            groups.astype(np.int64),
            np.asarray(heights, np.int64)[joins],
            size_bytes[joins, groups],
            at(productivity.local),
            at(productivity.output),
            at(productivity.inter),
            spill_number=spill_number,
        )


Score = Callable[[SpillCandidates], F64]
"""Returns (n,) by what a strategy ranks the candidates; the lowest are spilled first."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """An order of candidates.

    Attributes:
        score: the candidates with the lowest are spilled first.
        random: whether candidates of equal score are in random order; else the largest are first.
    """

    score: Score
    random: bool = False

    def __call__(self, candidates: SpillCandidates) -> I64:
        """Return (n,) the candidates' positions, those to be spilled rather than others first."""
        keys: list[I64 | F64 | U64] = [candidates.groups, candidates.joins, -candidates.size_bytes]
        if self.random:
            keys.append(_random_words(candidates))
        return np.lexsort((*keys, self.score(candidates))).astype(np.int64)


def height(candidates: SpillCandidates) -> F64:
    """Return the height of each candidate's join."""
    return candidates.heights.astype(np.float64)


def local_productivity(candidates: SpillCandidates) -> F64:
    """Return how productive each candidate is for its own join."""
    return candidates.local / candidates.size_bytes


def global_productivity(candidates: SpillCandidates) -> F64:
    """Return how productive each candidate is for the query."""
    return candidates.output / candidates.size_bytes


def penalised_productivity(candidates: SpillCandidates) -> F64:
    """Return how productive each candidate is for the query, relative to all memory that it causes."""
    return candidates.output / (candidates.size_bytes + candidates.inter_bytes)


STRATEGIES: dict[str, Strategy] = {
    "bottom-up": Strategy(height, random=True),
    "local-output": Strategy(local_productivity),
    "global-output": Strategy(global_productivity),
    "global-output-penalty": Strategy(penalised_productivity),
}


def strategy_of(name: str) -> Strategy:
    """The strategy called `name`.

    Raises:
        UsageError: there is none.
    """
    if name not in STRATEGIES:
        raise UsageError(f"no spill strategy {name!r}; there are {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def choose(strategy: Strategy, candidates: SpillCandidates, wanted_bytes: int) -> I64:
    """(m,) positions of the candidates to spill, in order: the shortest prefix of the strategy's order that frees the
    wanted bytes, or all candidates if they are not enough."""
    if wanted_bytes <= 0:
        return np.zeros(0, np.int64)
    order = strategy(candidates)
    freed = np.cumsum(candidates.size_bytes[order])
    return order[: int(np.searchsorted(freed, wanted_bytes, side="left")) + 1]


def _random_words(candidates: SpillCandidates) -> U64:
    words: U64 = mix_words(np.zeros(len(candidates), np.uint64))
    for word in (np.full(len(candidates), candidates.spill_number), candidates.joins, candidates.groups):
        words = combine_words(words, word.astype(np.uint64))
    return words
