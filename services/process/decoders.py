"""`decoder_of` chooses the decoder for the records of a stream's topic. Lanes and Spark jobs call it."""

from __future__ import annotations

from schemas.codecs.json_codec import JsonDecoder
from schemas.errors import UsageError
from schemas.query import Stream


def decoder_of(stream: Stream) -> JsonDecoder:
    """The decoder of a stream's records.

    Raises:
        UsageError: records of that format are files, not Kafka values.
    """
    if stream.format != "json":
        raise UsageError(f"stream {stream.name!r} has format {stream.format!r}; Kafka records are read as 'json'")
    return JsonDecoder(stream)
