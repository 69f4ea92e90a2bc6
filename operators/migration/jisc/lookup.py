"""Helpers of `operators.migration.jisc.completion` that find old tuples by the hash of some of their columns."""

from __future__ import annotations

import numpy as np

from operators.kernels.hashing import U64
from operators.plan.plan import Join, Plan
from operators.plan.predicates import Operand
from schemas.columns import Mask
from schemas.query import aliases_of

Operands = tuple[Operand, ...]


def input_of(node: Join, operands: Operands) -> Plan | None:
    """Return the input of a join that has all the columns of `operands`; None if neither has."""
    for child in (node.left, node.right):
        if all(aliases_of(operand.expr) <= frozenset(child.aliases) for operand in operands):
            return child
    return None


def member(hashes: U64, wanted: U64) -> Mask:
    """Return (n,) True where a hash is one of `wanted`, which are sorted."""
    if len(wanted) == 0:
        return np.zeros(len(hashes), np.bool_)
    indexes = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
    return np.asarray(wanted[indexes] == hashes)
