"""Decodes records (JSON, CSV, Parquet) to batches, and encodes batches. `decoded` has the rules for values."""

from schemas.codecs.decoded import DeadLetter, Decoded
from schemas.codecs.encode import Encoded, encode_results, encode_tuples
from schemas.codecs.json_codec import JsonDecoder

__all__ = ["DeadLetter", "Decoded", "Encoded", "JsonDecoder", "encode_results", "encode_tuples"]
