"""Positions of records in their streams' logs, as one number each. Distributed operators and the intake use them.

All tuples of a record whose arrays are unnested have its position. So whatever goes by positions treats them alike.
"""

from __future__ import annotations

import numpy as np

from schemas.columns import I64, Column
from schemas.query import Type

_POSITION_BITS = 44
"""The bits of a position that hold the offset; the partition is above them."""


def positions(partition: int, offsets: I64) -> Column:
    """Return tuples' positions in their stream's log, as one number each that ascends by (partition, offset)."""
    return Column(Type.BIGINT, offsets + (np.int64(partition) << np.int64(_POSITION_BITS)))


def partition_and_offset(found: I64) -> tuple[I64, I64]:
    """Return the partitions and the offsets of positions."""
    return found >> np.int64(_POSITION_BITS), found & np.int64((1 << _POSITION_BITS) - 1)
