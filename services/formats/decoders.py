"""`Decoders` makes the decoders for the records of streams' topics. Lanes and Spark jobs call it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from schemas.avro.decoder import AvroDecoder
from schemas.avro.rules import Wanted, misfits
from schemas.avro.schema import Avro
from schemas.codecs.csv_codec import CsvDecoder
from schemas.codecs.json_codec import JsonDecoder
from schemas.codecs.json_schema import FramedJsonDecoder
from schemas.codecs.string_codec import StringDecoder
from schemas.errors import DataError, UsageError
from schemas.query import Query, Stream, Type
from services.formats.records import Decoder, RecordDecoder, WholeKeys, as_record, key_stream, value_stream
from services.formats.registry_access import RegistryAccess
from services.formats.schema_files import read_schema
from services.formats.schema_registry import PATIENCE_S, SchemaRegistry
from services.process.logs import get_log

LOG = get_log("schemas")


_PLAIN: Mapping[str, Callable[[Stream], Decoder]] = {
    "json": JsonDecoder,
    "json-schema": lambda stream: FramedJsonDecoder(JsonDecoder(stream)),
    "csv": CsvDecoder,
    "string": StringDecoder,
}
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
    _told: set[tuple[str, str, int]] = field(default_factory=set, init=False, repr=False)
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
        return AvroDecoder(stream, wanted, self._logged(stream, "value"))

    def _logged(self, stream: Stream, part: str) -> Callable[[int], Avro]:
        """What returns the schemas of a stream's values or keys by their numbers, and logs each."""
        schema_of = self._schemas_of(stream, part)

        def told(number: int) -> Avro:
            schema = schema_of(number)
            if part == "key":
                schema = as_record(schema, stream.fields[0].name)
            self._tell(stream, part, number, schema)
            return schema

        return told

    def _schemas_of(self, stream: Stream, part: str) -> Callable[[int], Avro]:
        """What returns the schemas of a stream's values or keys by their numbers."""
        url = stream.registry or self.access.url
        if url is None:
            file = ", or the one schema of all its records with schema = 'file.avsc'" if part == "value" else ""
            raise UsageError(
                f"{stream} has {part}s in Avro: where are their schemas? Name the schema registry with --registry or "
                f"registry = 'http://...'{file}"
            )
        with self._lock:
            return self._registries.setdefault(url, SchemaRegistry(url, self.access, self.patience_s)).schema

    def records_of(self, stream: Stream) -> RecordDecoder:
        """The decoder of a stream's records in a topic, with the columns that are not in their values.

        Raises:
            UsageError: it is not known where their schemas are.
        """
        value = value_stream(stream)
        return RecordDecoder(stream, self.of(value) if value.fields else None, self._of_keys(stream))

    def _of_keys(self, stream: Stream) -> Decoder | None:
        """The decoder of a stream's keys; None if no column is in them."""
        keys = key_stream(stream)
        if keys is None:
            return None
        whole = len(keys.fields) == 1 and not keys.fields[0].path
        match keys.format:
            case "json" if whole:
                return WholeKeys(JsonDecoder(keys), keys.fields[0].name)
            case "json-schema" if whole:
                return FramedJsonDecoder(WholeKeys(JsonDecoder(keys), keys.fields[0].name))
            case "string" if keys.fields[0].type is not Type.STRING:
                return CsvDecoder(keys)
            case "avro":
                return AvroDecoder(keys, _wanted(keys), self._logged(keys, "key"))
        return self.of(keys)

    def _tell(self, stream: Stream, part: str, number: int, schema: Avro) -> None:
        """Log that a stream has values or keys of a schema, once, and whether it has the stream's columns."""
        with self._lock:
            if (stream.name, part, number) in self._told:
                return
            self._told.add((stream.name, part, number))
        if why := "; ".join(misfits(schema, _wanted(stream))):
            LOG.warning("a schema does not fit its stream", stream=stream.name, part=part, schema=number, reason=why)
        else:
            LOG.info("new schema", stream=stream.name, part=part, schema=number, topic=stream.topic)


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
        for reason in misfits(found[stream.schema], _wanted(value_stream(stream))):
            raise DataError(f"{path}: {stream} declares {reason}")
    return Decoders(found, access, patience_s)


def _wanted(stream: Stream) -> tuple[Wanted, ...]:
    return tuple(Wanted(one.name, one.place, one.type) for one in stream.fields)
