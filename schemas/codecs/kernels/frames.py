"""Copies records behind a frame."""

from __future__ import annotations

from schemas.columns import I64, U8
from schemas.compiled import compiled


@compiled
def add_frames(data: U8, offsets: I64, head: U8, out: U8) -> None:
    """Write each record with some bytes before it.

    Args:
        data: (bytes,) the records.
        offsets: (n + 1,) record i is data[offsets[i]:offsets[i + 1]].
        head: (h,) what comes before each.
        out: (bytes + n * h,)
    """
    p = 0
    for row in range(len(offsets) - 1):
        for k in range(len(head)):
            out[p] = head[k]
            p += 1
        for k in range(offsets[row], offsets[row + 1]):
            out[p] = data[k]
            p += 1
