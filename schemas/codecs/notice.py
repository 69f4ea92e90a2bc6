"""Encodes notices: a producer announces in band, between the blocks of a channel, which tuples it suppresses.

    magic "WN" | format (1) | flags (1) | fields' digest (4) | channel (4) | number (8)
    | suspended (4) | resumed (4) | rows (4), then both lists' signatures (8 each), then rows as in a block

Little endian. A notice covers everything that its channel wrote before it. Tuples with a suspended signature are all
void, those written before the notice too. All tuples with a resumed signature are sent again, those from before too, as
rows of this notice or of the notices before it. A `whole` notice lists all suspended signatures. A channel's notices
are numbered, so a reader recognizes a repeated notice by its number. The flags are 1 for `whole`, 2 for `rewrites` and
4 for `complete`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schemas.codecs.exchange import decode_rows, digest, encode_rows
from schemas.columns import Batch
from schemas.errors import StateError
from schemas.messages.formats import check_format
from schemas.query import Field

_HEAD = struct.Struct("<2sBBIIqIII")
_MAGIC = b"WN"
_FORMAT = 1
_VERSIONED = 3
"""Length of magic and format, with which every version begins."""

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class Notice:
    """A notice read back, or to be written.

    Attributes:
        channel: which task of the producing operator wrote it.
        number: its number among the channel's notices, from 1.
        whole: whether `suspended` lists all suspended signatures, not only those suspended from here on.
        suspended, resumed: signatures, each once.
        late: tuples that are sent after their time.
        rewrites: whether the suspended signatures are resumed by this notice or one of the next.
        complete: whether nothing is on demand any more (`operators.distributed.feedback.on_demand`).
    """

    channel: int
    number: int
    whole: bool
    suspended: Words
    resumed: Words
    late: Batch
    rewrites: bool = False
    complete: bool = False


def is_notice(raw: bytes) -> bool:
    """True for a record that begins like a notice."""
    return raw[:2] == _MAGIC


def encode_notice(fields: Sequence[Field], notice: Notice) -> bytes:
    """Encode a notice for readers of blocks of these columns."""
    head = _HEAD.pack(
        _MAGIC,
        _FORMAT,
        notice.whole | notice.rewrites << 1 | notice.complete << 2,
        digest(fields),
        notice.channel,
        notice.number,
        len(notice.suspended),
        len(notice.resumed),
        len(notice.late),
    )
    lists = np.concatenate([notice.suspended, notice.resumed]).astype("<u8").tobytes()
    return head + lists + encode_rows(fields, notice.late)


def decode_notice(fields: Sequence[Field], raw: bytes, place: str) -> Notice:
    """Read a notice. `place` names its record, for errors.

    Raises:
        StateError: it is not a notice, is cut short, or is for readers of other columns.
        NewerFormatError: a newer Weir has written it.
    """
    if len(raw) < _VERSIONED or not is_notice(raw):
        raise StateError(f"record {place} is no notice of feedback: does another program write there?")
    check_format(raw[_VERSIONED - 1], _FORMAT, f"notice {place}")
    if len(raw) < _HEAD.size:
        raise StateError(f"notice {place} is cut short at {len(raw)} bytes")
    _, _, flags, shape, channel, number, suspended, resumed, rows = _HEAD.unpack_from(raw)
    if shape != digest(fields):
        raise StateError(
            f"notice {place} has columns {shape:08x}, this operator reads columns {digest(fields):08x}: another query "
            "or plan has written it; use a new group (--group)"
        )
    at = _HEAD.size + 8 * (suspended + resumed)
    if len(raw) < at:
        raise StateError(f"notice {place} is cut short at {len(raw)} bytes")
    words = np.frombuffer(raw, "<u8", suspended + resumed, _HEAD.size).astype(np.uint64)
    late = decode_rows(fields, raw, at, rows, place)
    whole, rewrites, complete = (bool(flags & bit) for bit in (1, 2, 4))
    return Notice(channel, number, whole, words[:suspended], words[suspended:], late, rewrites, complete)
