"""Proposes the CREATE STREAM of a topic from a sample of its records: `weir inspect`.

What is proposed is tried on the sample: nulls, distinct values, rate and disorder are those of the tuples that the
proposed stream has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import orjson

from schemas.avro.columns import columns_of
from schemas.codecs.decoded import Decoded, RecordError
from schemas.codecs.json_schema import columns_of_json_schema
from schemas.codecs.schema_decoder import FRAME
from schemas.columns import I64
from schemas.durations import format_duration
from schemas.errors import DataError, UsageError
from schemas.language.columns import declaration, written_name
from schemas.language.expressions import EVENT_TIME
from schemas.paths import path_text
from schemas.query import OWN_PREFIX, VALUE, Field, Path, Stream, Type
from schemas.timestamps import MAX_TIMESTAMP_MS, format_iso, parse_iso
from services.formats.decoders import Decoders
from services.formats.schema_registry import NoSuchSchema, SchemaRegistry

EARLIEST_MS: Final = 946_684_800_000
"""An integer from this time on (2000) may be a time in milliseconds."""

DISORDERS_MS: Final = (100, 200, 500, *(1_000 * s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_800, 3_600)))
"""What is proposed for `disorder`: the first that is not less than what was seen."""

MOST_NESTED: Final = 16
"""Columns are looked for within so many objects."""

MOST_SCHEMAS: Final = 20
"""So many schemas of the newest records are asked for."""

FEW: Final = 0.5
"""A column has few distinct values if they are less than this share of the sample's."""

_FRAME: Final = b"\0"
_KINDS: Final[Mapping[Type, frozenset[str]]] = {
    Type.BOOLEAN: frozenset({"boolean"}),
    Type.TIMESTAMP: frozenset({"time", "date"}),
    Type.BIGINT: frozenset({"integer", "time"}),
    Type.DOUBLE: frozenset({"integer", "time", "number"}),
    Type.STRING: frozenset({"date", "text"}),
}
"""Which kinds of JSON values a column of each type accepts; the first type that accepts all is proposed."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The last records of a topic.

    Attributes:
        values: of each partition, in the order of their offsets.
        times: (n,) int64 of each partition, the records' own timestamps.
        total: how many records the topic has, about.
    """

    topic: str
    values: Mapping[int, Sequence[bytes | None]]
    times: Mapping[int, I64]
    total: int

    def all_values(self) -> Iterator[bytes]:
        """The values of all partitions, tombstones left out."""
        return (value for part in self.values.values() for value in part if value is not None)


@dataclass(slots=True)
class _Columns:
    """Attributes:
    notes: what has no column, and why.
    """

    format: str
    fields: list[Field]
    notes: list[str] = field(default_factory=list)


Registries = Mapping[str, SchemaRegistry[Any]]
"""A registry's schemas of each kind, by the format of records."""


def propose(sample: Sample, decoders: Decoders, registries: Registries | None) -> str:
    """Return the text of CREATE STREAM, with what was seen as comments.

    Args:
        registries: None if no registry is known.

    Raises:
        UsageError: the sample has no records, or records that need a registry.
        BrokerError: the registry does not answer.
    """
    found = _columns(sample, registries)
    if not found.fields:
        notes = "; ".join(found.notes)
        raise UsageError(f"records of topic {sample.topic!r} have nothing that is a column: {notes}")
    name = re.sub(r"\W", "_", sample.topic.rpartition(".")[2]) or "records"
    stream = Stream(name, tuple(found.fields), sample.topic, found.format)
    parts = _decoded(sample, stream, decoders)
    times = [one.name for one in stream.fields if one.type is Type.TIMESTAMP]
    if len(times) == 1 and _times(stream, parts)[0] is None:
        found.notes.append(f"{times[0]} is a time that some records do not have, so it is not the event time")
        stream, parts = _without_time(sample, stream, parts, decoders)
    return _text(sample, stream, parts, found.notes)


def _decoded(sample: Sample, stream: Stream, decoders: Decoders) -> list[Decoded]:
    decoder = decoders.of(stream)
    return [decoder.decode_values(values, sample.times[number]) for number, values in sample.values.items()]


def _without_time(
    sample: Sample, stream: Stream, parts: list[Decoded], decoders: Decoders
) -> tuple[Stream, list[Decoded]]:
    """The stream and its tuples with a number or text in place of its only TIMESTAMP, which would be its event time."""
    dead = sum(len(part.dead) for part in parts)
    for type in (Type.BIGINT, Type.STRING):
        fields = tuple(replace(one, type=type) if one.type is Type.TIMESTAMP else one for one in stream.fields)
        tried = replace(stream, fields=fields)
        decoded = _decoded(sample, tried, decoders)
        if sum(len(part.dead) for part in decoded) <= dead:
            break
    return tried, decoded


