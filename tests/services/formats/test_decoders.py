"""Which decoder a stream has, and what is checked before a query starts."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest

from schemas.errors import DataError, UsageError
from schemas.language.program import parse_program
from schemas.query import Query
from services.formats.decoders import Decoders, make_decoders
from services.formats.registry_access import RegistryAccess
from tests.services.formats.test_records import Records

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {
            "name": "customer",
            "type": ["null", {"type": "record", "name": "Customer", "fields": [{"name": "city", "type": "string"}]}],
        },
        {"name": "lines", "type": {"type": "array", "items": "double"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
COLUMNS = "id BIGINT, city STRING FROM 'customer.city', first DOUBLE FROM 'lines[0]', at TIMESTAMP"


def query(columns: str = COLUMNS, options: str = "schema = 'order.avsc'") -> Query:
    text = f"CREATE STREAM orders ({columns}) WITH (format = 'avro', {options}); SELECT * FROM orders O [RANGE 1 HOUR]"
    return parse_program(text).queries[0]


def test_a_schema_file_lies_beside_the_query(tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "orders.sql").write_text("")
    bound = query()
    decoder = make_decoders(bound, tmp_path / "orders.sql", RegistryAccess()).of(bound.streams()[0])
    out = io.BytesIO()
    record = {"id": 7, "customer": {"city": "Oslo"}, "lines": [2.5, 3.0], "at": 1_700_000_000_000_999}
    fastavro.schemaless_writer(out, fastavro.parse_schema(ORDER), record)
    batch = decoder.decode_values([out.getvalue()]).batch
    found = {name: column.to_values()[0] for name, column in batch.columns.items()}
    assert found == {"id": 7, "city": "Oslo", "first": 2.5, "at": 1_700_000_000_000}


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ("id BIGINT, town STRING, at TIMESTAMP", "declares column 'town', which the schema does not have"),
        ("c STRING FROM 'customer.town', at TIMESTAMP", "declares column 'c' FROM 'customer.town', which the schema"),
        ("id STRING, at TIMESTAMP", "declares column 'id' STRING, which the schema has as int"),
        (
            "customer STRING, at TIMESTAMP",
            "declares column 'customer' STRING, which the schema has as null or Customer",
        ),
        ("l DOUBLE FROM 'lines', at TIMESTAMP", "declares column 'l' DOUBLE, which the schema has as array"),
    ],
)
def test_a_column_that_no_record_can_have_is_an_error(tmp_path: Path, columns: str, reason: str) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "orders.sql").write_text("")
    with pytest.raises(DataError, match=r"order\.avsc: stream 'orders'") as failed:
        make_decoders(query(columns), tmp_path / "orders.sql", RegistryAccess())
    assert reason in str(failed.value)


UNNESTED = """
    CREATE STREAM orders (id BIGINT, lines ARRAY<DOUBLE>, place BIGINT FROM '_offset', at TIMESTAMP)
      WITH (format = 'avro', schema = 'order.avsc');
    SELECT O.id, L.value, L._ordinal FROM orders O [RANGE 1 HOUR] CROSS JOIN UNNEST(O.lines) AS L
"""


def test_an_array_beside_what_is_known_of_records(tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "orders.sql").write_text("")
    (stream,) = parse_program(UNNESTED).queries[0].streams()
    decoder = make_decoders(parse_program(UNNESTED).queries[0], tmp_path / "orders.sql", RegistryAccess())
    values = []
    for n, lines in enumerate([[2.5, 3.0], [], [4.5]]):
        out = io.BytesIO()
        record = {"id": n, "customer": None, "lines": lines, "at": 1_000_000 * n}
        fastavro.schemaless_writer(out, fastavro.parse_schema(ORDER), record)
        values.append(out.getvalue())
    found = decoder.records_of(stream).decode(Records(values))
    batch = {name: column.to_values() for name, column in found.batch.columns.items()}
    assert found.rows.tolist() == [0, 0, 2]
    assert batch == {
        "id": [0, 0, 2],
        "place": [100, 100, 102],
        "at": [0, 0, 2000],
        "lines.value": [2.5, 3.0, 4.5],
        "lines._ordinal": [1, 2, 1],
    }


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        ("goods ARRAY<DOUBLE>", "declares array 'goods', which the schema does not have"),
        ("goods ARRAY<DOUBLE> FROM 'customer'", "declares array 'goods', which the schema has as null or Customer"),
        ("goods ARRAY<STRING> FROM 'lines'", "declares column 'goods.value' STRING, which the schema has as double"),
    ],
)
def test_an_array_that_no_record_can_have_is_an_error(tmp_path: Path, array: str, reason: str) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "orders.sql").write_text("")
    text = UNNESTED.replace("lines ARRAY<DOUBLE>", array).replace("O.lines", "O.goods")
    with pytest.raises(DataError, match=r"order\.avsc: stream 'orders'") as failed:
        make_decoders(parse_program(text).queries[0], tmp_path / "orders.sql", RegistryAccess())
    assert reason in str(failed.value)


def test_a_schema_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read the schema .*order.avsc: No such file"):
        make_decoders(query(), tmp_path / "no.sql", RegistryAccess())
    (tmp_path / "order.avsc").write_text("{")
    (tmp_path / "orders.sql").write_text("")
    with pytest.raises(DataError, match=r"order\.avsc: broken Avro schema"):
        make_decoders(query(), tmp_path / "orders.sql", RegistryAccess())


def test_avro_needs_to_know_where_schemas_are() -> None:
    bound = parse_program(
        "CREATE STREAM orders (id BIGINT, at TIMESTAMP) WITH (format = 'avro'); SELECT * FROM orders O [RANGE 1 HOUR]"
    ).queries[0]
    with pytest.raises(UsageError, match=r"has values in avro: where are their schemas.*--registry"):
        Decoders().of(bound.streams()[0])
