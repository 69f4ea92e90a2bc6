"""`Decoders` makes the decoders for the records of streams' topics. Lanes and Spark jobs call it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.avro.decoder import AvroDecoder
from schemas.avro.rules import array_misfits, misfits
from schemas.codecs.csv_codec import CsvDecoder
from schemas.codecs.json_codec import JsonDecoder
from schemas.codecs.json_schema import FramedJsonDecoder
from schemas.codecs.string_codec import StringDecoder
from schemas.codecs.wanted import wanted_arrays, wanted_of
from schemas.errors import DataError, UsageError
from schemas.nested.json_arrays import json_decoder
from schemas.nested.schema_arrays import unnesting
from schemas.query import ENVELOPES, Query, Stream, Type
from services.formats.changelogs import EnvelopeDecoder, VersionDecoder, keys_only
from services.formats.records import (
    Decoder,
    RecordDecoder,
    RecordsDecoder,
    WholeKeys,
    as_record,
    key_stream,
    value_stream,
)
from services.formats.registry_access import RegistryAccess
from services.formats.schema_files import read_schema
from services.formats.schema_kinds import KINDS
from services.formats.schema_registry import PATIENCE_S, SchemaRegistry
from services.process.logs import get_log

LOG = get_log("schemas")


_PLAIN: Mapping[str, Callable[[Stream], Decoder]] = {
    "json": json_decoder,
    "json-schema": lambda stream: FramedJsonDecoder(json_decoder(stream)),
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

    files: Mapping[str, Any] = field(default_factory=dict)
    access: RegistryAccess = field(default_factory=RegistryAccess)
    patience_s: float = PATIENCE_S
    _registries: dict[tuple[str, str], SchemaRegistry[Any]] = field(default_factory=dict, init=False, repr=False)
    _told: set[tuple[str, str, int]] = field(default_factory=set, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def of(self, stream: Stream) -> Decoder:
        """The decoder of a stream's values.

        Raises:
            UsageError: it is not known where their schemas are.
        """
        if (plain := _PLAIN.get(stream.format)) is not None:
            return plain(stream)
        file = None if stream.schema is None else self.files[stream.schema]
        if stream.format == "protobuf":
            from schemas.protobuf.decoder import ProtobufDecoder  # not above: few need it

            of_file = None if file is None else file.named(stream.message)
            return unnesting(ProtobufDecoder(stream, wanted_of(stream), of_file or self._logged(stream, "value")))
        return unnesting(AvroDecoder(stream, wanted_of(stream), file or self._logged(stream, "value")))

    def _logged(self, stream: Stream, part: str) -> Callable[[int], Any]:
        """What returns the schemas of a stream's values or keys by their numbers, and logs each."""
        schema_of = self._schemas_of(stream, part)

        def logged(number: int) -> Any:
            schema = schema_of(number)
            if part == "key" and stream.format == "avro":
                schema = as_record(schema, stream.fields[0].name)
            self._tell(stream, part, number, schema)
            return schema

        return logged

    def _schemas_of(self, stream: Stream, part: str) -> Callable[[int], Any]:
        """What returns the schemas of a stream's values or keys by their numbers."""
        url = stream.registry or self.access.url
        if url is None:
            file = ", or the one schema of all its records with schema = 'FILE'" if part == "value" else ""
            raise UsageError(
                f"{stream} has {part}s in {stream.format}: where are their schemas? Name the schema registry with "
                f"--registry or registry = 'http://...'{file}"
            )
        kind = KINDS[stream.format]
        with self._lock:
            found = self._registries.get((url, kind.name))
            if found is None:
                found = SchemaRegistry(url, self.access, kind, self.patience_s)
                self._registries[url, kind.name] = found
            return found.schema

    def records_of(self, stream: Stream) -> RecordsDecoder:
        """The decoder of a stream's records in a topic, with the columns that are not in their values; of a table's, as
        versions of its rows.

        Raises:
            UsageError: it is not known where their schemas are.
        """
        if stream.format in ENVELOPES:
            return EnvelopeDecoder(stream, self._parts_of)
        if stream.is_versioned:
            return VersionDecoder(stream, self._parts_of(stream), self._parts_of(keys_only(stream)))
        return self._parts_of(stream)

    def _parts_of(self, stream: Stream) -> RecordDecoder:
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
                return AvroDecoder(keys, wanted_of(keys), self._logged(keys, "key"))
            case "protobuf":
                from schemas.protobuf.decoder import ProtobufDecoder  # not above: few need it

                return ProtobufDecoder(keys, wanted_of(keys), self._logged(keys, "key"))
        return self.of(keys)

    def _tell(self, stream: Stream, part: str, number: int, schema: Any) -> None:
        """Log that a stream has values or keys of a schema, once, and whether it has the stream's columns."""
        with self._lock:
            if (stream.name, part, number) in self._told:
                return
            self._told.add((stream.name, part, number))
        try:
            why = "; ".join(misfits_of(schema, stream))
        except DataError as error:
            why = str(error)
        if why:
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
    found: dict[str, Any] = {}
    for stream in query.streams():
        if stream.schema is None:
            continue
        path = folder / stream.schema
        if stream.schema not in found:
            found[stream.schema] = read_schema(path, stream.format)
        for reason in misfits_of(found[stream.schema], value_stream(stream)):
            raise DataError(f"{path}: {stream} declares {reason}")
    return Decoders(found, access, patience_s)


def misfits_of(schema: Any, stream: Stream) -> list[str]:
    """Say which of a stream's columns records of a schema cannot have, and why; empty if all fits.

    Raises:
        DataError: the schema does not have the stream's message type.
    """
    if stream.format == "avro":
        return misfits(schema, wanted_of(stream)) + array_misfits(schema, wanted_arrays(stream))
    from schemas.protobuf import rules  # not above: few need it

    type = schema.named(stream.message)
    return rules.misfits(type, wanted_of(stream)) + rules.array_misfits(type, wanted_arrays(stream))
