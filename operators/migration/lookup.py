"""Finding old tuples by the hash of some of their columns, where no state is indexed by those."""

from __future__ import annotations

import numpy as np

from operators.kernels.hashing import U64
from operators.plan import Join, Plan
from operators.predicates import Operand
from operators.tuples import Tuples
from schemas.columns import I64, Mask
from schemas.query import aliases_of

Operands = tuple[Operand, ...]


class Index:
    """Tuples by key hash."""

    def __init__(self, tuples: Tuples, hashes: U64) -> None:
        order = np.argsort(hashes, kind="stable")
        self._tuples = tuples
        self._order = order
        self._hashes = hashes[order]
        self.keys: U64 = np.unique(hashes)

    def take(self, wanted: U64) -> Tuples:
        """The tuples of some keys, ascending by ts; `wanted` has no doubles."""
        begin = np.searchsorted(self._hashes, wanted, side="left")
        stop = np.searchsorted(self._hashes, wanted, side="right")
        counts = stop - begin
        total = int(counts.sum())
        if total == 0:
            return self._tuples.take(np.zeros(0, np.int64))
        first = np.repeat(begin - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        places: I64 = self._order[first + np.arange(total)]
        return self._tuples.take(np.sort(places))


def input_of(node: Join, operands: Operands) -> Plan | None:
    """The input of a join that has all the columns of `operands`; None when neither has."""
    for child in (node.left, node.right):
        if all(aliases_of(operand.expr) <= frozenset(child.aliases) for operand in operands):
            return child
    return None


def member(hashes: U64, wanted: U64) -> Mask:
    """(n,) True where a hash is one of `wanted`, which are sorted."""
    if len(wanted) == 0:
        return np.zeros(len(hashes), np.bool_)
    places = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
    return np.asarray(wanted[places] == hashes)
