"""Lays out the predicate lists of one type over one pair of inputs for one kernel (`kernels.juggler_lists`).

`operators.juggler.routing.stages` runs them. Lists that remove the most queries come first. Runs count the queries that
each list removes; the counts decay, so the order follows the data (thesis, 3.2.1: the most selective predicate first).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.juggler.predicates.fields import Fields
from operators.juggler.predicates.lists import ListTable, PredicateList
from operators.kernels.hashing import U64
from operators.kernels.juggler_lists import through
from schemas.columns import I64
from schemas.query import ColumnRef

REARRANGED_PAIRS = 4_096
"""Pairs after which the lists are ordered again."""


@dataclass(frozen=True, slots=True, eq=False)
class PairSide:
    """The rows of one input that form pairs with another input's.

    Attributes:
        rows: (m,) row ids.
        fields: the fields of their input.
    """

    rows: I64
    fields: Fields


@dataclass(frozen=True, slots=True, eq=False)
class PairsLeft:
    """The pairs of n that some query can still use after compiled lists.

    Attributes:
        at: (k,) their positions, ascending.
        alive: (k, words) their queries.
        entered: how many of the n pairs some query wanted before.
        comparisons: predicates evaluated.
        bit_operations: words examined.
    """

    at: I64
    alive: U64
    entered: int
    comparisons: int
    bit_operations: int


class CompiledLists:
    """Lists of one type over inputs a and b; with no list, a run only selects the pairs that some query wants.

    Args:
        lists: the lists with their arrays.
        a: the alias of input a.
        fields: the fields of a and of b.

    Attributes:
        lists: the lists.
    """

    def __init__(self, lists: Sequence[tuple[PredicateList, ListTable]], a: str, fields: tuple[Fields, Fields]) -> None:
        self.lists = tuple(one for one, _ in lists)
        heads: list[tuple[int, ...]] = []
        words_at, words, asking = [0], [], []
        blocks: list[tuple[int, int, int]] = []
        before: list[npt.NDArray[Any]] = []
        after: list[npt.NDArray[Any]] = []
        covers = entries = 0
        for one, table in lists:
            form = one.form
            assert form is not None
            assert isinstance(form.x, ColumnRef)
            x, y = (_field(column, form.whole, a, fields) for column in (form.x, form.y))
            first = len(blocks)
            some = np.flatnonzero(np.bitwise_or.reduce(table.asking, axis=0))
            for k in range(len(table.factors)):
                begin, end = int(table.blocks[k]), int(table.blocks[k + 1])
                blocks.append((entries + begin, entries + end, covers))
                for cover, found in ((before, table.before), (after, table.after)):
                    cover.append(found[begin + k : end + k + 1][:, some].ravel())
                covers += len(before[-1])
            heads.append((table.op, int(form.whole), *x, *y, first, len(blocks)))
            words += some.tolist()
            words_at.append(len(words))
            asking += [np.bitwise_or.reduce(table.asking, axis=0)[w] for w in some]
            entries += len(table.addends)
        tables = [table for _, table in lists]
        self._tables = (
            np.array(heads, np.int64).reshape(len(heads), 8),
            np.array(words_at, np.int64),
            np.array(words, np.int64),
            np.array(asking, np.uint64),
            np.array(blocks, np.int64).reshape(len(blocks), 3),
            *_as_ints_and_floats([np.stack([t.divisors, t.factors], axis=1) for t in tables], (0, 2)),
            *_as_ints_and_floats([t.addends for t in tables], (0,)),
            np.concatenate([np.zeros(0, np.uint64), *before]),
            np.concatenate([np.zeros(0, np.uint64), *after]),
        )
        self._tried, self._dropped = (np.zeros(len(lists), np.int64) for _ in range(2))
        self._order = np.argsort([-len(one.queries()) for one in self.lists], kind="stable").astype(np.int64)
        self._pairs_since = 0

    def run(
        self, probe: I64, a: PairSide, b: PairSide, alive_a: U64, alive_b: U64 | None, mask: U64
    ) -> PairsLeft:
        """Evaluate the lists on pairs of `a.rows[probe]` and `b.rows`.

        Args:
            probe: (n,) positions in the rows of a.
            a, b: the rows; those of b are (n,).
            alive_a: (m, words) the queries that a's rows may still satisfy.
            alive_b: (capacity, words) those of b's rows, by row; or None.
            mask: (words,) the queries to consider.
        """
        n, wide = len(b.rows), alive_a.shape[1]
        at, alive = np.empty(n, np.int64), np.empty((n, wide), np.uint64)
        count, entered, compared, touched = through(
            probe, a.rows, b.rows, alive_a, alive_a if alive_b is None else alive_b, alive_b is not None, mask,
            a.fields.ints, a.fields.floats, a.fields.nulls, b.fields.ints, b.fields.floats, b.fields.nulls,
            self._order, *self._tables, self._tried, self._dropped, at, alive,
        )  # fmt: skip
        self._pairs_since += entered
        if self._pairs_since >= REARRANGED_PAIRS:
            self._rearrange()
        return PairsLeft(at[:count].copy(), alive[:count].copy(), entered, compared, touched)

    def _rearrange(self) -> None:
        self._order = np.argsort(-(self._dropped + 1) / (self._tried + 1), kind="stable").astype(np.int64)
        self._tried >>= 1
        self._dropped >>= 1
        self._pairs_since = 0


@dataclass(frozen=True, slots=True, eq=False)
class ListPlan:
    """How to evaluate the lists of one type.

    Attributes:
        compiled: compiled lists, each with the position of its input a; b is the last input.
        uncompiled: lists that cannot be compiled; they are evaluated afterwards, one by one.
        lists: all lists.
    """

    compiled: tuple[tuple[int, CompiledLists], ...]
    uncompiled: tuple[PredicateList, ...]
    lists: tuple[PredicateList, ...]


def compilable(one: PredicateList, fields: dict[str, Fields]) -> bool:
    """Whether the list can be compiled: it has a form over columns for which there are fields."""
    form = one.form
    if form is None or not isinstance(form.x, ColumnRef) or len(one.inputs) > 2:
        return False
    columns = [form.x] if form.y is None else [form.x, form.y]
    return all(fields[column.alias].slot(column, form.whole) is not None for column in columns)


def _field(column: ColumnRef | None, whole: bool, a: str, fields: tuple[Fields, Fields]) -> tuple[int, int]:
    if column is None:
        return -1, 0
    of_b = column.alias != a
    slot = fields[of_b].slot(column, whole)
    assert slot is not None
    return slot, int(of_b)


def _as_ints_and_floats(
    parts: Sequence[npt.NDArray[Any]], empty: tuple[int, ...]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Arrays concatenated as int64 and as float64; the kernel reads the type of each list."""
    ints = [part if part.dtype == np.int64 else np.zeros(part.shape, np.int64) for part in parts]
    reals = [part.astype(np.float64) for part in parts]
    return (
        np.concatenate([np.zeros(empty, np.int64), *ints]),
        np.concatenate([np.zeros(empty, np.float64), *reals]),
    )
