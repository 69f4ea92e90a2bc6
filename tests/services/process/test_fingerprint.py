"""A query's fingerprint stays what it was: committed state of an earlier release is refused under another."""

from __future__ import annotations

import pytest

from schemas.language.program import parse_program
from services.process.fingerprint import fingerprint

STREAMS = """
    CREATE STREAM l (id BIGINT, at TIMESTAMP, x DOUBLE, s STRING, ok BOOLEAN)
        WITH (topic = 'l', format = 'json', timestamp = 'at', disorder = '5 SECONDS');
    CREATE STREAM r (id BIGINT, x DOUBLE, s STRING) WITH (topic = 'r', format = 'json');
    CREATE TABLE names (id BIGINT, name STRING) WITH (path = 'names.csv');
"""

COMMITTED = {
    "SELECT L.x AS x FROM l L [RANGE 1 MINUTE], r R [ROWS 10] WHERE L.id = R.id": "19b2d666d3d28557",
    """SELECT L.x AS x FROM l L, r R WINDOW UNBOUNDED
        WHERE L.id = R.id AND NOT (L.x + 2 * R.x > 1.5 OR L.s IN ('a', 'b')) AND L.s LIKE 'x%' AND R.s IS NOT NULL
        AND ABS(L.x - R.x) BETWEEN 0 AND 3 AND L.ok""": "f4fb8b1cd98eb1cb",
    "SELECT L.x AS x, N.name AS name FROM l L [RANGE 1 MINUTE], names N WHERE L.id = N.id": "5e920a99205183ef",
    "SELECT L.x AS x FROM l L, r R WINDOW RANGE 1 HOUR WHERE L.id = R.id PARTITION BY L.id, R.id": "4e4a1ca28277ec10",
    """SELECT L.id AS id, COUNT(*) AS n, SUM(R.x + 1) AS total FROM l L, r R WINDOW RANGE 1 HOUR
        WHERE L.id = R.id GROUP BY L.id EMIT EVERY 10 SECONDS""": "63a058a63e136bbe",
    """SELECT L.id AS id FROM l L [RANGE 1 HOUR] WHERE L.x > 1
        EXCEPT r R [RANGE 1 MINUTE] ON L.id = R.id""": "83ef5e4d38741cdc",
}
"""Per query, the fingerprint that version 0.1 committed."""


@pytest.mark.parametrize("select", COMMITTED)
def test_a_query_keeps_its_fingerprint(select: str) -> None:
    """It covers the names of the model's classes, so a class that is renamed must be entered in CLASS_NAMES."""
    (query,) = parse_program(f"{STREAMS} INSERT INTO 'out' {select};").queries
    assert fingerprint(query) == COMMITTED[select]


def test_where_a_column_is_and_the_format_belong_to_the_query() -> None:
    def of(column: str, options: str) -> str:
        text = f"CREATE STREAM l (id {column}) WITH ({options}); SELECT * FROM l L [RANGE 1 MINUTE]"
        return fingerprint(parse_program(text).queries[0])

    one = of("BIGINT", "format = 'avro', registry = 'http://r'")
    assert one == of("BIGINT", "format = 'avro'") == of("BIGINT", "format = 'avro', schema = 's.avsc'")
    assert len({one, of("BIGINT", "format = 'json'"), of("BIGINT FROM 'a.id'", "format = 'avro'")}) == 3
