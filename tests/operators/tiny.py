"""Tiny queries and inputs, written so that a test can be read at a glance.

    query("SELECT A.k FROM a A [RANGE 5 MILLISECONDS], b B [ROWS 1] WHERE A.k = B.k")
    rows("1 k=1 | 3 k=2 s=x")         # two tuples: ts 1 and 3; columns not named are null

Streams a, b, c, d have columns k, v BIGINT, d DOUBLE, s STRING, f BOOLEAN and their event time `ts`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from operators.engine.engine import Engine
from operators.plan.plan import Plan, parse_plan
from schemas.columns import I64, Batch, Column
from schemas.language.program import parse_program
from schemas.query import Expr, Query, Type
from tests import oracle
from tests.feeding import canonical, feed, partitions_of

COLUMNS = "k BIGINT, v BIGINT, d DOUBLE, s STRING, f BOOLEAN, ts TIMESTAMP"
_READ: dict[str, Any] = {
    "k": int,
    "v": int,
    "d": float,
    "s": str,
    "f": lambda text: text == "true",
}


def query(select: str, *, disorder_ms: int = 0, streams: str = "abcd", options: str = "") -> Query:
    """The query of a SELECT over the streams named by single letters; `ms` is short for MILLISECONDS."""
    declared = "".join(
        f"CREATE STREAM {name} ({COLUMNS}) WITH (timestamp = 'ts', disorder = '{disorder_ms} MILLISECONDS'{options});\n"
        for name in streams
    )
    return parse_program(declared + select.replace(" ms]", " MILLISECONDS]")).queries[0]


def chain(count: int, *, window: str = "[RANGE 10 ms]", star: bool = False) -> Query:
    """A0 joins A1 on k, A1 joins A2 and so on, each of a stream of its own; or A0 joins them all."""
    declared = "".join(f"CREATE STREAM a{i} ({COLUMNS}) WITH (timestamp = 'ts');\n" for i in range(count))
    sources = ", ".join(f"a{i} A{i} {window}" for i in range(count))
    where = " AND ".join(f"A{0 if star else i}.k = A{i + 1}.k" for i in range(count - 1))
    outputs = ", ".join(f"A{i}.v" for i in range(count))
    text = f"SELECT {outputs} FROM {sources}" + (f" WHERE {where}" if where else "")
    return parse_program(declared + text.replace(" ms]", " MILLISECONDS]")).queries[0]


def where(condition: str, aliases: str = "AB") -> Expr:
    """The single predicate of a condition over aliases A .. D of streams a .. d."""
    sources = ", ".join(f"{alias.lower()} {alias} [ROWS 1]" for alias in aliases)
    (predicate,) = query(f"SELECT A.k FROM {sources} WHERE {condition}").predicates
    return predicate


def rows(text: str) -> list[dict[str, Any]]:
    """Tuples in arrival order from `ts column=value ... | ts ...`."""
    out = []
    for item in filter(None, (part.strip() for part in text.split("|"))):
        ts, *values = item.split()
        row: dict[str, Any] = dict.fromkeys(_READ)
        row["ts"] = int(ts)
        for name, value in (pair.split("=", 1) for pair in values):
            row[name] = _READ[name](value)
        out.append(row)
    return out


def inputs(**streams: str) -> dict[str, list[list[dict[str, Any]]]]:
    """Input of a query, one partition per stream: `inputs(a="1 k=1", b="2 k=1")`."""
    return {name: [rows(text)] for name, text in streams.items()}


def run(
    query: Query,
    given: dict[str, list[list[dict[str, Any]]]],
    *,
    plan: str | Plan | None = None,
    push: int = 1,
    epoch_ms: int = 1,
) -> tuple[list[dict[str, Any]], Engine]:
    """Results in order, checked against the oracle, and the engine as it is at the end."""
    given = {stream.name: given.get(stream.name, [[]]) for stream in query.streams()}
    chosen = parse_plan(plan, query) if isinstance(plan, str) else plan
    engine = Engine(query, plan=chosen, partitions=partitions_of(given))
    got = feed(engine, given, [push], epoch_ms)
    assert canonical(got) == canonical(oracle.results(query, given))
    return got, engine


def numbers(ts: I64, **columns: I64) -> Batch:
    """A batch of streams a .. d from arrays; columns not given are zero or empty, nothing is null."""
    n = len(ts)
    values: dict[str, Column] = {
        "k": Column(Type.BIGINT, np.zeros(n, np.int64)),
        "v": Column(Type.BIGINT, np.zeros(n, np.int64)),
        "d": Column(Type.DOUBLE, np.zeros(n, np.float64)),
        "s": Column.from_values([""] * n, Type.STRING),
        "f": Column(Type.BOOLEAN, np.zeros(n, np.bool_)),
        "ts": Column(Type.TIMESTAMP, ts),
    }
    values |= {name: Column(values[name].type, array) for name, array in columns.items()}
    return Batch(ts, values)
