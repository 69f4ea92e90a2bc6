"""Asks DuckDB the same question, and compares the two answers row for row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl

from ops.demo.flights import Feed
from schemas.errors import UsageError

CHECK = Path(__file__).with_name("check.sql")
ORDER_BY = "airport"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two answers as multisets of whole rows.

    Attributes:
        expected, found: how many rows DuckDB and Weir have.
        missing, unexpected: rows that only DuckDB or only Weir has; a row counts as often as it occurs too often.
        out_of_order: results that arrived after one of the same airport with a later timestamp.
    """

    expected: int
    found: int
    missing: pl.DataFrame
    unexpected: pl.DataFrame
    out_of_order: int

    @property
    def equal(self) -> bool:
        """True when no row differs and all arrived in order."""
        return not len(self.missing) and not len(self.unexpected) and not self.out_of_order


def expected_results(feeds: Sequence[Feed]) -> pl.DataFrame:
    """DuckDB's answer over the whole tables, with the column names of check.sql."""
    return _ask(CHECK.read_text(), {feed.stream: feed.rows for feed in feeds})


def compare(expected: pl.DataFrame, lines: Sequence[bytes]) -> Comparison:
    """Compare results, JSON objects in the order in which they were read, with DuckDB's answer."""
    found = pl.read_ndjson(b"\n".join(lines), schema=expected.schema) if lines else expected.clear()
    tables = {"expected": expected, "found": found}
    return Comparison(
        len(expected),
        len(found),
        missing=_ask("FROM expected EXCEPT ALL FROM found", tables),
        unexpected=_ask("FROM found EXCEPT ALL FROM expected", tables),
        out_of_order=_out_of_order(found),
    )


def _out_of_order(found: pl.DataFrame) -> int:
    return sum(
        int(np.count_nonzero(np.diff(group["_ts"].to_numpy()) < 0)) for group in found.partition_by(ORDER_BY)
    )


def _ask(sql: str, tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    try:
        import duckdb
    except ImportError:
        raise UsageError(
            "DuckDB computes the results to compare with, and is not installed; "
            "accepted: pip install 'weir-streams[demo]'"
        ) from None
    connection: Any = duckdb.connect()
    try:
        for name, table in tables.items():
            connection.register(name, table.to_arrow())
        answer = pl.from_arrow(connection.sql(sql).to_arrow_table())
        return cast(pl.DataFrame, answer)
    finally:
        connection.close()
