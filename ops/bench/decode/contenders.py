"""The decoders that `weir bench decode` compares: Weir's own, and those of other libraries.

All get the same lists of records, with the frame of schema registries around Avro and Protobuf. They are done when they
have made what their `produces` says: who makes an object of each record has no columns yet.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import polars as pl
from google.protobuf.message_factory import GetMessageClass

from ops.bench.decode.shapes import FRAME, NUMBER, PLACE, Shape, Values, long_bytes, text_bytes
from schemas.avro.decoder import AvroDecoder
from schemas.codecs.decoded import Decoded
from schemas.codecs.json_codec import JsonDecoder
from schemas.codecs.wanted import wanted_of
from schemas.errors import InvariantError
from schemas.protobuf.decoder import ProtobufDecoder
from services.formats.records import Decoder


@dataclass(frozen=True, slots=True)
class Decoding:
    """A decoder of the records of one shape.

    Attributes:
        decode: decodes some records.
        values: of each record, from what `decode` has returned.
    """

    decode: Callable[[Sequence[bytes]], Any]
    values: Callable[[Any], Iterable[Values]]


@dataclass(frozen=True, slots=True)
class Contender:
    """A decoder of one format.

    Attributes:
        package: what brings it.
        produces: what it makes of records, for the report.
        make: makes it for a shape. Raises ImportError where its library is not installed.
    """

    name: str
    format: str
    package: str
    produces: str
    make: Callable[[Shape], Decoding]


def _weir_json(shape: Shape) -> Decoding:
    return _weir(JsonDecoder(shape.stream("json")))


def _weir_avro(shape: Shape) -> Decoding:
    stream = shape.stream("avro")
    return _weir(AvroDecoder(stream, wanted_of(stream), {NUMBER: shape.avro_schema}.__getitem__))


def _weir_protobuf(shape: Shape) -> Decoding:
    stream = shape.stream("protobuf")
    return _weir(ProtobufDecoder(stream, wanted_of(stream), {NUMBER: shape.protobuf_schema}.__getitem__))


def _weir(decoder: Decoder) -> Decoding:
    def values(found: Decoded) -> Iterable[Values]:
        for letter in found.dead:
            raise InvariantError(f"Weir refuses record {letter.row} of the benchmark: {letter.reason}")
        columns = [column.to_arrow().to_pylist() for column in found.batch.columns.values()]
        return zip(*columns, strict=True)

    return Decoding(decoder.decode_values, values)


def _orjson(shape: Shape) -> Decoding:
    return _objects(shape, orjson.loads)


def _fastavro(shape: Shape) -> Decoding:
    import fastavro

    schema = fastavro.parse_schema(dict(shape.avro))

    def read(record: bytes) -> Any:
        body = io.BytesIO(record)
        body.seek(len(FRAME))
        return fastavro.schemaless_reader(body, schema, None)

    return _objects(shape, read)


def _confluent_avro(shape: Shape) -> Decoding:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    client = SchemaRegistryClient.new_client({"url": "mock://weir"})  # a registry within the client
    number = client.register_schema("orders-value", Schema(shape.avro_text, "AVRO"))
    if number != NUMBER:
        raise InvariantError(f"the first schema of a registry has the number {number}, expected {NUMBER}")
    read, context = AvroDeserializer(client), SerializationContext("orders", MessageField.VALUE)
    return _objects(shape, lambda record: read(record, context))


def _google(shape: Shape) -> Decoding:
    read, begin = GetMessageClass(shape.message).FromString, len(FRAME + PLACE)
    return _objects(shape, lambda record: read(record[begin:]))


def _confluent_protobuf(shape: Shape) -> Decoding:
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    read = ProtobufDeserializer(GetMessageClass(shape.message), {"use.deprecated.format": False})
    context = SerializationContext("orders", MessageField.VALUE)
    return _objects(shape, lambda record: read(record, context))


def _objects(shape: Shape, read: Callable[[bytes], Any]) -> Decoding:
    """A decoder that makes an object of each record."""
    return Decoding(lambda records: [read(record) for record in records], lambda found: map(shape.values, found))


def _pyruhvro(shape: Shape) -> Decoding:
    from pyruhvro import deserialize_array

    begin, schema = len(FRAME), shape.avro_text

    def decode(records: Sequence[bytes]) -> Any:
        return deserialize_array([record[begin:] for record in records], schema)

    return Decoding(decode, lambda found: map(shape.values, found.to_pylist()))


def _polars(shape: Shape) -> Decoding:
    begin, sync = len(FRAME), bytes(range(16))
    about = {"avro.schema": shape.avro_text, "avro.codec": "null"}
    pairs = b"".join(text_bytes(name) + text_bytes(value) for name, value in about.items())
    head = b"Obj\1" + long_bytes(len(about)) + pairs + long_bytes(0) + sync

    def decode(records: Sequence[bytes]) -> pl.DataFrame:
        bodies = b"".join([record[begin:] for record in records])
        size = long_bytes(len(records)) + long_bytes(len(bodies))
        return pl.read_avro(io.BytesIO(b"".join((head, size, bodies, sync))))

    return Decoding(decode, lambda found: map(shape.values, found.to_dicts()))


def _ptars(shape: Shape) -> Decoding:
    from ptars import HandlerPool, PtarsConfig

    config = PtarsConfig(timestamp_unit="ms", confluent_wire_policy="protobuf")
    handler = HandlerPool([shape.message.file], config).get_for_message(shape.message)
    return Decoding(handler.list_to_record_batch, lambda found: map(shape.values, found.to_pylist()))


WEIR = "Weir"

CONTENDERS = (
    Contender(WEIR, "json", "weir-streams", "columns", _weir_json),
    Contender("orjson", "json", "orjson", "a dict of each record", _orjson),
    Contender(WEIR, "avro", "weir-streams", "columns", _weir_avro),
    Contender("fastavro", "avro", "fastavro", "a dict of each record", _fastavro),
    Contender("AvroDeserializer", "avro", "confluent-kafka", "Confluent's; a dict of each record", _confluent_avro),
    Contender("pyruhvro", "avro", "pyruhvro", "Arrow; nested columns stay nested", _pyruhvro),
    Contender("polars", "avro", "polars", "a frame, of a container file made around the records", _polars),
    Contender(WEIR, "protobuf", "weir-streams", "columns", _weir_protobuf),
    Contender(
        "protobuf", "protobuf", "protobuf", "Google's (upb); a message of each record, fields are not read yet", _google
    ),
    Contender(
        "ProtobufDeserializer",
        "protobuf",
        "confluent-kafka",
        "Confluent's; the same messages",
        _confluent_protobuf,
    ),
    Contender("ptars", "protobuf", "ptars", "Arrow; nested columns stay nested", _ptars),
)