def _columns(sample: Sample, registries: Registries | None) -> _Columns:
    values = list(sample.all_values())
    if not values:
        raise UsageError(f"topic {sample.topic!r} has no records to look at")
    framed = sum(value.startswith(_FRAME) for value in values)
    if framed > len(values) / 2:
        if registries is None:
            raise UsageError(
                f"records of topic {sample.topic!r} look as if they named schemas of a registry: add --registry URL"
            )
        return _registered_columns(sample.topic, values, registries)
    records = [record for value in values if isinstance(record := _json(value), dict)]
    if len(records) > len(values) / 2:
        return _json_columns(records)
    return _Columns("string", [Field("value", Type.STRING)], ["records are no JSON objects"])


def _registered_columns(topic: str, values: Sequence[bytes], registries: Registries) -> _Columns:
    """The columns of the newest record whose schema the registry has."""
    newest = {int.from_bytes(value[1:FRAME], "big"): value for value in values if value[:1] == _FRAME}
    numbers = list(dict.fromkeys(int.from_bytes(v[1:FRAME], "big") for v in reversed(values) if v[:1] == _FRAME))
    why: list[str] = []
    for number in numbers[:MOST_SCHEMAS]:
        for format, registry in registries.items():
            try:
                found = _by_schema(format, registry.schema(number), newest[number], values)
            except NoSuchSchema as error:
                why.append(str(error))
                break
            except (RecordError, DataError) as error:
                why.append(str(error))
                continue
            found.notes.append(f"columns of schema {number}")
            return found
    raise UsageError(f"topic {topic!r}: {why[0]}")


def _by_schema(format: str, schema: Any, newest: bytes, values: Sequence[bytes]) -> _Columns:
    """The columns of records of a schema.

    Args:
        newest: a record of it, with its frame.
        values: all of the sample.

    Raises:
        RecordError: the record names a type that the schema does not have.
        DataError: the schema has too many columns.
    """
    match format:
        case "avro":
            columns = columns_of(schema)
        case "protobuf":
            from schemas.protobuf.columns import columns_of as columns_of_protobuf  # not above: few need it
            from schemas.protobuf.decoder import type_of_record

            columns = columns_of_protobuf(type_of_record(schema, newest[FRAME:]))
        case _:
            return _json_schema_columns(format, columns_of_json_schema(schema), values)
    return _Columns(format, _named([column for column in columns if column.part == VALUE]))


def _json_schema_columns(format: str, columns: Sequence[Field], values: Sequence[bytes]) -> _Columns:
    """The columns of a JSON Schema, as times where all that is in the records are times; those of the records where the
    schema has none."""
    bodies = (value[FRAME:] for value in values if value[:1] == _FRAME)
    found = _json_columns([record for body in bodies if isinstance(record := _json(body), dict)])
    found.format = format
    own = [column for column in columns if column.part == VALUE]
    if own:
        times = {one.place for one in found.fields if one.type is Type.TIMESTAMP}
        taken = (Type.BIGINT, Type.STRING)
        typed = [replace(one, type=Type.TIMESTAMP) if one.place in times and one.type in taken else one for one in own]
        found = _Columns(format, _named(typed))
    return found


def _json(value: bytes) -> Any:
    try:
        return orjson.loads(value)
    except (orjson.JSONDecodeError, RecursionError):
        return None


def _named(columns: Sequence[Field]) -> list[Field]:
    """Columns with names that the language accepts, each once."""
    found: dict[str, Field] = {}
    for column in columns:
        own = column.name.lstrip(OWN_PREFIX)
        name = base = (own.strip("_") if own == EVENT_TIME else own) or "value"
        number = 2
        while name in found:
            name, number = f"{base}_{number}", number + 1
        found[name] = column if name == column.name else Field(name, column.type, column.place)
    return list(found.values())


def _json_columns(records: Sequence[dict[str, Any]]) -> _Columns:
    kinds: dict[Path, set[str]] = {}
    for record in records:
        _note_kinds(record, (), kinds)
    kinds = {path: seen for path, seen in kinds.items() if all(_is_printable(step) for step in path)}
    found = _Columns("json", [])
    objects = {path[:depth] for path in kinds for depth in range(1, len(path))}
    for path, seen in kinds.items():
        place = path_text(path)
        if path in objects:
            if seen:
                found.notes.append(f"{place} is an object, and in some records not: {', '.join(sorted(seen))}")
            continue
        type = next((type for type, accepted in _KINDS.items() if seen and seen <= accepted), None)
        if type is not None:
            column = Field("_".join(map(str, path)), type, path if len(path) > 1 else ())
            if column.part == VALUE:
                found.fields.append(column)
            else:
                found.notes.append(f"{place} is no column: the name means something else of a record")
        elif seen == {"array"}:
            found.notes.append(f"{place} is an array: name an element of it, such as FROM '{place}[0]'")
        elif seen:
            found.notes.append(f"{place} has values of several types: {', '.join(sorted(seen))}")
        else:
            found.notes.append(f"{place} is always null or empty")
    found.fields = _named(found.fields)
    return found


def _is_printable(step: str | int) -> bool:
    """Whether a key can be written into a text; a line break would end a comment."""
    return isinstance(step, int) or (bool(step) and step.isprintable())


