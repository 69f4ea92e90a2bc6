"""Takes whole records, Kafka's values, as the one STRING column of a stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from schemas.codecs.decoded import Decoded, RecordError, Value, empty_batch, shown
from schemas.codecs.kernels.scan import DECODED
from schemas.codecs.slots import SlotLayout, Slots, check_size
from schemas.columns import I64
from schemas.query import Stream


class StringDecoder:
    """Decodes the records of a stream with one column, a STRING. Keeps no state between calls.

    A tombstone, and bytes that are not UTF-8, are dead letters. An empty value is the empty string.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._layout = SlotLayout(stream)

    def decode_values(self, values: Sequence[bytes | None], record_ts: I64 | None = None) -> Decoded:
        """Decode one record per value.

        Args:
            record_ts: (values,) the Kafka records' timestamps, which are the event times.
        """
        if not values:
            return Decoded(empty_batch(self.stream), np.zeros(0, np.int64), [], 0)
        texts = [value or b"" for value in values]
        starts = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=starts[1:])
        block = b"".join(texts)
        check_size(block)
        slots = Slots(self._layout, np.frombuffer(block, np.uint8), len(texts))
        if None not in values and _are_utf8(starts, block):
            slots.words[0] = starts[:-1] << 32 | np.diff(starts) << 1  # as `scan.pack_span` does
            slots.valid[0] = True
            slots.status[:] = DECODED

        def rules(row: int) -> list[Value]:
            raw = values[row]
            if raw is None:
                raise RecordError("the record is empty, expected a string")
            try:
                return [raw.decode()]
            except UnicodeDecodeError as error:
                place = f"{error.reason} at byte {error.start + 1}"
                raise RecordError(f"the record {shown(raw)} is not UTF-8 ({place})") from None

        decoded = slots.finish(rules, lambda row: texts[row], record_ts, blank_is_dead=True)
        return Decoded(decoded.batch, decoded.rows, decoded.dead, decoded.records)


def _are_utf8(starts: I64, block: bytes) -> bool:
    """Whether each of some texts, one after the other, is valid UTF-8."""
    texts = pa.LargeStringArray.from_buffers(len(starts) - 1, pa.py_buffer(starts), pa.py_buffer(block))
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
