"""`Decoders` makes the decoders for the records of streams' topics. Lanes and Spark jobs call it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from schemas.avro.decoder import AvroDecoder
from schemas.avro.rules import Wanted, misfits
from schemas.avro.schema import Avro
from schemas.codecs.csv_codec import CsvDecoder
from schemas.codecs.decoded import Decoded
from schemas.codecs.json_codec import JsonDecoder
from schemas.codecs.string_codec import StringDecoder
from schemas.columns import I64
from schemas.errors import DataError, UsageError
from schemas.query import Query, Stream
from services.formats.registry_access import RegistryAccess
from services.formats.schema_files import read_schema
from services.formats.schema_registry import PATIENCE_S, SchemaRegistry
from services.process.logs import get_log

LOG = get_log("schemas")


class Decoder(Protocol):
    """Decodes the records of one stream."""

    def decode_values(self, values: Sequence[bytes | None], record_ts: I64 | None = None) -> Decoded:
        """Decode one record per value.

        Args:
            record_ts: (values,) the Kafka records' timestamps, used when the stream has no timestamp field.

        Raises:
            SchemaUnavailable: a record's schema is not known yet.
        """


_PLAIN: Mapping[str, Callable[[Stream], Decoder]] = {"json": JsonDecoder, "csv": CsvDecoder, "string": StringDecoder}
"""The decoders that need nothing but the stream."""


@dataclass(slots=True)
class Decoders:
    """Makes decoders.

    Attributes:
        files: the schemas of streams that name a file, by that name.
        access: how to reach the registry of the streams that name none.
        patience_s: how long a decoder waits for a registry.
    """

    files: Mapping[str, Avro] = field(default_factory=dict)
    access: RegistryAccess = field(default_factory=RegistryAccess)
    patience_s: float = PATIENCE_S
    _registries: dict[str, SchemaRegistry] = field(default_factory=dict, init=False, repr=False)
    _told: set[tuple[str, int]] = field(default_factory=set, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def of(self, stream: Stream) -> Decoder:
        """The decoder of a stream's records.

        Raises:
            UsageError: it is not known where their schemas are.
        """
        if (plain := _PLAIN.get(stream.format)) is not None:
            return plain(stream)
        wanted = _wanted(stream)
        if stream.schema is not None:
            return AvroDecoder(stream, wanted, self.files[stream.schema])
        url = stream.registry or self.access.url
        if url is None:
            raise UsageError(
                f"{stream} is in Avro: where are its schemas? Name the schema registry with --registry or "
                f"registry = 'http://...', or the one schema of all its records with schema = 'file.avsc'"
            )
        with self._lock:
            registry = self._registries.setdefault(url, SchemaRegistry(url, self.access, self.patience_s))

        def schema_of(number: int) -> Avro:
            schema = registry.schema(number)
            self._tell(stream, wanted, number, schema)
            return schema

        return AvroDecoder(stream, wanted, schema_of)

    def _tell(self, stream: Stream, wanted: Sequence[Wanted], number: int, schema: Avro) -> None:
        """Log that a stream has records of a schema, once, and whether it has the stream's columns."""
        with self._lock:
            if (stream.name, number) in self._told:
                return
            self._told.add((stream.name, number))
        if problem := "; ".join(misfits(schema, wanted)):
            LOG.warning("a schema does not fit its stream", stream=stream.name, schema=number, reason=problem)
        else:
            LOG.info("new schema", stream=stream.name, schema=number, topic=stream.topic)


def make_decoders(query: Query, file: Path, access: RegistryAccess, patience_s: float = PATIENCE_S) -> Decoders:
    """Read the schemas that the streams of a query name, and return the decoders.

    Args:
        file: the query's file, beside which the schemas are; if it does not exist, they are in the working directory.

    Raises:
        DataError: a file is missing or broken, or does not have a declared column.
    """
    folder = file.parent if file.exists() else Path()
    found: dict[str, Avro] = {}
    for stream in query.streams():
        if stream.schema is None:
            continue
        path = folder / stream.schema
        if stream.schema not in found:
            found[stream.schema] = read_schema(path)
        for reason in misfits(found[stream.schema], _wanted(stream)):
            raise DataError(f"{path}: {stream} declares {reason}")
    return Decoders(found, access, patience_s)


def _wanted(stream: Stream) -> tuple[Wanted, ...]:
    return tuple(Wanted(one.name, one.place, one.type) for one in stream.fields)

