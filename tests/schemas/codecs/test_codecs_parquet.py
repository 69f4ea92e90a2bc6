"""Parquet: which types are accepted, how they are converted, and which records are dead letters."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from schemas.codecs.parquet_codec import ParquetDecoder
from schemas.errors import DataError
from schemas.query import Field, Stream, Type


def stream(type: Type) -> Stream:
    return Stream("S", (Field("v", type), Field("at", Type.TIMESTAMP)), "s", timestamp="at")


def decode(type: Type, values: pa.Array) -> Any:
    batch = pa.record_batch([pa.array(np.arange(len(values))), values], names=["at", "v"])
    return ParquetDecoder(stream(type), batch.schema, "f.parquet").decode(batch)


@pytest.mark.parametrize(
    ("type", "array", "values"),
    [
        (Type.BIGINT, pa.array([1, None, -(2**63)], pa.int64()), [1, None, -(2**63)]),
        (Type.BIGINT, pa.array([1, None], pa.int8()), [1, None]),
        (Type.BIGINT, pa.array([2**32 - 1], pa.uint32()), [2**32 - 1]),
        (Type.DOUBLE, pa.array([0.5, None], pa.float32()), [0.5, None]),
        (Type.DOUBLE, pa.array([2**53 + 1, None], pa.int64()), [float(2**53), None]),
        (Type.BIGINT, pa.array([Decimal("7.00"), None], pa.decimal32(5, 2)), [7, None]),
        (Type.BIGINT, pa.array([None, Decimal(2**63 - 1)], pa.decimal128(38, 0)), [None, 2**63 - 1]),
        (Type.DOUBLE, pa.array([Decimal("1.10"), None, Decimal("-0.05")], pa.decimal64(12, 2)), [1.1, None, -0.05]),
        (Type.DOUBLE, pa.array([None, Decimal("0.1"), Decimal(2**60)], pa.decimal128(38, 18)), [None, 0.1, 2.0**60]),
        (Type.DOUBLE, pa.array([Decimal("1e-20"), None], pa.decimal256(60, 20)), [1e-20, None]),
        (Type.STRING, pa.array(["a", None, "ä"], pa.string()), ["a", None, "ä"]),
        (Type.STRING, pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
        (Type.STRING, pa.array(["a", "b"], pa.string_view()), ["a", "b"]),
        (Type.BOOLEAN, pa.array([True, None, False]), [True, None, False]),
        (Type.TIMESTAMP, pa.array([5, None], pa.int64()), [5, None]),
        (Type.TIMESTAMP, pa.array([5, None], pa.timestamp("s")), [5000, None]),
        (Type.TIMESTAMP, pa.array([-1, 1999, None], pa.timestamp("us", "UTC")), [-1, 1, None]),
        (Type.TIMESTAMP, pa.array([-1, 1_999_999], pa.timestamp("ns")), [-1, 1]),
        (Type.TIMESTAMP, pa.array([date(1970, 1, 2)]), [86_400_000]),
    ],
)
def test_accepted_types(type: Type, array: pa.Array, values: list[object]) -> None:
    for piece, expected in ((array, values), (array.slice(1), values[1:])):
        decoded = decode(type, piece)
        assert decoded.dead == []
        assert decoded.batch.columns["v"].to_values() == expected
        assert decoded.batch.ts.tolist() == list(range(len(expected)))


@pytest.mark.parametrize(
    ("type", "found"),
    [
        (Type.BIGINT, pa.float64()),
        (Type.BIGINT, pa.uint64()),
        (Type.BIGINT, pa.string()),
        (Type.TIMESTAMP, pa.decimal128(5, 2)),
        (Type.DOUBLE, pa.bool_()),
        (Type.STRING, pa.int64()),
        (Type.STRING, pa.binary()),
        (Type.BOOLEAN, pa.int8()),
        (Type.TIMESTAMP, pa.int32()),
        (Type.TIMESTAMP, pa.string()),
    ],
)
def test_refused_types_name_file_column_and_both_types(type: Type, found: pa.DataType) -> None:
    schema = pa.schema([("at", pa.int64()), ("v", found)])
    with pytest.raises(DataError) as caught:
        ParquetDecoder(stream(type), schema, "f.parquet")
    assert f"f.parquet: column 'v' is {found}, stream 'S' declares it {type}" in str(caught.value)


def test_missing_column_is_suggested() -> None:
    with pytest.raises(DataError, match=r"declares column 'v', which the file does not have .* mean 'vv'"):
        ParquetDecoder(stream(Type.BIGINT), pa.schema([("at", pa.int64()), ("vv", pa.int64())]), "f")


def test_dead_letters() -> None:
    values = pa.array([1.0, float("nan"), float("inf"), None, 2.0, 3.0])
    at = pa.array([1, 2, 3, 4, None, 2**62])
    batch = pa.record_batch([at, values], names=["at", "v"])
    decoded = ParquetDecoder(stream(Type.DOUBLE), batch.schema, "f").decode(batch)
    assert decoded.rows.tolist() == [0, 3]
    assert decoded.batch.columns["v"].to_values() == [1.0, None]
    assert [(d.row, d.reason.split(",")[0]) for d in decoded.dead] == [
        (1, "field 'v' is NaN or infinite"),
        (2, "field 'v' is NaN or infinite"),
        (4, "timestamp field 'at' is missing or null"),
        (5, f"timestamp field 'at' is {2**62}"),
    ]
    assert [d.raw for d in decoded.dead] == [
        b'{"v":"NaN","at":2}',
        b'{"v":"Infinity","at":3}',
        b'{"v":2.0,"at":null}',
        b'{"v":3.0,"at":%d}' % 2**62,
    ]


def test_decimals_that_would_change_are_dead_letters() -> None:
    kept = ["7.000", None, "-9007199254740993.000"]
    values = ["7.500", *kept, "99999999999999999999.000"]
    array = pa.array([value and Decimal(value) for value in values], pa.decimal128(30, 3))
    decoded = decode(Type.BIGINT, array)
    assert decoded.batch.columns["v"].to_values() == [7, None, -9007199254740993]
    reason = "field 'v' is no integer in [-2^63, 2^63), BIGINT accepts decimals that lose nothing"
    assert [(d.row, d.reason, d.raw) for d in decoded.dead] == [
        (0, reason, b'{"v":"7.500","at":0}'),
        (4, reason, b'{"v":"99999999999999999999.000","at":4}'),
    ]
    decoded = decode(Type.DOUBLE, array)
    assert decoded.batch.columns["v"].to_values() == [7.5, 7.0, None]
    assert [(d.row, d.reason, d.raw) for d in decoded.dead] == [
        (
            row,
            "field 'v' is not exactly a double, DOUBLE accepts decimals that lose nothing",
            f'{{"v":"{values[row]}","at":{row}}}'.encode(),
        )
        for row in (3, 4)
    ]


def test_strings_that_are_not_utf8() -> None:
    raw = pa.array([b"a", b"\xff", None], pa.binary())
    strings = pa.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2], raw.buffers()[0])
    decoded = decode(Type.STRING, strings)
    assert decoded.rows.tolist() == [0, 2]
    assert decoded.batch.columns["v"].to_values() == ["a", None]
    assert decoded.dead[0].reason == "field 'v' is not valid UTF-8"
    assert decoded.dead[0].raw == '{"v":"\ufffd","at":1}'.encode()


def nested(path: tuple[str | int, ...]) -> Stream:
    fields = (Field("v", Type.BIGINT, path), Field("at", Type.TIMESTAMP, ("m", "at")))
    return Stream("S", fields, "s", timestamp="at")


RECORDS = pa.array(
    [{"at": 1, "x": {"y": 5}}, {"at": 2, "x": None}, {"at": 3, "x": {"y": None}}, None],
    pa.struct([("at", pa.int64()), ("x", pa.struct([("y", pa.int16())])), ("l", pa.list_(pa.int64()))]),
)


def test_values_in_structs() -> None:
    """In a struct that is null they are null."""
    for begin in (0, 1):
        batch = pa.record_batch([RECORDS.slice(begin)], names=["m"])
        decoder = ParquetDecoder(nested(("m", "x", "y")), batch.schema, "f.parquet")
        assert decoder.columns == ["m"]
        decoded = decoder.decode(batch)
        assert decoded.batch.columns["v"].to_values() == [5, None, None][begin:]
        assert decoded.batch.ts.tolist() == [1, 2, 3][begin:]
        assert [letter.row for letter in decoded.dead] == [3 - begin]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (("m", "z"), "declares column 'm.z', which the struct 'm' does not have .it has: 'at, x, l'"),
        (("m", "x", "yy"), "which the struct 'm.x' does not have .it has: 'y'., did you mean 'y'"),
        (("m", "at", "y"), "declares column 'm.at.y', but 'm.at' is int64; only structs have nested values"),
        (("m", "l", 0), r"declares column 'm.l\[0\]', but 'm.l' is list<item: int64>; only structs"),
        (("m", "x"), r"column 'm.x' is struct<y: int16>, stream 'S' declares it BIGINT, which accepts"),
    ],
)
def test_places_that_a_file_does_not_have(path: tuple[str | int, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        ParquetDecoder(nested(path), pa.schema([("m", RECORDS.type)]), "f.parquet")
