"""The manual's tables of what each declared type accepts: every value in them, and every claim below them, is tried."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from operators.data.evaluate import evaluate
from schemas.codecs.csv_codec import CsvDecoder
from schemas.codecs.decoded import Decoded
from schemas.codecs.json_codec import JsonDecoder
from schemas.codecs.parquet_codec import ParquetDecoder
from schemas.errors import DataError
from schemas.query import Call, Field, Literal, Stream, Type

MANUAL = (Path(__file__).parents[2] / "ops/docs/language.md").read_text()
SECTION = MANUAL.partition("### What each type accepts\n")[2].partition("\n### ")[0]
FUNCTIONS = MANUAL.partition("### Functions\n")[2].partition("\n### ")[0]
CELLS = {
    Type(declared.strip("` ")): cells
    for declared, *cells in (line.strip("|").split(" | ") for line in SECTION.splitlines() if line.startswith("| `"))
}

COLUMNS: dict[str, pa.Array] = {
    **{f"{sign}int{bits}": pa.array([1], f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": pa.array(np.array([1], f"float{bits}")) for bits in (16, 32, 64)},
    "decimal": pa.array([Decimal(1)], pa.decimal128(9, 2)),
    "string": pa.array(["a"], pa.string()),
    "large_string": pa.array(["a"], pa.large_string()),
    "string_view": pa.array(["a"], pa.string_view()),
    "dictionary": pa.array(["a"]).dictionary_encode(),
    "bool": pa.array([True]),
    "timestamp": pa.array([1], pa.timestamp("us")),
    "date32": pa.array([1], pa.date32()),
    "date64": pa.array([86_400_000], pa.date64()),
    "time32": pa.array([1], pa.time32("ms")),
    "duration": pa.array([1], pa.duration("ms")),
    "binary": pa.array([b"a"], pa.binary()),
    "list": pa.array([[1]]),
}
"""A column of each kind of Parquet type, by its name in the manual."""


def stream(type: Type) -> Stream:
    return Stream("S", (Field("v", type), Field("at", Type.TIMESTAMP)), "s", timestamp="at")


def values(cell: str) -> tuple[list[str], list[str]]:
    """What a cell says is accepted, and what is not."""
    accepted, _, refused = cell.partition("; not ")
    return re.findall("`(.+?)`", accepted), re.findall("`(.+?)`", refused)


def from_json(type: Type, text: str) -> Decoded:
    return JsonDecoder(stream(type)).decode_lines(f'{{"v":{text},"at":1}}\n'.encode())


def from_csv(type: Type, text: str) -> Decoded:
    return CsvDecoder.with_header(stream(type), b"v,at\n", "f.csv").decode_lines(f"{text},1\n".encode())


def from_parquet(type: Type, column: pa.Array) -> Decoded:
    batch = pa.record_batch([column, pa.array([1])], names=["v", "at"])
    return ParquetDecoder(stream(type), batch.schema, "f.parquet").decode(batch)


def test_every_type_has_its_row() -> None:
    assert set(CELLS) == set(Type)
    assert all(len(cells) == 3 for cells in CELLS.values())


@pytest.mark.parametrize("type", list(Type))
def test_records(type: Type) -> None:
    for cell, decode in zip(CELLS[type], (from_json, from_csv), strict=False):
        accepted, refused = values(cell)
        assert len(accepted) > 1
        for text in accepted:
            decoded = decode(type, text)
            assert [letter.reason for letter in decoded.dead] == [], text
            assert decoded.batch.columns["v"].to_values() != [None], text
        for text in refused:
            assert len(decode(type, text).dead) == 1, text


@pytest.mark.parametrize("type", list(Type))
def test_columns(type: Type) -> None:
    accepted, refused = values(CELLS[type][2])
    assert accepted
    assert not refused
    for name, column in COLUMNS.items():
        if name in accepted:
            assert from_parquet(type, column).dead == [], name
        else:
            with pytest.raises(DataError, match=f"column 'v' is .* declares it {type}"):
                from_parquet(type, column)
    assert set(accepted) <= set(COLUMNS)


@pytest.mark.parametrize("type", list(Type))
def test_null(type: Type) -> None:
    found: list[Decoded] = [
        from_json(type, "null"),
        JsonDecoder(stream(type)).decode_lines(b'{"at":1}'),
        from_csv(type, ""),
    ]
    for name in values(CELLS[type][2])[0]:
        found.append(from_parquet(type, pa.nulls(1, COLUMNS[name].type)))
    for decoded in found:
        assert decoded.dead == []
        assert decoded.batch.columns["v"].to_values() == [None]


def test_an_absent_column_is_an_error_of_the_whole_file() -> None:
    with pytest.raises(DataError, match="declares column 'v', which the header does not have"):
        CsvDecoder.with_header(stream(Type.BIGINT), b"at,w\n", "f.csv")
    with pytest.raises(DataError, match="declares column 'v', which the file does not have"):
        ParquetDecoder(stream(Type.BIGINT), pa.schema([("at", pa.int64())]), "f.parquet")


@pytest.mark.parametrize(
    ("type", "column"),
    [
        (Type.DOUBLE, pa.array([float("nan")])),
        (Type.DOUBLE, pa.array([Decimal("0.12345678901234567")])),
        (Type.BIGINT, pa.array([Decimal("7.5")])),
    ],
)
def test_values_that_a_column_type_does_not_tell(type: Type, column: pa.Array) -> None:
    assert len(from_parquet(type, column).dead) == 1


def test_what_is_not_declared_is_ignored() -> None:
    decoder = CsvDecoder.with_header(stream(Type.BIGINT), b"w,v,at\n", "f.csv")
    assert decoder.decode_lines(b"\xff,7,1\n1e999,8,2\n").dead == []
    assert len(decoder.decode_lines(b"7,1\n").dead) == 1
    decode = JsonDecoder(stream(Type.BIGINT)).decode_lines
    assert decode(b'{"w":1e999,"v":7,"v":8,"at":1}').batch.columns["v"].to_values() == [8]
    assert len(decode(b'{"w":[1,"v":7,"at":1}').dead) == 1


def test_fractions_and_event_times() -> None:
    decode = JsonDecoder(stream(Type.TIMESTAMP)).decode_lines
    assert decode(b'{"v":"1969-12-31T23:59:59.9999Z","at":1}').batch.columns["v"].to_values() == [-1]
    for at, fine in (("1970-01-01", True), ("2099-12-31", True), ("1969-12-31", False), ("2100-01-01", False)):
        assert (decode(f'{{"at":"{at}"}}'.encode()).dead == []) == fine


def test_functions() -> None:
    claims = re.findall(r"`([A-Z]+)\('(.+?)'((?:, \d+)*)\)` is `'(.+?)'`", FUNCTIONS)
    assert [name for name, *_ in claims] == ["UPPER", "UPPER", "LOWER", "UPPER", "LOWER", "SUBSTRING"]

    def nothing(*column: Any) -> Any:
        raise AssertionError(column)

    for name, given, numbers, expected in claims:
        others = (Literal(int(number), Type.BIGINT) for number in numbers.split(", ")[1:])
        call = Call(name, (Literal(given, Type.STRING), *others), Type.STRING)
        assert evaluate(call, nothing, 1).to_values() == [expected]