def _note_kinds(value: Any, path: Path, kinds: dict[Path, set[str]]) -> None:
    if isinstance(value, dict) and value and len(path) < MOST_NESTED:
        for key, inside in value.items():
            _note_kinds(inside, (*path, key), kinds)
        return
    seen = kinds.setdefault(path, set())
    match value:
        case bool():
            seen.add("boolean")
        case int() if -(1 << 63) <= value < 1 << 63:
            seen.add("time" if EARLIEST_MS <= value < MAX_TIMESTAMP_MS else "integer")
        case int() | float():
            seen.add("number")
        case str():
            seen.add("date" if _is_date(value) else "text")
        case list():
            seen.add("array")
        case dict() if value:
            seen.add("object of many levels")


def _is_date(text: str) -> bool:
    try:
        parse_iso(text)
    except ValueError:
        return False
    return True


def _disorder(parts: Sequence[I64]) -> int:
    """How far a tuple was behind the largest time before it in its partition, at most, in ms."""
    return max((int((np.maximum.accumulate(ts) - ts).max()) for ts in parts if len(ts)), default=0)


def _times(stream: Stream, parts: Sequence[Decoded]) -> tuple[str | None, list[I64]]:
    """The column that may be the event time, and its values per partition: the one that is most in order, of those that
    are not always the same."""
    candidates: dict[str, list[I64]] = {}
    for one in stream.fields:
        columns = [part.batch.columns[one.name] for part in parts]
        if one.type is Type.TIMESTAMP and all(bool(column.mask().all()) for column in columns):
            times = [column.values.astype(np.int64) for column in columns]
            if all(((ts >= 0) & (ts < MAX_TIMESTAMP_MS)).all() for ts in times):
                candidates[one.name] = times
    if not candidates:
        return None, [part.batch.ts for part in parts]

    def rank(name: str) -> tuple[bool, int]:
        times = np.concatenate(candidates[name])
        return bool((times == times[:1]).all()), _disorder(candidates[name])

    name = min(candidates, key=rank)
    return name, candidates[name]


def _text(sample: Sample, stream: Stream, parts: Sequence[Decoded], notes: Sequence[str]) -> str:
    timestamp, times = _times(stream, parts)
    count = sum(map(len, times))
    seen = sum(map(len, sample.values.values()))
    lines = [f"-- The last {seen:,} of about {sample.total:,} records of {sample.topic}."]
    dead = [letter for part in parts for letter in part.dead]
    if dead:
        lines.append(f"-- {len(dead):,} of them cannot be decoded: {_one_line(dead[0].reason)}")
    lines += [f"-- {_one_line(note)}" for note in notes]
    options = [f"topic = '{sample.topic}'", f"format = '{stream.format}'"]
    if timestamp is not None:
        options.append(f"timestamp = {_quoted(timestamp)}")
    comments, distinct = _of_columns(stream, parts, count)
    if count:
        whole, disorder = np.concatenate(times), _disorder(times)
        first, last = int(whole.min()), int(whole.max())
        of = timestamp or "the records' own timestamps"
        lines.append(f"-- {of}: {format_iso(first)} to {format_iso(last)}, at most {disorder:,} ms out of order")
        if disorder:
            proposed = next((ms for ms in DISORDERS_MS if ms >= disorder), disorder)
            options.append(f"disorder = '{format_duration(proposed)}'")
        if last > first:
            options.append(f"rate = {_rounded(1000 * count / (last - first))}")
    if distinct:
        options.append(f"distinct = {_quoted(','.join(f'{name}:{n}' for name, n in distinct.items()))}")
    declared = [declaration(one) for one in stream.fields]
    width = max(map(len, declared), default=0) + 1
    body = [
        f"  {text + ('' if n == len(declared) - 1 else ','):{width}}  {comments[one.name]}".rstrip()
        for n, (text, one) in enumerate(zip(declared, stream.fields, strict=True))
    ]
    return "\n".join(
        [*lines, f"CREATE STREAM {written_name(stream.name)} (", *body, ")", f"WITH ({', '.join(options)});"]
    )


def _of_columns(stream: Stream, parts: Sequence[Decoded], count: int) -> tuple[dict[str, str], dict[str, int]]:
    """A comment on each column, and how many values those have that have few."""
    comments, distinct = {}, {}
    for one in stream.fields:
        values = [value for part in parts for value in part.batch.columns[one.name].to_values()]
        known = [value for value in values if value is not None]
        different = len(set(known))
        said = []
        if known and one.type is not Type.TIMESTAMP:
            said.append(f"{different:,} distinct")
        if len(known) < len(values):
            said.append(f"{100 * (1 - len(known) / len(values)):.3g}% null")
        comments[one.name] = f"-- {', '.join(said)}" if said else ""
        named = one.name == one.name.strip() and not set(one.name) & set(",:")  # `distinct` has a place for the name
        if one.type in (Type.BIGINT, Type.STRING) and 0 < different < FEW * count and named:
            distinct[one.name] = different
    return comments, distinct


def _one_line(text: str) -> str:
    """A text that stays in its comment, and that a terminal shows as it is."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _rounded(rate: float) -> str:
    return f"{float(f'{rate:.3g}'):g}" if rate < 1e6 else f"{rate:.0f}"


def _quoted(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))
