"""Decodes records in Avro or Protobuf of an unnested stream: a tuple for each element of the arrays in them.

The decoder of the format finds the elements while it decodes the records, and decodes them, each by the schema that its
record was written with (`schemas.codecs.schema_decoder`).
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.codecs.decoded import Decoded
from schemas.codecs.schema_decoder import SchemaDecoder
from schemas.columns import I64
from schemas.nested.elements import multiplied


class UnnestingSchemaDecoder:
    """Decodes the records of one unnested stream. Safe to call from several threads.

    Args:
        decoder: of the stream.
    """

    def __init__(self, decoder: SchemaDecoder) -> None:
        self._decoder = decoder

    def decode_values(self, values: Sequence[bytes | None], record_ts: I64 | None = None) -> Decoded:
        """Decode one record per value; see `SchemaDecoder.decode_values`."""
        found, arrays = self._decoder.decode_elements(values, record_ts)
        return multiplied(self._decoder.stream, found, arrays, lambda row: values[row] or b"")


def unnesting(decoder: SchemaDecoder) -> SchemaDecoder | UnnestingSchemaDecoder:
    """The decoder of a stream, which multiplies its tuples if it is unnested."""
    return UnnestingSchemaDecoder(decoder) if decoder.stream.unnested else decoder
