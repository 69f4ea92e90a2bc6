"""The messages of the log of repeats: which tuples of its input a task has dropped as repeats.

A position is a tuple's partition and offset as one number (`operators.data.positions`). They are written as zlib's
compression of the differences of ascending positions, int64 little endian: one or two bytes per repeat.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import msgspec
import numpy as np

from schemas.columns import I64
from schemas.errors import StateError
from schemas.messages.formats import check_format

REPEATS_VERSION = 1


class RepeatsRecord(msgspec.Struct, frozen=True):
    """A message of the log.

    Attributes:
        repeats: by stream the compressed positions.
        writer: the incarnation that wrote it without a transaction; empty if it was written in one.
    """

    v: int
    repeats: dict[str, bytes]
    writer: str = ""

    def positions(self, place: str) -> dict[str, I64]:
        """The ascending positions of repeats, by stream.

        Raises:
            StateError: they are damaged.
        """
        try:
            return {
                stream: np.cumsum(np.frombuffer(zlib.decompress(raw), "<i8")).astype(np.int64)
                for stream, raw in self.repeats.items()
            }
        except (zlib.error, ValueError) as error:
            raise StateError(f"{place} has damaged positions of repeats: {error}") from None


class _Head(msgspec.Struct, frozen=True):
    v: int


_ENCODER = msgspec.json.Encoder()
_HEAD = msgspec.json.Decoder(_Head)
_DECODER = msgspec.json.Decoder(RepeatsRecord)


def encode_repeats(positions: Mapping[str, I64], writer: str = "") -> bytes:
    """Encode ascending positions, by stream, as a message; see `RepeatsRecord`."""
    packed = {
        stream: zlib.compress(np.diff(found, prepend=0).astype("<i8").tobytes()) for stream, found in positions.items()
    }
    return _ENCODER.encode(RepeatsRecord(REPEATS_VERSION, packed, writer))


def decode_repeats(raw: bytes, place: str) -> RepeatsRecord:
    """Decode a message.

    Args:
        place: where it was read, for errors.

    Raises:
        StateError: Weir has not written it, or it is damaged.
        NewerFormatError: a newer Weir has written it.
    """
    try:
        check_format(_HEAD.decode(raw).v, REPEATS_VERSION, f"log of repeats {place}")
        return _DECODER.decode(raw)
    except msgspec.DecodeError as error:
        raise StateError(f"{place} holds {raw[:80]!r}, which is no log of repeats: {error}") from None
