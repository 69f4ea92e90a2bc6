"""The programs that Weir is compared with in the same run: DuckDB in batch, and decoders that merely read.

DuckDB has all data at hand and does not order its results: the question it answers is easier. Its cost grows with the
square of the span of the data, since it finds all equal keys before it looks at time; the spans here are
short.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path

import msgspec
import numpy as np
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.json

from ops.bench.measuring.measure import clocked
from ops.bench.workloads import Workload
from schemas.codecs.json_codec import JsonDecoder
from schemas.columns import Batch


def duckdb_version() -> str | None:
    """DuckDB's version, None when it is not installed."""
    try:
        import duckdb
    except ImportError:
        return None
    return str(duckdb.__version__)


def join_sql(workload: Workload, tables: Mapping[str, str]) -> str:
    """The workload's query for a batch engine; `tables` has each stream's name there."""
    names = list(workload.streams)
    equal = [
        f"{one}.{column} = {other}.{column}"
        for one, other in combinations(names, 2)
        for column in workload.streams[one]
        if column in workload.streams[other]
    ]
    times = ", ".join(f"{name}.ts" for name in names)
    chosen = ", ".join(f"{name}.id AS {name.lower()}" for name in names)
    return (
        f"SELECT {chosen}, greatest({times}) AS _ts FROM {', '.join(f'{tables[n]} {n}' for n in names)} "
        f"WHERE {' AND '.join(equal)} AND greatest({times}) - least({times}) <= {workload.window_ms}"
    )


def duckdb_join(workload: Workload, batches: Mapping[str, Batch], threads: int) -> tuple[int, float]:
    """Results and processor seconds of DuckDB over columns in memory."""
    import duckdb

    with duckdb.connect(config={"threads": threads}) as connection:
        for stream, batch in batches.items():
            table = pa.table({name: column.to_arrow() for name, column in batch.columns.items()})
            connection.register(f"{stream}_in", table)
        with clocked() as clock:
            found = connection.sql(join_sql(workload, {s: f"{s}_in" for s in batches})).to_arrow_table()
        return found.num_rows, clock[0].cpu_seconds


def duckdb_files(workload: Workload, paths: Mapping[str, Path], out: Path) -> tuple[int, float]:
    """Results and seconds of DuckDB from JSON lines to JSON lines, on all cores."""
    import duckdb

    tables = {}
    for stream, path in paths.items():
        types = ", ".join(f"'{name}': 'BIGINT'" for name in workload.columns(stream))
        tables[stream] = f"read_json('{path}', format = 'newline_delimited', columns = {{{types}}})"
    began = time.perf_counter()
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({join_sql(workload, tables)}) TO '{out}' (FORMAT json)")
    seconds = time.perf_counter() - began
    with out.open("rb") as lines:
        return sum(1 for _ in lines), seconds


Reader = Callable[[Workload, str, Path], int]
"""Reads one stream's file into columns; returns the number of events read."""


def read_polars(workload: Workload, stream: str, path: Path) -> int:
    """polars, with the schema given, all cores."""
    schema = dict.fromkeys(workload.columns(stream), pl.Int64)
    return len(pl.read_ndjson(path, schema=schema))


def read_pyarrow(workload: Workload, stream: str, path: Path) -> int:
    """pyarrow, with the schema given, all cores, blocks of 8 MiB."""
    schema = pa.schema([(name, pa.int64()) for name in workload.columns(stream)])
    table = pa.json.read_json(
        path,
        read_options=pa.json.ReadOptions(block_size=8 << 20),
        parse_options=pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    return int(table.num_rows)


def read_orjson(workload: Workload, stream: str, path: Path) -> int:
    """orjson line by line into lists, then columns."""
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    for name in workload.columns(stream):
        np.array([row[name] for row in rows], np.int64)
    return len(rows)


def read_msgspec(workload: Workload, stream: str, path: Path) -> int:
    """msgspec into structs of the stream's type, then columns."""
    names = workload.columns(stream)
    rows = msgspec.json.Decoder(msgspec.defstruct(stream, [(n, int) for n in names], gc=False)).decode_lines(
        path.read_bytes()
    )
    for name in names:
        np.array([getattr(row, name) for row in rows], np.int64)
    return len(rows)


def read_weir(workload: Workload, stream: str, path: Path) -> int:
    """Weir's own decoder on one core, blocks of 4 MiB."""
    decoder = JsonDecoder(next(s for s in workload.query().streams() if s.name == stream))
    count, rest = 0, b""
    with path.open("rb") as file:
        while block := file.read(4 << 20):
            end = block.rfind(b"\n") + 1
            count += len(decoder.decode_lines(rest + block[:end]).batch)
            rest = block[end:]
    if rest:
        count += len(decoder.decode_lines(rest).batch)
    return count


DECODERS: Mapping[str, Reader] = {"polars": read_polars, "pyarrow": read_pyarrow}
"""Decoders into columns; the fastest is the ceiling."""

SLOW_DECODERS: Mapping[str, Reader] = {"orjson": read_orjson, "msgspec": read_msgspec}
"""Decoders that make Python objects on the way; measured on the smaller files."""
