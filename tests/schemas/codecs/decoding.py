"""Brings a decoder's output into a form that tests can compare."""

from __future__ import annotations

import struct

from schemas.codecs.decoded import Decoded


def bits(value: object) -> object:
    """Doubles by their bits, so that 0.0 and -0.0 differ."""
    return struct.pack("<d", value) if isinstance(value, float) else value


def tuples(decoded: Decoded) -> list[list[object]]:
    """The values of each tuple, by their bits."""
    columns = [c.to_values() for c in decoded.batch.columns.values()]
    return [[bits(v) for v in row] for row in zip(*columns, strict=True)]
