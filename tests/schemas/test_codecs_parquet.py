"""Parquet: which types are taken, how they are converted, and which records are dead letters."""

from __future__ import annotations

from datetime import date
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
        (Type.DOUBLE, pa.decimal128(5, 2)),
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
    assert decoded.dead[3].raw == b'{"v":3.0,"at":%d}' % 2**62


def test_strings_that_are_not_utf8() -> None:
    raw = pa.array([b"a", b"\xff", None], pa.binary())
    strings = pa.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2], raw.buffers()[0])
    decoded = decode(Type.STRING, strings)
    assert decoded.rows.tolist() == [0, 2]
    assert decoded.batch.columns["v"].to_values() == ["a", None]
    assert decoded.dead[0].reason == "field 'v' is not valid UTF-8"
