"""Determines which entries of an incomplete state probing tuples need, as hashes of some columns of its entries.

`demand_of` is the entry; `operators.migration.jisc.completion` calls it. The paper completes a state by the values of
its join attribute (JISC 4). Its joins share one attribute. For other joins:

- The state's key lies in one of its inputs: the key's hashes, which the probing tuples have too.
- The key has columns of both inputs (a triangle's last join): the hashes of the columns in one of them, which are
  fewer.
- There is no key, but there are order comparisons (theta joins): the distinct values of the first compared column that
  lie in the range that a probing tuple accepts.

Each of these requests at least the entries that can match, and every entry belongs to one hash, so no entry is ever
computed twice. Where none applies, only the whole state can be requested.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from operators.data.keys import key_hashes
from operators.kernels.hashing import U64
from operators.migration.jisc.lookup import Operands, input_of
from operators.plan.plan import Join
from operators.plan.predicates import Term
from operators.state.match import Match, Prepared
from operators.state.sources import Sources
from schemas.columns import Column
from schemas.query import aliases_of


class KeyDemand(Protocol):
    """How a state's entries are requested.

    Attributes:
        operands: The columns of the entries that are hashed; all in one of the state's inputs.
    """

    operands: Operands

    def wanted(self, probing: Prepared) -> U64:
        """Return the hashes of the entries that these tuples can match; they may repeat."""
        ...


class ByKey:
    """Requests entries by the hash of the whole key."""

    def __init__(self, operands: Operands) -> None:
        self.operands = operands

    def wanted(self, probing: Prepared) -> U64:
        """Return the tuples' hashes."""
        return np.zeros(0, np.uint64) if probing.hashes is None else probing.hashes


class ByPart:
    """Requests entries by some components of the key."""

    def __init__(self, sources: Sources, terms: list[Term], side: int) -> None:
        self.operands = tuple(term.operand(side) for term in terms)
        self._sources = sources
        self._opposite = tuple(term.operand(1 - side) for term in terms)

    def wanted(self, probing: Prepared) -> U64:
        """Return the hashes of the same components of the tuples."""
        tuples = probing.tuples
        resolve = self._sources.resolver(tuples.aliases, tuples.rows)
        return key_hashes([operand.values(resolve, len(tuples)) for operand in self._opposite])[0]


class ByRange:
    """Requests entries by the values of one column that is compared by order."""

    def __init__(self, terms: list[Term], side: int, *, floats: bool) -> None:
        """Args: `terms` are of one kind, in the match's order; only those over the first one's operand count."""
        first = terms[0].operand(side)
        self.operands: Operands = (first,)
        self._floats = floats
        self._numbers = [n for n, term in enumerate(terms) if term.operand(side) == first]
        self._values: npt.NDArray[Any] = np.zeros(0, np.int64)
        self._hashes: U64 = np.zeros(0, np.uint64)

    def know(self, values: Column) -> None:
        """Set the operand's values among the tuples that entries can be made of."""
        _, first = np.unique(values.values, return_index=True)
        distinct = Column(values.type, values.values[first], None if values.valid is None else values.valid[first])
        self._values, self._hashes = distinct.values, key_hashes([distinct])[0]

    def wanted(self, probing: Prepared) -> U64:
        """Return the hashes of the values within some tuple's range."""
        terms = probing.terms
        ops, given = (terms.float_ops, terms.floats) if self._floats else (terms.int_ops, terms.ints)
        begin = np.zeros(len(probing), np.int64)
        stop = np.full(len(probing), len(self._values))
        for number in self._numbers:
            left = np.searchsorted(self._values, given[number], side="left")
            right = np.searchsorted(self._values, given[number], side="right")
            match int(ops[number]):
                case 0:  # the tuple's is smaller
                    begin = np.maximum(begin, right)
                case 1:
                    begin = np.maximum(begin, left)
                case 2:
                    stop = np.minimum(stop, left)
                case 3:
                    stop = np.minimum(stop, right)
                case _:
                    begin, stop = np.maximum(begin, left), np.minimum(stop, right)
        some = begin < stop
        edges = np.zeros(len(self._values) + 1, np.int64)
        np.add.at(edges, begin[some], 1)
        np.add.at(edges, stop[some], -1)
        return self._hashes[np.cumsum(edges[:-1]) > 0]


def demand_of(match: Match, side: int, node: Join) -> KeyDemand | None:
    """Return how tuples that probe a side of a match can request the entries of `node` there; None if only as a
    whole."""
    condition = match.condition
    if condition.keys:
        whole = match.key(side)
        if input_of(node, whole) is not None:
            return ByKey(whole)
        inside = [
            [term for term in condition.keys if aliases_of(term.operand(side).expr) <= frozenset(child.aliases)]
            for child in (node.left, node.right)
        ]
        most = max(inside, key=len)
        return ByPart(match.sources, most, side) if most else None
    for terms, floats in ((condition.int_terms, False), (condition.float_terms, True)):
        if terms and len(aliases_of(terms[0].operand(side).expr)) == 1:
            return ByRange(list(terms), side, floats=floats)
    return None
