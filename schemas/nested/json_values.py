"""JSON_VALUE: finds the values at one place in a column of texts of JSON.

A compiled pass (`schemas.codecs.kernels.json_values`) finds those in texts of common form. Each text that it is unsure
of is read by JSON's grammar alone (`schemas.codecs.json_grammar`). The whole text must be JSON, of any depth.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from schemas.codecs.decoded import RecordError, Value
from schemas.codecs.json_codec import parsed, text_at
from schemas.codecs.json_grammar import only_value
from schemas.codecs.kernels.json_records import NOTHING
from schemas.codecs.kernels.json_values import RAW, decode_json_values, write_lines
from schemas.codecs.slots import MAX_BLOCK_BYTES, SlotLayout, Slots
from schemas.columns import I64, U8, Column
from schemas.paths import parse_json_path
from schemas.query import Field, Path, Table, Type

_VALUE = "value"


def json_values(texts: Column, path: str, type: Type) -> Column:
    """Return the value at a place in each text, as JSON_VALUE defines it (`schemas.query.Call`).

    Args:
        texts: (n,) STRING.
        path: such as `$.customer.items[0].sku`.
        type: of the values; not TIMESTAMP.

    Returns:
        (n,) of that type.

    Cost: O(bytes * steps of the path).
    """
    return _found(texts, parse_json_path(path), type, raw=False)


def raw_values(texts: Column, place: Path) -> Column:
    """Return the value at a place in each text, a record that has been decoded, as it is written; null if it is null.

    Args:
        texts: (n,) STRING.

    Returns:
        (n,) STRING.
    """
    return _found(texts, place, Type.STRING, raw=True)


def _found(texts: Column, place: Path, type: Type, *, raw: bool) -> Column:
    assert texts.offsets is not None
    rows = len(texts)
    size = int(texts.offsets[-1] - texts.offsets[0]) + rows
    if size > MAX_BLOCK_BYTES and rows > 1:
        half = rows // 2
        parts = texts.slice(0, half), texts.slice(half, rows)
        return Column.concat([_found(part, place, type, raw=raw) for part in parts])
    lines = np.zeros(size, np.uint8)
    write_lines(texts.values, np.ascontiguousarray(texts.offsets), texts.mask(), lines)
    slots = Slots(_layout(type, raw), lines, rows)
    slots.fill(decode_json_values, *_steps(place))

    def by_rules(row: int) -> list[Value]:
        line = lines[slots.starts[row] : slots.starts[row + 1]].tobytes()
        return [_raw(line, place) if raw else _value(line, place, type)]

    return slots.finish(by_rules, lambda _: b"", None).batch.columns[_VALUE]


@lru_cache(2 * len(Type))
def _layout(type: Type, raw: bool) -> SlotLayout:
    made = SlotLayout(Table("", (Field(_VALUE, type),), ""))
    if raw:
        made.types = np.array([RAW], np.uint8)
    return made


def _steps(place: Path) -> tuple[U8, I64, I64]:
    """A path as the compiled pass takes it."""
    names = [step.encode() if isinstance(step, str) else b"" for step in place]
    places = [NOTHING if isinstance(step, str) else step for step in place]
    return (
        np.frombuffer(b"".join(names), np.uint8),
        np.cumsum([0, *map(len, names)], dtype=np.int64),
        np.array(places, np.int64),
    )


def _raw(raw: bytes, place: Path) -> Value:
    try:
        text = text_at({(): only_value(raw)}, place)
    except RecordError:
        return None
    return None if text == "null" else text


def _value(raw: bytes, place: Path, type: Type) -> Value:
    """The value at a place in one text."""
    try:
        text = text_at({(): only_value(raw)}, place)
        if type is Type.STRING and text[0] not in '"{[n':
            return text
        return parsed(_VALUE, type, text)
    except RecordError:
        return None
