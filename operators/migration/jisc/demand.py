"""What tuples that are about to probe an incomplete state ask of it: hashes of some columns of its entries.

The paper completes a state by the values of its join attribute (JISC 4). Its joins share one attribute; for others:

- The state's key lies in one of its inputs: its hashes, which the probing tuples have too.
- It has columns of both inputs (a triangle's last join): the hashes of those in one of them, which are fewer.
- There is no key, but order comparisons (theta joins): the distinct values of the first compared column that lie in
  the range that a probing tuple accepts.

All of them ask for at least the entries that can match, and every entry belongs to one hash, so that no entry is ever
computed twice. Where none applies only the whole state can be asked for.
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


class Demand(Protocol):
    """How a state's entries are asked for.

    Attributes:
        operands: the columns of the entries that are hashed; all in one of the state's inputs.
    """

    operands: Operands

    def wanted(self, probing: Prepared) -> U64:
        """The hashes of the entries that these tuples can match; may repeat."""
        ...


class ByKey:
    """By the hash of the whole key."""

    def __init__(self, operands: Operands) -> None:
        self.operands = operands

    def wanted(self, probing: Prepared) -> U64:
        """Those of the tuples."""
        return np.zeros(0, np.uint64) if probing.hashes is None else probing.hashes


class ByPart:
    """By some components of the key."""

    def __init__(self, sources: Sources, terms: list[Term], side: int) -> None:
        self.operands = tuple(term.operand(side) for term in terms)
        self._sources = sources
        self._opposite = tuple(term.operand(1 - side) for term in terms)

    def wanted(self, probing: Prepared) -> U64:
        """The same components of the tuples."""
        tuples = probing.tuples
        resolve = self._sources.resolver(tuples.aliases, tuples.rows)
        return key_hashes([operand.values(resolve, len(tuples)) for operand in self._opposite])[0]


class ByRange:
    """By the values of one column that is compared by order."""

    def __init__(self, terms: list[Term], side: int, *, floats: bool) -> None:
        """Args: `terms` of one kind as the match has them; those over the first one's operand count."""
        first = terms[0].operand(side)
        self.operands: Operands = (first,)
        self._floats = floats
        self._numbers = [n for n, term in enumerate(terms) if term.operand(side) == first]
        self._values: npt.NDArray[Any] = np.zeros(0, np.int64)
        self._hashes: U64 = np.zeros(0, np.uint64)

    def know(self, values: Column) -> None:
        """Take the values of the operand that there are among the tuples that entries can be made of."""
        _, first = np.unique(values.values, return_index=True)
        distinct = Column(values.type, values.values[first], None if values.valid is None else values.valid[first])
        self._values, self._hashes = distinct.values, key_hashes([distinct])[0]

    def wanted(self, probing: Prepared) -> U64:
        """Those of the values within some tuple's range."""
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


def demand_of(match: Match, side: int, node: Join) -> Demand | None:
    """How what probes a side of a match can ask for the entries of `node` there; None for all or nothing."""
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
