"""Finds the tuples of other inputs that can match those of a block: semi-joins along the equalities of queries.

A combination satisfies every predicate of its query. So a tuple of an input can only be in one if it is equal to a
tuple of the inputs before it, in each equality between them. `operators.groups.cleanup` calls `reduced`. From one block
on, the inputs are processed along equalities, block by block. That costs the sum of the inputs' tuples, while joining
every choice of blocks costs their product. Few tuples are left where keys tell tuples apart; an operator joins them.

Limits: an input to which no equality leads is left whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from operators.data.evaluate import Resolve
from operators.data.keys import key_hashes
from operators.kernels.hashing import U64
from operators.plan.predicates import Operand, join_condition
from schemas.columns import I64, Batch, Column, Mask
from schemas.groups import Member, QueryGroup
from schemas.query import ColumnRef, Type, aliases_of

Equality = Mapping[str, Operand]
"""By input, the operands that must be equal."""

Read = Callable[[str], Iterator[tuple[I64, Batch]]]
"""Returns an input's tuples block by block, with their row numbers, ascending."""


def equalities(group: QueryGroup) -> list[tuple[Equality, ...]]:
    """The equalities in the queries of a group: one tuple per query; queries with the same equalities share one."""
    found: list[tuple[Equality, ...]] = []
    for member in group.members:
        asked = _asked(member)
        if asked not in found:
            found.append(asked)
    return found


def _asked(member: Member) -> tuple[Equality, ...]:
    return tuple(
        {one: key.left, other: key.right}
        for predicate in member.over_inputs.predicates
        for one, other in combinations(member.inputs, 2)
        if aliases_of(predicate) == {one, other}
        for key in join_condition([predicate], [one], [other]).keys
    )


def reduced(asked: Sequence[tuple[Equality, ...]], first: str, inputs: Sequence[str], read: Read) -> dict[str, I64]:
    """The rows of tuples that can match those of an input for some query.

    Args:
        asked: per query; see `equalities`.
        first: the input all of whose tuples count.

    Returns:
        By input the row numbers, ascending, empty where there are none; absent for inputs that are left whole.
    """
    every = [_along(one, first, inputs, read) for one in asked]
    found: dict[str, I64] = {}
    for name in inputs:
        if name != first and all(name in one for one in every):
            found[name] = np.unique(np.concatenate([one[name] for one in every]))
    return found


def _along(asked: Sequence[Equality], first: str, inputs: Sequence[str], read: Read) -> dict[str, I64]:
    """`reduced` for one query."""
    known: dict[str, list[U64]] = {}
    found: dict[str, I64] = {}
    name: str | None = first
    while name is not None:
        found[name], known[name] = _reduce(asked, name, known, read)
        if not len(found[name]):
            # Nothing matches.
            return {one: np.zeros(0, np.int64) for one in inputs}
        met = {other for one in asked if one.keys() & known.keys() for other in one}
        name = next((other for other in inputs if other in met and other not in known), None)
    del found[first]
    return found


def _reduce(
    asked: Sequence[Equality], name: str, known: Mapping[str, Sequence[U64]], read: Read
) -> tuple[I64, list[U64]]:
    """An input's rows that match what is known of others; per equality their hashes, ascending and each once."""
    rows: list[I64] = [np.zeros(0, np.int64)]
    hashes: list[list[U64]] = [[np.zeros(0, np.uint64)] for _ in asked]
    for numbers, batch in read(name):
        kept: Mask = np.ones(len(batch), np.bool_)
        own: dict[int, U64] = {}
        for n, one in enumerate(asked):
            if name in one:
                own[n], valid = key_hashes([one[name].values(_resolver(batch), len(batch))])
                kept = kept if valid is None else kept & valid
                others = [known[other][n] for other in one if other in known]
                for other in others:
                    kept = kept & _among(own[n], other)
        rows.append(numbers[kept])
        for n, values in own.items():
            hashes[n].append(values[kept])
    return np.concatenate(rows), [np.unique(np.concatenate(of)) for of in hashes]


def _among(values: U64, others: U64) -> Mask:
    """(n,) whether values are among others, which ascend."""
    if not len(others):
        return np.zeros(len(values), np.bool_)
    at = np.minimum(np.searchsorted(others, values), len(others) - 1)
    return np.asarray(others[at] == values, np.bool_)


def _resolver(batch: Batch) -> Resolve:
    def resolve(column: ColumnRef) -> Column:
        return Column(Type.TIMESTAMP, batch.ts) if column.name == "_ts" else batch.columns[column.name]

    return resolve
