"""Random set differences for property tests (Hypothesis strategies)."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st

from operators.plan.plan import Plan, left_deep
from schemas.query import Compare, Expr, Literal, Output, Query, Source, Stream, Subtraction, Type, Window
from tests.cases import (
    ALIASES,
    FIELDS,
    VALUES,
    Case,
    column,
    deduplication,
    join_predicate,
    lookup_column,
    lookups,
    make_versions,
    over_lookups,
    selection,
    window,
    with_tables,
)


def orders(aliases: tuple[str, ...]) -> st.SearchStrategy[Plan]:
    """Any plan of a set difference: the first alias minus the others in any order."""
    return st.permutations(aliases[1:]).map(lambda rest: left_deep((aliases[0], *rest)))


@st.composite
def subtractions(draw: st.DrawFn, *, most_aliases: int = 4, most_rows: int = 12) -> Case:
    """Any conditions, windows, disorder and partitions; streams may be subtracted from themselves."""
    aliases = ALIASES[: draw(st.integers(2, most_aliases))]
    disorder = st.sampled_from([0, 0, 2, 20])
    streams = [
        Stream(f"S{a}", FIELDS, f"S{a}", timestamp="ts", disorder_ms=draw(disorder), **draw(deduplication()))
        for a in aliases
    ]
    used = [draw(st.sampled_from([stream, stream, stream, streams[0]])) for stream in streams]
    one = draw(window()) if draw(st.booleans()) else None
    sources = tuple(Source(a, s, one or draw(window())) for a, s in zip(aliases, used, strict=True))
    sources = draw(with_tables(sources, first=1))
    first = aliases[0]
    found = draw(lookups(sources))
    parts = []
    for alias in aliases[1:]:
        on: list[Expr] = [draw(join_predicate([first], [alias])) for _ in range(draw(st.sampled_from([1, 1, 1, 2])))]
        for _ in range(draw(st.sampled_from([0, 0, 0, 1]))):
            on.append(draw(selection(draw(st.sampled_from([first, alias])))))
        if draw(st.sampled_from([False] * 19 + [True])):
            on.append(Compare("=", Literal(1, Type.BIGINT), Literal(draw(st.integers(0, 1)), Type.BIGINT)))
        on += draw(over_lookups([one for one in found if one.of in (first, alias)], (first, alias)))
        parts.append(Subtraction(alias, tuple(draw(st.permutations(on)))))
    where = [draw(selection(first)) for _ in range(draw(st.sampled_from([0, 0, 1])))]
    of_first = [one for one in found if one.of == first]
    where += draw(over_lookups(of_first, (first,)))
    names = draw(st.lists(st.sampled_from(["ts", "k", "v", "s", "d"]), unique=True, min_size=1))
    outputs = [Output(name, column(first, name)) for name in names]
    outputs += [
        Output(f"{one.alias}.{name}", lookup_column(one, name)) for one in of_first for name in ("v", "s", "_ts")
    ]
    query = Query("q", None, sources, tuple(where), tuple(outputs), subtracted=tuple(parts), lookups=found)
    latest = draw(st.sampled_from([12, 60]))
    rows: dict[str, list[list[dict[str, Any]]]] = {}

    def some(least: int = 0) -> list[dict[str, Any]]:
        return [
            {"ts": draw(st.integers(0, latest)), **{name: draw(v) for name, v in VALUES.items()}}
            for _ in range(draw(st.integers(least, most_rows)))
        ]

    for stream in query.streams():
        rows[stream.name] = [some(least=stream.is_versioned) for _ in range(draw(st.integers(1, 2)))]
        if stream.is_versioned:
            draw(make_versions(rows[stream.name]))
        if draw(st.booleans()):
            for part in rows[stream.name]:
                part.sort(key=lambda row: row["ts"])
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    tables = {table.name: some() for table in query.tables()}
    return Case(query, rows, draw(orders(aliases)), sizes, draw(st.sampled_from([1, 7, 30, 1000])), tables)


@st.composite
def busy_subtractions(draw: st.DrawFn) -> Case:
    """Cases whose answers change all the time: one key of few values, windows about as long as the gaps between
    matches."""
    aliases = ALIASES[: draw(st.sampled_from([2, 3, 4, 4]))]
    kinds = [Window("RANGE", 3), Window("RANGE", 8), Window("RANGE", 8), Window("RANGE", 25), Window("ROWS", 5)]
    lasting = [Window("RANGE", 40), Window("RANGE", 40), Window("ROWS", 14), Window("UNBOUNDED")]
    windows = [draw(st.sampled_from(lasting)), *(draw(st.sampled_from(kinds)) for _ in aliases[1:])]
    streams = [Stream(f"S{a}", FIELDS, f"S{a}", timestamp="ts") for a in aliases]
    sources = tuple(Source(a, s, w) for a, s, w in zip(aliases, streams, windows, strict=True))
    op = draw(st.sampled_from(["=", "=", "=", "<"]))
    parts = tuple(Subtraction(a, (Compare(op, column("A", "k"), column(a, "k")),)) for a in aliases[1:])
    query = Query("q", None, sources, (), (Output("n", column("A", "v")),), subtracted=parts)
    random = Random(draw(st.integers(0, 10**6)))
    keys, count = draw(st.sampled_from([2, 4])), draw(st.sampled_from([8, 25]))
    rows = {
        stream.name: [
            [
                {"ts": ts, "k": random.randrange(keys), "v": n, "d": 0.0, "s": "", "b": None}
                for n, ts in enumerate(sorted(random.randrange(100) for _ in range(count)))
            ]
        ]
        for stream in streams
    }
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    return Case(query, rows, draw(orders(aliases)), sizes, draw(st.sampled_from([1, 7, 1000])))
