"""Random cases for property tests: queries, rows, plans and ways to feed them (Hypothesis strategies).

Values come from tiny domains, so that matches, duplicates, nulls and ties of timestamps are common.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from operators.plan import Join, Leaf, Plan
from schemas.query import (
    And,
    Arithmetic,
    Call,
    Column,
    Compare,
    Expr,
    Field,
    InList,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Output,
    Query,
    Source,
    Stream,
    Type,
    Window,
)

FIELDS = (
    Field("ts", Type.TIMESTAMP),
    Field("k", Type.BIGINT),
    Field("v", Type.BIGINT),
    Field("d", Type.DOUBLE),
    Field("s", Type.STRING),
    Field("b", Type.BOOLEAN),
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "k": st.sampled_from([0, 1, 1, 2, None]),
    "v": st.sampled_from([0, 1, 2, -3, 7, None, 2**63 - 1, -(2**63), 2**53 + 1]),
    "d": st.sampled_from([0.0, -0.0, 1.0, 2.0, 0.5, -1.5, None, 9007199254740992.0, 9.3e18]),
    "s": st.sampled_from(["", "a", "b", "ab", "ä", "a%b", "longer than eight", None]),
    "b": st.sampled_from([True, False, None]),
}
ALIASES = ("A", "B", "C", "D", "E")


@dataclass(frozen=True)
class Case:
    """A query, its input in arrival order per stream and partition, a plan, and how to feed it."""

    query: Query
    rows: dict[str, list[list[dict[str, Any]]]]
    plan: Plan
    push_sizes: list[int]
    epoch_ms: int


def window(ranged: bool = False) -> st.SearchStrategy[Window]:
    """A small window; only RANGE when `ranged`."""
    ranges = st.builds(Window, st.just("RANGE"), st.sampled_from([0, 1, 3, 10, 50]))
    if ranged:
        return ranges
    rows = st.builds(Window, st.just("ROWS"), st.integers(1, 4))
    return st.one_of(ranges, ranges, rows, st.just(Window("UNBOUNDED")))


def plan(aliases: tuple[str, ...]) -> st.SearchStrategy[Plan]:
    """Any binary tree over the aliases in any order."""

    def build(order: list[str]) -> st.SearchStrategy[Plan]:
        if len(order) == 1:
            return st.just(Leaf(order[0]))
        return st.integers(1, len(order) - 1).flatmap(
            lambda cut: st.builds(Join, build(order[:cut]), build(order[cut:]))
        )

    return st.permutations(aliases).flatmap(build)


def column(alias: str, name: str) -> Column:
    """A column of the test streams, or the pseudo-column `_ts`."""
    types = {f.name: f.type for f in FIELDS}
    return Column(alias, name, types.get(name, Type.TIMESTAMP))


def numeric(aliases: list[str]) -> st.SearchStrategy[Expr]:
    """A numeric expression over one or two columns."""
    base = st.builds(column, st.sampled_from(aliases), st.sampled_from(["k", "v", "d", "k", "_ts"]))

    def combine(pair: tuple[Column, str, Expr]) -> Expr:
        left, op, right = pair
        kinds = {left.type, right.type}  # type: ignore[union-attr]
        if Type.DOUBLE in kinds:
            return Arithmetic(op, left, right, Type.DOUBLE)  # type: ignore[arg-type]
        return Arithmetic(op, left, right, Type.BIGINT)  # type: ignore[arg-type]

    constant = st.one_of(
        st.builds(Literal, st.sampled_from([0, 1, 2, -1, 5]), st.just(Type.BIGINT)),
        st.builds(Literal, st.sampled_from([0.5, 2.0]), st.just(Type.DOUBLE)),
    )
    mixed = st.tuples(base, st.sampled_from(["+", "-", "*", "/", "%"]), st.one_of(base, constant)).map(
        combine
    )
    absolute = base.map(lambda c: Call("ABS", (c,), Type.DOUBLE if c.type is Type.DOUBLE else Type.BIGINT))
    return st.one_of(base, base, mixed, absolute)


ORDER = st.sampled_from(["=", "=", "<", "<=", ">", ">=", "<>"])


@st.composite
def join_predicate(draw: st.DrawFn, left: list[str], right: list[str]) -> Expr:
    """A predicate between two groups of aliases."""
    a, b = draw(st.sampled_from(left)), draw(st.sampled_from(right))
    kind = draw(
        st.sampled_from(["key", "key", "key", "key", "string", "bool", "cross", "order", "band", "any", "or"])
    )
    match kind:
        case "key":
            return Compare("=", column(a, "k"), column(b, draw(st.sampled_from(["k", "v"]))))
        case "string":
            return Compare(draw(ORDER), column(a, "s"), column(b, "s"))
        case "bool":
            return Compare("=", column(a, "b"), column(b, "b"))
        case "cross":
            return Compare("=", column(a, draw(st.sampled_from(["k", "v", "d"]))), column(b, "d"))
        case "order":
            name = draw(st.sampled_from(["k", "v", "d", "_ts"]))
            return Compare(draw(ORDER), column(a, name), column(b, name))
        case "band":
            name = draw(st.sampled_from(["k", "v", "_ts"]))
            gap = Arithmetic(draw(st.sampled_from(["-", "+"])), column(a, name), column(b, name), Type.BIGINT)
            return Compare(draw(ORDER), gap, Literal(draw(st.sampled_from([0, 1, -2, 5])), Type.BIGINT))
        case "or":
            return Or(
                (
                    Compare("=", column(a, "k"), column(b, "k")),
                    And((IsNull(column(a, "s"), False), Compare("<", column(b, "d"), column(a, "d")))),
                )
            )
        case _:
            return Compare(draw(ORDER), draw(numeric([a, b])), draw(numeric([a, b])))


def selection(alias: str) -> st.SearchStrategy[Expr]:
    """A predicate over one alias."""
    return st.one_of(
        st.builds(Compare, ORDER, numeric([alias]), numeric([alias])),
        st.just(Compare(">", column(alias, "k"), Literal(0, Type.BIGINT))),
        st.just(Like(column(alias, "s"), "a%", False)),
        st.just(Like(column(alias, "s"), "a\\%_", True)),
        st.just(IsNull(column(alias, "v"), True)),
        st.just(Not(column(alias, "b"))),
        st.just(InList(column(alias, "k"), (Literal(1, Type.BIGINT), Literal(None, Type.BIGINT)), True)),
    )


@st.composite
def cases(
    draw: st.DrawFn, *, most_aliases: int = 4, most_rows: int = 14, ranged: bool = False, partitions: int = 2
) -> Case:
    """A random case. `ranged` keeps to RANGE windows."""
    aliases = ALIASES[: draw(st.integers(1, most_aliases))]
    streams = [
        Stream(
            name=f"S{i}",
            fields=FIELDS,
            topic=f"S{i}",
            timestamp="ts",
            disorder_ms=draw(st.sampled_from([0, 0, 2, 20])),
        )
        for i in range(len(aliases))
    ]
    if len(aliases) > 1 and draw(st.booleans()):
        streams[1] = streams[0]
    sources = tuple(Source(a, s, draw(window(ranged))) for a, s in zip(aliases, streams, strict=True))
    predicates: list[Expr] = []
    for i in range(1, len(aliases)):
        for _ in range(draw(st.integers(0 if i > 1 else 1, 2))):
            predicates.append(draw(join_predicate(list(aliases[:i]), [aliases[i]])))
    for alias in aliases:
        if draw(st.integers(0, 3)) == 0:
            predicates.append(draw(selection(alias)))
    outputs = [Output(f"{a}.{f.name}", column(a, f.name)) for a in aliases for f in FIELDS]
    outputs.append(Output("at", column(aliases[-1], "_ts")))
    query = Query("q", None, sources, tuple(draw(st.permutations(predicates))), tuple(outputs))
    rows: dict[str, list[list[dict[str, Any]]]] = {}
    for stream in query.streams():
        rows[stream.name] = [
            [
                {"ts": draw(st.integers(0, 60)), **{name: draw(v) for name, v in VALUES.items()}}
                for _ in range(draw(st.integers(0, most_rows)))
            ]
            for _ in range(draw(st.integers(1, partitions)))
        ]
        if draw(st.booleans()):
            for part in rows[stream.name]:
                part.sort(key=lambda row: row["ts"])
    return Case(
        query,
        rows,
        draw(plan(aliases)),
        draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)),
        draw(st.sampled_from([1, 7, 30, 1000])),
    )
